"""Two-player hockey: rackets, a puck, two goals; a port of Box2D's physics bit for bit.

`config` defines the settings and the state, `players` the observations and actions, `physics/` the
physics.
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

# Defaults of `slipstream train hockey`; docs/guides/hockey.md has the results.
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

# Opponents in training if the config names none.
OPPONENTS = {"opponents": {"weak": 1.0, "strong": 3.0}}

# Large functions that are called in several places.
NOINLINE = (distance, update, solve_velocities)

# Opponents in evaluations of self-play: both bots, equally often.
EVALUATION = {"opponents": {"weak": 1.0, "strong": 1.0}}


def load(config: Config) -> KernelData:
    """Return the table of bodies and the functions for one or two players."""
    loaded = settings.load(config)
    single_player = loaded.params["train"][0].players == 1
    functions = {"step": step_learner, "observe": observe_learner} if single_player else {}
    return replace(loaded, functions=functions)


def reset(s: Any, p: Any, d: Any) -> None:
    """Draw the start of the game, and the kind of each player."""
    place_bodies(s, p, d)
    if (
        p.opponent_agent + p.opponent_weak + p.opponent_strong + p.opponent_random + p.opponent_idle
        > 0.0
    ):
        s.learner = 0 if p.side == LEFT or (p.side == BOTH and uniform(s) < 0.5) else 1
        s.kind[s.learner] = AGENT
        s.kind[1 - s.learner] = draw_player_kind(
            s,
            p.opponent_agent,
            p.opponent_weak,
            p.opponent_strong,
            p.opponent_random,
            p.opponent_idle,
        )
    else:
        s.kind[0] = draw_player_kind(
            s, p.player1_agent, p.player1_weak, p.player1_strong, p.player1_random, p.player1_idle
        )
        s.kind[1] = draw_player_kind(
            s, p.player2_agent, p.player2_weak, p.player2_strong, p.player2_random, p.player2_idle
        )
    for player in range(2):
        # The original's bots keep their phase between games, which makes it uniform.
        s.phase[player] = 2.0 * math.pi * uniform(s)


def step(s: Any, action: Any, p: Any, d: Any) -> tuple[tuple[float, float], bool, bool]:
    """Apply the actions of both players and advance the game by 0.02 s."""
    for player in range(2):
        if s.kind[player] == AGENT:
            decode_action(s, p, action[player], player)
        else:
            act_scripted(s, p, d, player, s.actions[player])
    return advance(s, p, d)


def step_learner(s: Any, action: Any, p: Any, d: Any) -> tuple[float, bool, bool]:
    """Step the game for a single learner against a built-in opponent."""
    opponent = 1 - s.learner
    decode_action(s, p, action, s.learner)
    act_scripted(s, p, d, opponent, s.actions[opponent])
    (reward1, reward2), terminated, truncated = advance(s, p, d)
    return reward1 if s.learner == 0 else reward2, terminated, truncated


def observe_learner(s: Any, p: Any, d: Any, out: Any) -> None:
    """Write the observation of the learner."""
    observe(s, p, d, s.learner, out)


def advance(s: Any, p: Any, d: Any) -> tuple[tuple[float, float], bool, bool]:
    """Apply the decoded actions, step the physics, and return the outcome."""
    for player in range(2):
        for i in range(4):
            s.actions[player, i] = single(s.actions[player, i])
    for player in range(2):
        apply_translation(s, d, player, s.actions[player, 0], s.actions[player, 1])
        apply_rotation(s, d, player, s.actions[player, 2])
    limit_puck_speed(s)
    if p.puck_hold:
        for player in range(2):
            if carry_puck(s, d, player, s.actions[player, 3]):
                if player == 0:
                    s.shots_player1 = s.shots_player1 + 1.0
                else:
                    s.shots_player2 = s.shots_player2 + 1.0
    begin_step(s, d)
    collide(s, p, d)
    finish_step(s, d)
    return outcome(s, p)


def decode_action(s: Any, p: Any, action: Any, player: int) -> None:
    """Write an action into STATE as four values in [-1, 1]."""
    for i in range(4):
        s.actions[player, i] = 0.0
    if p.num_action_levels == 0:
        for i in range(4 if p.puck_hold else 3):
            s.actions[player, i] = min(max(float(action[i]), -1.0), 1.0)
        return
    levels = p.num_action_levels - 1
    index = int(action[0]) - 1
    if index >= 6 * levels:
        s.actions[player, 3] = 1.0
    elif index >= 0:
        strength = float(index % levels + 1) / float(levels)
        direction = index // levels
        s.actions[player, direction // 2] = -strength if direction % 2 == 0 else strength


def collide(s: Any, p: Any, d: Any) -> None:
    """Update all contacts: a puck in a goal ends the game, a puck on a racket is caught."""
    index = 0
    while index < s.contact_count:
        k = s.contact_order[index]
        event = drop_or_update(s, d, index)
        if event < 0:
            continue
        index += 1
        if event == 0:
            continue
        if k in (LEFT_SENSOR, RIGHT_SENSOR):
            s.goal_scored = True
            s.winner = 1 if k == RIGHT_SENSOR else -1
        if not p.puck_hold:
            continue
        if k == PLAYER1_PUCK and s.hold_steps[0] == 0 and s.linear_velocity[PUCK, 0] < 0.1:
            s.hold_steps[0] = HOLD_STEPS
        if k == PLAYER2_PUCK and s.hold_steps[1] == 0 and s.linear_velocity[PUCK, 0] > -0.1:
            s.hold_steps[1] = HOLD_STEPS


def outcome(s: Any, p: Any) -> tuple[tuple[float, float], bool, bool]:
    """Return the rewards of both players, `terminated` and `truncated`."""
    goal = s.goal_scored
    timed_out = s.time >= s.time_limit
    s.time = s.time + 1
    goal_reward = 10.0 * float(s.winner) if goal else 0.0
    closeness1, closeness2 = closeness(s, 0), closeness(s, 1)
    touch1 = 1.0 if s.hold_steps[0] == HOLD_STEPS else 0.0
    touch2 = 1.0 if s.hold_steps[1] == HOLD_STEPS else 0.0
    direction = s.linear_velocity[PUCK, 0] / (float(s.time_limit) * 25.0)
    s.closeness = s.closeness + closeness1
    s.direction = s.direction + direction
    s.touches_player1 = s.touches_player1 + touch1
    s.touches_player2 = s.touches_player2 + touch2
    if goal:
        s.goals = 1.0
    terminated = goal or (timed_out and p.time_out_terminates)
    reward1 = goal_reward + closeness1 + shaping(p, closeness1, touch1, direction)
    reward2 = closeness2 - goal_reward + shaping(p, closeness2, touch2, -direction)
    return (p.scale * reward1, p.scale * reward2), terminated, timed_out and not terminated


def shaping(p: Any, closeness: float, touch: float, direction: float) -> float:
    """Return the weighted sum of the shaping terms."""
    return float(p.closeness * closeness + p.touch * touch + p.direction * direction)


def finalize_episode(s: Any, p: Any, d: Any) -> None:
    """Set the metrics of the learner."""
    sign = 1 - 2 * s.learner
    s.won = 1.0 if s.winner * sign > 0 else 0.0
    s.lost = 1.0 if s.winner * sign < 0 else 0.0
    s.opponent = -float(s.kind[1 - s.learner])
    s.catches = s.touches_player1 if s.learner == 0 else s.touches_player2
    s.catches_other = s.touches_player2 if s.learner == 0 else s.touches_player1
    s.shots_taken = s.shots_player1 if s.learner == 0 else s.shots_player2


def closeness(s: Any, player: int) -> float:
    """Return the penalty for distance to a puck in the player's half that is not moving away."""
    sign = 1.0 - 2.0 * player
    x, y = s.position[PUCK, 0], s.position[PUCK, 1]
    if sign * (x - CENTER_X) >= 0.0 or sign * s.linear_velocity[PUCK, 0] > 0.0:
        return 0.0
    dx, dy = sub(s.position[player, 0], x), sub(s.position[player, 1], y)
    return math.sqrt(dx * dx + dy * dy) * (-30.0 / (250.0 / 60.0 * float(s.time_limit) / 2.0))


NORMAL_LIMIT, TRAIN_LIMIT = 250, 80


def uniform_between(s: Any, low: float, high: float) -> float:
    return low + (high - low) * uniform(s)


def draw_mode(s: Any, p: Any) -> int:
    """Draw a mode by weight; a single mode uses no random number."""
    total = p.normal + p.shooting + p.defense
    largest = max(p.normal, p.shooting, p.defense)
    u = 0.5 * total if largest == total else total * uniform(s)
    if u < p.normal:
        return NORMAL
    return TRAIN_SHOOTING if u < p.normal + p.shooting else TRAIN_DEFENSE


def place_bodies(s: Any, p: Any, d: Any) -> None:
    """Draw the mode of the game and the initial positions."""
    s.mode = draw_mode(s, p)
    s.time_limit = NORMAL_LIMIT if s.mode == NORMAL else TRAIN_LIMIT
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
    """Create all bodies at rest: player 1 at (x, y), the puck at (px, py)."""
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
    s.new_bodies = True


def shoot_at_goal(s: Any, d: Any, aim: float) -> None:
    """Apply a force to the puck that shoots it at height `aim` of the left border."""
    x, y = s.position[PUCK, 0], sub(s.position[PUCK, 1], single(aim))
    size = length(x, y)
    mass = d.table[PUCK, MASS]
    s.force[PUCK, 0] = -div(mul(mul(div(x, size), SHOT), mass), STEP_F32)
    s.force[PUCK, 1] = -div(mul(mul(div(y, size), SHOT), mass), STEP_F32)


_BOTH = (
    Metric("winner", "1, 0 or -1"),
    Metric("touches_player1", "catches"),
    Metric("touches_player2", "catches"),
    Metric("shots_player1", "shots"),
    Metric("shots_player2", "shots"),
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


# Indices of observations whose sign changes if up and down are swapped.
_UPRIGHT = (1, 2, 4, 5, 7, 8, 10, 11, 13, 15)
_UP, _TURN = 1, 2  # indices of an action


def symmetry(p: Any) -> Symmetry:
    """Return the symmetry of swapping up and down, which is the same for both players."""
    if p.num_action_levels == 0:
        return Symmetry(_UPRIGHT, action=(_UP, _TURN))
    levels = p.num_action_levels - 1
    permutation = list(range(1 + 6 * levels + (1 if p.puck_hold else 0)))
    for axis in (_UP, _TURN):
        for level in range(levels):
            back, forth = 1 + 2 * axis * levels + level, 1 + (2 * axis + 1) * levels + level
            permutation[back], permutation[forth] = forth, back
    return Symmetry(_UPRIGHT, action_permutation=tuple(permutation))


def spec(p: Any, d: Any) -> EnvSpec:
    """Return the spaces: 18 observations and 4 actions, without `puck_hold` 16 and 3."""
    action: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (4 if p.puck_hold else 3,), np.float32)
    if p.num_action_levels > 0:
        action = spaces.Discrete(1 + 6 * (p.num_action_levels - 1) + (1 if p.puck_hold else 0))
    return EnvSpec(
        observation_space=spaces.Box(-np.inf, np.inf, (18 if p.puck_hold else 16,), np.float32),
        action_space=action,
        metrics=_LEARNER if p.players == 1 else _BOTH,
        players=p.players,
        winner=None if p.players == 1 else "winner",
        symmetry=symmetry(p),
        max_episode_steps=NORMAL_LIMIT + 2,  # never reached: the game ends one step earlier
    )


_SCALE, _WIDTH, _HEIGHT = 60, 600, 480  # pixels per metre; size in pixels
_TABLE, _LINE, _WALL, _PUCK = (236, 240, 241), (174, 182, 191), (44, 62, 80), (20, 20, 20)
_PLAYERS = ((192, 57, 43), (41, 128, 185))
_GOALS = (BODIES - 2, BODIES - 1)


def render(s: Any, p: Any, d: Any) -> NDArray[np.uint8]:
    """Return the frame of a STATE record, uint8 [480, 600, 3]. Not compiled."""
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
    corners = []
    for i in range(int(d.table[body, COUNT])):
        px, py = d.table[body, VERTEX + 2 * i], d.table[body, VERTEX + 2 * i + 1]
        corners.append(_pixel(x + cos * px - sin * py, y + sin * px + cos * py))
    return corners


def _pixel(x: float, y: float) -> tuple[float, float]:
    return x * _SCALE, _HEIGHT - y * _SCALE
