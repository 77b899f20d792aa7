"""PPO's update of one member after another, from its rollout to its weights.

Plain loops that `loops.py` compiles. A member goes through everything before the next one's turn,
so that its weights and rows stay near the processor. A lone member's threads share the tasks of
each phase; who does which changes no bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.off_policy.gate import (
    FIRST,
    MEMBER,
    PHASE,
    claim,
    finish,
    next_of_others,
    open_tasks,
    wait_for,
)
from slipstream.agents.ppo.member_gradient import CRITIC, Net, Space, member_gradient
from slipstream.agents.ppo.member_rows import (
    Experience,
    Rows,
    explain,
    fill_rows,
    load_finals,
    load_rows,
)
from slipstream.agents.ppo.surrogate import APPROX_KL, minibatch_moments
from slipstream.agents.ppo.tally import Tally, apply_gradient
from slipstream.nets.adam import TrainState
from slipstream.vector.draws import permutation_rows

# Kinds of phases. Tasks are ranges of observations and the final ones; ranges of copies; the
# explained variance and orders of some epochs; moments of their minibatches; parts of one
# minibatch's gradient. A phase's number is _KINDS times its first epoch, or its minibatch, plus its
# kind.
_LOAD, _FILL, _ORDER, _MOMENTS, _GRADIENT = 0, 1, 2, 3, 4
_KINDS = 5


class Epochs(NamedTuple):
    """What the update of M members reads and changes.

    Attributes:
        net, weights: Net and TrainState; losses: float64 [M, 4], settings of the losses.
        experience, rows: Experience and Rows.
        keys: uint64 [M, epochs], of the streams that each epoch's order is drawn from.
        order: int64 [some, R], of one member's next epochs; overwritten.
        moments: float64 [some, minibatches, 3], see `minibatch_moments`; overwritten.
        normalise: whether advantages get mean 0 and deviation 1 in each minibatch.
        statistics: float64 [parts, >= S], of the minibatch under way; overwritten.
        tally, space: Tally and Space.
        gate: by which threads share the tasks of a lone member.
    """

    net: Net
    weights: TrainState
    losses: NDArray[np.float64]
    experience: Experience
    rows: Rows
    keys: NDArray[np.uint64]
    order: NDArray[np.int64]
    moments: NDArray[np.float64]
    normalise: bool
    statistics: NDArray[np.float64]
    tally: Tally
    space: Space
    gate: NDArray[np.int64]


def update_members(by: Any, helps: bool) -> None:
    """The whole update of all members; or, as a helper, tasks of whoever leads.

    Args:
        by: Epochs.
        helps: until the gate closes.
    """
    if helps:
        help_out(by)
        return
    for m in range(len(by.keys)):
        update_member(by, m)


def update_member(by: Any, m: int) -> None:
    """Rows, and all epochs until member m is frozen."""
    epochs, together, minibatches = by.keys.shape[1], len(by.order), by.moments.shape[1]
    parts = len(by.statistics)
    share(by, m, _LOAD, parts + 1)
    share(by, m, _FILL, parts)
    for first in range(0, epochs, together):
        some = min(together, epochs - first)
        share(by, m, _KINDS * first + _ORDER, some + 1)
        if by.tally.frozen[m]:
            return
        share(by, m, _KINDS * first + _MOMENTS, some * minibatches)
        for step in range(first * minibatches, (first + some) * minibatches):
            if by.tally.frozen[m]:
                return
            share(by, m, _KINDS * step + _GRADIENT, parts)
            apply_gradient(by.weights, by.statistics, APPROX_KL, by.tally, m)


def share(by: Any, m: int, phase: int, tasks: int) -> None:
    """Does the tasks 0, 1, ... of a phase, together with whoever helps."""
    limit = open_tasks(by.gate, m, phase, tasks)
    ticket = claim(by.gate)
    while ticket >= 0:
        work(by, m, phase, ticket - (limit - tasks))
        finish(by.gate)
        ticket = claim(by.gate)
    wait_for(by.gate, limit)


def help_out(by: Any) -> None:
    """Takes part in another thread's update until its gate closes."""
    gate = by.gate
    ticket = next_of_others(gate)
    while ticket >= 0:
        work(by, gate[MEMBER], gate[PHASE], ticket - gate[FIRST])
        finish(gate)
        ticket = next_of_others(gate)


def work(by: Any, m: int, phase: int, task: int) -> None:
    """One task of member m."""
    kind, number = phase % _KINDS, phase // _KINDS
    if kind == _LOAD:
        load(by, m, task)
    elif kind == _FILL:
        copies = by.experience.obs.shape[1] // len(by.keys)
        lo, hi = share_of(copies, task, len(by.statistics))
        fill_rows(by.experience, by.rows, m, m * copies + lo, m * copies + hi)
    elif kind == _ORDER:
        order(by, m, number, task)
    elif kind == _MOMENTS:
        e, k = task // by.moments.shape[1], task % by.moments.shape[1]
        rows = by.order.shape[1] // by.moments.shape[1]
        own = by.order[e, k * rows : (k + 1) * rows]
        minibatch_moments(by.rows.packed, own, by.normalise, by.moments[e, k])
    else:
        part_gradient(by, m, number, task)


def share_of(total: int, part: int, parts: int) -> tuple[int, int]:
    """Where a part of `total` begins and ends."""
    return total * part // parts, total * (part + 1) // parts


def load(by: Any, m: int, task: int) -> None:
    """Inputs and values: a range of member m's observations, or its final ones."""
    weights, critic, parts = by.weights.weights[m], by.net.tables[CRITIC], len(by.statistics)
    if task < parts:
        lo, hi = share_of(len(by.rows.x), task, parts)
        space = by.space.outputs[task, CRITIC]
        load_rows(by.experience, by.rows, m, lo, hi, weights, critic, by.net.relu, space)
        return
    x, space = by.space.x[parts], by.space.outputs[parts, CRITIC]
    load_finals(by.experience, by.rows, m, weights, critic, by.net.relu, x, space)


def order(by: Any, m: int, first: int, task: int) -> None:
    """Draws the order of epoch first + task; the task after the last one explains the critic."""
    if first + task < by.keys.shape[1] and task < len(by.order):
        permutation_rows(by.keys[m, first + task :], by.order[task : task + 1])
    elif first == 0:
        explain(by.rows, m)


def part_gradient(by: Any, m: int, step: int, part: int) -> None:
    """The gradient of a part of minibatch `step`, counted over all epochs."""
    minibatches = by.moments.shape[1]
    e, k = step // minibatches % len(by.order), step % minibatches
    rows = by.order.shape[1] // minibatches
    width = rows // len(by.statistics)
    own = by.order[e, k * rows + part * width : k * rows + (part + 1) * width]
    member_gradient(
        *(by.net, by.weights, by.rows, m, part, own, by.moments[e, k], by.losses[m]),
        *(by.statistics[part], by.space),
    )
