"""Placing the bodies for a game."""

from __future__ import annotations

from typing import Any

from slipstream.core.random import uniform
from slipstream.core.single import add, div, mul, single, sub
from slipstream.envs.hockey.control import CENTER_Y, SHOT, STEP_SINGLE
from slipstream.envs.hockey.physics.boxes import box
from slipstream.envs.hockey.physics.facts import (
    BODIES,
    BOX,
    EXTENSION,
    MASS,
    MIDDLE,
    MOVING,
    PLACE,
    PUCK,
)
from slipstream.envs.hockey.physics.vectors import length
from slipstream.envs.hockey.record import NORMAL, TRAIN_DEFENSE, TRAIN_SHOOTING

NORMAL_LIMIT, TRAIN_LIMIT = 250, 80


def between(s: Any, low: float, high: float) -> float:
    return low + (high - low) * uniform(s)


def draw_mode(s: Any, p: Any) -> int:
    """By weight; nothing is drawn where it is settled."""
    total = p.normal + p.shooting + p.defense
    most = max(p.normal, p.shooting, p.defense)
    at = 0.5 * total if most == total else total * uniform(s)
    if at < p.normal:
        return NORMAL
    return TRAIN_SHOOTING if at < p.normal + p.shooting else TRAIN_DEFENSE


def place_all(s: Any, p: Any, d: Any) -> None:
    """Draws how the game begins: its mode, then where everything stands."""
    s.mode = draw_mode(s, p)
    s.limit = NORMAL_LIMIT if s.mode == NORMAL else TRAIN_LIMIT
    x, y = 8.0, CENTER_Y
    if s.mode != NORMAL:
        x = 8.0 + between(s, -10.0 / 3.0, 10.0 / 6.0)
        y = CENTER_Y + between(s, -2.0, 2.0)
    if s.mode == TRAIN_DEFENSE:
        px = 5.0 + between(s, 0.0, 10.0 / 3.0)
        py = CENTER_Y + 0.8 * between(s, -4.0, 4.0)
        aim = CENTER_Y + 0.6 * between(s, -1.25, 1.25)
    else:
        left = s.mode == TRAIN_SHOOTING or uniform(s) < 0.5
        px = 5.0 + (-1.0 if left else 1.0) * between(s, 1.0, 2.0)
        py = CENTER_Y + between(s, -1.0, 1.0)
        aim = 0.0
    put(s, d, x, y, px, py)
    if s.mode == TRAIN_DEFENSE:
        kick(s, d, aim)


def put(s: Any, d: Any, x: float, y: float, px: float, py: float) -> None:
    """Makes all bodies, at rest: player 0 at home, player 1 at (x, y), the puck at (px, py)."""
    for body in range(BODIES):
        s.cos[body] = 1.0
        if body >= MOVING:
            for axis in range(2):
                s.place[body, axis] = d.table[body, PLACE + axis]
                s.center[body, axis] = d.table[body, PLACE + axis]
                s.center0[body, axis] = d.table[body, PLACE + axis]
            for side in range(4):
                s.fat[body, side] = d.table[body, BOX + side]
    s.place[0, 0] = 2.0
    s.place[0, 1] = CENTER_Y
    s.place[1, 0] = single(x)
    s.place[1, 1] = single(y)
    s.place[PUCK, 0] = single(px)
    s.place[PUCK, 1] = single(py)
    for body in range(MOVING):
        for axis in range(2):
            s.center[body, axis] = add(d.table[body, MIDDLE + axis], s.place[body, axis])
            s.center0[body, axis] = s.center[body, axis]
        left, bottom, right, top = box(d, body, 0.0, 1.0, s.place[body, 0], s.place[body, 1])
        s.fat[body, 0] = sub(left, EXTENSION)
        s.fat[body, 1] = sub(bottom, EXTENSION)
        s.fat[body, 2] = add(right, EXTENSION)
        s.fat[body, 3] = add(top, EXTENSION)
        s.moved[body] = True
        s.awake[body] = True
    s.fresh = True


def kick(s: Any, d: Any, aim: float) -> None:
    """Shoots the puck at a point of the left border in the first step."""
    x, y = s.place[PUCK, 0], sub(s.place[PUCK, 1], single(aim))
    size = length(x, y)
    mass = d.table[PUCK, MASS]
    s.force[PUCK, 0] = -div(mul(mul(div(x, size), SHOT), mass), STEP_SINGLE)
    s.force[PUCK, 1] = -div(mul(mul(div(y, size), SHOT), mass), STEP_SINGLE)
