"""Arrays and records of the hockey game: what is stored, and in which unit (m, s, kg, rad)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.games.hockey.physics.bodies import BODIES, MOST, MOVING, PAIRS
from slipstream.games.hockey.physics.solver import CONSTRAINT

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
    ("place", "f8", (BODIES, 2)),  # of the body's origin
    ("sin", "f8", (BODIES,)),
    ("cos", "f8", (BODIES,)),
    ("center", "f8", (BODIES, 2)),  # of mass
    ("center0", "f8", (BODIES, 2)),  # at `alpha`, where a sweep begins
    ("angle", "f8", (BODIES,)),
    ("angle0", "f8", (BODIES,)),
    ("alpha", "f8", (BODIES,)),
    ("velocity", "f8", (BODIES, 2)),
    ("spin", "f8", (BODIES,)),
    ("force", "f8", (MOVING, 2)),
    ("torque", "f8", (MOVING,)),
    ("damping", "f8", (MOVING,)),
    ("spin_damping", "f8", (MOVING,)),
    ("still", "f8", (MOVING,)),  # seconds at rest
    ("awake", "b1", (MOVING,)),
    ("fat", "f8", (BODIES, 4)),  # widened box: left, bottom, right, top
    ("moved", "b1", (MOVING,)),  # the widened box changed since pairs were looked for
    ("flagged", "b1", (MOVING,)),  # belongs to an island already
    ("member", "b1", (MOVING,)),  # of the island at hand
    ("fresh", "b1"),  # bodies were made since the last step
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
    ("spot", "f8", (PAIRS, 2, 2)),  # points, in the other body's axes
    ("feature", "i8", (PAIRS, 2)),
    ("impulse", "f8", (PAIRS, 2, 2)),  # of each point: along the normal, across
    ("toi", "f8", (PAIRS,)),
    ("toi_known", "b1", (PAIRS,)),
    ("toi_count", "i8", (PAIRS,)),
]
_SCRATCH = [
    ("island", "i8", (MOST,)),  # pairs that are solved together
    ("solved", "i8", (MOST,)),  # points of each that the velocity solver sees
    ("constraint", "f8", (MOST, CONSTRAINT)),
    ("marked_motion", "f8", (MOVING, 3)),  # velocity and spin some sweeps ago
    ("marked_impulse", "f8", (MOST, 2, 2)),
    ("simplex", "f8", (3, 7)),
    ("support", "i8", (3, 2)),
    ("simplex_size", "i8"),
    ("metric", "f8"),
    ("clip", "f8", (2, 2)),
    ("clip_feature", "i8", (2,)),
]

STATE = np.dtype(_GAME + _BODIES + _CONTACTS + _SCRATCH, align=True)
