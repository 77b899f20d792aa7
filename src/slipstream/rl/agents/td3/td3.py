"""TD3, like soft actor-critic, with one action for each state and exploration of a set size.

The compiled form: actions in training and after transitions, and the gradient of one member's
actor; `actor_critic/` has the rest of an update, `torch_form.py` the definition. What the arguments
`by`, `m`, `batch` and others hold: `actor_critic/update.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.random import stream
from slipstream.jit.rng import LEARN, normal_at
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents.actor_critic.actor_critic import ActorCritic, CompiledActorCritic
from slipstream.rl.agents.actor_critic.update import (
    ACTOR_LOSS,
    NEXT,
    OWN,
    Space,
    ask_actor,
    place_done,
    place_rows,
    rows_of,
    scale,
    set_goals,
)
from slipstream.rl.agents.td3.config import TD3Config
from slipstream.rl.nets.action_selection import draw_member_squashed, map_to_box, outputs_of
from slipstream.rl.nets.layers import BLOCK, OUTPUTS, PLACE, backward, forward, input_gradient
from slipstream.rl.nets.optimizer import polyak_update


class Smoothing(NamedTuple):
    """Noise of the target's actions: its deviation, and where it is cut; [M], or as tensors."""

    noise: Any
    limit: Any


class BaseTD3(ActorCritic):
    """M members; a form adds how they act and learn.

    Args:
        config, specs, seeds, num_envs, parts: as for `ActorCritic`.

    Attributes:
        noise: float64 [M], deviation of what is added to actions in training.
        smoothing: of targets.
    """

    config: TD3Config
    head = "tanh"

    def __init__(
        self,
        config: TD3Config,
        specs: EnvSpec | Sequence[EnvSpec],
        seeds: Sequence[int],
        num_envs: int,
        parts: int = 1,
    ) -> None:
        super().__init__(config, specs, seeds, num_envs, parts)
        self.noise = config.per_member("exploration_noise", self.members)
        names = ("target_policy_noise", "target_noise_clip")
        self.smoothing = Smoothing(*(config.per_member(name, self.members) for name in names))
        self.targets["actor"] = self.policy.parameters.flat.copy()

    @property
    def actor_every(self) -> int:
        return self.config.target_update_interval


_LEARN = np.uint64(LEARN)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


class TD3Own(NamedTuple):
    """What TD3 has besides: target float32 [M, P], a slow copy of the actor; see `Smoothing`."""

    target: NDArray[np.float32]
    smoothing: Smoothing


def within(x: float, limit: float) -> float:
    """x, at most `limit` from 0; NaN stays NaN."""
    x = -limit if x < -limit else x
    return limit if x > limit else x


def explore(
    by: Any, m: int, key: Any, uniform: bool, lo: int, hi: int, obs: Any, action: Any,
    log_prob: Any, out: Any,
) -> None:  # fmt: skip
    """a = pi(s) + noise, within [-1, 1]; see `actor_critic.py`. log_prob means nothing."""
    decider, width = by.decider, len(by.decider.half)
    if uniform:
        draw_member_squashed(decider, m, key, 0, lo, hi, obs, True, action, log_prob, out)
        return
    padded = decider.table[len(decider.table) - 1, OUTPUTS]
    for first in range(lo, hi, BLOCK):
        last = min(first + BLOCK, hi)
        at = outputs_of(decider, m, first, last, obs)
        for e in range(first, last):
            head = decider.space[at + (e - first) * padded :]
            for j in range(width):
                noise = by.noise[m] * float(normal_at(key, (e - lo) * width + j))
                action[e, j] = within(math.tanh(float(head[j])) + noise, 1.0)
            map_to_box(decider, action[e], out[e])


def prepare(by: Any, m: int, part: int, batch: Any) -> None:
    """What the critics are to learn of a part's rows."""
    lo, hi = rows_of(by, part)
    for first in range(lo, hi, by.space.block):
        last = min(first + by.space.block, hi)
        smooth_actions(by, m, batch.obs_next, first, last)
        set_goals(by, m, part, first, last, batch)
        for i in range(first, last):
            scale(by, m, batch.obs[i], by.space.actor_x[i])
        place_done(by, batch.action, first, last)


def smooth_actions(by: Any, m: int, obs: Any, first: int, last: int) -> None:
    """The target's actions after transitions, as critics' inputs.

        a' = pi'(s') + clip(noise, -c, c), within [-1, 1]

    (Fujimoto et al. 2018, "Addressing function approximation error in actor-critic methods",
    equation 14.) Row i takes the places i K, ... of the update's noise.
    """
    space, smoothing, k = by.space, by.own.smoothing, by.net.width
    key = stream(by.seeds[m], _LEARN, np.uint64(by.learned.critics[0].steps[m]))
    begin, width = ask_actor(by, m, by.own.target[m], obs, first, last)
    for i in range(first, last):
        at = begin + (i - first) * width
        for j in range(k):
            noise = smoothing.noise[m] * float(normal_at(key, i * k + j))
            noise = within(noise, smoothing.limit[m])
            own = math.tanh(float(space.actor_y[at + j]))
            space.critic_x[NEXT, i, j] = within(own + noise, 1.0)
    place_rows(by, NEXT, first, last)


def actor_gradient(by: Any, m: int, part: int, batch: Any) -> None:
    """Part `part` of the gradient of member m's actor, along dQ/da of the first critic.

        L = -mean(Q_1(s, a)),  a = tanh(z) = pi(s),  d L / d z = -(1 - a^2) dQ_1/da / B

    (As above, algorithm 1.)
    """
    net, learned, space = by.net, by.learned, by.space
    rows, outputs = len(batch.reward), len(space.actor_y) // len(batch.reward)
    lo, hi = rows_of(by, part)
    gradient = learned.actor.gradients[m, part]
    gradient[:] = _ZERO
    top, loss = len(net.critic) - 1, 0.0
    for first in range(lo, hi, space.block):
        last = min(first + space.block, hi)
        b = last - first
        begin, width = ask_actor(by, m, learned.actor.weights[m], batch.obs, first, last)
        for i in range(b):
            for j in range(net.width):
                z = float(space.actor_y[begin + i * width + j])
                space.critic_x[OWN, first + i, j] = math.tanh(z)
        place_rows(by, OWN, first, last)
        x, y, d = space.critic_x[OWN, first:last], space.critic_y[part, 0], space.critic_d[part]
        forward(learned.critics[0].weights[m], net.critic, net.relu, x, y)
        values, step = b * net.critic[top, PLACE], net.critic[top, OUTPUTS]
        d[values : values + b * step] = _ZERO
        for i in range(b):
            loss -= float(y[values + i * step]) / rows
            d[values + i * step] = _ONE
        d_x = space.d_x[part, :b]
        input_gradient(learned.turned_critics[0][m], net.critic, net.relu, y, d, d_x)
        y, d = space.actor_y[first * outputs : last * outputs], space.actor_d[part]
        place = begin - first * outputs
        d[place : place + b * width] = _ZERO
        for i in range(b):
            for j in range(net.width):
                action = float(x[i, j])
                d[place + i * width + j] = -(1.0 - action * action) * float(d_x[i, j]) / rows
        x = space.actor_x[first:last]
        backward(learned.turned_actor[m], gradient, net.actor, net.relu, x, y, d)
    by.statistics[part, ACTOR_LOSS] = loss


def move_rest(by: Any, m: int, moved: bool) -> None:
    """Moves the target of member m's actor after it."""
    if moved:
        polyak_update(by.own.target[m], by.learned.actor.weights[m], by.settings.tau[m])


class TD3(CompiledActorCritic, BaseTD3):
    """M members; see `CompiledActorCritic`."""

    name = "td3"
    explore_loop = staticmethod(explore)
    given: ClassVar = {
        **CompiledActorCritic.given,
        "prepare": prepare,
        "actor_gradient": actor_gradient,
        "move_rest": move_rest,
    }

    def make_own(self, space: Space) -> TD3Own:
        return TD3Own(self.targets["actor"], self.smoothing)


Agent = TD3
