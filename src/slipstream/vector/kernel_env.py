"""A kernel's copies: one array of records, one loop over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, KernelError
from slipstream.core.kernel import Kernel, Loaded, params_table
from slipstream.core.random import stream, word
from slipstream.core.spec import Spec
from slipstream.vector.compile import Loop, compiled_loop, interpreted_loop
from slipstream.vector.loop import BOOK, EPISODES, FAULT, FINALS, RESET
from slipstream.vector.vector_env import Episodes, Finals, StepOut, VectorEnv

BACKENDS = ("compiled", "serial")
_NO_EPISODE = np.uint64(2**64 - 1)  # names the stream of the first episode's length


class KernelVectorEnv(VectorEnv):
    """Copies of a kernel, stepped by one thread without the interpreter lock.

    Args:
        kernel: the rules.
        loaded: what `kernel.load(config)` returned; its arrays are shared, never copied.
        seeds: uint64 [E], the seed of each copy's member.
        indices: uint64 [E], each copy's index within its member.
        split: whose Params records the copies use.
        which: int64 [E], the record of each copy; default: dealt round robin by index.
        backend: ``"compiled"`` or ``"serial"`` (interpreted; equal bit for bit).
        stagger: draw the first episode's length at random if the spec asks for it.
        time_limit: keep the spec's `max_episode_steps`.
        at_end: what happens when an episode ends: RESET, RESET_KEEP_ALL or HOLD of `loop.py`.
    """

    def __init__(
        self,
        kernel: Kernel,
        loaded: Loaded,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        *,
        split: str = "train",
        which: NDArray[np.int64] | None = None,
        backend: str = "compiled",
        stagger: bool = True,
        time_limit: bool = True,
        at_end: int = RESET,
    ) -> None:
        if backend not in BACKENDS:
            raise ConfigError(f"A kernel has no backend `{backend}`; it has {', '.join(BACKENDS)}.")
        if split not in loaded.params:
            raise ConfigError(
                f"`{kernel.name}` has no split `{split}`; it has {', '.join(loaded.params)}."
            )
        self.kernel, self.loaded, self.backend = kernel, loaded, backend
        self.num_envs = len(seeds)
        records = loaded.params[split]
        self.spec: Spec = kernel.spec(records[0], loaded.data)
        self._params = params_table(kernel, records)
        self._state = np.zeros(self.num_envs, kernel.STATE)
        self._book = np.zeros(self.num_envs, BOOK)
        self._book["seed"], self._book["index"] = seeds, indices
        dealt = (indices % np.uint64(len(records))).astype(np.int64)
        self._book["which"] = dealt if which is None else which
        limit = (self.spec.max_episode_steps or 0) if time_limit else 0
        self._book["next_limit"] = limit
        self._stagger = stagger and self.spec.stagger and limit > 0
        self._at_end = at_end
        self._counts = np.zeros(3, np.int64)
        self._episode_columns = 4 + len(self.spec.metrics)
        self._allocate(2 * self.num_envs)
        self._loop = self._make_loop()

    def _allocate(self, rows: int) -> None:
        """Room for what ends; every step may end all copies at once, so E rows are always kept free."""
        finals = np.zeros((rows, *self.spec.observation_shape), self.spec.observation_dtype)
        index, episodes = np.zeros((rows, 2), np.int64), np.zeros((rows, self._episode_columns))
        if self._counts.any():
            kept, ended = int(self._counts[FINALS]), int(self._counts[EPISODES])
            finals[:kept], index[:kept] = self._finals[:kept], self._final_index[:kept]
            episodes[:ended] = self._episodes[:ended]
        self._finals, self._final_index, self._episodes = finals, index, episodes
        arrays = tuple(self.loaded.data)
        records: tuple[Any, ...] = (self._params, self._state, self._book)
        if self.backend == "serial":  # fields by attribute
            records = tuple(array.view(np.recarray) for array in records)
        self._batch = (arrays, *records, finals, index, episodes, self._counts)

    def _make_loop(self) -> Loop:
        if self.backend == "serial":
            return interpreted_loop(self.kernel, self.spec)
        e, dtype = self.num_envs, self.spec.action_dtype
        flags = np.zeros(e, np.bool_)
        obs = np.zeros((e, *self.spec.observation_shape), self.spec.observation_dtype)
        actions = np.zeros((e, self.spec.action_width), dtype)
        out = (actions, obs, np.zeros(e, np.float32), flags, flags)
        return compiled_loop(self.kernel, self.spec, self._batch, out)

    def reset(self, obs: NDArray[Any]) -> None:
        self._counts[:] = 0
        with np.errstate(over="ignore"):  # 64-bit words wrap round
            self._loop.start(0, self.num_envs, self._batch, obs)
            if self._stagger:
                longest = np.uint64(self._book["next_limit"][0])
                for b in self._book:
                    first = word(stream(b["seed"], b["index"], _NO_EPISODE), np.uint64(0))
                    b["limit"] = 1 + int(first % longest)

    def step(self, actions: NDArray[Any], out: StepOut, t: int = 0) -> None:
        counts, e = self._counts, self.num_envs
        if max(counts[FINALS], counts[EPISODES]) + e > len(self._finals):
            self._allocate(2 * len(self._finals))
        rows = (actions, out.obs, out.reward, out.terminated, out.truncated)
        if self.backend == "serial":
            with np.errstate(over="ignore"):
                self._loop.advance(0, e, t, self._at_end, self._batch, rows)
        else:
            self._loop.advance(0, e, t, self._at_end, self._batch, rows)
        if counts[FAULT]:
            self._raise_fault(int(counts[FAULT]) - 1, t, actions)

    def _raise_fault(self, e: int, t: int, actions: NDArray[Any]) -> None:
        state = {name: self._state[name][e] for name in self.kernel.STATE.names or ()}
        raise KernelError(
            f"Kernel `{self.kernel.name}` returned a reward that is NaN or infinite: environment {e} "
            f"(seed {self._book['seed'][e]}, index {self._book['index'][e]}), step {t}, episode "
            f"{self._book['episode'][e]}, last action {actions[e].tolist()}, state after it {state}. Guard the "
            "divisor or the argument of log or sqrt that produced it."
        )

    def begin(
        self, copies: NDArray[np.int64], episodes: NDArray[np.int64], seed: int, obs: NDArray[Any]
    ) -> None:
        self._book["seed"][copies] = seed % 2**64
        self._book["index"][copies] = episodes.astype(np.uint64)
        self._book["episode"][copies] = 0
        self._book["which"][copies] = episodes % len(self._params)
        with np.errstate(over="ignore"):
            for e in copies:
                self._loop.start(int(e), int(e) + 1, self._batch, obs)

    def read(self, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
        return {name: self._state[name].copy() for name in names}

    def drain_finals(self) -> Finals:
        n = int(self._counts[FINALS])
        self._counts[FINALS] = 0
        return Finals(self._finals[:n].copy(), self._final_index[:n].copy())

    def drain_episodes(self) -> Episodes:
        rows = self._episodes[: int(self._counts[EPISODES])]
        self._counts[EPISODES] = 0
        metrics = {m.name: rows[:, 4 + i].copy() for i, m in enumerate(self.spec.metrics)}
        place, length = rows[:, :2].astype(np.int64), rows[:, 3].astype(np.int64)
        return Episodes(place[:, 0], place[:, 1], rows[:, 2].copy(), length, metrics)

    def get_state(self) -> dict[str, NDArray[Any]]:
        # Field by field: the padding bytes of a record are not carried by copies.
        state = {
            f"state.{name}": self._state[name].copy() for name in self.kernel.STATE.names or ()
        }
        return {**state, **{f"book.{name}": self._book[name].copy() for name in BOOK.names or ()}}

    def set_state(self, state: Mapping[str, NDArray[Any]], obs: NDArray[Any]) -> None:
        for name in self.kernel.STATE.names or ():
            self._state[name] = state[f"state.{name}"]
        for name in BOOK.names or ():
            self._book[name] = state[f"book.{name}"]
        self._counts[:] = 0
        self._loop.look(0, self.num_envs, self._batch, obs)
