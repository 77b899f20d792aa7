"""Distance of convex shapes by GJK (Gilbert, Johnson, Keerthi 1988), and time of impact.

The first shape is a static polygon, the second a racket or the puck's centre. The time of impact is
found by conservative advancement along separating axes.
"""

from __future__ import annotations

from typing import Any

from slipstream.games.hockey.physics.bodies import (
    COUNT,
    EPSILON,
    LINEAR_SLOP,
    OVERLAP_TOLERANCE,
    POLYGON_RADIUS,
    PUCK,
    PUCK_RADIUS,
    RACKET_RADIUS,
    TOI_TOLERANCE,
)
from slipstream.games.hockey.physics.motion import (
    cross,
    dot,
    inverse_rotate,
    length,
    local_vertex,
    normalized,
    pose_at,
    rotate,
    translated_vertex,
    vertex_projection,
    whole_turns,
    world_vertex,
)
from slipstream.jit.float32 import add, div, mul, sub

# Columns of STATE.simplex: a support point of each shape, their difference, barycentric weight.
A_X, A_Y, B_X, B_Y, W_X, W_Y, WEIGHT = range(7)


def metric(s: Any) -> float:
    """Return the metric of the simplex: length of a segment, twice the area of a triangle."""
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


def solve_simplex(s: Any) -> None:
    """Reduce the simplex to the vertices of its closest point, with their weights."""
    if s.simplex_size == 2:
        solve_segment(s)
    elif s.simplex_size == 3:
        solve_triangle(s)


def keep_vertex(s: Any, which: int) -> None:
    """Reduce the simplex to a vertex."""
    s.simplex[which, WEIGHT] = 1.0
    s.simplex_size = 1
    if which > 0:
        copy_vertex(s, which, 0)


def keep_edge(s: Any, first: int, second: int, u: float, v: float) -> None:
    """Reduce the simplex to an edge with the weights u : v."""
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
        keep_vertex(s, 0)
        return
    u = dot(x1, y1, ex, ey)
    if u <= 0.0:
        keep_vertex(s, 1)
        return
    keep_edge(s, 0, 1, u, v)


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
        keep_vertex(s, 0)
    elif u01 > 0.0 and v01 > 0.0 and a2 <= 0.0:
        keep_edge(s, 0, 1, u01, v01)
    elif u02 > 0.0 and v02 > 0.0 and a1 <= 0.0:
        keep_edge(s, 0, 2, u02, v02)
        copy_vertex(s, 2, 1)
    elif u01 <= 0.0 and v12 <= 0.0:
        keep_vertex(s, 1)
    elif u02 <= 0.0 and u12 <= 0.0:
        keep_vertex(s, 2)
    elif u12 > 0.0 and v12 > 0.0 and a0 <= 0.0:
        keep_edge(s, 1, 2, u12, v12)
        copy_vertex(s, 2, 0)
    else:
        inverse = div(1.0, add(add(a0, a1), a2))
        s.simplex[0, WEIGHT] = mul(a0, inverse)
        s.simplex[1, WEIGHT] = mul(a1, inverse)
        s.simplex[2, WEIGHT] = mul(a2, inverse)
        s.simplex_size = 3


_MAX_ITERATIONS = 20


def support(d: Any, body: int, x: float, y: float) -> int:
    """Return the farthest vertex of a body in a direction; the puck has one, its centre."""
    best = 0
    if body != PUCK:
        maximum = vertex_projection(d, body, 0, x, y)
        for i in range(1, int(d.table[body, COUNT])):
            value = vertex_projection(d, body, i, x, y)
            if value > maximum:
                maximum = value
                best = i
    return best


def set_vertex(
    s: Any, d: Any, row: int, a: int, b: int, i: int, j: int,
    ax: float, ay: float, sin: float, cos: float, bx: float, by: float,
) -> None:  # fmt: skip
    """Set a row of the simplex from vertex i of a, a static body at (ax, ay), and vertex j of b."""
    wax, way = translated_vertex(d, a, i, ax, ay)
    wbx, wby = world_vertex(d, b, j, sin, cos, bx, by)
    s.support[row, 0] = i
    s.support[row, 1] = j
    s.simplex[row, A_X] = wax
    s.simplex[row, A_Y] = way
    s.simplex[row, B_X] = wbx
    s.simplex[row, B_Y] = wby
    s.simplex[row, W_X] = sub(wbx, wax)
    s.simplex[row, W_Y] = sub(wby, way)


def read_cache(
    s: Any, d: Any, a: int, b: int,
    ax: float, ay: float, sin: float, cos: float, bx: float, by: float,
) -> None:  # fmt: skip
    """Restore the last simplex at the new poses; restart it if its metric changed too much."""
    for row in range(s.simplex_size):
        i, j = s.support[row, 0], s.support[row, 1]
        set_vertex(s, d, row, a, b, i, j, ax, ay, sin, cos, bx, by)
        s.simplex[row, WEIGHT] = 0.0
    if s.simplex_size > 1:
        old = s.metric
        new = metric(s)
        if new < mul(0.5, old) or mul(2.0, old) < new or new < EPSILON:
            s.simplex_size = 0
    if s.simplex_size == 0:
        set_vertex(s, d, 0, a, b, 0, 0, ax, ay, sin, cos, bx, by)
        s.simplex[0, WEIGHT] = 1.0
        s.simplex_size = 1


def distance(
    s: Any, d: Any, a: int, b: int,
    ax: float, ay: float, sin: float, cos: float, bx: float, by: float,
) -> float:  # fmt: skip
    """Return the distance between two shapes without their skins; 0 if they overlap.

    Args:
        a: static body at (ax, ay).
        b: moving body at (bx, by), rotated by (sin, cos).
    """
    read_cache(s, d, a, b, ax, ay, sin, cos, bx, by)
    for _ in range(_MAX_ITERATIONS):
        size = s.simplex_size
        i0, j0 = s.support[0, 0], s.support[0, 1]
        i1, j1 = s.support[1, 0], s.support[1, 1]
        i2, j2 = s.support[2, 0], s.support[2, 1]
        solve_simplex(s)
        if s.simplex_size == 3:
            break
        if s.simplex_size == 1:
            dx, dy = -s.simplex[0, W_X], -s.simplex[0, W_Y]
        else:
            ex = sub(s.simplex[1, W_X], s.simplex[0, W_X])
            ey = sub(s.simplex[1, W_Y], s.simplex[0, W_Y])
            if cross(ex, ey, -s.simplex[0, W_X], -s.simplex[0, W_Y]) > 0.0:
                dx, dy = -ey, ex
            else:
                dx, dy = ey, -ex
        if dot(dx, dy, dx, dy) < EPSILON * EPSILON:
            break
        i = support(d, a, -dx, -dy)
        ox, oy = inverse_rotate(sin, cos, dx, dy)
        j = support(d, b, ox, oy)
        set_vertex(s, d, s.simplex_size, a, b, i, j, ax, ay, sin, cos, bx, by)
        repeated = i == i0 and j == j0
        repeated = repeated or (size > 1 and i == i1 and j == j1)
        if repeated or (size > 2 and i == i2 and j == j2):
            break
        s.simplex_size = s.simplex_size + 1
    s.metric = metric(s)
    return closest_distance(s)


def closest_distance(s: Any) -> float:
    """Return the distance of the closest points, given by the weights."""
    if s.simplex_size == 3:
        return 0.0
    ax, ay = s.simplex[0, A_X], s.simplex[0, A_Y]
    bx, by = s.simplex[0, B_X], s.simplex[0, B_Y]
    if s.simplex_size == 2:
        u, v = s.simplex[0, WEIGHT], s.simplex[1, WEIGHT]
        ax = add(mul(u, ax), mul(v, s.simplex[1, A_X]))
        ay = add(mul(u, ay), mul(v, s.simplex[1, A_Y]))
        bx = add(mul(u, bx), mul(v, s.simplex[1, B_X]))
        by = add(mul(u, by), mul(v, s.simplex[1, B_Y]))
    return length(sub(ax, bx), sub(ay, by))


def sensor_overlaps(s: Any, d: Any, goal: int) -> bool:
    """Return whether the puck overlaps a goal, including skins."""
    s.simplex_size = 0
    x, y = s.position[PUCK, 0], s.position[PUCK, 1]
    separation = distance(
        s, d, goal, PUCK, s.position[goal, 0], s.position[goal, 1], 0.0, 1.0, x, y
    )
    radius = add(POLYGON_RADIUS, PUCK_RADIUS)
    if separation > radius and separation > EPSILON:
        return sub(separation, radius) < OVERLAP_TOLERANCE
    return True


_MAX_PUSHES, _MAX_ROOT_ITERATIONS = 16, 50
_POINTS, _FACE_A, _FACE_B = 0, 1, 2  # kinds of a separating axis


def separating_axis(
    s: Any, d: Any, a: int, b: int, turns: float, beta: float
) -> tuple[int, float, float, float, float]:
    """Return the separating axis of the cached simplex.

    Returns:
        Kind, axis (in world coordinates, or in those of the body with the face), and a point of
        the face.
    """
    i0, j0 = s.support[0, 0], s.support[0, 1]
    i1, j1 = s.support[1, 0], s.support[1, 1]
    _, _, ax, ay = pose_at(s, d, a, 0.0, beta)
    sin, cos, bx, by = pose_at(s, d, b, turns, beta)
    if s.simplex_size == 1:
        px, py = world_vertex(d, b, j0, sin, cos, bx, by)
        qx, qy = translated_vertex(d, a, i0, ax, ay)
        nx, ny = normalized(sub(px, qx), sub(py, qy))
        return _POINTS, nx, ny, 0.0, 0.0
    if i0 == i1:
        x0, y0 = local_vertex(d, b, j0)
        x1, y1 = local_vertex(d, b, j1)
        nx, ny = normalized(sub(y1, y0), -sub(x1, x0))
        mx, my = mul(0.5, add(x0, x1)), mul(0.5, add(y0, y1))
        wx, wy = rotate(sin, cos, nx, ny)
        px, py = rotate(sin, cos, mx, my)
        px, py = add(px, bx), add(py, by)
        qx, qy = translated_vertex(d, a, i0, ax, ay)
        if dot(sub(qx, px), sub(qy, py), wx, wy) < 0.0:
            nx = -nx
            ny = -ny
        return _FACE_B, nx, ny, mx, my
    x0, y0 = local_vertex(d, a, i0)
    x1, y1 = local_vertex(d, a, i1)
    nx, ny = normalized(sub(y1, y0), -sub(x1, x0))
    mx, my = mul(0.5, add(x0, x1)), mul(0.5, add(y0, y1))
    px, py = world_vertex(d, b, j0, sin, cos, bx, by)
    if dot(sub(px, add(mx, ax)), sub(py, add(my, ay)), nx, ny) < 0.0:
        nx = -nx
        ny = -ny
    return _FACE_A, nx, ny, mx, my


def deepest_vertices(
    s: Any, d: Any, a: int, b: int, turns: float, beta: float, kind: int, nx: float, ny: float
) -> tuple[int, int]:
    """Return the deepest vertices of a and b along the axis; 0 for the body with the face."""
    sin, cos, _, _ = pose_at(s, d, b, turns, beta)
    if kind == _FACE_B:
        wx, wy = rotate(sin, cos, nx, ny)
        return support(d, a, -wx, -wy), 0
    ox, oy = inverse_rotate(sin, cos, -nx, -ny)
    j = support(d, b, ox, oy)
    if kind == _POINTS:
        return support(d, a, nx, ny), j
    return 0, j


def axis_separation(
    s: Any, d: Any, a: int, b: int, turns: float, beta: float,
    kind: int, nx: float, ny: float, mx: float, my: float, i: int, j: int,
) -> float:  # fmt: skip
    """Return the separation along the axis of vertices i and j, or of one and the face."""
    _, _, ax, ay = pose_at(s, d, a, 0.0, beta)
    sin, cos, bx, by = pose_at(s, d, b, turns, beta)
    if kind == _FACE_B:
        wx, wy = rotate(sin, cos, nx, ny)
        px, py = rotate(sin, cos, mx, my)
        qx, qy = translated_vertex(d, a, i, ax, ay)
        return dot(sub(qx, add(px, bx)), sub(qy, add(py, by)), wx, wy)
    px, py = world_vertex(d, b, j, sin, cos, bx, by)
    if kind == _POINTS:
        qx, qy = translated_vertex(d, a, i, ax, ay)
    else:
        qx, qy = add(mx, ax), add(my, ay)
    return dot(sub(px, qx), sub(py, qy), nx, ny)


def advance_along_axis(
    s: Any, d: Any, a: int, b: int, turns: float, begin: float, target: float,
    kind: int, nx: float, ny: float, mx: float, my: float,
) -> tuple[int, float]:  # fmt: skip
    """Advance along one axis, deepest point by deepest point.

    Returns:
        State and time. State 1: they touch at that time. -1: they never touch. 0: continue from
        that time with a new axis.
    """
    end = 1.0
    for _ in range(_MAX_PUSHES):
        i, j = deepest_vertices(s, d, a, b, turns, end, kind, nx, ny)
        s2 = axis_separation(s, d, a, b, turns, end, kind, nx, ny, mx, my, i, j)
        if s2 > add(target, TOI_TOLERANCE):
            return -1, 1.0
        if s2 > sub(target, TOI_TOLERANCE):
            return 0, end
        s1 = axis_separation(s, d, a, b, turns, begin, kind, nx, ny, mx, my, i, j)
        if s1 < sub(target, TOI_TOLERANCE):
            return -1, begin
        if s1 <= add(target, TOI_TOLERANCE):
            return 1, begin
        a1 = begin
        a2 = end
        for count in range(_MAX_ROOT_ITERATIONS):
            if count % 2 == 1:  # secant and bisection alternate
                t = add(a1, div(mul(sub(target, s1), sub(a2, a1)), sub(s2, s1)))
            else:
                t = mul(0.5, add(a1, a2))
            value = axis_separation(s, d, a, b, turns, t, kind, nx, ny, mx, my, i, j)
            if abs(sub(value, target)) < TOI_TOLERANCE:
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
    """Return the time of impact of a static body and b, as a fraction of the remaining sweeps.

    -1 if they do not touch.
    """
    turns = 0.0
    radius = PUCK_RADIUS
    if b != PUCK:
        turns = whole_turns(s.angle0[b])
        radius = RACKET_RADIUS
    target = max(LINEAR_SLOP, sub(add(POLYGON_RADIUS, radius), mul(3.0, LINEAR_SLOP)))
    begin = 0.0
    s.simplex_size = 0
    for _ in range(_MAX_ITERATIONS):
        _, _, ax, ay = pose_at(s, d, a, 0.0, begin)
        sin, cos, bx, by = pose_at(s, d, b, turns, begin)
        separation = distance(s, d, a, b, ax, ay, sin, cos, bx, by)
        if separation <= 0.0:
            return -1.0
        if separation < add(target, TOI_TOLERANCE):
            return begin
        kind, nx, ny, mx, my = separating_axis(s, d, a, b, turns, begin)
        state, begin = advance_along_axis(s, d, a, b, turns, begin, target, kind, nx, ny, mx, my)
        if state != 0:
            return begin if state > 0 else -1.0
    return -1.0
