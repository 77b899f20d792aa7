"""A kernel's copies in slices, each stepped by a thread of its own when that pays."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np
import psutil
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.kernel import Kernel, Loaded
from slipstream.vector.kernel_env import KernelVectorEnv
from slipstream.vector.vector_env import Episodes, Finals, StepOut, VectorEnv

_TRIALS = 8  # steps measured each way before choosing
_HOLD = 2_000  # steps until the choice is measured again
_LEAST_SECONDS = 1e-4  # handing work to a thread and back costs some 50 microseconds
_GAIN = 1.15  # threads must win by this much: they take a core from somebody


def usable_cores() -> int:
    """Physical cores this process may use: two threads on one core only take turns."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    usable = usable or 1
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


class ThreadedVectorEnv(VectorEnv):
    """`KernelVectorEnv` in `workers` slices; the caller's thread steps the first one itself.

    The number of workers never changes a trajectory, so ``"auto"`` may choose while running: it
    times some steps with and without threads, keeps what was faster, and looks again from time to
    time. Small batches and busy machines are stepped by the caller alone.

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
        count = usable_cores() if workers == "auto" else workers
        count = max(1, min(count, self.num_envs))
        edges = np.linspace(0, self.num_envs, count + 1).round().astype(int).tolist()
        self._slices = [slice(lo, hi) for lo, hi in pairwise(edges)]
        self._envs = [
            KernelVectorEnv(
                kernel,
                loaded,
                seeds[rows],
                indices[rows],
                which=None if which is None else which[rows],
                first=rows.start,
                **settings,
            )
            for rows in self._slices
        ]
        head = self._envs[0]
        self.kernel, self.loaded = kernel, loaded
        self.spec, self.backend, self.mask_width = head.spec, head.backend, head.mask_width
        self._choice = _Choice() if workers == "auto" and count > 1 else None
        self._helpers = [_Helper() for _ in self._envs[1:]]

    @property
    def workers(self) -> int:
        """Threads that step at the moment, the caller's included."""
        alone = self._choice is not None and not self._choice.threads
        return 1 if alone else len(self._envs)

    def step(self, actions: NDArray[Any], out: StepOut, t: int = 0) -> None:
        tasks = [
            partial(env.step, actions[rows], _rows(out, rows), t)
            for env, rows in zip(self._envs, self._slices, strict=True)
        ]
        choice = self._choice
        if choice is None:
            self._run(tasks, len(tasks) > 1)
            return
        began = time.perf_counter()
        self._run(tasks, choice.threads)
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

    def reset(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        for env, rows in self._each():
            env.reset(obs[rows], None if mask is None else mask[rows])

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
        parts = [env.drain_finals() for env in self._envs]
        for part, rows in zip(parts, self._slices, strict=True):
            part.index[:, 1] += rows.start
        index = np.concatenate([part.index for part in parts])
        order = np.lexsort((index[:, 1], index[:, 0]))
        return Finals(np.concatenate([part.obs for part in parts])[order], index[order])

    def drain_episodes(self) -> Episodes:
        parts = [env.drain_episodes() for env in self._envs]
        starts = [rows.start for rows in self._slices]
        e = np.concatenate([part.e + lo for part, lo in zip(parts, starts, strict=True)])
        t = np.concatenate([part.t for part in parts])
        order = np.lexsort((e, t))
        ret = np.concatenate([part.ret for part in parts])[order]
        length = np.concatenate([part.length for part in parts])[order]
        metrics = {
            name: np.concatenate([part.metrics[name] for part in parts])[order]
            for name in parts[0].metrics
        }
        return Episodes(t[order], e[order], ret, length, metrics)

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


class _Choice:
    """Alone or with threads: some steps are timed each way, then the faster way is kept a while.

    Attributes:
        threads: whether the next step uses threads.
    """

    def __init__(self) -> None:
        self.threads = False
        self._left = _TRIALS  # steps of this trial, or of the choice that follows it
        self._chosen = False
        self._alone = self._sum = 0.0

    def note(self, seconds: float) -> None:
        """Hears how long the last step took, and decides about the next one."""
        self._sum += seconds
        self._left -= 1
        if self._left:
            return
        spent, self._sum = self._sum, 0.0
        if self._chosen:
            self._chosen, self.threads, self._left = False, False, _TRIALS
        elif not self.threads and spent >= _TRIALS * _LEAST_SECONDS:
            self._alone, self.threads, self._left = spent, True, _TRIALS
        else:
            self.threads = self.threads and spent * _GAIN < self._alone
            self._chosen, self._left = True, _HOLD


def _rows(out: StepOut, rows: slice) -> StepOut:
    mask = None if out.mask is None else out.mask[rows]
    obs, reward, terminated, truncated, valid, _ = out
    return StepOut(obs[rows], reward[rows], terminated[rows], truncated[rows], valid[rows], mask)


def _join(parts: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
