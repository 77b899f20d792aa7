"""A worker's copies of a kernel: the batch loop over the worker's part of the block."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.core.discover import load_kernel
from slipstream.vector.kernel_env import KernelVectorEnv
from slipstream.vector.process.block import Block
from slipstream.vector.process.job import AssignedKernel, Assignment
from slipstream.vector.vector_env import StepOut


class KernelCopies:
    """Copies lo..hi-1 of a kernel, which fail together: a kernel's error is a kernel's error."""

    def __init__(self, job: Assignment, block: Block) -> None:
        assert isinstance(job.what, AssignedKernel)
        ((lo, hi),) = job.ranges
        self._part = {name: array[lo:hi] for name, array in block.arrays.items()}
        part, what = self._part, job.what
        kernel = load_kernel(what.target)
        self.env = KernelVectorEnv(
            kernel,
            kernel.load(kernel.configure(dict(what.settings))),
            part["seed"].copy(),
            part["index"].copy(),
            split=what.split,
            backend=what.backend,
            stagger=False,
            at_end=job.at_end,
            first=lo,
        )
        self._mask = part["mask"] if self.env.mask_width else None
        self._out = StepOut(
            part["obs.0"], part["reward"], part["terminated"], part["truncated"], part["valid"],
            self._mask,
        )  # fmt: skip

    def make(self) -> None:
        """They are made."""

    def begin(self) -> None:
        """Begins the next episode everywhere."""
        self._clear()
        self.env.reset_rows(self._out.obs, self._mask)
        self._note()

    def start(self, same: bool) -> None:
        """After a loss: begins with the episodes that were lost, or those after them."""
        part, book = self._part, self.env.book
        if same:
            book["held"] = part["held"]
            for i in np.flatnonzero(~part["held"]):
                index = np.array([part["index"][i]], np.int64)
                seed = int(part["seed"][i])
                self.env.begin(np.array([i]), index, seed, self._out.obs, self._mask)
        else:
            book["episode"] = part["episode"]
            self.env.reset_rows(self._out.obs, self._mask)
        self._note()

    def begin_at(self, copies: Any, episodes: Any, seed: int) -> None:
        """`VectorEnv.begin` for some of these copies."""
        self._clear()
        self.env.begin(copies, episodes, seed, self._out.obs, self._mask)
        self._note()

    def restart(self, copies: Any, seeds: Any) -> None:
        """`VectorEnv.restart` for some of these copies."""
        self._clear()
        self.env.restart(copies, seeds, self._out.obs, self._mask)
        self._note()

    def step(self, t: int) -> None:
        """Steps every copy."""
        self._clear()
        part = self._part
        self.env.book["held"] = part["held"]
        self.env.step_rows(part["actions"], self._out, t)
        ended, finals = self.env.drain_episodes(), self.env.drain_finals()
        part["ended"][ended.e] = True
        part["ended_ret"][ended.e], part["ended_length"][ended.e] = ended.ret, ended.length
        for k, values in enumerate(ended.metrics.values()):
            part["metrics"][ended.e, k] = values
        at = finals.index[:, 1]
        part["kept"][at] = True
        part["final.0"][at] = finals.obs
        self._note()

    def get_state(self) -> dict[str, Any]:
        """Of these copies."""
        return self.env.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from it."""
        self._clear()
        self.env.set_state(state, self._out.obs, self._mask)
        self._note()

    def read(self, names: tuple[str, ...]) -> dict[str, Any]:
        """STATE fields."""
        return self.env.read(names)

    def close(self) -> None:
        """Nothing is held."""

    def _clear(self) -> None:
        self._part["valid"][:] = True
        for name in ("ended", "kept", "lost"):
            self._part[name][:] = False

    def _note(self) -> None:
        """Where they stand, for the worker that may have to follow this one."""
        part, book = self._part, self.env.book
        for name in ("seed", "index", "episode", "length"):
            part[name][:] = book[name]
        part["ret"][:] = book["ret"]
        part["held"][:] = book["held"]
