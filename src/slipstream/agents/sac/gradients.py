"""Gradients of one member's critics and actor, from a batch to weights in one pass over its rows.

Plain loops that `loops.py` compiles; `torch_form.py` is what they calculate. A batch's rows may be
cut into parts, each with a gradient of its own; a part's rows pass in blocks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slipstream.agents.sac.learned import (
    ACTOR_LOSS,
    CRITIC_LOSS,
    CRITICS,
    ENTROPY,
    VALUE,
)
from slipstream.core.random import stream
from slipstream.nets.layers import OUTPUTS, PLACE, backward, forward, input_gradient
from slipstream.nets.sampling import scale_row
from slipstream.nets.squashed import (
    LOG_STD_HIGH,
    LOG_STD_LOW,
    bounded_log_std,
    draw_component,
)
from slipstream.vector.draws import LEARN, normal_at

NOISE = 0  # of `Space.drawn`
SQUASHED = 1
LOG_PROB = 0  # of `Space.row`
TARGET = 1
_LEARN = np.uint64(LEARN)
_ZERO = np.float32(0.0)


def critic_gradient(by: Any, m: int, part: int, batch: Any, weight: Any, error: Any) -> None:
    """Part `part` of the gradient of both critics of member m.

        y = r + discount (min_c Q'_c(s', a') - alpha log p(a' | s')),  a' ~ p(. | s')
        L_c = mean(w (Q_c(s, a) - y)^2 / 2)

    (Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", equations 5 and 6, with
    two critics.)

    Args:
        by: Learner; batch: Batch.
        weight: float32 [B], w; error: float32 [B], written: the critics' mean absolute error.
    """
    net, learned, space, statistics = by.net, by.learned, by.space, by.statistics[part]
    rows, parts = len(batch.reward), len(by.statistics)
    lo, hi = part * rows // parts, (part + 1) * rows // parts
    statistics[:] = 0.0
    alpha = math.exp(float(learned.temperature.weights[m, 0]))
    for c in range(CRITICS):
        learned.critics[c].gradients[m, part, :] = _ZERO
    last = len(net.critic) - 1
    width, place = net.critic[last, OUTPUTS], net.critic[last, PLACE]
    for first in range(lo, hi, len(space.actor_x)):
        b = min(len(space.actor_x), hi - first)
        x, at = space.critic_x[:b], b * place
        draw_actions(by, m, batch.obs_next, first, b, first)
        for c in range(CRITICS):
            forward(learned.targets[c][m], net.critic, net.relu, x, space.critic_y[c])
        for i in range(b):
            least = min(space.critic_y[0, at + i * width], space.critic_y[1, at + i * width])
            soft = float(least) - alpha * space.row[LOG_PROB, i]
            discount = float(batch.discount[first + i])
            # after a termination, the next observation means nothing
            future = discount * soft if discount > 0.0 else 0.0
            space.row[TARGET, i] = float(batch.reward[first + i]) + future
            error[first + i] = _ZERO
        take_actions(by, m, batch, first, x)
        for c in range(CRITICS):
            y, d = space.critic_y[c], space.critic_d
            forward(learned.critics[c].weights[m], net.critic, net.relu, x, y)
            d[at : at + b * width] = _ZERO
            for i in range(b):
                value = float(y[at + i * width])
                gap = value - space.row[TARGET, i]
                share = float(weight[first + i]) / rows
                d[at + i * width] = share * gap
                error[first + i] += abs(gap) / CRITICS
                statistics[CRITIC_LOSS] += 0.5 * share * gap * gap
                statistics[VALUE] += value / (CRITICS * rows)
            backward(
                *(learned.turned_critics[c][m], learned.critics[c].gradients[m, part]),
                *(net.critic, net.relu, x, y, d),
            )


def actor_gradient(by: Any, m: int, part: int, batch: Any) -> None:
    """Part `part` of the gradient of member m's actor.

        L = mean(alpha log p(a | s) - min_c Q_c(s, a)),  a = tanh(mean + std noise)

    (equations 7 and 9 there). `critic_gradient` comes first: it begins the statistics.

    Args:
        by: Learner; batch: Batch.
    """
    net, learned, space, statistics = by.net, by.learned, by.space, by.statistics[part]
    rows, parts = len(batch.reward), len(by.statistics)
    lo, hi = part * rows // parts, (part + 1) * rows // parts
    gradient = learned.actor.gradients[m, part]
    gradient[:] = _ZERO
    alpha = math.exp(float(learned.temperature.weights[m, 0]))
    last = len(net.critic) - 1
    width, place = net.critic[last, OUTPUTS], net.critic[last, PLACE]
    for first in range(lo, hi, len(space.actor_x)):
        b = min(len(space.actor_x), hi - first)
        at = b * place
        draw_actions(by, m, batch.obs, first, b, rows + first)
        for c in range(CRITICS):
            forward(
                *(learned.critics[c].weights[m], net.critic, net.relu, space.critic_x[:b]),
                space.critic_y[c],
            )
        for i in range(b):
            least = min(space.critic_y[0, at + i * width], space.critic_y[1, at + i * width])
            log_prob = space.row[LOG_PROB, i]
            statistics[ACTOR_LOSS] += (alpha * log_prob - float(least)) / rows
            statistics[ENTROPY] -= log_prob / rows
        for c in range(CRITICS):
            d = space.critic_d
            d[at : at + b * width] = _ZERO
            for i in range(b):
                one, other = space.critic_y[0, at + i * width], space.critic_y[1, at + i * width]
                d[at + i * width] = 1.0 if c == (0 if one <= other else 1) else 0.0
            input_gradient(
                *(learned.turned_critics[c][m], net.critic, net.relu, space.critic_y[c], d),
                space.d_action[c, :b],
            )
        head_gradient(net, alpha, rows, b, space)
        backward(
            *(learned.turned_actor[m], gradient, net.actor, net.relu, space.actor_x[:b]),
            *(space.actor_y, space.actor_d),
        )


def head_gradient(net: Any, alpha: float, rows: int, b: int, space: Any) -> None:
    """Writes d L / d head of b rows, from dQ/da of both critics.

    d L / d mean = (2 alpha a - (1 - a^2) dQ/da) / B
    d L / d log std = d L / d mean std noise - alpha / B, 0 beyond the bounds of log std
    """
    last, k = len(net.actor) - 1, net.width
    width, place = net.actor[last, OUTPUTS], b * net.actor[last, PLACE]
    space.actor_d[place : place + b * width] = _ZERO
    for i in range(b):
        at = place + i * width
        for j in range(k):
            action, noise = math.tanh(space.drawn[SQUASHED, i, j]), space.drawn[NOISE, i, j]
            slope = float(space.d_action[0, i, j]) + float(space.d_action[1, i, j])
            pull = (2.0 * alpha * action - (1.0 - action * action) * slope) / rows
            space.actor_d[at + j] = pull
            z = float(space.actor_y[at + k + j])
            if LOG_STD_LOW <= z <= LOG_STD_HIGH:
                space.actor_d[at + k + j] = pull * math.exp(z) * noise - alpha / rows


def draw_actions(by: Any, m: int, obs: Any, first: int, b: int, place: int) -> None:
    """Actions of member m's policy for rows first .. first + b - 1 of obs [B, D].

    Leaves the critics' inputs in space.critic_x, log p in space.row, and what derivatives need in
    space.drawn. Row i takes the places (place + i) K, ... of the update's noise.
    """
    net, space, actor, k = by.net, by.space, by.learned.actor, by.net.width
    key = stream(by.seeds[m], _LEARN, np.uint64(actor.steps[m]))
    x, numbers = space.actor_x[:b], obs.shape[1]
    for i in range(b):
        scale(by, m, obs[first + i], x[i])
    forward(actor.weights[m], net.actor, net.relu, x, space.actor_y)
    last = len(net.actor) - 1
    width, begin = net.actor[last, OUTPUTS], b * net.actor[last, PLACE]
    for i in range(b):
        at, to = begin + i * width, space.critic_x[i]
        total = 0.0
        for j in range(k):
            noise = float(normal_at(key, (place + i) * k + j))
            log_std = bounded_log_std(float(space.actor_y[at + k + j]))
            u, density = draw_component(float(space.actor_y[at + j]), log_std, noise)
            space.drawn[NOISE, i, j] = noise
            space.drawn[SQUASHED, i, j] = u
            to[j] = math.tanh(u)
            total += density
        space.row[LOG_PROB, i] = total
        for j in range(numbers):
            to[k + j] = x[i, j]


def take_actions(by: Any, m: int, batch: Any, first: int, x: Any) -> None:
    """Critics' inputs of rows first, first + 1, ... of a batch: actions, scaled observations."""
    for i in range(len(x)):
        to = x[i]
        for j in range(by.net.width):
            to[j] = batch.action[first + i, j]
        scale(by, m, batch.obs[first + i], to[by.net.width :])


def scale(by: Any, m: int, row: Any, out: Any) -> None:
    """Scales one observation of member m."""
    limit = np.float32(by.scale.limit)
    scale_row(row, by.scale.mean[m], by.scale.inverse_std[m], -limit, limit, out)
