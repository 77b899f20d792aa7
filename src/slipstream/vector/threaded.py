"""A kernel's copies in slices, each stepped by a thread of its own when that pays."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slipstream.core.cores import usable_cores
from slipstream.core.errors import ConfigError
from slipstream.core.kernel import Kernel, Loaded
from slipstream.vector.choice import Choice
from slipstream.vector.kernel_env import KernelVectorEnv
from slipstream.vector.vector_env import Episodes, Finals, StepOut, VectorEnv, join_episodes


class ThreadedVectorEnv(VectorEnv):
    """`KernelVectorEnv` in `workers` slices; the caller's thread steps the first one itself.

    The number of workers never changes a trajectory, so ``"auto"`` may choose while running: it
    times some steps with and without threads, keeps what was faster, and looks again from time to
    time. Small batches and busy machines are stepped by the caller alone; small ones are never
    even cut.

    Args:
        kernel, loaded, seeds, indices: as for `KernelVectorEnv`.
        workers: slices, each with a thread; ``"auto"``: one per core, used when it pays.
        which: int64 [E], the Params record of each copy.
        settings: further keywords of `KernelVectorEnv`.
    """

    def __init__(
        self,
        kernel: Kernel,
        loaded: Loaded,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        *,
        workers: int | Literal["auto"] = "auto",
        which: NDArray[np.int64] | None = None,
        **settings: Any,
    ) -> None:
        if workers != "auto" and workers < 1:
            raise ConfigError(f"`workers` must be at least 1 or `auto`, it is {workers}.")
        self.num_envs = len(seeds)
        self.kernel, self.loaded = kernel.fitted(loaded), loaded
        self._columns = (seeds, indices, which)
        self._settings = settings
        self._count = min(usable_cores() if workers == "auto" else workers, self.num_envs)
        self._choice = Choice() if workers == "auto" and self._count > 1 else None
        self._finals: list[Finals] = []  # of slices that are no more
        self._episodes: list[Episodes] = []
        self._cut(1 if workers == "auto" else self._count)
        head = self._envs[0]
        self.spec, self.backend, self.mask_width = head.spec, head.backend, head.mask_width

    def _cut(self, count: int) -> None:
        """Makes the slices, each with a thread but the first."""
        edges = np.linspace(0, self.num_envs, count + 1).round().astype(int).tolist()
        seeds, indices, which = self._columns
        self._slices = [slice(lo, hi) for lo, hi in pairwise(edges)]
        self._envs = [
            KernelVectorEnv(
                self.kernel,
                self.loaded,
                seeds[rows],
                indices[rows],
                which=None if which is None else which[rows],
                first=rows.start,
                **self._settings,
            )
            for rows in self._slices
        ]
        self._helpers = [_Helper() for _ in self._envs[1:]]

    def _cut_on_the_way(self, out: StepOut) -> None:
        """From one slice to many between two steps; `out` has the shape of their rows."""
        whole = self._envs[0]
        self._finals.append(whole.drain_finals())
        self._episodes.append(whole.drain_episodes())
        state = whole.get_state()
        self._cut(self._count)
        self.set_state(state, np.empty_like(out.obs))

    @property
    def workers(self) -> int:
        """Threads that step at the moment, the caller's included."""
        alone = self._choice is not None and not self._choice.threads
        return 1 if alone else len(self._envs)

    def step_rows(self, actions: NDArray[Any], out: StepOut, t: int = 0) -> None:
        choice = self._choice
        if choice is None and len(self._envs) == 1:
            self._envs[0].step_rows(actions, out, t)
            return
        if choice is not None and choice.threads and len(self._envs) == 1:
            self._cut_on_the_way(out)
        began = time.perf_counter()
        if len(self._envs) == 1:
            self._envs[0].step_rows(actions, out, t)
        else:
            tasks = [
                partial(env.step_rows, actions[rows], _rows(out, rows), t)
                for env, rows in self._each()
            ]
            self._run(tasks, choice is None or choice.threads)
        if choice is not None:
            choice.note(time.perf_counter() - began)

    def _run(self, tasks: Sequence[Callable[[], None]], threads: bool) -> None:
        if not threads:
            for task in tasks:
                task()
            return
        for helper, task in zip(self._helpers, tasks[1:], strict=True):
            helper.inbox.put(task)
        errors: list[BaseException | None] = [_attempt(tasks[0])]
        # All are waited for: nobody may still be writing when the caller goes on.
        errors += [helper.outbox.get() for helper in self._helpers]
        for error in errors:
            if error is not None:
                raise error

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        for env, rows in self._each():
            env.reset_rows(obs[rows], None if mask is None else mask[rows])
        self._finals, self._episodes = [], []

    def begin(
        self,
        copies: NDArray[np.int64],
        episodes: NDArray[np.int64],
        seed: int,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        for env, rows in self._each():
            mine = (copies >= rows.start) & (copies < rows.stop)
            if mine.any():
                part = None if mask is None else mask[rows]
                env.begin(copies[mine] - rows.start, episodes[mine], seed, obs[rows], part)

    def drain_finals(self) -> Finals:
        parts, self._finals = self._finals, []
        for env, rows in self._each():
            part = env.drain_finals()
            part.index[:, 1] += rows.start
            parts.append(part)
        index = np.concatenate([part.index for part in parts])
        order = np.lexsort((index[:, 1], index[:, 0]))
        return Finals(np.concatenate([part.obs for part in parts])[order], index[order])

    def drain_episodes(self) -> Episodes:
        parts, self._episodes = self._episodes, []
        for env, rows in self._each():
            part = env.drain_episodes()
            parts.append(part._replace(e=part.e + rows.start))
        return join_episodes(parts)

    def get_state(self) -> dict[str, NDArray[Any]]:
        return _join([env.get_state() for env in self._envs])

    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        for env, rows in self._each():
            part = {name: values[rows] for name, values in state.items()}
            env.set_state(part, obs[rows], None if mask is None else mask[rows])

    def read(self, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
        return _join([env.read(names) for env in self._envs])

    def close(self) -> None:
        for helper in self._helpers:
            helper.inbox.put(None)
        self._helpers = []

    def _each(self) -> list[tuple[KernelVectorEnv, slice]]:
        return list(zip(self._envs, self._slices, strict=True))


class _Helper:
    """A thread that runs tasks one after another; it ends with the process, or on None."""

    def __init__(self) -> None:
        self.inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.outbox: SimpleQueue[BaseException | None] = SimpleQueue()
        threading.Thread(
            target=_serve, args=(self.inbox, self.outbox), name="slipstream-env", daemon=True
        ).start()
        weakref.finalize(self, self.inbox.put, None)  # where nobody called `close`


def _serve(
    inbox: SimpleQueue[Callable[[], None] | None], outbox: SimpleQueue[BaseException | None]
) -> None:
    while (task := inbox.get()) is not None:
        outbox.put(_attempt(task))


def _attempt(task: Callable[[], None]) -> BaseException | None:
    try:
        task()
    except BaseException as error:
        return error
    return None


def _rows(out: StepOut, rows: slice) -> StepOut:
    mask = None if out.mask is None else out.mask[rows]
    obs, reward, terminated, truncated, valid, _ = out
    return StepOut(obs[rows], reward[rows], terminated[rows], truncated[rows], valid[rows], mask)


def _join(parts: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
