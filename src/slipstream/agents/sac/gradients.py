"""Gradients of one member's critics and actor, from a batch to weights.

Plain loops that `learning.py` compiles; `torch_form.py` is what they calculate. An update is a few
tasks that may run side by side: by parts of the batch's rows, but by critic where one is moved, so
that its gradient and moments pass through one core's memory only. Rows pass in blocks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from slipstream.agents.sac.learned import (
    ACTOR_LOSS,
    CRITIC_LOSS,
    CRITICS,
    DONE,
    ENTROPY,
    NEXT,
    OWN,
    VALUE,
)
from slipstream.core.random import stream
from slipstream.nets.layers import (
    OUTPUTS,
    PLACE,
    backward,
    forward,
    input_gradient,
    keep_rows,
)
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
FOLLOWING = 0  # of `Space.log_prob`
HERE = 1
_LEARN = np.uint64(LEARN)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


def rows_of(by: Any, part: int) -> tuple[int, int]:
    """The rows lo..hi-1 of a part."""
    rows = len(by.space.actor_x)
    return part * rows // by.parts, (part + 1) * rows // by.parts


def prepare(by: Any, m: int, part: int, batch: Any) -> None:
    """What the critics are to learn of a part's rows, and where they are asked afterwards.

    Leaves of the policy's own actions what `actor_gradient` takes.
    """
    space, k = by.space, by.net.width
    lo, hi = rows_of(by, part)
    for first in range(lo, hi, space.block):
        last = min(first + space.block, hi)
        draw_actions(by, m, batch.obs_next, first, last, NEXT, 0)
        set_goals(by, m, part, first, last, batch)
        draw_actions(by, m, batch.obs, first, last, OWN, len(batch.reward))
        for i in range(first, last):
            to, x = space.critic_x[DONE, i], space.actor_x[i]
            for j in range(k):
                to[j] = batch.action[i, j]
            for j in range(batch.obs.shape[1]):
                to[k + j] = x[j]


def set_goals(by: Any, m: int, part: int, first: int, last: int, batch: Any) -> None:
    """What both critics' values of rows first..last-1 are to become, into `space.goal`.

        y = f r + discount (min_c Q'_c(s', a') - alpha log p(a' | s')),  a' ~ p(. | s')

    (Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", equation 6, with two
    targets; f is the member's factor of rewards.)
    """
    net, space, b = by.net, by.space, last - first
    top = len(net.critic) - 1
    width, place = net.critic[top, OUTPUTS], b * net.critic[top, PLACE]
    alpha, factor = (
        math.exp(float(by.learned.temperature.weights[m, 0])),
        by.settings.reward_factor[m],
    )
    x, y = space.critic_x[NEXT, first:last], space.critic_y[part]
    for c in range(CRITICS):
        forward(by.learned.targets[c][m], net.critic, net.relu, x, y[c])
    for i in range(b):
        at, row = place + i * width, first + i
        soft = min(float(y[0, at]), float(y[1, at])) - alpha * space.log_prob[FOLLOWING, row]
        discount = float(batch.discount[row])
        # after a termination, the next observation means nothing
        future = discount * soft if discount > 0.0 else 0.0
        space.goal[row] = factor * float(batch.reward[row]) + future


def critic_gradient(by: Any, m: int, c: int, weight: Any) -> None:
    """The gradient of critic c of member m.

        L_c = mean(w (Q_c(s, a) - y)^2 / 2)

    (Haarnoja et al. 2018, as above, equation 5.)

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
            share = float(weight[row]) / rows
            d[at + i * width] = share * gap
            space.gap[c, row] = gap
            loss += 0.5 * share * gap * gap
            total += value / (CRITICS * rows)
        backward(learned.turned_critics[c][m], gradient, net.critic, net.relu, x, y, d)
    by.statistics[c, CRITIC_LOSS], by.statistics[c, VALUE] = loss, total


def judge_actions(by: Any, m: int, part: int, first: int, last: int) -> None:
    """What both critics think of the policy's own actions in rows first..last-1.

    Leaves dQ/da of the smaller value; where both agree, the first one's slope counts.
    """
    net, learned, space, b = by.net, by.learned, by.space, last - first
    top = len(net.critic) - 1
    width, place = net.critic[top, OUTPUTS], net.critic[top, PLACE]
    x, y = space.critic_x[OWN, first:last], space.critic_y[part]
    for c in range(CRITICS):
        forward(learned.critics[c].weights[m], net.critic, net.relu, x, y[c])
        for i in range(b):
            space.value[c, first + i] = float(y[c, b * place + i * width])
    for c in range(CRITICS):
        n, kept, d = 0, space.kept[part], space.critic_d[part]
        for i in range(b):
            smaller = 0 if space.value[0, first + i] <= space.value[1, first + i] else 1
            if smaller == c:
                kept[n] = i
                n += 1
        if n == 0:
            continue
        keep_rows(net.critic, b, kept[:n], y[c])
        d[n * place : n * (place + width)] = _ZERO
        for i in range(n):
            d[n * place + i * width] = _ONE
        d_x = space.d_x[part, :n]
        input_gradient(learned.turned_critics[c][m], net.critic, net.relu, y[c], d, d_x)
        for i in range(n):
            for j in range(net.width):
                space.d_action[first + kept[i], j] = d_x[i, j]


def actor_gradient(by: Any, m: int, part: int, error: Any) -> None:
    """Part `part` of the gradient of member m's actor.

        L = mean(alpha log p(a | s) - min_c Q_c(s, a)),  a = tanh(mean(s) + std(s) noise)

    Args:
        by: Learner.
        error: float32 [B], rows of the part are written: the critics' mean absolute error.
    """
    net, learned, space = by.net, by.learned, by.space
    rows, statistics = len(error), by.statistics[part]
    lo, hi = rows_of(by, part)
    alpha = math.exp(float(learned.temperature.weights[m, 0]))
    gradient = learned.actor.gradients[m, part]
    gradient[:] = _ZERO
    loss, entropy, outputs = 0.0, 0.0, len(space.actor_y) // rows
    for first in range(lo, hi, space.block):
        last = min(first + space.block, hi)
        judge_actions(by, m, part, first, last)
        for i in range(first, last):
            error[i] = (abs(space.gap[0, i]) + abs(space.gap[1, i])) / CRITICS
            log_prob = space.log_prob[HERE, i]
            least = min(space.value[0, i], space.value[1, i])
            loss += (alpha * log_prob - least) / rows
            entropy -= log_prob / rows
        y, d = space.actor_y[first * outputs : last * outputs], space.actor_d[part]
        head_gradient(by, alpha, first, last, y, d)
        x = space.actor_x[first:last]
        backward(learned.turned_actor[m], gradient, net.actor, net.relu, x, y, d)
    statistics[ACTOR_LOSS], statistics[ENTROPY] = loss, entropy


def head_gradient(by: Any, alpha: float, first: int, last: int, y: Any, d: Any) -> None:
    """Writes d L / d head of rows first..last-1 of B, from dQ/da of the critic that counts.

    d L / d mean = (2 alpha a - (1 - a^2) dQ/da) / B
    d L / d log std = d L / d mean std noise - alpha / B, 0 beyond the bounds of log std

    Args:
        y, d: float32 [b * all outputs], of the block.
    """
    net, space, k = by.net, by.space, by.net.width
    top, b, rows = len(net.actor) - 1, last - first, len(space.actor_x)
    width, place = net.actor[top, OUTPUTS], b * net.actor[top, PLACE]
    d[place : place + b * width] = _ZERO
    for i in range(first, last):
        at = place + (i - first) * width
        for j in range(k):
            action, noise = math.tanh(space.drawn[SQUASHED, i, j]), space.drawn[NOISE, i, j]
            slope = float(space.d_action[i, j])
            pull = (2.0 * alpha * action - (1.0 - action * action) * slope) / rows
            d[at + j] = pull
            z = float(y[at + k + j])
            if LOG_STD_LOW <= z <= LOG_STD_HIGH:
                d[at + k + j] = pull * math.exp(z) * noise - alpha / rows


def draw_actions(by: Any, m: int, obs: Any, first: int, last: int, kind: int, place: int) -> None:
    """Actions of member m's policy for rows first..last-1 of obs [B, D].

    Leaves the critics' inputs of that kind, log p, and what derivatives need of the last drawn.
    Row i takes the places (place + i) K, ... of the update's noise.
    """
    net, space, actor, k = by.net, by.space, by.learned.actor, by.net.width
    key = stream(by.seeds[m], _LEARN, np.uint64(actor.steps[m]))
    numbers, outputs = obs.shape[1], len(space.actor_y) // len(space.actor_x)
    for i in range(first, last):
        scale(by, m, obs[i], space.actor_x[i])
    y = space.actor_y[first * outputs : last * outputs]
    forward(actor.weights[m], net.actor, net.relu, space.actor_x[first:last], y)
    top = len(net.actor) - 1
    width, begin = net.actor[top, OUTPUTS], (last - first) * net.actor[top, PLACE]
    for i in range(first, last):
        at, to, x = begin + (i - first) * width, space.critic_x[kind, i], space.actor_x[i]
        total = 0.0
        for j in range(k):
            noise = float(normal_at(key, (place + i) * k + j))
            log_std = bounded_log_std(float(y[at + k + j]))
            u, density = draw_component(float(y[at + j]), log_std, noise)
            space.drawn[NOISE, i, j] = noise
            space.drawn[SQUASHED, i, j] = u
            to[j] = math.tanh(u)
            total += density
        space.log_prob[FOLLOWING if kind == NEXT else HERE, i] = total
        for j in range(numbers):
            to[k + j] = x[j]


def scale(by: Any, m: int, row: Any, out: Any) -> None:
    """Scales one observation of member m."""
    limit = np.float32(by.scale.limit)
    scale_row(row, by.scale.mean[m], by.scale.inverse_std[m], -limit, limit, out)
