"""What a player sees, and players that need no training: the original's bots, random, idle.

Everything is seen from the own side, turned by half a turn for player 1.
"""

from __future__ import annotations

import math
from typing import Any

from slipstream.core.random import uniform
from slipstream.games.hockey.control import CENTER_X, CENTER_Y
from slipstream.games.hockey.physics.bodies import PUCK
from slipstream.games.hockey.record import AGENT, IDLE, RANDOM, STRONG, WEAK
from slipstream.jit.float32 import sub


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


def choose(s: Any, agent: float, weak: float, strong: float, unskilled: float, idle: float) -> int:
    """Draws who acts in a seat, by weights; nothing is drawn where it is settled."""
    total = agent + weak + strong + unskilled + idle
    most = max(agent, weak, strong, unskilled, idle)
    at = 0.5 * total if most == total else total * uniform(s)
    if at < agent:
        return AGENT
    if at < agent + weak:
        return WEAK
    if at < agent + weak + strong:
        return STRONG
    if at < agent + weak + strong + unskilled:
        return RANDOM
    return IDLE


def opponent(s: Any, p: Any, d: Any, player: int, out: Any) -> None:
    """Writes the action of the player's kind into a row of 4 numbers."""
    kind = s.kind[player]
    for i in range(4):
        out[i] = 0.0
    if kind == RANDOM:
        for i in range(4):
            out[i] = 2.0 * uniform(s) - 1.0
    elif kind in (WEAK, STRONG):
        bot(s, player, 0.5 if kind == WEAK else 10.0, out)


def bot(s: Any, player: int, gain: float, out: Any) -> None:
    """Goes behind the puck and strikes it, else home; the racket swings all the time."""
    s.phase[player] = s.phase[player] + 0.2 * uniform(s)
    x, y, px, py = seen(s, player, 0), seen(s, player, 1), seen(s, player, 12), seen(s, player, 13)
    tx = -3.5
    ty = 0.0
    if seen(s, player, 14) < 30.0 / 60.0:
        ty = py
        if x < px and abs(y - py) < 30.0 / 60.0:
            apart = math.sqrt((x - px) * (x - px) + (y - py) * (y - py))
            tx = px + 0.2
            ty = py + seen(s, player, 15) * apart * 0.1
    angle = math.pi / 3.0 * math.sin(s.phase[player])
    out[0] = steer(tx - x, seen(s, player, 3), gain, 0.1)
    out[1] = steer(ty - y, seen(s, player, 4), gain / 5.0, 0.1)
    out[2] = steer(angle - seen(s, player, 2), seen(s, player, 5), gain / 2.0, 1.0)
    held = s.holds[player]
    out[3] = 1.0 if held > 0 and held < 7 else 0.0


def steer(error: float, speed: float, gain: float, late: float) -> float:
    """Proportional control that brakes where the target is less than `late` seconds away."""
    divisor = speed + 0.01
    soon = divisor != 0.0 and abs(error / divisor) < late
    brake = speed * 0.5 if soon else 0.0
    return min(max(error * gain - brake, -1.0), 1.0)
