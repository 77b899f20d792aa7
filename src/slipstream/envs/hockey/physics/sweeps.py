"""A body on its way through a step: its pose at any share of the way, and stops in between."""

from __future__ import annotations

import math
from typing import Any

from slipstream.core.single import add, cosine, div, mul, sine, single, sub
from slipstream.envs.hockey.physics.facts import (
    MIDDLE,
    PUCK,
    ROTATION,
    ROTATION_SQUARE,
    TRANSLATION,
    TRANSLATION_SQUARE,
    TWO_PI,
)
from slipstream.envs.hockey.physics.vectors import turn


def blend(beta: float, before: float, after: float) -> float:
    return add(mul(sub(1.0, beta), before), mul(beta, after))


def set_pose(s: Any, d: Any, body: int) -> None:
    """Place, sine and cosine from centre of mass and angle; nothing depends on the puck's angle."""
    x, y = single(s.center[body, 0]), single(s.center[body, 1])
    if body < PUCK:
        sin = sine(s.angle[body])
        cos = cosine(s.angle[body])
        mx, my = turn(sin, cos, d.table[body, MIDDLE], d.table[body, MIDDLE + 1])
        x = sub(x, mx)
        y = sub(y, my)
        s.sin[body] = sin
        s.cos[body] = cos
    s.place[body, 0] = x
    s.place[body, 1] = y


def advance_sweep(s: Any, body: int, alpha: float) -> None:
    """Moves the sweep's begin to a share of the step."""
    beta = div(sub(alpha, s.alpha[body]), sub(1.0, s.alpha[body]))
    s.center0[body, 0] = blend(beta, s.center0[body, 0], s.center[body, 0])
    s.center0[body, 1] = blend(beta, s.center0[body, 1], s.center[body, 1])
    s.angle0[body] = blend(beta, s.angle0[body], s.angle[body])
    s.alpha[body] = alpha


def stop_at(s: Any, d: Any, body: int, alpha: float) -> None:
    """Puts the body where it is at that share of the step."""
    advance_sweep(s, body, alpha)
    s.center[body, 0] = s.center0[body, 0]
    s.center[body, 1] = s.center0[body, 1]
    s.angle[body] = s.angle0[body]
    set_pose(s, d, body)


def whole_turns(angle: float) -> float:
    """The multiple of 2 pi that lies below an angle."""
    return mul(TWO_PI, math.floor(div(angle, TWO_PI)))


def pose_at(
    s: Any, d: Any, body: int, turns: float, beta: float
) -> tuple[float, float, float, float]:
    """Sine, cosine, x and y of the body's axes at a share of the rest of its way.

    Args:
        turns: taken off the angles first.
    """
    x = blend(beta, s.center0[body, 0], s.center[body, 0])
    y = blend(beta, s.center0[body, 1], s.center[body, 1])
    if body >= PUCK:
        return 0.0, 1.0, x, y
    angle = blend(beta, sub(s.angle0[body], turns), sub(s.angle[body], turns))
    sin = sine(angle)
    cos = cosine(angle)
    mx, my = turn(sin, cos, d.table[body, MIDDLE], d.table[body, MIDDLE + 1])
    return sin, cos, sub(x, mx), sub(y, my)


def integrate(s: Any, body: int, h: float) -> None:
    """Moves centre and angle by velocity and spin, which are cut where a step would be too far."""
    vx, vy, w = single(s.velocity[body, 0]), single(s.velocity[body, 1]), single(s.spin[body])
    tx, ty = mul(h, vx), mul(h, vy)
    square = add(mul(tx, tx), mul(ty, ty))
    if square > TRANSLATION_SQUARE:
        ratio = div(TRANSLATION, single(math.sqrt(square)))
        vx = mul(vx, ratio)
        vy = mul(vy, ratio)
    rotation = mul(h, w)
    if mul(rotation, rotation) > ROTATION_SQUARE:
        w = mul(w, div(ROTATION, abs(rotation)))
    s.center[body, 0] = add(s.center[body, 0], mul(h, vx))
    s.center[body, 1] = add(s.center[body, 1], mul(h, vy))
    if body < PUCK:
        s.angle[body] = add(s.angle[body], mul(h, w))
    s.velocity[body, 0] = vx
    s.velocity[body, 1] = vy
    s.spin[body] = w
