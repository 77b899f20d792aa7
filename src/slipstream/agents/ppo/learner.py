"""PPO's update of a population in one compiled call: epochs of minibatches over its rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.off_policy.gate import make_gate, run_with_helpers
from slipstream.agents.ppo.config import Settings
from slipstream.agents.ppo.update import (
    ACTION,
    STATISTICS,
    Epochs,
    Experience,
    Net,
    Rows,
    Space,
    Tally,
    loops,
)
from slipstream.agents.tasks import RunTasks, in_sequence
from slipstream.core import memory
from slipstream.experience.rollout import Rollout
from slipstream.machine import draws
from slipstream.nets.adam import LANES
from slipstream.nets.layers import BLOCK
from slipstream.nets.networks import MlpNetwork
from slipstream.nets.observations import LIMIT
from slipstream.nets.policy import Policy

_NO_MASK = np.zeros((0, 0, 0), np.bool_)


class Learner:
    """Updates the members of a policy on their rows of a rollout.

    Args:
        policy: whose parameters change; network: its own.
        settings: of all M members.
        horizon, num_envs: T and N of the rollout.
        rows: B rows of a minibatch, per member.
        parts: equal parts that a minibatch's gradient is summed from.
    """

    def __init__(
        self,
        policy: Policy,
        network: MlpNetwork,
        settings: Settings,
        horizon: int,
        num_envs: int,
        rows: int,
        parts: int,
    ) -> None:
        self._policy, self._settings, self._parts = policy, settings, parts
        losses = settings.clip_range, settings.entropy_coef, settings.value_coef
        self._losses = np.stack(losses, axis=1)
        total, together = horizon * num_envs, min(parts, settings.epochs)
        self._order = np.zeros((together, total), np.int64)
        self._moments = np.zeros((together, total // rows, 3))
        self._statistics = memory.zeros((parts, _whole_lines(len(STATISTICS))), np.float64)
        self._net, self._space = _net_of(policy, network), _space_of(policy, network, parts)
        self._rows = _rows_of(policy, horizon, num_envs)
        self._gamma = np.repeat(settings.discount.astype(np.float32), num_envs)
        self._lam = np.repeat(settings.gae_lambda.astype(np.float32), num_envs)
        self._gate = make_gate()
        self._update = loops()["update_members"]

    def learn(
        self,
        rollout: Rollout,
        reward: NDArray[np.float32],
        paid: NDArray[np.bool_],
        seeds: NDArray[np.uint64],
        first_epochs: NDArray[np.int64],
        learning_rate: NDArray[np.float64],
        run: RunTasks,
    ) -> dict[str, NDArray[Any]]:
        """The whole update.

        Args:
            rollout: filled, with its final observations; reward: float32 [T, E], its own, scaled.
            paid: bool [M], whose policies learn from rewards.
            seeds: [M]; with the epoch's number they name its permutation.
            first_epochs: [M], number of each member's first epoch since its training began.
            learning_rate: [M].
            run: runs tasks of a lone member side by side.

        Returns:
            Statistics [M] by name, means over the minibatches that changed the member.
        """
        tally, settings = self._tally(learning_rate), self._settings
        numbers = first_epochs + np.arange(settings.epochs)[:, None]
        if rollout.mask is not None and not len(self._rows.mask):
            choices = rollout.mask.shape[-1]
            self._rows = self._rows._replace(mask=np.zeros((len(self._rows.packed), choices), bool))
        rows = self._rows._replace(final_value=np.zeros(len(rollout.final_index), np.float32))
        helpers = 0 if run is in_sequence else self._parts - 1
        some = len(self._order) if helpers else 1
        by = Epochs(
            net=self._net,
            weights=self._policy.parameters.arrays,
            losses=self._losses,
            experience=self._experience(rollout, reward, paid),
            rows=rows,
            keys=np.ascontiguousarray(draws.own_keys(seeds, draws.MINIBATCH, numbers).T),
            order=self._order[:some],
            moments=self._moments[:some],
            normalise=settings.normalize_advantage,
            statistics=self._statistics,
            tally=tally,
            space=self._space,
            gate=self._gate,
        )
        lead, help_out = partial(self._update, by, False), partial(self._update, by, True)
        run_with_helpers(self._gate, lead, help_out, helpers, run)
        means = tally.sums / np.maximum(tally.updates, 1)[:, None]
        return {
            **dict(zip((*STATISTICS, "gradient_norm"), means.T, strict=True)),
            "updates": tally.updates,
            "explained_variance": rows.explained.copy(),
        }

    def _experience(
        self, rollout: Rollout, reward: NDArray[np.float32], paid: NDArray[np.bool_]
    ) -> Experience:
        scale = self._policy.scale
        assert scale is not None  # of rows of numbers
        numbers = scale.mean.shape[1]
        return Experience(
            obs=rollout.obs.reshape(*rollout.obs.shape[:2], numbers),
            mean=scale.mean,
            inverse_std=scale.inverse_std,
            limit=LIMIT,
            mask=_NO_MASK if rollout.mask is None else rollout.mask,
            action=rollout.actions.astype(np.float32, copy=False),
            log_prob=rollout.log_prob,
            reward=reward,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            valid=rollout.valid,
            final_obs=rollout.final_obs.reshape(len(rollout.final_index), numbers),
            final_index=rollout.final_index,
            gamma=self._gamma,
            lam=self._lam,
            paid=paid,
        )

    def _tally(self, learning_rate: NDArray[np.float64]) -> Tally:
        settings, failed = self._settings, self._policy.parameters.failed
        return Tally(
            learning_rate=learning_rate,
            epsilon=settings.adam_eps,
            max_norm=settings.max_grad_norm,
            target_kl=1.5 * settings.target_kl,
            frozen=failed.copy(),
            sums=np.zeros((len(failed), len(STATISTICS) + 1)),
            updates=np.zeros(len(failed), np.int64),
            lanes=np.zeros(LANES),
        )


def _net_of(policy: Policy, network: MlpNetwork) -> Net:
    log_std = policy.parameters.offsets.get("log_std", 0)
    sizes, relu = np.array(policy.actions.sizes, np.int64), network.activation == "relu"
    return Net(network.tables, relu, policy.actions.continuous, log_std, sizes)


def _space_of(policy: Policy, network: MlpNetwork, parts: int) -> Space:
    return Space(
        x=_inputs(policy, (parts + 1, BLOCK)),
        outputs=memory.zeros((parts + 1, 2, network.block)),
        d_outputs=memory.zeros((parts, 2, network.block)),
        turned=memory.zeros((parts, policy.parameters.flat.shape[1])),
        scratch=memory.zeros((parts, 3, _whole_lines(policy.actions.head_width)), np.float64),
    )


def _rows_of(policy: Policy, horizon: int, num_envs: int) -> Rows:
    e = policy.members * num_envs
    return Rows(
        x=_inputs(policy, ((horizon + 1) * num_envs,)),
        packed=memory.zeros((horizon * num_envs, ACTION + policy.actions.width)),
        mask=np.zeros((0, 0), np.bool_),
        value=memory.zeros((horizon + 1, e)),
        final_value=np.zeros(0, np.float32),
        advantage=memory.zeros((horizon, e)),
        target=memory.zeros((horizon, e)),
        place=np.zeros(BLOCK, np.int64),
        explained=np.zeros(policy.members),
    )


def _inputs(policy: Policy, rows: tuple[int, ...]) -> NDArray[np.float32]:
    """Memory for network inputs [*rows, input width], the column of ones in place."""
    x: NDArray[np.float32] = memory.zeros((*rows, policy.input_width))
    x[..., int(np.prod(policy.observation_shape))] = 1.0
    return x


def _whole_lines(numbers: int) -> int:
    """float64 numbers rounded up to cache lines: two threads that write into one slow down."""
    each = memory.LINE // 8
    return -(-numbers // each) * each
