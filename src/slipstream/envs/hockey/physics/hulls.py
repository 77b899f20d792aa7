"""Corners and normals of a body's polygon."""

from __future__ import annotations

from typing import Any

from slipstream.core.single import add, single
from slipstream.envs.hockey.physics.facts import OUTWARD, VERTEX
from slipstream.envs.hockey.physics.vectors import dot, turn


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
