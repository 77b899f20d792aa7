"""Two-player hockey: rackets, a puck, two goals; a port of Box2D's physics bit for bit.

The rules of the table are in `control`, the physics in `physics/`, what is seen in `view`, bots in
`opponents`, the outside in `spec`.
"""

from __future__ import annotations

import math
from typing import Any

from slipstream.core.random import uniform
from slipstream.core.single import single
from slipstream.envs.hockey.config import Config, load
from slipstream.envs.hockey.control import CENTER_X, HOLD, hold, limit_puck, push, rotate
from slipstream.envs.hockey.opponents import choose, opponent
from slipstream.envs.hockey.physics.facts import (
    LEFT_SENSOR,
    ONE_PUCK,
    PUCK,
    RIGHT_SENSOR,
    TWO_PUCK,
)
from slipstream.envs.hockey.physics.update import drop_or_update
from slipstream.envs.hockey.physics.vectors import sub
from slipstream.envs.hockey.physics.world import begin_step, finish_step
from slipstream.envs.hockey.record import AGENT, STATE, Data, Params
from slipstream.envs.hockey.setup import place_all
from slipstream.envs.hockey.spec import spec
from slipstream.envs.hockey.view import observe

__all__ = ["STATE", "Config", "Data", "Params", "load", "observe", "reset", "spec", "step"]


def reset(s: Any, p: Any, d: Any) -> None:
    """Draws the start, and who acts in each seat."""
    place_all(s, p, d)
    s.kind[0] = choose(s, p.one_agent, p.one_weak, p.one_strong, p.one_random, p.one_idle)
    s.kind[1] = choose(s, p.two_agent, p.two_weak, p.two_strong, p.two_random, p.two_idle)
    for player in range(2):
        # The original's bot keeps its phase from game to game, where it becomes uniform.
        s.phase[player] = 2.0 * math.pi * uniform(s)


def step(s: Any, action: Any, p: Any, d: Any) -> tuple[tuple[float, float], bool, bool]:
    """Both players act, then 0.02 s pass."""
    for player in range(2):
        if s.kind[player] == AGENT:
            decode(s, p, action, player)
        else:
            opponent(s, p, d, player, s.act[player])
        for i in range(4):
            s.act[player, i] = single(s.act[player, i])
    for player in range(2):
        push(s, d, player, s.act[player, 0], s.act[player, 1])
        rotate(s, d, player, s.act[player, 2])
    limit_puck(s)
    if p.keep:
        for player in range(2):
            if hold(s, d, player, s.act[player, 3]):
                if player == 0:
                    s.shots = s.shots + 1.0
                else:
                    s.shots_two = s.shots_two + 1.0
    begin_step(s, d)
    collide(s, p, d)
    finish_step(s, d)
    return outcome(s, p)


def decode(s: Any, p: Any, action: Any, player: int) -> None:
    """The action as four numbers within -1 and 1, rounded to float32."""
    for i in range(4):
        s.act[player, i] = 0.0
    if p.fineness == 0:
        for i in range(4 if p.keep else 3):
            s.act[player, i] = min(max(float(action[player, i]), -1.0), 1.0)
        return
    levels = p.fineness - 1
    choice = int(action[player, 0]) - 1
    if choice >= 6 * levels:
        s.act[player, 3] = 1.0
    elif choice >= 0:
        strength = float(choice % levels + 1) / float(levels)
        way = choice // levels
        s.act[player, way // 2] = -strength if way % 2 == 0 else strength


def collide(s: Any, p: Any, d: Any) -> None:
    """Refreshes all contacts; a puck in a goal ends the game, one on a racket is caught."""
    place = 0
    while place < s.contacts:
        k = s.order[place]
        found = drop_or_update(s, d, place)
        if found < 0:
            continue
        place += 1
        if found == 0:
            continue
        if k in (LEFT_SENSOR, RIGHT_SENSOR):
            s.done = True
            s.winner = 1 if k == RIGHT_SENSOR else -1
        if not p.keep:
            continue
        if k == ONE_PUCK and s.holds[0] == 0 and s.velocity[PUCK, 0] < 0.1:
            s.holds[0] = HOLD
        if k == TWO_PUCK and s.holds[1] == 0 and s.velocity[PUCK, 0] > -0.1:
            s.holds[1] = HOLD


def outcome(s: Any, p: Any) -> tuple[tuple[float, float], bool, bool]:
    """Rewards of both, and whether the game ends: by a goal, or undecided by time."""
    goal = s.done
    late = s.time >= p.limit
    s.time = s.time + 1
    base = 10.0 * float(s.winner) if goal else 0.0
    near, near_two = closeness(s, p, 0), closeness(s, p, 1)
    s.closeness = s.closeness + near
    s.direction = s.direction + s.velocity[PUCK, 0] / (float(p.limit) * 25.0)
    if s.holds[0] == HOLD:
        s.touches = s.touches + 1.0
    if s.holds[1] == HOLD:
        s.touches_two = s.touches_two + 1.0
    if goal:
        s.goals = 1.0
    terminated = goal or (late and p.drawn)
    return (base + near, near_two - base), terminated, late and not terminated


def closeness(s: Any, p: Any, player: int) -> float:
    """A penalty for each metre between racket and a puck in the own half that is not going away."""
    sign = 1.0 - 2.0 * player
    x, y = s.place[PUCK, 0], s.place[PUCK, 1]
    if sign * (x - CENTER_X) >= 0.0 or sign * s.velocity[PUCK, 0] > 0.0:
        return 0.0
    dx, dy = sub(s.place[player, 0], x), sub(s.place[player, 1], y)
    return math.sqrt(dx * dx + dy * dy) * (-30.0 / (250.0 / 60.0 * float(p.limit) / 2.0))
