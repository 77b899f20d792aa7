"""Pairs of float32 numbers, and a body on its way through a step: its pose, stops, where it can be.

Arithmetic is rounded after every operation. The bounds of a body's way are float64 and wider than
the body by a margin that no rounding reaches, so that leaving out what they exclude changes no bit.
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
    """The vector of length 1; one that is shorter than EPSILON stays as it is."""
    size = length(x, y)
    if size < EPSILON:
        return x, y
    scale = div(1.0, size)
    return mul(x, scale), mul(y, scale)


def rotate(sin: float, cos: float, x: float, y: float) -> tuple[float, float]:
    """From a body's axes to the world's."""
    return sub(mul(cos, x), mul(sin, y)), add(mul(sin, x), mul(cos, y))


def inverse_rotate(sin: float, cos: float, x: float, y: float) -> tuple[float, float]:
    """From the world's axes to a body's."""
    return add(mul(cos, x), mul(sin, y)), add(mul(-sin, x), mul(cos, y))


def local_vertex(d: Any, body: int, i: int) -> tuple[float, float]:
    """In the body's axes."""
    return single(d.table[body, VERTEX + 2 * i]), single(d.table[body, VERTEX + 2 * i + 1])


def edge_normal(d: Any, body: int, i: int) -> tuple[float, float]:
    """Normal of the edge that begins at corner i, in the body's axes."""
    return single(d.table[body, EDGE_NORMAL + 2 * i]), single(
        d.table[body, EDGE_NORMAL + 2 * i + 1]
    )


def vertex_projection(d: Any, body: int, i: int, x: float, y: float) -> float:
    """How far corner i lies in a direction of the body's axes."""
    px, py = local_vertex(d, body, i)
    return dot(px, py, x, y)


def normal_projection(d: Any, body: int, i: int, x: float, y: float) -> float:
    """How much the normal of edge i points in a direction of the body's axes."""
    nx, ny = edge_normal(d, body, i)
    return dot(nx, ny, x, y)


def world_vertex(
    d: Any, body: int, i: int, sin: float, cos: float, x: float, y: float
) -> tuple[float, float]:
    """Corner i in the world, of a body that stands turned at (x, y)."""
    px, py = local_vertex(d, body, i)
    px, py = rotate(sin, cos, px, py)
    return add(px, x), add(py, y)


def translated_vertex(d: Any, body: int, i: int, x: float, y: float) -> tuple[float, float]:
    """Corner i in the world, of a static body, which is not turned, at (x, y)."""
    px, py = local_vertex(d, body, i)
    return add(px, x), add(py, y)


def blend(beta: float, before: float, after: float) -> float:
    return add(mul(sub(1.0, beta), before), mul(beta, after))


def set_pose(s: Any, d: Any, body: int) -> None:
    """Place, sine and cosine from centre of mass and angle; nothing depends on the puck's angle."""
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
    """Moves the sweep's begin to a share of the step."""
    beta = div(sub(alpha, s.alpha[body]), sub(1.0, s.alpha[body]))
    s.center0[body, 0] = blend(beta, s.center0[body, 0], s.center[body, 0])
    s.center0[body, 1] = blend(beta, s.center0[body, 1], s.center[body, 1])
    s.angle0[body] = blend(beta, s.angle0[body], s.angle[body])
    s.alpha[body] = alpha


def advance_body(s: Any, d: Any, body: int, alpha: float) -> None:
    """Puts the body where it is at that share of the step."""
    advance_sweep(s, body, alpha)
    s.center[body, 0] = s.center0[body, 0]
    s.center[body, 1] = s.center0[body, 1]
    s.angle[body] = s.angle0[body]
    set_pose(s, d, body)


def reset_sweep(s: Any, body: int) -> None:
    """Begins the sweep where the body's centre is."""
    s.center0[body, 0] = s.center[body, 0]
    s.center0[body, 1] = s.center[body, 1]


def save_sweep(s: Any, body: int) -> tuple[float, float, float, float, float, float, float]:
    """Both ends of the body's sweep and the share at which it begins, for `restore_sweep`."""
    x, y, x0, y0 = s.center[body, 0], s.center[body, 1], s.center0[body, 0], s.center0[body, 1]
    return x, y, x0, y0, s.angle[body], s.angle0[body], s.alpha[body]


def restore_sweep(s: Any, d: Any, body: int, way: tuple[float, ...]) -> None:
    """Puts the body back on the way that it was on."""
    s.center[body, 0] = way[0]
    s.center[body, 1] = way[1]
    s.center0[body, 0] = way[2]
    s.center0[body, 1] = way[3]
    s.angle[body] = way[4]
    s.angle0[body] = way[5]
    s.alpha[body] = way[6]
    set_pose(s, d, body)


def whole_turns(angle: float) -> float:
    """The multiple of 2 pi that lies below an angle."""
    return mul(TWO_PI, math.floor(div(angle, TWO_PI)))


def pose_at(
    s: Any, d: Any, body: int, turns: float, beta: float
) -> tuple[float, float, float, float]:
    """Sine, cosine, x and y of the body's axes at a share of the rest of its way.

    Args:
        turns: taken off the angles first.
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


def integrate_position(s: Any, body: int, h: float) -> None:
    """Moves centre and angle by velocity and spin, which are cut where a step would be too far."""
    vx, vy, w = (
        single(s.linear_velocity[body, 0]),
        single(s.linear_velocity[body, 1]),
        single(s.angular_velocity[body]),
    )
    tx, ty = mul(h, vx), mul(h, vy)
    square = add(mul(tx, tx), mul(ty, ty))
    if square > MAX_TRANSLATION_SQUARED:
        ratio = div(MAX_TRANSLATION, single(math.sqrt(square)))
        vx = mul(vx, ratio)
        vy = mul(vy, ratio)
    rotation = mul(h, w)
    if mul(rotation, rotation) > MAX_ROTATION_SQUARED:
        w = mul(w, div(MAX_ROTATION, abs(rotation)))
    s.center[body, 0] = add(s.center[body, 0], mul(h, vx))
    s.center[body, 1] = add(s.center[body, 1], mul(h, vy))
    if body < PUCK:
        s.angle[body] = add(s.angle[body], mul(h, w))
    s.linear_velocity[body, 0] = vx
    s.linear_velocity[body, 1] = vy
    s.angular_velocity[body] = w


_MARGIN = 1e-4
_NEAR = 0.015  # m between skins, from which on nothing touches, neither now nor within a step
_ROUND = 0.46  # m, a racket's farthest corner from its centre of mass
_SMALL = 0.5  # rad, turned within a step, for which a series of few terms will do


def racket_extent(u: float, w: float) -> float:
    """How far a racket reaches from its centre of mass in a direction with the parts u forwards and
    w sideways, w >= 0: the farthest of its corners, which lie in pairs on both sides.
    """
    return max(
        0.2225 * u + 0.4001 * w,
        -0.0776 * u + 0.4001 * w,
        -0.2377 * u + 0.2001 * w,
        -0.2977 * u,
    )


def swept_aabb(s: Any, body: int) -> tuple[float, float, float, float]:
    """Left, bottom, right, top of a moving body on its way from the sweep's begin to its place."""
    x, y, x0, y0 = s.center[body, 0], s.center[body, 1], s.center0[body, 0], s.center0[body, 1]
    r = PUCK_RADIUS + _MARGIN
    if body == PUCK:
        return min(x, x0) - r, min(y, y0) - r, max(x, x0) + r, max(y, y0) + r
    turned = s.angle[body] - s.angle0[body]
    if abs(turned) > _SMALL:
        r = _ROUND + POLYGON_RADIUS
        return min(x, x0) - r, min(y, y0) - r, max(x, x0) + r, max(y, y0) + r
    sign = 1.0 - 2.0 * body  # player 1's racket looks the other way
    sin, cos = sign * s.sin[body], sign * s.cos[body]
    # Corners bulge by less than r a^2 / 8 between both ends of the turn.
    square = turned * turned
    r = POLYGON_RADIUS + _MARGIN + _ROUND * square
    small = turned - turned * square / 6.0
    large = 1.0 - 0.5 * square
    sin0, cos0 = sin * large - cos * small, cos * large + sin * small
    up, up0, across, across0 = abs(cos), abs(cos0), abs(sin), abs(sin0)
    left = min(x - racket_extent(-cos, across), x0 - racket_extent(-cos0, across0)) - r
    bottom = min(y - racket_extent(-sin, up), y0 - racket_extent(-sin0, up0)) - r
    right = max(x + racket_extent(cos, across), x0 + racket_extent(cos0, across0)) + r
    top = max(y + racket_extent(sin, up), y0 + racket_extent(sin0, up0)) + r
    return left, bottom, right, top


def is_far(s: Any, d: Any, still: int, body: int) -> bool:
    """Whether a moving body stays away from a static one during the whole step."""
    left, bottom, right, top = swept_aabb(s, body)
    # The table's boxes are widened by EXTENSION.
    near = _NEAR - AABB_EXTENSION
    if left - d.table[still, BOX + 2] > near or d.table[still, BOX] - right > near:
        return True
    return bottom - d.table[still, BOX + 3] > near or d.table[still, BOX + 1] - top > near


def fat_aabb_contains(s: Any, body: int) -> bool:
    """Whether the widened box holds the body on its whole way."""
    left, bottom, right, top = swept_aabb(s, body)
    inside = s.fat_aabb[body, 0] <= left and s.fat_aabb[body, 1] <= bottom
    return inside and right <= s.fat_aabb[body, 2] and top <= s.fat_aabb[body, 3]
