"""A step of the world, 0.02 s: islands of bodies that touch, then where a body first meets a wall.

Bodies that touch are solved together: forces, velocities, positions, sleep. In continuous collision
a body stops within the step where it first touches a static one.
"""

from __future__ import annotations

from typing import Any

from slipstream.games.hockey.physics.bodies import (
    ANGULAR_SLEEP_TOLERANCE_SQUARED,
    BAUMGARTE,
    BODIES,
    INVERSE_INERTIA,
    INVERSE_MASS,
    LINEAR_SLEEP_TOLERANCE_SQUARED,
    MAX_FLOAT,
    MAX_ISLAND_CONTACTS,
    MAX_SUB_STEPS,
    MAX_TOI,
    MOVING,
    POSITION_ITERATIONS,
    PUCK,
    SEPARATION_TOLERANCE,
    STEP,
    TIME_TO_SLEEP,
    TOI_BAUMGARTE,
    TOI_POSITION_ITERATIONS,
    TOI_SEPARATION_TOLERANCE,
    VELOCITY_ITERATIONS,
    body_a,
    body_b,
)
from slipstream.games.hockey.physics.contacts import (
    find_contacts,
    is_sensor,
    synchronize,
    update,
    wake,
)
from slipstream.games.hockey.physics.distance import time_of_impact
from slipstream.games.hockey.physics.motion import (
    advance_body,
    advance_sweep,
    dot,
    integrate_position,
    is_far,
    reset_sweep,
    restore_sweep,
    save_sweep,
    set_pose,
)
from slipstream.games.hockey.physics.solver import (
    ACROSS,
    ALONG,
    POINT,
    POINT_NUMBERS,
    init_constraint,
    solve_contact,
    solve_position,
    solve_single_contact,
    warm_start,
)
from slipstream.jit.float32 import add, mul, single, sub


def build_island(s: Any, d: Any, seed: int) -> int:
    """Collects the contacts that hang together with a body, depth first, the newest first.

    A racket that the puck reaches is looked at after it, the last one found first; two rackets are
    found from each other. Statics belong to any number of islands.

    Returns:
        how many contacts there are.
    """
    count = 0
    first = seed
    second = -1
    third = -1
    s.islanded[seed] = True
    for _ in range(MOVING):
        body = first  # the top of the stack
        if body < 0:
            break
        first, second, third = second, third, -1
        wake(s, body)
        s.in_island[body] = True
        for place in range(s.contacts):
            k = s.order[place]
            a, b = body_a(k), body_b(k)
            if (a != body and b != body) or s.taken[k] or is_sensor(k):
                continue
            if not (s.enabled[k] and s.touching[k]) or count == MAX_ISLAND_CONTACTS:
                continue
            s.island[count] = k
            s.taken[k] = True
            count += 1
            other = b if a == body else a
            if other >= MOVING:
                reset_sweep(s, other)
            elif not s.islanded[other]:
                s.islanded[other] = True
                first, second, third = other, first, second
    return count


def integrate_velocity(s: Any, d: Any, body: int) -> None:
    """Forces, then damping: v (1 - h c), not v / (1 + h c)."""
    reset_sweep(s, body)
    s.angle0[body] = s.angle[body]
    inverse = single(d.table[body, INVERSE_MASS])
    factor = max(0.0, min(sub(1.0, mul(STEP, s.linear_damping[body])), 1.0))
    for axis in range(2):
        gain = mul(STEP, mul(inverse, s.force[body, axis]))
        s.linear_velocity[body, axis] = mul(add(s.linear_velocity[body, axis], gain), factor)
    gain = mul(mul(STEP, d.table[body, INVERSE_INERTIA]), s.torque[body])
    factor = max(0.0, min(sub(1.0, mul(STEP, s.angular_damping[body])), 1.0))
    s.angular_velocity[body] = mul(add(s.angular_velocity[body], gain), factor)


def solve_velocities(s: Any, d: Any, count: int, warm: bool) -> None:
    """Sweeps until nothing changes any more, which further sweeps would not alter."""
    for i in range(count):
        init_constraint(s, d, i, warm)
    if warm:
        for i in range(count):
            warm_start(s, d, i)
    if count == 1 and s.solved[0] == 1:
        solve_single_contact(s, d, VELOCITY_ITERATIONS)
        return
    left, since, until = VELOCITY_ITERATIONS, 0, 1
    save_motion(s, count)
    while left > 0:
        left -= 1
        changed = False
        for i in range(count):
            changed = solve_contact(s, d, i) or changed
        if not changed:
            break
        since += 1
        if is_repeated(s, count):  # a circle, as in `solve_single_contact`
            left = left % since
        elif since == until:
            since, until = 0, 2 * until
            save_motion(s, count)


def save_motion(s: Any, count: int) -> None:
    """Notes the velocities and the impulses of the island's contacts."""
    for body in range(MOVING):
        s.marked_motion[body, 0] = s.linear_velocity[body, 0]
        s.marked_motion[body, 1] = s.linear_velocity[body, 1]
        s.marked_motion[body, 2] = s.angular_velocity[body]
    for i in range(count):
        for j in range(2):
            at = POINT + POINT_NUMBERS * j
            s.marked_impulse[i, j, 0] = s.constraint[i, at + ALONG]
            s.marked_impulse[i, j, 1] = s.constraint[i, at + ACROSS]


def is_repeated(s: Any, count: int) -> bool:
    """Whether they are those that were noted."""
    for body in range(MOVING):
        if s.angular_velocity[body] != s.marked_motion[body, 2]:
            return False
        if s.linear_velocity[body, 0] != s.marked_motion[body, 0]:
            return False
        if s.linear_velocity[body, 1] != s.marked_motion[body, 1]:
            return False
    for i in range(count):
        for j in range(s.solved[i]):
            at = POINT + POINT_NUMBERS * j
            if s.marked_impulse[i, j, 0] != s.constraint[i, at + ALONG]:
                return False
            if s.marked_impulse[i, j, 1] != s.constraint[i, at + ACROSS]:
                return False
    return True


def store_impulses(s: Any, count: int) -> None:
    """For the next step's warm start."""
    for i in range(count):
        k = s.island[i]
        for j in range(s.solved[i]):
            at = POINT + POINT_NUMBERS * j
            s.impulse[k, j, 0] = s.constraint[i, at + ALONG]
            s.impulse[k, j, 1] = s.constraint[i, at + ACROSS]


def solve_positions(s: Any, d: Any, count: int, sweeps: int, share: float, solved: float) -> bool:
    """Pushes overlapping bodies apart; whether the least separation came up to `solved`."""
    for _ in range(sweeps):
        least = 0.0
        for i in range(count):
            least = min(least, solve_position(s, d, s.island[i], share))
        if least >= solved:
            return True
    return False


def solve_island(s: Any, d: Any, count: int) -> None:
    """Moves the members and the contacts of `build_island` through the step."""
    for body in range(MOVING):
        if s.in_island[body]:
            integrate_velocity(s, d, body)
    solve_velocities(s, d, count, True)
    store_impulses(s, count)
    for body in range(MOVING):
        if s.in_island[body]:
            integrate_position(s, body, STEP)
            set_pose(s, d, body)
    solved = solve_positions(s, d, count, POSITION_ITERATIONS, BAUMGARTE, SEPARATION_TOLERANCE)
    rested = MAX_FLOAT
    for body in range(MOVING):
        if s.in_island[body]:
            rested = min(rested, update_sleep_time(s, body))
    if rested >= TIME_TO_SLEEP and solved:
        for body in range(MOVING):
            if s.in_island[body]:
                put_to_sleep(s, body)


def update_sleep_time(s: Any, body: int) -> float:
    """Seconds that a body has hardly moved."""
    vx, vy, w = s.linear_velocity[body, 0], s.linear_velocity[body, 1], s.angular_velocity[body]
    if (
        mul(w, w) > ANGULAR_SLEEP_TOLERANCE_SQUARED
        or dot(vx, vy, vx, vy) > LINEAR_SLEEP_TOLERANCE_SQUARED
    ):
        s.sleep_time[body] = 0.0
    else:
        s.sleep_time[body] = add(s.sleep_time[body], STEP)
    return float(s.sleep_time[body])


def put_to_sleep(s: Any, body: int) -> None:
    s.awake[body] = False
    s.sleep_time[body] = 0.0
    s.linear_velocity[body, 0] = 0.0
    s.linear_velocity[body, 1] = 0.0
    s.angular_velocity[body] = 0.0


def solve_islands(s: Any, d: Any) -> None:
    """One island after another, from the newest body on."""
    for body in range(MOVING):
        s.islanded[body] = False
    for place in range(s.contacts):
        s.taken[s.order[place]] = False
    for seed in range(PUCK, -1, -1):
        if s.islanded[seed] or not s.awake[seed]:
            continue
        for body in range(MOVING):
            s.in_island[body] = False
        solve_island(s, d, build_island(s, d, seed))


_STOPS = 1000  # more than SUB_STEPS of each pair


def can_impact(s: Any, d: Any, k: int) -> bool:
    """Only a static body and an awake one that moves, and not in a sensor."""
    a, b = body_a(k), body_b(k)
    if a < MOVING or is_sensor(k) or not s.awake[b]:
        return False
    return s.enabled[k] and s.toi_count[k] <= MAX_SUB_STEPS


def compute_toi(s: Any, d: Any, k: int) -> float:
    """Share of the step at which a pair touches, 1 where it does not."""
    a, b = body_a(k), body_b(k)
    begin = s.alpha[a]
    if s.alpha[a] < s.alpha[b]:
        begin = s.alpha[b]
        advance_sweep(s, a, begin)
    elif s.alpha[b] < s.alpha[a]:
        begin = s.alpha[a]
        advance_sweep(s, b, begin)
    if is_far(s, d, a, b):
        return 1.0
    beta = time_of_impact(s, d, a, b)
    if beta < 0.0:
        return 1.0
    return min(add(begin, mul(sub(1.0, begin), beta)), 1.0)


def first_toi(s: Any, d: Any) -> tuple[int, float]:
    """The pair that touches first, and when; -1 where none does."""
    first = -1
    earliest = 1.0
    for place in range(s.contacts):
        k = s.order[place]
        if not can_impact(s, d, k):
            continue
        if not s.toi_known[k]:
            s.toi[k] = compute_toi(s, d, k)
            s.toi_known[k] = True
        if s.toi[k] < earliest:
            first = k
            earliest = s.toi[k]
    return first, earliest


def solve_continuous(s: Any, d: Any) -> None:
    """Stops at one impact after another, each solved with what the body touches there."""
    for body in range(BODIES):
        s.alpha[body] = 0.0
    for place in range(s.contacts):
        s.toi_known[s.order[place]] = False
        s.toi_count[s.order[place]] = 0
    for _ in range(_STOPS):
        k, share = first_toi(s, d)
        if k < 0 or share > MAX_TOI:
            return
        solve_toi(s, d, k, share)


def solve_toi(s: Any, d: Any, k: int, share: float) -> None:
    """Takes both bodies of a pair to the impact; back again where they do not touch there."""
    a, b = body_a(k), body_b(k)
    way_a, way_b = save_sweep(s, a), save_sweep(s, b)
    advance_body(s, d, a, share)
    advance_body(s, d, b, share)
    update(s, d, k)
    s.toi_known[k] = False
    s.toi_count[k] = s.toi_count[k] + 1
    if not s.touching[k]:
        s.enabled[k] = False
        restore_sweep(s, d, a, way_a)
        restore_sweep(s, d, b, way_b)
        return
    wake(s, b)
    count = build_toi_island(s, d, k, a, b, share)
    solve_toi_island(s, d, a, b, count, mul(sub(1.0, share), STEP))


def build_toi_island(s: Any, d: Any, k: int, a: int, b: int, share: float) -> int:
    """The pair, and what else its moving body touches there; static bodies are taken along."""
    count = 1
    s.island[0] = k
    for place in range(s.contacts):
        j = s.order[place]
        c = body_a(j)
        if body_b(j) != b or j == k or c < MOVING or is_sensor(j) or count == MAX_ISLAND_CONTACTS:
            continue
        way = save_sweep(s, c)
        advance_body(s, d, c, share)
        update(s, d, j)
        if not s.touching[j]:
            restore_sweep(s, d, c, way)
            continue
        s.island[count] = j
        count += 1
    return count


def solve_toi_island(s: Any, d: Any, a: int, b: int, count: int, h: float) -> None:
    """Solves positions, then velocities without warm start, and moves on for the time left."""
    solve_positions(s, d, count, TOI_POSITION_ITERATIONS, TOI_BAUMGARTE, TOI_SEPARATION_TOLERANCE)
    reset_sweep(s, a)
    reset_sweep(s, b)
    s.angle0[b] = s.angle[b]
    solve_velocities(s, d, count, False)
    integrate_position(s, b, h)
    set_pose(s, d, b)
    synchronize(s, d, b)
    for place in range(s.contacts):
        j = s.order[place]
        if body_a(j) == b or body_b(j) == b:
            s.toi_known[j] = False
    find_contacts(s, d)


def begin_step(s: Any, d: Any) -> None:
    """New bodies look for contacts."""
    if s.is_new:
        find_contacts(s, d)


def finish_step(s: Any, d: Any) -> None:
    """Moves everything; the contacts have been refreshed."""
    if s.is_new:  # the solver's poses follow from centres of mass, which have been rounded
        set_pose(s, d, 0)
        set_pose(s, d, 1)
        s.is_new = False
    solve_islands(s, d)
    for body in range(PUCK, -1, -1):
        if s.islanded[body]:
            synchronize(s, d, body)
    find_contacts(s, d)
    solve_continuous(s, d)
    for body in range(MOVING):
        s.force[body, 0] = 0.0
        s.force[body, 1] = 0.0
        s.torque[body] = 0.0
