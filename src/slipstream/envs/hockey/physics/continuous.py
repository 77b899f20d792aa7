"""Continuous collision: within the step, a body stops where it first touches a static one."""

from __future__ import annotations

from typing import Any

from slipstream.core.single import add, mul, sub
from slipstream.envs.hockey.physics.bounds import is_far
from slipstream.envs.hockey.physics.boxes import find_contacts, is_sensor, synchronize, wake
from slipstream.envs.hockey.physics.facts import (
    BODIES,
    LAST_TOI,
    MOST,
    MOVING,
    STEP,
    SUB_STEPS,
    TOI_CORRECTION,
    TOI_POSITION_SWEEPS,
    TOI_SOLVED,
)
from slipstream.envs.hockey.physics.impact import time_of_impact
from slipstream.envs.hockey.physics.island import solve_velocities
from slipstream.envs.hockey.physics.pairs import body_a, body_b
from slipstream.envs.hockey.physics.positions import push_apart
from slipstream.envs.hockey.physics.sweeps import (
    advance_sweep,
    integrate,
    set_pose,
    stop_at,
)
from slipstream.envs.hockey.physics.update import update

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
    ax, ay, ax0, ay0 = s.center[a, 0], s.center[a, 1], s.center0[a, 0], s.center0[a, 1]
    bx, by, bx0, by0 = s.center[b, 0], s.center[b, 1], s.center0[b, 0], s.center0[b, 1]
    angle, angle0, alpha_a, alpha_b = s.angle[b], s.angle0[b], s.alpha[a], s.alpha[b]
    stop_at(s, d, a, share)
    stop_at(s, d, b, share)
    update(s, d, k)
    s.toi_known[k] = False
    s.toi_count[k] = s.toi_count[k] + 1
    if not s.touching[k]:
        s.enabled[k] = False
        s.center[a, 0] = ax
        s.center[a, 1] = ay
        s.center0[a, 0] = ax0
        s.center0[a, 1] = ay0
        s.center[b, 0] = bx
        s.center[b, 1] = by
        s.center0[b, 0] = bx0
        s.center0[b, 1] = by0
        s.angle[b] = angle
        s.angle0[b] = angle0
        s.alpha[a] = alpha_a
        s.alpha[b] = alpha_b
        set_pose(s, d, a)
        set_pose(s, d, b)
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
        x, y, x0, y0 = s.center[c, 0], s.center[c, 1], s.center0[c, 0], s.center0[c, 1]
        alpha = s.alpha[c]
        stop_at(s, d, c, share)
        update(s, d, j)
        if not s.touching[j]:
            s.center[c, 0] = x
            s.center[c, 1] = y
            s.center0[c, 0] = x0
            s.center0[c, 1] = y0
            s.alpha[c] = alpha
            set_pose(s, d, c)
            continue
        s.island[count] = j
        count += 1
    return count


def solve_at(s: Any, d: Any, a: int, b: int, count: int, h: float) -> None:
    """Solves positions, then velocities without warm start, and moves on for the time left."""
    for _ in range(TOI_POSITION_SWEEPS):
        least = 0.0
        for i in range(count):
            least = min(least, push_apart(s, d, s.island[i], TOI_CORRECTION, True, False))
        if least >= TOI_SOLVED:
            break
    s.center0[a, 0] = s.center[a, 0]
    s.center0[a, 1] = s.center[a, 1]
    s.center0[b, 0] = s.center[b, 0]
    s.center0[b, 1] = s.center[b, 1]
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
