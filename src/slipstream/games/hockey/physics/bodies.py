"""Bodies and pairs of them, the columns of their table, and Box2D's constants as float32 numbers.

Fixtures may collide in 27 pairs, numbered as Box2D sorts them by the order in which the bodies were
made: each static body with player 0, player 1 and the puck, then the three among themselves. In
every pair the first body is the static one, or the racket, or player 0.
"""

from __future__ import annotations

import numpy as np

# Bodies. Those that move come first; the others stand in the order in which they are made.
ONE, TWO, PUCK = 0, 1, 2
MOVING = 3
TOP, BOTTOM, LEFT_TOP, LEFT_BOTTOM, RIGHT_TOP, RIGHT_BOTTOM, LEFT_GOAL, RIGHT_GOAL = range(3, 11)
BODIES = 11

PAIRS = 27
LEFT_SENSOR, RIGHT_SENSOR = 20, 23  # a goal's sensor with the puck
ONE_TWO, ONE_PUCK, TWO_PUCK = 24, 25, 26

# Columns of Data.table: one row a body, float32 numbers; a polygon has 8 corners at most.
VERTEX, OUTWARD, CENTROID, PLACE, BOX = 0, 16, 32, 34, 36  # polygons' corners and normals; statics
MASS, INVERSE_MASS, INVERSE_INERTIA, MIDDLE, COUNT = 40, 41, 42, 43, 45
COLUMNS = 46

# An island of all that can touch at once has fewer; more are left out of the solver.
MOST = 16


def _f(x: float) -> float:
    return float(np.float32(x))


PI = _f(3.14159265359)
EPSILON = 2.0**-23
LARGEST = _f(3.4028234663852886e38)
SLOP = _f(0.005)
POLYGON_RADIUS = _f(2.0 * SLOP)
STEP = _f(0.02)
VELOCITY_SWEEPS, POSITION_SWEEPS, TOI_POSITION_SWEEPS = 180, 60, 20
RESTITUTION_SPEED = 1.0
CORRECTION = _f(0.2)
LARGEST_CORRECTION = _f(0.2)
TOI_CORRECTION = 0.75
SOLVED = _f(-3.0 * SLOP)
TOI_SOLVED = _f(-1.5 * SLOP)
TRANSLATION, TRANSLATION_SQUARE = 2.0, 4.0
ROTATION = _f(0.5 * PI)
ROTATION_SQUARE = _f(ROTATION * ROTATION)
EXTENSION, PREDICTED = _f(0.1), 2.0
SUB_STEPS = 8
SLEEP_TIME = 0.5
SLEEP_SPEED_SQUARE = _f(_f(0.01) * _f(0.01))
_SLEEP_SPIN = _f(_f(_f(2.0) / 180.0) * PI)
SLEEP_SPIN_SQUARE = _f(_SLEEP_SPIN * _SLEEP_SPIN)
CONDITION = 1000.0
OVERLAP = _f(10.0 * EPSILON)
TOLERANCE = _f(0.25 * SLOP)
LAST_TOI = _f(1.0 - OVERLAP)
TWO_PI = _f(2.0 * PI)
RELATIVE, ABSOLUTE = _f(0.98), _f(0.001)

WALL_FRICTION, BOUNCE = _f(0.1), _f(0.95)
RACKET_FRICTION = float(np.sqrt(np.float32(WALL_FRICTION)))

RACKET_RADIUS = POLYGON_RADIUS
PUCK_RADIUS = _f(13.0 / 60.0)


def body_a(k: int) -> int:
    """The static body of a pair, or the racket, or player 0."""
    if k < ONE_TWO:
        return MOVING + k // MOVING
    return 1 if k == TWO_PUCK else 0


def body_b(k: int) -> int:
    """The other body of a pair, which moves."""
    if k < ONE_TWO:
        return k % MOVING
    return 1 if k == ONE_TWO else PUCK


def friction(a: int, b: int) -> float:
    """Root of the product of both bodies' coefficients: 1 of a racket, 0.1 of all others."""
    if b == PUCK:
        return RACKET_FRICTION if a < MOVING else WALL_FRICTION
    return 1.0 if a < MOVING else RACKET_FRICTION


def bounce(b: int) -> float:
    """The larger restitution of both bodies: only the puck has any."""
    return BOUNCE if b == PUCK else 0.0
