"""One environment of another library behind a guard, and the loop that steps many of them.

`SubEnv` resets it, counts steps, and names the call and the value if the environment raises or
violates Gymnasium's interface. `step_envs` is the hot loop of the vector layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import NDArray

from slipstream.core.child_process import AT
from slipstream.core.errors import KernelError, SlipstreamError
from slipstream.core.random import stream
from slipstream.gym.action_masks import get_mask_method, mask_from_info, write_mask
from slipstream.gym.env_factory import (
    RawReturn,
    as_flag,
    as_reward,
    close_env,
    is_env_error,
    wrap_env_error,
)
from slipstream.gym.infos import FinalInfo
from slipstream.kernels.space_codec import SpaceMismatchError

SEED_MASK = np.uint64(2**31 - 1)
"""Gymnasium seeds are non-negative and fit an int32."""
_NO_LIMIT = 2**62
_SEED_BATCH = 32  # episodes per batch of seeds


class SubEnv:
    """A Gymnasium environment behind a guard. `step_envs` steps it.

    Args:
        name: Name of the environment without ``gym:``, for messages.
        number: Its row among all sub-environments.
        limit: Time limit of an episode in steps, besides the environment's own.
        plain: Step it through all wrappers and allow non-finite rewards.

    Attributes:
        env: The environment. None if it is closed.
        asleep: It waits at the end of its episode or for a reset, or it is down.
        episode: Number of the current episode.
        length, ret: Steps and return of the current episode.
        steps: Number of steps of earlier episodes.
        info: Info of the last call.
        step_fn: The environment's `step` without wrappers that have no effect any more.
        max_steps: Time limit of the current episode.
        row_view: Memory for observations that are vectors of exactly this dtype and length; None
            for other observations.
        raw: Sums rewards inside `env.training_wrappers`. None without such wrappers.
        retry_at: Time of the next restart.
        failures: Number of failures without a valid step in between.
        reported_info, final_info: Info, and end of the last episode, if not in shared memory.
        observation, last_action: Last observation and action, if not in shared memory.
        reset_pending: The episode is over and the next step resets (NEXT_STEP).
    """

    __slots__ = (
        "_checked",
        "_first",
        "_mask_method",
        "_plain",
        "_seeds",
        "_stream",
        "asleep",
        "env",
        "episode",
        "failures",
        "final_info",
        "info",
        "last_action",
        "length",
        "limit",
        "max_steps",
        "name",
        "number",
        "observation",
        "raw",
        "reported_info",
        "reset_pending",
        "ret",
        "retry_at",
        "row_view",
        "step_fn",
        "steps",
    )  # fmt: skip

    def __init__(
        self, name: str, number: int, limit: int | None = None, plain: bool = False
    ) -> None:
        self.name, self.number, self.limit, self._plain = name, number, limit, plain
        self.asleep = self.reset_pending = False
        self.retry_at, self.failures = 0.0, 0
        self.row_view: memoryview | None = None
        self.reported_info: Any = {}
        self.final_info: FinalInfo = (None, {})
        self.observation: Any = None
        self.last_action: list[Any] = []
        self._stream, self._first = (-1, -1), 0
        self.clear()

    def clear(self) -> None:
        """Remove the environment and reset all counters."""
        self.env: Any = None
        self.raw: RawReturn | None = None
        self._mask_method: Callable[[], Any] | None = None
        self.episode = self.length = self.steps = 0
        self.ret = 0.0
        self.info: Any = {}
        self.max_steps = self.limit or _NO_LIMIT

    def set_env(self, env: Any) -> None:
        """Use this environment from now on."""
        self.env, self._mask_method = env, get_mask_method(env)
        self.step_fn: Callable[[Any], Any] = env.step
        self._checked = not self._plain  # a wrapper may have something to check
        while isinstance(env, gymnasium.Wrapper) and not isinstance(env, RawReturn):
            env = env.env
        self.raw = env if isinstance(env, RawReturn) else None

    def close(self) -> None:
        """Close the environment, if there is one."""
        env = self.env
        self.clear()
        if env is not None:
            close_env(env, f"gym:{self.name}")

    @property
    def unwrapped(self) -> Any:
        """The environment inside all wrappers."""
        return self.env.unwrapped

    @property
    def reported_return(self) -> float:
        """Return of the current episode, without `env.training_wrappers`."""
        return self.ret if self.raw is None else self.raw.total

    def set_row_view(self, row_view: NDArray[Any] | None) -> None:
        """Set the memory for observations.

        A memoryview only accepts its own format and length. The write is therefore also the check,
        at half the cost of an array.
        """
        self.row_view = None if row_view is None else row_view.data

    def write_observation(self, observation: Any) -> bool:
        """Write an observation to its row; return false if it does not fit."""
        if self.row_view is None:
            return False
        try:
            self.row_view[:] = observation
        except (TypeError, ValueError, BufferError):
            return False
        return True

    def write_mask(self, row_view: NDArray[np.bool_], sizes: Sequence[int], doing: str) -> None:
        """Write the mask of allowed actions.

        Args:
            row_view: Destination, bool [n].
            sizes: Number of choices of each component.
            doing: Call that returned the observation, for messages.

        Raises:
            KernelError: The mask is missing or invalid.
        """
        try:
            mask = mask_from_info(self.info) if self._mask_method is None else self._mask_method()
        except BaseException as error:
            if not is_env_error(error):
                raise
            where = f"environment {self.number}, episode {self.episode}, step {self.length}"
            raise wrap_env_error(self.name, f"`action_masks` of {where}", error) from error
        try:
            write_mask(mask, row_view, sizes)
        except SpaceMismatchError as error:
            rule = "provide a mask with every observation or with none"
            if mask is not None:
                rule = "a mask must allow at least one action until the episode ends"
            doing = doing if self._mask_method is None else "action_masks"
            raise self.interface_error(doing, f"{error} ({rule})") from None

    def episode_seed(self, seed: int, index: int, episode: int) -> int:
        """Return the seed of an episode of the random stream (seed, index)."""
        if self._stream != (seed, index) or not 0 <= episode - self._first < _SEED_BATCH:
            self._stream, self._first = (seed, index), episode
            with np.errstate(over="ignore"):
                episodes = np.uint64(episode) + np.arange(_SEED_BATCH, dtype=np.uint64)
                words = stream(np.uint64(seed), np.uint64(index), episodes)
            self._seeds: list[int] = (words & SEED_MASK).tolist()
        return self._seeds[episode - self._first]

    def reset(self, episode: int, **arguments: Any) -> Any:
        """Begin the episode with this number and return its first observation.

        Raises:
            KernelError: The environment raised or returned an invalid value.
        """
        self.steps += self.length
        self.episode, self.length, self.ret = episode, 0, 0.0
        if self.raw is not None:
            self.raw.total = self.raw.before = 0.0
        if self._checked:
            step, max_steps, self._checked = unwrap_step(self.env)
            self.step_fn = (
                step if self.raw is None else partial(_step_with_raw_return, self.raw, step)
            )
            self.max_steps = min(max_steps, self.limit or max_steps)
        try:
            result = self.env.reset(**arguments)
        except BaseException as error:
            if not is_env_error(error):
                raise
            doing = f"`reset` of environment {self.number}, episode {self.episode}"
            raise wrap_env_error(self.name, doing, error) from error
        if not (isinstance(result, tuple) and len(result) == 2):
            what = f"a {type(result).__name__} instead of a tuple (observation, info)"
            raise self.interface_error("reset", what)
        observation, self.info = result
        return observation

    def explain_error(self, error: BaseException, action: list[Any], t: int) -> BaseException:
        """Return the error of a step with the name of the environment.

        Args:
            error: Error raised by `step_envs`.
            action: Last action, as agents represent it.
            t: Number of the step.
        """
        if isinstance(error, SlipstreamError) or not is_env_error(error):
            return error
        where = (
            f"`step` of environment {self.number}, step {t}, episode {self.episode}, last "
            f"action {action}"
        )
        wrapped = wrap_env_error(self.name, where, error)
        wrapped.__cause__ = error
        return wrapped

    def undo_step(self, reward: float) -> None:
        """Subtract a counted step whose observation cannot be used."""
        self.length -= 1
        self.ret -= reward

    def undo_raw_rewards(self) -> None:
        """Subtract the raw rewards of a discarded step."""
        if self.raw is not None:
            self.raw.total = self.raw.before

    def malformed_step_error(self, result: Any) -> KernelError:
        """Return the error for a step that did not return five values."""
        size = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
        what = f"{size} instead of (observation, reward, terminated, truncated, info)"
        return self.interface_error("step", what)

    def validate_step(
        self,
        raw_reward: Any,
        terminated: Any,
        truncated: Any,
        last: Callable[[int], list[Any]],
        t: int,
    ) -> tuple[float, bool, bool]:
        """Convert a reward and flags of other types, or raise if they are invalid.

        Args:
            last: Returns the last action of a row.
        """
        reward, over, cut = as_reward(raw_reward), as_flag(terminated), as_flag(truncated)
        if reward is None:
            raise self.interface_error(
                "step", f"the reward {raw_reward!r:.60} instead of one number"
            )
        if over is None or cut is None:
            name, bad = ("terminated", terminated) if over is None else ("truncated", truncated)
            raise self.interface_error("step", f"`{name}` {bad!r:.60} instead of True or False")
        if not (self._plain or np.isfinite(reward)):
            raise KernelError(
                f"gym:{self.name} returned the reward {reward} (environment {self.number}, step "
                f"{t}, last action {last(self.number)}); a reward must be finite."
            )
        return reward, over, cut

    def observation_error(self, doing: str, error: SpaceMismatchError) -> KernelError:
        """Return the error for an observation that does not match its space."""
        return self.interface_error(doing, f"the observation {error}")

    def interface_error(self, doing: str, what: str) -> KernelError:
        """Return an error with the call and the invalid value."""
        return KernelError(
            f"gym:{self.name}: `{doing}` of environment {self.number} returned {what} (episode "
            f"{self.episode}, step {self.length}). Fix the environment, or "
            "wrap it so that it keeps Gymnasium's interface."
        )


def _step_with_raw_return(raw: RawReturn, step: Callable[[Any], Any], action: Any) -> Any:
    """Step an environment and store its raw return, so that it can be restored."""
    raw.before = raw.total
    return step(action)


def unwrap_step(env: Any) -> tuple[Callable[[Any], Any], int, bool]:
    """Return the innermost equivalent `step`, the time limit skipped, and a flag.

    `gymnasium.make` adds a checker of first calls, a check for a reset, and a time limit. Once the
    first checks have passed they only cost time, about a microsecond per step. The flag is true if
    they have not passed yet.
    """
    limit, validate_step = _NO_LIMIT, False
    while True:
        kind = type(env)
        if kind is TimeLimit:
            limit = min(limit, env._max_episode_steps)
        elif kind is PassiveEnvChecker:
            if not (env.checked_step and getattr(env, "checked_data_reuse", True)):
                validate_step = True
                break
        elif kind is not OrderEnforcing:
            break
        env = env.env
    return env.step, limit, validate_step


def step_envs(
    env_actions: Iterable[tuple[SubEnv, Any]],
    last: Callable[[int], list[Any]],
    rewards: Any,
    pulse: Any,
    t: int,
    store: Callable[[SubEnv, Any], None],
    ended: Callable[[SubEnv, Any, bool, bool], None],
) -> None:
    """Step each environment with one action.

    Errors of an environment are raised here. `pulse[AT]` is its row, and a call with the same
    iterator continues with the next one. `BEAT` does not change between environments: a watchdog
    reads both words, and an iterator that yields one environment twice must advance `BEAT`.

    Args:
        env_actions: Pairs of environment and native action.
        last: Returns the last action of a row, for messages.
        rewards: Receives each reward under the row.
        pulse: `pulse[AT]` is set to the current row.
        t: Number of the step, for messages.
        store: Stores an observation that does not fit `SubEnv.row_view`, or raises.
        ended: Called with an environment at the end of its episode: final observation,
            terminated, truncated.
    """
    for env, action in env_actions:
        number = pulse[AT] = env.number
        result = env.step_fn(action)
        if not isinstance(result, tuple) or len(result) != 5:
            raise env.malformed_step_error(result)
        observation, raw_reward, terminated, truncated, env.info = result
        if (
            type(raw_reward) is not float
            or type(terminated) is not bool
            or type(truncated) is not bool
            or raw_reward - raw_reward != 0.0
        ):
            raw_reward, terminated, truncated = env.validate_step(
                raw_reward, terminated, truncated, last, t
            )
        row_view = env.row_view
        if row_view is None:
            store(env, observation)
        else:
            try:
                row_view[:] = observation
            except (TypeError, ValueError, BufferError):
                store(env, observation)
        rewards[number] = raw_reward
        env.ret += raw_reward
        env.length = length = env.length + 1
        if terminated or truncated or length >= env.max_steps:
            ended(env, observation, terminated, truncated or length >= env.max_steps)
