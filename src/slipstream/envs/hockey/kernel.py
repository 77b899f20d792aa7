"""Two-player hockey: rackets, a puck, two goals; a port of Box2D's physics bit for bit.

The rules of the table are in `control`, the physics in `physics/`, what is seen in `view`, bots in
`opponents`, the outside in `spec`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from slipstream.core.kernel import Loaded
from slipstream.core.random import uniform
from slipstream.core.single import single, sub
from slipstream.envs.hockey import config as settings
from slipstream.envs.hockey.config import Config
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
from slipstream.envs.hockey.physics.world import begin_step, finish_step
from slipstream.envs.hockey.picture import picture
from slipstream.envs.hockey.record import AGENT, BOTH, LEFT, PLAYERS, STATE, Data, Params
from slipstream.envs.hockey.setup import place_all
from slipstream.envs.hockey.spec import spec
from slipstream.envs.hockey.view import observe

__all__ = ["PLAYERS", "STATE", "Config", "Data", "Params", "observe", "picture", "spec"]

# What `slipstream train hockey` uses unless told otherwise: docs/hockey.md says how far it gets.
SETTINGS = {
    "ppo": {
        "agent": {
            "horizon": 64,
            "minibatch": 4096,
            "epochs": 4,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "reward_scaling": "on",
        },
        "training": {"num_envs": 512, "total_steps": 60_000_000},
    }
}

# Who has the second seat in training, where nobody says.
OPPONENTS = {"opponents": {"weak": 1.0, "strong": 3.0}}

# What self-play is evaluated against: both bots, equally often.
EVALUATION = {"opponents": {"weak": 1.0, "strong": 1.0}}


def load(config: Config) -> Loaded:
    """The table's shapes, and how many players act; nothing is read."""
    loaded = settings.load(config)
    alone = loaded.params["train"][0].players == 1
    return replace(loaded, functions={"step": step_seat, "observe": observe_seat} if alone else {})


def reset(s: Any, p: Any, d: Any) -> None:
    """Draws the start, and who acts in each seat."""
    place_all(s, p, d)
    if p.other_agent + p.other_weak + p.other_strong + p.other_random + p.other_idle > 0.0:
        s.seat = 0 if p.side == LEFT or (p.side == BOTH and uniform(s) < 0.5) else 1
        s.kind[s.seat] = AGENT
        s.kind[1 - s.seat] = choose(
            s, p.other_agent, p.other_weak, p.other_strong, p.other_random, p.other_idle
        )
    else:
        s.kind[0] = choose(s, p.one_agent, p.one_weak, p.one_strong, p.one_random, p.one_idle)
        s.kind[1] = choose(s, p.two_agent, p.two_weak, p.two_strong, p.two_random, p.two_idle)
    for player in range(2):
        # The original's bot keeps its phase from game to game, where it becomes uniform.
        s.phase[player] = 2.0 * math.pi * uniform(s)


def step(s: Any, action: Any, p: Any, d: Any) -> tuple[tuple[float, float], bool, bool]:
    """Both players act, then 0.02 s pass."""
    for player in range(2):
        if s.kind[player] == AGENT:
            decode(s, p, action[player], player)
        else:
            opponent(s, p, d, player, s.act[player])
    return advance(s, p, d)


def step_seat(s: Any, action: Any, p: Any, d: Any) -> tuple[float, bool, bool]:
    """The same where one player acts from outside and a bot has the other seat."""
    other = 1 - s.seat
    decode(s, p, action, s.seat)
    opponent(s, p, d, other, s.act[other])
    (one, two), terminated, truncated = advance(s, p, d)
    return one if s.seat == 0 else two, terminated, truncated


def observe_seat(s: Any, p: Any, d: Any, out: Any) -> None:
    """What the one player sees."""
    observe(s, p, d, s.seat, out)


def advance(s: Any, p: Any, d: Any) -> tuple[tuple[float, float], bool, bool]:
    """What both do takes effect."""
    for player in range(2):
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
            s.act[player, i] = min(max(float(action[i]), -1.0), 1.0)
        return
    levels = p.fineness - 1
    choice = int(action[0]) - 1
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
    late = s.time >= s.limit
    s.time = s.time + 1
    base = 10.0 * float(s.winner) if goal else 0.0
    near, near_two = closeness(s, 0), closeness(s, 1)
    touch = 1.0 if s.holds[0] == HOLD else 0.0
    touch_two = 1.0 if s.holds[1] == HOLD else 0.0
    right = s.velocity[PUCK, 0] / (float(s.limit) * 25.0)
    s.closeness = s.closeness + near
    s.direction = s.direction + right
    s.touches = s.touches + touch
    s.touches_two = s.touches_two + touch_two
    if goal:
        s.goals = 1.0
    terminated = goal or (late and p.drawn)
    one = base + near + shaping(p, near, touch, right)
    two = near_two - base + shaping(p, near_two, touch_two, -right)
    return (p.scale * one, p.scale * two), terminated, late and not terminated


def shaping(p: Any, near: float, touch: float, forward: float) -> float:
    """What is added to the original's reward, by weight."""
    return float(p.closeness * near + p.touch * touch + p.direction * forward)


def conclude(s: Any, p: Any, d: Any) -> None:
    """The game as who has `seat` sees it."""
    sign = 1 - 2 * s.seat
    s.won = 1.0 if s.winner * sign > 0 else 0.0
    s.lost = 1.0 if s.winner * sign < 0 else 0.0
    s.opponent = -float(s.kind[1 - s.seat])
    s.catches = s.touches if s.seat == 0 else s.touches_two
    s.catches_other = s.touches_two if s.seat == 0 else s.touches
    s.shots_taken = s.shots if s.seat == 0 else s.shots_two


def closeness(s: Any, player: int) -> float:
    """A penalty for each metre between racket and a puck in the own half that is not going away."""
    sign = 1.0 - 2.0 * player
    x, y = s.place[PUCK, 0], s.place[PUCK, 1]
    if sign * (x - CENTER_X) >= 0.0 or sign * s.velocity[PUCK, 0] > 0.0:
        return 0.0
    dx, dy = sub(s.place[player, 0], x), sub(s.place[player, 1], y)
    return math.sqrt(dx * dx + dy * dy) * (-30.0 / (250.0 / 60.0 * float(s.limit) / 2.0))
