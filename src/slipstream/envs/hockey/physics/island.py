"""Bodies that touch are solved together: forces, velocities, positions, sleep."""

from __future__ import annotations

from typing import Any

from slipstream.core.single import add, mul, single, sub
from slipstream.envs.hockey.physics.alone import sweep_alone
from slipstream.envs.hockey.physics.boxes import is_sensor, wake
from slipstream.envs.hockey.physics.constraints import prepare, warm_start
from slipstream.envs.hockey.physics.facts import (
    CORRECTION,
    INVERSE_INERTIA,
    INVERSE_MASS,
    LARGEST,
    MOST,
    MOVING,
    POSITION_SWEEPS,
    PUCK,
    SLEEP_SPEED_SQUARE,
    SLEEP_SPIN_SQUARE,
    SLEEP_TIME,
    SOLVED,
    STEP,
    VELOCITY_SWEEPS,
)
from slipstream.envs.hockey.physics.pairs import body_a, body_b
from slipstream.envs.hockey.physics.positions import push_apart
from slipstream.envs.hockey.physics.sweeps import integrate, set_pose
from slipstream.envs.hockey.physics.vectors import dot
from slipstream.envs.hockey.physics.velocities import sweep
from slipstream.envs.hockey.record import ACROSS, ALONG, POINT, POINT_NUMBERS


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
                rest_static(s, other)
            elif not s.flagged[other]:
                s.flagged[other] = True
                first, second, third = other, first, second
    return count


def rest_static(s: Any, body: int) -> None:
    """A static body of an island begins its sweep where it stands."""
    s.center0[body, 0] = s.center[body, 0]
    s.center0[body, 1] = s.center[body, 1]


def accelerate(s: Any, d: Any, body: int) -> None:
    """Forces, then damping: v (1 - h c), not v / (1 + h c)."""
    s.center0[body, 0] = s.center[body, 0]
    s.center0[body, 1] = s.center[body, 1]
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


def solve_positions(s: Any, d: Any, count: int) -> bool:
    """Whether the overlaps became small."""
    for _ in range(POSITION_SWEEPS):
        least = 0.0
        for i in range(count):
            least = min(least, push_apart(s, d, s.island[i], CORRECTION, False, False))
        if least >= SOLVED:
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
    solved = solve_positions(s, d, count)
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
