"""Vector arithmetic in float32, and the motion of a body within a step: sweep, pose, swept bounds.

Every operation is rounded to float32. Swept bounds are float64 with a margin above any rounding
error, so tests that they skip never change a result.
"""

from __future__ import annotations

import math
from typing import Any

from slipstream.games.hockey.physics.bodies import (
    AABB_EXTENSION,
    BOX,
    EDGE_NORMAL,
    EPSILON,
    LOCAL_CENTER,
    MAX_ROTATION,
    MAX_ROTATION_SQUARED,
    MAX_TRANSLATION,
    MAX_TRANSLATION_SQUARED,
    POLYGON_RADIUS,
    PUCK,
    PUCK_RADIUS,
    TWO_PI,
    VERTEX,
)
from slipstream.jit.float32 import add, cosine, div, mul, root, sine, single, sub


def dot(ax: float, ay: float, bx: float, by: float) -> float:
    return add(mul(ax, bx), mul(ay, by))


def cross(ax: float, ay: float, bx: float, by: float) -> float:
    return sub(mul(ax, by), mul(ay, bx))


def length(x: float, y: float) -> float:
    return root(dot(x, y, x, y))


def normalized(x: float, y: float) -> tuple[float, float]:
    """Return the unit vector; a vector shorter than EPSILON is returned unchanged."""
    size = length(x, y)
    if size < EPSILON:
        return x, y
    scale = div(1.0, size)
    return mul(x, scale), mul(y, scale)


def rotate(sin: float, cos: float, x: float, y: float) -> tuple[float, float]:
    """Rotate a vector from body to world coordinates."""
    return sub(mul(cos, x), mul(sin, y)), add(mul(sin, x), mul(cos, y))


def inverse_rotate(sin: float, cos: float, x: float, y: float) -> tuple[float, float]:
    """Rotate a vector from world to body coordinates."""
    return add(mul(cos, x), mul(sin, y)), add(mul(-sin, x), mul(cos, y))


def local_vertex(d: Any, body: int, i: int) -> tuple[float, float]:
    """Return vertex i in body coordinates."""
    return single(d.table[body, VERTEX + 2 * i]), single(d.table[body, VERTEX + 2 * i + 1])


def edge_normal(d: Any, body: int, i: int) -> tuple[float, float]:
    """Return the normal of the edge that begins at vertex i, in body coordinates."""
    return single(d.table[body, EDGE_NORMAL + 2 * i]), single(
        d.table[body, EDGE_NORMAL + 2 * i + 1]
    )


def vertex_projection(d: Any, body: int, i: int, x: float, y: float) -> float:
    """Return the dot product of vertex i and a direction in body coordinates."""
    px, py = local_vertex(d, body, i)
    return dot(px, py, x, y)


def normal_projection(d: Any, body: int, i: int, x: float, y: float) -> float:
    """Return the dot product of the normal of edge i and a direction in body coordinates."""
    nx, ny = edge_normal(d, body, i)
    return dot(nx, ny, x, y)


def world_vertex(
    d: Any, body: int, i: int, sin: float, cos: float, x: float, y: float
) -> tuple[float, float]:
    """Return vertex i in world coordinates, for a rotated body at (x, y)."""
    px, py = local_vertex(d, body, i)
    px, py = rotate(sin, cos, px, py)
    return add(px, x), add(py, y)


def translated_vertex(d: Any, body: int, i: int, x: float, y: float) -> tuple[float, float]:
    """Return vertex i in world coordinates, for a static body at (x, y) without rotation."""
    px, py = local_vertex(d, body, i)
    return add(px, x), add(py, y)


def blend(beta: float, before: float, after: float) -> float:
    return add(mul(sub(1.0, beta), before), mul(beta, after))


def set_pose(s: Any, d: Any, body: int) -> None:
    """Set position, sine and cosine from centre of mass and angle; the puck's angle is ignored."""
    x, y = single(s.center[body, 0]), single(s.center[body, 1])
    if body < PUCK:
        sin = sine(s.angle[body])
        cos = cosine(s.angle[body])
        mx, my = rotate(sin, cos, d.table[body, LOCAL_CENTER], d.table[body, LOCAL_CENTER + 1])
        x = sub(x, mx)
        y = sub(y, my)
        s.sin[body] = sin
        s.cos[body] = cos
    s.position[body, 0] = x
    s.position[body, 1] = y


def advance_sweep(s: Any, body: int, alpha: float) -> None:
    """Move the start of the sweep to the fraction `alpha` of the step."""
    beta = div(sub(alpha, s.alpha[body]), sub(1.0, s.alpha[body]))
    s.center0[body, 0] = blend(beta, s.center0[body, 0], s.center[body, 0])
    s.center0[body, 1] = blend(beta, s.center0[body, 1], s.center[body, 1])
    s.angle0[body] = blend(beta, s.angle0[body], s.angle[body])
    s.alpha[body] = alpha


def advance_body(s: Any, d: Any, body: int, alpha: float) -> None:
    """Move the body to its pose at the fraction `alpha` of the step."""
    advance_sweep(s, body, alpha)
    s.center[body, 0] = s.center0[body, 0]
    s.center[body, 1] = s.center0[body, 1]
    s.angle[body] = s.angle0[body]
    set_pose(s, d, body)


def reset_sweep(s: Any, body: int) -> None:
    """Start the sweep at the body's current centre."""
    s.center0[body, 0] = s.center[body, 0]
    s.center0[body, 1] = s.center[body, 1]


def save_sweep(s: Any, body: int) -> tuple[float, float, float, float, float, float, float]:
    """Return both ends of the body's sweep and its `alpha`, for `restore_sweep`."""
    x, y, x0, y0 = s.center[body, 0], s.center[body, 1], s.center0[body, 0], s.center0[body, 1]
    return x, y, x0, y0, s.angle[body], s.angle0[body], s.alpha[body]


def restore_sweep(s: Any, d: Any, body: int, sweep: tuple[float, ...]) -> None:
    """Restore the sweep of `save_sweep`."""
    s.center[body, 0] = sweep[0]
    s.center[body, 1] = sweep[1]
    s.center0[body, 0] = sweep[2]
    s.center0[body, 1] = sweep[3]
    s.angle[body] = sweep[4]
    s.angle0[body] = sweep[5]
    s.alpha[body] = sweep[6]
    set_pose(s, d, body)


def whole_turns(angle: float) -> float:
    """Return the largest multiple of 2 pi that is not above an angle."""
    return mul(TWO_PI, math.floor(div(angle, TWO_PI)))


def pose_at(
    s: Any, d: Any, body: int, turns: float, beta: float
) -> tuple[float, float, float, float]:
    """Return sine, cosine, x and y of the body at the fraction `beta` of its remaining sweep.

    Args:
        turns: angle that is subtracted first.
    """
    x = blend(beta, s.center0[body, 0], s.center[body, 0])
    y = blend(beta, s.center0[body, 1], s.center[body, 1])
    if body >= PUCK:
        return 0.0, 1.0, x, y
    angle = blend(beta, sub(s.angle0[body], turns), sub(s.angle[body], turns))
    sin = sine(angle)
    cos = cosine(angle)
    mx, my = rotate(sin, cos, d.table[body, LOCAL_CENTER], d.table[body, LOCAL_CENTER + 1])
    return sin, cos, sub(x, mx), sub(y, my)


def integrate_position(s: Any, body: int, dt: float) -> None:
    """Integrate centre and angle; velocities are limited to the maximum motion per step."""
    vx, vy, w = (
        single(s.linear_velocity[body, 0]),
        single(s.linear_velocity[body, 1]),
        single(s.angular_velocity[body]),
    )
    tx, ty = mul(dt, vx), mul(dt, vy)
    square = add(mul(tx, tx), mul(ty, ty))
    if square > MAX_TRANSLATION_SQUARED:
        ratio = div(MAX_TRANSLATION, single(math.sqrt(square)))
        vx = mul(vx, ratio)
        vy = mul(vy, ratio)
    rotation = mul(dt, w)
    if mul(rotation, rotation) > MAX_ROTATION_SQUARED:
        w = mul(w, div(MAX_ROTATION, abs(rotation)))
    s.center[body, 0] = add(s.center[body, 0], mul(dt, vx))
    s.center[body, 1] = add(s.center[body, 1], mul(dt, vy))
    if body < PUCK:
        s.angle[body] = add(s.angle[body], mul(dt, w))
    s.linear_velocity[body, 0] = vx
    s.linear_velocity[body, 1] = vy
    s.angular_velocity[body] = w


_MARGIN = 1e-4
_NEAR = 0.015  # m between skins, above which two bodies cannot touch within a step
_ROUND = 0.46  # m, distance of a racket's farthest vertex from its centre of mass
_SMALL = 0.5  # rad per step, up to which a short series is exact enough


def racket_extent(u: float, w: float) -> float:
    """Return the extent of a racket from its centre of mass along (u, w), w >= 0.

    u points forwards, w sideways; the racket is symmetric.
    """
    return max(
        0.2225 * u + 0.4001 * w,
        -0.0776 * u + 0.4001 * w,
        -0.2377 * u + 0.2001 * w,
        -0.2977 * u,
    )


def swept_aabb(s: Any, body: int) -> tuple[float, float, float, float]:
    """Return left, bottom, right and top of the region that a body covers during its sweep."""
    x, y, x0, y0 = s.center[body, 0], s.center[body, 1], s.center0[body, 0], s.center0[body, 1]
    r = PUCK_RADIUS + _MARGIN
    if body == PUCK:
        return min(x, x0) - r, min(y, y0) - r, max(x, x0) + r, max(y, y0) + r
    rotation = s.angle[body] - s.angle0[body]
    if abs(rotation) > _SMALL:
        r = _ROUND + POLYGON_RADIUS
        return min(x, x0) - r, min(y, y0) - r, max(x, x0) + r, max(y, y0) + r
    sign = 1.0 - 2.0 * body  # player 1's racket faces the other way
    sin, cos = sign * s.sin[body], sign * s.cos[body]
    # Between both ends of the rotation a vertex leaves the hull by less than r a^2 / 8.
    square = rotation * rotation
    r = POLYGON_RADIUS + _MARGIN + _ROUND * square
    small = rotation - rotation * square / 6.0
    large = 1.0 - 0.5 * square
    sin0, cos0 = sin * large - cos * small, cos * large + sin * small
    up, up0, across, across0 = abs(cos), abs(cos0), abs(sin), abs(sin0)
    left = min(x - racket_extent(-cos, across), x0 - racket_extent(-cos0, across0)) - r
    bottom = min(y - racket_extent(-sin, up), y0 - racket_extent(-sin0, up0)) - r
    right = max(x + racket_extent(cos, across), x0 + racket_extent(cos0, across0)) + r
    top = max(y + racket_extent(sin, up), y0 + racket_extent(sin0, up0)) + r
    return left, bottom, right, top


def is_far(s: Any, d: Any, static: int, body: int) -> bool:
    """Return whether a moving body stays away from a static one during the whole step."""
    left, bottom, right, top = swept_aabb(s, body)
    # The boxes in the table include AABB_EXTENSION.
    near = _NEAR - AABB_EXTENSION
    if left - d.table[static, BOX + 2] > near or d.table[static, BOX] - right > near:
        return True
    return bottom - d.table[static, BOX + 3] > near or d.table[static, BOX + 1] - top > near


def fat_aabb_contains(s: Any, body: int) -> bool:
    """Return whether the fat AABB contains the body during its whole sweep."""
    left, bottom, right, top = swept_aabb(s, body)
    inside = s.fat_aabb[body, 0] <= left and s.fat_aabb[body, 1] <= bottom
    return inside and right <= s.fat_aabb[body, 2] and top <= s.fat_aabb[body, 3]
