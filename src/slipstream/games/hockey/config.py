"""Settings and records of the hockey game: Config, Params, Data and STATE (m, s, kg, rad)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from slipstream.core import config
from slipstream.core.bounds import Weight
from slipstream.games.hockey.physics.bodies import BODIES, MAX_ISLAND_CONTACTS, MOVING, PAIRS, table
from slipstream.games.hockey.physics.solver import CONSTRAINT
from slipstream.kernels import kernel

# STATE.mode
NORMAL, TRAIN_SHOOTING, TRAIN_DEFENSE = 0, 1, 2

# Params.side
BOTH, LEFT, RIGHT = 0, 1, 2

# STATE.kind
AGENT, WEAK, STRONG, RANDOM, IDLE = range(5)
PLAYERS = ("agent", "weak", "strong", "random", "idle")


class Params(NamedTuple):
    """Parameters of the game; there is one record.

    Attributes:
        normal, shooting, defense: weights of the modes.
        puck_hold: a caught puck is held, and a fourth action shoots it.
        time_out_terminates: a game without a goal terminates, as in the original; else it is
            truncated.
        num_action_levels: discrete actions of this many intensities; 0 for continuous actions.
        players: number of players that act from outside: 2, or 1 against a built-in opponent.
        side: BOTH, LEFT or RIGHT: sides on which a single learner may play.
        closeness, touch, direction: weights of the shaping terms.
        scale: factor of the reward's sum.
        player1_*, player2_*: weights of the kinds of each player.
        opponent_*: weights of the kinds of a single learner's opponent; all 0 without one.
    """

    normal: float
    shooting: float
    defense: float
    puck_hold: bool
    time_out_terminates: bool
    num_action_levels: int
    players: int
    side: int
    closeness: float
    touch: float
    direction: float
    scale: float
    player1_agent: float
    player1_weak: float
    player1_strong: float
    player1_random: float
    player1_idle: float
    player2_agent: float
    player2_weak: float
    player2_strong: float
    player2_random: float
    player2_idle: float
    opponent_agent: float
    opponent_weak: float
    opponent_strong: float
    opponent_random: float
    opponent_idle: float


class Data(NamedTuple):
    """One read-only array, because every array adds seven arguments to each compiled call.

    Attributes:
        table: float64 [BODIES, COLUMNS] of float32 values; columns as in `physics.bodies`.
    """

    table: NDArray[np.float64]


_GAME = [
    ("key", "u8"),
    ("counter", "u8"),
    ("mode", "i8"),
    ("time_limit", "i8"),  # index of the step that ends the game; an episode has one step more
    ("learner", "i8"),  # player that learns, 0 or 1, if it has an opponent
    ("time", "i8"),  # steps so far
    ("goal_scored", "b1"),
    ("winner", "i8"),  # 1: player 0, -1: player 1
    ("hold_steps", "i8", (2,)),  # set to 15 when the puck is caught, counted down
    ("touches_player1", "f8"),  # catches
    ("touches_player2", "f8"),
    ("shots_player1", "f8"),
    ("shots_player2", "f8"),
    ("goals", "f8"),  # of both players
    ("closeness", "f8"),  # sum of player 0's closeness penalty
    ("direction", "f8"),  # sum of the puck's scaled speed to the right
    ("won", "f8"),  # 1 or 0; this and the next five fields are the learner's
    ("lost", "f8"),
    ("opponent", "f8"),  # minus the opponent's kind
    ("catches", "f8"),
    ("catches_other", "f8"),
    ("shots_taken", "f8"),
    ("kind", "i8", (2,)),  # kind of each player: AGENT to IDLE
    ("phase", "f8", (2,)),  # phase of the bots' oscillating angle
    ("actions", "f8", (2, 4)),
]
_BODIES = [
    ("position", "f8", (BODIES, 2)),  # origin of the body
    ("sin", "f8", (BODIES,)),
    ("cos", "f8", (BODIES,)),
    ("center", "f8", (BODIES, 2)),  # centre of mass
    ("center0", "f8", (BODIES, 2)),  # centre of mass at `alpha`, the start of the sweep
    ("angle", "f8", (BODIES,)),
    ("angle0", "f8", (BODIES,)),
    ("alpha", "f8", (BODIES,)),
    ("linear_velocity", "f8", (BODIES, 2)),
    ("angular_velocity", "f8", (BODIES,)),
    ("force", "f8", (MOVING, 2)),
    ("torque", "f8", (MOVING,)),
    ("linear_damping", "f8", (MOVING,)),
    ("angular_damping", "f8", (MOVING,)),
    ("sleep_time", "f8", (MOVING,)),  # seconds at rest
    ("awake", "b1", (MOVING,)),
    ("fat_aabb", "f8", (BODIES, 4)),  # left, bottom, right, top
    ("moved", "b1", (MOVING,)),  # the fat AABB changed since the last search for pairs
    ("island_flag", "b1", (MOVING,)),  # already belongs to an island
    ("in_island", "b1", (MOVING,)),  # belongs to the current island
    ("new_bodies", "b1"),  # bodies were created since the last step
]
_CONTACTS = [
    ("contact_count", "i8"),
    ("contact_order", "i8", (PAIRS,)),  # pairs in contact, the newest first
    ("in_contact_list", "b1", (PAIRS,)),
    ("touching", "b1", (PAIRS,)),
    ("enabled", "b1", (PAIRS,)),
    ("contact_island_flag", "b1", (PAIRS,)),  # already belongs to an island
    ("point_count", "i8", (PAIRS,)),
    ("flipped", "b1", (PAIRS,)),  # the reference face belongs to the second body
    ("face", "f8", (PAIRS, 4)),  # normal and a point of the reference face, body coordinates
    ("local_point", "f8", (PAIRS, 2, 2)),  # points, in coordinates of the other body
    ("feature", "i8", (PAIRS, 2)),
    ("impulse", "f8", (PAIRS, 2, 2)),  # normal and tangent impulse of each point
    ("toi", "f8", (PAIRS,)),
    ("toi_known", "b1", (PAIRS,)),
    ("toi_count", "i8", (PAIRS,)),
]
_SCRATCH = [
    ("island", "i8", (MAX_ISLAND_CONTACTS,)),  # contacts that are solved together
    ("velocity_point_count", "i8", (MAX_ISLAND_CONTACTS,)),  # points in the velocity solver
    ("constraint", "f8", (MAX_ISLAND_CONTACTS, CONSTRAINT)),
    ("saved_motion", "f8", (MOVING, 3)),  # velocities some iterations ago
    ("saved_impulse", "f8", (MAX_ISLAND_CONTACTS, 2, 2)),
    ("simplex", "f8", (3, 7)),
    ("support", "i8", (3, 2)),
    ("simplex_size", "i8"),
    ("metric", "f8"),
    ("clip", "f8", (2, 2)),
    ("clip_feature", "i8", (2,)),
]

STATE = np.dtype(_GAME + _BODIES + _CONTACTS + _SCRATCH, align=True)


Mode = Literal["normal", "train_shooting", "train_defense"]
Shaping = Annotated[float, Field(ge=-1e6, le=1e6)]

_SIDES = {"both": BOTH, "left": LEFT, "right": RIGHT}


class PlayerWeights(config.Config):
    """Weights of the kinds of a player; one is drawn at the start of every episode."""

    agent: Weight = Field(0.0, description="weight of the caller of the environment")
    weak: Weight = Field(0.0, description="weight of the original's weak bot")
    strong: Weight = Field(0.0, description="weight of the original's strong bot")
    random: Weight = Field(0.0, description="weight of uniformly random actions")
    idle: Weight = Field(0.0, description="weight of a player that does nothing")

    @model_validator(mode="after")
    def _check_weights(self) -> PlayerWeights:
        if not any(self.model_dump().values()):
            raise ValueError("all weights are 0. Give one of them a weight, such as `weak: 1`")
        return self


class Reward(config.Config):
    """Weights of shaping terms that are added to the original's reward, and a scale."""

    closeness: Shaping = Field(
        0.0, description="weight of the penalty for distance to the puck, beyond the original's"
    )
    touch: Shaping = Field(0.0, description="reward for catching the puck")
    direction: Shaping = Field(
        0.0, description="weight of the puck's speed towards the opponent's goal"
    )
    scale: Annotated[float, Field(gt=0.0, le=1e6)] = Field(
        1.0, description="factor of the total reward"
    )


class Config(config.Config):
    FIXED_KEYS: ClassVar[tuple[str, ...]] = ("mode", "puck_hold", "time_out", "opponents", "side")

    mode: Mode | dict[Mode, Weight] = Field(
        "normal",
        description="start of a game and its length (251 or 81 steps), or several modes with "
        "weights",
    )
    puck_hold: bool = Field(
        True, description="a caught puck is held for up to 14 steps and can be shot"
    )
    num_action_levels: int = Field(
        0,
        ge=0,
        le=100,
        description="discrete actions of n - 1 intensities: 8 actions for 2; 0: continuous",
    )
    time_out: Literal["truncated", "terminated"] = Field(
        "truncated", description="end of a game without a goal; the original terminates it"
    )
    opponents: PlayerWeights | None = Field(
        None,
        description="opponents of a single learner; null: `player1` and `player2` apply",
    )
    side: Literal["both", "left", "right"] = Field(
        "both", description="side of the learner; both: drawn for every game"
    )
    reward: Reward = Field(Reward(), description="reward shaping")
    player1: PlayerWeights = Field(
        PlayerWeights(agent=1.0), description="kinds of player 0, on the left"
    )
    player2: PlayerWeights = Field(
        PlayerWeights(agent=1.0), description="kinds of player 1, on the right"
    )

    @field_validator("mode", mode="before")
    @classmethod
    def _normalize_mode(cls, value: Any) -> Any:
        """Accept ``TRAIN_SHOOTING`` and members of the original's enumeration."""
        if isinstance(value, dict):
            return {cls._normalize_mode(mode): weight for mode, weight in value.items()}
        name = getattr(value, "name", value)
        return name.lower() if isinstance(name, str) else value

    @model_validator(mode="after")
    def _check_keys(self) -> Config:
        if isinstance(self.mode, dict) and not any(self.mode.values()):
            raise ValueError("all weights of modes are 0. Give one of them a weight: `normal: 1`")
        agent = PlayerWeights(agent=1.0)
        if self.opponents is not None and (self.player1, self.player2) != (agent, agent):
            raise ValueError(
                "`opponents` cannot be combined with `player1` and `player2`. Remove one of them"
            )
        if self.num_action_levels == 1 and not self.puck_hold:
            raise ValueError(
                "`num_action_levels` 1 without `puck_hold` leaves a single action. Set it to 2 or "
                "more"
            )
        return self


def load(config: Config) -> kernel.KernelData:
    """Return the table of bodies and the parameters; no file is read."""
    modes = config.mode if isinstance(config.mode, dict) else {config.mode: 1.0}
    opponents = config.opponents
    if opponents is None and getattr(config, "self_play", None) is not None:
        opponents = PlayerWeights(agent=1.0)  # self-play acts for the opponent
    players = {"player1": config.player1, "player2": config.player2, "opponent": opponents}
    zeros = dict.fromkeys(PlayerWeights.model_fields, 0.0)
    weights: dict[str, Any] = {
        f"{name}_{kind}": weight
        for name, player in players.items()
        for kind, weight in (zeros | dict(player or {})).items()
    }
    bots_only = opponents is not None and opponents.agent == 0.0
    params = Params(
        normal=modes.get("normal", 0.0),
        shooting=modes.get("train_shooting", 0.0),
        defense=modes.get("train_defense", 0.0),
        puck_hold=config.puck_hold,
        time_out_terminates=config.time_out == "terminated",
        num_action_levels=config.num_action_levels,
        players=1 if bots_only else 2,
        side=_SIDES[config.side],
        **config.reward.model_dump(),
        **weights,
    )
    return kernel.KernelData(Data(table()), {"train": (params,)})
