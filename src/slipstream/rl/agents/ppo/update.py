"""PPO update of a member: rows of its rollout, gradients of minibatches, epochs.

Plain loops, compiled as one function, `update_members`. `losses.py` has the losses of a row.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.jit.alignment import matrix, prefetch_element
from slipstream.jit.rng import permutation_rows
from slipstream.jit.struct_pointer import StructPointer
from slipstream.jit.work_sharing import help_out, share
from slipstream.rl.agents.ppo.losses import (
    ACTION,
    APPROX_KL,
    choices_gradient,
    explained_variance,
    gaussian_gradient,
    minibatch_normalisation,
    pack_rows,
)
from slipstream.rl.compiled_loops import b1, compile_loops, f4, f8, i8, split_range
from slipstream.rl.experience.advantages import gae
from slipstream.rl.experience.running_mean_std import SCALE, Scale, scale_row
from slipstream.rl.nets.layers import OFFSET, OUTPUTS, backward, forward, transpose_weights
from slipstream.rl.nets.optimizer import (
    STATE,
    STEP_SETTINGS,
    StepSettings,
    TrainState,
    begin_step,
    move_weights,
    sum_gradient,
    weight_range,
)


class Experience(NamedTuple):
    """A rollout of M members, E = M N environments, with scales and coefficients.

    Attributes:
        obs: float32 [T + 1, E, D].
        scale: scale of observations.
        mask: bool [T + 1, E, num_actions] of allowed actions, or [0, 0, 0] for none.
        action: float32 [T, E, K], exact for discrete actions below 2^24.
        log_prob: float32 [T, E].
        reward: float32 [T, E], scaled.
        terminated, truncated, valid: bool [T, E].
        final_obs: float32 [n, D].
        final_index: int64 [n, 2].
        gamma, lam: float32 [E].
        rewarded: bool [M], members that learn from rewards; the others' advantages are 0.
    """

    obs: NDArray[np.float32]
    scale: Scale
    mask: NDArray[np.bool_]
    action: NDArray[np.float32]
    log_prob: NDArray[np.float32]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    final_obs: NDArray[np.float32]
    final_index: NDArray[np.int64]
    gamma: NDArray[np.float32]
    lam: NDArray[np.float32]
    rewarded: NDArray[np.bool_]


class Rows(NamedTuple):
    """Arrays that an update computes from Experience; overwritten.

    `x`, `packed` and `mask` hold one member at a time.

    Attributes:
        x: float32 [(T + 1) N, inputs] with the column of ones set.
        packed: float32 [R, 5 + K], see `pack_rows`.
        mask: bool [R, num_actions], or [0, 0] for none.
        value: float32 [T + 1, E].
        final_value: float32 [n].
        advantage, target: float32 [T, E].
        indices: int64 [b], indices of a block of final observations.
        explained_variance: float64 [M], explained variance of the critic.
    """

    x: NDArray[np.float32]
    packed: NDArray[np.float32]
    mask: NDArray[np.bool_]
    value: NDArray[np.float32]
    final_value: NDArray[np.float32]
    advantage: NDArray[np.float32]
    target: NDArray[np.float32]
    indices: NDArray[np.int64]
    explained_variance: NDArray[np.float64]


def load_rows(
    experience: Any, rows: Any, m: int, lo: int, hi: int, weights: Any, critic: Any, relu: bool,
    block: int, buffer: Any,
) -> None:  # fmt: skip
    """Compute inputs and values of member m's observations lo..hi-1 of its (T + 1) N.

    Args:
        experience: Experience.
        rows: Rows, written.
        m: index of the member.
        lo, hi: range of observations.
        weights: float32 [P] of the member.
        critic: int64 [L, 7], as in `rl/nets/layers.py`.
        relu: activation, relu or tanh.
        block: rows that are processed together.
        buffer: float32, outputs of all layers for a block, see `forward`; overwritten.
    """
    num_envs = experience.obs.shape[1] // len(experience.rewarded)
    for first in range(lo, hi, block):
        x = rows.x[first : min(first + block, hi)]
        for i in range(len(x)):
            t, n = (first + i) // num_envs, (first + i) % num_envs
            scale_row(experience.scale, m, experience.obs[t, m * num_envs + n], x[i])
        at, width = critic_outputs(weights, critic, relu, x, buffer)
        for i in range(len(x)):
            t, n = (first + i) // num_envs, (first + i) % num_envs
            rows.value[t, m * num_envs + n] = buffer[at + i * width]


def load_final_values(
    experience: Any, rows: Any, m: int, weights: Any, critic: Any, relu: bool, x: Any, buffer: Any
) -> None:
    """Compute values of member m's final observations; x: float32 [b, inputs], overwritten."""
    num_envs, total = (
        experience.obs.shape[1] // len(experience.rewarded),
        len(experience.final_index),
    )
    b = 0
    for i in range(total):
        if experience.final_index[i, 1] // num_envs == m:
            scale_row(experience.scale, m, experience.final_obs[i], x[b])
            rows.indices[b] = i
            b += 1
        if b == len(x) or (b > 0 and i == total - 1):
            at, width = critic_outputs(weights, critic, relu, x[:b], buffer)
            for k in range(b):
                rows.final_value[rows.indices[k]] = buffer[at + k * width]
            b = 0


def critic_outputs(weights: Any, critic: Any, relu: bool, x: Any, buffer: Any) -> tuple[int, int]:
    """Compute the critic's outputs in `buffer`; return their offset and row stride."""
    last = len(critic) - 1
    forward(weights, critic, relu, x, buffer)
    return len(x) * critic[last, OFFSET], critic[last, OUTPUTS]


def fill_rows(experience: Any, rows: Any, m: int, lo: int, hi: int) -> None:
    """Compute advantages, targets and packed rows of member m's environments lo..hi-1."""
    e = experience
    gae(
        *(lo, hi, e.reward, rows.value, e.terminated, e.truncated, e.valid),
        *(rows.final_value, e.final_index, e.gamma, e.lam, rows.advantage, rows.target),
    )
    if not e.rewarded[m]:
        rows.advantage[:, lo:hi] = 0.0
    num_envs = e.obs.shape[1] // len(e.rewarded)
    pack_rows(
        *(lo, hi, m * num_envs, num_envs, e.log_prob, rows.advantage, rows.target, rows.value),
        *(e.valid, e.action, rows.packed),
    )
    if len(rows.mask) > 0:
        for t in range(len(e.reward)):
            for env in range(lo, hi):
                allowed, to = e.mask[t, env], rows.mask[t * num_envs + env - m * num_envs]
                for j in range(len(to)):
                    to[j] = allowed[j]


def record_explained_variance(rows: Any, m: int) -> None:
    """Record member m's explained variance."""
    rows.explained_variance[m] = explained_variance(rows.packed)


ACTOR = 0
CRITIC = 1
_ZERO = np.float32(0.0)


class Net(NamedTuple):
    """Layout of actor and critic in a member's row of weights, and type of the actions.

    Attributes:
        tables: int64 [2, L, 7], actor and critic, as in `rl/nets/layers.py`.
        relu: activation, relu or tanh.
        continuous: actions are continuous, else discrete.
        log_std: offset of the K log standard deviations of continuous actions.
        sizes: int64 [K], number of actions of each component; empty for continuous actions.
    """

    tables: NDArray[np.int64]
    relu: bool
    continuous: bool
    log_std: int
    sizes: NDArray[np.int64]


class PPOWorkspace(NamedTuple):
    """Memory of each task of a phase for one block; each starts on its own cache line.

    Attributes:
        x: float32 [parts + 1, b, inputs], inputs of a block.
        outputs: float32 [parts + 1, 2, b * all outputs], outputs of actor and critic.
        d_outputs: float32 [parts, 2, b * all outputs], their derivatives.
        transposed: float32 [parts, P], transposed matrices.
        scratch: float64 [parts, 3, >= head width].
    """

    x: NDArray[np.float32]
    outputs: NDArray[np.float32]
    d_outputs: NDArray[np.float32]
    transposed: NDArray[np.float32]
    scratch: NDArray[np.float64]


def member_gradient(
    net: Any, weights: Any, rows: Any, m: int, p: int, order: Any, normalisation: Any,
    coefficients: Any, statistics: Any, workspace: Any,
) -> None:  # fmt: skip
    """Compute member m's gradient buffer p from some rows of a minibatch.

    Args:
        net: Net.
        weights: TrainState.
        rows: Rows.
        m: index of the member.
        p: index of the gradient buffer.
        order: int64 [b], indices of the rows.
        normalisation: float64 [3] of the minibatch, see `minibatch_normalisation`.
        coefficients: float64 [3], loss coefficients of the member.
        statistics: float64 [>= S], written.
        workspace: PPOWorkspace.
    """
    weight, gradient, tables = weights.params[m], weights.gradients[m, p], net.tables
    transposed, scratch = workspace.transposed[p], workspace.scratch[p]
    gradient[:] = _ZERO
    transpose_weights(weight, tables[ACTOR], transposed)
    transpose_weights(weight, tables[CRITIC], transposed)
    reset_sums(statistics, scratch)
    last = tables.shape[1] - 1
    block = workspace.x.shape[1]
    outputs, d_outputs = workspace.outputs[p], workspace.d_outputs[p]
    for first in range(0, len(order), block):
        selected = order[first : first + block]
        b = len(selected)
        x = workspace.x[p, :b]
        for r in order[first + block : first + 2 * block]:
            prefetch_element(rows.x, r, 0)
        for i in range(b):
            prefetch_element(rows.packed, selected[i], 0)
            row, to = rows.x[selected[i]], x[i]
            for j in range(len(to)):
                to[j] = row[j]
        for which in range(2):
            forward(weight, tables[which], net.relu, x, outputs[which])
        columns, place = tables[ACTOR, last, OUTPUTS], b * tables[ACTOR, last, OFFSET]
        head = matrix(outputs[ACTOR], place, b, columns)
        d_head = matrix(d_outputs[ACTOR], place, b, columns)
        columns, place = tables[CRITIC, last, OUTPUTS], b * tables[CRITIC, last, OFFSET]
        value = matrix(outputs[CRITIC], place, b, columns)
        d_value = matrix(d_outputs[CRITIC], place, b, columns)
        d_head[:] = _ZERO  # including the padding
        d_value[:] = _ZERO
        outputs_gradient(
            net,
            weight,
            rows,
            selected,
            normalisation,
            coefficients,
            head,
            value,
            d_head,
            d_value,
            statistics,
            scratch,
        )
        for which in range(2):
            backward(
                *(transposed, gradient, tables[which], net.relu, x),
                *(outputs[which], d_outputs[which]),
            )
    add_std_gradient(net, rows, gradient, scratch)


def reset_sums(statistics: Any, scratch: Any) -> None:
    """Reset the sums; those of d loss / d log_std are in scratch[2]."""
    statistics[:] = 0.0
    scratch[2, :] = 0.0


def outputs_gradient(
    net: Any, weight: Any, rows: Any, order: Any, normalisation: Any, coefficients: Any, head: Any,
    value: Any, d_head: Any, d_value: Any, statistics: Any, scratch: Any,
) -> None:  # fmt: skip
    """Compute losses of a block and their derivatives with respect to the networks' outputs."""
    if net.continuous:
        log_std = weight[net.log_std : net.log_std + rows.packed.shape[1] - ACTION]
        gaussian_gradient(
            *(head, value, log_std, rows.packed, order, normalisation, coefficients),
            *(d_head, d_value, scratch[2], statistics, scratch),
        )
    else:
        choices_gradient(
            *(head, value, rows.packed, order, rows.mask, net.sizes),
            *(normalisation, coefficients, d_head, d_value, statistics, scratch),
        )


def add_std_gradient(net: Any, rows: Any, gradient: Any, scratch: Any) -> None:
    """Write the gradient of log_std."""
    if net.continuous:
        for j in range(rows.packed.shape[1] - ACTION):
            gradient[net.log_std + j] = scratch[2, j]


class PPOUpdateStats(NamedTuple):
    """State and statistics of the updates of g members.

    Attributes:
        settings: settings of Adam.
        target_kl: float64 [g], estimated KL above which a minibatch freezes the member: 1.5 times
            the setting; infinity for no limit.
        frozen: bool [g], members that are not updated again in this rollout.
        sums: float64 [g, S + 1], sums of the S statistics and of the gradient norm before clipping,
            over minibatches that changed the member.
        updates: int64 [g], number of these minibatches.
        squares: float64 [1, LANES], see `sum_gradient`.
    """

    settings: StepSettings
    target_kl: NDArray[np.float64]
    frozen: NDArray[np.bool_]
    sums: NDArray[np.float64]
    updates: NDArray[np.int64]
    squares: NDArray[np.float64]


def begin_update(weights: Any, statistics: Any, stats: Any, m: int) -> bool:
    """Sum the gradient of a minibatch and count it, unless member m is frozen.

    A member is frozen if its KL exceeds the target or its gradient is not finite. Its weights,
    moments and step count are then unchanged.

    Args:
        weights: TrainState.
        statistics: float64 [parts, >= S] of the minibatch.
        stats: PPOUpdateStats.
        m: index of the member.

    Returns:
        True if the member's weights must be updated.
    """
    divergence = 0.0
    for part in range(len(statistics)):
        divergence += statistics[part, APPROX_KL]
    if divergence > stats.target_kl[m] or weights.failed[m]:
        stats.frozen[m] = True
    if stats.frozen[m]:
        return False
    sum_gradient(weights, m, 0, stats.squares)
    if not begin_step(weights, m, stats.squares):
        stats.frozen[m] = True
        return False
    stats.updates[m] += 1
    last = stats.sums.shape[1] - 1
    for part in range(len(statistics)):
        for j in range(last):
            stats.sums[m, j] += statistics[part, j]
    stats.sums[m, last] += weights.norm[m]
    return True


# Kinds of phases, see `update_member`. The number of a phase is _KINDS times its first epoch or its
# minibatch, plus its kind.
_LOAD, _FILL, _ORDER, _NORMALISATION, _GRADIENT, _MOVE = 0, 1, 2, 3, 4, 5
_KINDS = 6


class UpdateJob(NamedTuple):
    """Arguments of the update of M members.

    Attributes:
        net, weights: Net and TrainState.
        coefficients: float64 [M, 3], of the losses: clip range, entropy, value.
        experience, rows: Experience and Rows.
        keys: uint64 [M, epochs], streams of the permutation of each epoch.
        order: int64 [k, R], permutations of one member's next k epochs; overwritten.
        normalisation: float64 [k, minibatches, 3], see `minibatch_normalisation`; overwritten.
        normalise: Normalize advantages in each minibatch.
        statistics: float64 [parts, >= S], of the current minibatch; overwritten.
        stats, workspace: PPOUpdateStats and PPOWorkspace.
        gate: Shares the tasks of a lone member among threads.
    """

    net: Net
    weights: TrainState
    coefficients: NDArray[np.float64]
    experience: Experience
    rows: Rows
    keys: NDArray[np.uint64]
    order: NDArray[np.int64]
    normalisation: NDArray[np.float64]
    normalise: bool
    statistics: NDArray[np.float64]
    stats: PPOUpdateStats
    workspace: PPOWorkspace
    gate: NDArray[np.int64]


def update_members(job: Any, helps: bool) -> None:
    """Run the whole update of all members, or help the thread that runs it.

    Args:
        job: UpdateJob.
        helps: execute tasks of the other thread until the gate closes.
    """
    if helps:
        help_out(job.gate, job)
        return
    for m in range(len(job.keys)):
        update_member(job, m)


def update_member(job: Any, m: int) -> None:
    """Run the whole update of member m: compute its rows, then all epochs until it is frozen.

    An update has six kinds of phases. The tasks of a phase are independent of each other:

        kind           computes                               one task for
        load           inputs and values                      a range of observations; final ones
        fill           advantages, targets and packed rows    a range of environments
        order          permutations of rows                   an epoch; the explained variance
        normalisation  normalization of advantages            a minibatch
        gradient       gradient of one minibatch              a part of its rows
        move           step of Adam                           a part of the weights

    The last four repeat. Orders and normalizations are computed for `len(job.order)` epochs at a
    time, gradients and steps for each of their minibatches.

    `share` (`jit/work_sharing.py`) opens the tasks of a phase and returns when all are done. Each
    task is a call of `work` below, by this thread or a helper. `loops` binds `work` when it
    compiles both.

    Args:
        job: UpdateJob.
        m: index of the member.
    """
    epochs, together, minibatches = job.keys.shape[1], len(job.order), job.normalisation.shape[1]
    parts = len(job.statistics)
    share(job.gate, job, m, _LOAD, parts + 1)
    share(job.gate, job, m, _FILL, parts)
    for first in range(0, epochs, together):
        num_epochs = min(together, epochs - first)
        share(job.gate, job, m, _KINDS * first + _ORDER, num_epochs + 1)
        if job.stats.frozen[m]:
            return
        share(job.gate, job, m, _KINDS * first + _NORMALISATION, num_epochs * minibatches)
        for step in range(first * minibatches, (first + num_epochs) * minibatches):
            if job.stats.frozen[m]:
                return
            share(job.gate, job, m, _KINDS * step + _GRADIENT, parts)
            if begin_update(job.weights, job.statistics, job.stats, m):
                share(job.gate, job, m, _KINDS * step + _MOVE, parts)


def work(job: Any, m: int, phase: int, task: int) -> None:
    """Execute one task of a phase of member m, for `share` and `help_out` of `work_sharing`."""
    kind, number = phase % _KINDS, phase // _KINDS
    if kind == _LOAD:
        load_values(job, m, task)
    elif kind == _FILL:
        num_envs = job.experience.obs.shape[1] // len(job.keys)
        lo, hi = split_range(num_envs, task, len(job.statistics))
        fill_rows(job.experience, job.rows, m, m * num_envs + lo, m * num_envs + hi)
    elif kind == _ORDER:
        order(job, m, number, task)
    elif kind == _NORMALISATION:
        e, k = task // job.normalisation.shape[1], task % job.normalisation.shape[1]
        rows = job.order.shape[1] // job.normalisation.shape[1]
        selected = job.order[e, k * rows : (k + 1) * rows]
        minibatch_normalisation(job.rows.packed, selected, job.normalise, job.normalisation[e, k])
    elif kind == _GRADIENT:
        part_gradient(job, m, number, task)
    else:
        lo, hi = weight_range(job.weights, task, len(job.statistics))
        move_weights(job.weights, m, lo, hi, job.stats.settings)


def load_values(job: Any, m: int, task: int) -> None:
    """Compute inputs and values for a range of member m's observations, or its final ones."""
    weights, critic, parts = job.weights.params[m], job.net.tables[CRITIC], len(job.statistics)
    if task < parts:
        lo, hi = split_range(len(job.rows.x), task, parts)
        buffer = job.workspace.outputs[task, CRITIC]
        block = job.workspace.x.shape[1]
        load_rows(job.experience, job.rows, m, lo, hi, weights, critic, job.net.relu, block, buffer)
        return
    x, buffer = job.workspace.x[parts], job.workspace.outputs[parts, CRITIC]
    load_final_values(job.experience, job.rows, m, weights, critic, job.net.relu, x, buffer)


def order(job: Any, m: int, first: int, task: int) -> None:
    """Shuffle epoch first + task; the task after the last one computes the explained variance."""
    if first + task < job.keys.shape[1] and task < len(job.order):
        permutation_rows(job.keys[m, first + task :], job.order[task : task + 1])
    elif first == 0:
        record_explained_variance(job.rows, m)


def part_gradient(job: Any, m: int, step: int, part: int) -> None:
    """Compute the gradient of a part of minibatch `step`, counted over all epochs."""
    minibatches = job.normalisation.shape[1]
    e, k = step // minibatches % len(job.order), step % minibatches
    rows = job.order.shape[1] // minibatches
    width = rows // len(job.statistics)
    selected = job.order[e, k * rows + part * width : k * rows + (part + 1) * width]
    member_gradient(
        job.net,
        job.weights,
        job.rows,
        m,
        part,
        selected,
        job.normalisation[e, k],
        job.coefficients[m],
        job.statistics[part],
        job.workspace,
    )


_STATS = PPOUpdateStats(STEP_SETTINGS, f8(1), b1(1), f8(2), i8(1), f8(2))
_NET = Net(i8(3), True, True, 0, i8(1))
_EXPERIENCE = Experience(
    *(f4(3), SCALE, b1(3), f4(3), f4(2), f4(2), b1(2), b1(2), b1(2), f4(2), i8(2), f4(1), f4(1)),
    b1(1),
)
_ROWS = Rows(
    *(f4(2), f4(2), b1(2), f4(2), f4(1), f4(2)),
    *(f4(2), i8(1), f8(1)),
)
_WORKSPACE = PPOWorkspace(f4(3), f4(3), f4(3), f4(2), f8(3))
_UPDATE_JOB = UpdateJob(
    net=_NET,
    weights=STATE,
    coefficients=f8(2),
    experience=_EXPERIENCE,
    rows=_ROWS,
    keys=np.zeros((1, 1), np.uint64),
    order=i8(2),
    normalisation=f8(3),
    normalise=True,
    statistics=f8(2),
    stats=_STATS,
    workspace=_WORKSPACE,
    gate=i8(1),
)


@functools.cache
def loops() -> dict[str, Any]:
    """Compile `update_members`."""
    examples = {update_members: (StructPointer(_UPDATE_JOB), False)}
    return compile_loops("ppo", examples, {"work": cast(FunctionType, work)}, refers=True)
