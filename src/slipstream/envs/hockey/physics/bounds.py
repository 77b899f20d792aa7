"""Where a body can be during its step, generously: what lies farther off need not be looked at.

Bounds are float64 and wider than the body by a margin that no rounding reaches, so that leaving
out what they exclude changes no bit.
"""

from __future__ import annotations

from typing import Any

from slipstream.envs.hockey.physics.facts import BOX, EXTENSION, POLYGON_RADIUS, PUCK, PUCK_RADIUS

_MARGIN = 1e-4
_NEAR = 0.015  # m between skins, from which on nothing touches, neither now nor within a step
_ROUND = 0.46  # m, a racket's farthest corner from its centre of mass
_SMALL = 0.5  # rad, turned within a step, for which a series of few terms will do


def farthest(u: float, w: float) -> float:
    """How far a racket reaches from its centre of mass in a direction with the parts u forwards and
    w sideways, w >= 0: the farthest of its corners, which lie in pairs on both sides.
    """
    return max(
        0.2225 * u + 0.4001 * w,
        -0.0776 * u + 0.4001 * w,
        -0.2377 * u + 0.2001 * w,
        -0.2977 * u,
    )


def swept(s: Any, body: int) -> tuple[float, float, float, float]:
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
    left = min(x - farthest(-cos, across), x0 - farthest(-cos0, across0)) - r
    bottom = min(y - farthest(-sin, up), y0 - farthest(-sin0, up0)) - r
    right = max(x + farthest(cos, across), x0 + farthest(cos0, across0)) + r
    top = max(y + farthest(sin, up), y0 + farthest(sin0, up0)) + r
    return left, bottom, right, top


def is_far(s: Any, d: Any, still: int, body: int) -> bool:
    """Whether a moving body stays away from a static one during the whole step."""
    left, bottom, right, top = swept(s, body)
    # The table's boxes are widened by EXTENSION.
    near = _NEAR - EXTENSION
    if left - d.table[still, BOX + 2] > near or d.table[still, BOX] - right > near:
        return True
    return bottom - d.table[still, BOX + 3] > near or d.table[still, BOX + 1] - top > near


def within_fat(s: Any, body: int) -> bool:
    """Whether the widened box holds the body on its whole way."""
    left, bottom, right, top = swept(s, body)
    inside = s.fat[body, 0] <= left and s.fat[body, 1] <= bottom
    return inside and right <= s.fat[body, 2] and top <= s.fat[body, 3]
