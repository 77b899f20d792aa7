"""One sweep of the velocity solver over a contact: friction first, then the normal impulses."""

from __future__ import annotations

from typing import Any

from slipstream.core.single import add, mul, single, sub
from slipstream.envs.hockey.physics.constraints import apply, masses, relative
from slipstream.envs.hockey.physics.pairs import body_a, body_b
from slipstream.envs.hockey.physics.vectors import cross, dot
from slipstream.envs.hockey.record import (
    ACROSS,
    ALONG,
    ARM_AX,
    ARM_AY,
    ARM_BX,
    ARM_BY,
    BIAS,
    DETERMINANT,
    FRICTION,
    K_11,
    K_12,
    K_22,
    NORMAL_MASS,
    NORMAL_X,
    NORMAL_Y,
    POINT,
    POINT_NUMBERS,
    TANGENT_MASS,
)


def point_velocity(s: Any, i: int, at: int, a: int, b: int) -> tuple[float, float]:
    """Relative velocity at a point."""
    ax, ay = single(s.constraint[i, at + ARM_AX]), single(s.constraint[i, at + ARM_AY])
    bx, by = single(s.constraint[i, at + ARM_BX]), single(s.constraint[i, at + ARM_BY])
    return relative(s, a, b, ax, ay, bx, by)


def sweep(s: Any, d: Any, i: int) -> bool:
    """Solves contact i once; False where nothing changed."""
    k = s.island[i]
    a, b = body_a(k), body_b(k)
    nx, ny = single(s.constraint[i, NORMAL_X]), single(s.constraint[i, NORMAL_Y])
    changed = False
    for j in range(s.solved[i]):
        at = POINT + POINT_NUMBERS * j
        vx, vy = point_velocity(s, i, at, a, b)
        step = mul(s.constraint[i, at + TANGENT_MASS], -dot(vx, vy, ny, -nx))
        most = mul(s.constraint[i, FRICTION], s.constraint[i, at + ALONG])
        old = single(s.constraint[i, at + ACROSS])
        new = max(-most, min(add(old, step), most))
        if new != old:
            changed = True
            step = sub(new, old)
            s.constraint[i, at + ACROSS] = new
            apply(s, d, i, at, a, b, mul(step, ny), mul(step, -nx))
    if s.solved[i] == 2:
        return sweep_block(s, d, i, a, b) or changed
    vx, vy = point_velocity(s, i, POINT, a, b)
    speed = sub(dot(vx, vy, nx, ny), s.constraint[i, POINT + BIAS])
    old = single(s.constraint[i, POINT + ALONG])
    new = max(add(old, mul(-s.constraint[i, POINT + NORMAL_MASS], speed)), 0.0)
    if new != old:
        changed = True
        step = sub(new, old)
        s.constraint[i, POINT + ALONG] = new
        apply(s, d, i, POINT, a, b, mul(step, nx), mul(step, ny))
    return changed


def sweep_block(s: Any, d: Any, i: int, a: int, b: int) -> bool:
    """Both points' normal impulses at once: the first of four cases that holds."""
    nx, ny = single(s.constraint[i, NORMAL_X]), single(s.constraint[i, NORMAL_Y])
    p, q = POINT, POINT + POINT_NUMBERS
    old1, old2 = single(s.constraint[i, p + ALONG]), single(s.constraint[i, q + ALONG])
    k11, k12 = single(s.constraint[i, K_11]), single(s.constraint[i, K_12])
    k22, scale = single(s.constraint[i, K_22]), single(s.constraint[i, DETERMINANT])
    vx, vy = point_velocity(s, i, p, a, b)
    b1 = sub(dot(vx, vy, nx, ny), s.constraint[i, p + BIAS])
    vx, vy = point_velocity(s, i, q, a, b)
    b2 = sub(dot(vx, vy, nx, ny), s.constraint[i, q + BIAS])
    b1 = sub(b1, add(mul(k11, old1), mul(k12, old2)))
    b2 = sub(b2, add(mul(k12, old1), mul(k22, old2)))
    off = mul(-scale, k12)
    x1 = -add(mul(mul(scale, k22), b1), mul(off, b2))
    x2 = -add(mul(off, b1), mul(mul(scale, k11), b2))
    if not (x1 >= 0.0 and x2 >= 0.0):
        x1 = mul(-s.constraint[i, p + NORMAL_MASS], b1)
        x2 = 0.0
        if not (x1 >= 0.0 and add(mul(k12, x1), b2) >= 0.0):
            x1 = 0.0
            x2 = mul(-s.constraint[i, q + NORMAL_MASS], b2)
            if not (x2 >= 0.0 and add(mul(k12, x2), b1) >= 0.0):
                x2 = 0.0
                if not (b1 >= 0.0 and b2 >= 0.0):
                    return False  # none holds: this sweep leaves them as they are
    d1, d2 = sub(x1, old1), sub(x2, old2)
    s.constraint[i, p + ALONG] = x1
    s.constraint[i, q + ALONG] = x2
    if d1 == 0.0 and d2 == 0.0:
        return False
    push_both(s, d, i, a, b, d1, d2)
    return True


def push_both(s: Any, d: Any, i: int, a: int, b: int, d1: float, d2: float) -> None:
    """Lets impulses along the normal act at both points."""
    ma, ia, mb, ib = masses(d, a, b)
    nx, ny = single(s.constraint[i, NORMAL_X]), single(s.constraint[i, NORMAL_Y])
    p, q = POINT, POINT + POINT_NUMBERS
    p1x, p1y, p2x, p2y = mul(d1, nx), mul(d1, ny), mul(d2, nx), mul(d2, ny)
    arm = add(
        cross(s.constraint[i, p + ARM_AX], s.constraint[i, p + ARM_AY], p1x, p1y),
        cross(s.constraint[i, q + ARM_AX], s.constraint[i, q + ARM_AY], p2x, p2y),
    )
    s.velocity[a, 0] = sub(s.velocity[a, 0], mul(ma, add(p1x, p2x)))
    s.velocity[a, 1] = sub(s.velocity[a, 1], mul(ma, add(p1y, p2y)))
    s.spin[a] = sub(s.spin[a], mul(ia, arm))
    arm = add(
        cross(s.constraint[i, p + ARM_BX], s.constraint[i, p + ARM_BY], p1x, p1y),
        cross(s.constraint[i, q + ARM_BX], s.constraint[i, q + ARM_BY], p2x, p2y),
    )
    s.velocity[b, 0] = add(s.velocity[b, 0], mul(mb, add(p1x, p2x)))
    s.velocity[b, 1] = add(s.velocity[b, 1], mul(mb, add(p1y, p2y)))
    s.spin[b] = add(s.spin[b], mul(ib, arm))
