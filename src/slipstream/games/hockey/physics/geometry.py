"""Float32 arithmetic on pairs of numbers, rounded after every operation; corners and normals."""

from __future__ import annotations

from typing import Any

from slipstream.games.hockey.physics.bodies import EPSILON, OUTWARD, VERTEX
from slipstream.jit.float32 import add, div, mul, root, single, sub


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


def corner(d: Any, body: int, i: int) -> tuple[float, float]:
    """In the body's axes."""
    return single(d.table[body, VERTEX + 2 * i]), single(d.table[body, VERTEX + 2 * i + 1])


def outward(d: Any, body: int, i: int) -> tuple[float, float]:
    """Normal of the edge that begins at corner i, in the body's axes."""
    return single(d.table[body, OUTWARD + 2 * i]), single(d.table[body, OUTWARD + 2 * i + 1])


def reach(d: Any, body: int, i: int, x: float, y: float) -> float:
    """How far corner i lies in a direction of the body's axes."""
    px, py = corner(d, body, i)
    return dot(px, py, x, y)


def slope(d: Any, body: int, i: int, x: float, y: float) -> float:
    """How much the normal of edge i points in a direction of the body's axes."""
    nx, ny = outward(d, body, i)
    return dot(nx, ny, x, y)


def placed(
    d: Any, body: int, i: int, sin: float, cos: float, x: float, y: float
) -> tuple[float, float]:
    """Corner i in the world, of a body that stands turned at (x, y)."""
    px, py = corner(d, body, i)
    px, py = turn(sin, cos, px, py)
    return add(px, x), add(py, y)


def shifted(d: Any, body: int, i: int, x: float, y: float) -> tuple[float, float]:
    """Corner i in the world, of a static body, which is not turned, at (x, y)."""
    px, py = corner(d, body, i)
    return add(px, x), add(py, y)
