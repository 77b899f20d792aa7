"""A step of the world, 0.02 s: islands of bodies that touch, then where a body first meets a wall.

Bodies that touch are solved together: forces, velocities, positions, sleep. In continuous collision
a body stops within the step where it first touches a static one.
"""

from __future__ import annotations

from typing import Any

from slipstream.games.hockey.physics.bodies import (
    BODIES,
    CORRECTION,
    INVERSE_INERTIA,
    INVERSE_MASS,
    LARGEST,
    LAST_TOI,
    MOST,
    MOVING,
    POSITION_SWEEPS,
    PUCK,
    SLEEP_SPEED_SQUARE,
    SLEEP_SPIN_SQUARE,
    SLEEP_TIME,
    SOLVED,
    STEP,
    SUB_STEPS,
    TOI_CORRECTION,
    TOI_POSITION_SWEEPS,
    TOI_SOLVED,
    VELOCITY_SWEEPS,
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
    advance_sweep,
    begin_here,
    dot,
    go_back,
    integrate,
    is_far,
    set_pose,
    stop_at,
    way_of,
)
from slipstream.games.hockey.physics.solver import (
    ACROSS,
    ALONG,
    POINT,
    POINT_NUMBERS,
    prepare,
    push_apart,
    sweep,
    sweep_alone,
    warm_start,
)
from slipstream.jit.float32 import add, mul, single, sub


def gather(s: Any, d: Any, seed: int) -> int:
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
    s.flagged[seed] = True
    for _ in range(MOVING):
        body = first  # the top of the stack
        if body < 0:
            break
        first, second, third = second, third, -1
        wake(s, body)
        s.member[body] = True
        for place in range(s.contacts):
            k = s.order[place]
            a, b = body_a(k), body_b(k)
            if (a != body and b != body) or s.taken[k] or is_sensor(k):
                continue
            if not (s.enabled[k] and s.touching[k]) or count == MOST:
                continue
            s.island[count] = k
            s.taken[k] = True
            count += 1
            other = b if a == body else a
            if other >= MOVING:
                begin_here(s, other)
            elif not s.flagged[other]:
                s.flagged[other] = True
                first, second, third = other, first, second
    return count


def accelerate(s: Any, d: Any, body: int) -> None:
    """Forces, then damping: v (1 - h c), not v / (1 + h c)."""
    begin_here(s, body)
    s.angle0[body] = s.angle[body]
    inverse = single(d.table[body, INVERSE_MASS])
    factor = max(0.0, min(sub(1.0, mul(STEP, s.damping[body])), 1.0))
    for axis in range(2):
        gain = mul(STEP, mul(inverse, s.force[body, axis]))
        s.velocity[body, axis] = mul(add(s.velocity[body, axis], gain), factor)
    gain = mul(mul(STEP, d.table[body, INVERSE_INERTIA]), s.torque[body])
    factor = max(0.0, min(sub(1.0, mul(STEP, s.spin_damping[body])), 1.0))
    s.spin[body] = mul(add(s.spin[body], gain), factor)


def solve_velocities(s: Any, d: Any, count: int, warm: bool) -> None:
    """Sweeps until nothing changes any more, which further sweeps would not alter."""
    for i in range(count):
        prepare(s, d, i, warm)
    if warm:
        for i in range(count):
            warm_start(s, d, i)
    if count == 1 and s.solved[0] == 1:
        sweep_alone(s, d, VELOCITY_SWEEPS)
        return
    left, since, until = VELOCITY_SWEEPS, 0, 1
    mark(s, count)
    while left > 0:
        left -= 1
        changed = False
        for i in range(count):
            changed = sweep(s, d, i) or changed
        if not changed:
            break
        since += 1
        if is_marked(s, count):  # a circle, as in `sweep_alone`
            left = left % since
        elif since == until:
            since, until = 0, 2 * until
            mark(s, count)


def mark(s: Any, count: int) -> None:
    """Notes the velocities and the impulses of the island's contacts."""
    for body in range(MOVING):
        s.marked_motion[body, 0] = s.velocity[body, 0]
        s.marked_motion[body, 1] = s.velocity[body, 1]
        s.marked_motion[body, 2] = s.spin[body]
    for i in range(count):
        for j in range(2):
            at = POINT + POINT_NUMBERS * j
            s.marked_impulse[i, j, 0] = s.constraint[i, at + ALONG]
            s.marked_impulse[i, j, 1] = s.constraint[i, at + ACROSS]


def is_marked(s: Any, count: int) -> bool:
    """Whether they are those that were noted."""
    for body in range(MOVING):
        if s.spin[body] != s.marked_motion[body, 2]:
            return False
        if s.velocity[body, 0] != s.marked_motion[body, 0]:
            return False
        if s.velocity[body, 1] != s.marked_motion[body, 1]:
            return False
    for i in range(count):
        for j in range(s.solved[i]):
            at = POINT + POINT_NUMBERS * j
            if s.marked_impulse[i, j, 0] != s.constraint[i, at + ALONG]:
                return False
            if s.marked_impulse[i, j, 1] != s.constraint[i, at + ACROSS]:
                return False
    return True


def keep_impulses(s: Any, count: int) -> None:
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
            least = min(least, push_apart(s, d, s.island[i], share))
        if least >= solved:
            return True
    return False


def solve_island(s: Any, d: Any, count: int) -> None:
    """Moves the members and the contacts of `gather` through the step."""
    for body in range(MOVING):
        if s.member[body]:
            accelerate(s, d, body)
    solve_velocities(s, d, count, True)
    keep_impulses(s, count)
    for body in range(MOVING):
        if s.member[body]:
            integrate(s, body, STEP)
            set_pose(s, d, body)
    solved = solve_positions(s, d, count, POSITION_SWEEPS, CORRECTION, SOLVED)
    rested = LARGEST
    for body in range(MOVING):
        if s.member[body]:
            rested = min(rested, rest(s, body))
    if rested >= SLEEP_TIME and solved:
        for body in range(MOVING):
            if s.member[body]:
                fall_asleep(s, body)


def rest(s: Any, body: int) -> float:
    """Seconds that a body has hardly moved."""
    vx, vy, w = s.velocity[body, 0], s.velocity[body, 1], s.spin[body]
    if mul(w, w) > SLEEP_SPIN_SQUARE or dot(vx, vy, vx, vy) > SLEEP_SPEED_SQUARE:
        s.still[body] = 0.0
    else:
        s.still[body] = add(s.still[body], STEP)
    return float(s.still[body])


def fall_asleep(s: Any, body: int) -> None:
    s.awake[body] = False
    s.still[body] = 0.0
    s.velocity[body, 0] = 0.0
    s.velocity[body, 1] = 0.0
    s.spin[body] = 0.0


def solve_islands(s: Any, d: Any) -> None:
    """One island after another, from the newest body on."""
    for body in range(MOVING):
        s.flagged[body] = False
    for place in range(s.contacts):
        s.taken[s.order[place]] = False
    for seed in range(PUCK, -1, -1):
        if s.flagged[seed] or not s.awake[seed]:
            continue
        for body in range(MOVING):
            s.member[body] = False
        solve_island(s, d, gather(s, d, seed))


_STOPS = 1000  # more than SUB_STEPS of each pair


def may_impact(s: Any, d: Any, k: int) -> bool:
    """Only a static body and an awake one that moves, and not in a sensor."""
    a, b = body_a(k), body_b(k)
    if a < MOVING or is_sensor(k) or not s.awake[b]:
        return False
    return s.enabled[k] and s.toi_count[k] <= SUB_STEPS


def impact_share(s: Any, d: Any, k: int) -> float:
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


def first_impact(s: Any, d: Any) -> tuple[int, float]:
    """The pair that touches first, and when; -1 where none does."""
    first = -1
    earliest = 1.0
    for place in range(s.contacts):
        k = s.order[place]
        if not may_impact(s, d, k):
            continue
        if not s.toi_known[k]:
            s.toi[k] = impact_share(s, d, k)
            s.toi_known[k] = True
        if s.toi[k] < earliest:
            first = k
            earliest = s.toi[k]
    return first, earliest


def solve_impacts(s: Any, d: Any) -> None:
    """Stops at one impact after another, each solved with what the body touches there."""
    for body in range(BODIES):
        s.alpha[body] = 0.0
    for place in range(s.contacts):
        s.toi_known[s.order[place]] = False
        s.toi_count[s.order[place]] = 0
    for _ in range(_STOPS):
        k, share = first_impact(s, d)
        if k < 0 or share > LAST_TOI:
            return
        stop(s, d, k, share)


def stop(s: Any, d: Any, k: int, share: float) -> None:
    """Takes both bodies of a pair to the impact; back again where they do not touch there."""
    a, b = body_a(k), body_b(k)
    way_a, way_b = way_of(s, a), way_of(s, b)
    stop_at(s, d, a, share)
    stop_at(s, d, b, share)
    update(s, d, k)
    s.toi_known[k] = False
    s.toi_count[k] = s.toi_count[k] + 1
    if not s.touching[k]:
        s.enabled[k] = False
        go_back(s, d, a, way_a)
        go_back(s, d, b, way_b)
        return
    wake(s, b)
    count = gather_at(s, d, k, a, b, share)
    solve_at(s, d, a, b, count, mul(sub(1.0, share), STEP))


def gather_at(s: Any, d: Any, k: int, a: int, b: int, share: float) -> int:
    """The pair, and what else its moving body touches there; static bodies are taken along."""
    count = 1
    s.island[0] = k
    for place in range(s.contacts):
        j = s.order[place]
        c = body_a(j)
        if body_b(j) != b or j == k or c < MOVING or is_sensor(j) or count == MOST:
            continue
        way = way_of(s, c)
        stop_at(s, d, c, share)
        update(s, d, j)
        if not s.touching[j]:
            go_back(s, d, c, way)
            continue
        s.island[count] = j
        count += 1
    return count


def solve_at(s: Any, d: Any, a: int, b: int, count: int, h: float) -> None:
    """Solves positions, then velocities without warm start, and moves on for the time left."""
    solve_positions(s, d, count, TOI_POSITION_SWEEPS, TOI_CORRECTION, TOI_SOLVED)
    begin_here(s, a)
    begin_here(s, b)
    s.angle0[b] = s.angle[b]
    solve_velocities(s, d, count, False)
    integrate(s, b, h)
    set_pose(s, d, b)
    synchronize(s, d, b)
    for place in range(s.contacts):
        j = s.order[place]
        if body_a(j) == b or body_b(j) == b:
            s.toi_known[j] = False
    find_contacts(s, d)


def begin_step(s: Any, d: Any) -> None:
    """New bodies look for contacts."""
    if s.fresh:
        find_contacts(s, d)


def finish_step(s: Any, d: Any) -> None:
    """Moves everything; the contacts have been refreshed."""
    if s.fresh:  # the solver's poses follow from centres of mass, which have been rounded
        set_pose(s, d, 0)
        set_pose(s, d, 1)
        s.fresh = False
    solve_islands(s, d)
    for body in range(PUCK, -1, -1):
        if s.flagged[body]:
            synchronize(s, d, body)
    find_contacts(s, d)
    solve_impacts(s, d)
    for body in range(MOVING):
        s.force[body, 0] = 0.0
        s.force[body, 1] = 0.0
        s.torque[body] = 0.0
