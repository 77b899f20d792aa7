"""Velocity constraints of an island's contacts: arms, masses, bounce, warm start."""

from __future__ import annotations

from typing import Any

from slipstream.core.single import add, div, mul, single, sub
from slipstream.envs.hockey.physics.facts import (
    CONDITION,
    INVERSE_INERTIA,
    INVERSE_MASS,
    MOVING,
    POLYGON_RADIUS,
    PUCK,
    PUCK_RADIUS,
    RESTITUTION_SPEED,
)
from slipstream.envs.hockey.physics.pairs import body_a, body_b, bounce, friction
from slipstream.envs.hockey.physics.polygons import world
from slipstream.envs.hockey.physics.vectors import cross, dot, turn
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
    RESTITUTION,
    TANGENT_MASS,
)


def masses(d: Any, a: int, b: int) -> tuple[float, float, float, float]:
    """Inverse masses and inverse moments of inertia of both bodies, 0 for a static one."""
    ma = 0.0
    ia = 0.0
    if a < MOVING:
        ma = single(d.table[a, INVERSE_MASS])
        ia = single(d.table[a, INVERSE_INERTIA])
    return ma, ia, single(d.table[b, INVERSE_MASS]), single(d.table[b, INVERSE_INERTIA])


def point_radius(d: Any, body: int) -> float:
    return PUCK_RADIUS if body == PUCK else POLYGON_RADIUS


def inverse_effective(ma: float, ia: float, mb: float, ib: float, ra: float, rb: float) -> float:
    """1 / mass that an impulse at two arms acts on."""
    return add(add(add(ma, mb), mul(mul(ia, ra), ra)), mul(mul(ib, rb), rb))


def contact_point(
    s: Any, k: int, a: int, b: int, j: int, nx: float, ny: float, ra: float, rb: float
) -> tuple[float, float]:
    """Midway between both skins, in the world.

    Args:
        nx, ny: the face's normal in the world, out of its body.
        ra, rb: skin of the face's body, and of the other one.
    """
    one = b if s.flipped[k] else a
    two = a if s.flipped[k] else b
    planex, planey = world(s, one, s.face[k, 2], s.face[k, 3])
    x, y = world(s, two, s.spot[k, j, 0], s.spot[k, j, 1])
    depth = sub(ra, dot(sub(x, planex), sub(y, planey), nx, ny))
    facex, facey = add(x, mul(depth, nx)), add(y, mul(depth, ny))
    skinx, skiny = sub(x, mul(rb, nx)), sub(y, mul(rb, ny))
    return mul(0.5, add(facex, skinx)), mul(0.5, add(facey, skiny))


def prepare(s: Any, d: Any, i: int, warm: bool) -> None:
    """Fills constraint i from the pair's points and the bodies' poses and velocities."""
    k = s.island[i]
    a, b = body_a(k), body_b(k)
    one = b if s.flipped[k] else a
    nx, ny = turn(single(s.sin[one]), single(s.cos[one]), s.face[k, 0], s.face[k, 1])
    ra, rb = point_radius(d, a), point_radius(d, b)
    if s.flipped[k]:
        ra = rb
        rb = POLYGON_RADIUS
    for j in range(s.points[k]):
        x, y = contact_point(s, k, a, b, j, nx, ny, ra, rb)
        at = POINT + POINT_NUMBERS * j
        s.constraint[i, at + ARM_AX] = sub(x, s.center[a, 0])
        s.constraint[i, at + ARM_AY] = sub(y, s.center[a, 1])
        s.constraint[i, at + ARM_BX] = sub(x, s.center[b, 0])
        s.constraint[i, at + ARM_BY] = sub(y, s.center[b, 1])
        s.constraint[i, at + ALONG] = s.impulse[k, j, 0] if warm else 0.0
        s.constraint[i, at + ACROSS] = s.impulse[k, j, 1] if warm else 0.0
    if s.flipped[k]:
        nx = -nx
        ny = -ny
    s.constraint[i, NORMAL_X] = nx
    s.constraint[i, NORMAL_Y] = ny
    s.constraint[i, FRICTION] = friction(a, b)
    s.constraint[i, RESTITUTION] = bounce(b)
    s.solved[i] = s.points[k]
    for j in range(s.points[k]):
        prepare_point(s, d, i, POINT + POINT_NUMBERS * j, a, b)
    if s.points[k] == 2:
        prepare_block(s, d, i, a, b)


def prepare_point(s: Any, d: Any, i: int, at: int, a: int, b: int) -> None:
    """Effective masses of a point, and the speed that it shall leave with."""
    ma, ia, mb, ib = masses(d, a, b)
    nx, ny = single(s.constraint[i, NORMAL_X]), single(s.constraint[i, NORMAL_Y])
    ax, ay = single(s.constraint[i, at + ARM_AX]), single(s.constraint[i, at + ARM_AY])
    bx, by = single(s.constraint[i, at + ARM_BX]), single(s.constraint[i, at + ARM_BY])
    k = inverse_effective(ma, ia, mb, ib, cross(ax, ay, nx, ny), cross(bx, by, nx, ny))
    s.constraint[i, at + NORMAL_MASS] = div(1.0, k) if k > 0.0 else 0.0
    tx, ty = ny, -nx
    k = inverse_effective(ma, ia, mb, ib, cross(ax, ay, tx, ty), cross(bx, by, tx, ty))
    s.constraint[i, at + TANGENT_MASS] = div(1.0, k) if k > 0.0 else 0.0
    vx, vy = relative(s, a, b, ax, ay, bx, by)
    speed = dot(nx, ny, vx, vy)
    s.constraint[i, at + BIAS] = 0.0
    if speed < -RESTITUTION_SPEED:
        s.constraint[i, at + BIAS] = mul(-s.constraint[i, RESTITUTION], speed)


def relative(
    s: Any, a: int, b: int, ax: float, ay: float, bx: float, by: float
) -> tuple[float, float]:
    """Velocity of b's point less that of a's."""
    wa, wb = single(s.spin[a]), single(s.spin[b])
    x = add(single(s.velocity[b, 0]), mul(-wb, by))
    y = add(single(s.velocity[b, 1]), mul(wb, bx))
    x = sub(sub(x, single(s.velocity[a, 0])), mul(-wa, ay))
    y = sub(sub(y, single(s.velocity[a, 1])), mul(wa, ax))
    return x, y


def prepare_block(s: Any, d: Any, i: int, a: int, b: int) -> None:
    """The matrix of two points that are solved at once; nearly equal points become one."""
    ma, ia, mb, ib = masses(d, a, b)
    nx, ny = s.constraint[i, NORMAL_X], s.constraint[i, NORMAL_Y]
    p, q = POINT, POINT + POINT_NUMBERS
    r1a = cross(s.constraint[i, p + ARM_AX], s.constraint[i, p + ARM_AY], nx, ny)
    r1b = cross(s.constraint[i, p + ARM_BX], s.constraint[i, p + ARM_BY], nx, ny)
    r2a = cross(s.constraint[i, q + ARM_AX], s.constraint[i, q + ARM_AY], nx, ny)
    r2b = cross(s.constraint[i, q + ARM_BX], s.constraint[i, q + ARM_BY], nx, ny)
    k11 = inverse_effective(ma, ia, mb, ib, r1a, r1b)
    k22 = inverse_effective(ma, ia, mb, ib, r2a, r2b)
    k12 = add(add(add(ma, mb), mul(mul(ia, r1a), r2a)), mul(mul(ib, r1b), r2b))
    determinant = sub(mul(k11, k22), mul(k12, k12))
    if mul(k11, k11) >= mul(CONDITION, determinant):
        s.solved[i] = 1
        return
    s.constraint[i, K_11] = k11
    s.constraint[i, K_12] = k12
    s.constraint[i, K_22] = k22
    s.constraint[i, DETERMINANT] = div(1.0, determinant) if determinant != 0.0 else 0.0


def apply(s: Any, d: Any, i: int, at: int, a: int, b: int, px: float, py: float) -> None:
    """Lets an impulse act at a point: on b, and its opposite on a."""
    ma, ia, mb, ib = masses(d, a, b)
    arm = cross(s.constraint[i, at + ARM_AX], s.constraint[i, at + ARM_AY], px, py)
    s.velocity[a, 0] = sub(s.velocity[a, 0], mul(ma, px))
    s.velocity[a, 1] = sub(s.velocity[a, 1], mul(ma, py))
    s.spin[a] = sub(s.spin[a], mul(ia, arm))
    arm = cross(s.constraint[i, at + ARM_BX], s.constraint[i, at + ARM_BY], px, py)
    s.velocity[b, 0] = add(s.velocity[b, 0], mul(mb, px))
    s.velocity[b, 1] = add(s.velocity[b, 1], mul(mb, py))
    s.spin[b] = add(s.spin[b], mul(ib, arm))


def warm_start(s: Any, d: Any, i: int) -> None:
    """Begins with the impulses that the last step ended with."""
    k = s.island[i]
    nx, ny = s.constraint[i, NORMAL_X], s.constraint[i, NORMAL_Y]
    for j in range(s.solved[i]):
        at = POINT + POINT_NUMBERS * j
        along, across = s.constraint[i, at + ALONG], s.constraint[i, at + ACROSS]
        px = add(mul(along, nx), mul(across, ny))
        py = add(mul(along, ny), mul(across, -nx))
        apply(s, d, i, at, body_a(k), body_b(k), px, py)
