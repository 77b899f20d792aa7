"""How one member's gradients move it: critics and their targets, then the actor.

Plain loops that `off_policy/learning.py` compiles. A member whose gradient is not finite fails, and
stands still from then on.
"""

from __future__ import annotations

import math
from typing import Any

from slipstream.agents.actor_critic.gradients import critic_gradient
from slipstream.agents.actor_critic.learned import ACTOR_LOSS, CRITICS
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
from slipstream.agents.off_policy.steps import clipped_step, counted, follow, shortened
from slipstream.nets.adam import LANES, adam_range, sum_of_squares
from slipstream.nets.layers import turn, turn_rows

# Bound by the renderer to an agent's functions.
prepare: Any = None  # (by, m, part, batch): the critics' inputs and goals of a part's rows
actor_gradient: Any = None  # (by, m, part, batch): a part of the gradient of the actor
move_rest: Any = None  # (by, m, moved): what else an update moves; moved: the actor was

# Phases of an update, each after the one before it is done.
_PREPARE, _CRITICS, _ACTOR, _NORM, _MOVE = 0, 1, 2, 3, 4


def update(by: Any, m: int, batch: Any, weight: Any, error: Any) -> None:
    """One whole update of member m: critics and targets, the actor where it is its turn.

    Args:
        by: Learner; batch: Batch.
        weight: float32 [B], of importance.
        error: float32 [B], written: the critics' mean absolute error.
    """
    actor, critics, gap = by.learned.actor, by.learned.critics, by.space.gap
    if actor.failed[m]:
        return
    share(by, m, _PREPARE, by.parts, batch, weight)
    share(by, m, _CRITICS, CRITICS, batch, weight)
    for i in range(len(error)):
        error[i] = (abs(gap[0, i]) + abs(gap[1, i])) / CRITICS
    for c in range(CRITICS):
        actor.failed[m] = actor.failed[m] or critics[c].failed[m]
    if actor.failed[m]:
        return
    moved = critics[0].steps[m] % by.settings.actor_every == 0
    if moved:
        share(by, m, _ACTOR, by.parts, batch, weight)
        share(by, m, _NORM, by.parts, batch, weight)
        if not counted(actor, m, actor_norm(by)):
            return
        share(by, m, _MOVE, by.parts, batch, weight)
        turn(actor.weights[m], by.net.actor, by.learned.turned_actor[m])
    tally_update(by, m, moved)
    move_rest(by, m, moved)


def share(by: Any, m: int, phase: int, tasks: int, batch: Any, weight: Any) -> None:
    """Does the tasks 0, 1, ... of a phase, together with whoever helps."""
    limit = open_tasks(by.gate, m, phase, tasks)
    ticket = claim(by.gate)
    while ticket >= 0:
        work(by, m, phase, ticket - (limit - tasks), batch, weight)
        finish(by.gate)
        ticket = claim(by.gate)
    wait_for(by.gate, limit)


def help_out(by: Any, batch: Any, weight: Any, error: Any) -> None:
    """Takes part in another thread's updates until its gate closes."""
    gate = by.gate
    ticket = next_of_others(gate)
    while ticket >= 0:
        work(by, gate[MEMBER], gate[PHASE], ticket - gate[FIRST], batch, weight)
        finish(gate)
        ticket = next_of_others(gate)


def work(by: Any, m: int, phase: int, task: int, batch: Any, weight: Any) -> None:
    """One task: of a part of the rows, of a critic, or of a part of the actor's weights."""
    if phase == _PREPARE:
        prepare(by, m, task, batch)
    elif phase == _CRITICS:
        critic_gradient(by, m, task, weight)
        step_critic(by, m, task)
    elif phase == _ACTOR:
        actor_gradient(by, m, task, batch)
    elif phase == _NORM:
        measure_actor(by, m, task)
    else:
        move_actor(by, m, task)


def step_critic(by: Any, m: int, c: int) -> None:
    """Moves critic c of member m by its gradient, and its target after it."""
    learned, settings = by.learned, by.settings
    weights = learned.critics[c]
    limit, rate = settings.max_grad_norm[m], settings.learning_rate[m]
    clipped_step(weights, m, limit, rate, settings.adam_eps[m], by.space.lanes[c])
    if weights.failed[m]:
        return
    if weights.steps[m] % settings.target_every == 0:
        follow(learned.targets[c][m], weights.weights[m], settings.target_rate[m])
    turn_critic(by.net, weights.weights[m], learned.turned_critics[c][m])


def weights_of(by: Any, part: int) -> tuple[int, int]:
    """The actor's weights lo..hi-1 of a part: whole LANES."""
    lines = by.learned.actor.weights.shape[1] // LANES
    return part * lines // by.parts * LANES, (part + 1) * lines // by.parts * LANES


def measure_actor(by: Any, m: int, part: int) -> None:
    """Adds up all parts of the gradient of some of the actor's weights, and their squares."""
    gradients = by.learned.actor.gradients[m]
    lo, hi = weights_of(by, part)
    total = gradients[0, lo:hi]
    for other in range(1, len(gradients)):  # always in this order
        more = gradients[other, lo:hi]
        for i in range(len(total)):
            total[i] += more[i]
    by.space.squares[part] = sum_of_squares(total, by.space.lanes[part])


def actor_norm(by: Any) -> float:
    """The norm of the actor's gradient."""
    total = 0.0
    for part in range(by.parts):
        total += by.space.squares[part]
    return math.sqrt(total)


def move_actor(by: Any, m: int, part: int) -> None:
    """Moves some of the weights of member m's actor by their gradient."""
    settings, (lo, hi) = by.settings, weights_of(by, part)
    clip = shortened(actor_norm(by), settings.max_grad_norm[m])
    rate = settings.learning_rate[m]
    adam_range(by.learned.actor, m, lo, hi, clip, rate, settings.adam_eps[m])


def tally_update(by: Any, m: int, moved: bool) -> None:
    """Counts an update of member m, and what it saw; of the actor only where it was moved."""
    tally, last = by.tally, by.statistics.shape[1]
    end = last if moved else ACTOR_LOSS
    for part in range(len(by.statistics)):
        for j in range(end):
            tally.sums[m, j] += by.statistics[part, j]
    tally.updates[m] += 1
    if moved:
        tally.sums[m, last] += actor_norm(by)
        tally.moves[m] += 1


def turn_critic(net: Any, weights: Any, turned: Any) -> None:
    """What `backward` and, for actions, `input_gradient` take of a critic."""
    turn(weights, net.critic, turned)
    turn_rows(weights, net.critic, 0, net.columns, turned)


def turn_all(net: Any, learned: Any) -> None:
    """Transposes the matrices of every network, after weights came from elsewhere."""
    for m in range(len(learned.turned_actor)):
        turn(learned.actor.weights[m], net.actor, learned.turned_actor[m])
        for c in range(CRITICS):
            turn_critic(net, learned.critics[c].weights[m], learned.turned_critics[c][m])
