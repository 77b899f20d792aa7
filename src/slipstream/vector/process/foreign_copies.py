"""A worker's copies of a foreign environment that somebody trains on: seeded by their episodes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, KernelError
from slipstream.vector.foreign import make_gymnasium, name_of, same_spaces
from slipstream.vector.foreign_copy import ForeignCopy, gone_astray, step_each
from slipstream.vector.forms import action_form, observation_form
from slipstream.vector.infos import APART, NOTHING, InfoTable, Signature, episode_numbers
from slipstream.vector.leaves import MisfitError, store
from slipstream.vector.loop import HOLD, RESET, RESET_KEEP_ALL
from slipstream.vector.process.copies import Copies, one_action
from slipstream.vector.process.faults import TRIES
from slipstream.vector.process.job import AssignedForeign, Assignment, register
from slipstream.vector.process.layout import AT

_SURELY = 1e37  # a sum of squares below it is of finite numbers, in float32 and float64
_NOT_FINITE = "that holds NaN or infinity"


class ForeignCopies(Copies[ForeignCopy]):
    """Copies whose observations are written as the environment gives them; see `Copies`."""

    def __init__(self, job: Assignment, arrays: dict[str, NDArray[Any]], *report: Any) -> None:
        assert isinstance(job.what, AssignedForeign) and job.spec is not None
        self._what, self._spec = job.what, job.spec
        register(job.what.registered)
        self.name = name_of(job.what.env)
        self._names = [metric.name for metric in job.spec.metrics]
        self._table = InfoTable()
        form = observation_form(job.spec)
        self._leaves, self._actions = form.leaves, action_form(job.spec)
        self._image = form.layout == "image"
        self._tuple = form.description["kind"] == "tuple"
        self._floats = [i for i, leaf in enumerate(form.leaves) if leaf.dtype.kind == "f"]
        alone = len(form.leaves) == 1 and not form.leaves[0].path
        self._only = form.leaves[0] if alone and form.leaves[0].sizes is None else None
        super().__init__(job, arrays, *report)

    def attach(self, arrays: dict[str, NDArray[Any]]) -> None:
        super().attach(arrays)
        self._obs = [arrays[f"obs.{i}"] for i in range(len(self._leaves))]
        self._final = [arrays[f"final.{i}"] for i in range(len(self._leaves))]
        if self._image:  # the block has channels first
            self._obs = [np.moveaxis(obs, 1, -1) for obs in self._obs]
            self._final = [np.moveaxis(final, 1, -1) for final in self._final]
        self._acted, self._log = arrays["actions"], arrays["log"]
        self._longest = self._log.shape[1]
        # Of copies that are alone: actions of the newest steps, in turn, of all that go on.
        self._turns = np.zeros((self._longest, *self._acted.shape), self._log.dtype)
        self._taken = 0
        self._info = arrays["info"].reshape(-1).data
        # Views of memory take and give single numbers in half the time of arrays.
        self._paid, self._episode = arrays["reward"].data, arrays["episode"].data
        self._streams = arrays["seed"].data, arrays["index"].data
        for row, copy in zip(self.rows, self.copies, strict=True):
            if copy is None:
                continue
            copy.show_in(self._place(row))
            if self.alone and copy.length <= self._longest:
                self._turns[self._newest(copy.length), row] = self._log[row, : copy.length]

    def _index(self) -> None:
        super()._index()
        # The numbers of each array of floats in one line: of all copies of a range, of a row.
        floats = [self._obs[leaf] for leaf in self._floats]
        self._wide = all(own.dtype.itemsize > 2 for own in floats)  # the product fits
        self._flat = [[own[rows].reshape(-1) for own in floats] for _, rows in self.parts]
        self._flat_row = {row: [own[row].reshape(-1) for own in floats] for row in self.rows}

    def _place(self, row: int) -> NDArray[Any] | None:
        """Where a copy's observations go if they are vectors of numbers."""
        return self._obs[0][row] if self._only is not None and len(self._only.shape) == 1 else None

    def new(self, i: int) -> ForeignCopy:
        what, spec = self._what, self._spec
        env = make_gymnasium(what.env, what.kwargs)
        spaces = (
            ("observation_space", spec.native_observation),
            ("action_space", spec.native_action),
        )
        wrong = same_spaces(env, self.name, self.rows[i], spaces)
        if wrong is not None:
            raise ConfigError(wrong)
        return self._guarded(env, i)

    def adopt(self, copy: Any) -> None:
        self.copies[0] = self._guarded(copy, 0)

    def _guarded(self, env: Any, i: int) -> ForeignCopy:
        return ForeignCopy(
            env, self.name, self.rows[i], self._what.limit, self._place(self.rows[i])
        )

    def end_copy(self, copy: ForeignCopy) -> None:
        copy.env.close()

    def begin(self) -> None:
        """Begins the episodes of the copies that are selected."""
        self.clear()
        for i in np.flatnonzero(self.at["selected"][self.index]).tolist():
            try:
                if self.copies[i] is None:
                    self.remake(i)
                self.begin_next(i)
            except BaseException as error:
                self.fault(i, error, running=False)

    def start(self, same: bool) -> None:
        """After a loss: begins with the episodes that were lost, or those after them."""
        for i, held in enumerate(self.at["held"][self.index].tolist()):
            if self.copies[i] is None:  # it could not be made, and is down
                continue
            failed = bool(self.at["tries"][self.rows[i]] >= TRIES)  # the next step gives it up
            self.asleep[i] = held or failed
            self.at["down"][self.rows[i]] = failed and not held
            if self.asleep[i]:
                continue
            try:
                self.begin_next(i, again=same)
            except BaseException as error:
                self.fault(i, error, running=False)

    def timed(self, rows: NDArray[Any]) -> list[float]:
        """Seconds of the steps with these actions [n, copies, K] in which no copy failed."""
        times = []
        for t, actions in enumerate(rows):
            self._acted[self.index] = actions
            began = time.perf_counter()
            self.step(t)
            if self.at["valid"][self.index].all():
                times.append(time.perf_counter() - began)
        return times

    def step_part(self, part: int, t: int) -> None:
        which, index = self.parts[part]
        self.clear_part(part)
        self._note_actions(index)
        actions, copies = self.natives(which, index), self.copies[which.start : which.stop]
        if not self.stained[part]:  # all are awake
            self._step_each(zip(copies, actions, strict=True), index.start, t)
        else:
            asleep = self.asleep[which.start : which.stop]
            pairs = zip(copies, actions, asleep, strict=True)
            awake = [(copy, action) for copy, action, sleeps in pairs if not sleeps]
            self._step_each(awake, index.start, t)
            for i, sleeps in zip(which, asleep, strict=True):
                if sleeps:
                    self.wake(i)
        self.at_hand(None)
        self._look(part)
        if not self.alone:
            self._note(which, index)

    def _note(self, which: range, index: slice) -> None:
        """Writes down where the episodes of a range's copies stand."""
        at, copies = self.at, self.copies[which.start : which.stop]
        at["ret"][index] = [0.0 if copy is None else copy.ret for copy in copies]
        at["length"][index] = [0 if copy is None else copy.length for copy in copies]

    def note(self) -> None:
        """Writes down where all episodes stand, and their actions."""
        for which, index in self.parts:
            self._note(which, index)
        if self.alone and self._longest:
            for row, n in zip(self.rows, self.at["length"][self.index].tolist(), strict=True):
                if n <= self._longest:
                    self._log[row, :n] = self._turns[self._newest(n), row]

    def _newest(self, n: int) -> NDArray[np.int64]:
        """Where the newest n actions of copies that are alone lie."""
        turns: NDArray[np.int64] = np.arange(self._taken - n, self._taken) % max(1, self._longest)
        return turns

    def _note_actions(self, index: slice) -> None:
        """Every copy's action into its log, at the place that its episode has come to."""
        if not self._longest:
            return
        if self.alone:
            self._turns[self._taken % self._longest] = self._acted
            self._taken += 1
        else:
            length = np.minimum(self.at["length"][index], self._longest - 1)
            self._log[np.arange(index.start, index.stop), length] = self._acted[index]

    def advance(self, i: int, action: Any, t: int) -> None:
        self._step_each([(self.copies[i], action)], self.rows[i], t)

    def _step_each(self, stepping: Any, first: int, t: int) -> None:
        """Steps copies that are awake, from row `first` on; those that fail are begun again."""
        hand, stepping = self.hand, iter(stepping)
        hand[AT] = first
        while True:
            try:
                self.at_hand(hand[AT])
                step_each(stepping, self._acted, self._paid, hand, t, self._store_step, self._ended)
                return
            except BaseException as error:
                row = hand[AT]
                i = self.place_of[row]
                copy = self.copies[i]
                assert copy is not None
                self.fault(i, copy.explained(error, one_action(self._acted, row), t))

    def step_one(self, i: int) -> None:
        row = self.rows[i]
        self._note_actions(slice(row, row + 1))
        super().step_one(i)
        if self.copies[i] is not None and not self.asleep[i] and not self._finite(row):
            self.fault(i, self._unreal(i))
        at, copy = self.at, self.copies[i]
        at["ret"][row], at["length"][row] = (0.0, 0) if copy is None else (copy.ret, copy.length)

    def _store_step(self, copy: ForeignCopy, seen: Any) -> None:
        """Of what is no vector of the space's own dtype."""
        only, row = self._only, copy.number
        if (
            only is not None
            and type(seen) is np.ndarray
            and seen.dtype == only.dtype
            and seen.shape == only.shape
        ):
            self._obs[0][row] = seen
        else:
            self._store(row, copy, "step", seen)

    def replay(self) -> None:
        """Takes `length` actions of the log in the episode before `episode` again.

        `astray` where that cannot be done; what they show then is compared by the parent.
        """
        at, rows = self.at, self.rows
        lengths, logs = at["length"][self.index].copy(), at["log"][self.index].copy()
        self.clear()
        for i in np.flatnonzero(at["selected"][self.index]).tolist():
            row = rows[i]
            at["astray"][row] = True
            try:
                if self.copies[i] is None:
                    self.remake(i)
                self.begin_next(i, again=True)
                copy = self.copies[i]
                assert copy is not None
                taken = logs[i, : int(lengths[i])]
                at["log"][row, : len(taken)] = taken
                if self.alone and len(taken):
                    self._turns[self._newest(len(taken)), row] = taken
                natives = self._actions.natives(taken.astype(self._acted.dtype))
                step_each(
                    self._again(copy, natives),
                    self._acted, self._paid, self.hand, 0, self._store_step, gone_astray,
                )  # fmt: skip
                at["astray"][row] = False
                at["ret"][row], at["length"][row] = copy.ret, copy.length
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
            self.at_hand(None)

    def _again(self, copy: ForeignCopy, natives: list[Any]) -> Iterator[tuple[ForeignCopy, Any]]:
        """Actions of one copy, each of which may take as long as any call of it."""
        for native in natives:
            self.at_hand(copy.number)
            yield copy, native

    def natives(self, which: range, index: slice) -> list[Any]:
        return self._actions.natives(self._acted[index])

    def native(self, i: int) -> Any:
        return self._actions.natives(self._acted[self.rows[i]][None])[0]

    def begin_next(self, i: int, *, again: bool = False) -> None:
        at, copy, row = self.at, self.copies[i], self.rows[i]
        assert copy is not None
        if again:
            self._episode[row] -= self._episode[row] > 0
        episode = self._episode[row]
        self._episode[row] = episode + 1
        if self.asleep[i]:
            at["held"][row] = at["down"][row] = self.asleep[i] = False
        if not self.alone:
            at["ret"][row], at["length"][row] = 0.0, 0
        self.at_hand(row)
        seeds, indices = self._streams
        first = copy.reset(seeds[row], indices[row], episode)
        self.at_hand(None)
        if not copy.show(first):
            self._store(row, copy, "reset", first)
        if not self._finite(row):
            raise copy.misfit("reset", MisfitError(_NOT_FINITE))

    def _store(self, row: int, copy: ForeignCopy, doing: str, seen: Any) -> None:
        if self._tuple and isinstance(seen, (list, np.ndarray)):
            seen = tuple(seen)  # as Gymnasium takes it
        try:
            for leaf, places in zip(self._leaves, self._obs, strict=True):
                # One number has a place of its own only as an array without axes.
                place = places[row] if leaf.shape else places[row : row + 1].reshape(())
                store(leaf, seen, place)
        except MisfitError as error:
            raise copy.misfit(doing, error) from None

    def _finite(self, row: int) -> bool:
        """Whether a copy shows numbers that float32 holds."""
        for flat in self._flat_row[row]:
            if self._wide and flat.dot(flat) < _SURELY:
                continue
            with np.errstate(over="ignore"):
                if not np.isfinite(flat.astype(np.float32)).all():
                    return False
        return True

    def _unreal(self, i: int) -> KernelError:
        """Takes back a step that was counted before its observation was looked at."""
        copy = self.copies[i]
        assert copy is not None
        copy.take_back(float(self.at["reward"][self.rows[i]]))
        return copy.misfit("step", MisfitError(_NOT_FINITE))

    def _look(self, part: int) -> None:
        """One product over all copies says whether any observation is not finite."""
        for flat in self._flat[part]:
            if not (self._wide and flat.dot(flat) < _SURELY):
                break
        else:
            return
        for i in self.parts[part][0]:
            if self.copies[i] is not None and not self.asleep[i] and not self._finite(self.rows[i]):
                self.fault(i, self._unreal(i))

    def _ended(self, copy: ForeignCopy, terminated: bool, truncated: bool) -> None:
        at, row, at_end = self.at, copy.number, self.job.at_end
        i = self.place_of[row]
        self.stain()
        if not self._finite(row):
            raise self._unreal(i)
        at["terminated"][row], at["truncated"][row], at["ended"][row] = terminated, truncated, True
        at["ended_ret"][row], at["ended_length"][row] = copy.ret, copy.length
        if self._names:
            at["metrics"][row] = episode_numbers(copy.info, self._names)
        if at_end == RESET_KEEP_ALL or (at_end == RESET and not terminated):
            at["kept"][row] = True
            for final, obs in zip(self._final, self._obs, strict=True):
                final[row] = obs[row]
        if at_end == HOLD:
            at["held"][row] = self.asleep[i] = True
            return
        try:
            self.begin_next(i)
        except BaseException as error:
            self.fault(i, error, running=False)
        self.at_hand(row)  # the others are still to be stepped

    def lose(self, i: int) -> None:
        super().lose(i)
        at, row, copy = self.at, self.rows[i], self.copies[i]
        if copy is not None:
            at["ended_ret"][row], at["ended_length"][row] = copy.ret, copy.length

    def failed(self, i: int, error: BaseException) -> None:
        super().failed(i, error)
        self.at["tries"][self.rows[i]] += 1

    def given_up(self, i: int) -> bool:
        at, row = self.at, self.rows[i]
        if not self.job.holds or at["tries"][row] < TRIES:
            return False
        at["truncated"][row] = at["lost"][row] = at["held"][row] = self.asleep[i] = True
        at["down"][row] = False
        return True

    def worked(self, i: int) -> bool:
        copy = self.copies[i]
        return copy is not None and copy.steps + copy.length > 0

    def infos(self, signatures: Sequence[Signature]) -> list[tuple[int, Any]]:
        """Has copies write down what they said; (row, info) of those that could not.

        Args:
            signatures: of the infos that may be written.
        """
        self.stain()
        self._table.take(signatures)
        told, apart = self.at["told"], []
        for row, copy in zip(self.rows, self.copies, strict=True):
            info = None if copy is None else copy.info
            told[row] = code = self._table.write(info, self._info, row) if info else NOTHING
            if code == APART:
                apart.append((row, info))
        return apart

    def where(self, i: int) -> tuple[int, int, list[Any]]:
        copy = self.copies[i]
        episode, length = (0, 0) if copy is None else (copy.episode, copy.length)
        return episode, length, one_action(self.at["actions"], self.rows[i])

    def blank(self, i: int) -> None:
        for obs in self._obs:
            obs[self.rows[i]] = 0
