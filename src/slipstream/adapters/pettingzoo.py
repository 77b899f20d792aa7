"""Adapter with PettingZoo's `ParallelEnv` interface for one environment."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from slipstream.adapters.batch import ActionError, ResetNeededError, make_batch, split_batch
from slipstream.core.errors import ConfigError
from slipstream.core.extras import import_optional

_PETTINGZOO = import_optional("pettingzoo", "The adapter for PettingZoo", "pettingzoo")


class ParallelAdapter(_PETTINGZOO.ParallelEnv):  # type: ignore[misc, name-defined]
    """Single environment; the agents ``player_0``, ``player_1``, ... act simultaneously.

    All agents end together. Environments with one player, such as Gymnasium's, have the agent
    ``player_0`` only.

    If the kernel has an action mask, observations are PettingZoo's Dict of `observation` and
    `action_mask`, and infos have `action_mask`. Infos of the last step of an episode have
    `metrics`. Infos of a ``gym:ID`` are its own. Reset options are ignored.

    Args:
        target: As for `make_batch`.
        render_mode: Must be None; the adapter cannot be rendered.
        **options: `backend`, `split` and `workers` as for `make_batch`; fields of the environment's
            Config; ``kwargs`` of ``gym:ID``.
    """

    def __init__(
        self,
        target: str | Mapping[str, Any],
        *,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        batch = make_batch(target, 1, autoreset=AutoresetMode.DISABLED, **options)
        if render_mode is not None:
            batch.close()
            raise ConfigError(f"{batch.name} cannot be rendered. Omit `render_mode`.")
        self.batch, self.render_mode = batch, None
        self.metadata = {"name": f"slipstream_{batch.name}_v0", "render_modes": []}
        self.possible_agents = [f"player_{p}" for p in range(batch.spec.players)]
        self.agents: list[str] = []
        self._observation_space: spaces.Space[Any] = batch.observation_space
        if batch.spec.has_action_mask:
            allowed = spaces.MultiBinary(batch.spec.num_actions)
            self._observation_space = spaces.Dict(
                {"observation": self._observation_space, "action_mask": allowed}
            )

    def observation_space(self, agent: str) -> Any:
        return self._observation_space

    def action_space(self, agent: str) -> Any:
        return self.batch.action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Begin an episode: the first one of `seed`, or the next one of the current stream.

        Options are ignored: kernels have none, but PettingZoo's own tests pass some.
        """
        obs = self.batch.reset([seed])
        self.agents = list(self.possible_agents)
        return self._observations_by_agent(split_batch(obs)[0]), self._get_infos()

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Step all agents.

        Returns:
            Observations, rewards, terminations, truncations and infos by agent.

        Raises:
            ActionError: An agent's action is missing, or not in the action space.
            ResetNeededError: No episode has begun, or it has ended.
        """
        if not self.agents:
            raise ResetNeededError(f"{self.batch.name}: no episode is running. Call `reset`.")
        missing = [agent for agent in self.agents if agent not in actions]
        if missing or len(actions) != len(self.agents):
            raise ActionError(
                f"{self.batch.name}: `step` takes one action for each of {self.agents}, got "
                f"{list(actions)}."
            )
        rows = [np.asarray(actions[agent]) for agent in self.agents]
        result = self.batch.step((np.stack(rows) if len(rows) > 1 else rows[0])[None])
        flags = bool(result.terminated[0]), bool(result.truncated[0])
        infos = self._get_infos()
        if len(result.ended) and result.episodes.metrics:
            for info in infos.values():
                info["metrics"] = {k: float(v[0]) for k, v in result.episodes.metrics.items()}
        rewards = {agent: float(reward) for agent, reward in self._by_agent(result.reward[0])}
        terminations, truncations = (dict.fromkeys(self.agents, flag) for flag in flags)
        obs = self._observations_by_agent(split_batch(result.obs)[0])
        if any(flags):
            self.agents = []
        return obs, rewards, terminations, truncations, infos

    def render(self) -> None:
        """Do nothing: the adapter cannot be rendered."""

    def close(self) -> None:
        """Close the environment. Safe to call again."""
        self.batch.close()

    def _by_agent(self, values: Any) -> list[tuple[str, Any]]:
        """Return pairs of agent and value; several players have an axis of their own."""
        parts = [values] if self.batch.spec.players == 1 else values
        return list(zip(self.possible_agents, parts, strict=True))

    def _observations_by_agent(self, obs: Any) -> dict[str, Any]:
        observations = {agent: copy.deepcopy(part) for agent, part in self._by_agent(obs)}
        if self.batch.mask is None:
            return observations
        masks = dict(self._by_agent(self.batch.mask[0]))
        return {
            agent: {"observation": part, "action_mask": masks[agent].astype(np.int8)}
            for agent, part in observations.items()
        }

    def _get_infos(self) -> dict[str, dict[str, Any]]:
        mask = self.batch.mask
        if mask is None:  # a `gym:ID` has one player and no mask
            (info,) = self.batch.info_dicts(np.zeros(1, np.int64))
            return {agent: dict(info) for agent in self.possible_agents}
        return {
            agent: {"action_mask": part.astype(np.int8)} for agent, part in self._by_agent(mask[0])
        }


def make_vec(target: str | Mapping[str, Any], num_envs: int = 1, **options: Any) -> ParallelAdapter:
    """Create a `ParallelAdapter`, which has one environment."""
    if num_envs != 1:
        raise ConfigError(f"PettingZoo supports one environment, got num_envs={num_envs}.")
    return ParallelAdapter(target, **options)
