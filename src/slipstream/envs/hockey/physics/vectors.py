"""float32 arithmetic on pairs of numbers, rounded after every operation."""

from __future__ import annotations

from slipstream.core.single import add, div, mul, root, sub
from slipstream.envs.hockey.physics.facts import EPSILON


def dot(ax: float, ay: float, bx: float, by: float) -> float:
    return add(mul(ax, bx), mul(ay, by))


def cross(ax: float, ay: float, bx: float, by: float) -> float:
    return sub(mul(ax, by), mul(ay, bx))


def length(x: float, y: float) -> float:
    return root(dot(x, y, x, y))


def normal_of(x: float, y: float) -> tuple[float, float]:
    """The vector of length 1; one that is shorter than EPSILON stays as it is."""
    size = length(x, y)
    if size < EPSILON:
        return x, y
    scale = div(1.0, size)
    return mul(x, scale), mul(y, scale)


def turn(sin: float, cos: float, x: float, y: float) -> tuple[float, float]:
    """From a body's axes to the world's."""
    return sub(mul(cos, x), mul(sin, y)), add(mul(sin, x), mul(cos, y))


def turn_back(sin: float, cos: float, x: float, y: float) -> tuple[float, float]:
    """From the world's axes to a body's."""
    return add(mul(cos, x), mul(sin, y)), add(mul(-sin, x), mul(cos, y))
