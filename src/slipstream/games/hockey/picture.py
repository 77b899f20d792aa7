"""A picture of the game: table, goals, rackets, puck, score."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.games.hockey.physics.bodies import BODIES, COUNT, MOVING, PUCK, PUCK_RADIUS, VERTEX

_SCALE, _WIDTH, _HEIGHT = 60, 600, 480  # pixels a metre, and in all
_TABLE, _LINE, _WALL, _PUCK = (236, 240, 241), (174, 182, 191), (44, 62, 80), (20, 20, 20)
_PLAYERS = ((192, 57, 43), (41, 128, 185))
_GOALS = (BODIES - 2, BODIES - 1)


def picture(s: Any, p: Any, d: Any) -> NDArray[np.uint8]:
    """uint8 [480, 600, 3] of a STATE record; an ordinary function, which is not compiled."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (_WIDTH, _HEIGHT), _TABLE)
    draw = ImageDraw.Draw(image)
    draw.line((_WIDTH // 2, 0, _WIDTH // 2, _HEIGHT), fill=_LINE, width=2)
    x, y = _WIDTH // 2, _HEIGHT // 2
    draw.ellipse((x - 100, y - 100, x + 100, y + 100), outline=_LINE, width=2)
    for body in range(MOVING, BODIES):
        color = _LINE if body in _GOALS else _WALL
        draw.polygon(_corners(s, d, body), fill=color)
    for player in range(PUCK):
        draw.polygon(_corners(s, d, player), fill=_PLAYERS[player])
    px, py = _pixel(float(s.place[PUCK, 0]), float(s.place[PUCK, 1]))
    r = PUCK_RADIUS * _SCALE
    draw.ellipse((px - r, py - r, px + r, py + r), fill=_PUCK)
    score = {1: "1 : 0", -1: "0 : 1"}.get(int(s.winner), "0 : 0")
    text, font = f"{score}   {int(s.time) * 0.02:.1f} s", ImageFont.load_default(size=16)
    draw.rectangle((_WIDTH // 2 - 70, 0, _WIDTH // 2 + 70, 19), fill=_TABLE)
    draw.text((_WIDTH // 2, 2), text, fill=_WALL, anchor="ma", font=font)
    return np.asarray(image, np.uint8)


def _corners(s: Any, d: Any, body: int) -> list[tuple[float, float]]:
    sin, cos = float(s.sin[body]), float(s.cos[body])
    x, y = float(s.place[body, 0]), float(s.place[body, 1])
    found = []
    for i in range(int(d.table[body, COUNT])):
        px, py = d.table[body, VERTEX + 2 * i], d.table[body, VERTEX + 2 * i + 1]
        found.append(_pixel(x + cos * px - sin * py, y + sin * px + cos * py))
    return found


def _pixel(x: float, y: float) -> tuple[float, float]:
    return x * _SCALE, _HEIGHT - y * _SCALE
