"""TD3 for Box actions; off-policy, with a deterministic policy and fixed exploration noise.

Compiled implementation: exploration, target policy smoothing and the actor's gradient.
`actor_critic/` has the rest of an update, `torch_td3.py` is the reference implementation.
`actor_critic_update.py` describes shared arguments such as `learner`, `m` and `batch`.
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
from slipstream.rl.agents.actor_critic.actor_critic_update import (
    ACTOR_LOSS,
    NEXT_POLICY,
    POLICY,
    Workspace,
    actor_forward,
    compute_td_targets,
    load_buffer_actions,
    load_critic_rows,
    row_range,
    scale,
)
from slipstream.rl.agents.td3.config import TD3Config
from slipstream.rl.nets.action_selection import (
    act_member_squashed_gaussian,
    actor_outputs,
    unscale_action,
)
from slipstream.rl.nets.layers import BLOCK, OFFSET, OUTPUTS, backward, forward, input_gradient
from slipstream.rl.nets.optimizer import polyak_update


class Smoothing(NamedTuple):
    """Noise of the target's actions: deviation and clip limit, [M] or tensors."""

    noise: Any
    limit: Any


class BaseTD3(ActorCritic):
    """State shared by the compiled and the torch implementation of TD3.

    Args:
        config, specs, seeds, num_envs, parts: as for `ActorCritic`.

    Attributes:
        noise: float64 [M], standard deviation of exploration noise.
        smoothing: target policy smoothing.
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
    def policy_delay(self) -> int:
        return self.config.target_update_interval


_LEARN = np.uint64(LEARN)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


class TD3Extra(NamedTuple):
    """Additional state of TD3: target float32 [M, P], the target actor; see `Smoothing`."""

    target: NDArray[np.float32]
    smoothing: Smoothing


def within(x: float, limit: float) -> float:
    """Return x clipped to [-limit, limit]; NaN stays NaN."""
    x = -limit if x < -limit else x
    return limit if x > limit else x


def explore(
    explorer: Any, m: int, key: Any, uniform: bool, lo: int, hi: int, obs: Any, action: Any,
    log_prob: Any, out: Any,
) -> None:  # fmt: skip
    """Compute a = pi(s) + noise, clipped to [-1, 1]; see `actor_critic.py`. log_prob is unused."""
    greedy_actor, width = explorer.greedy_actor, len(explorer.greedy_actor.half)
    if uniform:
        act_member_squashed_gaussian(
            greedy_actor, m, key, 0, lo, hi, obs, True, action, log_prob, out
        )
        return
    padded = greedy_actor.table[len(greedy_actor.table) - 1, OUTPUTS]
    for first in range(lo, hi, BLOCK):
        last = min(first + BLOCK, hi)
        at = actor_outputs(greedy_actor, m, first, last, obs)
        for e in range(first, last):
            head = greedy_actor.workspace[at + (e - first) * padded :]
            for j in range(width):
                noise = explorer.noise[m] * float(normal_at(key, (e - lo) * width + j))
                action[e, j] = within(math.tanh(float(head[j])) + noise, 1.0)
            unscale_action(greedy_actor, action[e], out[e])


def prepare(learner: Any, m: int, part: int, batch: Any) -> None:
    """Compute critic inputs and TD targets of a part's rows."""
    lo, hi = row_range(learner, part)
    for first in range(lo, hi, learner.workspace.block):
        last = min(first + learner.workspace.block, hi)
        smooth_actions(learner, m, batch.obs_next, first, last)
        compute_td_targets(learner, m, part, first, last, batch)
        for i in range(first, last):
            scale(learner, m, batch.obs[i], learner.workspace.actor_x[i])
        load_buffer_actions(learner, batch.action, first, last)


def smooth_actions(learner: Any, m: int, obs: Any, first: int, last: int) -> None:
    """Compute the target actor's actions in next states and store them as critic inputs.

        a' = pi'(s') + clip(noise, -c, c), clipped to [-1, 1]

    (Fujimoto et al. 2018, "Addressing function approximation error in actor-critic methods",
    equation 14.) Row i uses the numbers from i K on of the update's noise.
    """
    workspace, smoothing, k = learner.workspace, learner.extra.smoothing, learner.net.width
    key = stream(learner.seeds[m], _LEARN, np.uint64(learner.learned.critics[0].steps[m]))
    begin, width = actor_forward(learner, m, learner.extra.target[m], obs, first, last)
    for i in range(first, last):
        at = begin + (i - first) * width
        for j in range(k):
            noise = smoothing.noise[m] * float(normal_at(key, i * k + j))
            noise = within(noise, smoothing.limit[m])
            mean = math.tanh(float(workspace.actor_y[at + j]))
            workspace.critic_x[NEXT_POLICY, i, j] = within(mean + noise, 1.0)
    load_critic_rows(learner, NEXT_POLICY, first, last)


def actor_gradient(learner: Any, m: int, part: int, batch: Any) -> None:
    """Compute a part of the gradient of member m's actor from dQ/da of the first critic.

        L = -mean(Q_1(s, a)),  a = tanh(z) = pi(s),  d L / d z = -(1 - a^2) dQ_1/da / B

    (Fujimoto et al. 2018, algorithm 1.)
    """
    net, learned, workspace = learner.net, learner.learned, learner.workspace
    rows, outputs = len(batch.reward), len(workspace.actor_y) // len(batch.reward)
    lo, hi = row_range(learner, part)
    gradient = learned.actor.gradients[m, part]
    gradient[:] = _ZERO
    top, loss = len(net.critic) - 1, 0.0
    for first in range(lo, hi, workspace.block):
        last = min(first + workspace.block, hi)
        b = last - first
        begin, width = actor_forward(learner, m, learned.actor.params[m], batch.obs, first, last)
        for i in range(b):
            for j in range(net.width):
                z = float(workspace.actor_y[begin + i * width + j])
                workspace.critic_x[POLICY, first + i, j] = math.tanh(z)
        load_critic_rows(learner, POLICY, first, last)
        x, y, d = (
            workspace.critic_x[POLICY, first:last],
            workspace.critic_y[part, 0],
            workspace.critic_d[part],
        )
        forward(learned.critics[0].params[m], net.critic, net.relu, x, y)
        values, step = b * net.critic[top, OFFSET], net.critic[top, OUTPUTS]
        d[values : values + b * step] = _ZERO
        for i in range(b):
            loss -= float(y[values + i * step]) / rows
            d[values + i * step] = _ONE
        d_x = workspace.d_x[part, :b]
        input_gradient(learned.transposed_critics[0][m], net.critic, net.relu, y, d, d_x)
        y, d = workspace.actor_y[first * outputs : last * outputs], workspace.actor_d[part]
        place = begin - first * outputs
        d[place : place + b * width] = _ZERO
        for i in range(b):
            for j in range(net.width):
                action = float(x[i, j])
                d[place + i * width + j] = -(1.0 - action * action) * float(d_x[i, j]) / rows
        x = workspace.actor_x[first:last]
        backward(learned.transposed_actor[m], gradient, net.actor, net.relu, x, y, d)
    learner.statistics[part, ACTOR_LOSS] = loss


def update_target(learner: Any, m: int, actor_updated: bool) -> None:
    """Update the target of member m's actor."""
    if actor_updated:
        polyak_update(
            learner.extra.target[m], learner.learned.actor.params[m], learner.settings.tau[m]
        )


class TD3(CompiledActorCritic, BaseTD3):
    """M members; see `CompiledActorCritic`."""

    name = "td3"
    explore_loop = staticmethod(explore)
    hooks: ClassVar = {
        **CompiledActorCritic.hooks,
        "prepare": prepare,
        "actor_gradient": actor_gradient,
        "finish_update": update_target,
    }

    def make_extra(self, workspace: Workspace) -> TD3Extra:
        return TD3Extra(self.targets["actor"], self.smoothing)


Agent = TD3
