"""The point of a simplex that is nearest to the origin, by barycentric weights."""

from __future__ import annotations

from typing import Any

from slipstream.core.single import add, div, mul, sub
from slipstream.envs.hockey.physics.vectors import cross, dot, length
from slipstream.envs.hockey.record import W_X, W_Y, WEIGHT


def metric(s: Any) -> float:
    """Length of a segment, double area of a triangle: how much a simplex changed."""
    if s.simplex_size < 2:
        return 0.0
    x0, y0 = s.simplex[0, W_X], s.simplex[0, W_Y]
    x1, y1 = s.simplex[1, W_X], s.simplex[1, W_Y]
    if s.simplex_size == 2:
        return length(sub(x0, x1), sub(y0, y1))
    x2, y2 = s.simplex[2, W_X], s.simplex[2, W_Y]
    return cross(sub(x1, x0), sub(y1, y0), sub(x2, x0), sub(y2, y0))


def copy_vertex(s: Any, source: int, target: int) -> None:
    for i in range(7):
        s.simplex[target, i] = s.simplex[source, i]
    s.support[target, 0] = s.support[source, 0]
    s.support[target, 1] = s.support[source, 1]


def solve(s: Any) -> None:
    """Leaves the vertices that carry the nearest point, with their weights."""
    if s.simplex_size == 2:
        solve_segment(s)
    elif s.simplex_size == 3:
        solve_triangle(s)


def one_left(s: Any, which: int) -> None:
    """The nearest point is a vertex."""
    s.simplex[which, WEIGHT] = 1.0
    s.simplex_size = 1
    if which > 0:
        copy_vertex(s, which, 0)


def two_left(s: Any, first: int, second: int, u: float, v: float) -> None:
    """The nearest point lies on an edge, in the share u : v."""
    inverse = div(1.0, add(u, v))
    s.simplex[first, WEIGHT] = mul(u, inverse)
    s.simplex[second, WEIGHT] = mul(v, inverse)
    s.simplex_size = 2


def solve_segment(s: Any) -> None:
    x0, y0 = s.simplex[0, W_X], s.simplex[0, W_Y]
    x1, y1 = s.simplex[1, W_X], s.simplex[1, W_Y]
    ex, ey = sub(x1, x0), sub(y1, y0)
    v = -dot(x0, y0, ex, ey)
    if v <= 0.0:
        one_left(s, 0)
        return
    u = dot(x1, y1, ex, ey)
    if u <= 0.0:
        one_left(s, 1)
        return
    two_left(s, 0, 1, u, v)


def solve_triangle(s: Any) -> None:
    x0, y0 = s.simplex[0, W_X], s.simplex[0, W_Y]
    x1, y1 = s.simplex[1, W_X], s.simplex[1, W_Y]
    x2, y2 = s.simplex[2, W_X], s.simplex[2, W_Y]
    e01x, e01y = sub(x1, x0), sub(y1, y0)
    e02x, e02y = sub(x2, x0), sub(y2, y0)
    e12x, e12y = sub(x2, x1), sub(y2, y1)
    u01, v01 = dot(x1, y1, e01x, e01y), -dot(x0, y0, e01x, e01y)
    u02, v02 = dot(x2, y2, e02x, e02y), -dot(x0, y0, e02x, e02y)
    u12, v12 = dot(x2, y2, e12x, e12y), -dot(x1, y1, e12x, e12y)
    area = cross(e01x, e01y, e02x, e02y)
    a0 = mul(area, cross(x1, y1, x2, y2))
    a1 = mul(area, cross(x2, y2, x0, y0))
    a2 = mul(area, cross(x0, y0, x1, y1))
    if v01 <= 0.0 and v02 <= 0.0:
        one_left(s, 0)
    elif u01 > 0.0 and v01 > 0.0 and a2 <= 0.0:
        two_left(s, 0, 1, u01, v01)
    elif u02 > 0.0 and v02 > 0.0 and a1 <= 0.0:
        two_left(s, 0, 2, u02, v02)
        copy_vertex(s, 2, 1)
    elif u01 <= 0.0 and v12 <= 0.0:
        one_left(s, 1)
    elif u02 <= 0.0 and u12 <= 0.0:
        one_left(s, 2)
    elif u12 > 0.0 and v12 > 0.0 and a0 <= 0.0:
        two_left(s, 1, 2, u12, v12)
        copy_vertex(s, 2, 0)
    else:
        inverse = div(1.0, add(add(a0, a1), a2))
        s.simplex[0, WEIGHT] = mul(a0, inverse)
        s.simplex[1, WEIGHT] = mul(a1, inverse)
        s.simplex[2, WEIGHT] = mul(a2, inverse)
        s.simplex_size = 3
