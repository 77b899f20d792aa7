"""Gradients of one member's critics, from a batch to weights; an actor's are its agent's.

Plain loops that `off_policy/learning.py` compiles; the torch forms are what they calculate. An
update is a few tasks that may run side by side: by parts of the batch's rows, but by critic where
one is moved, so that its gradient and moments pass through one core's memory only. Rows pass in
blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.agents.actor_critic.learned import CRITIC_LOSS, CRITICS, DONE, NEXT, VALUE
from slipstream.nets.layers import OUTPUTS, PLACE, backward, forward
from slipstream.nets.sampling import scale_row

_ZERO = np.float32(0.0)


def rows_of(by: Any, part: int) -> tuple[int, int]:
    """The rows lo..hi-1 of a part."""
    rows = len(by.space.actor_x)
    return part * rows // by.parts, (part + 1) * rows // by.parts


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
            share = float(weight[row]) / rows
            d[at + i * width] = share * gap
            space.gap[c, row] = gap
            loss += 0.5 * share * gap * gap
            total += value / (CRITICS * rows)
        backward(learned.turned_critics[c][m], gradient, net.critic, net.relu, x, y, d)
    by.statistics[c, CRITIC_LOSS], by.statistics[c, VALUE] = loss, total


def scale(by: Any, m: int, row: Any, out: Any) -> None:
    """Scales one observation of member m."""
    limit = np.float32(by.scale.limit)
    scale_row(row, by.scale.mean[m], by.scale.inverse_std[m], -limit, limit, out)
