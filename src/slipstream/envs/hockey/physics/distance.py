"""Distance of two convex shapes by GJK (Gilbert, Johnson, Keerthi 1988), from a cached simplex.

The first shape is a polygon with a pose, the second a racket or the puck's centre with another.
"""

from __future__ import annotations

from typing import Any

from slipstream.core.single import add, mul, sub
from slipstream.envs.hockey.physics.facts import (
    COUNT,
    EPSILON,
    OVERLAP,
    POLYGON_RADIUS,
    PUCK,
    PUCK_RADIUS,
)
from slipstream.envs.hockey.physics.hulls import placed, reach, shifted
from slipstream.envs.hockey.physics.simplex import metric, solve
from slipstream.envs.hockey.physics.vectors import cross, dot, length, turn_back
from slipstream.envs.hockey.record import A_X, A_Y, B_X, B_Y, W_X, W_Y, WEIGHT

_ROUNDS = 20


def support(d: Any, body: int, x: float, y: float) -> int:
    """The vertex of a body that lies farthest in a direction; the puck's centre is its only one."""
    best = 0
    if body != PUCK:
        most = reach(d, body, 0, x, y)
        for i in range(1, int(d.table[body, COUNT])):
            value = reach(d, body, i, x, y)
            if value > most:
                most = value
                best = i
    return best


def set_vertex(
    s: Any, d: Any, row: int, a: int, b: int, i: int, j: int,
    ax: float, ay: float, sin: float, cos: float, bx: float, by: float,
) -> None:  # fmt: skip
    """Row of the simplex from vertex i of a, which stands at (ax, ay) unturned, and j of b."""
    wax, way = shifted(d, a, i, ax, ay)
    wbx, wby = placed(d, b, j, sin, cos, bx, by)
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
    """The last simplex at the new poses, or the first vertices where it has become another."""
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
    """Distance between the polygons without their skins; 0 where they overlap.

    Args:
        a: a static body at (ax, ay); b: a moving one at (bx, by), turned.
    """
    read_cache(s, d, a, b, ax, ay, sin, cos, bx, by)
    for _ in range(_ROUNDS):
        size = s.simplex_size
        i0, j0 = s.support[0, 0], s.support[0, 1]
        i1, j1 = s.support[1, 0], s.support[1, 1]
        i2, j2 = s.support[2, 0], s.support[2, 1]
        solve(s)
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
        ox, oy = turn_back(sin, cos, dx, dy)
        j = support(d, b, ox, oy)
        set_vertex(s, d, s.simplex_size, a, b, i, j, ax, ay, sin, cos, bx, by)
        known = i == i0 and j == j0
        known = known or (size > 1 and i == i1 and j == j1)
        if known or (size > 2 and i == i2 and j == j2):
            break
        s.simplex_size = s.simplex_size + 1
    s.metric = metric(s)
    return between(s)


def between(s: Any) -> float:
    """Distance of the points that the weights name."""
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
    """Whether the puck overlaps a goal, skins included."""
    s.simplex_size = 0
    x, y = s.place[PUCK, 0], s.place[PUCK, 1]
    apart = distance(s, d, goal, PUCK, s.place[goal, 0], s.place[goal, 1], 0.0, 1.0, x, y)
    radius = add(POLYGON_RADIUS, PUCK_RADIUS)
    if apart > radius and apart > EPSILON:
        return sub(apart, radius) < OVERLAP
    return True
