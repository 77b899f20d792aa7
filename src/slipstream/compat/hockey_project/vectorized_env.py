"""The original hockey game's environment, vectorized, and a trained policy as a player of it."""

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
    """Answers each observation of its own side with an action: what a competition's client wants.

    ::

        player = HockeyPlayer("runs/first")
        action = player.get_step(env.obs_agent_two())   # four numbers within -1 and 1

    Args:
        policy: a run, a saved policy's folder, or a policy, of `hockey`.
        member: whose policy of a run; the best one's unless given.

    Raises:
        ConfigError: the policy plays something else.
    """

    def __init__(self, policy: str | Path | Policy, member: int | None = None) -> None:
        self.policy = policy if isinstance(policy, Policy) else load_policy(policy, member)
        if self.policy.observation_shape not in ((18,), (16,)):
            raise ConfigError(
                f"The policy sees {self.policy.observation_shape} numbers, and hockey shows 18, or "
                "16 without keep mode: choose a policy of `hockey`."
            )
        self._keep = self.policy.observation_shape == (18,)

    def get_step(self, observation: Sequence[float]) -> list[float]:
        """The most likely action, [4] or [3] without keep mode.

        Args:
            observation: as the environment shows it to this side, [18] or [16].
        """
        seen = np.asarray(observation, np.float32)
        chosen = self.policy.act(seen)
        if np.ndim(chosen) == 0:
            return self._numbers(int(chosen))
        return [float(number) for number in np.asarray(chosen).ravel()]

    def act(self, observation: Sequence[float]) -> Any:
        """The same as an array, as the original's opponents answer."""
        return np.array(self.get_step(observation))

    def _numbers(self, choice: int) -> list[float]:
        """A discrete action of `action_fineness` f: nothing, 6 (f - 1) directions, shoot."""
        choices = self.policy.actions.sizes[0]
        levels = (choices - 1 - self._keep) // 6
        action = [0.0] * (4 if self._keep else 3)
        number = choice - 1
        if number >= 6 * levels:
            action[3] = 1.0
        elif number >= 0:
            way, strength = number // levels, (number % levels + 1) / levels
            action[way // 2] = -strength if way % 2 == 0 else strength
        return action


class VectorizedHockeyEnv:
    """`num_envs` games stepped together, which begin anew by themselves.

    Args:
        num_envs: how many.
        env_fn: makes one environment, the original's or any object with its `mode` and
            `keep_mode`, and `opponent.weak` where a bot has the second seat: these are taken over.
            It is called once, and what it makes is never stepped. None: the settings alone.
        start_method: passed over: there are no processes to start.
        **settings: of `hockey`: mode ("TRAIN_SHOOTING" too), keep, opponents, time_out, ...

    Attributes:
        observation_space: of one player; action_space: of both, [8] (without keep mode [6]), or of
            the learner alone where `opponents` has the other seat.
        mode, keep_mode: as given.
    """

    def __init__(
        self,
        num_envs: int,
        env_fn: Callable[[], Any] | None = None,
        start_method: str | None = None,
        **settings: Any,
    ) -> None:
        self.num_envs, self._two = num_envs, np.zeros((0, 0), np.float32)
        if env_fn is not None:
            settings = {**_of(env_fn()), **settings}
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
        """Begins new games: what player 0 sees, [num_envs, 18]."""
        return self._shown(self.batch.reset([None] * self.num_envs))

    def obs_agent_two(self) -> NDArray[np.float32]:
        """What player 1 sees, where both act from outside."""
        if self._players == 1:
            raise ConfigError("A bot has the second seat: leave `opponents` out to act in both.")
        return self._two.copy()

    def step(self, actions: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], Any, Any]:
        """Steps every game.

        Args:
            actions: [num_envs, 8], those of player 0 first; [num_envs, 4] beside a bot.

        Returns:
            Observations, rewards, dones (over, by a goal or by time), truncs (by time: the future
            has a value) and infos, fresh arrays. Every info has `winner` (1, 0 or -1) and the
            original's `reward_closeness_to_puck`, `reward_touch_puck` and `reward_puck_direction`
            of this step, as who is observed sees them. Where a game is over, the observation is
            the next one's first, and info has `terminal_obs`.
        """
        rows = np.asarray(actions)
        if self._players == 2:
            rows = rows.reshape(self.num_envs, 2, -1)
        limit = self._env.read(("limit",))["limit"]  # of these games, before others begin
        came = self.batch.step(rows)
        finals = came.final_obs[:, 0] if self._players == 2 else came.final_obs
        obs = self._shown(came.obs)
        seen = obs.copy()
        seen[came.ended] = finals
        infos = _terms(seen, limit, self.keep_mode)
        metrics = came.episodes.metrics
        winner = metrics["winner"] if self._players == 2 else metrics["won"] - metrics["lost"]
        for k, game in enumerate(came.ended.tolist()):
            infos[game] |= {"winner": int(winner[k]), "terminal_obs": finals[k]}
        reward = came.reward[:, 0].copy() if self._players == 2 else came.reward
        return obs, reward, came.terminated | came.truncated, came.truncated, infos

    def close(self) -> None:
        """Ends the games; may be called again."""
        self.batch.close()

    def _shown(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        if self._players == 1:
            return obs
        self._two = obs[:, 1].copy()
        return obs[:, 0].copy()


class VectorizedHockeyEnvOptimized(VectorizedHockeyEnv):
    """The same: both step in arrays that are made once, and hand out copies of them."""


def _terms(seen: NDArray[np.float32], limit: NDArray[Any], keep: bool) -> list[dict[str, Any]]:
    """What the original's info says of a step, of each game; `outcome` of the kernel adds it up.

    Args:
        seen: [n, 18] or [n, 16], what a player sees after the step.
        limit: [n], steps of a whole game.
        keep: whether pucks are held.
    """
    x, y, puck_x, puck_y, speed = (seen[:, i].astype(np.float64) for i in (0, 1, 12, 13, 14))
    distance = np.hypot(x - puck_x, y - puck_y)
    near = distance * (-30.0 / (250.0 / 60.0 * limit / 2.0))
    near[(puck_x >= 0.0) | (speed > 0.0)] = 0.0
    touch = seen[:, 16] == HOLD_STEPS if keep else np.zeros(len(seen))
    terms = zip(near.tolist(), touch.astype(float).tolist(), (speed / (limit * 25.0)).tolist(),
                strict=True)  # fmt: skip
    names = ("reward_closeness_to_puck", "reward_touch_puck", "reward_puck_direction")
    return [{"winner": 0, **dict(zip(names, one, strict=True))} for one in terms]


def _of(env: Any) -> dict[str, Any]:
    """Settings of an environment that a caller's function made, which is closed."""
    if not hasattr(env, "mode"):
        raise ConfigError(
            f"`env_fn` made a {type(env).__name__}, which is no hockey: leave it out and give "
            "settings, VectorizedHockeyEnv(8, mode='TRAIN_SHOOTING'); what is no hockey is stepped "
            "by slipstream.make_adapter('gymnasium', 'gym:ID', 8)."
        )
    found = {"mode": env.mode, "puck_hold": getattr(env, "keep_mode", True)}
    if hasattr(env, "opponent"):
        found["opponents"] = {"weak" if getattr(env.opponent, "weak", False) else "strong": 1.0}
    if hasattr(env, "close"):
        env.close()
    return found
