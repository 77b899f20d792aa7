"""World step of 0.02 s: islands of touching bodies, then continuous collision detection.

Touching bodies are solved together: forces, velocities, positions, sleep. In continuous collision a
body stops at its first time of impact with a static body.
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
    NORMAL_IMPULSE,
    POINT,
    POINT_COLUMNS,
    TANGENT_IMPULSE,
    init_constraint,
    solve_contact,
    solve_position,
    solve_single_contact,
    warm_start,
)
from slipstream.jit.float32 import add, mul, single, sub


def build_island(s: Any, d: Any, seed: int) -> int:
    """Collect the contacts connected to a body by depth-first search, the newest first.

    A static body may belong to several islands.

    Returns:
        The number of contacts.
    """
    count = 0
    top = seed
    second = -1
    third = -1
    s.island_flag[seed] = True
    for _ in range(MOVING):
        body = top  # of a stack of at most three bodies
        if body < 0:
            break
        top, second, third = second, third, -1
        wake(s, body)
        s.in_island[body] = True
        for index in range(s.contact_count):
            k = s.contact_order[index]
            a, b = body_a(k), body_b(k)
            if (a != body and b != body) or s.contact_island_flag[k] or is_sensor(k):
                continue
            if not (s.enabled[k] and s.touching[k]) or count == MAX_ISLAND_CONTACTS:
                continue
            s.island[count] = k
            s.contact_island_flag[k] = True
            count += 1
            other = b if a == body else a
            if other >= MOVING:
                reset_sweep(s, other)
            elif not s.island_flag[other]:
                s.island_flag[other] = True
                top, second, third = other, top, second
    return count


def integrate_velocity(s: Any, d: Any, body: int) -> None:
    """Apply forces, then damping as v (1 - h c), not v / (1 + h c)."""
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
    """Iterate over the contacts until nothing changes or the iterations are used up."""
    for i in range(count):
        init_constraint(s, d, i, warm)
    if warm:
        for i in range(count):
            warm_start(s, d, i)
    if count == 1 and s.velocity_point_count[0] == 1:
        solve_single_contact(s, d, VELOCITY_ITERATIONS)
        return
    remaining, steps, period = VELOCITY_ITERATIONS, 0, 1
    save_motion(s, count)
    while remaining > 0:
        remaining -= 1
        changed = False
        for i in range(count):
            changed = solve_contact(s, d, i) or changed
        if not changed:
            break
        steps += 1
        if is_repeated(s, count):  # a cycle, as in `solve_single_contact`
            remaining = remaining % steps
        elif steps == period:
            steps, period = 0, 2 * period
            save_motion(s, count)


def save_motion(s: Any, count: int) -> None:
    """Save the velocities and the impulses of the island's contacts."""
    for body in range(MOVING):
        s.saved_motion[body, 0] = s.linear_velocity[body, 0]
        s.saved_motion[body, 1] = s.linear_velocity[body, 1]
        s.saved_motion[body, 2] = s.angular_velocity[body]
    for i in range(count):
        for j in range(2):
            offset = POINT + POINT_COLUMNS * j
            s.saved_impulse[i, j, 0] = s.constraint[i, offset + NORMAL_IMPULSE]
            s.saved_impulse[i, j, 1] = s.constraint[i, offset + TANGENT_IMPULSE]


def is_repeated(s: Any, count: int) -> bool:
    """Return whether velocities and impulses equal those of `save_motion`."""
    for body in range(MOVING):
        if s.angular_velocity[body] != s.saved_motion[body, 2]:
            return False
        if s.linear_velocity[body, 0] != s.saved_motion[body, 0]:
            return False
        if s.linear_velocity[body, 1] != s.saved_motion[body, 1]:
            return False
    for i in range(count):
        for j in range(s.velocity_point_count[i]):
            offset = POINT + POINT_COLUMNS * j
            if s.saved_impulse[i, j, 0] != s.constraint[i, offset + NORMAL_IMPULSE]:
                return False
            if s.saved_impulse[i, j, 1] != s.constraint[i, offset + TANGENT_IMPULSE]:
                return False
    return True


def store_impulses(s: Any, count: int) -> None:
    """Store the impulses for the next step's warm start."""
    for i in range(count):
        k = s.island[i]
        for j in range(s.velocity_point_count[i]):
            offset = POINT + POINT_COLUMNS * j
            s.impulse[k, j, 0] = s.constraint[i, offset + NORMAL_IMPULSE]
            s.impulse[k, j, 1] = s.constraint[i, offset + TANGENT_IMPULSE]


def solve_positions(
    s: Any, d: Any, count: int, iterations: int, fraction: float, tolerance: float
) -> bool:
    """Push overlapping bodies apart; return whether every separation reached `tolerance`."""
    for _ in range(iterations):
        min_separation = 0.0
        for i in range(count):
            min_separation = min(min_separation, solve_position(s, d, s.island[i], fraction))
        if min_separation >= tolerance:
            return True
    return False


def solve_island(s: Any, d: Any, count: int) -> None:
    """Integrate and solve the island of `build_island`, and update its sleep."""
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
    min_sleep_time = MAX_FLOAT
    for body in range(MOVING):
        if s.in_island[body]:
            min_sleep_time = min(min_sleep_time, update_sleep_time(s, body))
    if min_sleep_time >= TIME_TO_SLEEP and solved:
        for body in range(MOVING):
            if s.in_island[body]:
                put_to_sleep(s, body)


def update_sleep_time(s: Any, body: int) -> float:
    """Update and return the seconds for which a body has been at rest."""
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
    """Solve all islands, beginning with the newest body."""
    for body in range(MOVING):
        s.island_flag[body] = False
    for index in range(s.contact_count):
        s.contact_island_flag[s.contact_order[index]] = False
    for seed in range(PUCK, -1, -1):
        if s.island_flag[seed] or not s.awake[seed]:
            continue
        for body in range(MOVING):
            s.in_island[body] = False
        solve_island(s, d, build_island(s, d, seed))


_MAX_IMPACTS = 1000  # more than MAX_SUB_STEPS of every pair


def can_impact(s: Any, d: Any, k: int) -> bool:
    """Return whether a pair needs a time of impact: a static and an awake body, no sensor."""
    a, b = body_a(k), body_b(k)
    if a < MOVING or is_sensor(k) or not s.awake[b]:
        return False
    return s.enabled[k] and s.toi_count[k] <= MAX_SUB_STEPS


def compute_toi(s: Any, d: Any, k: int) -> float:
    """Return the time of impact of a pair as a fraction of the step; 1 if there is none."""
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
    """Return the pair with the earliest impact and its time; -1 if there is none."""
    first = -1
    earliest = 1.0
    for index in range(s.contact_count):
        k = s.contact_order[index]
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
    """Solve the impacts in order of time, each with the contacts that the body has there."""
    for body in range(BODIES):
        s.alpha[body] = 0.0
    for index in range(s.contact_count):
        s.toi_known[s.contact_order[index]] = False
        s.toi_count[s.contact_order[index]] = 0
    for _ in range(_MAX_IMPACTS):
        k, fraction = first_toi(s, d)
        if k < 0 or fraction > MAX_TOI:
            return
        solve_toi(s, d, k, fraction)


def solve_toi(s: Any, d: Any, k: int, fraction: float) -> None:
    """Advance both bodies of a pair to the impact; restore them if they do not touch there."""
    a, b = body_a(k), body_b(k)
    sweep_a, sweep_b = save_sweep(s, a), save_sweep(s, b)
    advance_body(s, d, a, fraction)
    advance_body(s, d, b, fraction)
    update(s, d, k)
    s.toi_known[k] = False
    s.toi_count[k] = s.toi_count[k] + 1
    if not s.touching[k]:
        s.enabled[k] = False
        restore_sweep(s, d, a, sweep_a)
        restore_sweep(s, d, b, sweep_b)
        return
    wake(s, b)
    count = build_toi_island(s, d, k, a, b, fraction)
    solve_toi_island(s, d, a, b, count, mul(sub(1.0, fraction), STEP))


def build_toi_island(s: Any, d: Any, k: int, a: int, b: int, fraction: float) -> int:
    """Collect the pair and the other static contacts of its moving body at the impact."""
    count = 1
    s.island[0] = k
    for index in range(s.contact_count):
        j = s.contact_order[index]
        c = body_a(j)
        if body_b(j) != b or j == k or c < MOVING or is_sensor(j) or count == MAX_ISLAND_CONTACTS:
            continue
        sweep = save_sweep(s, c)
        advance_body(s, d, c, fraction)
        update(s, d, j)
        if not s.touching[j]:
            restore_sweep(s, d, c, sweep)
            continue
        s.island[count] = j
        count += 1
    return count


def solve_toi_island(s: Any, d: Any, a: int, b: int, count: int, dt: float) -> None:
    """Solve positions, then velocities without warm start, and integrate the remaining time."""
    solve_positions(s, d, count, TOI_POSITION_ITERATIONS, TOI_BAUMGARTE, TOI_SEPARATION_TOLERANCE)
    reset_sweep(s, a)
    reset_sweep(s, b)
    s.angle0[b] = s.angle[b]
    solve_velocities(s, d, count, False)
    integrate_position(s, b, dt)
    set_pose(s, d, b)
    synchronize(s, d, b)
    for index in range(s.contact_count):
        j = s.contact_order[index]
        if body_a(j) == b or body_b(j) == b:
            s.toi_known[j] = False
    find_contacts(s, d)


def begin_step(s: Any, d: Any) -> None:
    """Find the contacts of new bodies."""
    if s.new_bodies:
        find_contacts(s, d)


def finish_step(s: Any, d: Any) -> None:
    """Move all bodies, after the contacts were updated."""
    if s.new_bodies:  # the solver derives poses from the rounded centres of mass
        set_pose(s, d, 0)
        set_pose(s, d, 1)
        s.new_bodies = False
    solve_islands(s, d)
    for body in range(PUCK, -1, -1):
        if s.island_flag[body]:
            synchronize(s, d, body)
    find_contacts(s, d)
    solve_continuous(s, d)
    for body in range(MOVING):
        s.force[body, 0] = 0.0
        s.force[body, 1] = 0.0
        s.torque[body] = 0.0
