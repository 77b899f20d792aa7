"""Copies stepped as Gymnasium steps them: its seeds, its infos, its ways to go on after an end."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, KernelError
from slipstream.core.random import stream
from slipstream.vector.foreign import flag, reward_of, text_of
from slipstream.vector.infos import APART, NOTHING, InfoTable, Signature
from slipstream.vector.leaves import MisfitError, words_of
from slipstream.vector.loop import HOLD, RESET_KEEP_ALL
from slipstream.vector.native_form import NativeForm
from slipstream.vector.process.copies import Copies
from slipstream.vector.process.job import AssignedNative, Assignment, register

NEXT_STEP, SAME_STEP, DISABLED = 3, RESET_KEEP_ALL, HOLD
"""What follows the end of an episode: the next step begins another one; the same step does; nothing
until a reset."""

_SEED_MASK = np.uint64(2**31 - 1)


class NativeCopies(Copies[Any]):
    """Environments behind `Copies`; nothing that they return is judged beyond its form.

    Attributes:
        infos: the newest of each copy; finals: (observation or None, info) of an episode that ended
            at this step.
    """

    def __init__(self, job: Assignment, arrays: dict[str, NDArray[Any]], *report: Any) -> None:
        assert isinstance(job.what, AssignedNative)
        self._what = what = job.what
        self.name = what.name
        for data in what.registered:
            register(data)
        self._observations = NativeForm(what.shown, what.fixed)
        self._actions = NativeForm(what.acted)
        self.infos: list[dict[str, Any]] = []
        self.finals: list[tuple[Any, dict[str, Any]]] = []
        self._objects: list[Any] = []
        self._table = InfoTable()
        self._assigned = {row: dict(own) for row, own in what.assigned.items()}
        self._given: dict[int, Any] = {}  # actions by row that did not fit into the block
        self._acted: list[Any] = []
        self._next: list[bool] = []  # ended, and the next step begins another episode
        self._steps: list[int] = []
        self._same, self._later = job.at_end == SAME_STEP, job.at_end == NEXT_STEP
        super().__init__(job, arrays, *report)

    def attach(self, arrays: dict[str, NDArray[Any]]) -> None:
        super().attach(arrays)
        count = range(len(self._observations.leaves))
        self._obs = [arrays[f"obs.{i}"] for i in count]
        self._final = [arrays[f"final.{i}"] for i in count]
        self._info = arrays["info"].reshape(-1).data
        self._last_info = arrays["last_info"].reshape(-1).data

    def _room(self, lo: int, hi: int) -> list[int]:
        n = hi - lo
        self.infos += [{} for _ in range(n)]
        self.finals += [(None, {})] * n
        self._objects += [None] * n
        self._acted += [None] * n
        self._next += [False] * n
        self._steps += [0] * n
        return super()._room(lo, hi)

    def shrink(self, arrays: dict[str, NDArray[Any]], size: int) -> None:
        keep = [i for i, row in enumerate(self.rows) if row < size]
        lists: tuple[list[Any], ...] = (
            self.infos, self.finals, self._objects, self._acted, self._next, self._steps
        )  # fmt: skip
        for one in lists:
            one[:] = [one[i] for i in keep]
        self._assigned = {row: own for row, own in self._assigned.items() if row < size}
        super().shrink(arrays, size)

    def new(self, i: int) -> Any:
        what, row = self._what, self.rows[i]
        env = what.make(row)
        if env.action_space != what.acted or (what.alike and env.observation_space != what.shown):
            raise ConfigError(
                f"{what.name}: environment {row} has the spaces {env.observation_space} and "
                f"{env.action_space}, and the first one {what.shown} and {what.acted}: all copies "
                "must have the same."
            )
        for name, value in self._assigned.get(row, {}).items():
            env.set_wrapper_attr(name, value)
        self._steps[i] = 0
        return env

    def end_copy(self, copy: Any) -> None:
        copy.close()

    def reset(self, seeds: list[Any], options: list[Any]) -> None:
        """Begins new episodes of the copies that are selected; `seeds`, `options` of each copy."""
        self.clear()
        at = self.at
        for i in np.flatnonzero(at["selected"][self.index]).tolist():
            try:
                if self.copies[i] is None:
                    self.remake(i)
                if seeds[i] is not None:
                    at["seed"][self.rows[i]] = int(seeds[i]) % 2**62 + 1
                self._begin(i, {"seed": seeds[i], "options": options[i]})
            except BaseException as error:
                self.fault(i, error, running=False)

    def start(self, same: bool) -> None:
        """After a loss: fresh episodes everywhere."""
        del same
        for i, env in enumerate(self.copies):
            if env is not None:
                self.at["restarts"][self.rows[i]] += np.uint64(1)
                try:
                    self.begin_next(i)
                except BaseException as error:
                    self.fault(i, error, running=False)

    def advance(self, i: int, action: Any, t: int) -> None:
        at, row = self.at, self.rows[i]
        env: Any = self.copies[i]
        try:
            if self._next[i]:
                at["valid"][row] = False
                self._begin(i, {})
                return
            self._acted[i] = action
            self.at_hand(row)
            came = env.step(action)
            self.at_hand(None)
            seen, paid, terminated, truncated, info = self._checked(i, came)
            self._steps[i] += 1
            at["reward"][row] = paid
            if terminated or truncated:
                at["terminated"][row], at["truncated"][row] = terminated, truncated
                at["ended"][row] = True
                if self._same:
                    self._finish(i, seen, info)
                    return
                self._next[i] = self._later
            self._show(i, seen, info)
        except BaseException as error:
            self.fault(i, error)

    def _checked(self, i: int, came: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """What a step must return.

        Raises:
            KernelError: it returned something else.
        """
        if not (isinstance(came, tuple) and len(came) == 5):
            size = f"a tuple of {len(came)}" if isinstance(came, tuple) else type(came).__name__
            raise self._wrong(
                i, f"{size} instead of (observation, reward, terminated, truncated, info)"
            )
        seen, paid, terminated, truncated, info = came
        reward, over, cut = reward_of(paid), flag(terminated), flag(truncated)
        if reward is None or over is None or cut is None:
            what = f"the reward {paid!r:.60}, terminated {terminated!r:.40}"
            raise self._wrong(
                i, f"{what}, truncated {truncated!r:.40}: one number and two flags are expected"
            )
        return seen, reward, over, cut, info

    def _wrong(self, i: int, what: str) -> KernelError:
        where = f"environment {self.rows[i]} (step {self._steps[i]} of its episode)"
        return KernelError(f"{self._what.name}: {where} returned {what}.")

    def _finish(self, i: int, seen: Any, info: dict[str, Any]) -> None:
        """Keeps how an episode ended, before anything overwrites it, and begins the next one."""
        row = self.rows[i]
        at, kept, code = self.at, None, NOTHING
        if self._observations.fixed:
            self._store(i, seen, self._final)
        if not self._observations.plain(seen):  # as Gymnasium tells it: an int, another dtype, ...
            kept, code = copy.deepcopy(seen), APART
        elif info:
            code = self._table.write(info, self._last_info, row)
        if code == APART:
            self.finals[i] = kept, dict(info)  # environments may fill the same one at a reset
        at["kept"][row], at["told_last"][row] = True, code
        self._begin(i, {})

    def begin_next(self, i: int, *, again: bool = False) -> None:
        """After a failure: seeded by what the copy was seeded with, and how often it has failed."""
        del again
        seed, restarts = self.at["seed"][self.rows[i]], self.at["restarts"][self.rows[i]]
        if not seed:  # it was never given one; others are kept with 1 added
            self._begin(i, {})
            return
        with np.errstate(over="ignore"):
            word = stream(np.uint64(seed), np.uint64(2**63), restarts)
        self._begin(i, {"seed": int(word & _SEED_MASK)})

    def _begin(self, i: int, arguments: dict[str, Any]) -> None:
        at, row = self.at, self.rows[i]
        env: Any = self.copies[i]
        self.at_hand(row)
        came = env.reset(**arguments)
        self.at_hand(None)
        if not (isinstance(came, tuple) and len(came) == 2):
            raise self._wrong(i, f"{words_of(came)} from `reset` instead of (observation, info)")
        at["held"][row] = at["down"][row] = self.asleep[i] = self._next[i] = False
        self._steps[i] = 0
        self._show(i, *came)

    def _show(self, i: int, seen: Any, info: dict[str, Any]) -> None:
        if self._observations.fixed:
            self._store(i, seen, self._obs)
        else:
            self._objects[i] = seen
        self.infos[i] = info
        if info:
            row = self.rows[i]
            self.at["told"][row] = self._table.write(info, self._info, row)

    def _store(self, i: int, seen: Any, places: list[NDArray[Any]]) -> None:
        try:
            self._observations.store(seen, places, self.rows[i])
        except MisfitError as error:
            raise self._wrong(i, f"the observation {error}") from None

    def fault(self, i: int, error: BaseException, running: bool = True) -> None:
        self.at["restarts"][self.rows[i]] += np.uint64(1)
        self._next[i] = False
        if self._same or not running:
            super().fault(i, error, running)
        else:  # it shows its last observation, and the next step begins another episode
            self.lose(i)
            self.failed(i, error)
            if not isinstance(error, Exception):
                self.copies[i] = None
        if running:
            self.infos[i] = {**self.infos[i], "fault": f"{type(error).__name__}: {text_of(error)}"}
            self.at["told"][self.rows[i]] = APART

    def lose(self, i: int) -> None:
        super().lose(i)
        self.at["truncated"][self.rows[i]] = self.at["lost"][self.rows[i]] = True
        self.infos[i] = {}

    def where(self, i: int) -> tuple[int, int, list[Any]]:
        action = self._acted[i]
        plain = np.ravel(action).tolist() if isinstance(action, np.ndarray) else [action]
        return 0, self._steps[i], plain

    def worked(self, i: int) -> bool:
        return self._steps[i] > 0

    def blank(self, i: int) -> None:
        """It goes on showing its last observation."""

    def act(self, actions: dict[int, Any]) -> None:
        """Actions by row, of the next step, that have no place in the block."""
        self._given.update(actions)

    def natives(self, which: range, index: slice) -> list[Any]:
        if not self._given:
            return list(self.at["act"][index].copy())
        return [self.native(i) for i in which]

    def native(self, i: int) -> Any:
        row = self.rows[i]
        if row in self._given:
            return self._given.pop(row)
        return self.at["act"][row : row + 1].copy()[0]

    def told(
        self, signatures: Sequence[Signature]
    ) -> list[tuple[int, dict[str, Any] | None, tuple[Any, dict[str, Any]] | None]]:
        """What copies said and could not write down: row, info, how the episode ended.

        Args:
            signatures: of the infos that may be written from now on.
        """
        at, found = self.at, []
        self._table.take(signatures)
        for i, row in enumerate(self.rows):
            said = at["told"][row] == APART
            ended = at["kept"][row] and at["told_last"][row] == APART
            if said or ended:
                info, final = self.infos[i], self.finals[i]
                found.append((row, info if said else None, final if ended else None))
        return found

    def objects(self) -> list[Any]:
        """Observations without a place in the block."""
        return self._objects

    def call(self, calls: list[tuple[int, str, tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        """(row, name, args, kwargs): an attribute of each, called where it can be."""
        values = []
        for row, name, args, kwargs in calls:
            found = self._env(row).get_wrapper_attr(name)
            values.append(found(*args, **kwargs) if callable(found) else found)
        return values

    def assign(self, name: str, values: list[tuple[int, Any]]) -> None:
        """Sets an attribute of each (row, value)."""
        for row, value in values:
            self._env(row).set_wrapper_attr(name, value)
            self._assigned.setdefault(row, {})[name] = value  # for when it is made anew

    def _env(self, row: int) -> Any:
        env = self.copies[self.rows.index(row)]
        if env is None:
            raise KernelError(f"{self._what.name}: environment {row} is down; reset it first.")
        return env
