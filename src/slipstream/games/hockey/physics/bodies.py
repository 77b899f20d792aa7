"""Bodies with their hulls and masses, pairs of bodies, and Box2D's constants as float32 values.

There are 27 pairs of bodies that may collide, in Box2D's order: each static body with player 0,
player 1 and the puck, then these three among themselves. The first body of a pair is the static
one, or the racket, or player 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Moving bodies come first, then the static ones in the order of their creation.
PLAYER1, PLAYER2, PUCK = 0, 1, 2
MOVING = 3
TOP, BOTTOM, LEFT_TOP, LEFT_BOTTOM, RIGHT_TOP, RIGHT_BOTTOM, LEFT_GOAL, RIGHT_GOAL = range(3, 11)
BODIES = 11

PAIRS = 27
LEFT_SENSOR, RIGHT_SENSOR = 20, 23  # a goal with the puck
PLAYER1_PLAYER2, PLAYER1_PUCK, PLAYER2_PUCK = 24, 25, 26

# Columns of Data.table: one row per body, float32 values; a polygon has at most 8 vertices.
VERTEX, EDGE_NORMAL, CENTROID, POSITION, BOX = 0, 16, 32, 34, 36  # the last two: static bodies
MASS, INVERSE_MASS, INVERSE_INERTIA, LOCAL_CENTER, COUNT = 40, 41, 42, 43, 45
COLUMNS = 46

# More than all contacts that can exist at once; the solver ignores any further ones.
MAX_ISLAND_CONTACTS = 16


def _f(x: float) -> float:
    return float(np.float32(x))


PI = _f(3.14159265359)
EPSILON = 2.0**-23
MAX_FLOAT = _f(3.4028234663852886e38)
LINEAR_SLOP = _f(0.005)
POLYGON_RADIUS = _f(2.0 * LINEAR_SLOP)
STEP = _f(0.02)
VELOCITY_ITERATIONS, POSITION_ITERATIONS, TOI_POSITION_ITERATIONS = 180, 60, 20
VELOCITY_THRESHOLD = 1.0
BAUMGARTE = _f(0.2)
MAX_LINEAR_CORRECTION = _f(0.2)
TOI_BAUMGARTE = 0.75
SEPARATION_TOLERANCE = _f(-3.0 * LINEAR_SLOP)
TOI_SEPARATION_TOLERANCE = _f(-1.5 * LINEAR_SLOP)
MAX_TRANSLATION, MAX_TRANSLATION_SQUARED = 2.0, 4.0
MAX_ROTATION = _f(0.5 * PI)
MAX_ROTATION_SQUARED = _f(MAX_ROTATION * MAX_ROTATION)
AABB_EXTENSION, AABB_MULTIPLIER = _f(0.1), 2.0
MAX_SUB_STEPS = 8
TIME_TO_SLEEP = 0.5
LINEAR_SLEEP_TOLERANCE_SQUARED = _f(_f(0.01) * _f(0.01))
_SLEEP_SPIN = _f(_f(_f(2.0) / 180.0) * PI)
ANGULAR_SLEEP_TOLERANCE_SQUARED = _f(_SLEEP_SPIN * _SLEEP_SPIN)
MAX_CONDITION_NUMBER = 1000.0
OVERLAP_TOLERANCE = _f(10.0 * EPSILON)
TOI_TOLERANCE = _f(0.25 * LINEAR_SLOP)
MAX_TOI = _f(1.0 - OVERLAP_TOLERANCE)
TWO_PI = _f(2.0 * PI)
RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = _f(0.98), _f(0.001)

WALL_FRICTION, BOUNCE = _f(0.1), _f(0.95)
RACKET_FRICTION = float(np.sqrt(np.float32(WALL_FRICTION)))

RACKET_RADIUS = POLYGON_RADIUS
PUCK_RADIUS = _f(13.0 / 60.0)


def body_a(k: int) -> int:
    """Return the first body of a pair: the static one, the racket, or player 0."""
    if k < PLAYER1_PLAYER2:
        return MOVING + k // MOVING
    return 1 if k == PLAYER2_PUCK else 0


def body_b(k: int) -> int:
    """Return the second body of a pair, which moves."""
    if k < PLAYER1_PLAYER2:
        return k % MOVING
    return 1 if k == PLAYER1_PLAYER2 else PUCK


def friction(a: int, b: int) -> float:
    """Return the mixed friction, sqrt(a b): rackets have 1, all other bodies 0.1."""
    if b == PUCK:
        return RACKET_FRICTION if a < MOVING else WALL_FRICTION
    return 1.0 if a < MOVING else RACKET_FRICTION


def restitution(b: int) -> float:
    """Return the mixed restitution, max(a, b): only the puck's is not 0."""
    return BOUNCE if b == PUCK else 0.0


PIXELS_PER_METER = 60.0  # pixels per metre
_RACKET = ((-10, 20), (5, 20), (5, -20), (-10, -20), (-18, -10), (-21, 0), (-18, 10))
_WALL = ((-250, 10), (-250, -10), (250, -10), (250, 10))
_POST = ((-10, 135), (10, 128), (10, -5), (-10, -5))
_GOAL = ((-10, 75), (10, 75), (10, -75), (-10, -75))
_POST_X, _GOAL_X = 245 / PIXELS_PER_METER, 255 / PIXELS_PER_METER
_STATIC = (  # position, polygon, signs of x and y
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
    """Return the table of all bodies, float32 values [BODIES, COLUMNS]."""
    out = np.zeros((BODIES, COLUMNS))
    for player, side in enumerate((1, -1)):
        hull = _hull(
            [(side * x / PIXELS_PER_METER * 1.2, y / PIXELS_PER_METER * 1.2) for x, y in _RACKET]
        )
        _set_polygon(out[player], hull)
        _set_mass(out[player], hull, F(_RACKET_DENSITY))
    mass = F(_PUCK_DENSITY) * F(PI) * F(PUCK_RADIUS) * F(PUCK_RADIUS)
    inertia = mass * (F(0.5) * F(PUCK_RADIUS) * F(PUCK_RADIUS) + F(0))
    out[2, MASS : MASS + 3] = mass, F(1) / mass, F(1) / inertia
    for body, (position, vertices, x, y) in enumerate(_STATIC, MOVING):
        hull = _hull(
            [(x * px / PIXELS_PER_METER, y * py / PIXELS_PER_METER) for px, py in vertices]
        )
        _set_polygon(out[body], hull)
        out[body, POSITION : POSITION + 2] = np.asarray(position, F)
        world = hull + np.asarray(position, F)
        r = F(POLYGON_RADIUS)
        low, high = world.min(axis=0) - r, world.max(axis=0) + r
        out[body, BOX : BOX + 4] = *(low - F(AABB_EXTENSION)), *(high + F(AABB_EXTENSION))
    return out


def _set_polygon(row: NDArray[np.float64], hull: Points) -> None:
    """Write a polygon with counter-clockwise vertices into a body's row."""
    n = 2 * len(hull)
    row[COUNT] = len(hull)
    row[VERTEX : VERTEX + n] = hull.ravel()
    row[EDGE_NORMAL : EDGE_NORMAL + n] = _normals(hull).ravel()
    row[CENTROID : CENTROID + 2] = _centroid(hull)


def _cross(a: Points, b: Points) -> np.float32:
    return F(a[0] * b[1] - a[1] * b[0])


def _hull(points: Sequence[tuple[float, float]]) -> Points:
    """Order convex points by gift wrapping, from the right-most, lowest vertex."""
    p = np.asarray(points, F)
    start = max(range(len(p)), key=lambda i: (p[i, 0], -p[i, 1]))
    order, current = [start], start
    while True:
        candidate = 1 if current == 0 else 0
        for j in range(len(p)):
            if j != current and _cross(p[candidate] - p[current], p[j] - p[current]) < 0:
                candidate = j
        if candidate == start:
            return p[order]
        order.append(candidate)
        current = candidate


def _normals(hull: Points) -> Points:
    edges = np.roll(hull, -1, axis=0) - hull
    out = np.stack([edges[:, 1], -edges[:, 0]], axis=1)
    lengths = np.sqrt(out[:, 0] * out[:, 0] + out[:, 1] * out[:, 1])
    return np.asarray(out * (F(1) / lengths)[:, None], F)


def _centroid(hull: Points) -> Points:
    """Return the centroid, summed over the triangles between the origin and each edge."""
    total, area = np.zeros(2, F), F(0)
    for first, second in zip(hull, np.roll(hull, -1, axis=0), strict=True):
        part = F(0.5) * _cross(first, second)
        area += part
        total = total + part * (F(1) / F(3)) * (first + second)
    return np.asarray(total * (F(1) / area), F)


def _set_mass(row: NDArray[np.float64], hull: Points, density: np.float32) -> None:
    """Write mass, centre and moment of inertia, summed over triangles around the mean vertex."""
    third = F(1) / F(3)
    mean = np.zeros(2, F)
    for vertex in hull:
        mean = mean + vertex
    mean = mean * (F(1) / F(len(hull)))
    center, area, moment = np.zeros(2, F), F(0), F(0)
    for first, second in zip(hull - mean, np.roll(hull, -1, axis=0) - mean, strict=True):
        double = _cross(first, second)
        part = F(0.5) * double
        area += part
        center = center + part * third * (first + second)
        squares = first * first + second * first + second * second
        moment += (F(0.25) * third * double) * (squares[0] + squares[1])
    mass = density * area
    center = center * (F(1) / area)
    center_of_mass = center + mean
    inertia = density * moment
    inertia += mass * (_dot(center_of_mass, center_of_mass) - _dot(center, center))
    # Box2D sums the centre over the fixtures of a body; there is one.
    inverse = F(1) / mass
    local_center = mass * center_of_mass * inverse
    inertia -= mass * _dot(local_center, local_center)
    row[MASS : MASS + 3] = mass, inverse, F(1) / inertia
    row[LOCAL_CENTER : LOCAL_CENTER + 2] = local_center


def _dot(a: Points, b: Points) -> np.float32:
    return F(a[0] * b[0] + a[1] * b[1])
