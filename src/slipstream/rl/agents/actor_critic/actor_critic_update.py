"""Update of a member's actor and two critics: arguments, gradients and optimizer steps.

Plain loops, compiled by `off_policy/learning.py`; the torch implementations are the reference. Each
agent defines its actor's gradient. The tasks of an update may run in parallel. Most are parts of
the batch's rows. A critic is updated by one task, so that its gradient and moments stay in the
cache of one core. Rows are processed in blocks. A member whose gradient is not finite fails and is
never updated again.

Sizes: M members, B rows of a batch, D numbers of an observation, K numbers of an action.

Shared arguments of the functions here and in `td3.py` and `sac.py`; they are annotated `Any`,
because Numba infers their types:

    learner     Learner: networks, settings and memory of all members
    m           index of the member that learns, 0..M-1
    batch       Batch of `rl/experience/replay/ring.py`: B transitions of this member
    weight      float32 [B], importance weights; 1 for uniform sampling
    part        index of a part of the batch's rows, 0..learner.parts-1; see `row_range`
    c           index of a critic, 0 or 1
    first, last rows first..last-1 of the batch: a block of a part
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.jit.work_sharing import help_out, share
from slipstream.rl.compiled_loops import split_range
from slipstream.rl.experience.running_mean_std import Scale, scale_row
from slipstream.rl.nets.layers import (
    OFFSET,
    OUTPUTS,
    backward,
    forward,
    transpose_rows,
    transpose_weights,
)
from slipstream.rl.nets.optimizer import (
    StepSettings,
    TrainState,
    adam_step,
    begin_step,
    move_weights,
    polyak_update,
    sum_gradient,
    weight_range,
)

CRITICS = 2

# Means over the rows of a batch. The first two are summed over critics, the others over parts of
# the rows. An agent may append further ones.
STATISTICS = ("critic_loss", "value", "actor_loss")
CRITIC_LOSS = 0
VALUE = 1
ACTOR_LOSS = 2


class NetworkTables(NamedTuple):
    """Shapes of the networks.

    Attributes:
        actor, critic: int64 [L, 7], tables as in `rl/nets/layers.py`. The actor's input is the
            observation. A critic's input is the action followed by the observation, so that dQ/da
            is in its first columns.
        relu: activation, relu or tanh.
        width: K.
        columns: K padded for matrix products.
    """

    actor: NDArray[np.int64]
    critic: NDArray[np.int64]
    relu: bool
    width: int
    columns: int


class LearnedState(NamedTuple):
    """Everything that M members learn, one parameter group per optimizer.

    Attributes:
        actor: Parameter group.
        critics: One group each.
        targets: float32 [M, P], target network of each critic.
        transposed_actor, transposed_critics: float32 [M, P], transposed matrices, see
            `transpose_critic`.
    """

    actor: TrainState
    critics: tuple[TrainState, TrainState]
    targets: tuple[NDArray[np.float32], NDArray[np.float32]]
    transposed_actor: NDArray[np.float32]
    transposed_critics: tuple[NDArray[np.float32], NDArray[np.float32]]


class Settings(NamedTuple):
    """Settings of this iteration's updates.

    Attributes:
        step: settings of Adam.
        tau: float64 [M], Polyak factor of target updates.
        reward_factor: float64 [M], factor of rewards.
        target_update_interval, policy_delay: critic updates per target update and per actor update.
    """

    step: StepSettings
    tau: NDArray[np.float64]
    reward_factor: NDArray[np.float64]
    target_update_interval: int
    policy_delay: int


class UpdateStats(NamedTuple):
    """Statistics of M members' updates.

    Attributes:
        sums: float64 [M, S + 1], of statistics and of the actor's gradient norm before clipping.
        updates: int64 [M], number of updates.
        actor_updates: int64 [M], number of actor updates.
    """

    sums: NDArray[np.float64]
    updates: NDArray[np.int64]
    actor_updates: NDArray[np.int64]


# Kinds of actions in `Workspace.critic_x`: of the policy in the next state, of the replay buffer,
# and of the policy in the current state.
NEXT_POLICY = 0
BUFFER = 1
POLICY = 2


class Workspace(NamedTuple):
    """Memory of one member's update. Parallel tasks write to separate parts of it.

    Rows are processed in blocks of b, so that intermediate results stay in the L1 cache.

    Attributes:
        block: b.
        actor_x: float32 [B, inputs] with the column of ones set.
        critic_x: float32 [3, B, inputs] by kind of action, with the column of ones set.
        actor_y: float32 [B * all outputs], outputs of the actor's layers.
        actor_d: float32 [parts, b * all outputs], their derivatives.
        critic_y: float32 [tasks, 2, b * all outputs], outputs of the critics' layers.
        critic_d: float32 [tasks, b * all outputs], their derivatives.
        cost: float64 [B], subtracted from the value of each next action.
        td_target: float64 [B], targets of the critics.
        d_x: float32 [parts, b, columns], derivatives of values at the policy's actions.
        td_error: float64 [2, B], errors of both critics.
        squares: float64 [tasks, LANES], squares of a critic's gradient, or of a block of the
            actor's.
    """

    block: int
    actor_x: NDArray[np.float32]
    critic_x: NDArray[np.float32]
    actor_y: NDArray[np.float32]
    actor_d: NDArray[np.float32]
    critic_y: NDArray[np.float32]
    critic_d: NDArray[np.float32]
    cost: NDArray[np.float64]
    td_target: NDArray[np.float64]
    d_x: NDArray[np.float32]
    td_error: NDArray[np.float64]
    squares: NDArray[np.float64]


class Learner(NamedTuple):
    """Arguments of an update, except the batch.

    Attributes:
        extra: Additional state of the agent, a NamedTuple.
        seeds: uint64 [M]; with the number of an update, seed and number select its noise.
        statistics: float64 [2 or more, S], sums per critic or part; overwritten.
        parts: Parts of a batch's rows whose actor gradients are summed.
        gate: Shares the tasks of an update among threads; see `jit/work_sharing.py`.
    """

    net: NetworkTables
    learned: LearnedState
    extra: Any
    settings: Settings
    scale: Scale
    seeds: NDArray[np.uint64]
    statistics: NDArray[np.float64]
    stats: UpdateStats
    workspace: Workspace
    parts: int
    gate: NDArray[np.int64]


_ZERO = np.float32(0.0)


def row_range(learner: Any, part: int) -> tuple[int, int]:
    """Return lo, hi: a part has rows lo..hi-1 of the batch."""
    return split_range(len(learner.workspace.actor_x), part, learner.parts)


def actor_forward(
    learner: Any, m: int, weights: Any, obs: Any, first: int, last: int
) -> tuple[int, int]:
    """Scale rows first..last-1 of obs [B, D] into `workspace.actor_x` and compute the actor.

    Args:
        weights: float32 [P] of member m's actor or of its target.

    Returns:
        Offset of these rows' heads in `workspace.actor_y`, and their stride.
    """
    net, workspace = learner.net, learner.workspace
    for i in range(first, last):
        scale(learner, m, obs[i], workspace.actor_x[i])
    outputs = len(workspace.actor_y) // len(workspace.actor_x)
    y = workspace.actor_y[first * outputs : last * outputs]
    forward(weights, net.actor, net.relu, workspace.actor_x[first:last], y)
    top = len(net.actor) - 1
    return first * outputs + (last - first) * net.actor[top, OFFSET], net.actor[top, OUTPUTS]


def compute_td_targets(learner: Any, m: int, part: int, first: int, last: int, batch: Any) -> None:
    """Compute TD targets of rows first..last-1 into `workspace.td_target`.

        y = f r + discount (min_c Q'_c(s', a') - cost)

    (Fujimoto et al. 2018, "Addressing function approximation error in actor-critic methods",
    equation 10; f is the member's reward factor.)
    """
    net, workspace, b = learner.net, learner.workspace, last - first
    top = len(net.critic) - 1
    width, place = net.critic[top, OUTPUTS], b * net.critic[top, OFFSET]
    factor = learner.settings.reward_factor[m]
    x, y = workspace.critic_x[NEXT_POLICY, first:last], workspace.critic_y[part]
    for c in range(CRITICS):
        forward(learner.learned.targets[c][m], net.critic, net.relu, x, y[c])
    for i in range(b):
        at, row = place + i * width, first + i
        soft = min(float(y[0, at]), float(y[1, at])) - workspace.cost[row]
        discount = float(batch.discount[row])
        # The next observation of a terminated episode has no meaning.
        future = discount * soft if discount > 0.0 else 0.0
        workspace.td_target[row] = factor * float(batch.reward[row]) + future


def load_buffer_actions(learner: Any, action: Any, first: int, last: int) -> None:
    """Write the batch's actions [B, K] of rows first..last-1 as critic inputs."""
    for i in range(first, last):
        for j in range(learner.net.width):
            learner.workspace.critic_x[BUFFER, i, j] = action[i, j]
    load_critic_rows(learner, BUFFER, first, last)


def load_critic_rows(learner: Any, kind: int, first: int, last: int) -> None:
    """Write rows first..last-1 of `workspace.actor_x` into the critic inputs of a kind."""
    k = learner.net.width
    for i in range(first, last):
        to, x = learner.workspace.critic_x[kind, i], learner.workspace.actor_x[i]
        for j in range(learner.scale.mean.shape[1]):
            to[k + j] = x[j]


def critic_gradient(learner: Any, m: int, c: int, weight: Any) -> None:
    """Compute the gradient of critic c of member m.

        L_c = mean(w (Q_c(s, a) - y)^2 / 2)

    Args:
        learner, m, c: see above.
        weight: float32 [B], w.
    """
    net, learned, workspace = learner.net, learner.learned, learner.workspace
    rows = len(weight)
    gradient = learned.critics[c].gradients[m, 0]
    gradient[:] = _ZERO
    loss, total = 0.0, 0.0
    last = len(net.critic) - 1
    width, place = net.critic[last, OUTPUTS], net.critic[last, OFFSET]
    for first in range(0, rows, workspace.block):
        b = min(workspace.block, rows - first)
        x, at = workspace.critic_x[BUFFER, first : first + b], b * place
        y, d = workspace.critic_y[c, 0], workspace.critic_d[c]
        forward(learned.critics[c].params[m], net.critic, net.relu, x, y)
        d[at : at + b * width] = _ZERO
        for i in range(b):
            row = first + i
            value = float(y[at + i * width])
            td_error = value - workspace.td_target[row]
            factor = float(weight[row]) / rows
            d[at + i * width] = factor * td_error
            workspace.td_error[c, row] = td_error
            loss += 0.5 * factor * td_error * td_error
            total += value / (CRITICS * rows)
        backward(learned.transposed_critics[c][m], gradient, net.critic, net.relu, x, y, d)
    learner.statistics[c, CRITIC_LOSS], learner.statistics[c, VALUE] = loss, total


def scale(learner: Any, m: int, row: Any, out: Any) -> None:
    """Scale one observation of member m."""
    scale_row(learner.scale, m, row, out)


# Bound by the code generator to an agent's functions.
prepare: Any = None  # (learner, m, part, batch): computes critic inputs and targets of a part
actor_gradient: Any = None  # (learner, m, part, batch): computes a part of the actor's gradient
finish_update: Any = None  # (learner, m, actor_updated): updates alpha or the actor's target

# Phases of an update, in order.
_PREPARE, _CRITICS, _ACTOR, _SUM, _MOVE = 0, 1, 2, 3, 4


def update(learner: Any, m: int, batch: Any, weight: Any, error: Any) -> None:
    """Update member m once: critics, their targets and, every `policy_delay` updates, the actor.

    Args:
        learner: Learner.
        m: index of the member.
        batch: Batch.
        weight: float32 [B], importance weights.
        error: float32 [B], written: mean absolute error of the critics.
    """
    actor, critics, td_error = (
        learner.learned.actor,
        learner.learned.critics,
        learner.workspace.td_error,
    )
    job = learner, batch, weight
    if actor.failed[m]:
        return
    share(learner.gate, job, m, _PREPARE, learner.parts)
    share(learner.gate, job, m, _CRITICS, CRITICS)
    for i in range(len(error)):
        error[i] = (abs(td_error[0, i]) + abs(td_error[1, i])) / CRITICS
    for c in range(CRITICS):
        actor.failed[m] = actor.failed[m] or critics[c].failed[m]
    if actor.failed[m]:
        return
    actor_updated = critics[0].steps[m] % learner.settings.policy_delay == 0
    if actor_updated:
        share(learner.gate, job, m, _ACTOR, learner.parts)
        share(learner.gate, job, m, _SUM, learner.parts)
        if not begin_step(actor, m, learner.workspace.squares[: learner.parts]):
            return
        share(learner.gate, job, m, _MOVE, learner.parts)
        transpose_weights(actor.params[m], learner.net.actor, learner.learned.transposed_actor[m])
    record_update(learner, m, actor_updated)
    finish_update(learner, m, actor_updated)


def help_update(learner: Any, batch: Any, weight: Any, error: Any) -> None:
    """Execute tasks of another thread's updates until its gate closes."""
    help_out(learner.gate, (learner, batch, weight))


def work(job: Any, m: int, phase: int, task: int) -> None:
    """Execute one task: a part of the rows, a critic, or a part of the actor's weights.

    Args:
        job: learner, batch and importance weights, as for `update`.
        m: index of the member.
        phase: phase of the update.
        task: index of the task within the phase.
    """
    learner, batch, weight = job
    if phase == _PREPARE:
        prepare(learner, m, task, batch)
    elif phase == _CRITICS:
        critic_gradient(learner, m, task, weight)
        update_critic(learner, m, task)
    elif phase == _ACTOR:
        actor_gradient(learner, m, task, batch)
    elif phase == _SUM:
        sum_gradient(learner.learned.actor, m, task, learner.workspace.squares[: learner.parts])
    else:
        lo, hi = weight_range(learner.learned.actor, task, learner.parts)
        move_weights(learner.learned.actor, m, lo, hi, learner.settings.step)


def update_critic(learner: Any, m: int, c: int) -> None:
    """Update critic c of member m and its target."""
    learned, settings = learner.learned, learner.settings
    critic = learned.critics[c]
    adam_step(critic, m, learner.workspace.squares[c : c + 1], settings.step)
    if critic.failed[m]:
        return
    if critic.steps[m] % settings.target_update_interval == 0:
        polyak_update(learned.targets[c][m], critic.params[m], settings.tau[m])
    transpose_critic(learner.net, critic.params[m], learned.transposed_critics[c][m])


def record_update(learner: Any, m: int, actor_updated: bool) -> None:
    """Record the statistics of an update of member m; those of the actor only if it was updated."""
    stats, last = learner.stats, learner.statistics.shape[1]
    end = last if actor_updated else ACTOR_LOSS
    for part in range(len(learner.statistics)):
        for j in range(end):
            stats.sums[m, j] += learner.statistics[part, j]
    stats.updates[m] += 1
    if actor_updated:
        stats.sums[m, last] += learner.learned.actor.norm[m]
        stats.actor_updates[m] += 1


def transpose_critic(net: Any, weights: Any, transposed: Any) -> None:
    """Write the transposed matrices of a critic for `backward` and `input_gradient`."""
    transpose_weights(weights, net.critic, transposed)
    transpose_rows(weights, net.critic, 0, net.columns, transposed)
