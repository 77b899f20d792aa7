"""The hockey project's vectorized environment, and a trained policy as its player."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from slipstream.adapters.batch import KernelBatch, make_batch
from slipstream.api import load_policy
from slipstream.core.errors import ConfigError
from slipstream.games.hockey.players import HOLD_STEPS
from slipstream.rl.nets.policy import Policy


class HockeyPlayer:
    """A policy with the interface of a competition client: `get_step(observation)`.

    ::

        player = HockeyPlayer("runs/first")
        action = player.get_step(env.obs_agent_two())   # four values in [-1, 1]

    Args:
        policy: run, folder of a policy, or policy of `hockey`.
        member: member of the run; None: the best one.

    Raises:
        ConfigError: the policy is of another environment.
    """

    def __init__(self, policy: str | Path | Policy, member: int | None = None) -> None:
        self.policy = policy if isinstance(policy, Policy) else load_policy(policy, member)
        if self.policy.observation_shape not in ((18,), (16,)):
            raise ConfigError(
                f"The policy has observations {self.policy.observation_shape}, but hockey has "
                "(18,), or (16,) without `puck_hold`. Choose a policy of `hockey`."
            )
        self._puck_hold = self.policy.observation_shape == (18,)

    def get_step(self, observation: Sequence[float]) -> list[float]:
        """Return the most likely action, [4], or [3] without `puck_hold`.

        Args:
            observation: observation of this player, [18] or [16].
        """
        action = self.policy.act(np.asarray(observation, np.float32))
        if np.ndim(action) == 0:
            return self._decode(int(action))
        return [float(value) for value in np.asarray(action).ravel()]

    def act(self, observation: Sequence[float]) -> Any:
        """Return the action of `get_step` as an array, like the original's opponents."""
        return np.array(self.get_step(observation))

    def _decode(self, discrete: int) -> list[float]:
        """Return the values of a discrete action: no-op, 6 (n - 1) directions, shoot."""
        num_actions = self.policy.actions.sizes[0]
        levels = (num_actions - 1 - self._puck_hold) // 6
        action = [0.0] * (4 if self._puck_hold else 3)
        index = discrete - 1
        if index >= 6 * levels:
            action[3] = 1.0
        elif index >= 0:
            direction, strength = index // levels, (index % levels + 1) / levels
            action[direction // 2] = -strength if direction % 2 == 0 else strength
        return action


class VectorizedHockeyEnv:
    """Vectorized hockey environment with auto-reset.

    Args:
        num_envs: number of sub-environments.
        env_fn: function that makes one environment: the original's, or an object with its `mode`,
            `keep_mode` and, if a bot plays, `opponent.weak`. These become settings. The
            environment is never stepped. None: the settings alone.
        start_method: ignored, because no process is started.
        **settings: settings of `hockey`: mode (also "TRAIN_SHOOTING"), puck_hold, opponents, ...

    Attributes:
        observation_space: space of one player.
        action_space: space of both players, [8], or [6] without `puck_hold`; with `opponents` the
            space of the learner.
        mode, keep_mode: values of the settings.
    """

    def __init__(
        self,
        num_envs: int,
        env_fn: Callable[[], Any] | None = None,
        start_method: str | None = None,
        **settings: Any,
    ) -> None:
        self.num_envs, self._obs_two = num_envs, np.zeros((0, 0), np.float32)
        if env_fn is not None:
            settings = {**_settings_from_env(env_fn()), **settings}
        self.mode, self.keep_mode = settings.get("mode", "normal"), settings.get("puck_hold", True)
        self.batch = make_batch("hockey", num_envs, autoreset=AutoresetMode.SAME_STEP, **settings)
        assert isinstance(self.batch, KernelBatch)
        self._env = self.batch.env
        spec = self.batch.spec
        self.observation_space, self.action_space = spec.observation_space, spec.action_space
        self._players = spec.players
        if spec.players == 2 and isinstance(spec.action_space, spaces.Box):
            low, high = np.tile(spec.action_space.low, 2), np.tile(spec.action_space.high, 2)
            self.action_space = spaces.Box(low, high, dtype=np.float32)

    def reset(self) -> NDArray[np.float32]:
        """Start new games; return the observations of player 0, [num_envs, 18]."""
        return self._split(self.batch.reset([None] * self.num_envs))

    def obs_agent_two(self) -> NDArray[np.float32]:
        """Return the observations of player 1, if no bot plays."""
        if self._players == 1:
            raise ConfigError("A bot is player 1. Remove `opponents` to act for both players.")
        return self._obs_two.copy()

    def step(self, actions: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], Any, Any]:
        """Step every sub-environment.

        Args:
            actions: [num_envs, 8], player 0 first; [num_envs, 4] against a bot.

        Returns:
            Observations, rewards, dones (terminated or truncated), truncs (truncated) and infos, in
            new arrays. Every info has `winner` (1, 0 or -1) and, for the observed player,
            the original's `reward_closeness_to_puck`, `reward_touch_puck` and
            `reward_puck_direction` of this step. If a game has ended, the observation is the first
            one of the next game, and info has `terminal_obs`.
        """
        rows = np.asarray(actions)
        if self._players == 2:
            rows = rows.reshape(self.num_envs, 2, -1)
        limit = self._env.read(("time_limit",))["time_limit"]  # before an auto-reset changes it
        result = self.batch.step(rows)
        final_obs = result.final_obs[:, 0] if self._players == 2 else result.final_obs
        obs = self._split(result.obs)
        step_obs = obs.copy()
        step_obs[result.ended] = final_obs
        infos = _reward_terms(step_obs, limit, self.keep_mode)
        metrics = result.episodes.metrics
        winner = metrics["winner"] if self._players == 2 else metrics["won"] - metrics["lost"]
        for k, game in enumerate(result.ended.tolist()):
            infos[game] |= {"winner": int(winner[k]), "terminal_obs": final_obs[k]}
        reward = result.reward[:, 0].copy() if self._players == 2 else result.reward
        return obs, reward, result.terminated | result.truncated, result.truncated, infos

    def close(self) -> None:
        """Close the environment; may be called again."""
        self.batch.close()

    def _split(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the observations of player 0 and store those of player 1."""
        if self._players == 1:
            return obs
        self._obs_two = obs[:, 1].copy()
        return obs[:, 0].copy()


class VectorizedHockeyEnvOptimized(VectorizedHockeyEnv):
    """Alias of `VectorizedHockeyEnv`, which already reuses its arrays."""


def _reward_terms(
    obs: NDArray[np.float32], limit: NDArray[Any], puck_hold: bool
) -> list[dict[str, Any]]:
    """Return the original's info of a step for each game; the kernel's `outcome` sums these terms.

    Args:
        obs: [n, 18] or [n, 16], a player's observations after the step.
        limit: [n], maximum steps of a game.
        puck_hold: caught pucks are held.
    """
    x, y, puck_x, puck_y, speed = (obs[:, i].astype(np.float64) for i in (0, 1, 12, 13, 14))
    distance = np.hypot(x - puck_x, y - puck_y)
    closeness = distance * (-30.0 / (250.0 / 60.0 * limit / 2.0))
    closeness[(puck_x >= 0.0) | (speed > 0.0)] = 0.0
    touch = obs[:, 16] == HOLD_STEPS if puck_hold else np.zeros(len(obs))
    columns = (closeness.tolist(), touch.astype(float).tolist(), (speed / (limit * 25.0)).tolist())
    names = ("reward_closeness_to_puck", "reward_touch_puck", "reward_puck_direction")
    rows = zip(*columns, strict=True)
    return [{"winner": 0, **dict(zip(names, row, strict=True))} for row in rows]


def _settings_from_env(env: Any) -> dict[str, Any]:
    """Return the settings of an environment, and close it."""
    if not hasattr(env, "mode"):
        raise ConfigError(
            f"`env_fn` must make a hockey environment, got a {type(env).__name__}. Remove it and "
            "give settings: VectorizedHockeyEnv(8, mode='TRAIN_SHOOTING'). For other environments "
            "use slipstream.make_adapter('gymnasium', 'gym:ID', 8)."
        )
    settings = {"mode": env.mode, "puck_hold": getattr(env, "keep_mode", True)}
    if hasattr(env, "opponent"):
        settings["opponents"] = {"weak" if getattr(env.opponent, "weak", False) else "strong": 1.0}
    if hasattr(env, "close"):
        env.close()
    return settings
