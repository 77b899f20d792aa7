"""Kernels in worker processes: the same loop over parts of the copies, each part in its process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.discover import load_kernel
from slipstream.vector.loop import RESET
from slipstream.vector.process.faults import FaultPolicy
from slipstream.vector.process.job import AssignedKernel
from slipstream.vector.process.link import Link
from slipstream.vector.process.process_env import ProcessVectorEnv


class KernelProcessEnv(ProcessVectorEnv):
    """Copies of a kernel; every worker loads its data, and a lost one begins its copies again.

    Args:
        target: the kernel's name or path.
        seeds, indices: as for `ProcessVectorEnv`.
        settings: what a user would write under `env:`.
        split: whose Params records the copies use.
        kernel_backend: "compiled" or "serial", within the workers.
        at_end, workers, method, policy: as for `ProcessVectorEnv`.
    """

    def __init__(
        self,
        target: str,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        *,
        settings: Mapping[str, Any] | None = None,
        split: str = "train",
        kernel_backend: str = "compiled",
        at_end: int = RESET,
        workers: int | None = None,
        method: str = "forkserver",
        policy: FaultPolicy = FaultPolicy(),  # noqa: B008  (a tuple)
    ) -> None:
        kernel = load_kernel(target)
        settings = dict(settings or {})
        loaded = kernel.load(kernel.configure(settings))
        kernel = kernel.fitted(loaded)
        spec = kernel.spec(loaded.params[split][0], loaded.data)
        super().__init__(
            AssignedKernel(target, settings, split, kernel_backend),
            spec,
            seeds,
            indices,
            name=f"kernel `{kernel.name}`",
            workers=workers,
            at_end=at_end,
            method=method,
            policy=policy,
            mask_width=0 if kernel.mask is None else spec.choices,
        )

    def _begin(self, copies: NDArray[np.int64], episodes: NDArray[np.int64], seed: int) -> None:
        calls = [
            (link, (numbers, episodes[own], seed)) for link, own, numbers in self._dealt(copies)
        ]
        self.copies.insist("begin_at", calls)
        self.copies.losses.shown(copies)

    def _dealt(
        self, copies: NDArray[np.int64]
    ) -> Iterator[tuple[Link, NDArray[np.bool_], NDArray[np.int64]]]:
        """Workers that have some of these copies, which of them, and their numbers there."""
        for link in self.workers.links:
            lo, hi = link.ranges[0]
            own = (copies >= lo) & (copies < hi)
            if own.any():
                yield link, own, copies[own] - lo

    def restart(
        self,
        copies: NDArray[np.int64],
        seeds: NDArray[np.uint64] | None,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.copies.ready()
        calls = [
            (link, (numbers, None if seeds is None else seeds[own]))
            for link, own, numbers in self._dealt(copies)
        ]
        self._over[copies] = self.block["held"][copies] = False
        self.copies.insist("restart", calls)
        self.copies.losses.shown(copies)
        self.copies.begun = True
        self._show_some(copies, obs, mask)

    def hold(self, held: NDArray[np.bool_]) -> None:
        self._over[:] = self.block["held"][:] = held

    def get_state(self) -> dict[str, NDArray[Any]]:
        self.copies.ready()
        states = self._all("get_state")
        return {name: np.concatenate([state[name] for state in states]) for name in states[0]}

    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.copies.ready()
        self._finals, self._episodes = [], []
        parts = [
            (link, ({name: values[link.rows] for name, values in state.items()},))
            for link in self.workers.links
        ]
        self.copies.insist("set_state", parts)
        self.copies.losses.shown(slice(None))
        self._over[:] = self.block["held"]
        self.copies.begun = True
        self._show(obs, mask)

    def read(self, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
        if not names:
            return {}
        parts = self._all("read", names)
        return {name: np.concatenate([part[name] for part in parts]) for name in names}

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        return self.copies.insist(method, [(link, arguments) for link in self.workers.links])
