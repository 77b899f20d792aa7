"""A kernel's copies: one array of records, one loop over them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.random import stream, word
from slipstream.kernels.compiler import Loop, checked_parts, compiled_loop, interpreted_loop
from slipstream.kernels.interpreter import Records, Rerun, no_number
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
    book_dtype,
)
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import (
    Episodes,
    Finals,
    StepOut,
    VectorEnv,
    refuse_misfits,
    refuse_missing,
)

BACKENDS = ("compiled", "serial")
_WRAPS: Any = {"over": "ignore", "invalid": "ignore"}  # 64-bit words wrap round; NaN is named
_WHICH = "book.which"
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
        at_end: RESET, RESET_KEEP_ALL or HOLD of `kernels/loop.py`.
        first: number of the first copy in messages, where these are a slice of more.
        limits: int64 [E], steps of each copy's episodes, where records differ in them.
        ranges: int64 [E, 2], first record and number of records that each copy draws from, where
            members have their own; by default all have all.

    Attributes:
        loop: steps the copies, for loops that do more than that.
        batch: its argument; another one after `make_room`.
    """

    def __init__(
        self,
        kernel: Kernel,
        loaded: KernelData,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        *,
        split: str = "train",
        which: NDArray[np.int64] | None = None,
        backend: str = "compiled",
        stagger: bool = True,
        time_limit: bool = True,
        at_end: int = RESET,
        first: int = 0,
        limits: NDArray[np.int64] | None = None,
        ranges: NDArray[np.int64] | None = None,
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
        self.book = np.zeros(self.num_envs, book_dtype(self.spec.players))
        self._players = () if self.spec.players == 1 else (self.spec.players,)
        self.mask_width = 0 if kernel.mask is None else self.spec.choices
        self._mask: NDArray[np.bool_] | None = None
        if kernel.mask is not None:
            self._mask = np.ones((self.num_envs, *self._players, self.mask_width), np.bool_)
        self.book["seed"], self.book["index"] = seeds, indices
        self._ranges = np.array([[0, len(records)]] * len(seeds)) if ranges is None else ranges
        dealt = self._deal(slice(None), (indices % np.uint64(2**62)).astype(np.int64))
        self.book["which"] = dealt if which is None else which
        limit = (self.spec.max_episode_steps or 0) if limits is None else limits
        self.book["next_limit"] = limit if time_limit else 0
        self._stagger = stagger and self.spec.stagger and bool(self.book["next_limit"].all())
        self._at_end, self.first = at_end, first
        self.counts = np.zeros(4, np.int64)
        self._checked = bool(checked_parts(kernel))
        self._keeps_records = False
        self.before = np.zeros(kernel.STATE.itemsize // 8, np.uint64)  # a record, before its step
        self._allocate(max(2 * self.num_envs, 64))
        self.loop = self._make_loop()

    def __deepcopy__(self, memo: dict[int, Any]) -> KernelVectorEnv:
        """Copies that go on from where these stand; rules, data and the loop are shared."""
        other = copy.copy(self)
        memo[id(self)] = other
        shared = ("kernel", "loaded", "spec", "loop", "batch_size")
        own = {name: value for name, value in vars(self).items() if name not in shared}
        vars(other).update(copy.deepcopy(own, memo))
        other._bind_batch()
        return other

    def _deal(self, copies: Any, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The record with each number, counted round robin through the copy's own."""
        first, count = self._ranges[copies].T
        return np.asarray(first + numbers % count)

    def _allocate(self, rows: int) -> None:
        """Room for what ends: every step may end all copies at once."""
        spec, kept, ended = self.spec, int(self.counts[FINALS]), int(self.counts[EPISODES])
        finals = np.zeros((rows, *self._players, *spec.observation_shape), spec.observation_dtype)
        index = np.zeros((rows, 2), np.int64)
        episodes = np.zeros((rows, RETURN + spec.players + len(spec.metrics)))
        words = np.zeros((rows if self._keeps_records else 0, len(self.before)), np.uint64)
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

    def make_room(self) -> None:
        """The count of steps that surely fit is down: looks how many really do."""
        rows, used = len(self._finals), max(int(self.counts[FINALS]), int(self.counts[EPISODES]))
        self._room = (rows - used) // self.num_envs
        if self._room == 0:
            self._allocate(2 * rows)

    def _bind_batch(self) -> None:
        self.batch = self._bind(Records if self.backend == "serial" else None)

    def _bind(self, wrap: Any = None) -> tuple[Any, ...]:
        """What the loop reads and writes besides the caller's rows."""
        records: tuple[Any, ...] = (self.params, self.state, self.book)
        if wrap is not None:
            records = tuple(wrap(array) for array in records)
        ended = (self._finals, self._final_index, self._episodes, self.counts)
        words = (self.state.view(np.uint64).reshape(self.num_envs, -1), self._final_words)
        watched = (self.before,) if self._checked else ()
        return (tuple(self.loaded.data), *records, *ended, *words, *watched)

    def keep_records(self) -> None:
        """From now on `drain_finals` gives STATE records beside final observations."""
        self._keeps_records = True
        self._final_words = np.zeros((len(self._finals), len(self.before)), np.uint64)
        self._bind_batch()

    @property
    def first_records(self) -> NDArray[np.int64]:
        """int64 [E], the row of `params` from which each copy's own records are counted."""
        return np.ascontiguousarray(self._ranges[:, 0], np.int64)

    @property
    def final_records(self) -> NDArray[Any]:
        """STATE records of all final observations that are kept, of `keep_records`."""
        return self._final_words.view(self.kernel.STATE).reshape(-1)

    def arguments(self) -> tuple[tuple[Any, ...], tuple[NDArray[Any], ...]]:
        """The loop's `batch`, which is live, and new buffers `out` of its shapes, to step with."""
        spec, rows = self.spec, (self.num_envs, *self._players)
        out: tuple[NDArray[Any], ...] = (
            np.zeros((*rows, spec.action_width), spec.action_dtype),
            np.zeros((*rows, *spec.observation_shape), spec.observation_dtype),
            np.zeros(rows, np.float32),
            np.zeros(self.num_envs, np.bool_),
            np.zeros(self.num_envs, np.bool_),
        )
        if self._mask is not None:
            out = (*out, self._mask)
        return self._bind(), out

    def _make_loop(self) -> Loop:
        batch, out = self.arguments()
        self._shapes = tuple(array.shape for array in out[:5])
        self._dtypes = tuple(array.dtype for array in out[:5])
        if self.backend == "serial":
            return interpreted_loop(self.kernel, self.spec)
        return compiled_loop(self.kernel, self.spec, batch, out)

    def _shown(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None) -> tuple[NDArray[Any], ...]:
        """What `start` and `look` write: the caller's rows; masks that nobody wants go nowhere."""
        if obs.shape != self._shapes[1]:
            refuse_misfits((None, obs), self._shapes, self._dtypes)
        if self._mask is None:
            return (obs,)
        return (obs, self._mask if mask is None else mask)

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        self.counts[:] = 0
        with np.errstate(**_WRAPS):
            self._call(self.loop.start, 0, self.num_envs, self.batch, *self._shown(obs, mask))
            if self._stagger:
                longest = self.book["next_limit"].astype(np.uint64)
                streams = stream(self.book["seed"], self.book["index"], _NO_EPISODE)
                first = word(streams, np.uint64(0)) % longest
                self.book["limit"] = 1 + np.asarray(first, dtype=np.int64)

    def step_rows(
        self, actions: NDArray[Any], out: StepOut, t: int = 0, lo: int = 0, hi: int | None = None
    ) -> None:
        """Steps the copies lo..hi-1, by default all; the rows are those of all."""
        obs, reward, terminated, truncated, valid, mask = out
        counts, hi = self.counts, self.num_envs if hi is None else hi
        shapes = (actions.shape, obs.shape, reward.shape, terminated.shape, truncated.shape)
        if shapes != self._shapes:
            refuse_misfits((actions, *out[:4]), self._shapes, self._dtypes)
        if self._room == 0:
            self.make_room()
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
            refuse_misfits((actions, *out[:4]), self._shapes, self._dtypes)
            raise self.named(error, actions) from error
        if counts[FAULT]:
            self.check(actions, t)

    def _call(self, entry: Any, *arguments: Any) -> None:
        """Calls `start` or `look`, after which somebody acts on what they wrote."""
        try:
            entry(*arguments)
        except Exception as error:
            raise self.named(error) from error
        if self.counts[FAULT]:
            self.check(None)

    def named(self, error: Exception, actions: NDArray[Any] | None = None) -> Exception:
        """What to raise instead of an exception that a user's own kernel raised in the loop.

        Args:
            actions: the last ones; None where nothing was stepped.
        """
        return Rerun(self).explain(error, actions) if self._checked else error

    def check(self, actions: NDArray[Any] | None, t: int | None = None) -> None:
        """Names the first number since the last check that nobody can train on.

        Args:
            actions: the last ones; t: the step, by default counted within the copy's episode.

        Raises:
            KernelError: there was one.
        """
        fault = int(self.counts[FAULT])
        if not fault:
            return
        self.counts[FAULT] = 0
        raise no_number(self, fault, actions, t)

    def begin(
        self,
        copies: NDArray[np.int64],
        episodes: NDArray[np.int64],
        seed: int,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        shown = self._shown(obs, mask)
        self.book["seed"][copies] = seed % 2**64
        self.book["index"][copies] = episodes.astype(np.uint64)
        self.book["episode"][copies] = 0
        self.book["which"][copies] = self._deal(copies, episodes)
        self._start(copies, shown)

    def restart(
        self,
        copies: NDArray[np.int64],
        seeds: NDArray[np.uint64] | None,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        shown = self._shown(obs, mask)
        if seeds is not None:
            self.book["seed"][copies] = seeds
            self.book["index"][copies] = self.book["episode"][copies] = 0
        self._start(copies, shown)

    def _start(self, copies: NDArray[np.int64], shown: tuple[NDArray[Any], ...]) -> None:
        with np.errstate(**_WRAPS):
            for e in copies.tolist():
                self._call(self.loop.start, e, e + 1, self.batch, *shown)

    def hold(self, held: NDArray[np.bool_]) -> None:
        self.book["held"] = held

    def read(self, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
        return {name: self.state[name].copy() for name in names}

    def drain_finals(self) -> Finals:
        n = int(self.counts[FINALS])
        self.counts[FINALS] = 0
        records = self.final_records[:n].copy() if self._keeps_records else None
        return Finals(self._finals[:n].copy(), self._final_index[:n].copy(), records)

    def drain_episodes(self) -> Episodes:
        rows = self._episodes[: int(self.counts[EPISODES])]
        self.counts[EPISODES] = 0
        players = self.spec.players
        ret = rows[:, RETURN] if players == 1 else rows[:, RETURN : RETURN + players]
        first = RETURN + players
        metrics = {m.name: rows[:, first + i].copy() for i, m in enumerate(self.spec.metrics)}
        whole = rows[:, [STEP, ENVIRONMENT, LENGTH]].T.astype(np.int64, order="C")
        return Episodes(whole[0], whole[1], ret.copy(), whole[2], metrics)

    def get_state(self) -> dict[str, NDArray[Any]]:
        # Field by field: the padding bytes of a record are not carried by copies.
        state = {name: values.copy() for name, values in self._fields()}
        state[_WHICH] -= self._ranges[:, 0]  # counted within the copy's own records
        return state

    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        fields = dict(self._fields())
        refuse_missing(state, fields)
        for name, values in fields.items():
            values[...] = state[name]
        self.book["which"] += self._ranges[:, 0]
        self.counts[:] = 0
        self._call(self.loop.look, 0, self.num_envs, self.batch, *self._shown(obs, mask))

    def _fields(self) -> Iterator[tuple[str, NDArray[Any]]]:
        for prefix, records in (("state", self.state), ("book", self.book)):
            for name in records.dtype.names or ():
                yield f"{prefix}.{name}", records[name]
