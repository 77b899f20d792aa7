"""When a moving body first touches a static one: conservative advancement along separating axes."""

from __future__ import annotations

from typing import Any

from slipstream.games.hockey.physics.bodies import (
    POLYGON_RADIUS,
    PUCK,
    PUCK_RADIUS,
    RACKET_RADIUS,
    SLOP,
    TOLERANCE,
)
from slipstream.games.hockey.physics.distance import distance, support
from slipstream.games.hockey.physics.geometry import (
    corner,
    dot,
    normal_of,
    placed,
    shifted,
    turn,
    turn_back,
)
from slipstream.games.hockey.physics.motion import pose_at, whole_turns
from slipstream.jit.float32 import add, div, mul, sub

_ROUNDS, _PUSHES, _ROOTS = 20, 16, 50
_POINTS, _FACE_A, _FACE_B = 0, 1, 2  # what the axis is fixed to


def axis_of(
    s: Any, d: Any, a: int, b: int, turns: float, beta: float
) -> tuple[int, float, float, float, float]:
    """Separating axis of the cached simplex.

    Returns:
        kind, axis (in the world, or in the axes of the body with the face), a point of the face.
    """
    i0, j0 = s.support[0, 0], s.support[0, 1]
    i1, j1 = s.support[1, 0], s.support[1, 1]
    _, _, ax, ay = pose_at(s, d, a, 0.0, beta)
    sin, cos, bx, by = pose_at(s, d, b, turns, beta)
    if s.simplex_size == 1:
        px, py = placed(d, b, j0, sin, cos, bx, by)
        qx, qy = shifted(d, a, i0, ax, ay)
        nx, ny = normal_of(sub(px, qx), sub(py, qy))
        return _POINTS, nx, ny, 0.0, 0.0
    if i0 == i1:
        x0, y0 = corner(d, b, j0)
        x1, y1 = corner(d, b, j1)
        nx, ny = normal_of(sub(y1, y0), -sub(x1, x0))
        mx, my = mul(0.5, add(x0, x1)), mul(0.5, add(y0, y1))
        wx, wy = turn(sin, cos, nx, ny)
        px, py = turn(sin, cos, mx, my)
        px, py = add(px, bx), add(py, by)
        qx, qy = shifted(d, a, i0, ax, ay)
        if dot(sub(qx, px), sub(qy, py), wx, wy) < 0.0:
            nx = -nx
            ny = -ny
        return _FACE_B, nx, ny, mx, my
    x0, y0 = corner(d, a, i0)
    x1, y1 = corner(d, a, i1)
    nx, ny = normal_of(sub(y1, y0), -sub(x1, x0))
    mx, my = mul(0.5, add(x0, x1)), mul(0.5, add(y0, y1))
    px, py = placed(d, b, j0, sin, cos, bx, by)
    if dot(sub(px, add(mx, ax)), sub(py, add(my, ay)), nx, ny) < 0.0:
        nx = -nx
        ny = -ny
    return _FACE_A, nx, ny, mx, my


def deepest(
    s: Any, d: Any, a: int, b: int, turns: float, beta: float, kind: int, nx: float, ny: float
) -> tuple[int, int]:
    """Vertices of a and b that lie deepest along the axis; 0 where the axis has a face."""
    sin, cos, _, _ = pose_at(s, d, b, turns, beta)
    if kind == _FACE_B:
        wx, wy = turn(sin, cos, nx, ny)
        return support(d, a, -wx, -wy), 0
    ox, oy = turn_back(sin, cos, -nx, -ny)
    j = support(d, b, ox, oy)
    if kind == _POINTS:
        return support(d, a, nx, ny), j
    return 0, j


def separation(
    s: Any, d: Any, a: int, b: int, turns: float, beta: float,
    kind: int, nx: float, ny: float, mx: float, my: float, i: int, j: int,
) -> float:  # fmt: skip
    """How far vertices i and j, or one of them and the face, are apart along the axis."""
    _, _, ax, ay = pose_at(s, d, a, 0.0, beta)
    sin, cos, bx, by = pose_at(s, d, b, turns, beta)
    if kind == _FACE_B:
        wx, wy = turn(sin, cos, nx, ny)
        px, py = turn(sin, cos, mx, my)
        qx, qy = shifted(d, a, i, ax, ay)
        return dot(sub(qx, add(px, bx)), sub(qy, add(py, by)), wx, wy)
    px, py = placed(d, b, j, sin, cos, bx, by)
    if kind == _POINTS:
        qx, qy = shifted(d, a, i, ax, ay)
    else:
        qx, qy = add(mx, ax), add(my, ay)
    return dot(sub(px, qx), sub(py, qy), nx, ny)


def push_back(
    s: Any, d: Any, a: int, b: int, turns: float, begin: float, target: float,
    kind: int, nx: float, ny: float, mx: float, my: float,
) -> tuple[int, float]:  # fmt: skip
    """Resolves one deepest point after another along one axis.

    Returns:
        1: they touch at the second value; -1: they never do; 0: go on from there with a new axis.
    """
    end = 1.0
    for _ in range(_PUSHES):
        i, j = deepest(s, d, a, b, turns, end, kind, nx, ny)
        s2 = separation(s, d, a, b, turns, end, kind, nx, ny, mx, my, i, j)
        if s2 > add(target, TOLERANCE):
            return -1, 1.0
        if s2 > sub(target, TOLERANCE):
            return 0, end
        s1 = separation(s, d, a, b, turns, begin, kind, nx, ny, mx, my, i, j)
        if s1 < sub(target, TOLERANCE):
            return -1, begin
        if s1 <= add(target, TOLERANCE):
            return 1, begin
        a1 = begin
        a2 = end
        for count in range(_ROOTS):
            if count % 2 == 1:  # secant, and bisection in turn
                t = add(a1, div(mul(sub(target, s1), sub(a2, a1)), sub(s2, s1)))
            else:
                t = mul(0.5, add(a1, a2))
            value = separation(s, d, a, b, turns, t, kind, nx, ny, mx, my, i, j)
            if abs(sub(value, target)) < TOLERANCE:
                end = t
                break
            if value > target:
                a1 = t
                s1 = value
            else:
                a2 = t
                s2 = value
    return 0, begin


def time_of_impact(s: Any, d: Any, a: int, b: int) -> float:
    """Share of the rest of both ways at which a static body a and b touch; -1 where they do not."""
    turns = 0.0
    radius = PUCK_RADIUS
    if b != PUCK:
        turns = whole_turns(s.angle0[b])
        radius = RACKET_RADIUS
    target = max(SLOP, sub(add(POLYGON_RADIUS, radius), mul(3.0, SLOP)))
    begin = 0.0
    s.simplex_size = 0
    for _ in range(_ROUNDS):
        _, _, ax, ay = pose_at(s, d, a, 0.0, begin)
        sin, cos, bx, by = pose_at(s, d, b, turns, begin)
        apart = distance(s, d, a, b, ax, ay, sin, cos, bx, by)
        if apart <= 0.0:
            return -1.0
        if apart < add(target, TOLERANCE):
            return begin
        kind, nx, ny, mx, my = axis_of(s, d, a, b, turns, begin)
        state, begin = push_back(s, d, a, b, turns, begin, target, kind, nx, ny, mx, my)
        if state != 0:
            return begin if state > 0 else -1.0
    return -1.0
