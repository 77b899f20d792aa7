"""Contact solver: velocity constraints of an island, and position correction.

An iteration solves friction first, then the normal impulses. The position solver pushes overlapping
bodies apart by a fraction of the overlap.
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

# Columns of STATE.constraint: of the contact, of its first point, of its second point.
NORMAL_X, NORMAL_Y, FRICTION, RESTITUTION = 0, 1, 2, 3
K_11, K_12, K_22, DETERMINANT = 4, 5, 6, 7
POINT, POINT_COLUMNS = 8, 9
ARM_AX, ARM_AY, ARM_BX, ARM_BY = 0, 1, 2, 3
NORMAL_MASS, TANGENT_MASS, BIAS, NORMAL_IMPULSE, TANGENT_IMPULSE = 4, 5, 6, 7, 8
CONSTRAINT = POINT + 2 * POINT_COLUMNS


def inverse_masses(d: Any, a: int, b: int) -> tuple[float, float, float, float]:
    """Return inverse masses and inverse moments of inertia of both bodies; 0 if static."""
    ma = 0.0
    ia = 0.0
    if a < MOVING:
        ma = single(d.table[a, INVERSE_MASS])
        ia = single(d.table[a, INVERSE_INERTIA])
    return ma, ia, single(d.table[b, INVERSE_MASS]), single(d.table[b, INVERSE_INERTIA])


def skin_radius(d: Any, body: int) -> float:
    return PUCK_RADIUS if body == PUCK else POLYGON_RADIUS


def inverse_effective(ma: float, ia: float, mb: float, ib: float, ra: float, rb: float) -> float:
    """Return the inverse effective mass for an impulse with lever arms `ra` and `rb`."""
    return add(add(add(ma, mb), mul(mul(ia, ra), ra)), mul(mul(ib, rb), rb))


def contact_point(
    s: Any, k: int, a: int, b: int, j: int, nx: float, ny: float, ra: float, rb: float
) -> tuple[float, float]:
    """Return the world point midway between both surfaces.

    Args:
        nx, ny: outward normal of the reference face, in world coordinates.
        ra, rb: skin radius of the reference body and of the incident body.
    """
    reference = b if s.flipped[k] else a
    incident = a if s.flipped[k] else b
    planex, planey = world_point(s, reference, s.face[k, 2], s.face[k, 3])
    x, y = world_point(s, incident, s.local_point[k, j, 0], s.local_point[k, j, 1])
    depth = sub(ra, dot(sub(x, planex), sub(y, planey), nx, ny))
    facex, facey = add(x, mul(depth, nx)), add(y, mul(depth, ny))
    skinx, skiny = sub(x, mul(rb, nx)), sub(y, mul(rb, ny))
    return mul(0.5, add(facex, skinx)), mul(0.5, add(facey, skiny))


def init_constraint(s: Any, d: Any, i: int, warm: bool) -> None:
    """Initialize constraint i from the pair's points and the bodies' poses and velocities."""
    k = s.island[i]
    a, b = body_a(k), body_b(k)
    reference = b if s.flipped[k] else a
    nx, ny = rotate(single(s.sin[reference]), single(s.cos[reference]), s.face[k, 0], s.face[k, 1])
    ra, rb = skin_radius(d, a), skin_radius(d, b)
    if s.flipped[k]:
        ra = rb
        rb = POLYGON_RADIUS
    for j in range(s.point_count[k]):
        x, y = contact_point(s, k, a, b, j, nx, ny, ra, rb)
        offset = POINT + POINT_COLUMNS * j
        s.constraint[i, offset + ARM_AX] = sub(x, s.center[a, 0])
        s.constraint[i, offset + ARM_AY] = sub(y, s.center[a, 1])
        s.constraint[i, offset + ARM_BX] = sub(x, s.center[b, 0])
        s.constraint[i, offset + ARM_BY] = sub(y, s.center[b, 1])
        s.constraint[i, offset + NORMAL_IMPULSE] = s.impulse[k, j, 0] if warm else 0.0
        s.constraint[i, offset + TANGENT_IMPULSE] = s.impulse[k, j, 1] if warm else 0.0
    if s.flipped[k]:
        nx = -nx
        ny = -ny
    s.constraint[i, NORMAL_X] = nx
    s.constraint[i, NORMAL_Y] = ny
    s.constraint[i, FRICTION] = friction(a, b)
    s.constraint[i, RESTITUTION] = restitution(b)
    s.velocity_point_count[i] = s.point_count[k]
    for j in range(s.point_count[k]):
        init_constraint_point(s, d, i, POINT + POINT_COLUMNS * j, a, b)
    if s.point_count[k] == 2:
        init_block(s, d, i, a, b)


def init_constraint_point(s: Any, d: Any, i: int, at: int, a: int, b: int) -> None:
    """Initialize effective masses and restitution velocity of a point."""
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
    """Return the relative velocity of b at a point."""
    ax, ay = single(s.constraint[i, at + ARM_AX]), single(s.constraint[i, at + ARM_AY])
    bx, by = single(s.constraint[i, at + ARM_BX]), single(s.constraint[i, at + ARM_BY])
    wa, wb = single(s.angular_velocity[a]), single(s.angular_velocity[b])
    x = add(single(s.linear_velocity[b, 0]), mul(-wb, by))
    y = add(single(s.linear_velocity[b, 1]), mul(wb, bx))
    x = sub(sub(x, single(s.linear_velocity[a, 0])), mul(-wa, ay))
    y = sub(sub(y, single(s.linear_velocity[a, 1])), mul(wa, ax))
    return x, y


def init_block(s: Any, d: Any, i: int, a: int, b: int) -> None:
    """Initialize the block solver of two points; nearly redundant points become one."""
    ma, ia, mb, ib = inverse_masses(d, a, b)
    nx, ny = s.constraint[i, NORMAL_X], s.constraint[i, NORMAL_Y]
    p, q = POINT, POINT + POINT_COLUMNS
    r1a = cross(s.constraint[i, p + ARM_AX], s.constraint[i, p + ARM_AY], nx, ny)
    r1b = cross(s.constraint[i, p + ARM_BX], s.constraint[i, p + ARM_BY], nx, ny)
    r2a = cross(s.constraint[i, q + ARM_AX], s.constraint[i, q + ARM_AY], nx, ny)
    r2b = cross(s.constraint[i, q + ARM_BX], s.constraint[i, q + ARM_BY], nx, ny)
    k11 = inverse_effective(ma, ia, mb, ib, r1a, r1b)
    k22 = inverse_effective(ma, ia, mb, ib, r2a, r2b)
    k12 = add(add(add(ma, mb), mul(mul(ia, r1a), r2a)), mul(mul(ib, r1b), r2b))
    determinant = sub(mul(k11, k22), mul(k12, k12))
    if mul(k11, k11) >= mul(MAX_CONDITION_NUMBER, determinant):
        s.velocity_point_count[i] = 1
        return
    s.constraint[i, K_11] = k11
    s.constraint[i, K_12] = k12
    s.constraint[i, K_22] = k22
    s.constraint[i, DETERMINANT] = div(1.0, determinant) if determinant != 0.0 else 0.0


def apply_impulse(s: Any, d: Any, i: int, at: int, a: int, b: int, px: float, py: float) -> None:
    """Apply an impulse at a point to b, and its opposite to a."""
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
    """Apply the impulses of the last step."""
    k = s.island[i]
    nx, ny = s.constraint[i, NORMAL_X], s.constraint[i, NORMAL_Y]
    for j in range(s.velocity_point_count[i]):
        offset = POINT + POINT_COLUMNS * j
        normal_impulse, tangent_impulse = (
            s.constraint[i, offset + NORMAL_IMPULSE],
            s.constraint[i, offset + TANGENT_IMPULSE],
        )
        px = add(mul(normal_impulse, nx), mul(tangent_impulse, ny))
        py = add(mul(normal_impulse, ny), mul(tangent_impulse, -nx))
        apply_impulse(s, d, i, offset, body_a(k), body_b(k), px, py)


def solve_contact(s: Any, d: Any, i: int) -> bool:
    """Solve contact i once; return whether an impulse changed."""
    k = s.island[i]
    a, b = body_a(k), body_b(k)
    nx, ny = single(s.constraint[i, NORMAL_X]), single(s.constraint[i, NORMAL_Y])
    changed = False
    for j in range(s.velocity_point_count[i]):
        offset = POINT + POINT_COLUMNS * j
        vx, vy = point_velocity(s, i, offset, a, b)
        change = mul(s.constraint[i, offset + TANGENT_MASS], -dot(vx, vy, ny, -nx))
        limit = mul(s.constraint[i, FRICTION], s.constraint[i, offset + NORMAL_IMPULSE])
        old = single(s.constraint[i, offset + TANGENT_IMPULSE])
        new = max(-limit, min(add(old, change), limit))
        if new != old:
            changed = True
            change = sub(new, old)
            s.constraint[i, offset + TANGENT_IMPULSE] = new
            apply_impulse(s, d, i, offset, a, b, mul(change, ny), mul(change, -nx))
    if s.velocity_point_count[i] == 2:
        return solve_block(s, d, i, a, b) or changed
    vx, vy = point_velocity(s, i, POINT, a, b)
    speed = sub(dot(vx, vy, nx, ny), s.constraint[i, POINT + BIAS])
    old = single(s.constraint[i, POINT + NORMAL_IMPULSE])
    new = max(add(old, mul(-s.constraint[i, POINT + NORMAL_MASS], speed)), 0.0)
    if new != old:
        changed = True
        change = sub(new, old)
        s.constraint[i, POINT + NORMAL_IMPULSE] = new
        apply_impulse(s, d, i, POINT, a, b, mul(change, nx), mul(change, ny))
    return changed


def solve_block(s: Any, d: Any, i: int, a: int, b: int) -> bool:
    """Solve the normal impulses of both points together: the first valid of four cases."""
    nx, ny = single(s.constraint[i, NORMAL_X]), single(s.constraint[i, NORMAL_Y])
    p, q = POINT, POINT + POINT_COLUMNS
    old1, old2 = (
        single(s.constraint[i, p + NORMAL_IMPULSE]),
        single(s.constraint[i, q + NORMAL_IMPULSE]),
    )
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
                    return False  # no case is valid
    d1, d2 = sub(x1, old1), sub(x2, old2)
    s.constraint[i, p + NORMAL_IMPULSE] = x1
    s.constraint[i, q + NORMAL_IMPULSE] = x2
    if d1 == 0.0 and d2 == 0.0:
        return False
    apply_block_impulse(s, d, i, a, b, d1, d2)
    return True


def apply_block_impulse(s: Any, d: Any, i: int, a: int, b: int, d1: float, d2: float) -> None:
    """Apply normal impulses at both points."""
    ma, ia, mb, ib = inverse_masses(d, a, b)
    nx, ny = single(s.constraint[i, NORMAL_X]), single(s.constraint[i, NORMAL_Y])
    p, q = POINT, POINT + POINT_COLUMNS
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
    """Return a column of the first constraint."""
    return single(s.constraint[0, column])


def solve_single_contact(s: Any, d: Any, iterations: int) -> None:
    """Run all iterations of an island of one contact with one point, the most frequent case.

    The operations and their order are those of `solve_contact`, on local variables.
    """
    a, b = body_a(s.island[0]), body_b(s.island[0])
    ma, ia, mb, ib = inverse_masses(d, a, b)
    nx, ny = single_constraint_value(s, NORMAL_X), single_constraint_value(s, NORMAL_Y)
    ax, ay = single_constraint_value(s, POINT + ARM_AX), single_constraint_value(s, POINT + ARM_AY)
    bx, by = single_constraint_value(s, POINT + ARM_BX), single_constraint_value(s, POINT + ARM_BY)
    friction, bias = single_constraint_value(s, FRICTION), single_constraint_value(s, POINT + BIAS)
    normal_mass, tangent_mass = (
        single_constraint_value(s, POINT + NORMAL_MASS),
        single_constraint_value(s, POINT + TANGENT_MASS),
    )
    normal_impulse, tangent_impulse = (
        single_constraint_value(s, POINT + NORMAL_IMPULSE),
        single_constraint_value(s, POINT + TANGENT_IMPULSE),
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
    # Rounding may make the iterations cycle. If a saved state returns, only the remainder after
    # whole cycles is computed (Brent 1980).
    remaining, steps, period = iterations, 0, 1
    saved_normal_impulse, saved_tangent_impulse, saved_vax, saved_vay, saved_wa = (
        normal_impulse,
        tangent_impulse,
        vax,
        vay,
        wa,
    )
    saved_vbx, saved_vby, saved_wb = vbx, vby, wb
    while remaining > 0:
        remaining -= 1
        last_normal_impulse, last_tangent_impulse = normal_impulse, tangent_impulse
        for axis in range(2):  # friction, then the normal
            x = sub(sub(add(vbx, mul(-wb, by)), vax), mul(-wa, ay))
            y = sub(sub(add(vby, mul(wb, bx)), vay), mul(wa, ax))
            if axis == 0:
                limit = mul(friction, normal_impulse)
                new = add(tangent_impulse, mul(tangent_mass, -dot(x, y, ny, -nx)))
                new = max(-limit, min(new, limit))
                px, py = mul(sub(new, tangent_impulse), ny), mul(sub(new, tangent_impulse), -nx)
                tangent_impulse = new
            else:
                new = max(add(normal_impulse, mul(-normal_mass, sub(dot(x, y, nx, ny), bias))), 0.0)
                px, py = mul(sub(new, normal_impulse), nx), mul(sub(new, normal_impulse), ny)
                normal_impulse = new
            vax = sub(vax, mul(ma, px))
            vay = sub(vay, mul(ma, py))
            wa = sub(wa, mul(ia, cross(ax, ay, px, py)))
            vbx = add(vbx, mul(mb, px))
            vby = add(vby, mul(mb, py))
            wb = add(wb, mul(ib, cross(bx, by, px, py)))
        if normal_impulse == last_normal_impulse and tangent_impulse == last_tangent_impulse:
            break
        steps += 1
        repeated = (
            normal_impulse == saved_normal_impulse
            and tangent_impulse == saved_tangent_impulse
            and wa == saved_wa
            and wb == saved_wb
        )
        if (
            repeated
            and vax == saved_vax
            and vay == saved_vay
            and vbx == saved_vbx
            and vby == saved_vby
        ):
            remaining = remaining % steps
        elif steps == period:
            steps, period = 0, 2 * period
            saved_normal_impulse, saved_tangent_impulse, saved_vax, saved_vay, saved_wa = (
                normal_impulse,
                tangent_impulse,
                vax,
                vay,
                wa,
            )
            saved_vbx, saved_vby, saved_wb = vbx, vby, wb
    s.constraint[0, POINT + NORMAL_IMPULSE] = normal_impulse
    s.constraint[0, POINT + TANGENT_IMPULSE] = tangent_impulse
    s.linear_velocity[a, 0] = vax
    s.linear_velocity[a, 1] = vay
    s.angular_velocity[a] = wa
    s.linear_velocity[b, 0] = vbx
    s.linear_velocity[b, 1] = vby
    s.angular_velocity[b] = wb


def solve_position(s: Any, d: Any, k: int, fraction: float) -> float:
    """Move the bodies of a pair by a fraction of their overlap, point by point.

    Returns:
        The smallest separation, 0 or less.
    """
    a, b = body_a(k), body_b(k)
    ma, ia, mb, ib = inverse_masses(d, a, b)
    ra, rb = skin_radius(d, a), skin_radius(d, b)
    reference = b if s.flipped[k] else a
    incident = a if s.flipped[k] else b
    min_separation = 0.0
    for j in range(s.point_count[k]):
        nx, ny = rotate(s.sin[reference], s.cos[reference], s.face[k, 0], s.face[k, 1])
        planex, planey = world_point(s, reference, s.face[k, 2], s.face[k, 3])
        x, y = world_point(s, incident, s.local_point[k, j, 0], s.local_point[k, j, 1])
        separation = sub(sub(dot(sub(x, planex), sub(y, planey), nx, ny), ra), rb)
        if s.flipped[k]:
            nx = -nx
            ny = -ny
        rax, ray = sub(x, s.center[a, 0]), sub(y, s.center[a, 1])
        rbx, rby = sub(x, s.center[b, 0]), sub(y, s.center[b, 1])
        min_separation = min(min_separation, separation)
        error = max(-MAX_LINEAR_CORRECTION, min(mul(fraction, add(separation, LINEAR_SLOP)), 0.0))
        k_n = inverse_effective(ma, ia, mb, ib, cross(rax, ray, nx, ny), cross(rbx, rby, nx, ny))
        impulse = div(-error, k_n) if k_n > 0.0 else 0.0
        px, py = mul(impulse, nx), mul(impulse, ny)
        if a < MOVING:
            move_body(s, d, a, -mul(ma, px), -mul(ma, py), -mul(ia, cross(rax, ray, px, py)))
        move_body(s, d, b, mul(mb, px), mul(mb, py), mul(ib, cross(rbx, rby, px, py)))
    return min_separation


def move_body(s: Any, d: Any, body: int, dx: float, dy: float, rotation: float) -> None:
    s.center[body, 0] = add(s.center[body, 0], dx)
    s.center[body, 1] = add(s.center[body, 1], dy)
    s.angle[body] = add(s.angle[body], rotation)
    set_pose(s, d, body)
