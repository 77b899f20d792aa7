"""How one member's gradients move it: critics and their targets, the actor, the temperature.

Plain loops that `learning.py` compiles. A member whose gradient is not finite fails, and stands
still from then on.
"""

from __future__ import annotations

import math
from typing import Any

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
from slipstream.agents.sac.gradients import actor_gradient, critic_gradient, prepare
from slipstream.agents.sac.learned import CRITICS, ENTROPY
from slipstream.nets.adam import LANES, adam_range, sum_of_squares
from slipstream.nets.layers import turn, turn_rows

# Phases of an update, each after the one before it is done.
_PREPARE, _CRITICS, _ACTOR, _NORM, _MOVE = 0, 1, 2, 3, 4


def update(by: Any, m: int, batch: Any, weight: Any, error: Any) -> None:
    """One whole update of member m: critics and targets, actor, temperature.

    Args:
        by: Learner; batch: Batch.
        weight: float32 [B], of importance; error: float32 [B], written.
    """
    learned = by.learned
    if learned.actor.failed[m]:
        return
    share(by, m, _PREPARE, by.parts, batch, weight, error)
    share(by, m, _CRITICS, CRITICS, batch, weight, error)
    share(by, m, _ACTOR, by.parts, batch, weight, error)
    for c in range(CRITICS):
        learned.actor.failed[m] = learned.actor.failed[m] or learned.critics[c].failed[m]
    if learned.actor.failed[m]:
        return
    share(by, m, _NORM, by.parts, batch, weight, error)
    if counted(learned.actor, m, actor_norm(by)):
        share(by, m, _MOVE, by.parts, batch, weight, error)
        turn(learned.actor.weights[m], by.net.actor, learned.turned_actor[m])
        finish_update(by, m)


def share(by: Any, m: int, phase: int, tasks: int, batch: Any, weight: Any, error: Any) -> None:
    """Does the tasks 0, 1, ... of a phase, together with whoever helps."""
    limit = open_tasks(by.gate, m, phase, tasks)
    ticket = claim(by.gate)
    while ticket >= 0:
        work(by, m, phase, ticket - (limit - tasks), batch, weight, error)
        finish(by.gate)
        ticket = claim(by.gate)
    wait_for(by.gate, limit)


def help_out(by: Any, batch: Any, weight: Any, error: Any) -> None:
    """Takes part in another thread's updates until its gate closes."""
    gate = by.gate
    ticket = next_of_others(gate)
    while ticket >= 0:
        work(by, gate[MEMBER], gate[PHASE], ticket - gate[FIRST], batch, weight, error)
        finish(gate)
        ticket = next_of_others(gate)


def work(by: Any, m: int, phase: int, task: int, batch: Any, weight: Any, error: Any) -> None:
    """One task: of a part of the rows, of a critic, or of a part of the actor's weights."""
    if phase == _PREPARE:
        prepare(by, m, task, batch)
    elif phase == _CRITICS:
        critic_gradient(by, m, task, weight)
        step_critic(by, m, task)
    elif phase == _ACTOR:
        actor_gradient(by, m, task, error)
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


def finish_update(by: Any, m: int) -> None:
    """Moves member m's temperature, where it is learned, and counts the update.

        L(log alpha) = log alpha (H - target entropy),  H = -mean(log p)

    (Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", section 5, for log alpha
    instead of alpha, as in the authors' code: its sign is the same, and alpha stays positive.)
    """
    settings, tally, temperature = by.settings, by.tally, by.learned.temperature
    entropy = 0.0
    last = by.statistics.shape[1]
    for part in range(len(by.statistics)):
        entropy += by.statistics[part, ENTROPY]
        for j in range(last):
            tally.sums[m, j] += by.statistics[part, j]
    tally.sums[m, last] += actor_norm(by)
    tally.updates[m] += 1
    if settings.automatic[m]:
        temperature.gradients[m, 0, 0] = entropy - settings.target_entropy[m]
        limit, rate = settings.max_grad_norm[m], settings.learning_rate[m]
        clipped_step(temperature, m, limit, rate, settings.adam_eps[m], by.space.lanes[0])


def turn_critic(net: Any, weights: Any, turned: Any) -> None:
    """What `backward` and, for actions, `input_gradient` take of a critic."""
    turn(weights, net.critic, turned)
    turn_rows(weights, net.critic, 0, net.columns, turned)


def turn_all(by: Any) -> None:
    """Transposes the matrices of every network, after weights came from elsewhere."""
    net, learned = by.net, by.learned
    for m in range(len(learned.turned_actor)):
        turn(learned.actor.weights[m], net.actor, learned.turned_actor[m])
        for c in range(CRITICS):
            turn_critic(net, learned.critics[c].weights[m], learned.turned_critics[c][m])
