"""The position solver: pushes overlapping bodies apart, a share of the overlap at a time."""

from __future__ import annotations

from typing import Any

from slipstream.core.single import add, div, mul, sub
from slipstream.envs.hockey.physics.constraints import inverse_effective, masses, point_radius
from slipstream.envs.hockey.physics.facts import LARGEST_CORRECTION, MOVING, SLOP
from slipstream.envs.hockey.physics.pairs import body_a, body_b
from slipstream.envs.hockey.physics.polygons import world
from slipstream.envs.hockey.physics.sweeps import set_pose
from slipstream.envs.hockey.physics.vectors import cross, dot, turn


def push_apart(s: Any, d: Any, k: int, share: float, still_a: bool, still_b: bool) -> float:
    """Moves both bodies of a pair, point by point.

    Args:
        share: of the overlap.
        still_a, still_b: that body is not to be moved.

    Returns:
        the least separation found, 0 or less.
    """
    a, b = body_a(k), body_b(k)
    ma, ia, mb, ib = masses(d, a, b)
    if still_a:
        ma = 0.0
        ia = 0.0
    if still_b:
        mb = 0.0
        ib = 0.0
    ra, rb = point_radius(d, a), point_radius(d, b)
    one = b if s.flipped[k] else a
    two = a if s.flipped[k] else b
    least = 0.0
    for j in range(s.points[k]):
        nx, ny = turn(s.sin[one], s.cos[one], s.face[k, 0], s.face[k, 1])
        planex, planey = world(s, one, s.face[k, 2], s.face[k, 3])
        x, y = world(s, two, s.spot[k, j, 0], s.spot[k, j, 1])
        apart = sub(sub(dot(sub(x, planex), sub(y, planey), nx, ny), ra), rb)
        if s.flipped[k]:
            nx = -nx
            ny = -ny
        rax, ray = sub(x, s.center[a, 0]), sub(y, s.center[a, 1])
        rbx, rby = sub(x, s.center[b, 0]), sub(y, s.center[b, 1])
        least = min(least, apart)
        error = max(-LARGEST_CORRECTION, min(mul(share, add(apart, SLOP)), 0.0))
        k_n = inverse_effective(ma, ia, mb, ib, cross(rax, ray, nx, ny), cross(rbx, rby, nx, ny))
        impulse = div(-error, k_n) if k_n > 0.0 else 0.0
        px, py = mul(impulse, nx), mul(impulse, ny)
        if a < MOVING and not still_a:
            move(s, d, a, -mul(ma, px), -mul(ma, py), -mul(ia, cross(rax, ray, px, py)))
        if not still_b:
            move(s, d, b, mul(mb, px), mul(mb, py), mul(ib, cross(rbx, rby, px, py)))
    return least


def move(s: Any, d: Any, body: int, dx: float, dy: float, turned: float) -> None:
    s.center[body, 0] = add(s.center[body, 0], dx)
    s.center[body, 1] = add(s.center[body, 1], dy)
    s.angle[body] = add(s.angle[body], turned)
    set_pose(s, d, body)
