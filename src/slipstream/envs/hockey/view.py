"""What a player sees: everything from its own side, turned by half a turn for player 1."""

from __future__ import annotations

from typing import Any

from slipstream.core.single import sub
from slipstream.envs.hockey.control import CENTER_X, CENTER_Y
from slipstream.envs.hockey.physics.facts import PUCK


def seen(s: Any, player: int, place: int) -> float:
    """Number `place` of 16: six of the own racket, six of the other one, four of the puck."""
    sign = 1.0 - 2.0 * player
    body = player if place < 6 else (1 - player if place < 12 else PUCK)
    what = place % 6
    if body == PUCK and what > 1:
        return float(sign * s.velocity[PUCK, what - 2])
    if what == 0:
        return sign * sub(s.place[body, 0], CENTER_X)
    if what == 1:
        return sign * sub(s.place[body, 1], CENTER_Y)
    if what == 2:
        return float(s.angle[body])
    if what == 5:
        return float(s.spin[body])
    return float(sign * s.velocity[body, what - 3])


def observe(s: Any, p: Any, d: Any, player: int, out: Any) -> None:
    """16 numbers, and with keep mode how many steps each player may hold the puck."""
    for place in range(16):
        out[place] = seen(s, player, place)
    if p.keep:
        out[16] = float(s.holds[player])
        out[17] = float(s.holds[1 - player])
