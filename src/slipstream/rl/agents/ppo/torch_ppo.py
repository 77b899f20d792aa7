"""Reference implementation of PPO in torch (autograd, any device, images).

The update follows Schulman et al. 2017, "Proximal policy optimization algorithms". The compiled
implementation (`update.py`) is faster on the CPU; `tests/engine/rl/test_two_forms.py` compares
whole iterations of both.

All tensors have a leading member axis. Losses are summed over members, so that gradients of members
are independent. Gradient clipping, KL limits and failures apply to each member separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.jit import rng
from slipstream.jit.work_sharing import RunTasks, in_sequence
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents.ppo.config import PPOConfig
from slipstream.rl.agents.ppo.losses import STATISTICS
from slipstream.rl.agents.ppo.ppo import BasePPO
from slipstream.rl.agents.torch_agent import TorchAgent, TorchGroup
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.nets import torch_distributions
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.torch_adam import ParamGroup, Weights, adam, clip_grad_norm, differentiate
from slipstream.rl.nets.torch_distributions import Distribution, make_distribution
from slipstream.rl.nets.torch_networks import FLOAT32, Products

# Minimum number of environments for double buffering. A second half costs about 50 more calls of
# torch, 0.4 ms of CPU time; fewer environments are stepped in less time than that.
_MIN_DOUBLE_BUFFERED_ENVS = 8192


class Rows(NamedTuple):
    """Rows of a rollout by member: all of them (row t N + n is environment n at step t), or some.

    Attributes:
        x: [M, R, ...], network inputs.
        mask: bool [M, R, num_actions] of allowed actions, or None.
        action: [M, R, K].
        log_prob: [M, R], log probability of the action when it was taken.
        advantage, target: [M, R].
        value: [M, R], values before the update.
        valid: bool [M, R], false if the transition is not real.
    """

    x: Tensor
    mask: Tensor | None
    action: Tensor
    log_prob: Tensor
    advantage: Tensor
    target: Tensor
    value: Tensor
    valid: Tensor

    def select(self, order: Tensor) -> Rows:
        """Return the rows `order` [M, B] of each member."""
        member = torch.arange(len(order), device=order.device)[:, None]
        mask = None if self.mask is None else self.mask[member, order]
        rest = (
            member_column[member, order] for member_column in self[2:] if member_column is not None
        )
        return Rows(self.x[member, order], mask, *rest)

    def mean(self, numbers: Tensor) -> Tensor:
        """Return the mean [M] over valid rows of [M, R]."""
        valid = self.valid.to(numbers.dtype)
        return (numbers * valid).sum(1) / valid.sum(1).clamp(min=1.0)


class Coefficients(NamedTuple):
    """Settings of each member, float32 [M]; infinity disables a limit."""

    clip_range: Tensor
    ent_coef: Tensor
    vf_coef: Tensor
    gamma: Tensor
    gae_lambda: Tensor
    learning_rate: Tensor
    adam_eps: Tensor
    max_grad_norm: Tensor
    target_kl: Tensor


Model = Callable[[Weights, Rows], tuple[Distribution, Tensor]]
"""Network outputs for rows: the action distribution, and values [M, R]."""


def gae(
    reward: Tensor, value: Tensor, following: Tensor, ended: Tensor, valid: Tensor, c: Coefficients
) -> tuple[Tensor, Tensor]:
    """Return generalized advantage estimates and value targets (Schulman et al. 2016, equation 16).

        delta_t = r_t + gamma V'_t - V(s_t)
        A_t     = delta_t + gamma lambda [episode continues] A_{t+1}
        target  = A_t + V(s_t)

    Args:
        reward, value: [M, T, N].
        following: V', [M, T, N]: value of the next observation inside an episode, value of the
            final observation after a truncation, 0 after a termination.
        ended, valid: bool [M, T, N].
        c: settings of the members.

    Returns:
        Advantages and value targets, [M, T, N].
    """
    gamma = c.gamma[:, None, None]
    delta = torch.where(valid, reward + gamma * following - value, 0.0)
    to_device = gamma * c.gae_lambda[:, None, None] * (valid & ~ended)
    estimates = [delta[:, -1]]
    for t in range(delta.shape[1] - 2, -1, -1):
        estimates.append(delta[:, t] + to_device[:, t] * estimates[-1])
    advantage = torch.stack(estimates[::-1], 1)
    return advantage, advantage + value


def explained_variance(rows: Rows) -> Tensor:
    """Return the fraction of the targets' variance explained by the critic, [M]."""

    def variance(x: Tensor) -> Tensor:
        return rows.mean((x - rows.mean(x)[:, None]) ** 2)

    spread = variance(rows.target)
    known = 1.0 - variance(rows.target - rows.value) / spread
    return torch.where(spread > 0, known, 0.0)


def ppo_loss(
    rows: Rows, distribution: Distribution, value: Tensor, c: Coefficients, normalise: bool
) -> tuple[Tensor, Tensor]:
    """Compute the loss of a minibatch, [M], and its STATISTICS, [M, 5] (equation 9).

        L = mean(-min(r A, clamp(r, 1 - c, 1 + c) A) + c_v (v - R)^2 - c_e H)

    with r = exp(log p - log p_old). The KL estimate is (r - 1) - log r (Schulman 2020,
    "Approximating KL divergence").
    """
    advantage = rows.advantage
    if normalise:
        advantage = advantage - rows.mean(advantage)[:, None]
        advantage = advantage / (rows.mean(advantage**2).sqrt() + 1e-8)[:, None]
    clip = c.clip_range[:, None]

    log_ratio = distribution.log_prob(rows.action) - rows.log_prob
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1.0 - clip, 1.0 + clip)
    policy = -torch.minimum(ratio * advantage, bounded * advantage)

    critic = (value - rows.target) ** 2
    entropy = distribution.entropy()
    loss = policy + c.vf_coef[:, None] * critic - c.ent_coef[:, None] * entropy
    terms = (policy, critic, entropy, log_ratio.expm1() - log_ratio, (bounded != ratio).float())
    return rows.mean(loss), torch.stack([rows.mean(x.detach()) for x in terms], 1)


def learn(
    group: ParamGroup,
    model: Model,
    rows: Rows,
    orders: Iterable[Tensor],
    size: int,
    c: Coefficients,
    normalise: bool,
) -> dict[str, Tensor]:
    """Run all epochs of minibatches.

    Args:
        group: parameter group, updated in place.
        model: forward function of the networks.
        rows: rows of the rollout.
        orders: a permutation [M, R] for each epoch.
        size: minibatch size per member.
        c: settings of the members.
        normalise: normalize advantages to mean 0 and deviation 1 in each minibatch.

    Returns:
        STATISTICS and gradient_norm, [M], means over the minibatches that changed the member; and
        updates, their number.
    """
    state = group.state
    frozen = state.failed.clone()
    sums = torch.zeros((len(frozen), len(STATISTICS) + 1), device=frozen.device)
    updates = torch.zeros_like(state.steps)
    for order in orders:
        for part in torch.split(order, size, 1):
            batch = rows.select(part)
            loss, statistics = ppo_loss(batch, *model(group.leaves, batch), c, normalise)
            norm = differentiate(group, loss)
            frozen |= statistics[:, STATISTICS.index("approx_kl")] > 1.5 * c.target_kl
            state.failed.logical_or_(~frozen & ~norm.isfinite())
            frozen |= state.failed
            gradient = clip_grad_norm(group, norm, c.max_grad_norm)
            adam(state, gradient, ~frozen, c.learning_rate, c.adam_eps)
            updates += ~frozen
            counted = torch.cat([statistics, norm[:, None].float()], 1)
            sums += torch.where(frozen[:, None], 0.0, counted)
        if frozen.device.type == "cpu" and bool(frozen.all()):  # on a GPU this would block
            break
    means = sums / updates.clamp(min=1)[:, None]
    names = (*STATISTICS, "gradient_norm")
    return {**dict(zip(names, means.unbind(1), strict=True)), "updates": updates}


class PPOGroup(TorchGroup):
    """Members of a policy that act and learn together on a device.

    Args:
        policy: policy of all members; its arrays hold the state between rollouts.
        config: config of all members.
        members: slice of members.
        num_envs: N per member.
        device: device of torch.
        products: matrix products of hidden layers.
    """

    def __init__(
        self,
        policy: Policy,
        config: PPOConfig,
        members: slice,
        num_envs: int,
        device: torch.device,
        products: Products = FLOAT32,
    ) -> None:
        super().__init__(policy, num_envs, members, device, products)
        self._config, self._rows = config, config.rows(num_envs)
        self._group = self.group(policy.parameters)
        self._leaves = self._group.leaves
        self._observations: dict[int, list[Tensor]] = {}  # observations of this rollout by step

    @torch.no_grad()
    def begin_act(
        self, rollout: Rollout, t: int, env_range: slice, keys: NDArray[np.uint64]
    ) -> Callable[[], None]:
        """Begin to act in step t for some environments of the group.

        Args:
            rollout: rollout with observations in obs[t].
            t: row.
            env_range: environments of whole members, or of a single member.
            keys: uint64 [g], noise streams of the members.

        Returns:
            A function that waits for the actions and writes them and log_prob into the rollout.
        """
        at, num_rows = env_range.start - self.environments.start, env_range.stop - env_range.start
        if t == 0 == at:
            self.fetch()
        num_envs = min(self.num_envs, num_rows)
        m = slice(at // self.num_envs, at // self.num_envs + num_rows // num_envs)
        weights = self._leaves
        if num_rows < self.count * self.num_envs:
            weights = {name: leaf[m] for name, leaf in weights.items()}
        obs = self.to_device(rollout.obs[t, env_range])
        self._observations.setdefault(t, []).append(obs)
        actions = self._policy.actions
        draw = torch_distributions.normal if actions.continuous else torch_distributions.gumbel
        streams, width = (
            torch_distributions.keys_to_tensor(keys[m], self.device),
            actions.head_width,
        )
        noise = draw(streams, at % self.num_envs * width, num_envs * width)

        def by_member(rows: Tensor) -> Tensor:
            return rows.view(-1, num_envs, *rows.shape[1:])

        head = self.network.head(
            weights, self.network.features(weights, self.inputs(by_member(obs), m))
        )
        mask = rollout.mask
        allowed = None if mask is None else by_member(self.to_device(mask[t, env_range]))
        distribution = self._distribution(weights, head, allowed)
        action = distribution.sample(noise.view(*head.shape[:2], -1))
        log_prob = distribution.log_prob(action)
        to_numpy = self.to_numpy_async(action.flatten(0, 1), log_prob.flatten())

        def write() -> None:
            rollout.actions[t, env_range], rollout.log_prob[t, env_range] = to_numpy()

        return write

    def _distribution(self, weights: Weights, head: Tensor, mask: Tensor | None) -> Distribution:
        return make_distribution(self._policy.actions, head, weights.get("log_std"), mask)

    def _model(self, weights: Weights, rows: Rows) -> tuple[Distribution, Tensor]:
        features = self.network.features(weights, rows.x)
        head = self.network.head(weights, features)
        return self._distribution(weights, head, rows.mask), self.network.value(weights, features)

    def update(
        self,
        rollout: Rollout,
        reward: NDArray[np.float32],
        rewarded: NDArray[np.bool_],
        learning_rate: NDArray[np.float64],
        seeds: NDArray[np.uint64],
        first_epochs: NDArray[np.int64],
    ) -> dict[str, NDArray[np.generic]]:
        """Update the members on their part of a rollout.

        Args:
            rollout: rollout of all members.
            reward: [T, E], scaled rewards of all members.
            rewarded, learning_rate, seeds, first_epochs: values of these members, as for
                `Learner.learn`.

        Returns:
            Metrics [g] by name.
        """
        self.fetch()
        coefficients = self._coefficients(learning_rate)
        rows = self._make_rows(rollout, reward, coefficients)
        rows.advantage.masked_fill_(self.to_device(~rewarded)[:, None], 0.0)
        metrics = learn(
            *(self._group, self._model, rows),
            self._orders(rows.valid.shape[1], seeds, first_epochs),
            *(self._rows, coefficients, self._config.normalize_advantage),
        ) | {"explained_variance": explained_variance(rows)}
        self._observations.clear()
        return dict(
            zip(metrics, self.write_back(self.device_state(), *metrics.values()), strict=True)
        )

    def _coefficients(self, learning_rate: NDArray[np.float64]) -> Coefficients:
        def member_column(name: str) -> Tensor:
            return self.member_column(self._config.per_member(name, self._policy.members))

        rates = self.to_device(learning_rate.astype(np.float32))
        names = (name for name in Coefficients._fields if name != "learning_rate")
        return Coefficients(**{name: member_column(name) for name in names}, learning_rate=rates)

    def _orders(
        self, total: int, seeds: NDArray[np.uint64], first_epochs: NDArray[np.int64]
    ) -> Iterator[Tensor]:
        """Yield the permutations [g, R] of each epoch, computed on the CPU."""
        for epoch in range(self._config.n_epochs):
            order = np.zeros((self.count, total), np.int64)
            rng.permute(rng.keys_at_steps(seeds, rng.MINIBATCH, first_epochs + epoch), order)
            yield self.to_device(order)

    @torch.no_grad()
    def _make_rows(
        self, rollout: Rollout, reward: NDArray[np.float32], coefficients: Coefficients
    ) -> Rows:
        to, e, t = rollout, self.environments, rollout.n_steps
        seen = []
        for row in range(t + 1):
            parts = self._observations.get(row, [])
            whole = sum(map(len, parts)) == e.stop - e.start
            seen += parts if whole else [self.to_device(to.obs[row, e])]
        obs = torch.cat(seen).view(t + 1, -1, *to.obs.shape[2:])
        x = self.inputs(self._by_member(obs))
        values = self._values(x).view(self.count, t + 1, self.num_envs)

        def member_column(array: NDArray[np.generic]) -> Tensor:
            """Return the group's part of [T, E] as [g, T, N]."""
            column = self.to_device(array[:, e])
            return column.view(t, self.count, self.num_envs).transpose(0, 1)

        terminated, truncated, valid = map(member_column, (to.terminated, to.truncated, to.valid))
        following = values[:, 1:].clone()
        self._put_final_values(rollout, following)
        following.masked_fill_(terminated, 0.0)
        advantage, target = gae(
            *(member_column(reward), values[:, :-1], following),
            *(terminated | truncated, valid, coefficients),
        )

        def wide(array: NDArray[np.generic]) -> Tensor:
            """Return the group's part of [>= T, E, K] as [g, T N, K]."""
            return self._by_member(self.to_device(array[:t, e]))

        mask = None if to.mask is None else wide(to.mask)
        flat = (member_column(to.log_prob), advantage, target, values[:, :-1], valid)
        rest = (part.reshape(self.count, -1) for part in flat)
        return Rows(x[:, : t * self.num_envs], mask, wide(to.actions), *rest)

    def _by_member(self, rows: Tensor) -> Tensor:
        """Reshape [T, g N, ...] to [g, T N, ...]."""
        parts = rows.view(len(rows), self.count, self.num_envs, *rows.shape[2:])
        return parts.transpose(0, 1).reshape(self.count, -1, *rows.shape[2:])

    def _values(self, x: Tensor) -> Tensor:
        """Evaluate the critic on inputs [g, R, ...], in minibatches."""
        network, weights = self.network, self._leaves
        pieces = (network.features(weights, piece) for piece in torch.split(x, self._rows, 1))
        return torch.cat([network.value(weights, piece) for piece in pieces], 1)

    def _put_final_values(self, rollout: Rollout, following: Tensor) -> None:
        """Write the values of final observations of truncated rows to [g, T, N]."""
        index, obs = np.asarray(rollout.final_index), np.asarray(rollout.final_obs)
        in_group = (index[:, 1] >= self.environments.start) & (index[:, 1] < self.environments.stop)
        if not in_group.any():
            return
        t, e = index[in_group].T
        member, env = np.divmod(e - self.environments.start, self.num_envs)
        counts = np.bincount(member, minlength=self.count)
        order = np.argsort(member, kind="stable")
        slot = np.zeros_like(member)  # index of each observation within its member
        slot[order] = np.arange(len(member)) - np.repeat(np.cumsum(counts) - counts, counts)
        packed = np.zeros((self.count, counts.max(), *obs.shape[1:]), obs.dtype)
        packed[member, slot] = obs[in_group]
        values = self._values(self.inputs(self.to_device(packed)))
        m, s, t, env = (self.to_device(part.copy()) for part in (member, slot, t, env))
        following[m, t, env] = values[m, s]


class TorchPPO(TorchAgent, BasePPO):
    """Torch implementation of `PPO`.

    States are interchangeable with `PPO`; results are not bit-identical.

    Args:
        config, specs, seeds, num_envs: As for `PPO`.
        device, precision: From the config section `training`.
    """

    def __init__(
        self,
        config: PPOConfig,
        specs: EnvSpec | Sequence[EnvSpec],
        seeds: Sequence[int],
        num_envs: int,
        device: str = "cpu",
        precision: str = "float32",
    ) -> None:
        super().__init__(config, specs, seeds, num_envs)
        self.make_groups(device, precision)

    def make_group(self, members: slice) -> PPOGroup:
        arguments = self.config, members, self.num_envs, self.device, self.products
        return PPOGroup(self.policy, *arguments)

    def act(self, rollout: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        return self.begin_act(rollout, t, 0, len(self._env_actions))()

    def double_buffered_ranges(self) -> list[tuple[int, int]]:
        total = len(self._env_actions)
        if self.device.type != "cuda" or total < _MIN_DOUBLE_BUFFERED_ENVS:
            return []
        middle = total // 2 if self.members == 1 else self.members // 2 * self.num_envs
        return [(0, middle), (middle, total)]

    def begin_act(self, rollout: Rollout, t: int, lo: int, hi: int) -> Callable[[], NDArray[Any]]:
        keys = self._noise_keys()[t]

        def begin(group: PPOGroup) -> Callable[[], None] | None:
            e = group.environments
            env_range = slice(max(lo, e.start), min(hi, e.stop))
            if env_range.start >= env_range.stop:
                return None
            return group.begin_act(rollout, t, env_range, keys[group.members])

        writers = self.map_groups(begin)

        def act() -> NDArray[Any]:
            for write in filter(None, writers):
                write()
            env_range = self._env_actions[lo:hi]
            self.policy.actions.to_environment(rollout.actions[t, lo:hi], env_range)
            return self._env_actions

        return act

    def update(
        self,
        rollout: Rollout,
        progress: float | NDArray[np.float64] = 0.0,
        run_tasks: RunTasks = in_sequence,
    ) -> dict[str, NDArray[Any]]:
        reward, rate = self.scaled_reward(rollout), self.learning_rate_at(progress)
        rewarded = self._rewarded()
        first_epochs = self.iterations * self.config.n_epochs

        def learn(group: PPOGroup) -> dict[str, NDArray[Any]]:
            m = group.members
            member_values = rate[m], self.seeds[m], first_epochs[m]
            return group.update(rollout, reward, rewarded[m], *member_values)

        return self._finish_iteration(rollout, self.map_groups(learn), learning_rate=rate)


Agent = TorchPPO
