"""What an update of an actor and two critics reads and changes, as compiled loops take it.

Letters: M members, B rows of a batch, D numbers of an observation, K of an action.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.nets.adam import TrainState

CRITICS = 2

# Sums over the rows of a batch, each row's divided by B; the first two from each critic, the others
# from each part of the rows. An agent may have more, after these.
STATISTICS = ("critic_loss", "value", "actor_loss")
CRITIC_LOSS = 0
VALUE = 1
ACTOR_LOSS = 2


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
        actor: a group; critics: one group for each.
        targets: float32 [M, P], slow copies of each critic.
        turned_actor, turned_critics: float32 [M, P], their transposed matrices, see `turn_critic`.
    """

    actor: TrainState
    critics: tuple[TrainState, TrainState]
    targets: tuple[NDArray[np.float32], NDArray[np.float32]]
    turned_actor: NDArray[np.float32]
    turned_critics: tuple[NDArray[np.float32], NDArray[np.float32]]


class Settings(NamedTuple):
    """Numbers of the config, float64 [M]; infinity where a limit is off.

    Attributes:
        reward_factor: what rewards are multiplied by.
        target_every, actor_every: updates of the critics between two of their targets, and between
            two of the actor.
    """

    learning_rate: NDArray[np.float64]
    adam_eps: NDArray[np.float64]
    max_grad_norm: NDArray[np.float64]
    target_rate: NDArray[np.float64]
    reward_factor: NDArray[np.float64]
    target_every: int
    actor_every: int


class Scale(NamedTuple):
    """Of observations: mean, inverse_std float32 [M, D]; limit: see `scale_row`."""

    mean: NDArray[np.float32]
    inverse_std: NDArray[np.float32]
    limit: float


class Tally(NamedTuple):
    """What M members' updates were.

    Attributes:
        sums: float64 [M, S + 1], of statistics and of the actor's gradient norm before clipping.
        updates: int64 [M], how many there were; moves: int64 [M], how many moved the actor.
    """

    sums: NDArray[np.float64]
    updates: NDArray[np.int64]
    moves: NDArray[np.int64]


# Kinds of actions, of `Space.critic_x`: the policy's after a transition, what was done in it, and
# the policy's own in its place.
NEXT = 0
DONE = 1
OWN = 2


class Space(NamedTuple):
    """Memory of one member's update. Tasks that run side by side write places of their own.

    Rows pass in blocks of b, so that what a block leaves stays in the processor's near memory.

    Attributes:
        block: b.
        actor_x: float32 [B, inputs], critic_x: float32 [3, B, inputs] by kind of action, the
            columns of ones in place.
        actor_y: float32 [B * all outputs]; actor_d: float32 [parts, b * all outputs].
        critic_y: float32 [tasks, 2, b * all outputs]; critic_d: float32 [tasks, b * all outputs].
        cost: float64 [B], taken off the value of each next action.
        goal: float64 [B], what the critics' values are to become.
        d_x: float32 [parts, b, columns], derivatives of values for the policy's own actions.
        gap: float64 [2, B], both critics' errors.
        lanes: float64 [tasks, LANES]; squares: float64 [parts], of the actor's gradient.
    """

    block: int
    actor_x: NDArray[np.float32]
    critic_x: NDArray[np.float32]
    actor_y: NDArray[np.float32]
    actor_d: NDArray[np.float32]
    critic_y: NDArray[np.float32]
    critic_d: NDArray[np.float32]
    cost: NDArray[np.float64]
    goal: NDArray[np.float64]
    d_x: NDArray[np.float32]
    gap: NDArray[np.float64]
    lanes: NDArray[np.float64]
    squares: NDArray[np.float64]


class Learner(NamedTuple):
    """Who learns: everything but the batch.

    Attributes:
        own: what the agent has besides, a NamedTuple.
        seeds: uint64 [M], of the members; with the number of an update one names its noise.
        statistics: float64 [2 or more, S], sums of what a critic, or a part, saw; overwritten.
        parts: of a batch's rows, which the actor's gradient is summed from.
        gate: where threads come by the tasks of an update, see `off_policy/gate.py`.
    """

    net: Nets
    learned: Learned
    own: Any
    settings: Settings
    scale: Scale
    seeds: NDArray[np.uint64]
    statistics: NDArray[np.float64]
    tally: Tally
    space: Space
    parts: int
    gate: NDArray[np.int64]
