"""A worker's copies of a foreign environment: stepped one after another, restarted one by one."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from slipstream.core.errors import ConfigError, KernelError
from slipstream.vector.foreign import make_gymnasium, name_of
from slipstream.vector.foreign_copy import ForeignCopy
from slipstream.vector.forms import action_form, observation_form
from slipstream.vector.leaves import MisfitError, store
from slipstream.vector.loop import HOLD, RESET, RESET_KEEP_ALL
from slipstream.vector.process.block import Block
from slipstream.vector.process.faults import backoff
from slipstream.vector.process.job import Foreign, Job, register

_NOT_FINITE = "that holds NaN or infinity"
_FORGET_SECONDS = 60.0  # after which an earlier failure delays nothing


class HangError(BaseException):
    """A call took too long; raised inside it by the signal that the parent sends."""


class ForeignCopies:
    """Copies lo..hi-1, natively: what they show and pay is written as the environment gives it.

    Args:
        job: which they are.
        block: where they write.
        report: takes (kind, copy, episode, step, last action, text) of each failure.
        at_hand: called with a copy's place before each of its calls; None after it.
    """

    def __init__(
        self,
        job: Job,
        block: Block,
        report: Callable[..., None],
        at_hand: Callable[[int | None], None],
    ) -> None:
        assert isinstance(job.what, Foreign)
        self._job, self._what, self._report, self._at_hand = job, job.what, report, at_hand
        register(job.what.registered)
        self._name = name_of(job.what.env)
        form = observation_form(job.spec)
        self._leaves, self._actions = form.leaves, action_form(job.spec)
        self._tuple = form.description["kind"] == "tuple"
        part = {name: array[job.lo : job.hi] for name, array in block.arrays.items()
                if name != "control"}  # fmt: skip
        self._part = part
        self._obs = [part[f"obs.{i}"] for i in range(len(form.leaves))]
        self._final = [part[f"final.{i}"] for i in range(len(form.leaves))]
        n = job.hi - job.lo
        self._floats = [i for i, leaf in enumerate(form.leaves) if leaf.dtype.kind == "f"]
        alone = len(form.leaves) == 1 and not form.leaves[0].path
        self._only = form.leaves[0] if alone and form.leaves[0].sizes is None else None
        self._copies: list[ForeignCopy | None] = [None] * n
        self._asleep = [False] * n  # held or down
        self._due = [0.0] * n
        self._failures = [0] * n
        self._last = [0.0] * n

    def make(self) -> None:
        """Makes all copies; one that fails is reported and down."""
        for i in range(len(self._copies)):
            try:
                self._remake(i)
            except BaseException as error:
                self._failed(i, error)

    def _remake(self, i: int) -> None:
        job, what = self._job, self._what
        self._at_hand(i)
        old, self._copies[i] = self._copies[i], None
        if old is not None:
            with suppress(Exception, SystemExit):
                old.env.close()
        env = make_gymnasium(what.env, what.kwargs)
        for name, own in (
            ("observation_space", job.spec.native_observation),
            ("action_space", job.spec.native_action),
        ):
            if getattr(env, name) != own:
                raise ConfigError(
                    f"gym:{self._name}: environment {job.lo + i} has the {name} "
                    f"{getattr(env, name)}, and the first one {own}: all copies must have the same."
                )
        self._copies[i] = ForeignCopy(env, self._name, job.lo + i, what.limit)
        self._at_hand(None)

    def begin(self) -> None:
        """Begins the episodes of the copies that are selected."""
        self._clear(valid=True)
        for i in np.flatnonzero(self._part["selected"]).tolist():
            try:
                if self._copies[i] is None:
                    self._remake(i)
                self._begin(i)
            except BaseException as error:
                self._fault(i, error, running=False)

    def start(self, same: bool) -> None:
        """After a loss: begins with the episodes that were lost, or those after them."""
        for i, held in enumerate(self._part["held"].tolist()):
            self._asleep[i] = held
            if held or self._copies[i] is None:
                continue
            if same:
                self._again(i)
            try:
                self._begin(i)
            except BaseException as error:
                self._fault(i, error, running=False)

    def step(self, t: int) -> None:
        """Steps every copy; one that ends begins its next episode at once."""
        part, at_hand, asleep = self._part, self._at_hand, self._asleep
        self._clear(valid=True)
        rows, reward, log = part["actions"], part["reward"], part["log"]
        natives, longest, only = self._natives(rows), log.shape[1], self._only
        for i, copy in enumerate(self._copies):
            if asleep[i]:
                self._wake(i)
                continue
            assert copy is not None
            try:
                at_hand(i)
                seen, paid, terminated, truncated = copy.step(natives[i], rows[i], t)
                at_hand(None)
                if (
                    only is not None
                    and type(seen) is np.ndarray
                    and seen.shape == only.shape
                    and seen.dtype == only.dtype
                ):
                    self._obs[0][i] = seen
                else:
                    self._store(i, copy, "step", seen)
                if copy.length < longest:
                    log[i, copy.length] = rows[i]
                truncated = copy.count(paid, truncated)
                reward[i] = paid
                if terminated or truncated:
                    self._end(i, copy, terminated, truncated)
            except BaseException as error:
                self._fault(i, error)
        self._look()
        part["ret"][:] = [0.0 if copy is None else copy.ret for copy in self._copies]
        part["length"][:] = [0 if copy is None else copy.length for copy in self._copies]

    def replay(self) -> None:
        """Takes `length` actions of the log in the episode before `episode` again.

        `astray` where that cannot be done; what they show then is compared by the parent.
        """
        part = self._part
        lengths, logs = part["length"].copy(), part["log"].copy()
        self._clear(valid=True)
        for i in np.flatnonzero(part["selected"]).tolist():
            part["astray"][i] = True
            try:
                if self._copies[i] is None:
                    self._remake(i)
                part["episode"][i] -= np.uint64(1)
                self._begin(i)
                copy = self._copies[i]
                assert copy is not None
                for row in logs[i, : int(lengths[i])].astype(part["actions"].dtype):
                    self._at_hand(i)
                    seen, paid, *ends = copy.step(self._actions.native(row), row, 0)
                    self._at_hand(None)
                    self._store(i, copy, "step", seen)
                    if copy.length < part["log"].shape[1]:
                        part["log"][i, copy.length] = row
                    if copy.count(paid, ends[1]) or ends[0]:
                        break  # the episode went on when it was saved
                else:
                    part["astray"][i] = False
                    part["ret"][i], part["length"][i] = copy.ret, copy.length
            except BaseException:
                self._at_hand(None)

    def close(self) -> None:
        """Closes the environments."""
        for copy in self._copies:
            if copy is not None:
                with suppress(Exception, SystemExit):
                    copy.env.close()

    def _clear(self, valid: bool) -> None:
        part = self._part
        part["valid"][:] = valid
        part["reward"][:] = 0.0
        for name in ("terminated", "truncated", "ended", "kept", "lost"):
            part[name][:] = False

    def _natives(self, rows: Any) -> list[Any]:
        """Actions as the environment takes them, one for each copy."""
        first = self._actions.single
        if first is not None:
            return [n + first for n in rows[:, 0].tolist()]
        return [self._actions.native(row) for row in rows]

    def _begin(self, i: int) -> None:
        part, copy = self._part, self._copies[i]
        assert copy is not None
        episode = part["episode"][i]
        part["episode"][i] += np.uint64(1)
        part["held"][i] = part["down"][i] = self._asleep[i] = False
        part["ret"][i], part["length"][i] = 0.0, 0
        self._at_hand(i)
        first = copy.reset(part["seed"][i], part["index"][i], episode)
        self._at_hand(None)
        self._store(i, copy, "reset", first)
        if not self._finite(i):
            raise copy.misfit("reset", MisfitError(_NOT_FINITE))

    def _again(self, i: int) -> None:
        """The next episode is the present one."""
        self._part["episode"][i] -= self._part["episode"][i] > 0

    def _store(self, i: int, copy: ForeignCopy, doing: str, seen: Any) -> None:
        if self._tuple and isinstance(seen, (list, np.ndarray)):
            seen = tuple(seen)  # as Gymnasium takes it
        try:
            for leaf, places in zip(self._leaves, self._obs, strict=True):
                store(leaf, seen, places[i : i + 1].reshape(leaf.shape))
        except MisfitError as error:
            raise copy.misfit(doing, error) from None

    def _finite(self, i: int) -> bool:
        with np.errstate(over="ignore"):
            return all(
                bool(np.isfinite(self._obs[leaf][i].astype(np.float32)).all())
                for leaf in self._floats
            )

    def _unreal(self, i: int, copy: ForeignCopy) -> KernelError:
        """Takes back a step that was counted before its observation was looked at."""
        copy.length -= 1
        copy.ret -= float(self._part["reward"][i])
        return copy.misfit("step", MisfitError(_NOT_FINITE))

    def _look(self) -> None:
        """One product over all copies says whether any observation is not finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            for leaf in self._floats:
                flat = self._obs[leaf].reshape(-1).astype(np.float32, copy=False)
                if np.isfinite(flat.dot(flat)):
                    continue
                for i, copy in enumerate(self._copies):
                    if copy is None or self._asleep[i] or self._finite(i):
                        continue
                    self._fault(i, self._unreal(i, copy))

    def _end(self, i: int, copy: ForeignCopy, terminated: bool, truncated: bool) -> None:
        part, at_end = self._part, self._job.at_end
        if not self._finite(i):
            raise self._unreal(i, copy)
        part["terminated"][i], part["truncated"][i], part["ended"][i] = terminated, truncated, True
        part["ended_ret"][i], part["ended_length"][i] = copy.ret, copy.length
        if at_end == RESET_KEEP_ALL or (at_end == RESET and not terminated):
            part["kept"][i] = True
            for final, obs in zip(self._final, self._obs, strict=True):
                final[i] = obs[i]
        if at_end == HOLD:
            part["held"][i] = self._asleep[i] = True
            return
        try:
            self._begin(i)
        except BaseException as error:
            self._fault(i, error, running=False)

    def _fault(self, i: int, error: BaseException, running: bool = True) -> None:
        """A call of a copy failed: its step is not real, its episode is lost."""
        part, copy, hold = self._part, self._copies[i], self._job.at_end == HOLD
        if running:
            part["valid"][i] = part["terminated"][i] = False
            part["truncated"][i] = part["lost"][i] = not hold
            part["reward"][i], part["kept"][i], part["ended"][i] = 0.0, False, False
            if copy is not None:
                part["ended_ret"][i], part["ended_length"][i] = copy.ret, copy.length
        self._failed(i, error)
        if isinstance(error, HangError):
            self._copies[i] = None  # nobody knows what closing it would do
        if self._job.restart:
            self._wake(i, now=True)

    def _failed(self, i: int, error: BaseException) -> None:
        """Reports a failure; the copy is down."""
        self._at_hand(None)
        part, copy, now = self._part, self._copies[i], time.monotonic()
        episode, length = (0, 0) if copy is None else (copy.episode, copy.length)
        kind = "hung" if isinstance(error, HangError) else "raised"
        text = str(error)
        if kind == "raised":
            cause = error.__cause__ or error
            text += "\n" + "".join(traceback.format_exception(cause))
        action = part["actions"][i].ravel().tolist()
        self._report(kind, self._job.lo + i, episode, length, action, text)
        self._failures[i] = self._failures[i] + 1 if now - self._last[i] < _FORGET_SECONDS else 1
        self._last[i], self._due[i] = now, now + backoff(self._failures[i])
        self._asleep[i] = part["down"][i] = True
        for obs in self._obs:
            obs[i] = 0

    def _wake(self, i: int, now: bool = False) -> None:
        """A copy that is down is made anew when it is time; one that is held goes on waiting."""
        part = self._part
        if part["held"][i]:
            return
        if not now:
            part["valid"][i] = False
        if not self._job.restart or time.monotonic() < self._due[i]:
            return
        try:
            self._remake(i)
            if self._job.at_end == HOLD:
                self._again(i)
            self._begin(i)
        except BaseException as error:
            self._failed(i, error)
