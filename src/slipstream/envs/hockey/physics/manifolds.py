"""Where two fixtures touch: the points of a polygon and the puck, and those of two polygons."""

from __future__ import annotations

from typing import Any

from slipstream.core.single import add, mul, single, sub
from slipstream.envs.hockey.physics.bounds import is_far
from slipstream.envs.hockey.physics.facts import (
    COUNT,
    EPSILON,
    LARGEST,
    MOVING,
    POLYGON_RADIUS,
    PUCK,
    PUCK_RADIUS,
)
from slipstream.envs.hockey.physics.hulls import corner, outward, slope
from slipstream.envs.hockey.physics.pairs import body_a, body_b
from slipstream.envs.hockey.physics.polygons import collide_polygons
from slipstream.envs.hockey.physics.vectors import dot, normal_of, turn_back


def evaluate(s: Any, d: Any, k: int) -> None:
    """Fills the pair's points, without impulses."""
    a = body_a(k)
    b = body_b(k)
    if b == PUCK:
        collide_puck(s, d, k, a)
    elif a >= MOVING and is_far(s, d, a, b):
        s.points[k] = 0
    else:
        collide_polygons(s, d, k, a, b)


def collide_puck(s: Any, d: Any, k: int, a: int) -> None:
    """A polygon and the puck: one point, the puck's centre, against a face or a corner."""
    s.points[k] = 0
    x, y = turn_back(
        single(s.sin[a]),
        single(s.cos[a]),
        sub(s.place[PUCK, 0], s.place[a, 0]),
        sub(s.place[PUCK, 1], s.place[a, 1]),
    )
    radius = add(POLYGON_RADIUS, PUCK_RADIUS)
    n = int(d.table[a, COUNT])
    face = 0
    separation = -LARGEST
    for i in range(n):
        cx, cy = corner(d, a, i)
        apart = slope(d, a, i, sub(x, cx), sub(y, cy))
        if apart > radius:
            return
        if apart > separation:
            separation = apart
            face = i
    following = face + 1 if face + 1 < n else 0
    x1, y1 = corner(d, a, face)
    x2, y2 = corner(d, a, following)
    nx, ny = outward(d, a, face)
    fx, fy = mul(0.5, add(x1, x2)), mul(0.5, add(y1, y2))
    if separation < EPSILON:  # the puck's centre is inside
        touch(s, k, nx, ny, fx, fy)
        return
    ex, ey = sub(x2, x1), sub(y2, y1)
    u1 = dot(sub(x, x1), sub(y, y1), ex, ey)
    u2 = dot(sub(x, x2), sub(y, y2), -ex, -ey)
    if u1 <= 0.0 or u2 <= 0.0:
        cx = x1 if u1 <= 0.0 else x2
        cy = y1 if u1 <= 0.0 else y2
        px, py = sub(x, cx), sub(y, cy)
        if dot(px, py, px, py) > mul(radius, radius):
            return
        nx, ny = normal_of(px, py)
        touch(s, k, nx, ny, cx, cy)
    elif dot(sub(x, fx), sub(y, fy), nx, ny) <= radius:
        touch(s, k, nx, ny, fx, fy)


def touch(s: Any, k: int, nx: float, ny: float, x: float, y: float) -> None:
    """One point at the puck's centre."""
    s.points[k] = 1
    s.flipped[k] = False
    s.face[k, 0] = nx
    s.face[k, 1] = ny
    s.face[k, 2] = x
    s.face[k, 3] = y
    s.spot[k, 0, 0] = 0.0
    s.spot[k, 0, 1] = 0.0
    s.feature[k, 0] = 0
