"""PettingZoo's parallel environment over one sub-environment, of several players or of one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from slipstream.adapters.batch import ActionError, UnreadyError, each, make_batch
from slipstream.core.errors import ConfigError
from slipstream.core.extras import import_optional

_PETTINGZOO = import_optional("pettingzoo", "The face for PettingZoo", "pettingzoo")


class ParallelAdapter(_PETTINGZOO.ParallelEnv):  # type: ignore[misc, name-defined]
    """One copy; agents ``player_0``, ``player_1``, ... act at the same time and end together.

    What has one player, as a Gymnasium environment has, has the agent ``player_0`` alone.

    Where the kernel has a mask, an observation is PettingZoo's Dict of `observation` and
    `action_mask`, and an info has `action_mask`, too; when the episode ends, `metrics`. That of
    a ``gym:ID`` is its own; reset options are not handed on.

    Args:
        target: as for `make_batch`.
        render_mode: None; no pictures are drawn.
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
            raise ConfigError(f"{batch.name} draws no pictures here; leave `render_mode` out.")
        self.batch, self.render_mode = batch, None
        self.metadata = {"name": f"slipstream_{batch.name}_v0", "render_modes": []}
        self.possible_agents = [f"player_{p}" for p in range(batch.spec.players)]
        self.agents: list[str] = []
        self._shown: spaces.Space[Any] = batch.observation_space
        if batch.spec.has_action_mask:
            allowed = spaces.MultiBinary(batch.spec.num_actions)
            self._shown = spaces.Dict({"observation": self._shown, "action_mask": allowed})

    def observation_space(self, agent: str) -> Any:
        return self._shown

    def action_space(self, agent: str) -> Any:
        return self.batch.action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Begins an episode: the first of the stream of `seed`, or the next one of its own.

        Options are passed over: a kernel has none, and PettingZoo's own tests give some.
        """
        obs = self.batch.reset([seed])
        self.agents = list(self.possible_agents)
        return self._each(each(obs)[0]), self._infos()

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """All agents act: observations, rewards, terminations, truncations, infos by agent.

        Raises:
            ActionError: an agent's action is missing, or not in the action space.
            UnreadyError: no episode has begun, or it has ended.
        """
        if not self.agents:
            raise UnreadyError(f"{self.batch.name}: no episode is running; call `reset`.")
        missing = [agent for agent in self.agents if agent not in actions]
        if missing or len(actions) != len(self.agents):
            raise ActionError(
                f"{self.batch.name}: `step` takes an action of each of {self.agents}, got those of "
                f"{list(actions)}."
            )
        rows = [np.asarray(actions[agent]) for agent in self.agents]
        came = self.batch.step((np.stack(rows) if len(rows) > 1 else rows[0])[None])
        ends = bool(came.terminated[0]), bool(came.truncated[0])
        infos = self._infos()
        if len(came.ended) and came.episodes.metrics:
            for info in infos.values():
                info["metrics"] = {k: float(v[0]) for k, v in came.episodes.metrics.items()}
        rewards = {agent: float(paid) for agent, paid in self._of(came.reward[0])}
        terminations, truncations = (dict.fromkeys(self.agents, one) for one in ends)
        obs = self._each(each(came.obs)[0])
        if any(ends):
            self.agents = []
        return obs, rewards, terminations, truncations, infos

    def render(self) -> None:
        """Nothing is drawn."""

    def close(self) -> None:
        """Ends the copy. Safe to call again."""
        self.batch.close()

    def _of(self, players: Any) -> list[tuple[str, Any]]:
        """Agents with their parts of what has an axis of players where there are several."""
        parts = [players] if self.batch.spec.players == 1 else players
        return list(zip(self.possible_agents, parts, strict=True))

    def _each(self, shown: Any) -> dict[str, Any]:
        own = {agent: copy.deepcopy(part) for agent, part in self._of(shown)}
        if self.batch.mask is None:
            return own
        masks = dict(self._of(self.batch.mask[0]))
        return {
            agent: {"observation": part, "action_mask": masks[agent].astype(np.int8)}
            for agent, part in own.items()
        }

    def _infos(self) -> dict[str, dict[str, Any]]:
        mask = self.batch.mask
        if mask is None:  # a `gym:ID` has one player and no mask
            (said,) = self.batch.said(np.zeros(1, np.int64))
            return {agent: dict(said) for agent in self.possible_agents}
        return {agent: {"action_mask": own.astype(np.int8)} for agent, own in self._of(mask[0])}


def make_vec(target: str | Mapping[str, Any], num_envs: int = 1, **options: Any) -> ParallelAdapter:
    """`ParallelAdapter` by the name that all faces have; PettingZoo steps one sub-environment."""
    if num_envs != 1:
        raise ConfigError(f"PettingZoo steps one sub-environment, and {num_envs} were asked for.")
    return ParallelAdapter(target, **options)
