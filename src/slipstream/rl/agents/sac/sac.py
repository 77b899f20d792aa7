"""Soft actor-critic from a replay, for real actions where steps should not be wasted.

The compiled form: actions drawn in training and after transitions, the gradient of one member's
actor, its temperature; `actor_critic/` has the rest of an update, `torch_form.py` the definition.
What the arguments `by`, `m`, `batch` and others hold: `actor_critic/update.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.random import stream
from slipstream.jit.rng import LEARN
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents.actor_critic.actor_critic import ActorCritic, CompiledActorCritic
from slipstream.rl.agents.actor_critic.update import (
    ACTOR_LOSS,
    CRITICS,
    NEXT,
    OWN,
    Space,
    ask_actor,
    place_done,
    place_rows,
    rows_of,
    set_goals,
)
from slipstream.rl.agents.actor_critic.update import STATISTICS as _OF_ALL
from slipstream.rl.agents.sac.config import SACConfig
from slipstream.rl.nets.action_selection import (
    LOG_STD_HIGH,
    LOG_STD_LOW,
    bounded_log_std,
    draw_components,
    draw_member_squashed,
)
from slipstream.rl.nets.layers import OUTPUTS, PLACE, backward, forward, input_gradient, keep_rows
from slipstream.rl.nets.optimizer import Parameters, TrainState, step_alone

STATISTICS = (*_OF_ALL, "entropy")
ENTROPY = len(_OF_ALL)


class Entropy(NamedTuple):
    """What alpha is to reach: target float64 [M]; automatic: bool [M], whether it is
    learned. Or as tensors."""

    target: Any
    automatic: Any


class SACOwn(NamedTuple):
    """The temperature, and memory of one member's update.

    Attributes:
        temperature: a group of which only the first number, log alpha, counts.
        entropy: what is wanted of it.
        drawn: float64 [4, B K], noise, deviations, the policy's own actions and what each adds to
            log p.
        log_prob: float64 [B], of them.
        value: float64 [2, B], both critics' values of them.
        d_action: float32 [B, K], the smaller one's derivatives with respect to them.
        kept: int64 [parts, b], rows of a block that one of the critics judges.
    """

    temperature: TrainState
    entropy: Entropy
    drawn: NDArray[np.float64]
    log_prob: NDArray[np.float64]
    value: NDArray[np.float64]
    d_action: NDArray[np.float32]
    kept: NDArray[np.int64]


def explore(
    by: Any, m: int, key: Any, uniform: bool, lo: int, hi: int, obs: Any, action: Any,
    log_prob: Any, out: Any,
) -> None:  # fmt: skip
    """Draws actions of member m from the policy's squashed Gaussian: `actor_critic.py`."""
    draw_member_squashed(by.decider, m, key, 0, lo, hi, obs, uniform, action, log_prob, out)


NOISE, STD, ACTION, DENSITY = range(4)  # of `SACOwn.drawn`
_LEARN = np.uint64(LEARN)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


def prepare(by: Any, m: int, part: int, batch: Any) -> None:
    """What the critics are to learn of a part's rows, and where they are asked afterwards.

        cost = alpha log p(a' | s'),  a' ~ p(. | s')

    (Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", equation 6, with two
    targets.) Leaves of the policy's own actions what `actor_gradient` takes.
    """
    space, log_prob = by.space, by.own.log_prob
    alpha = math.exp(float(by.own.temperature.weights[m, 0]))
    lo, hi = rows_of(by, part)
    for first in range(lo, hi, space.block):
        last = min(first + space.block, hi)
        draw_actions(by, m, batch.obs_next, first, last, NEXT, 0)
        for i in range(first, last):
            space.cost[i] = alpha * log_prob[i]
        set_goals(by, m, part, first, last, batch)
        draw_actions(by, m, batch.obs, first, last, OWN, len(batch.reward))
        place_done(by, batch.action, first, last)


def judge_actions(by: Any, m: int, part: int, first: int, last: int) -> None:
    """What both critics think of the policy's own actions in rows first..last-1.

    Leaves dQ/da of the smaller value; where both agree, the first one's slope counts.
    """
    net, learned, space, b = by.net, by.learned, by.space, last - first
    value = by.own.value
    top = len(net.critic) - 1
    width, place = net.critic[top, OUTPUTS], net.critic[top, PLACE]
    x, y = space.critic_x[OWN, first:last], space.critic_y[part]
    for c in range(CRITICS):
        forward(learned.critics[c].weights[m], net.critic, net.relu, x, y[c])
        for i in range(b):
            value[c, first + i] = float(y[c, b * place + i * width])
    for c in range(CRITICS):
        n, kept, d = 0, by.own.kept[part], space.critic_d[part]
        for i in range(b):
            smaller = 0 if value[0, first + i] <= value[1, first + i] else 1
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
                by.own.d_action[first + kept[i], j] = d_x[i, j]


def actor_gradient(by: Any, m: int, part: int, batch: Any) -> None:
    """Part `part` of the gradient of member m's actor.

    L = mean(alpha log p(a | s) - min_c Q_c(s, a)),  a = tanh(mean(s) + std(s) noise)
    """
    net, learned, space, own = by.net, by.learned, by.space, by.own
    rows, statistics = len(batch.reward), by.statistics[part]
    lo, hi = rows_of(by, part)
    alpha = math.exp(float(own.temperature.weights[m, 0]))
    gradient = learned.actor.gradients[m, part]
    gradient[:] = _ZERO
    loss, entropy, outputs = 0.0, 0.0, len(space.actor_y) // rows
    for first in range(lo, hi, space.block):
        last = min(first + space.block, hi)
        judge_actions(by, m, part, first, last)
        for i in range(first, last):
            least = min(own.value[0, i], own.value[1, i])
            loss += (alpha * own.log_prob[i] - least) / rows
            entropy -= own.log_prob[i] / rows
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
    net, space, drawn, k = by.net, by.space, by.own.drawn, by.net.width
    top, b, rows = len(net.actor) - 1, last - first, len(space.actor_x)
    width, place = net.actor[top, OUTPUTS], b * net.actor[top, PLACE]
    d[place : place + b * width] = _ZERO
    for i in range(first, last):
        at = place + (i - first) * width
        for j in range(k):
            own = i * k + j
            noise, std, action = drawn[NOISE, own], drawn[STD, own], drawn[ACTION, own]
            slope = float(by.own.d_action[i, j])
            pull = (2.0 * alpha * action - (1.0 - action * action) * slope) / rows
            d[at + j] = pull
            z = float(y[at + k + j])
            if LOG_STD_LOW <= z <= LOG_STD_HIGH:
                d[at + k + j] = pull * std * noise - alpha / rows


def draw_actions(by: Any, m: int, obs: Any, first: int, last: int, kind: int, place: int) -> None:
    """Actions of member m's policy for rows first..last-1 of obs [B, D].

    Leaves the critics' inputs of that kind, log p, and what derivatives need of the last drawn.
    Row i takes the places (place + i) K, ... of the update's noise.
    """
    space, own, actor, k = by.space, by.own, by.learned.actor, by.net.width
    key = stream(by.seeds[m], _LEARN, np.uint64(actor.steps[m]))
    begin, width = ask_actor(by, m, actor.weights[m], obs, first, last)
    lo, hi, drawn = first * k, last * k, own.drawn
    noise, std, action = drawn[NOISE, lo:hi], drawn[STD, lo:hi], drawn[ACTION, lo:hi]
    density = drawn[DENSITY, lo:hi]
    for i in range(last - first):
        head = space.actor_y[begin + i * width :]
        for j in range(k):
            action[i * k + j], std[i * k + j] = head[j], bounded_log_std(float(head[k + j]))
    draw_components(key, place * k + lo, noise, std, action, density)
    for i in range(last - first):
        total = 0.0
        for j in range(k):
            space.critic_x[kind, first + i, j] = action[i * k + j]
            total += density[i * k + j]
        own.log_prob[first + i] = total
    place_rows(by, kind, first, last)


def move_rest(by: Any, m: int, moved: bool) -> None:
    """Moves member m's temperature, where it is learned.

        L(log alpha) = log alpha (H - target entropy),  H = -mean(log p)

    (Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", section 5, for log alpha
    instead of alpha, as in the authors' code: its sign is the same, and alpha stays positive.)
    """
    own = by.own
    if not own.entropy.automatic[m]:
        return
    entropy = 0.0
    for part in range(len(by.statistics)):
        entropy += by.statistics[part, ENTROPY]
    own.temperature.gradients[m, 0, 0] = entropy - own.entropy.target[m]
    step_alone(own.temperature, m, by.space.squares[:1], by.settings.step)


class BaseSAC(ActorCritic):
    """M members; a form adds how they act and learn.

    Args:
        config, specs, seeds, num_envs, parts: as for `ActorCritic`.

    Attributes:
        temperature: group of log alpha, which stays where it is unless `automatic`.
        entropy: what is wanted of it.
    """

    config: SACConfig
    head = "squashed_gaussian"
    statistics = STATISTICS
    state_version = 3  # of markets it has the rewards' scale

    def __init__(
        self,
        config: SACConfig,
        specs: EnvSpec | Sequence[EnvSpec],
        seeds: Sequence[int],
        num_envs: int,
        parts: int = 1,
    ) -> None:
        super().__init__(config, specs, seeds, num_envs, parts)
        self.temperature = Parameters({"log_alpha": (1,)}, self.members)
        fixed = config.per_member("ent_coef", self.members)
        automatic = np.isinf(fixed)
        first = config.per_member("init_ent_coef", self.members)
        self.temperature.weights["log_alpha"][:, 0] = np.log(np.where(automatic, first, fixed))
        self.groups["ent_coef"] = self.temperature
        width = float(self.policy.actions.width)
        target = config.per_member("target_entropy", self.members, -width)
        self.entropy = Entropy(target, automatic)

    def own_metrics(self) -> dict[str, NDArray[Any]]:
        log_alpha = self.temperature.weights["log_alpha"][:, 0].astype(np.float64)
        return {"ent_coef": np.exp(log_alpha)}


class SAC(CompiledActorCritic, BaseSAC):
    """M members; see `CompiledActorCritic`. Metrics have entropy (of actions in [-1, 1], nats) and
    temperature, too."""

    name = "sac"
    explore_loop = staticmethod(explore)
    given: ClassVar = {
        **CompiledActorCritic.given,
        "prepare": prepare,
        "actor_gradient": actor_gradient,
        "move_rest": move_rest,
    }

    def make_own(self, space: Space) -> SACOwn:
        batch, parts = self.config.batch_size, self.gradient_parts
        return SACOwn(
            *(self.temperature.arrays, self.entropy),
            drawn=np.zeros((4, batch * self.policy.actions.width)),
            log_prob=np.zeros(batch),
            value=np.zeros((CRITICS, batch)),
            d_action=np.zeros((batch, self.policy.actions.width), np.float32),
            kept=np.zeros((parts, space.block), np.int64),
        )


Agent = SAC
