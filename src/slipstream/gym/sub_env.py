"""One environment of another library behind a guard, and the loop that steps many of them.

`SubEnv` begins episodes, counts steps, and names the call and the value if the environment raises
or returns what Gymnasium's interface does not allow. `step_envs` is the loop that vector layers are
measured by.
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
from slipstream.gym.env_factory import RawReturn, as_reward, close_env, flag, is_env_error, raised
from slipstream.gym.infos import FinalInfo
from slipstream.kernels.space_codec import SpaceMismatchError

SEED_MASK = np.uint64(2**31 - 1)
"""Gymnasium seeds are non-negative and fit an int32 everywhere."""
_NO_LIMIT = 2**62
_SEED_BATCH = 32  # episodes whose seeds are made at once


class SubEnv:
    """A Gymnasium environment behind a guard; `step_envs` steps it.

    Args:
        name: of the environment, for messages, without ``gym:``.
        number: of this one among all.
        limit: steps after which an episode is cut, besides the environment's own limit.
        plain: it is stepped through all its wrappers, and rewards need not be finite.

    Attributes:
        env: the environment; None if it is down and closed.
        asleep: it waits at its episode's end or for the next step, or is down.
        episode: number of the running episode.
        length, ret: its steps and the sum of its rewards so far.
        steps: of the episodes before it.
        info: what the newest call returned besides.
        take: the environment's own `step`, without wrappers that have nothing to do any more.
        most: steps of an episode.
        place: where its observations go if they are a vector of exactly this dtype and length;
            None if they never are.
        raw: sum of rewards inside `env.training_wrappers`; None without such wrappers.
        due: when it is made again; failures: without a good step in between.
        shown: the info to hand over; final: how an episode ended at this step. Both matter if the
            block does not hold them.
        seen: its observation, given: its last action, if they have no place in the block.
        later: its episode is over, and the next step begins another one (NEXT_STEP).
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
        """It has no environment, and nothing was stepped."""
        self.env: Any = None
        self.raw: RawReturn | None = None
        self._mask_method: Callable[[], Any] | None = None
        self.episode = self.length = self.steps = 0
        self.ret = 0.0
        self.info: Any = {}
        self.max_steps = self.limit or _NO_LIMIT

    def set_env(self, env: Any) -> None:
        """From now on this is its environment."""
        self.env, self._mask_method = env, get_mask_method(env)
        self.step_fn: Callable[[Any], Any] = env.step
        self._checked = not self._plain  # a wrapper may have something to check
        while isinstance(env, gymnasium.Wrapper) and not isinstance(env, RawReturn):
            env = env.env
        self.raw = env if isinstance(env, RawReturn) else None

    def close(self) -> None:
        """Closes the environment, if there is one."""
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
        """Return of the episode so far: of the environment without `env.training_wrappers`."""
        return self.ret if self.raw is None else self.raw.total

    def set_row_view(self, row_view: NDArray[Any] | None) -> None:
        """From now on its observations go there.

        A view of memory takes only what has its format and length, so writing is the check, in
        half the time of an array's.
        """
        self.row_view = None if row_view is None else row_view.data

    def write_observation(self, observation: Any) -> bool:
        """Writes an observation into its place; False if it does not fit there."""
        if self.row_view is None:
            return False
        try:
            self.row_view[:] = observation
        except (TypeError, ValueError, BufferError):
            return False
        return True

    def write_mask(self, row_view: NDArray[np.bool_], sizes: Sequence[int], doing: str) -> None:
        """Writes which choices are allowed next.

        Args:
            place: bool [n]; sizes: choices of each component.
            doing: the call that brought the observation, for messages.

        Raises:
            KernelError: there is no mask, or it is none.
        """
        try:
            mask = mask_from_info(self.info) if self._mask_method is None else self._mask_method()
        except BaseException as error:
            if not is_env_error(error):
                raise
            where = f"environment {self.number}, episode {self.episode}, step {self.length}"
            raise raised(self.name, f"`action_masks` of {where}", error) from error
        try:
            write_mask(mask, row_view, sizes)
        except SpaceMismatchError as error:
            rule = "a mask of allowed choices comes with every observation or with none"
            if mask is not None:
                rule = "a mask must allow at least one action until the episode ends"
            doing = doing if self._mask_method is None else "action_masks"
            raise self.interface_error(doing, f"{error} ({rule})") from None

    def episode_seed(self, seed: int, index: int, episode: int) -> int:
        """Gymnasium's seed of the episode with this number of the stream (seed, index)."""
        if self._stream != (seed, index) or not 0 <= episode - self._first < _SEED_BATCH:
            self._stream, self._first = (seed, index), episode
            with np.errstate(over="ignore"):
                episodes = np.uint64(episode) + np.arange(_SEED_BATCH, dtype=np.uint64)
                words = stream(np.uint64(seed), np.uint64(index), episodes)
            self._seeds: list[int] = (words & SEED_MASK).tolist()
        return self._seeds[episode - self._first]

    def reset(self, episode: int, **arguments: Any) -> Any:
        """Begins an episode, which has this number; its first observation.

        Raises:
            KernelError: the environment raised, or returned something else.
        """
        self.steps += self.length
        self.episode, self.length, self.ret = episode, 0, 0.0
        if self.raw is not None:
            self.raw.total = self.raw.before = 0.0
        if self._checked:
            step, own, self._checked = unwrap_step(self.env)
            self.step_fn = (
                step if self.raw is None else partial(_step_with_raw_return, self.raw, step)
            )
            self.max_steps = min(own, self.limit or own)
        try:
            result = self.env.reset(**arguments)
        except BaseException as error:
            if not is_env_error(error):
                raise
            doing = f"`reset` of environment {self.number}, episode {self.episode}"
            raise raised(self.name, doing, error) from error
        if not (isinstance(result, tuple) and len(result) == 2):
            what = f"a {type(result).__name__} instead of a tuple (observation, info)"
            raise self.interface_error("reset", what)
        observation, self.info = result
        return observation

    def explain_error(self, error: BaseException, action: list[Any], t: int) -> BaseException:
        """The error of a step with the environment's name, unless it names it already.

        Args:
            error: what `step_envs` raised.
            action: the last one, as agents know it.
            t: the step's number.
        """
        if isinstance(error, SlipstreamError) or not is_env_error(error):
            return error
        where = (
            f"`step` of environment {self.number}, step {t}, episode {self.episode}, last "
            f"action {action}"
        )
        wrapped = raised(self.name, where, error)
        wrapped.__cause__ = error
        return wrapped

    def undo_step(self, reward: float) -> None:
        """Subtract a step that was counted and whose observation cannot be used."""
        self.length -= 1
        self.ret -= reward

    def undo_raw_rewards(self) -> None:
        """Subtract the raw rewards of a step that was discarded, counted or not."""
        if self.raw is not None:
            self.raw.total = self.raw.before

    def malformed_step_error(self, result: Any) -> KernelError:
        """The error for a step that returned something else than its five."""
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
        """Converts what came in other types, or raises if it cannot be used.

        Args:
            last: gives the last action of the environment with a number.
        """
        reward, over, cut = as_reward(raw_reward), flag(terminated), flag(truncated)
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
        """Error of an observation, returned by `doing`, that does not fit the space."""
        return self.interface_error(doing, f"the observation {error}")

    def interface_error(self, doing: str, what: str) -> KernelError:
        """An error that names what was called and what came back."""
        return KernelError(
            f"gym:{self.name}: `{doing}` of environment {self.number} returned {what} (episode "
            f"{self.episode}, step {self.length}). Fix the environment, or "
            "wrap it so that it keeps Gymnasium's interface."
        )


def _step_with_raw_return(raw: RawReturn, step: Callable[[Any], Any], action: Any) -> Any:
    """Step an environment whose raw return can be taken back."""
    raw.before = raw.total
    return step(action)


def unwrap_step(env: Any) -> tuple[Callable[[Any], Any], int, bool]:
    """The innermost `step` that does the same, and the time limit that was passed by.

    `gymnasium.make` wraps every environment in a check of its first calls, a check that it was
    reset, and a time limit. Once the first have passed they cost a microsecond a step; the third
    value is true if they are still to pass.
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
    stepping: Iterable[tuple[SubEnv, Any]],
    last: Callable[[int], list[Any]],
    rewards: Any,
    pulse: Any,
    t: int,
    store: Callable[[SubEnv, Any], None],
    ended: Callable[[SubEnv, Any, bool, bool], None],
) -> None:
    """Takes one action of each environment and counts it.

    What an environment raises is raised from here; the one at hand is `pulse[AT]`, and a call with
    the same iterator goes on with the next one. `BEAT` does not rise between environments: who
    watches for hangs looks at both words, and an iterator that gives one twice must let it rise.

    Args:
        stepping: environments with their actions, as they take them.
        last: gives the last action of the environment with a number, for messages.
        rewards: takes each reward under the environment's number.
        hand: `pulse[AT]` is set to the number of the environment at hand.
        t: the step's number, for messages.
        store: writes an observation that does not fit `SubEnv.row_view`, or raises.
        ended: is called with an environment whose episode is over: its last observation,
            terminated, truncated.
    """
    for env, action in stepping:
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
