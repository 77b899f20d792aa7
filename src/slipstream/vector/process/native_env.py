"""Native copies in worker processes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.vector.info_form import Signature
from slipstream.vector.info_table import NOTHING
from slipstream.vector.native import NativeEnv
from slipstream.vector.native_form import native_layout
from slipstream.vector.process.copies import FRESH
from slipstream.vector.process.crowd import Crowd
from slipstream.vector.process.faults import Fault, FaultPolicy
from slipstream.vector.process.job import AssignedNative, Assignment
from slipstream.vector.process.layout import Layout
from slipstream.vector.process.link import UP, Link
from slipstream.vector.process.process_copies import ProcessCopies
from slipstream.vector.told import Told

_PAUSE_SECONDS = 0.01  # between two tries where no copy at all can be stepped


class NativeProcessEnv(NativeEnv):
    """See `native_env`."""

    backend = "process"

    def __init__(
        self,
        probe: Any,
        what: AssignedNative,
        num_envs: int,
        at_end: int,
        policy: FaultPolicy,
        *,
        workers: int | None = None,
        method: str = "forkserver",
        crowd: Crowd | None = None,
    ) -> None:
        super().__init__(probe, what, num_envs, at_end)
        self._policy = policy
        self._pending: tuple[str, Any] | None = None
        self._found: list[Any] = []  # observations without a place in the block
        self._assigned: dict[int, dict[str, Any]] = {}  # attributes by row: for new workers
        self.copies = ProcessCopies(
            native_layout(what, num_envs),
            num_envs,
            self._job,
            name=what.name,
            leave=self._leave,
            describe=self._describe,
            workers=workers,
            method=method,
            policy=policy,
            crowd=crowd,
        )
        self.copies.start()

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:  # type: ignore[override]  # it may be replaced
        """Of the block."""
        arrays = self.copies.block.arrays
        if not arrays:
            self.copies.check_open()
        return arrays

    def _job(
        self,
        layout: Layout,
        number: int,
        workers: int,
        ranges: tuple[tuple[int, int], ...],
        spin: float,
    ) -> Assignment:
        own = {row: self._assigned[row] for pair in ranges for row in range(*pair)
               if row in self._assigned}  # fmt: skip
        return Assignment(
            replace(self.what, assigned=own),
            None,
            layout,
            number,
            workers,
            ranges,
            self.at_end,
            self._policy.on_fault == "restart",
            spin,
        )

    def _describe(self, copy: int) -> tuple[int, int, list[Any]]:
        acted = self.arrays.get("act")
        return 0, 0, [] if acted is None else np.ravel(acted[copy]).tolist()

    def _leave(self, at: NDArray[np.int64]) -> None:
        """They go on showing what they showed last."""

    def reset_async(
        self,
        seeds: Sequence[int | None] | None = None,
        options: Any = None,
        selected: NDArray[np.bool_] | None = None,
    ) -> None:
        self._idle()
        self.copies.check_open()
        self.copies.asked.stop()
        self.copies.ready()
        every, options = list(seeds or [None] * self.num_envs), self._options(options)
        arrays = self.arrays
        arrays["selected"][:] = True if selected is None else selected
        arrays["valid"][:], arrays["reward"][:] = True, 0.0
        for name in FRESH:  # here: workers without a selected copy are not called
            arrays[name][:] = False
        self.copies.losses.shown(arrays["selected"])
        calls = []
        for link in self.copies.rows_of(self.arrays["selected"]):
            rows = range(self.num_envs)[link.rows] if isinstance(link.rows, slice) else link.rows
            calls.append((link, ([every[r] for r in rows], [options[r] for r in rows])))
        self._told.forget()
        self.copies.workers.begin_talk("reset", calls)
        self._pending = ("reset", calls)

    def step_async(self, actions: Any) -> None:
        self._idle()
        self.copies.check_open()
        array, each = self._actions_of(actions)
        self.copies.asked.stop()  # refuses while steps are under way, which read these actions
        self._told.forget()
        if array is not None:
            self.arrays["act"][...] = array
        self._begin_step(each)
        self._pending = ("step", each)

    def _begin_step(self, each: list[Any] | None) -> None:
        if each is not None:
            self._hand_actions(dict(enumerate(each)))
        self.copies.begin_step(0)

    def _hand_actions(self, by_row: Mapping[int, Any]) -> None:
        """Those that have no place in the block."""
        calls = []
        for link in self.copies.links:
            own = np.arange(self.num_envs)[link.rows].tolist()
            part = {row: by_row[row] for row in own if row in by_row}
            if part:
                calls.append((link, (part,)))
        self.copies.talk("act", calls, spare=True)

    def send(self, actions: Any, copies: Any = None) -> None:
        self._idle()
        self.copies.check_open()
        rows = self.copies.asked.idle_rows(copies)
        array = self._actions.as_array(actions, len(rows))
        if array is not None:
            self.arrays["act"][rows] = array
        else:
            each = self._actions.split(actions, len(rows))
            self._hand_actions(dict(zip(rows.tolist(), each, strict=True)))
        self.copies.asked.send(rows)

    def recv(self, count: int | None = None, timeout: float | None = None) -> NDArray[np.int64]:
        self.copies.check_open()
        asked = self.copies.asked
        ready = asked.receive(int(asked.out.sum()) if count is None else count, timeout)
        self._told.forget()
        self.copies.ledger.good(self.arrays["valid"][ready], ready)
        self.copies.ledger.check()
        return ready

    @property
    def under_way(self) -> NDArray[np.bool_]:
        return self.copies.asked.out

    @property
    def writing(self) -> NDArray[np.bool_]:
        return self.under_way | self.copies.losses.unseen

    def wait(self, timeout: float | None = None) -> None:
        self.copies.check_open()
        if self._pending is None:
            self.copies.ledger.check()
            return
        what, rest = self._pending
        until = None if timeout is None else time.monotonic() + timeout
        if what == "reset":
            if not self.copies.workers.wait(timeout):
                raise TimeoutError(f"`reset` is not over after {timeout:g} s.")
            self._pending = None
            self._end_reset(rest)
        else:
            while True:
                left = None if until is None else max(0.0, until - time.monotonic())
                if not self.copies.end_step(left):
                    raise TimeoutError(f"`step` is not over after {timeout:g} s.")
                if self.copies.stepped or self.arrays["lost"].any():
                    break
                if self._policy.on_fault == "raise":
                    break
                time.sleep(_PAUSE_SECONDS)  # all are being made anew
                self.copies.ledger.check()
                self._begin_step(rest)
            self._pending = None
        self.copies.ledger.good(self.arrays["valid"])
        self.copies.ledger.check()

    def _end_reset(self, calls: list[tuple[Link, tuple[Any, ...]]]) -> None:
        """Takes the answers; workers in the place of those that were lost are asked again."""
        workers = self.copies.workers
        while True:
            workers.end_talk("reset", [link for link, _ in calls], spare=True)
            calls = [call for call in calls if call[0].state != UP]
            if not calls:
                self.copies.begun = True
                return
            self.copies.ready()
            self.copies.losses.shown(self.arrays["selected"])
            workers.begin_talk("reset", calls)
            workers.wait()

    def _idle(self) -> None:
        """Ends what was begun and never awaited; its outcome is nobody's."""
        if self._pending is not None:
            self.wait()

    def _ask_told(self, selected: NDArray[np.bool_], signatures: Sequence[Signature]) -> list[Told]:
        links, told = self.copies.rows_of(selected), list[Told]()
        parts = self.copies.talk("told", [(link, (signatures,)) for link in links], spare=True)
        for link, part in zip(links, parts, strict=True):
            if part is None:  # what it said is lost with the worker
                for name in ("told", "told_last"):
                    self.arrays[name][link.rows] = NOTHING
            told += part or []
        return told

    def _objects(self) -> list[Any]:
        calls: list[tuple[Link, tuple[Any, ...]]] = [(link, ()) for link in self.copies.links]
        found, new = self._found, self.num_envs - len(self._found)
        if new > 0:  # of copies that were never shown
            found += [None] * new
            parts = self.copies.insist("objects", calls)
        else:
            parts = self.copies.talk("objects", calls, spare=True)
        for (link, _), part in zip(calls, parts, strict=True):
            if part is not None:  # else its copies go on showing what they showed last
                for row, value in zip(np.arange(self.num_envs)[link.rows], part, strict=True):
                    found[row] = value
        return found[: self.num_envs]

    def call(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        copies: Sequence[int] | None = None,
    ) -> list[Any]:
        wanted = list(range(self.num_envs) if copies is None else copies)
        values = self._each(
            "call", {row: (row, name, tuple(args), dict(kwargs or {})) for row in wanted}
        )
        return [values[row] for row in wanted]

    def set_attr(
        self, name: str, values: Sequence[Any], copies: Sequence[int] | None = None
    ) -> None:
        wanted = range(self.num_envs) if copies is None else copies
        self._each("assign", dict(zip(wanted, zip(wanted, values, strict=True), strict=True)), name)
        for row, value in zip(wanted, values, strict=True):
            self._assigned.setdefault(row, {})[name] = value

    def _each(self, method: str, by_row: Mapping[int, Any], *first: Any) -> dict[int, Any]:
        """Calls a method of every worker with what its copies are to have."""
        self._idle()
        self.copies.ready()
        calls, rows = [], []
        for link in self.copies.links:
            own = [row for row in np.arange(self.num_envs)[link.rows].tolist() if row in by_row]
            if own:
                calls.append((link, (*first, [by_row[row] for row in own])))
                rows.append(own)
        answers = self.copies.talk(method, calls)
        if method == "assign":
            return {}
        return {
            row: value
            for own, part in zip(rows, answers, strict=True)
            for row, value in zip(own, part, strict=True)
        }

    def resize(self, num_envs: int) -> None:
        self._idle()
        self._told.forget()
        del self._found[num_envs:]
        self._assigned = {row: own for row, own in self._assigned.items() if row < num_envs}
        self.copies.resize(num_envs, native_layout(self.what, num_envs))
        self.num_envs = num_envs

    def drain_faults(self) -> list[Fault]:
        return self.copies.ledger.drain()

    def close(self) -> None:
        self.copies.close()
