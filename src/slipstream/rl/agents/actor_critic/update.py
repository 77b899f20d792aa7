"""One update of a member's actor and two critics: what it reads and changes, gradients, steps.

Plain loops that `off_policy/learning.py` compiles; the torch forms are what they calculate, and an
actor's gradient is its agent's. An update is a few tasks that may run side by side: by parts of the
batch's rows, but by critic where one is moved, so that its gradient and moments pass through one
core's memory only. Rows pass in blocks. A member whose gradient is not finite fails, and stands
still from then on.

Letters: M members, B rows of a batch, D numbers of an observation, K of an action.

Arguments that the functions here and those of `td3.py` and `sac.py` have in common; Numba finds
their types itself, so they are annotated `Any`:

    by          Learner: networks, settings and memory of all members
    m           number of the member that learns, 0..M-1
    batch       rl/experience/replay/ring.py's Batch: B transitions of this member
    weight      float32 [B], of importance; 1 where transitions are drawn evenly
    part        number of a part of the batch's rows, 0..by.parts-1: `rows_of`
    c           number of a critic, 0 or 1
    first, last rows first..last-1 of the batch, one block of a part
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.jit.work_sharing import help_out, share
from slipstream.rl.compiled_loops import range_of
from slipstream.rl.experience.scaling import Scale, scale_row
from slipstream.rl.nets.layers import OUTPUTS, PLACE, backward, forward, turn, turn_rows
from slipstream.rl.nets.optimizer import (
    StepSettings,
    TrainState,
    begin_step,
    lines_of,
    move_weights,
    polyak_update,
    step_alone,
    sum_gradient,
)

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
        actor, critic: int64 [L, 7], tables as in `rl/nets/layers.py`. An actor's input is the
            observation, a critic's the action and after it the observation, so that dQ/da is its
            first columns.
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
    """Numbers of the config and of this iteration, float64 [M].

    Attributes:
        step: of Adam's steps; tau: how far an update moves the targets.
        reward_factor: what rewards are multiplied by.
        target_update_interval, actor_every: critic updates between target updates and between
            actor updates.
    """

    step: StepSettings
    tau: NDArray[np.float64]
    reward_factor: NDArray[np.float64]
    target_update_interval: int
    actor_every: int


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
        squares: float64 [tasks, LANES], of a critic's gradient, or of a block of the actor's.
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
    squares: NDArray[np.float64]


class Learner(NamedTuple):
    """Who learns: everything but the batch.

    Attributes:
        own: what the agent has besides, a NamedTuple.
        seeds: uint64 [M], of the members; with the number of an update one names its noise.
        statistics: float64 [2 or more, S], sums of what a critic, or a part, saw; overwritten.
        parts: of a batch's rows, which the actor's gradient is summed from.
        gate: where threads come by the tasks of an update, see `jit/work_sharing.py`.
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


_ZERO = np.float32(0.0)


def rows_of(by: Any, part: int) -> tuple[int, int]:
    """Returns lo, hi: a part has rows lo..hi-1 of the batch."""
    return range_of(len(by.space.actor_x), part, by.parts)


def ask_actor(by: Any, m: int, weights: Any, obs: Any, first: int, last: int) -> tuple[int, int]:
    """Scales rows first..last-1 of obs [B, D] into `space.actor_x` and passes them on.

    Args:
        weights: float32 [P], of member m's actor, or of its target.

    Returns:
        where the heads of these rows begin in `space.actor_y`, and how far they lie apart.
    """
    net, space = by.net, by.space
    for i in range(first, last):
        scale(by, m, obs[i], space.actor_x[i])
    outputs = len(space.actor_y) // len(space.actor_x)
    y = space.actor_y[first * outputs : last * outputs]
    forward(weights, net.actor, net.relu, space.actor_x[first:last], y)
    top = len(net.actor) - 1
    return first * outputs + (last - first) * net.actor[top, PLACE], net.actor[top, OUTPUTS]


def set_goals(by: Any, m: int, part: int, first: int, last: int, batch: Any) -> None:
    """What both critics' values of rows first..last-1 are to become, into `space.goal`.

        y = f r + discount (min_c Q'_c(s', a') - cost)

    (Fujimoto et al. 2018, "Addressing function approximation error in actor-critic methods",
    equation 10; f is the member's factor of rewards.)
    """
    net, space, b = by.net, by.space, last - first
    top = len(net.critic) - 1
    width, place = net.critic[top, OUTPUTS], b * net.critic[top, PLACE]
    factor = by.settings.reward_factor[m]
    x, y = space.critic_x[NEXT, first:last], space.critic_y[part]
    for c in range(CRITICS):
        forward(by.learned.targets[c][m], net.critic, net.relu, x, y[c])
    for i in range(b):
        at, row = place + i * width, first + i
        soft = min(float(y[0, at]), float(y[1, at])) - space.cost[row]
        discount = float(batch.discount[row])
        # after a termination, the next observation means nothing
        future = discount * soft if discount > 0.0 else 0.0
        space.goal[row] = factor * float(batch.reward[row]) + future


def place_done(by: Any, action: Any, first: int, last: int) -> None:
    """What was done in rows first..last-1, action [B, K], as critics' inputs with `place_rows`."""
    for i in range(first, last):
        for j in range(by.net.width):
            by.space.critic_x[DONE, i, j] = action[i, j]
    place_rows(by, DONE, first, last)


def place_rows(by: Any, kind: int, first: int, last: int) -> None:
    """Rows first..last-1 of `space.actor_x` behind the actions of a kind, as critics' inputs."""
    k = by.net.width
    for i in range(first, last):
        to, x = by.space.critic_x[kind, i], by.space.actor_x[i]
        for j in range(by.scale.mean.shape[1]):
            to[k + j] = x[j]


def critic_gradient(by: Any, m: int, c: int, weight: Any) -> None:
    """The gradient of critic c of member m.

        L_c = mean(w (Q_c(s, a) - y)^2 / 2)

    Args:
        by: Learner; weight: float32 [B], w.
    """
    net, learned, space = by.net, by.learned, by.space
    rows = len(weight)
    gradient = learned.critics[c].gradients[m, 0]
    gradient[:] = _ZERO
    loss, total = 0.0, 0.0
    last = len(net.critic) - 1
    width, place = net.critic[last, OUTPUTS], net.critic[last, PLACE]
    for first in range(0, rows, space.block):
        b = min(space.block, rows - first)
        x, at = space.critic_x[DONE, first : first + b], b * place
        y, d = space.critic_y[c, 0], space.critic_d[c]
        forward(learned.critics[c].weights[m], net.critic, net.relu, x, y)
        d[at : at + b * width] = _ZERO
        for i in range(b):
            row = first + i
            value = float(y[at + i * width])
            gap = value - space.goal[row]
            factor = float(weight[row]) / rows
            d[at + i * width] = factor * gap
            space.gap[c, row] = gap
            loss += 0.5 * factor * gap * gap
            total += value / (CRITICS * rows)
        backward(learned.turned_critics[c][m], gradient, net.critic, net.relu, x, y, d)
    by.statistics[c, CRITIC_LOSS], by.statistics[c, VALUE] = loss, total


def scale(by: Any, m: int, row: Any, out: Any) -> None:
    """Scales one observation of member m."""
    scale_row(by.scale, m, row, out)


# Bound by the renderer to an agent's functions.
prepare: Any = None  # (by, m, part, batch): the critics' inputs and goals of a part's rows
actor_gradient: Any = None  # (by, m, part, batch): a part of the gradient of the actor
move_rest: Any = None  # (by, m, moved): what else an update moves; moved: the actor was

# Phases of an update, each after the one before it is done.
_PREPARE, _CRITICS, _ACTOR, _SUM, _MOVE = 0, 1, 2, 3, 4


def update(by: Any, m: int, batch: Any, weight: Any, error: Any) -> None:
    """One whole update of member m: critics and targets, the actor where it is its turn.

    Args:
        by: Learner; batch: Batch.
        weight: float32 [B], of importance.
        error: float32 [B], written: the critics' mean absolute error.
    """
    actor, critics, gap = by.learned.actor, by.learned.critics, by.space.gap
    job = by, batch, weight
    if actor.failed[m]:
        return
    share(by.gate, job, m, _PREPARE, by.parts)
    share(by.gate, job, m, _CRITICS, CRITICS)
    for i in range(len(error)):
        error[i] = (abs(gap[0, i]) + abs(gap[1, i])) / CRITICS
    for c in range(CRITICS):
        actor.failed[m] = actor.failed[m] or critics[c].failed[m]
    if actor.failed[m]:
        return
    moved = critics[0].steps[m] % by.settings.actor_every == 0
    if moved:
        share(by.gate, job, m, _ACTOR, by.parts)
        share(by.gate, job, m, _SUM, by.parts)
        if not begin_step(actor, m, by.space.squares[: by.parts]):
            return
        share(by.gate, job, m, _MOVE, by.parts)
        turn(actor.weights[m], by.net.actor, by.learned.turned_actor[m])
    tally_update(by, m, moved)
    move_rest(by, m, moved)


def help_update(by: Any, batch: Any, weight: Any, error: Any) -> None:
    """Takes part in another thread's updates until its gate closes."""
    help_out(by.gate, (by, batch, weight))


def work(job: Any, m: int, phase: int, task: int) -> None:
    """One task: of a part of the rows, of a critic, or of a part of the actor's weights.

    Args:
        job: Learner, batch and weights, as for `update`.
    """
    by, batch, weight = job
    if phase == _PREPARE:
        prepare(by, m, task, batch)
    elif phase == _CRITICS:
        critic_gradient(by, m, task, weight)
        step_critic(by, m, task)
    elif phase == _ACTOR:
        actor_gradient(by, m, task, batch)
    elif phase == _SUM:
        sum_gradient(by.learned.actor, m, task, by.space.squares[: by.parts])
    else:
        lo, hi = lines_of(by.learned.actor, task, by.parts)
        move_weights(by.learned.actor, m, lo, hi, by.settings.step)


def step_critic(by: Any, m: int, c: int) -> None:
    """Moves critic c of member m by its gradient, and its target after it."""
    learned, settings = by.learned, by.settings
    weights = learned.critics[c]
    step_alone(weights, m, by.space.squares[c : c + 1], settings.step)
    if weights.failed[m]:
        return
    if weights.steps[m] % settings.target_update_interval == 0:
        polyak_update(learned.targets[c][m], weights.weights[m], settings.tau[m])
    turn_critic(by.net, weights.weights[m], learned.turned_critics[c][m])


def tally_update(by: Any, m: int, moved: bool) -> None:
    """Counts an update of member m, and what it saw; of the actor only where it was moved."""
    tally, last = by.tally, by.statistics.shape[1]
    end = last if moved else ACTOR_LOSS
    for part in range(len(by.statistics)):
        for j in range(end):
            tally.sums[m, j] += by.statistics[part, j]
    tally.updates[m] += 1
    if moved:
        tally.sums[m, last] += by.learned.actor.norm[m]
        tally.moves[m] += 1


def turn_critic(net: Any, weights: Any, turned: Any) -> None:
    """What `backward` and, for actions, `input_gradient` take of a critic."""
    turn(weights, net.critic, turned)
    turn_rows(weights, net.critic, 0, net.columns, turned)
