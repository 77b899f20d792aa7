"""PPO by torch: the same update by autograd, on any device; images learn here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.agents.ppo.base import BasePPO
from slipstream.agents.ppo.config import PPOConfig, Settings
from slipstream.agents.ppo.torch_form import (
    Coefficients,
    Rows,
    advantages,
    explained_variance,
    learn,
)
from slipstream.agents.tasks import RunTasks, in_sequence
from slipstream.agents.torch_group import TorchGroup
from slipstream.core.spec import Spec
from slipstream.experience.rollout import Rollout
from slipstream.machine import draws
from slipstream.nets import torch_draws
from slipstream.nets.policy import Policy
from slipstream.nets.torch_adam import Weights
from slipstream.nets.torch_device import device_of, together
from slipstream.nets.torch_distributions import Distribution, distribution
from slipstream.nets.torch_threads import one_thread


class PPOGroup(TorchGroup):
    """Members `members` of a policy.

    Args:
        policy: of all members; its arrays are what counts between rollouts.
        settings: of all members.
        members: which of them.
        num_envs: N, of each.
        rows: B rows of a minibatch, per member.
        device: where torch calculates.
    """

    def __init__(
        self,
        policy: Policy,
        settings: Settings,
        members: slice,
        num_envs: int,
        rows: int,
        device: torch.device,
    ) -> None:
        super().__init__(policy, num_envs, members, device)
        self._settings, self._rows = settings, rows
        self._group = self.group(policy.parameters)
        self._leaves = self._group.leaves
        self._observations: dict[int, Tensor] = {}  # of this rollout, by step

    @torch.no_grad()
    def act(
        self,
        obs: NDArray[np.generic],
        mask: NDArray[np.bool_] | None,
        keys: NDArray[np.uint64],
        t: int,
    ) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
        """Actions [g N, K] and their log_prob [g N] of step t.

        Args:
            obs: [g N, *shape]; mask: bool [g N, choices], or None; keys: uint64 [g].
        """
        if t == 0:
            self.fetch()
        self._observations[t] = self.carried(obs)
        actions = self._policy.actions
        draw = torch_draws.normal if actions.continuous else torch_draws.gumbel
        streams = torch_draws.keys_of(keys, self.device)
        noise = draw(streams, 0, self.num_envs * actions.head_width)
        x = self.inputs(self._by_member(self._observations[t][None]))
        head = self.network.head(self._leaves, self.network.features(self._leaves, x))
        allowed = None if mask is None else self._by_member(self.carried(mask)[None])
        chosen = self._distribution(self._leaves, head, allowed)
        action = chosen.sample(noise.view(*head.shape[:2], -1))
        log_prob = chosen.log_prob(action)
        action = action.flatten(0, 1)
        return action.cpu().numpy(), log_prob.flatten().cpu().numpy()

    def _distribution(self, weights: Weights, head: Tensor, mask: Tensor | None) -> Distribution:
        return distribution(self._policy.actions, head, weights.get("log_std"), mask)

    def _model(self, weights: Weights, rows: Rows) -> tuple[Distribution, Tensor]:
        features = self.network.features(weights, rows.x)
        head = self.network.head(weights, features)
        return self._distribution(weights, head, rows.mask), self.network.value(weights, features)

    def update(
        self,
        rollout: Rollout,
        reward: NDArray[np.float32],
        paid: NDArray[np.bool_],
        learning_rate: NDArray[np.float64],
        seeds: NDArray[np.uint64],
        first_epochs: NDArray[np.int64],
    ) -> dict[str, NDArray[np.generic]]:
        """Improves the members on their part of a rollout.

        Args:
            rollout: of all members.
            reward: [T, E], scaled.
            paid, learning_rate, seeds, first_epochs: of these members, as for `Learner.learn`.

        Returns:
            Metrics [g] by name.
        """
        self.fetch()
        coefficients = self._coefficients(learning_rate)
        rows = self._make_rows(rollout, reward, coefficients)
        rows.advantage[self.carried(~paid)] = 0.0
        metrics = learn(
            *(self._group, self._model, rows),
            self._orders(rows.valid.shape[1], seeds, first_epochs),
            *(self._rows, coefficients, self._settings.normalize_advantage),
        ) | {"explained_variance": explained_variance(rows)}
        self.put_back()
        self._observations.clear()
        return {name: value.cpu().numpy() for name, value in metrics.items()}

    def _coefficients(self, learning_rate: NDArray[np.float64]) -> Coefficients:
        def column(name: str) -> Tensor:
            own = learning_rate if name == "learning_rate" else None
            values = getattr(self._settings, name)[self.members] if own is None else own
            return self.carried(values.astype(np.float32))

        return Coefficients(*(column(name) for name in Coefficients._fields))

    def _orders(
        self, total: int, seeds: NDArray[np.uint64], first_epochs: NDArray[np.int64]
    ) -> Iterator[Tensor]:
        """Each epoch's permutations [g, R]; swaps in turn are no work for a device."""
        for epoch in range(self._settings.epochs):
            order = np.zeros((self.count, total), np.int64)
            draws.permute(draws.own_keys(seeds, draws.MINIBATCH, first_epochs + epoch), order)
            yield self.carried(order)

    @torch.no_grad()
    def _make_rows(
        self, rollout: Rollout, reward: NDArray[np.float32], coefficients: Coefficients
    ) -> Rows:
        to, e, t = rollout, self.environments, rollout.horizon
        for row in set(range(t + 1)) - self._observations.keys():
            self._observations[row] = self.carried(to.obs[row, e])
        obs = torch.stack([self._observations[row] for row in range(t + 1)])
        x = self.inputs(self._by_member(obs))
        values = self._values(x).view(self.count, t + 1, self.num_envs)

        def column(array: NDArray[np.generic]) -> Tensor:
            """[g, T, N] of [T, E]."""
            own = self.carried(array[:, e])
            return own.view(t, self.count, self.num_envs).transpose(0, 1)

        terminated, truncated, valid = map(column, (to.terminated, to.truncated, to.valid))
        following = values[:, 1:].clone()
        self._put_final_values(rollout, following)
        following.masked_fill_(terminated, 0.0)
        advantage, target = advantages(
            *(column(reward), values[:, :-1], following),
            *(terminated | truncated, valid, coefficients),
        )

        def wide(array: NDArray[np.generic]) -> Tensor:
            """[g, T N, K] of [>= T, E, K]."""
            return self._by_member(self.carried(array[:t, e]))

        mask = None if to.mask is None else wide(to.mask)
        flat = (column(to.log_prob), advantage, target, values[:, :-1], valid)
        rest = (part.reshape(self.count, -1) for part in flat)
        return Rows(x[:, : t * self.num_envs], mask, wide(to.actions), *rest)

    def _by_member(self, rows: Tensor) -> Tensor:
        """[g, T N, ...] of [T, g N, ...]."""
        parts = rows.view(len(rows), self.count, self.num_envs, *rows.shape[2:])
        return parts.transpose(0, 1).reshape(self.count, -1, *rows.shape[2:])

    def _values(self, x: Tensor) -> Tensor:
        """Critic on inputs [g, R, ...], a minibatch's rows at a time."""
        network, weights = self.network, self._leaves
        pieces = (network.features(weights, piece) for piece in torch.split(x, self._rows, 1))
        return torch.cat([network.value(weights, piece) for piece in pieces], 1)

    def _put_final_values(self, rollout: Rollout, following: Tensor) -> None:
        """Into [g, T, N]: the critic on the final observations of truncated rows."""
        index, obs = np.asarray(rollout.final_index), np.asarray(rollout.final_obs)
        own = (index[:, 1] >= self.environments.start) & (index[:, 1] < self.environments.stop)
        if not own.any():
            return
        t, e = index[own].T
        member, env = np.divmod(e - self.environments.start, self.num_envs)
        counts = np.bincount(member, minlength=self.count)
        order = np.argsort(member, kind="stable")
        slot = np.zeros_like(member)  # of each among its member's
        slot[order] = np.arange(len(member)) - np.repeat(np.cumsum(counts) - counts, counts)
        packed = np.zeros((self.count, counts.max(), *obs.shape[1:]), obs.dtype)
        packed[member, slot] = obs[own]
        values = self._values(self.inputs(self.carried(packed)))
        m, s, t, env = (self.carried(part.copy()) for part in (member, slot, t, env))
        following[m, t, env] = values[m, s]


class TorchPPO(BasePPO):
    """As `PPO`, whose state it can go on from, and the other way round; its bits are other ones.

    On a processor members are handled one after another, since a batched product's bits would
    depend on their number; on a GPU all together.

    Args:
        config, specs, seeds, num_envs: as for `PPO`.
        device: where torch calculates.
    """

    def __init__(
        self,
        config: PPOConfig,
        specs: Spec | Sequence[Spec],
        seeds: Sequence[int],
        num_envs: int,
        device: str = "cpu",
    ) -> None:
        super().__init__(config, specs, seeds, num_envs)
        self.device = device_of(device)
        rows = config.rows(num_envs)
        self._groups = [
            PPOGroup(self.policy, self.settings, own, num_envs, rows, self.device)
            for own in together(self.members, self.device)
        ]

    def act(self, rollout: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        keys, to = self._noise_keys()[t], rollout
        with one_thread():
            for group in self._groups:
                e = group.environments
                mask = None if to.mask is None else to.mask[t, e]
                action, log_prob = group.act(to.obs[t, e], mask, keys[group.members], t)
                to.actions[t, e], to.log_prob[t, e] = action, log_prob
        self.policy.actions.to_environment(to.actions[t], self._env_actions)
        return self._env_actions

    def update(
        self,
        rollout: Rollout,
        progress: float | NDArray[np.float64] = 0.0,
        run: RunTasks = in_sequence,
    ) -> dict[str, NDArray[Any]]:
        (reward, paid), rate = self._scaled_reward(rollout), self._learning_rate(progress)
        first_epochs = self.iterations * self.config.epochs
        results = []
        with one_thread():
            for group in self._groups:
                m = group.members
                own = rate[m], self.seeds[m], first_epochs[m]
                results.append(group.update(rollout, reward, paid[m], *own))
        return self._finished(rollout, results, learning_rate=rate)


Agent = TorchPPO
