"""Hulls, masses and places of all bodies, in float32 as Box2D calculates them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.games.hockey.physics.bodies import (
    BODIES,
    BOX,
    CENTROID,
    COLUMNS,
    COUNT,
    EXTENSION,
    MASS,
    MIDDLE,
    MOVING,
    OUTWARD,
    PI,
    PLACE,
    POLYGON_RADIUS,
    PUCK_RADIUS,
    VERTEX,
)

SCALE = 60.0  # pixels a metre
_RACKET = ((-10, 20), (5, 20), (5, -20), (-10, -20), (-18, -10), (-21, 0), (-18, 10))
_WALL = ((-250, 10), (-250, -10), (250, -10), (250, 10))
_POST = ((-10, 135), (10, 128), (10, -5), (-10, -5))
_GOAL = ((-10, 75), (10, 75), (10, -75), (-10, -75))
_POST_X, _GOAL_X = 245 / SCALE, 255 / SCALE
_STATIC = (  # place, polygon, signs of x and y
    ((5.0, 7.5), _WALL, 1, 1),
    ((5.0, 0.5), _WALL, 1, 1),
    ((5.0 - _POST_X, 7.5), _POST, 1, -1),
    ((5.0 - _POST_X, 0.5), _POST, 1, 1),
    ((5.0 + _POST_X, 7.5), _POST, -1, -1),
    ((5.0 + _POST_X, 0.5), _POST, -1, 1),
    ((5.0 - _GOAL_X, 4.0), _GOAL, 1, 1),
    ((5.0 + _GOAL_X, 4.0), _GOAL, 1, 1),
)
_RACKET_DENSITY, _PUCK_DENSITY = 200.0 / 1.2, 7.0

F = np.float32
Points = NDArray[np.float32]


def table() -> NDArray[np.float64]:
    """All bodies, float32 numbers [BODIES, COLUMNS], as `physics.bodies` names the columns."""
    out = np.zeros((BODIES, COLUMNS))
    for player, side in enumerate((1, -1)):
        hull = _hull([(side * x / SCALE * 1.2, y / SCALE * 1.2) for x, y in _RACKET])
        _keep(out[player], hull)
        _weigh(out[player], hull, F(_RACKET_DENSITY))
    mass = F(_PUCK_DENSITY) * F(PI) * F(PUCK_RADIUS) * F(PUCK_RADIUS)
    inertia = mass * (F(0.5) * F(PUCK_RADIUS) * F(PUCK_RADIUS) + F(0))
    out[2, MASS : MASS + 3] = mass, F(1) / mass, F(1) / inertia
    for body, (place, points, x, y) in enumerate(_STATIC, MOVING):
        hull = _hull([(x * px / SCALE, y * py / SCALE) for px, py in points])
        _keep(out[body], hull)
        out[body, PLACE : PLACE + 2] = np.asarray(place, F)
        world = hull + np.asarray(place, F)
        r = F(POLYGON_RADIUS)
        low, high = world.min(axis=0) - r, world.max(axis=0) + r
        out[body, BOX : BOX + 4] = *(low - F(EXTENSION)), *(high + F(EXTENSION))
    return out


def _keep(row: NDArray[np.float64], hull: Points) -> None:
    """Writes a polygon into a body's row: its corners are counter-clockwise."""
    n = 2 * len(hull)
    row[COUNT] = len(hull)
    row[VERTEX : VERTEX + n] = hull.ravel()
    row[OUTWARD : OUTWARD + n] = _normals(hull).ravel()
    row[CENTROID : CENTROID + 2] = _centroid(hull)


def _cross(a: Points, b: Points) -> np.float32:
    return F(a[0] * b[1] - a[1] * b[0])


def _hull(points: Sequence[tuple[float, float]]) -> Points:
    """Gift wrapping from the right-most vertex, the lower one of two; the points are convex."""
    p = np.asarray(points, F)
    start = max(range(len(p)), key=lambda i: (p[i, 0], -p[i, 1]))
    order, at = [start], start
    while True:
        following = 1 if at == 0 else 0
        for j in range(len(p)):
            if j != at and _cross(p[following] - p[at], p[j] - p[at]) < 0:
                following = j
        if following == start:
            return p[order]
        order.append(following)
        at = following


def _normals(hull: Points) -> Points:
    edges = np.roll(hull, -1, axis=0) - hull
    out = np.stack([edges[:, 1], -edges[:, 0]], axis=1)
    size = np.sqrt(out[:, 0] * out[:, 0] + out[:, 1] * out[:, 1])
    return np.asarray(out * (F(1) / size)[:, None], F)


def _centroid(hull: Points) -> Points:
    """Centroid of the triangles between the origin and each edge, which may lie outside."""
    total, area = np.zeros(2, F), F(0)
    for one, two in zip(hull, np.roll(hull, -1, axis=0), strict=True):
        part = F(0.5) * _cross(one, two)
        area += part
        total = total + part * (F(1) / F(3)) * (one + two)
    return np.asarray(total * (F(1) / area), F)


def _weigh(row: NDArray[np.float64], hull: Points, density: np.float32) -> None:
    """Mass, centre and moment of inertia, by triangles around the mean of the vertices."""
    third = F(1) / F(3)
    mean = np.zeros(2, F)
    for vertex in hull:
        mean = mean + vertex
    mean = mean * (F(1) / F(len(hull)))
    center, area, moment = np.zeros(2, F), F(0), F(0)
    for one, two in zip(hull - mean, np.roll(hull, -1, axis=0) - mean, strict=True):
        double = _cross(one, two)
        part = F(0.5) * double
        area += part
        center = center + part * third * (one + two)
        squares = one * one + two * one + two * two
        moment += (F(0.25) * third * double) * (squares[0] + squares[1])
    mass = density * area
    center = center * (F(1) / area)
    own = center + mean
    inertia = density * moment
    inertia += mass * (_dot(own, own) - _dot(center, center))
    # The body's centre is summed over its fixtures, of which there is one.
    inverse = F(1) / mass
    middle = mass * own * inverse
    inertia -= mass * _dot(middle, middle)
    row[MASS : MASS + 3] = mass, inverse, F(1) / inertia
    row[MIDDLE : MIDDLE + 2] = middle


def _dot(a: Points, b: Points) -> np.float32:
    return F(a[0] * b[0] + a[1] * b[1])
