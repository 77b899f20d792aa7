"""What an update of soft actor-critic reads and changes, as compiled loops take it.

Letters: M members, B rows of a batch, D numbers of an observation, K of an action.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.nets.adam import TrainState

CRITICS = 2

# Sums over the rows of a batch, each row's divided by B.
STATISTICS = ("critic_loss", "value", "actor_loss", "entropy")
CRITIC_LOSS = 0
VALUE = 1
ACTOR_LOSS = 2
ENTROPY = 3


class Nets(NamedTuple):
    """The networks.

    Attributes:
        actor, critic: int64 [L, 5], tables as in `layers.py`. An actor's input is the observation,
            a critic's the action and after it the observation, so that dQ/da is its first columns.
        relu: else tanh; width: K; columns: K rounded up to what products take.
    """

    actor: NDArray[np.int64]
    critic: NDArray[np.int64]
    relu: bool
    width: int
    columns: int


class Learned(NamedTuple):
    """What M members learn, a group for each optimiser.

    Attributes:
        actor, temperature: of the latter only the first number, log alpha, counts.
        critics: one group for each; targets: float32 [M, P], slow copies of each.
        turned_actor, turned_critics: float32 [M, P], their transposed matrices, see `turn_critic`.
    """

    actor: TrainState
    temperature: TrainState
    critics: tuple[TrainState, TrainState]
    targets: tuple[NDArray[np.float32], NDArray[np.float32]]
    turned_actor: NDArray[np.float32]
    turned_critics: tuple[NDArray[np.float32], NDArray[np.float32]]


class Settings(NamedTuple):
    """Numbers of the config, float64 [M]; infinity where a limit is off.

    Attributes:
        automatic: bool [M], whether the temperature is learned.
        target_every: updates between two of the targets.
    """

    learning_rate: NDArray[np.float64]
    adam_eps: NDArray[np.float64]
    max_grad_norm: NDArray[np.float64]
    target_rate: NDArray[np.float64]
    target_entropy: NDArray[np.float64]
    automatic: NDArray[np.bool_]
    target_every: int


class Scale(NamedTuple):
    """Of observations: mean, inverse_std float32 [M, D]; limit: see `scale_row`."""

    mean: NDArray[np.float32]
    inverse_std: NDArray[np.float32]
    limit: float


class Tally(NamedTuple):
    """What M members' updates were.

    Attributes:
        sums: float64 [M, S + 1], of STATISTICS and of the actor's gradient norm before clipping.
        updates: int64 [M], how many updates there were.
    """

    sums: NDArray[np.float64]
    updates: NDArray[np.int64]


class Space(NamedTuple):
    """Memory of one thread, for a block of b rows of one member.

    Attributes:
        actor_x, critic_x: float32 [b, inputs], the columns of ones in place.
        actor_y, actor_d, critic_d: float32 [b * all outputs]; critic_y: [2, b * all outputs].
        d_action: float32 [2, b, columns], dQ/da of both critics.
        drawn: float64 [2, b, K], noise and u of actions tanh(u).
        row: float64 [2, b], log p of those actions, and targets or values.
        lanes: float64 [LANES].
    """

    actor_x: NDArray[np.float32]
    critic_x: NDArray[np.float32]
    actor_y: NDArray[np.float32]
    actor_d: NDArray[np.float32]
    critic_y: NDArray[np.float32]
    critic_d: NDArray[np.float32]
    d_action: NDArray[np.float32]
    drawn: NDArray[np.float64]
    row: NDArray[np.float64]
    lanes: NDArray[np.float64]


class Learner(NamedTuple):
    """Who learns: everything but the batch.

    Attributes:
        seeds: uint64 [M], of the members; with the number of an update one names its noise.
        statistics: float64 [parts, S], sums over each part's rows, overwritten by an update.
        space: of the thread that calls.
    """

    net: Nets
    learned: Learned
    settings: Settings
    scale: Scale
    seeds: NDArray[np.uint64]
    statistics: NDArray[np.float64]
    tally: Tally
    space: Space
