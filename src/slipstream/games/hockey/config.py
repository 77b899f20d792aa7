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
    """Scalars of the only record.

    Attributes:
        normal, shooting, defense: weights of the modes.
        keep: a caught puck is held, and a fourth action shoots it.
        drawn: a game that time ends is terminated, as in the original; else it is truncated.
        fineness: discrete actions of this many intensities; 0 for continuous ones.
        players: who act from outside: 2, or 1 whose seat is drawn, with an opponent in the other.
        side: BOTH, LEFT or RIGHT: the seats that the one player may have.
        closeness, touch, direction: weights of what is added to the original's reward.
        scale: of the sum.
        one_*, two_*: weights of who acts in each seat.
        other_*: weights of the opponent's kinds, where a learner has one; all 0 where not.
    """

    normal: float
    shooting: float
    defense: float
    keep: bool
    drawn: bool
    fineness: int
    players: int
    side: int
    closeness: float
    touch: float
    direction: float
    scale: float
    one_agent: float
    one_weak: float
    one_strong: float
    one_random: float
    one_idle: float
    two_agent: float
    two_weak: float
    two_strong: float
    two_random: float
    two_idle: float
    other_agent: float
    other_weak: float
    other_strong: float
    other_random: float
    other_idle: float


class Data(NamedTuple):
    """One read-only array: every function hands it on, and each array costs seven numbers a call.

    Attributes:
        table: float64 [BODIES, COLUMNS], float32 numbers; columns of `physics.bodies`.
    """

    table: NDArray[np.float64]


_GAME = [
    ("key", "u8"),
    ("counter", "u8"),
    ("mode", "i8"),
    ("limit", "i8"),  # number of the step that ends the game; an episode has one step more
    ("seat", "i8"),  # the learner's, where it has an opponent
    ("time", "i8"),  # steps done
    ("done", "b1"),
    ("winner", "i8"),  # 1: player 0, -1: player 1
    ("holds", "i8", (2,)),  # 15 where the puck was caught, counted down
    ("touches", "f8"),  # catches of player 0
    ("touches_two", "f8"),
    ("shots", "f8"),
    ("shots_two", "f8"),
    ("goals", "f8"),  # of both
    ("closeness", "f8"),  # sum of player 0's reward for it
    ("direction", "f8"),  # sum of the puck's speed to the right, scaled
    ("won", "f8"),  # 1 or 0: by who has `seat`, as are the next five
    ("lost", "f8"),
    ("opponent", "f8"),  # minus the kind of who has the other seat
    ("catches", "f8"),
    ("catches_other", "f8"),
    ("shots_taken", "f8"),
    ("kind", "i8", (2,)),  # who acts in each seat
    ("phase", "f8", (2,)),  # of the bots' swinging angle
    ("act", "f8", (2, 4)),
]
_BODIES = [
    ("position", "f8", (BODIES, 2)),  # of the body's origin
    ("sin", "f8", (BODIES,)),
    ("cos", "f8", (BODIES,)),
    ("center", "f8", (BODIES, 2)),  # of mass
    ("center0", "f8", (BODIES, 2)),  # at `alpha`, where a sweep begins
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
    ("fat_aabb", "f8", (BODIES, 4)),  # widened box: left, bottom, right, top
    ("moved", "b1", (MOVING,)),  # the widened box changed since pairs were looked for
    ("islanded", "b1", (MOVING,)),  # belongs to an island already
    ("in_island", "b1", (MOVING,)),  # of the island at hand
    ("is_new", "b1"),  # bodies were made since the last step
]
_CONTACTS = [
    ("contacts", "i8"),
    ("order", "i8", (PAIRS,)),  # pairs in contact, the newest first
    ("listed", "b1", (PAIRS,)),
    ("touching", "b1", (PAIRS,)),
    ("enabled", "b1", (PAIRS,)),
    ("taken", "b1", (PAIRS,)),  # belongs to an island already
    ("points", "i8", (PAIRS,)),
    ("flipped", "b1", (PAIRS,)),  # the face is one of the second body
    ("face", "f8", (PAIRS, 4)),  # normal and a point of the face, in its body's axes
    ("local_point", "f8", (PAIRS, 2, 2)),  # points, in the other body's axes
    ("feature", "i8", (PAIRS, 2)),
    ("impulse", "f8", (PAIRS, 2, 2)),  # of each point: along the normal, across
    ("toi", "f8", (PAIRS,)),
    ("toi_known", "b1", (PAIRS,)),
    ("toi_count", "i8", (PAIRS,)),
]
_SCRATCH = [
    ("island", "i8", (MAX_ISLAND_CONTACTS,)),  # pairs that are solved together
    ("solved", "i8", (MAX_ISLAND_CONTACTS,)),  # points of each that the velocity solver sees
    ("constraint", "f8", (MAX_ISLAND_CONTACTS, CONSTRAINT)),
    ("marked_motion", "f8", (MOVING, 3)),  # velocity and spin some sweeps ago
    ("marked_impulse", "f8", (MAX_ISLAND_CONTACTS, 2, 2)),
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


class Seat(config.Config):
    """Who acts in a seat: one of these is drawn at the start of every episode, by weight."""

    agent: Weight = Field(0.0, description="whoever steps the environment")
    weak: Weight = Field(0.0, description="the original's weak bot")
    strong: Weight = Field(0.0, description="the original's strong bot")
    random: Weight = Field(0.0, description="uniform actions, new every step")
    idle: Weight = Field(0.0, description="no action")

    @model_validator(mode="after")
    def _somebody(self) -> Seat:
        if not any(self.model_dump().values()):
            raise ValueError("every weight is 0: give one of them a weight, `weak: 1`")
        return self


class Reward(config.Config):
    """Weights of what is added to the original's reward, and a factor of the sum."""

    closeness: Shaping = Field(0.0, description="times the penalty that the reward has already")
    touch: Shaping = Field(0.0, description="for catching the puck")
    direction: Shaping = Field(0.0, description="for the puck's speed towards the other goal")
    scale: Annotated[float, Field(gt=0.0, le=1e6)] = Field(1.0, description="of the sum")


class Config(config.Config):
    FIXED_KEYS: ClassVar[tuple[str, ...]] = ("mode", "puck_hold", "time_out", "opponents", "side")

    mode: Mode | dict[Mode, Weight] = Field(
        "normal",
        description="how a game begins and how long it lasts (251 or 81 steps), or several with "
        "weights",
    )
    puck_hold: bool = Field(
        True, description="a caught puck is held up to 14 steps and can be shot"
    )
    num_action_levels: int = Field(
        0, ge=0, le=100, description="discrete actions of f - 1 intensities: 8 for 2; 0: continuous"
    )
    time_out: Literal["truncated", "terminated"] = Field(
        "truncated", description="a game without a goal; the original calls it terminated"
    )
    opponents: Seat | None = Field(
        None,
        description="who plays against one learner; null: `player1` and `player2` are as given",
    )
    side: Literal["both", "left", "right"] = Field(
        "both", description="where the learner plays; both: drawn for every game"
    )
    reward: Reward = Field(Reward(), description="shaping")
    player1: Seat = Field(Seat(agent=1.0), description="player 0, left")
    player2: Seat = Field(Seat(agent=1.0), description="player 1, right")

    @field_validator("mode", mode="before")
    @classmethod
    def _as_the_original_spells_it(cls, value: Any) -> Any:
        """``TRAIN_SHOOTING``, or that member of the original's enumeration."""
        if isinstance(value, dict):
            return {cls._as_the_original_spells_it(one): weight for one, weight in value.items()}
        name = getattr(value, "name", value)
        return name.lower() if isinstance(name, str) else value

    @model_validator(mode="after")
    def _settled(self) -> Config:
        if isinstance(self.mode, dict) and not any(self.mode.values()):
            raise ValueError("every mode's weight is 0: give one of them a weight, `normal: 1`")
        alone = Seat(agent=1.0)
        if self.opponents is not None and (self.player1, self.player2) != (alone, alone):
            raise ValueError(
                "`opponents` says who plays against the learner, and `player1` or `player2` who "
                "has a seat: leave out one of the two"
            )
        if self.num_action_levels == 1 and not self.puck_hold:
            raise ValueError("`num_action_levels` 1 without `puck_hold` leaves one action: write 2")
        return self


def load(config: Config) -> kernel.KernelData:
    """The table's shapes; nothing is read."""
    modes = config.mode if isinstance(config.mode, dict) else {config.mode: 1.0}
    others = config.opponents
    if others is None and getattr(config, "self_play", None) is not None:
        others = Seat(agent=1.0)  # who shows one seat has somebody for the other one
    seats: dict[str, Any] = {
        f"{name}_{kind}": weight
        for name, seat in (("one", config.player1), ("two", config.player2), ("other", others))
        for kind, weight in (dict.fromkeys(Seat.model_fields, 0.0) | dict(seat or {})).items()
    }
    bots_only = others is not None and others.agent == 0.0
    params = Params(
        normal=modes.get("normal", 0.0),
        shooting=modes.get("train_shooting", 0.0),
        defense=modes.get("train_defense", 0.0),
        keep=config.puck_hold,
        drawn=config.time_out == "terminated",
        fineness=config.num_action_levels,
        players=1 if bots_only else 2,
        side=_SIDES[config.side],
        **config.reward.model_dump(),
        **seats,
    )
    return kernel.KernelData(Data(table()), {"train": (params,)})
