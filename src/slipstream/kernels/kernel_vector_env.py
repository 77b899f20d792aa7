"""Vector environment of a kernel: one array of states, one loop over them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.random import stream, word
from slipstream.kernels.compiler import (
    Loop,
    bounds_checked_functions,
    build_compiled_loop,
    build_interpreted_loop,
)
from slipstream.kernels.interpreter import FaultDiagnosis, Records, non_finite_error
from slipstream.kernels.kernel import Kernel, KernelData, params_table
from slipstream.kernels.loop import (
    ENVIRONMENT,
    EPISODES,
    FAULT,
    FINALS,
    LENGTH,
    RESET,
    RETURN,
    STEP,
    episode_state_dtype,
)
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import (
    Episodes,
    FinalObs,
    StepBuffers,
    VectorEnv,
    check_buffers,
    check_state_fields,
)

BACKENDS = ("compiled", "serial")
_WRAPS: Any = {
    "over": "ignore",
    "invalid": "ignore",
}  # hashes wrap around; NaN is reported
_WHICH = "episode_state.param_row"
_NO_EPISODE = np.uint64(2**64 - 1)  # stream of the first episode's length


class KernelVectorEnv(VectorEnv):
    """Sub-environments of a kernel, stepped by one thread with the GIL released.

    Args:
        kernel: the rules.
        loaded: result of `kernel.load(config)`; its arrays are shared, never copied.
        seeds: uint64 [E], the seed of each environment's member.
        indices: uint64 [E], each environment's index within its member.
        split: split whose Params records are used.
        param_rows: int64 [E], the Params record of each environment; round robin by index by
            default.
        backend: ``"compiled"`` or ``"serial"`` (interpreted, bit-identical).
        stagger: draw the first episode's length at random if the spec requests it.
        time_limit: apply the spec's `max_episode_steps`.
        autoreset_mode: RESET, RESET_KEEP_ALL or HOLD of `kernels/loop.py`.
        first_env: index of the first environment in messages, for slices of a larger batch.
        time_limits: int64 [E], time limits in steps if records differ in them.
        param_ranges: int64 [E, 2], first record and number of records that each environment draws
            from, if members have their own. By default every environment uses all records.

    Attributes:
        loop: steps the environments; also called by fused loops.
        batch: its argument, replaced by `ensure_capacity`.
    """

    def __init__(
        self,
        kernel: Kernel,
        loaded: KernelData,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        *,
        split: str = "train",
        param_rows: NDArray[np.int64] | None = None,
        backend: str = "compiled",
        stagger: bool = True,
        time_limit: bool = True,
        autoreset_mode: int = RESET,
        first_env: int = 0,
        time_limits: NDArray[np.int64] | None = None,
        param_ranges: NDArray[np.int64] | None = None,
    ) -> None:
        if backend not in BACKENDS:
            raise ConfigError(f"A kernel has no backend `{backend}`; it has {', '.join(BACKENDS)}.")
        if split not in loaded.params:
            raise ConfigError(
                f"`{kernel.name}` has no split `{split}`; it has {', '.join(loaded.params)}."
            )
        kernel = kernel.specialize(loaded)
        self.kernel, self.loaded, self.backend = kernel, loaded, backend
        self.num_envs = len(seeds)
        records = loaded.params[split]
        self.spec: EnvSpec = kernel.spec(records[0], loaded.data)
        self.params = params_table(kernel, records)
        self.state = np.zeros(self.num_envs, kernel.STATE)
        self.episode_state = np.zeros(self.num_envs, episode_state_dtype(self.spec.players))
        self._players = () if self.spec.players == 1 else (self.spec.players,)
        self.mask_size = 0 if kernel.mask is None else self.spec.num_actions
        self._mask: NDArray[np.bool_] | None = None
        if kernel.mask is not None:
            self._mask = np.ones((self.num_envs, *self._players, self.mask_size), np.bool_)
        self.episode_state["seed"], self.episode_state["index"] = seeds, indices
        self._ranges = (
            np.array([[0, len(records)]] * len(seeds)) if param_ranges is None else param_ranges
        )
        dealt = self._assign_params(slice(None), (indices % np.uint64(2**62)).astype(np.int64))
        self.episode_state["param_row"] = dealt if param_rows is None else param_rows
        limit = (self.spec.max_episode_steps or 0) if time_limits is None else time_limits
        self.episode_state["next_limit"] = limit if time_limit else 0
        self._stagger = (
            stagger and self.spec.stagger_episodes and bool(self.episode_state["next_limit"].all())
        )
        self._at_end, self.first_env = autoreset_mode, first_env
        self.counts = np.zeros(4, np.int64)
        self._checked = bool(bounds_checked_functions(kernel))
        self._keeps_records = False
        self.state_before_step = np.zeros(kernel.STATE.itemsize // 8, np.uint64)  # one state record
        self._allocate(max(2 * self.num_envs, 64))
        self.loop = self._make_loop()

    def __deepcopy__(self, memo: dict[int, Any]) -> KernelVectorEnv:
        """Copy the environments in their current state; rules, data and the loop are shared."""
        other = copy.copy(self)
        memo[id(self)] = other
        shared = ("kernel", "loaded", "spec", "loop", "batch")
        attributes = {name: value for name, value in vars(self).items() if name not in shared}
        vars(other).update(copy.deepcopy(attributes, memo))
        other._bind_batch()
        return other

    def _assign_params(self, env_ids: Any, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the record of each number, round robin over the environment's own records."""
        first, count = self._ranges[env_ids].T
        return np.asarray(first + numbers % count)

    def _allocate(self, rows: int) -> None:
        """Allocate storage for ended episodes: every step may end all environments."""
        spec, kept, ended = self.spec, int(self.counts[FINALS]), int(self.counts[EPISODES])
        finals = np.zeros((rows, *self._players, *spec.observation_shape), spec.observation_dtype)
        index = np.zeros((rows, 2), np.int64)
        episodes = np.zeros((rows, RETURN + spec.players + len(spec.metrics)))
        words = np.zeros(
            (rows if self._keeps_records else 0, len(self.state_before_step)), np.uint64
        )
        if kept or ended:
            words[:kept] = self._final_words[:kept]
            finals[:kept], index[:kept] = self._finals[:kept], self._final_index[:kept]
            episodes[:ended] = self._episodes[:ended]
        self._final_words: NDArray[np.uint64] = words
        self._finals: NDArray[Any] = finals
        self._final_index: NDArray[np.int64] = index
        self._episodes: NDArray[np.float64] = episodes
        self._bind_batch()
        self._room = (rows - max(kept, ended)) // self.num_envs

    def ensure_capacity(self) -> None:
        """Recount how many more steps the storage holds, and enlarge it if there is no room."""
        rows, used = len(self._finals), max(int(self.counts[FINALS]), int(self.counts[EPISODES]))
        self._room = (rows - used) // self.num_envs
        if self._room == 0:
            self._allocate(2 * rows)

    def _bind_batch(self) -> None:
        self.batch = self._bind(Records if self.backend == "serial" else None)

    def _bind(self, wrap: Any = None) -> tuple[Any, ...]:
        """Return the arrays that the loop reads and writes besides the caller's rows."""
        records: tuple[Any, ...] = (self.params, self.state, self.episode_state)
        if wrap is not None:
            records = tuple(wrap(array) for array in records)
        ended = (self._finals, self._final_index, self._episodes, self.counts)
        words = (self.state.view(np.uint64).reshape(self.num_envs, -1), self._final_words)
        watched = (self.state_before_step,) if self._checked else ()
        return (tuple(self.loaded.data), *records, *ended, *words, *watched)

    def keep_final_states(self) -> None:
        """Return STATE records beside final observations in `drain_finals` from now on."""
        self._keeps_records = True
        self._final_words = np.zeros((len(self._finals), len(self.state_before_step)), np.uint64)
        self._bind_batch()

    @property
    def first_param_rows(self) -> NDArray[np.int64]:
        """int64 [E], the row of `params` at which each environment's own records begin."""
        return np.ascontiguousarray(self._ranges[:, 0], np.int64)

    @property
    def final_states(self) -> NDArray[Any]:
        """STATE records of all stored final observations, after `keep_final_states`."""
        return self._final_words.view(self.kernel.STATE).reshape(-1)

    def loop_arguments(self) -> tuple[tuple[Any, ...], tuple[NDArray[Any], ...]]:
        """Return the loop's `batch`, which is live, and new buffers `out` of its shapes."""
        spec, rows = self.spec, (self.num_envs, *self._players)
        out: tuple[NDArray[Any], ...] = (
            np.zeros((*rows, spec.action_dim), spec.action_dtype),
            np.zeros((*rows, *spec.observation_shape), spec.observation_dtype),
            np.zeros(rows, np.float32),
            np.zeros(self.num_envs, np.bool_),
            np.zeros(self.num_envs, np.bool_),
        )
        if self._mask is not None:
            out = (*out, self._mask)
        return self._bind(), out

    def _make_loop(self) -> Loop:
        batch, out = self.loop_arguments()
        self._shapes = tuple(array.shape for array in out[:5])
        self._dtypes = tuple(array.dtype for array in out[:5])
        if self.backend == "serial":
            return build_interpreted_loop(self.kernel, self.spec)
        return build_compiled_loop(self.kernel, self.spec, batch, out)

    def _observation_buffers(
        self, obs: NDArray[Any], mask: NDArray[np.bool_] | None
    ) -> tuple[NDArray[Any], ...]:
        """Return the output arrays of `start` and `observe_all`, with scratch for unused masks."""
        if obs.shape != self._shapes[1]:
            check_buffers((None, obs), self._shapes, self._dtypes)
        if self._mask is None:
            return (obs,)
        return (obs, self._mask if mask is None else mask)

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        self.counts[:] = 0
        with np.errstate(**_WRAPS):
            self._call(
                self.loop.start, 0, self.num_envs, self.batch, *self._observation_buffers(obs, mask)
            )
            if self._stagger:
                longest = self.episode_state["next_limit"].astype(np.uint64)
                streams = stream(
                    self.episode_state["seed"], self.episode_state["index"], _NO_EPISODE
                )
                first = word(streams, np.uint64(0)) % longest
                self.episode_state["limit"] = 1 + np.asarray(first, dtype=np.int64)

    def step_rows(
        self,
        actions: NDArray[Any],
        out: StepBuffers,
        t: int = 0,
        lo: int = 0,
        hi: int | None = None,
    ) -> None:
        """Step environments lo..hi-1, by default all; the rows are those of all environments."""
        obs, reward, terminated, truncated, valid, mask = out
        counts, hi = self.counts, self.num_envs if hi is None else hi
        shapes = (actions.shape, obs.shape, reward.shape, terminated.shape, truncated.shape)
        if shapes != self._shapes:
            check_buffers((actions, *out[:4]), self._shapes, self._dtypes)
        if self._room == 0:
            self.ensure_capacity()
        self._room -= 1
        valid[:] = True
        rows: tuple[Any, ...] = (actions, obs, reward, terminated, truncated)
        if self._mask is not None:
            rows = (*rows, self._mask if mask is None else mask)
        try:
            if self.backend == "serial":
                with np.errstate(**_WRAPS):
                    self.loop.advance(lo, hi, t, self._at_end, self.batch, rows)
            else:
                self.loop.advance(lo, hi, t, self._at_end, self.batch, rows)
        except Exception as error:
            check_buffers((actions, *out[:4]), self._shapes, self._dtypes)
            raise self.explain_error(error, actions) from error
        if counts[FAULT]:
            self.raise_fault(actions, t)

    def _call(self, entry: Any, *arguments: Any) -> None:
        """Call `start` or `observe_all`, then raise an error if what they wrote is not usable."""
        try:
            entry(*arguments)
        except Exception as error:
            raise self.explain_error(error) from error
        if self.counts[FAULT]:
            self.raise_fault(None)

    def explain_error(self, error: Exception, actions: NDArray[Any] | None = None) -> Exception:
        """Return the error that explains an exception of a user's kernel in the loop.

        Args:
            actions: the last ones; None if nothing was stepped.
        """
        return FaultDiagnosis(self).explain(error, actions) if self._checked else error

    def raise_fault(self, actions: NDArray[Any] | None, t: int | None = None) -> None:
        """Raise an error for the first unusable number since the last check.

        Args:
            actions: the last ones; t: the step, by default counted within the environment's
                episode.

        Raises:
            KernelError: a reward or observation is not finite, or a mask allows nothing.
        """
        fault = int(self.counts[FAULT])
        if not fault:
            return
        self.counts[FAULT] = 0
        raise non_finite_error(self, fault, actions, t)

    def begin(
        self,
        env_ids: NDArray[np.int64],
        episodes: NDArray[np.int64],
        seed: int,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        buffers = self._observation_buffers(obs, mask)
        self.episode_state["seed"][env_ids] = seed % 2**64
        self.episode_state["index"][env_ids] = episodes.astype(np.uint64)
        self.episode_state["episode"][env_ids] = 0
        self.episode_state["param_row"][env_ids] = self._assign_params(env_ids, episodes)
        self._start(env_ids, buffers)

    def restart(
        self,
        env_ids: NDArray[np.int64],
        seeds: NDArray[np.uint64] | None,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        buffers = self._observation_buffers(obs, mask)
        if seeds is not None:
            self.episode_state["seed"][env_ids] = seeds
            self.episode_state["index"][env_ids] = self.episode_state["episode"][env_ids] = 0
        self._start(env_ids, buffers)

    def _start(self, env_ids: NDArray[np.int64], buffers: tuple[NDArray[Any], ...]) -> None:
        with np.errstate(**_WRAPS):
            for e in env_ids.tolist():
                self._call(self.loop.start, e, e + 1, self.batch, *buffers)

    def hold(self, held: NDArray[np.bool_]) -> None:
        self.episode_state["held"] = held

    def read(self, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
        return {name: self.state[name].copy() for name in names}

    def drain_final_obs(self) -> FinalObs:
        n = int(self.counts[FINALS])
        self.counts[FINALS] = 0
        records = self.final_states[:n].copy() if self._keeps_records else None
        return FinalObs(self._finals[:n].copy(), self._final_index[:n].copy(), records)

    def drain_episodes(self) -> Episodes:
        rows = self._episodes[: int(self.counts[EPISODES])]
        self.counts[EPISODES] = 0
        players = self.spec.players
        ret = rows[:, RETURN] if players == 1 else rows[:, RETURN : RETURN + players]
        first_env = RETURN + players
        metrics = {m.name: rows[:, first_env + i].copy() for i, m in enumerate(self.spec.metrics)}
        whole = rows[:, [STEP, ENVIRONMENT, LENGTH]].T.astype(np.int64, order="C")
        return Episodes(whole[0], whole[1], ret.copy(), whole[2], metrics)

    def get_state(self) -> dict[str, NDArray[Any]]:
        # Field by field: env_ids do not preserve a record's padding bytes.
        state = {name: values.copy() for name, values in self._fields()}
        state[_WHICH] -= self._ranges[:, 0]  # relative to the environment's own records
        return state

    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        fields = dict(self._fields())
        check_state_fields(state, fields)
        for name, values in fields.items():
            values[...] = state[name]
        self.episode_state["param_row"] += self._ranges[:, 0]
        self.counts[:] = 0
        self._call(
            self.loop.observe_all,
            0,
            self.num_envs,
            self.batch,
            *self._observation_buffers(obs, mask),
        )

    def _fields(self) -> Iterator[tuple[str, NDArray[Any]]]:
        for prefix, records in (("state", self.state), ("episode_state", self.episode_state)):
            for name in records.dtype.names or ():
                yield f"{prefix}.{name}", records[name]
