"""Two-player hockey: rackets, a puck, two goals; a port of Box2D's physics bit for bit.

Settings and the layout of the state are in `config`, what players see and do in `players`, the
physics in `physics/`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.core.random import uniform
from slipstream.games.hockey import config as settings
from slipstream.games.hockey.config import (
    AGENT,
    BOTH,
    LEFT,
    NORMAL,
    PLAYERS,
    STATE,
    TRAIN_DEFENSE,
    TRAIN_SHOOTING,
    Config,
    Data,
    Params,
)
from slipstream.games.hockey.physics.bodies import (
    AABB_EXTENSION,
    BODIES,
    BOX,
    COUNT,
    LEFT_SENSOR,
    LOCAL_CENTER,
    MASS,
    MOVING,
    PLAYER1_PUCK,
    PLAYER2_PUCK,
    POSITION,
    PUCK,
    PUCK_RADIUS,
    RIGHT_SENSOR,
    VERTEX,
)
from slipstream.games.hockey.physics.bodies import STEP as STEP_F32
from slipstream.games.hockey.physics.contacts import compute_aabb, drop_or_update, update
from slipstream.games.hockey.physics.distance import distance
from slipstream.games.hockey.physics.motion import length
from slipstream.games.hockey.physics.world import begin_step, finish_step, solve_velocities
from slipstream.games.hockey.players import (
    CENTER_X,
    CENTER_Y,
    HOLD_STEPS,
    SHOT,
    act_scripted,
    apply_rotation,
    apply_translation,
    carry_puck,
    draw_player_kind,
    limit_puck_speed,
    observe,
)
from slipstream.jit.float32 import add, div, mul, single, sub
from slipstream.kernels.kernel import KernelData
from slipstream.kernels.spec import EnvSpec, Metric, Symmetry

# Defaults of `slipstream train hockey`; docs/guides/hockey.md has the commands.
DEFAULT_HYPERPARAMS = {
    "ppo": {
        "agent": {
            "n_steps": 64,
            "batch_size": 4096,
            "n_epochs": 4,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "reward_scaling": "on",
        },
        "training": {"num_envs": 512, "total_timesteps": 60_000_000},
    }
}

# Who has the second seat in training, where nobody says.
OPPONENTS = {"opponents": {"weak": 1.0, "strong": 3.0}}

# Large, and called in three places, in four and in two.
NOINLINE = (distance, update, solve_velocities)

# What self-play is evaluated against: both bots, equally often.
EVALUATION = {"opponents": {"weak": 1.0, "strong": 1.0}}


def load(config: Config) -> KernelData:
    """The table's shapes, and how many players act; nothing is read."""
    loaded = settings.load(config)
    alone = loaded.params["train"][0].players == 1
    return replace(loaded, functions={"step": step_seat, "observe": observe_seat} if alone else {})


def reset(s: Any, p: Any, d: Any) -> None:
    """Draws the start, and who acts in each seat."""
    place_bodies(s, p, d)
    if p.other_agent + p.other_weak + p.other_strong + p.other_random + p.other_idle > 0.0:
        s.seat = 0 if p.side == LEFT or (p.side == BOTH and uniform(s) < 0.5) else 1
        s.kind[s.seat] = AGENT
        s.kind[1 - s.seat] = draw_player_kind(
            s, p.other_agent, p.other_weak, p.other_strong, p.other_random, p.other_idle
        )
    else:
        s.kind[0] = draw_player_kind(
            s, p.one_agent, p.one_weak, p.one_strong, p.one_random, p.one_idle
        )
        s.kind[1] = draw_player_kind(
            s, p.two_agent, p.two_weak, p.two_strong, p.two_random, p.two_idle
        )
    for player in range(2):
        # The original's bot keeps its phase from game to game, where it becomes uniform.
        s.phase[player] = 2.0 * math.pi * uniform(s)


def step(s: Any, action: Any, p: Any, d: Any) -> tuple[tuple[float, float], bool, bool]:
    """Both players act, then 0.02 s pass."""
    for player in range(2):
        if s.kind[player] == AGENT:
            decode_action(s, p, action[player], player)
        else:
            act_scripted(s, p, d, player, s.act[player])
    return advance(s, p, d)


def step_seat(s: Any, action: Any, p: Any, d: Any) -> tuple[float, bool, bool]:
    """The same where one player acts from outside and a bot has the other seat."""
    other = 1 - s.seat
    decode_action(s, p, action, s.seat)
    act_scripted(s, p, d, other, s.act[other])
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
        apply_translation(s, d, player, s.act[player, 0], s.act[player, 1])
        apply_rotation(s, d, player, s.act[player, 2])
    limit_puck_speed(s)
    if p.keep:
        for player in range(2):
            if carry_puck(s, d, player, s.act[player, 3]):
                if player == 0:
                    s.shots = s.shots + 1.0
                else:
                    s.shots_two = s.shots_two + 1.0
    begin_step(s, d)
    collide(s, p, d)
    finish_step(s, d)
    return outcome(s, p)


def decode_action(s: Any, p: Any, action: Any, player: int) -> None:
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
        if k == PLAYER1_PUCK and s.holds[0] == 0 and s.linear_velocity[PUCK, 0] < 0.1:
            s.holds[0] = HOLD_STEPS
        if k == PLAYER2_PUCK and s.holds[1] == 0 and s.linear_velocity[PUCK, 0] > -0.1:
            s.holds[1] = HOLD_STEPS


def outcome(s: Any, p: Any) -> tuple[tuple[float, float], bool, bool]:
    """Rewards of both, and whether the game ends: by a goal, or undecided by time."""
    goal = s.done
    late = s.time >= s.limit
    s.time = s.time + 1
    base = 10.0 * float(s.winner) if goal else 0.0
    near, near_two = closeness(s, 0), closeness(s, 1)
    touch = 1.0 if s.holds[0] == HOLD_STEPS else 0.0
    touch_two = 1.0 if s.holds[1] == HOLD_STEPS else 0.0
    right = s.linear_velocity[PUCK, 0] / (float(s.limit) * 25.0)
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


def finalize_episode(s: Any, p: Any, d: Any) -> None:
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
    x, y = s.position[PUCK, 0], s.position[PUCK, 1]
    if sign * (x - CENTER_X) >= 0.0 or sign * s.linear_velocity[PUCK, 0] > 0.0:
        return 0.0
    dx, dy = sub(s.position[player, 0], x), sub(s.position[player, 1], y)
    return math.sqrt(dx * dx + dy * dy) * (-30.0 / (250.0 / 60.0 * float(s.limit) / 2.0))


NORMAL_LIMIT, TRAIN_LIMIT = 250, 80


def uniform_between(s: Any, low: float, high: float) -> float:
    return low + (high - low) * uniform(s)


def draw_mode(s: Any, p: Any) -> int:
    """By weight; nothing is drawn where it is settled."""
    total = p.normal + p.shooting + p.defense
    most = max(p.normal, p.shooting, p.defense)
    at = 0.5 * total if most == total else total * uniform(s)
    if at < p.normal:
        return NORMAL
    return TRAIN_SHOOTING if at < p.normal + p.shooting else TRAIN_DEFENSE


def place_bodies(s: Any, p: Any, d: Any) -> None:
    """Draws how the game begins: its mode, then where everything stands."""
    s.mode = draw_mode(s, p)
    s.limit = NORMAL_LIMIT if s.mode == NORMAL else TRAIN_LIMIT
    x, y = 8.0, CENTER_Y
    if s.mode != NORMAL:
        x = 8.0 + uniform_between(s, -10.0 / 3.0, 10.0 / 6.0)
        y = CENTER_Y + uniform_between(s, -2.0, 2.0)
    if s.mode == TRAIN_DEFENSE:
        px = 5.0 + uniform_between(s, 0.0, 10.0 / 3.0)
        py = CENTER_Y + 0.8 * uniform_between(s, -4.0, 4.0)
        aim = CENTER_Y + 0.6 * uniform_between(s, -1.25, 1.25)
    else:
        left = s.mode == TRAIN_SHOOTING or uniform(s) < 0.5
        px = 5.0 + (-1.0 if left else 1.0) * uniform_between(s, 1.0, 2.0)
        py = CENTER_Y + uniform_between(s, -1.0, 1.0)
        aim = 0.0
    create_bodies(s, d, x, y, px, py)
    if s.mode == TRAIN_DEFENSE:
        shoot_at_goal(s, d, aim)


def create_bodies(s: Any, d: Any, x: float, y: float, px: float, py: float) -> None:
    """Makes all bodies, at rest: player 0 at home, player 1 at (x, y), the puck at (px, py)."""
    for body in range(BODIES):
        s.cos[body] = 1.0
        if body >= MOVING:
            for axis in range(2):
                s.position[body, axis] = d.table[body, POSITION + axis]
                s.center[body, axis] = d.table[body, POSITION + axis]
                s.center0[body, axis] = d.table[body, POSITION + axis]
            for side in range(4):
                s.fat_aabb[body, side] = d.table[body, BOX + side]
    s.position[0, 0] = 2.0
    s.position[0, 1] = CENTER_Y
    s.position[1, 0] = single(x)
    s.position[1, 1] = single(y)
    s.position[PUCK, 0] = single(px)
    s.position[PUCK, 1] = single(py)
    for body in range(MOVING):
        for axis in range(2):
            s.center[body, axis] = add(d.table[body, LOCAL_CENTER + axis], s.position[body, axis])
            s.center0[body, axis] = s.center[body, axis]
        left, bottom, right, top = compute_aabb(
            d, body, 0.0, 1.0, s.position[body, 0], s.position[body, 1]
        )
        s.fat_aabb[body, 0] = sub(left, AABB_EXTENSION)
        s.fat_aabb[body, 1] = sub(bottom, AABB_EXTENSION)
        s.fat_aabb[body, 2] = add(right, AABB_EXTENSION)
        s.fat_aabb[body, 3] = add(top, AABB_EXTENSION)
        s.moved[body] = True
        s.awake[body] = True
    s.is_new = True


def shoot_at_goal(s: Any, d: Any, aim: float) -> None:
    """Shoots the puck at a point of the left border in the first step."""
    x, y = s.position[PUCK, 0], sub(s.position[PUCK, 1], single(aim))
    size = length(x, y)
    mass = d.table[PUCK, MASS]
    s.force[PUCK, 0] = -div(mul(mul(div(x, size), SHOT), mass), STEP_F32)
    s.force[PUCK, 1] = -div(mul(mul(div(y, size), SHOT), mass), STEP_F32)


_BOTH = (
    Metric("winner", "1, 0 or -1"),
    Metric("touches", "catches"),
    Metric("touches_two", "catches"),
    Metric("shots", "shots"),
    Metric("shots_two", "shots"),
    Metric("goals", "goals"),
    Metric("closeness", "reward"),
    Metric("direction", "reward"),
)
_LEARNER = (
    Metric("won", "games"),
    Metric("lost", "games"),
    Metric("opponent", "number"),
    Metric("catches", "catches"),
    Metric("catches_other", "catches"),
    Metric("shots_taken", "shots"),
)


# What changes its sign where up and down are swapped, for each player: places, speeds and turns.
_UPRIGHT = (1, 2, 4, 5, 7, 8, 10, 11, 13, 15)
_UP, _TURN = 1, 2  # numbers of an action


def symmetry(p: Any) -> Symmetry:
    """The game with up and down swapped, as either player sees it."""
    if p.fineness == 0:
        return Symmetry(_UPRIGHT, action=(_UP, _TURN))
    levels = p.fineness - 1
    choices = list(range(1 + 6 * levels + (1 if p.keep else 0)))
    for axis in (_UP, _TURN):
        for level in range(levels):
            back, forth = 1 + 2 * axis * levels + level, 1 + (2 * axis + 1) * levels + level
            choices[back], choices[forth] = forth, back
    return Symmetry(_UPRIGHT, action_permutation=tuple(choices))


def spec(p: Any, d: Any) -> EnvSpec:
    """18 numbers seen and 4 in an action, 16 and 3 without keep mode; or discrete actions."""
    action: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (4 if p.keep else 3,), np.float32)
    if p.fineness > 0:
        action = spaces.Discrete(1 + 6 * (p.fineness - 1) + (1 if p.keep else 0))
    return EnvSpec(
        observation_space=spaces.Box(-np.inf, np.inf, (18 if p.keep else 16,), np.float32),
        action_space=action,
        metrics=_LEARNER if p.players == 1 else _BOTH,
        players=p.players,
        winner=None if p.players == 1 else "winner",
        symmetry=symmetry(p),
        max_episode_steps=NORMAL_LIMIT + 2,  # never reached: a game ends itself one step earlier
    )


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
    px, py = _pixel(float(s.position[PUCK, 0]), float(s.position[PUCK, 1]))
    r = PUCK_RADIUS * _SCALE
    draw.ellipse((px - r, py - r, px + r, py + r), fill=_PUCK)
    score = {1: "1 : 0", -1: "0 : 1"}.get(int(s.winner), "0 : 0")
    text, font = f"{score}   {int(s.time) * 0.02:.1f} s", ImageFont.load_default(size=16)
    draw.rectangle((_WIDTH // 2 - 70, 0, _WIDTH // 2 + 70, 19), fill=_TABLE)
    draw.text((_WIDTH // 2, 2), text, fill=_WALL, anchor="ma", font=font)
    return np.asarray(image, np.uint8)


def _corners(s: Any, d: Any, body: int) -> list[tuple[float, float]]:
    sin, cos = float(s.sin[body]), float(s.cos[body])
    x, y = float(s.position[body, 0]), float(s.position[body, 1])
    found = []
    for i in range(int(d.table[body, COUNT])):
        px, py = d.table[body, VERTEX + 2 * i], d.table[body, VERTEX + 2 * i + 1]
        found.append(_pixel(x + cos * px - sin * py, y + sin * px + cos * py))
    return found


def _pixel(x: float, y: float) -> tuple[float, float]:
    return x * _SCALE, _HEIGHT - y * _SCALE
