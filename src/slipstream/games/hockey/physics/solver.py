"""The contact solver: velocity constraints of an island, sweeps over them, pushing bodies apart.

Arms, masses, bounce and warm start are prepared; a sweep solves friction first, then the normal
impulses; the position solver pushes overlapping bodies apart, a share of the overlap at a time.
"""

from __future__ import annotations

from typing import Any

from slipstream.games.hockey.physics.bodies import (
    INVERSE_INERTIA,
    INVERSE_MASS,
    LINEAR_SLOP,
    MAX_CONDITION_NUMBER,
    MAX_LINEAR_CORRECTION,
    MOVING,
    POLYGON_RADIUS,
    PUCK,
    PUCK_RADIUS,
    VELOCITY_THRESHOLD,
    body_a,
    body_b,
    friction,
    restitution,
)
from slipstream.games.hockey.physics.contacts import world_point
from slipstream.games.hockey.physics.motion import cross, dot, rotate, set_pose
from slipstream.jit.float32 import add, div, mul, single, sub

# Columns of STATE.constraint: of the contact, then of its first and of its second point.
NORMAL_X, NORMAL_Y, FRICTION, RESTITUTION = 0, 1, 2, 3
K_11, K_12, K_22, DETERMINANT = 4, 5, 6, 7
POINT, POINT_NUMBERS = 8, 9
ARM_AX, ARM_AY, ARM_BX, ARM_BY, NORMAL_MASS, TANGENT_MASS, BIAS, ALONG, ACROSS = range(9)
CONSTRAINT = POINT + 2 * POINT_NUMBERS


def inverse_masses(d: Any, a: int, b: int) -> tuple[float, float, float, float]:
    """Inverse masses and inverse moments of inertia of both bodies, 0 for a static one."""
    ma = 0.0
    ia = 0.0
    if a < MOVING:
        ma = single(d.table[a, INVERSE_MASS])
        ia = single(d.table[a, INVERSE_INERTIA])
    return ma, ia, single(d.table[b, INVERSE_MASS]), single(d.table[b, INVERSE_INERTIA])


def skin_radius(d: Any, body: int) -> float:
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
    planex, planey = world_point(s, one, s.face[k, 2], s.face[k, 3])
    x, y = world_point(s, two, s.local_point[k, j, 0], s.local_point[k, j, 1])
    depth = sub(ra, dot(sub(x, planex), sub(y, planey), nx, ny))
    facex, facey = add(x, mul(depth, nx)), add(y, mul(depth, ny))
    skinx, skiny = sub(x, mul(rb, nx)), sub(y, mul(rb, ny))
    return mul(0.5, add(facex, skinx)), mul(0.5, add(facey, skiny))


def init_constraint(s: Any, d: Any, i: int, warm: bool) -> None:
    """Fills constraint i from the pair's points and the bodies' poses and velocities."""
    k = s.island[i]
    a, b = body_a(k), body_b(k)
    one = b if s.flipped[k] else a
    nx, ny = rotate(single(s.sin[one]), single(s.cos[one]), s.face[k, 0], s.face[k, 1])
    ra, rb = skin_radius(d, a), skin_radius(d, b)
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
    s.constraint[i, RESTITUTION] = restitution(b)
    s.solved[i] = s.points[k]
    for j in range(s.points[k]):
        init_constraint_point(s, d, i, POINT + POINT_NUMBERS * j, a, b)
    if s.points[k] == 2:
        init_block(s, d, i, a, b)


def init_constraint_point(s: Any, d: Any, i: int, at: int, a: int, b: int) -> None:
    """Effective masses of a point, and the speed that it shall leave with."""
    ma, ia, mb, ib = inverse_masses(d, a, b)
    nx, ny = single(s.constraint[i, NORMAL_X]), single(s.constraint[i, NORMAL_Y])
    ax, ay = single(s.constraint[i, at + ARM_AX]), single(s.constraint[i, at + ARM_AY])
    bx, by = single(s.constraint[i, at + ARM_BX]), single(s.constraint[i, at + ARM_BY])
    k = inverse_effective(ma, ia, mb, ib, cross(ax, ay, nx, ny), cross(bx, by, nx, ny))
    s.constraint[i, at + NORMAL_MASS] = div(1.0, k) if k > 0.0 else 0.0
    tx, ty = ny, -nx
    k = inverse_effective(ma, ia, mb, ib, cross(ax, ay, tx, ty), cross(bx, by, tx, ty))
    s.constraint[i, at + TANGENT_MASS] = div(1.0, k) if k > 0.0 else 0.0
    vx, vy = point_velocity(s, i, at, a, b)
    speed = dot(nx, ny, vx, vy)
    s.constraint[i, at + BIAS] = 0.0
    if speed < -VELOCITY_THRESHOLD:
        s.constraint[i, at + BIAS] = mul(-s.constraint[i, RESTITUTION], speed)


def point_velocity(s: Any, i: int, at: int, a: int, b: int) -> tuple[float, float]:
    """Velocity of b at a point less that of a."""
    ax, ay = single(s.constraint[i, at + ARM_AX]), single(s.constraint[i, at + ARM_AY])
    bx, by = single(s.constraint[i, at + ARM_BX]), single(s.constraint[i, at + ARM_BY])
    wa, wb = single(s.angular_velocity[a]), single(s.angular_velocity[b])
    x = add(single(s.linear_velocity[b, 0]), mul(-wb, by))
    y = add(single(s.linear_velocity[b, 1]), mul(wb, bx))
    x = sub(sub(x, single(s.linear_velocity[a, 0])), mul(-wa, ay))
    y = sub(sub(y, single(s.linear_velocity[a, 1])), mul(wa, ax))
    return x, y


def init_block(s: Any, d: Any, i: int, a: int, b: int) -> None:
    """The matrix of two points that are solved at once; nearly equal points become one."""
    ma, ia, mb, ib = inverse_masses(d, a, b)
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
    if mul(k11, k11) >= mul(MAX_CONDITION_NUMBER, determinant):
        s.solved[i] = 1
        return
    s.constraint[i, K_11] = k11
    s.constraint[i, K_12] = k12
    s.constraint[i, K_22] = k22
    s.constraint[i, DETERMINANT] = div(1.0, determinant) if determinant != 0.0 else 0.0


def apply_impulse(s: Any, d: Any, i: int, at: int, a: int, b: int, px: float, py: float) -> None:
    """Lets an impulse act at a point: on b, and its opposite on a."""
    ma, ia, mb, ib = inverse_masses(d, a, b)
    arm = cross(s.constraint[i, at + ARM_AX], s.constraint[i, at + ARM_AY], px, py)
    s.linear_velocity[a, 0] = sub(s.linear_velocity[a, 0], mul(ma, px))
    s.linear_velocity[a, 1] = sub(s.linear_velocity[a, 1], mul(ma, py))
    s.angular_velocity[a] = sub(s.angular_velocity[a], mul(ia, arm))
    arm = cross(s.constraint[i, at + ARM_BX], s.constraint[i, at + ARM_BY], px, py)
    s.linear_velocity[b, 0] = add(s.linear_velocity[b, 0], mul(mb, px))
    s.linear_velocity[b, 1] = add(s.linear_velocity[b, 1], mul(mb, py))
    s.angular_velocity[b] = add(s.angular_velocity[b], mul(ib, arm))


def warm_start(s: Any, d: Any, i: int) -> None:
    """Begins with the impulses that the last step ended with."""
    k = s.island[i]
    nx, ny = s.constraint[i, NORMAL_X], s.constraint[i, NORMAL_Y]
    for j in range(s.solved[i]):
        at = POINT + POINT_NUMBERS * j
        along, across = s.constraint[i, at + ALONG], s.constraint[i, at + ACROSS]
        px = add(mul(along, nx), mul(across, ny))
        py = add(mul(along, ny), mul(across, -nx))
        apply_impulse(s, d, i, at, body_a(k), body_b(k), px, py)


def solve_contact(s: Any, d: Any, i: int) -> bool:
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
            apply_impulse(s, d, i, at, a, b, mul(step, ny), mul(step, -nx))
    if s.solved[i] == 2:
        return solve_block(s, d, i, a, b) or changed
    vx, vy = point_velocity(s, i, POINT, a, b)
    speed = sub(dot(vx, vy, nx, ny), s.constraint[i, POINT + BIAS])
    old = single(s.constraint[i, POINT + ALONG])
    new = max(add(old, mul(-s.constraint[i, POINT + NORMAL_MASS], speed)), 0.0)
    if new != old:
        changed = True
        step = sub(new, old)
        s.constraint[i, POINT + ALONG] = new
        apply_impulse(s, d, i, POINT, a, b, mul(step, nx), mul(step, ny))
    return changed


def solve_block(s: Any, d: Any, i: int, a: int, b: int) -> bool:
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
    apply_block_impulse(s, d, i, a, b, d1, d2)
    return True


def apply_block_impulse(s: Any, d: Any, i: int, a: int, b: int, d1: float, d2: float) -> None:
    """Lets impulses along the normal act at both points."""
    ma, ia, mb, ib = inverse_masses(d, a, b)
    nx, ny = single(s.constraint[i, NORMAL_X]), single(s.constraint[i, NORMAL_Y])
    p, q = POINT, POINT + POINT_NUMBERS
    p1x, p1y, p2x, p2y = mul(d1, nx), mul(d1, ny), mul(d2, nx), mul(d2, ny)
    arm = add(
        cross(s.constraint[i, p + ARM_AX], s.constraint[i, p + ARM_AY], p1x, p1y),
        cross(s.constraint[i, q + ARM_AX], s.constraint[i, q + ARM_AY], p2x, p2y),
    )
    s.linear_velocity[a, 0] = sub(s.linear_velocity[a, 0], mul(ma, add(p1x, p2x)))
    s.linear_velocity[a, 1] = sub(s.linear_velocity[a, 1], mul(ma, add(p1y, p2y)))
    s.angular_velocity[a] = sub(s.angular_velocity[a], mul(ia, arm))
    arm = add(
        cross(s.constraint[i, p + ARM_BX], s.constraint[i, p + ARM_BY], p1x, p1y),
        cross(s.constraint[i, q + ARM_BX], s.constraint[i, q + ARM_BY], p2x, p2y),
    )
    s.linear_velocity[b, 0] = add(s.linear_velocity[b, 0], mul(mb, add(p1x, p2x)))
    s.linear_velocity[b, 1] = add(s.linear_velocity[b, 1], mul(mb, add(p1y, p2y)))
    s.angular_velocity[b] = add(s.angular_velocity[b], mul(ib, arm))


def single_constraint_value(s: Any, column: int) -> float:
    """Of the only constraint."""
    return single(s.constraint[0, column])


def solve_single_contact(s: Any, d: Any, rounds: int) -> None:
    """All sweeps of an island of one contact with one point, which most are.

    Same operations in the same order as `solve_contact`, on local variables, until nothing changes.
    """
    a, b = body_a(s.island[0]), body_b(s.island[0])
    ma, ia, mb, ib = inverse_masses(d, a, b)
    nx, ny = single_constraint_value(s, NORMAL_X), single_constraint_value(s, NORMAL_Y)
    ax, ay = single_constraint_value(s, POINT + ARM_AX), single_constraint_value(s, POINT + ARM_AY)
    bx, by = single_constraint_value(s, POINT + ARM_BX), single_constraint_value(s, POINT + ARM_BY)
    rub, bias = single_constraint_value(s, FRICTION), single_constraint_value(s, POINT + BIAS)
    mass, mass_across = (
        single_constraint_value(s, POINT + NORMAL_MASS),
        single_constraint_value(s, POINT + TANGENT_MASS),
    )
    along, across = (
        single_constraint_value(s, POINT + ALONG),
        single_constraint_value(s, POINT + ACROSS),
    )
    vax, vay, wa = (
        single(s.linear_velocity[a, 0]),
        single(s.linear_velocity[a, 1]),
        single(s.angular_velocity[a]),
    )
    vbx, vby, wb = (
        single(s.linear_velocity[b, 0]),
        single(s.linear_velocity[b, 1]),
        single(s.angular_velocity[b]),
    )
    # Rounding may lead the sweeps round a circle. Where a marked state comes back, only what is
    # left after whole circles need be done (Brent 1980).
    left, since, until = rounds, 0, 1
    m_along, m_across, m_vax, m_vay, m_wa = along, across, vax, vay, wa
    m_vbx, m_vby, m_wb = vbx, vby, wb
    while left > 0:
        left -= 1
        before, before_across = along, across
        for axis in range(2):  # friction, then the normal
            x = sub(sub(add(vbx, mul(-wb, by)), vax), mul(-wa, ay))
            y = sub(sub(add(vby, mul(wb, bx)), vay), mul(wa, ax))
            if axis == 0:
                most = mul(rub, along)
                new = add(across, mul(mass_across, -dot(x, y, ny, -nx)))
                new = max(-most, min(new, most))
                px, py = mul(sub(new, across), ny), mul(sub(new, across), -nx)
                across = new
            else:
                new = max(add(along, mul(-mass, sub(dot(x, y, nx, ny), bias))), 0.0)
                px, py = mul(sub(new, along), nx), mul(sub(new, along), ny)
                along = new
            vax = sub(vax, mul(ma, px))
            vay = sub(vay, mul(ma, py))
            wa = sub(wa, mul(ia, cross(ax, ay, px, py)))
            vbx = add(vbx, mul(mb, px))
            vby = add(vby, mul(mb, py))
            wb = add(wb, mul(ib, cross(bx, by, px, py)))
        if along == before and across == before_across:
            break
        since += 1
        known = along == m_along and across == m_across and wa == m_wa and wb == m_wb
        if known and vax == m_vax and vay == m_vay and vbx == m_vbx and vby == m_vby:
            left = left % since
        elif since == until:
            since, until = 0, 2 * until
            m_along, m_across, m_vax, m_vay, m_wa = along, across, vax, vay, wa
            m_vbx, m_vby, m_wb = vbx, vby, wb
    s.constraint[0, POINT + ALONG] = along
    s.constraint[0, POINT + ACROSS] = across
    s.linear_velocity[a, 0] = vax
    s.linear_velocity[a, 1] = vay
    s.angular_velocity[a] = wa
    s.linear_velocity[b, 0] = vbx
    s.linear_velocity[b, 1] = vby
    s.angular_velocity[b] = wb


def solve_position(s: Any, d: Any, k: int, share: float) -> float:
    """Moves both bodies of a pair by a share of their overlap, point by point; statics stay.

    Returns:
        The least separation found, 0 or less.
    """
    a, b = body_a(k), body_b(k)
    ma, ia, mb, ib = inverse_masses(d, a, b)
    ra, rb = skin_radius(d, a), skin_radius(d, b)
    one = b if s.flipped[k] else a
    two = a if s.flipped[k] else b
    least = 0.0
    for j in range(s.points[k]):
        nx, ny = rotate(s.sin[one], s.cos[one], s.face[k, 0], s.face[k, 1])
        planex, planey = world_point(s, one, s.face[k, 2], s.face[k, 3])
        x, y = world_point(s, two, s.local_point[k, j, 0], s.local_point[k, j, 1])
        apart = sub(sub(dot(sub(x, planex), sub(y, planey), nx, ny), ra), rb)
        if s.flipped[k]:
            nx = -nx
            ny = -ny
        rax, ray = sub(x, s.center[a, 0]), sub(y, s.center[a, 1])
        rbx, rby = sub(x, s.center[b, 0]), sub(y, s.center[b, 1])
        least = min(least, apart)
        error = max(-MAX_LINEAR_CORRECTION, min(mul(share, add(apart, LINEAR_SLOP)), 0.0))
        k_n = inverse_effective(ma, ia, mb, ib, cross(rax, ray, nx, ny), cross(rbx, rby, nx, ny))
        impulse = div(-error, k_n) if k_n > 0.0 else 0.0
        px, py = mul(impulse, nx), mul(impulse, ny)
        if a < MOVING:
            move_body(s, d, a, -mul(ma, px), -mul(ma, py), -mul(ia, cross(rax, ray, px, py)))
        move_body(s, d, b, mul(mb, px), mul(mb, py), mul(ib, cross(rbx, rby, px, py)))
    return least


def move_body(s: Any, d: Any, body: int, dx: float, dy: float, turned: float) -> None:
    s.center[body, 0] = add(s.center[body, 0], dx)
    s.center[body, 1] = add(s.center[body, 1], dy)
    s.angle[body] = add(s.angle[body], turned)
    set_pose(s, d, body)
