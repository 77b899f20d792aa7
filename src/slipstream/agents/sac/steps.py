"""How one member's gradients move it: critics and their targets, the actor, the temperature.

Plain loops that `learning.py` compiles. A member whose gradient is not finite fails, and stands
still from then on.
"""

from __future__ import annotations

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
from slipstream.agents.off_policy.steps import clipped_step, follow
from slipstream.agents.sac.gradients import (
    action_gradient,
    actor_gradient,
    critic_gradient,
    prepare,
    target_values,
)
from slipstream.agents.sac.learned import CRITICS, ENTROPY
from slipstream.nets.layers import turn, turn_rows

# Phases of an update, each after the one before it is done.
_PREPARE, _TARGETS, _CRITICS, _ACTOR = 0, 1, 2, 3


def update(by: Any, m: int, batch: Any, weight: Any, error: Any) -> None:
    """One whole update of member m: critics and targets, actor, temperature.

    Args:
        by: Learner; batch: Batch.
        weight: float32 [B], of importance; error: float32 [B], written.
    """
    if by.learned.actor.failed[m]:
        return
    share(by, m, _PREPARE, by.parts, batch, weight, error)
    share(by, m, _TARGETS, CRITICS, batch, weight, error)
    share(by, m, _CRITICS, CRITICS, batch, weight, error)
    share(by, m, _ACTOR, by.parts, batch, weight, error)
    step_actor(by, m)


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
    """One task: of a part of the rows, or of a critic."""
    if phase == _PREPARE:
        prepare(by, m, task, batch)
    elif phase == _TARGETS:
        target_values(by, m, task)
    elif phase == _CRITICS:
        critic_gradient(by, m, task, batch, weight)
        step_critic(by, m, task)
        action_gradient(by, m, task)
    else:
        actor_gradient(by, m, task, error)


def step_critic(by: Any, m: int, c: int) -> None:
    """Moves critic c of member m by its gradient, and its target after it."""
    learned, settings = by.learned, by.settings
    weights = learned.critics[c]
    step(by, weights, m, c)
    if weights.failed[m]:
        return
    if weights.steps[m] % settings.target_every == 0:
        follow(learned.targets[c][m], weights.weights[m], settings.target_rate[m])
    turn_critic(by.net, weights.weights[m], learned.turned_critics[c][m])


def step_actor(by: Any, m: int) -> None:
    """Moves member m's actor and, where it is learned, its temperature; counts the update.

        L(log alpha) = log alpha (H - target entropy),  H = -mean(log p)

    (Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", section 5, for log alpha
    instead of alpha, as in the authors' code: its sign is the same, and alpha stays positive.)
    """
    learned, tally = by.learned, by.tally
    actor, temperature = learned.actor, learned.temperature
    for c in range(CRITICS):
        actor.failed[m] = actor.failed[m] or learned.critics[c].failed[m]
    if actor.failed[m]:
        return
    norm = step(by, actor, m, 0)
    if actor.failed[m]:
        return
    turn(actor.weights[m], by.net.actor, learned.turned_actor[m])
    entropy = 0.0
    last = by.statistics.shape[1]
    for part in range(len(by.statistics)):
        entropy += by.statistics[part, ENTROPY]
        for j in range(last):
            tally.sums[m, j] += by.statistics[part, j]
    tally.sums[m, last] += norm
    tally.updates[m] += 1
    if by.settings.automatic[m]:
        temperature.gradients[m, 0, 0] = entropy - by.settings.target_entropy[m]
        step(by, temperature, m, 0)


def step(by: Any, weights: Any, m: int, lane: int) -> float:
    """A step of Adam for member m of a group, along all parts of its gradient; their norm.

    Args:
        lane: which of the learner's lanes is free.
    """
    gradient = weights.gradients[m, 0]
    for part in range(1, weights.gradients.shape[1]):  # always in this order
        other = weights.gradients[m, part]
        for i in range(len(gradient)):
            gradient[i] += other[i]
    limit, rate = by.settings.max_grad_norm[m], by.settings.learning_rate[m]
    return clipped_step(weights, m, limit, rate, by.settings.adam_eps[m], by.space.lanes[lane])


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
