"""The one place where policy meets environments."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.policy import Policy
from slipstream.core.errors import KernelError
from slipstream.experience.rollout import Rollout
from slipstream.vector import draws
from slipstream.vector.vector_env import Episodes, VectorEnv

Run: TypeAlias = Callable[[Sequence[Callable[[], None]]], None]
"""Runs tasks that do not depend on each other, side by side or in turn."""


class Collector:
    """Fills a rollout: the policy acts on row t, the environments write row t + 1, nothing is copied between.

    Args:
        policy: of M members.
        envs: the E = M x N copies in consecutive slices, which may be stepped side by side. Several
            slices are for one member only: a slice must hold the same copies of every member.
        rollout: what is filled; it is used again for every block.
    """

    def __init__(self, policy: Policy, envs: Sequence[VectorEnv], rollout: Rollout) -> None:
        if policy.members > 1 and len(envs) > 1:
            raise ValueError("the environments of several members are stepped in one slice")
        self.policy, self.envs, self.rollout = policy, list(envs), rollout
        edges = np.cumsum([0, *(env.num_envs for env in envs)]).tolist()
        self._ranges = list(zip(edges[:-1], edges[1:], strict=True))
        self._actors = [policy.actor(env.num_envs // policy.members) for env in envs]
        width, dtype = policy.actions.width, envs[0].spec.action_dtype
        self._actions = [np.zeros((env.num_envs, width), dtype) for env in envs]
        self._seeds = np.array([seed % 2**64 for seed in policy.seeds], dtype=np.uint64)
        self.seconds_env = 0.0
        self.seconds_policy = 0.0

    def reset(self) -> None:
        """Begins an episode everywhere."""
        for env, (lo, hi) in zip(self.envs, self._ranges, strict=True):
            env.reset(self.rollout.numpy.obs[0, lo:hi])

    def collect(self, iteration: int, run: Run) -> list[Episodes]:
        """Fills the rollout with T steps of every copy; the last block's last observation comes first.

        Args:
            iteration: number of the block, which names the streams of action noise.
            run: runs the slices.

        Returns:
            The episodes that ended, slice by slice; `e` counts over all slices.
        """
        horizon = self.rollout.horizon
        steps = np.arange(iteration * horizon, (iteration + 1) * horizon)
        keys = draws.member_keys(self._seeds, draws.ACT, steps)
        run([partial(self._collect_slice, i, keys) for i in range(len(self.envs))])
        finals, episodes = [], []
        for env, (lo, _) in zip(self.envs, self._ranges, strict=True):
            final = env.drain_finals()
            final.index[:, 1] += lo
            finals.append(final)
            ended = env.drain_episodes()
            episodes.append(ended._replace(e=ended.e + lo))
        self.rollout.set_finals(*finals)
        self._check_observations()
        return episodes

    def _collect_slice(self, i: int, keys: NDArray[np.uint64]) -> None:
        env, (lo, hi), actor = self.envs[i], self._ranges[i], self._actors[i]
        rollout, to_env, actions = self.rollout, self.policy.actions.to_environment, self._actions[i]
        policy_seconds = env_seconds = 0.0
        for t in range(rollout.horizon):
            began = time.perf_counter()
            mask = None if rollout.mask is None else rollout.mask[t, lo:hi]
            actor.act(rollout.obs[t, lo:hi], mask, keys[t], lo)
            rollout.actions[t, lo:hi] = actor.action.reshape(hi - lo, -1)
            rollout.log_prob[t, lo:hi] = actor.log_prob.reshape(-1)
            to_env(actor.action.reshape(hi - lo, -1), actions)
            acted = time.perf_counter()
            env.step(actions, rollout.step_out(t, lo, hi), t)
            policy_seconds += acted - began
            env_seconds += time.perf_counter() - acted
        share = 1.0 / len(self.envs)
        self.seconds_policy += share * policy_seconds
        self.seconds_env += share * env_seconds

    def _check_observations(self) -> None:
        """A NaN observation is named here: once a block is much cheaper than at every step."""
        obs = self.rollout.obs
        if not obs.dtype.is_floating_point or bool(obs.sum().isfinite()):
            return
        bad = np.argwhere(~np.isfinite(self.rollout.numpy.obs.reshape(len(obs), obs.shape[1], -1)))
        if len(bad) == 0:
            return  # finite numbers whose sum overflowed
        t, e, column = (int(place) for place in bad[0])
        last = self.rollout.numpy.actions[t - 1, e].tolist() if t else "none (a new episode)"
        raise KernelError(
            f"The environment returned an observation that is NaN or infinite: environment {e}, step {t}, "
            f"column {column}, last action {last}. Guard the divisor or the argument of log or sqrt that "
            "produced it."
        )

    def get_state(self) -> dict[str, NDArray[Any]]:
        """State of all copies, [E, ...] by name."""
        states = [env.get_state() for env in self.envs]
        return {name: np.concatenate([state[name] for state in states]) for name in states[0]}

    def set_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Goes on from `get_state()`; the rollout's first row shows the copies as they stand."""
        for env, (lo, hi) in zip(self.envs, self._ranges, strict=True):
            part = {name: values[lo:hi] for name, values in state.items()}
            env.set_state(part, self.rollout.numpy.obs[0, lo:hi])
