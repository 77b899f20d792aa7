"""SAC (soft actor-critic) for Box actions; off-policy, for environments with slow steps.

Compiled implementation: sampling, the actor's gradient and the entropy coefficient. `actor_critic/`
has the rest of an update, `torch_sac.py` is the reference implementation. `actor_critic_update.py`
describes shared arguments such as `learner`, `m` and `batch`.
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
from slipstream.rl.agents.actor_critic.actor_critic_update import (
    ACTOR_LOSS,
    CRITICS,
    NEXT_POLICY,
    POLICY,
    Workspace,
    actor_forward,
    compute_td_targets,
    load_buffer_actions,
    load_critic_rows,
    row_range,
)
from slipstream.rl.agents.actor_critic.actor_critic_update import STATISTICS as _OF_ALL
from slipstream.rl.agents.sac.config import SACConfig
from slipstream.rl.nets.action_selection import (
    LOG_STD_HIGH,
    LOG_STD_LOW,
    act_member_squashed_gaussian,
    clip_log_std,
    sample_squashed_many,
)
from slipstream.rl.nets.layers import (
    OFFSET,
    OUTPUTS,
    backward,
    forward,
    input_gradient,
    select_rows,
)
from slipstream.rl.nets.optimizer import Parameters, TrainState, adam_step

STATISTICS = (*_OF_ALL, "entropy")
ENTROPY = len(_OF_ALL)


class Entropy(NamedTuple):
    """Target entropy that alpha is learned by, as arrays or tensors.

    Attributes:
        target: float64 [M].
        automatic: bool [M], true if alpha is learned.
    """

    target: Any
    automatic: Any


class SACExtra(NamedTuple):
    """Temperature alpha, and memory of one member's update.

    Attributes:
        temperature: parameter group with log alpha as its first number; the rest is padding.
        entropy: target entropy.
        drawn: float64 [4, B K], noise, standard deviations, the policy's actions, and the
            contribution of each to log p.
        log_prob: float64 [B], log probabilities of the policy's actions.
        value: float64 [2, B], values of these actions by both critics.
        d_action: float32 [B, K], derivatives of the smaller value with respect to them.
        kept: int64 [parts, b], rows of a block for which one critic has the smaller value.
    """

    temperature: TrainState
    entropy: Entropy
    drawn: NDArray[np.float64]
    log_prob: NDArray[np.float64]
    value: NDArray[np.float64]
    d_action: NDArray[np.float32]
    kept: NDArray[np.int64]


def explore(
    explorer: Any, m: int, key: Any, uniform: bool, lo: int, hi: int, obs: Any, action: Any,
    log_prob: Any, out: Any,
) -> None:  # fmt: skip
    """Sample actions of member m from the squashed Gaussian policy; see `actor_critic.py`."""
    act_member_squashed_gaussian(
        explorer.greedy_actor, m, key, 0, lo, hi, obs, uniform, action, log_prob, out
    )


NOISE, STD, ACTION, DENSITY = range(4)  # rows of `SACExtra.drawn`
_LEARN = np.uint64(LEARN)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


def prepare(learner: Any, m: int, part: int, batch: Any) -> None:
    """Compute critic inputs and TD targets of a part's rows.

        cost = alpha log p(a' | s'),  a' ~ p(. | s')

    (Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", equation 6, with two
    targets.) Also stores the policy's actions for `actor_gradient`.
    """
    workspace, log_prob = learner.workspace, learner.extra.log_prob
    alpha = math.exp(float(learner.extra.temperature.params[m, 0]))
    lo, hi = row_range(learner, part)
    for first in range(lo, hi, workspace.block):
        last = min(first + workspace.block, hi)
        draw_actions(learner, m, batch.obs_next, first, last, NEXT_POLICY, 0)
        for i in range(first, last):
            workspace.cost[i] = alpha * log_prob[i]
        compute_td_targets(learner, m, part, first, last, batch)
        draw_actions(learner, m, batch.obs, first, last, POLICY, len(batch.reward))
        load_buffer_actions(learner, batch.action, first, last)


def evaluate_q(learner: Any, m: int, part: int, first: int, last: int) -> None:
    """Evaluate both critics at the policy's actions in rows first..last-1.

    Stores dQ/da of the smaller value; if both are equal, that of the first critic.
    """
    net, learned, workspace, b = learner.net, learner.learned, learner.workspace, last - first
    value = learner.extra.value
    top = len(net.critic) - 1
    width, place = net.critic[top, OUTPUTS], net.critic[top, OFFSET]
    x, y = workspace.critic_x[POLICY, first:last], workspace.critic_y[part]
    for c in range(CRITICS):
        forward(learned.critics[c].params[m], net.critic, net.relu, x, y[c])
        for i in range(b):
            value[c, first + i] = float(y[c, b * place + i * width])
    for c in range(CRITICS):
        n, kept, d = 0, learner.extra.kept[part], workspace.critic_d[part]
        for i in range(b):
            smaller = 0 if value[0, first + i] <= value[1, first + i] else 1
            if smaller == c:
                kept[n] = i
                n += 1
        if n == 0:
            continue
        select_rows(net.critic, b, kept[:n], y[c])
        d[n * place : n * (place + width)] = _ZERO
        for i in range(n):
            d[n * place + i * width] = _ONE
        d_x = workspace.d_x[part, :n]
        input_gradient(learned.transposed_critics[c][m], net.critic, net.relu, y[c], d, d_x)
        for i in range(n):
            for j in range(net.width):
                learner.extra.d_action[first + kept[i], j] = d_x[i, j]


def actor_gradient(learner: Any, m: int, part: int, batch: Any) -> None:
    """Compute a part of the gradient of member m's actor.

    L = mean(alpha log p(a | s) - min_c Q_c(s, a)),  a = tanh(mean(s) + std(s) noise)
    """
    net, learned, workspace, extra = learner.net, learner.learned, learner.workspace, learner.extra
    rows, statistics = len(batch.reward), learner.statistics[part]
    lo, hi = row_range(learner, part)
    alpha = math.exp(float(extra.temperature.params[m, 0]))
    gradient = learned.actor.gradients[m, part]
    gradient[:] = _ZERO
    loss, entropy, outputs = 0.0, 0.0, len(workspace.actor_y) // rows
    for first in range(lo, hi, workspace.block):
        last = min(first + workspace.block, hi)
        evaluate_q(learner, m, part, first, last)
        for i in range(first, last):
            least = min(extra.value[0, i], extra.value[1, i])
            loss += (alpha * extra.log_prob[i] - least) / rows
            entropy -= extra.log_prob[i] / rows
        y, d = workspace.actor_y[first * outputs : last * outputs], workspace.actor_d[part]
        head_gradient(learner, alpha, first, last, y, d)
        x = workspace.actor_x[first:last]
        backward(learned.transposed_actor[m], gradient, net.actor, net.relu, x, y, d)
    statistics[ACTOR_LOSS], statistics[ENTROPY] = loss, entropy


def head_gradient(learner: Any, alpha: float, first: int, last: int, y: Any, d: Any) -> None:
    """Compute d L / d head of rows first..last-1 of B from dQ/da of the smaller value.

    d L / d mean = (2 alpha a - (1 - a^2) dQ/da) / B
    d L / d log std = d L / d mean std noise - alpha / B, 0 outside the bounds of log std

    Args:
        y, d: float32 [b * all outputs] of the block; d is written.
    """
    net, workspace, drawn, k = (
        learner.net,
        learner.workspace,
        learner.extra.drawn,
        learner.net.width,
    )
    top, b, rows = len(net.actor) - 1, last - first, len(workspace.actor_x)
    width, place = net.actor[top, OUTPUTS], b * net.actor[top, OFFSET]
    d[place : place + b * width] = _ZERO
    for i in range(first, last):
        at = place + (i - first) * width
        for j in range(k):
            index = i * k + j
            noise, std, action = drawn[NOISE, index], drawn[STD, index], drawn[ACTION, index]
            slope = float(learner.extra.d_action[i, j])
            pull = (2.0 * alpha * action - (1.0 - action * action) * slope) / rows
            d[at + j] = pull
            z = float(y[at + k + j])
            if LOG_STD_LOW <= z <= LOG_STD_HIGH:
                d[at + k + j] = pull * std * noise - alpha / rows


def draw_actions(
    learner: Any, m: int, obs: Any, first: int, last: int, kind: int, place: int
) -> None:
    """Sample actions of member m's policy for rows first..last-1 of obs [B, D].

    Leaves the critics' inputs of that kind, log p, and what derivatives need of the last drawn.
    Row i takes the places (place + i) K, ... of the update's noise.
    """
    workspace, extra, actor, k = (
        learner.workspace,
        learner.extra,
        learner.learned.actor,
        learner.net.width,
    )
    key = stream(learner.seeds[m], _LEARN, np.uint64(actor.steps[m]))
    begin, width = actor_forward(learner, m, actor.params[m], obs, first, last)
    lo, hi, drawn = first * k, last * k, extra.drawn
    noise, std, action = drawn[NOISE, lo:hi], drawn[STD, lo:hi], drawn[ACTION, lo:hi]
    density = drawn[DENSITY, lo:hi]
    for i in range(last - first):
        head = workspace.actor_y[begin + i * width :]
        for j in range(k):
            action[i * k + j], std[i * k + j] = head[j], clip_log_std(float(head[k + j]))
    sample_squashed_many(key, place * k + lo, noise, std, action, density)
    for i in range(last - first):
        total = 0.0
        for j in range(k):
            workspace.critic_x[kind, first + i, j] = action[i * k + j]
            total += density[i * k + j]
        extra.log_prob[first + i] = total
    load_critic_rows(learner, kind, first, last)


def update_alpha(learner: Any, m: int, actor_updated: bool) -> None:
    """Update member m's temperature if it is learned.

        L(log alpha) = log alpha (H - target entropy),  H = -mean(log p)

    (Haarnoja et al. 2018, "Soft actor-critic algorithms and applications", section 5. As in the
    authors' code, log alpha replaces alpha: the gradient has the same sign, and alpha stays
    positive.)
    """
    extra = learner.extra
    if not extra.entropy.automatic[m]:
        return
    entropy = 0.0
    for part in range(len(learner.statistics)):
        entropy += learner.statistics[part, ENTROPY]
    extra.temperature.gradients[m, 0, 0] = entropy - extra.entropy.target[m]
    adam_step(extra.temperature, m, learner.workspace.squares[:1], learner.settings.step)


class BaseSAC(ActorCritic):
    """State shared by the compiled and the torch implementation of SAC.

    Args:
        config, specs, seeds, num_envs, parts: as for `ActorCritic`.

    Attributes:
        temperature: parameter group of log alpha; constant unless `entropy.automatic`.
        entropy: target entropy.
    """

    config: SACConfig
    head = "squashed_gaussian"
    statistics = STATISTICS
    state_version = 3  # 3: added the scale of rewards on markets

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

    def extra_metrics(self) -> dict[str, NDArray[Any]]:
        log_alpha = self.temperature.weights["log_alpha"][:, 0].astype(np.float64)
        return {"ent_coef": np.exp(log_alpha)}


class SAC(CompiledActorCritic, BaseSAC):
    """M members; see `CompiledActorCritic`. Metrics include the entropy (nats) and ent_coef."""

    name = "sac"
    explore_loop = staticmethod(explore)
    hooks: ClassVar = {
        **CompiledActorCritic.hooks,
        "prepare": prepare,
        "actor_gradient": actor_gradient,
        "finish_update": update_alpha,
    }

    def make_extra(self, workspace: Workspace) -> SACExtra:
        batch, parts = self.config.batch_size, self.gradient_parts
        return SACExtra(
            *(self.temperature.arrays, self.entropy),
            drawn=np.zeros((4, batch * self.policy.actions.width)),
            log_prob=np.zeros(batch),
            value=np.zeros((CRITICS, batch)),
            d_action=np.zeros((batch, self.policy.actions.width), np.float32),
            kept=np.zeros((parts, workspace.block), np.int64),
        )


Agent = SAC
