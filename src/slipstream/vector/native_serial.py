"""Native copies stepped one after another in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.bounds import check_count
from slipstream.core.errors import ConfigError
from slipstream.vector.info_form import Signature
from slipstream.vector.native import NativeEnv
from slipstream.vector.native_form import native_layout
from slipstream.vector.process.asked import different_rows
from slipstream.vector.process.faults import Fault, FaultLog, FaultPolicy
from slipstream.vector.process.job import AssignedNative, Assignment
from slipstream.vector.process.native_copies import NativeCopies
from slipstream.vector.told import Told


class NativeSerialEnv(NativeEnv):
    """See `native_env`."""

    backend = "serial"

    def __init__(
        self, probe: Any, what: AssignedNative, num_envs: int, at_end: int, policy: FaultPolicy
    ) -> None:
        super().__init__(probe, what, num_envs, at_end)
        layout = native_layout(what, num_envs)
        self.arrays = layout.views(bytearray(layout.size))
        self.ledger = FaultLog(policy, num_envs, what.name)
        restart = policy.on_fault == "restart"
        job = Assignment(
            what, None, layout, 0, 1, ((0, num_envs),), at_end, restart, spin=0.0
        )  # fmt: skip
        self._copies = NativeCopies(job, self.arrays, self._report, _nothing)
        try:
            self._copies.adopt(probe)
            self._copies.make_some(range(1, num_envs))
            self.ledger.check_any()
        except BaseException:
            self._copies.close()
            raise
        self._closed = self._begun = False
        self._arrived: list[int] = []  # were stepped, and nobody has received them yet

    def _report(self, kind: str, copy: int, *rest: Any) -> None:
        self.ledger.add(Fault(kind, copy, 0, 0, *rest))

    def reset_async(
        self,
        seeds: Sequence[int | None] | None = None,
        options: Any = None,
        selected: NDArray[np.bool_] | None = None,
    ) -> None:
        self._open()
        self._refuse_sent(self._arrived)
        self._told.forget()
        self._begun = True
        self.arrays["selected"][:] = True if selected is None else selected
        self._copies.reset(list(seeds or [None] * self.num_envs), self._options(options))

    def step_async(self, actions: Any) -> None:
        self._open()
        self._refuse_sent(self._arrived)
        array, each = self._actions_of(actions)
        self._told.forget()
        if array is not None:
            self.arrays["act"][...] = array
        else:
            self._copies.act(dict(enumerate(each or [])))
        self._copies.step(0)

    def send(self, actions: Any, copies: Any = None) -> None:
        """Steps them at once; `recv` gives them in this order."""
        self._open()
        rows = different_rows(copies, self.num_envs)
        self._refuse_sent(np.intersect1d(rows, self._arrived).tolist())
        array = self._actions.as_array(actions, len(rows))
        if array is not None:
            self.arrays["act"][rows] = array
        else:
            each = self._actions.split(actions, len(rows))
            self._copies.act(dict(zip(rows.tolist(), each, strict=True)))
        for row in rows.tolist():
            self._copies.step_one(row)
        self._arrived += rows.tolist()

    def recv(self, count: int | None = None, timeout: float | None = None) -> NDArray[np.int64]:
        self._open()
        count = len(self._arrived) if count is None else count
        if not 1 <= count <= len(self._arrived):
            raise ConfigError(
                f"`recv` was asked for {count} copies, and {len(self._arrived)} were sent an "
                "action."
            )
        ready = np.array(self._arrived[:count], np.int64)
        del self._arrived[:count]
        self._told.forget()
        self.wait()
        return ready

    @property
    def under_way(self) -> NDArray[np.bool_]:
        return np.isin(np.arange(self.num_envs), self._arrived)

    def _refuse_sent(self, busy: list[int]) -> None:
        if busy:
            raise ConfigError(
                f"Copies {busy[:8]} were sent an action that nobody has received the outcome of; "
                "`recv` it first."
            )

    def wait(self, timeout: float | None = None) -> None:
        self._open()
        self.ledger.good(self.arrays["valid"])
        self.ledger.check()

    def _ask_told(self, selected: NDArray[np.bool_], signatures: Sequence[Signature]) -> list[Told]:
        told = self._copies.told(signatures)
        return deepcopy(told)  # environments may fill the same dicts again

    def _objects(self) -> list[Any]:
        return self._copies.objects()

    def call(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        copies: Sequence[int] | None = None,
    ) -> list[Any]:
        self._open()
        rows = range(self.num_envs) if copies is None else copies
        return self._copies.call([(row, name, tuple(args), dict(kwargs or {})) for row in rows])

    def set_attr(
        self, name: str, values: Sequence[Any], copies: Sequence[int] | None = None
    ) -> None:
        self._open()
        rows = range(self.num_envs) if copies is None else copies
        self._copies.assign(name, list(zip(rows, values, strict=True)))

    def resize(self, num_envs: int) -> None:
        self._open()
        num_envs = check_count("num_envs", num_envs)
        layout = native_layout(self.what, num_envs)
        old, self.arrays = self.arrays, layout.views(bytearray(layout.size))
        before, common = self.num_envs, min(self.num_envs, num_envs)
        for name, array in self.arrays.items():
            array[:common] = old[name][:common]
        self.num_envs = num_envs
        self._told.forget()
        self.ledger.resize(num_envs)
        if num_envs < before:
            self._copies.shrink(self.arrays, num_envs)
        else:
            self._copies.grow(self.arrays, before, num_envs, self._begun)
        self.ledger.check()

    def drain_faults(self) -> list[Fault]:
        return self.ledger.drain()

    def _open(self) -> None:
        if self._closed:
            raise ConfigError(f"{self.what.name} was closed; make it again to use it.")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._copies.close()


def _nothing(copy: int | None) -> None:
    """Nobody watches."""
