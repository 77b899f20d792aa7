"""Sub-environments of another library that one process steps.

`SubEnvGroup` creates, resets, steps, restarts and closes them. Each is a `SubEnv`. Results are
written into arrays that other processes may share.
"""

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.child_process import AT, BEAT, HEARTBEAT_WORDS
from slipstream.core.errors import ConfigError, KernelError
from slipstream.core.random import stream
from slipstream.gym.action_masks import get_mask_method, mask_from_info, replace_masked_actions
from slipstream.gym.env_factory import (
    PROBE_SECONDS,
    HangError,
    check_not_shared,
    check_same_spaces,
    error_text,
)
from slipstream.gym.infos import (
    NO_INFO,
    ON_REQUEST,
    InfoMessage,
    SchemaTable,
    Signature,
    episode_metrics,
)
from slipstream.gym.process.fault_log import MAX_ATTEMPTS, Fault, backoff
from slipstream.gym.sub_env import SEED_MASK, SubEnv, step_envs
from slipstream.gym.worker_config import NEXT_STEP, SAME_STEP, WorkerConfig, register
from slipstream.kernels.loop import HOLD, RESET, RESET_KEEP_ALL
from slipstream.kernels.space_codec import SpaceMismatchError

STEP_FLAGS = ("terminated", "truncated", "ended", "has_final", "lost", "info_code")
"""Arrays that are cleared before a step."""

_SAFE_SQUARES = 1e37  # a smaller sum of squares implies finite numbers, in float32 and float64
_NOT_FINITE = "that holds NaN or infinity"


def _raise_diverged(sub_env: SubEnv, observation: Any, terminated: bool, truncated: bool) -> None:
    """Callback for the end of an episode during a replay, where no episode may end.

    Raises:
        KernelError: Always.
    """
    raise sub_env.interface_error("step", "the end of an episode that did not end there before")


class SubEnvGroup:
    """Sub-environments of one process, identified by their rows in the arrays.

    There are two modes. For agents (`env_config.spec` is set), every episode is seeded by its
    number, observations must be finite, infos are written on request, and actions are logged so
    that a resumed sub-environment can replay them. For other libraries, seeds, infos, rewards and
    wrappers are Gymnasium's own, with all of its autoreset modes.

    Args:
        job: Configuration of the worker.
        arrays: Arrays of the block.
        report: Called with every fault, whose error is the one raised.
        pulse: Words for a watchdog. `pulse[AT]` is the current row. `pulse[BEAT]` counts the
            starts and ends of calls and is odd during a call.
        exclusive: No other process reads the arrays. Slow parts are written on request.

    Attributes:
        sub_envs: Sub-environments in the order of `rows`.
        ranges: The rows as ranges (lo, hi).
        name: Name of the environment, for messages.
        needs_clear: Flags or rewards of this step must be cleared before the next one.
    """

    def __init__(
        self,
        job: WorkerConfig,
        arrays: dict[str, NDArray[Any]],
        report: Callable[[Fault], None],
        pulse: Any = None,
        *,
        exclusive: bool = False,
    ) -> None:
        self.job, self._report, self.exclusive = job, report, exclusive
        self._watched, self.pulse = (
            pulse is not None,
            [0] * HEARTBEAT_WORDS if pulse is None else pulse,
        )
        self._env_config, self.name, self._codec = (
            job.env_config,
            job.env_config.name,
            job.env_config.codec(),
        )
        for data in job.env_config.registered_specs:
            register(data)
        self._native = job.env_config.spec is None
        spec = job.env_config.spec
        self._metric_names = [] if spec is None else [metric.name for metric in spec.metrics]
        self._choice_sizes = () if spec is None else spec.nvec
        self._table = SchemaTable()
        self._attributes = {row: dict(item) for row, item in job.env_config.attributes.items()}
        self._pending_actions: dict[int, Any] = {}  # actions by row without a place in the arrays
        self.ranges: list[tuple[int, int]] = []
        self.sub_envs: list[SubEnv] = []
        self._attach(arrays)
        for lo, hi in job.ranges:
            self._add_rows(lo, hi)
        self._build_index()

    def mark_current(self, row: int | None) -> None:
        """Mark the sub-environment that is called from now on, or None, for the watchdog."""
        words = self.pulse
        if not self._watched:
            return
        if row is None:
            words[BEAT] += words[BEAT] & 1
        else:
            words[AT] = row
            words[BEAT] += 1 + (words[BEAT] & 1)

    def _attach(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Write results to these arrays from now on."""
        self.arrays = arrays
        self._obs, self._final = (self._codec.views(arrays, name) for name in ("obs", "final"))
        self._actions, self._info = arrays.get("actions"), arrays["info"].reshape(-1).data
        self._mask = arrays.get("mask")
        # A memoryview reads and writes single numbers in half the time of an array.
        self._rewards = arrays["reward"].data
        if self._native:
            self._last_info = arrays["last_info"].reshape(-1).data
            self._log_length = 0
        else:
            assert self._actions is not None
            self._episode, self._log = arrays["episode"].data, arrays["log"]
            self._streams = arrays["seed"].data, arrays["index"].data
            self._log_length = self._log.shape[1]
            # Ring of the newest actions of all rows, if the arrays are exclusive.
            self._action_ring = np.zeros((self._log_length, *self._actions.shape), self._log.dtype)
            self._num_steps = 0
        for sub_env in self.sub_envs:
            row, length = sub_env.number, sub_env.length
            sub_env.set_row_view(self._row_view(row))
            if self.exclusive and 0 < length <= self._log_length:
                self._action_ring[self._ring_rows(length), row] = self._log[row, :length]

    def _add_rows(self, lo: int, hi: int) -> list[SubEnv]:
        """Add rows lo..hi-1, without creating their environments."""
        more = [
            SubEnv(self.name, row, self._env_config.limit, self._native) for row in range(lo, hi)
        ]
        for sub_env in more:
            sub_env.set_row_view(self._row_view(sub_env.number))
        self.ranges.append((lo, hi))
        self.sub_envs += more
        return more

    def _build_index(self) -> None:
        """Set `rows` and `index`, which is a slice if the rows are contiguous."""
        self.rows = [sub_env.number for sub_env in self.sub_envs]
        self._by_row = dict(zip(self.rows, self.sub_envs, strict=True))
        self._numbers = np.array(self.rows, np.int64)
        row_slices = [slice(*item) for item in self.ranges]
        self.index = row_slices[0] if len(row_slices) == 1 else self._numbers
        self._flags = [self.arrays[name][rows] for name in STEP_FLAGS for rows in row_slices]
        self.needs_clear = True
        # Flat views of the float arrays, by range and by row.
        floats = [] if self._native else [item for item in self._obs if item.dtype.kind == "f"]
        self._wide = all(item.dtype.itemsize > 2 for item in floats)  # the product fits
        self._flat = [item[rows].reshape(-1) for item in floats for rows in row_slices]
        self._flat_row = {row: [item[row].reshape(-1) for item in floats] for row in self.rows}

    def _row_view(self, row: int) -> NDArray[Any] | None:
        """Return the row for observations that are vectors of numbers, else None."""
        single_leaf = self._codec.single_leaf
        return (
            self._obs[0][row] if single_leaf is not None and len(single_leaf.shape) == 1 else None
        )

    # Creation and closing.

    def set_env(self, env: Any) -> None:
        """Use an existing environment as the first sub-environment."""
        self.sub_envs[0].set_env(env)

    def make(self, first: int = 0) -> None:
        """Create the environments from index `first` on. Failures are reported."""
        self._make(self.sub_envs[first:])

    def _make(self, sub_envs: Iterable[SubEnv]) -> None:
        for sub_env in sub_envs:
            try:
                self._remake(sub_env)
            except BaseException as error:
                self._mark_down(sub_env, error)

    def _remake(self, sub_env: SubEnv) -> None:
        """Close the environment of a sub-environment and create it again."""
        row, config, old = sub_env.number, self._env_config, sub_env.env
        self.mark_current(row)
        sub_env.close()
        env = config.make(row)
        check_same_spaces(self.name, env, row, config.spaces)
        if self._mask is None and self._choice_sizes and get_mask_method(env) is not None:
            raise ConfigError(
                f"gym:{self.name}: environment {row} has a method `action_masks()`, but the first "
                "environment (without `env.training_wrappers`) has no action mask. Give every "
                "environment the method or none. Name a wrapper that adds it in `env.wrappers`."
            )
        for name, value in self._attributes.get(row, {}).items():
            env.set_wrapper_attr(name, value)
        check_not_shared(self.name, env, (old, *(other.env for other in self.sub_envs)))
        sub_env.set_env(env)
        self.mark_current(None)

    def grow(self, arrays: dict[str, NDArray[Any]], lo: int, hi: int, begun: bool) -> None:
        """Move to larger arrays and add the rows lo..hi-1."""
        self._attach(arrays)
        more = self._add_rows(lo, hi) if hi > lo else []
        self._build_index()
        self._make(more)
        if begun:
            self._reset_some(more)

    def shrink(self, arrays: dict[str, NDArray[Any]], size: int) -> None:
        """Close the rows from `size` on and move to smaller arrays."""
        for sub_env in self.sub_envs:
            if sub_env.number >= size:
                sub_env.close()
        self.sub_envs = [sub_env for sub_env in self.sub_envs if sub_env.number < size]
        self.ranges = [(lo, min(hi, size)) for lo, hi in self.ranges if lo < size]
        self._attributes = {row: item for row, item in self._attributes.items() if row < size}
        self._attach(arrays)
        self._build_index()

    def close(self) -> None:
        """Close all environments."""
        for sub_env in self.sub_envs:
            sub_env.close()

    # Resets.

    def reset(self, seeds: list[Any] | None = None, options: list[Any] | None = None) -> None:
        """Reset the selected sub-environments.

        Args:
            seeds, options: Arguments of Gymnasium's `reset` for each sub-environment. Without
                them the next episode of each random stream begins.
        """
        self.clear()
        for i in np.flatnonzero(self.arrays["selected"][self.index]).tolist():
            sub_env = self.sub_envs[i]
            try:
                if sub_env.env is None:
                    self._remake(sub_env)
                if seeds is None or options is None:
                    self._reset_next_episode(sub_env)
                    continue
                if seeds[i] is not None:
                    self.arrays["seed"][sub_env.number] = int(seeds[i]) % 2**62 + 1
                self._reset(sub_env, 0, seed=seeds[i], options=options[i])
            except BaseException as error:
                self._fault(sub_env, error, running=False)

    def reset_all(self) -> None:
        """Reset all sub-environments, which are new, after the others have been reset."""
        self._reset_some(self.sub_envs)

    def _reset_some(self, sub_envs: Iterable[SubEnv], *, repeat: bool = False) -> None:
        for sub_env in sub_envs:
            if sub_env.env is not None:
                try:
                    self._reset_next_episode(sub_env, repeat=repeat)
                except BaseException as error:
                    self._fault(sub_env, error, running=False)

    def reset_lost(self, repeat: bool) -> None:
        """Reset after the loss of a worker: repeat the lost episodes or begin the next ones."""
        arrays = self.arrays
        for sub_env in self.sub_envs:
            row, held = sub_env.number, bool(arrays["held"][sub_env.number])
            if sub_env.env is None:  # its creation failed
                continue
            if self._native:
                arrays["restarts"][row] += np.uint64(1)
            else:
                failed = bool(
                    arrays["failed_attempts"][row] >= MAX_ATTEMPTS
                )  # the next step gives up the episode
                sub_env.asleep = held or failed
                arrays["down"][row] = failed and not held
        self._reset_some(
            [sub_env for sub_env in self.sub_envs if not sub_env.asleep], repeat=repeat
        )

    def _reset_next_episode(self, sub_env: SubEnv, *, repeat: bool = False) -> None:
        """Begin the next episode of a sub-environment, or repeat the current one."""
        arrays, row = self.arrays, sub_env.number
        if self._native:  # seeded by the last given seed and the number of restarts
            seed, restarts = arrays["seed"][row], arrays["restarts"][row]
            if not seed:  # no seed was given; given ones are stored plus 1
                self._reset(sub_env, 0)
                return
            with np.errstate(over="ignore"):
                word = stream(np.uint64(seed), np.uint64(2**63), restarts)
            self._reset(sub_env, 0, seed=int(word & SEED_MASK))
            return
        if repeat:
            self._episode[row] -= self._episode[row] > 0
        episode = self._episode[row]
        self._episode[row] = episode + 1
        if not self.exclusive:
            arrays["ret"][row], arrays["length"][row] = 0.0, 0
        seeds, indices = self._streams
        self._reset(sub_env, episode, seed=sub_env.episode_seed(seeds[row], indices[row], episode))

    def _reset(self, sub_env: SubEnv, episode: int, **arguments: Any) -> None:
        row = sub_env.number
        if sub_env.asleep:
            self.arrays["held"][row] = self.arrays["down"][row] = sub_env.asleep = False
        sub_env.reset_pending = False
        self.mark_current(row)
        first = sub_env.reset(episode, **arguments)
        self.mark_current(None)
        if not sub_env.write_observation(first):
            self._store(sub_env, "reset", first)
        if self._native:
            self._write_info(sub_env, sub_env.info)
            return
        if not self._is_finite(row):
            raise sub_env.observation_error("reset", SpaceMismatchError(_NOT_FINITE))
        self._update_mask(sub_env, "reset")

    def _update_mask(self, sub_env: SubEnv, method: str) -> None:
        """Write the action mask; raise if a mask appears that was not announced."""
        if self._mask is not None:
            self.mark_current(sub_env.number)
            sub_env.write_mask(self._mask[sub_env.number], self._choice_sizes, method)
            self.mark_current(None)
        elif self._choice_sizes and mask_from_info(sub_env.info) is not None:
            problem = (
                "the info `action_mask`, but the first `reset` of the first environment did not "
                "(return a mask with every observation or with none)"
            )
            if self._env_config.spec is not None and self._env_config.spec.has_action_mask is None:
                problem = (
                    "the info `action_mask`, but the first `reset`, in a forked process, failed or "
                    f"took more than {PROBE_SECONDS:g} s, so the mask was not detected. Provide a "
                    "method `action_masks()`"
                )
            raise sub_env.interface_error(method, problem)

    def _update_masks(self, sub_envs: Iterable[SubEnv]) -> None:
        """Write the masks of sub-environments whose episode continues after a step."""
        ended = self.arrays["ended"]
        for sub_env in sub_envs:
            if sub_env.asleep or ended[sub_env.number]:
                continue
            try:
                self._update_mask(sub_env, "step")
            except BaseException as error:
                sub_env.undo_step(float(self.arrays["reward"][sub_env.number]))
                self._fault(sub_env, error)

    # Steps.

    def step(self, t: int) -> None:
        """Step every sub-environment and apply the autoreset mode where episodes end."""
        if self.needs_clear:
            self.clear()
            self.needs_clear = any(sub_env.asleep for sub_env in self.sub_envs)
        if self.exclusive and self._log_length:
            self._action_ring[self._num_steps % self._log_length] = self._actions
            self._num_steps += 1
        else:
            self._log_actions(self._numbers, self.index)
        stepping = zip(self.sub_envs, self._native_actions(self.sub_envs, self.index), strict=True)
        if not self.needs_clear:  # all are awake
            self._step_each(stepping, self.rows[0], t)
        else:
            asleep = [sub_env for sub_env in self.sub_envs if sub_env.asleep]
            awake = [(sub_env, action) for sub_env, action in stepping if not sub_env.asleep]
            self._step_each(awake, self.rows[0], t)
            for sub_env in asleep:
                self._retry(sub_env)
        self.mark_current(None)
        if self._native:
            self._write_infos(self.sub_envs)
            return
        if self._mask is not None:
            self._update_masks(self.sub_envs)
        self._check_finite()
        if not self.exclusive:
            self.store_episode_state()

    def step_one(self, i: int) -> None:
        """Step sub-environment i."""
        sub_env, arrays = self.sub_envs[i], self.arrays
        row = sub_env.number
        if self.exclusive and self._log_length:  # rows no longer step together
            self.store_episode_state()
            self.exclusive = False
        self._log_actions(row, row)
        self.needs_clear = True
        arrays["valid"][row], arrays["reward"][row] = True, 0.0
        for name in STEP_FLAGS:
            arrays[name][row] = False
        if sub_env.asleep:
            self._retry(sub_env)
        else:
            action = self._native_actions([sub_env], slice(row, row + 1))[0]
            self._step_each([(sub_env, action)], row, 0)
        self.mark_current(None)
        if self._native:
            self._write_infos([sub_env])
            return
        if self._mask is not None:
            self._update_masks([sub_env])
        if not sub_env.asleep and not self._is_finite(row):
            self._fault(sub_env, self._not_finite_error(sub_env))
        arrays["ret"][row], arrays["length"][row] = sub_env.reported_return, sub_env.length

    def _step_each(self, stepping: Any, first: int, t: int) -> None:
        """Step sub-environments that are awake; restart those that fail."""
        pulse, stepping = self.pulse, iter(stepping)
        pulse[AT] = first
        while True:
            try:
                self.mark_current(pulse[AT])
                step_envs(
                    stepping,
                    self._last_action,
                    self._rewards,
                    pulse,
                    t,
                    self._store_step,
                    self._ended,
                )
                return
            except BaseException as error:
                sub_env = self._by_row[pulse[AT]]
                self._fault(
                    sub_env, sub_env.explain_error(error, self._last_action(sub_env.number), t)
                )

    def _last_action(self, row: int) -> list[Any]:
        """Return the last action of a row as plain numbers, for messages."""
        if last_action := self._by_row[row].last_action:
            return last_action
        return [] if self._actions is None else list(np.ravel(self._actions[row]).tolist())

    def set_actions(self, actions: dict[int, Any]) -> None:
        """Set actions of the next step, by row, that have no place in the arrays."""
        self._pending_actions.update(actions)

    def _native_actions(
        self, sub_envs: Sequence[SubEnv], index: slice | NDArray[np.int64]
    ) -> Sequence[Any]:
        """Return the native actions of sub-environments, whose rows are `index`."""
        if not self._pending_actions:
            assert self._actions is not None
            return self._codec.native_actions(self._actions[index])
        actions = []
        for sub_env in sub_envs:
            row = sub_env.number
            if row in self._pending_actions:
                actions.append(self._pending_actions.pop(row))
                sub_env.last_action = [actions[-1]]
            else:
                assert self._actions is not None
                actions += self._codec.native_actions(self._actions[row : row + 1])
        return actions

    def _store_step(self, sub_env: SubEnv, observation: Any) -> None:
        """Store an observation that is no vector of the space's dtype."""
        single_leaf = self._codec.single_leaf
        if (
            single_leaf is not None
            and type(observation) is np.ndarray
            and observation.dtype == single_leaf.dtype
            and observation.shape == single_leaf.shape
        ):
            self._obs[0][sub_env.number] = observation
        else:
            self._store(sub_env, "step", observation)

    def _store(self, sub_env: SubEnv, method: str, observation: Any) -> None:
        if not self._codec.fixed_size:
            sub_env.observation = observation
            return
        try:
            self._codec.store(observation, self._obs, sub_env.number)
        except SpaceMismatchError as error:
            raise sub_env.observation_error(method, error) from None

    def _ended(self, sub_env: SubEnv, observation: Any, terminated: bool, truncated: bool) -> None:
        arrays, row, at_end = self.arrays, sub_env.number, self.job.at_end
        self.needs_clear = True
        if not self._is_finite(row):
            raise self._not_finite_error(sub_env)
        if self._mask is None:
            self._update_mask(sub_env, "step")
        arrays["terminated"][row], arrays["truncated"][row], arrays["ended"][row] = (
            terminated,
            truncated,
            True,
        )
        if self._native:
            if at_end == NEXT_STEP:
                sub_env.reset_pending = sub_env.asleep = True
            if at_end != SAME_STEP:
                return
            self._store_final(sub_env, observation)
        else:
            arrays["ended_ret"][row], arrays["ended_length"][row] = (
                sub_env.reported_return,
                sub_env.length,
            )
            if self._metric_names:
                arrays["metrics"][row] = episode_metrics(sub_env.info, self._metric_names)
            if at_end == RESET_KEEP_ALL or (at_end == RESET and not terminated):
                arrays["has_final"][row] = True
                for final, obs in zip(self._final, self._obs, strict=True):
                    final[row] = obs[row]
            if at_end == HOLD:
                arrays["held"][row] = sub_env.asleep = True
                return
        try:
            if self._native:
                self._reset(sub_env, 0)
            else:
                self._reset_next_episode(sub_env)
        except BaseException as error:
            self._fault(sub_env, error, running=self._native)
        self.mark_current(row)  # the remaining ones are stepped next

    def _store_final(self, sub_env: SubEnv, observation: Any) -> None:
        """Store the final observation and info of an episode before they are overwritten."""
        arrays, row = self.arrays, sub_env.number
        has_final, code, info = None, NO_INFO, sub_env.info
        for final, obs in zip(self._final, self._obs, strict=True):
            final[row] = obs[row]
        if not self._codec.is_exact(observation):  # for example an int or another dtype
            has_final, code = copy.deepcopy(observation), ON_REQUEST
        elif info:
            code = self._table.write(info, self._last_info, row)
        if code == ON_REQUEST:
            sub_env.final_info = (
                has_final,
                dict(info),
            )  # an environment may reuse the dict in `reset`
        arrays["has_final"][row], arrays["last_info_code"][row] = True, code

    def clear(self) -> None:
        """Clear the flags and rewards of all rows."""
        self.needs_clear = True
        self.arrays["valid"][self.index], self.arrays["reward"][self.index] = True, 0.0
        for flags in self._flags:
            flags.fill(False)

    def time_steps(self, rows: NDArray[Any]) -> list[float]:
        """Return the seconds of each step with actions [n, num_envs, K] in which nothing failed."""
        times = []
        assert self._actions is not None
        for t, actions in enumerate(rows):
            if self._mask is not None:
                actions = replace_masked_actions(
                    actions, self._mask[self.index], self._choice_sizes
                )
            self._actions[self.index] = actions
            began = time.perf_counter()
            self.step(t)
            if self.arrays["valid"][self.index].all():
                times.append(time.perf_counter() - began)
        return times

    # For agents: finite observations and replay of episodes.

    def _is_finite(self, row: int) -> bool:
        """Return true if the observation of a row is finite in float32."""
        for flat in self._flat_row[row]:
            if self._wide and flat.dot(flat) < _SAFE_SQUARES:
                continue
            with np.errstate(over="ignore"):
                if not np.isfinite(flat.astype(np.float32)).all():
                    return False
        return True

    def _not_finite_error(self, sub_env: SubEnv) -> KernelError:
        """Undo a counted step and return the error for its non-finite observation."""
        sub_env.undo_step(float(self.arrays["reward"][sub_env.number]))
        return sub_env.observation_error("step", SpaceMismatchError(_NOT_FINITE))

    def _check_finite(self) -> None:
        """Find non-finite observations, with one dot product per array."""
        for flat in self._flat:
            if not (self._wide and flat.dot(flat) < _SAFE_SQUARES):
                break
        else:
            return
        for sub_env in self.sub_envs:
            if not sub_env.asleep and not self._is_finite(sub_env.number):
                self._fault(sub_env, self._not_finite_error(sub_env))

    def store_episode_state(self) -> None:
        """Write returns, lengths and logged actions of all episodes to the arrays."""
        arrays = self.arrays
        arrays["ret"][self.index] = [sub_env.reported_return for sub_env in self.sub_envs]
        arrays["length"][self.index] = [sub_env.length for sub_env in self.sub_envs]
        if self.exclusive and self._log_length:
            for sub_env in self.sub_envs:
                if (n := sub_env.length) <= self._log_length:
                    self._log[sub_env.number, :n] = self._action_ring[
                        self._ring_rows(n), sub_env.number
                    ]

    def _ring_rows(self, n: int) -> NDArray[np.int64]:
        """Return the indices of the newest n actions in the ring."""
        indices: NDArray[np.int64] = np.arange(self._num_steps - n, self._num_steps) % max(
            1, self._log_length
        )
        return indices

    def _log_actions(self, rows: int | NDArray[np.int64], index: Any) -> None:
        """Log the actions of rows at the current step of their episodes."""
        if self._log_length:
            assert self._actions is not None
            length = np.minimum(self.arrays["length"][index], self._log_length - 1)
            self._log[rows, length] = self._actions[index]

    def replay(self) -> None:
        """Repeat the logged actions of the current episode of each selected sub-environment.

        Sets `diverged` if that fails. The parent compares the resulting observations.
        """
        arrays = self.arrays
        assert self._actions is not None
        lengths, logs = arrays["length"][self.index].copy(), arrays["log"][self.index].copy()
        self.clear()
        for i in np.flatnonzero(arrays["selected"][self.index]).tolist():
            sub_env = self.sub_envs[i]
            row = sub_env.number
            arrays["diverged"][row] = True
            try:
                if sub_env.env is None:
                    self._remake(sub_env)
                self._reset_next_episode(sub_env, repeat=True)
                taken = logs[i, : int(lengths[i])]
                arrays["log"][row, : len(taken)] = taken
                if self.exclusive and len(taken):
                    self._action_ring[self._ring_rows(len(taken)), row] = taken
                native_actions = self._codec.native_actions(taken.astype(self._actions.dtype))
                step_envs(
                    self._replay_actions(sub_env, native_actions),
                    self._last_action,
                    self._rewards,
                    self.pulse,
                    0,
                    self._store_step,
                    _raise_diverged,
                )
                self._update_mask(sub_env, "step")
                arrays["diverged"][row] = False
                arrays["ret"][row], arrays["length"][row] = sub_env.reported_return, sub_env.length
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
            self.mark_current(None)

    def _replay_actions(
        self, sub_env: SubEnv, native_actions: Sequence[Any]
    ) -> Iterator[tuple[SubEnv, Any]]:
        """Yield the actions of one sub-environment; each has its own time limit."""
        for native in native_actions:
            self.mark_current(sub_env.number)
            yield sub_env, native

    # Faults.

    def _fault(self, sub_env: SubEnv, error: BaseException, running: bool = True) -> None:
        """Handle a failed call: the step is invalid and the episode is lost."""
        row, waits = sub_env.number, False
        if self._native:
            self.arrays["restarts"][row] += np.uint64(1)
            sub_env.reset_pending = False
            # Otherwise it keeps its last observation and the next step begins an episode.
            waits = running and self.job.at_end != SAME_STEP
        if running:
            self._invalidate_step(sub_env)
        self._mark_down(sub_env, error)
        if isinstance(error, HangError):
            sub_env.clear()  # closing it could hang again
        if self.job.restart and not waits and not (running and self._give_up_episode(sub_env)):
            self._retry(sub_env, now=True)
        if self._native and running:
            cause = error.__cause__ or error
            sub_env.reported_info = {
                **sub_env.reported_info,
                "fault": f"{type(cause).__name__}: {error_text(cause)}",
            }
            self.arrays["info_code"][row] = ON_REQUEST

    def _invalidate_step(self, sub_env: SubEnv) -> None:
        """Mark the current step as invalid."""
        self.needs_clear = True
        arrays, row = self.arrays, sub_env.number
        arrays["valid"][row] = arrays["terminated"][row] = False
        arrays["truncated"][row] = arrays["lost"][row] = not self.job.holds_at_end
        arrays["reward"][row], arrays["has_final"][row], arrays["ended"][row] = 0.0, False, False
        sub_env.reported_info = {}
        if not self._native:
            sub_env.undo_raw_rewards()
            arrays["ended_ret"][row], arrays["ended_length"][row] = (
                sub_env.reported_return,
                sub_env.length,
            )

    def _mark_down(self, sub_env: SubEnv, error: BaseException) -> None:
        """Report a fault and mark the sub-environment as down."""
        self.mark_current(None)
        row = sub_env.number
        kind = "hung" if isinstance(error, HangError) else "raised"
        text = error_text(error)
        if kind == "raised":
            text += "\n" + "".join(traceback.format_exception(error.__cause__ or error))
        at_fault = sub_env.episode, sub_env.length, self._last_action(row)
        self._report(Fault(kind, row, 0, 0, *at_fault, text, error))
        self.needs_clear = True
        sub_env.failures = 1 if sub_env.steps + sub_env.length > 0 else sub_env.failures + 1
        sub_env.retry_at = time.monotonic() + backoff(sub_env.failures)
        sub_env.asleep = self.arrays["down"][row] = True
        if not self._native:  # other libraries keep the last observation
            self.arrays["failed_attempts"][row] += 1
            for obs in self._obs:
                obs[row] = 0
            if self._mask is not None:
                self._mask[row] = True

    def _give_up_episode(self, sub_env: SubEnv) -> bool:
        """Give up an episode that has failed too often; return true if it is given up."""
        arrays, row = self.arrays, sub_env.number
        if not self.job.holds_at_end or arrays["failed_attempts"][row] < MAX_ATTEMPTS:
            return False
        arrays["truncated"][row] = arrays["lost"][row] = arrays["held"][row] = sub_env.asleep = True
        arrays["down"][row] = False
        return True

    def _retry(self, sub_env: SubEnv, now: bool = False) -> None:
        """Restart a sub-environment that is down if its delay is over."""
        row = sub_env.number
        if self.arrays["held"][row]:
            return
        self.needs_clear = True
        if not now:
            self.arrays["valid"][row] = False
            if sub_env.reset_pending:
                try:
                    self._reset(sub_env, 0)
                except BaseException as error:
                    self._fault(sub_env, error)
                return
            if self._give_up_episode(sub_env):
                return
        if not self.job.restart or time.monotonic() < sub_env.retry_at:
            return
        try:
            self._remake(sub_env)
            self._reset_next_episode(sub_env, repeat=self.job.holds_at_end)
        except BaseException as error:
            self._mark_down(sub_env, error)

    # Calls from the driver.

    def _write_info(self, sub_env: SubEnv, info: Any) -> None:
        """Write an info to its slot, or store it until it is requested."""
        row = sub_env.number
        sub_env.reported_info = info
        self.needs_clear = True
        self.arrays["info_code"][row] = (
            self._table.write(info, self._info, row) if info else NO_INFO
        )

    def _write_infos(self, sub_envs: Iterable[SubEnv]) -> None:
        """Write the infos of sub-environments whose step is valid."""
        lost, down = self.arrays["lost"], self.arrays["down"]
        for sub_env in sub_envs:
            if sub_env.info and not (lost[sub_env.number] or down[sub_env.number]):
                self._write_info(sub_env, sub_env.info)

    def collect_infos(self, signatures: Sequence[Signature]) -> list[InfoMessage]:
        """Return infos that have no slot: row, info, final observation and info.

        Args:
            signatures: Signatures of all schemas known to the reader.
        """
        arrays, infos = self.arrays, list[InfoMessage]()
        self._table.extend(signatures)
        if not self._native:
            for sub_env in self.sub_envs:
                self._write_info(sub_env, sub_env.info)
        for sub_env in self.sub_envs:
            row = sub_env.number
            has_info = arrays["info_code"][row] == ON_REQUEST
            ended = (
                self._native
                and arrays["has_final"][row]
                and arrays["last_info_code"][row] == ON_REQUEST
            )
            if has_info or ended:
                item = (
                    sub_env.reported_info if has_info else None,
                    sub_env.final_info if ended else None,
                )
                infos.append((row, *item))
        return infos

    def get_observations(self) -> list[Any]:
        """Return observations that have no place in the arrays."""
        return [sub_env.observation for sub_env in self.sub_envs]

    def call(self, calls: list[tuple[int, str, tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        """Return attributes of rows, called if callable: (row, name, args, kwargs)."""
        values = []
        for row, name, args, kwargs in calls:
            attribute = self._env(row).get_wrapper_attr(name)
            values.append(attribute(*args, **kwargs) if callable(attribute) else attribute)
        return values

    def set_attrs(self, name: str, values: list[tuple[int, Any]]) -> None:
        """Set an attribute of rows, given as (row, value)."""
        for row, value in values:
            self._env(row).set_wrapper_attr(name, value)
            self._attributes.setdefault(row, {})[name] = value  # for restarts

    def _env(self, row: int) -> Any:
        sub_env = self._by_row[row]
        if sub_env.env is None:
            raise KernelError(f"gym:{self.name}: environment {row} is down. Reset it first.")
        return sub_env.env
