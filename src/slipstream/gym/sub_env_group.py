"""Copies of an environment of another library, as the process that has them steps them.

`SubEnvGroup` are those of one process: made, begun, stepped, made again when they fail, closed.
Each is a `SubEnv`; what they show lies in arrays that others may share.
"""

from __future__ import annotations

import copy as copying
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.child_process import AT, BEAT, HEARTBEAT_WORDS
from slipstream.core.errors import ConfigError, KernelError
from slipstream.core.random import stream
from slipstream.gym.action_masks import get_mask_method, mask_from_info, replace_masked_actions
from slipstream.gym.env_factory import (
    PROBE_SECONDS,
    HangError,
    check_not_shared,
    check_same_spaces,
    error_text,
)
from slipstream.gym.infos import (
    NO_INFO,
    ON_REQUEST,
    InfoMessage,
    SchemaTable,
    Signature,
    episode_metrics,
)
from slipstream.gym.process.fault_log import TRIES, Fault, backoff
from slipstream.gym.sub_env import SEED_MASK, SubEnv, step_envs
from slipstream.gym.worker_config import NEXT_STEP, SAME_STEP, WorkerConfig, register
from slipstream.kernels.loop import HOLD, RESET, RESET_KEEP_ALL
from slipstream.kernels.space_codec import SpaceMismatchError

FRESH = ("terminated", "truncated", "ended", "kept", "lost", "told")
"""Flags of a step, false before it."""

_SURELY = 1e37  # a sum of squares below it is of finite numbers, in float32 and float64
_NOT_FINITE = "that holds NaN or infinity"


def _raise_diverged(copy: SubEnv, seen: Any, terminated: bool, truncated: bool) -> None:
    """Takes the place of `ended` while actions are taken again: the episode went on before.

    Raises:
        KernelError: always.
    """
    raise copy.failure("step", "the end of an episode that had none here before")


class SubEnvGroup:
    """Some of E copies, by their rows in the arrays that all share.

    Two rules differ with who steps them. Agents (`job.what.spec`) have every episode seeded by its
    number, observations finite, infos on request, and actions logged so that a resumed copy takes
    them again. Other libraries have seeds, infos, rewards and wrappers as Gymnasium itself has
    them, and `NEXT_STEP` or `DISABLED` where an episode ends.

    Args:
        job: which they are.
        arrays: of the block.
        report: takes the fault of each failure, without a worker; its error is as it was raised.
        hand: words of which `hand[AT]` is the row at hand, and `hand[BEAT]` the number of calls
            begun and ended, odd during a call; others may watch them.
        alone: nobody else reads the arrays; what is slow to keep there is written on request.

    Attributes:
        copies: in the order of `rows`; `ranges`: the same rows as (lo, hi).
        name: of the environment, for messages.
        stained: what copies show of a step is to be cleared before the next one: flags are set, or
            rewards are not of this one.
    """

    def __init__(
        self,
        job: WorkerConfig,
        arrays: dict[str, NDArray[Any]],
        report: Callable[[Fault], None],
        hand: Any = None,
        *,
        alone: bool = False,
    ) -> None:
        self.job, self._report, self.alone = job, report, alone
        self._watched, self.hand = hand is not None, [0] * HEARTBEAT_WORDS if hand is None else hand
        self._what, self.name, self._form = job.what, job.what.name, job.what.form()
        for data in job.what.registered:
            register(data)
        self._native = job.what.spec is None
        spec = job.what.spec
        self._names = [] if spec is None else [metric.name for metric in spec.metrics]
        self._sizes = () if spec is None else spec.nvec
        self._table = SchemaTable()
        self._assigned = {row: dict(own) for row, own in job.what.assigned.items()}
        self._given: dict[int, Any] = {}  # actions by row that did not fit into the block
        self.ranges: list[tuple[int, int]] = []
        self.copies: list[SubEnv] = []
        self._attach(arrays)
        for lo, hi in job.ranges:
            self._room(lo, hi)
        self._index()

    def at_hand(self, row: int | None) -> None:
        """Notes that a copy is called from now on, or none, for whoever watches."""
        words = self.hand
        if not self._watched:
            return
        if row is None:
            words[BEAT] += words[BEAT] & 1
        else:
            words[AT] = row
            words[BEAT] += 1 + (words[BEAT] & 1)

    def _attach(self, arrays: dict[str, NDArray[Any]]) -> None:
        """From now on they write there."""
        self.at = arrays
        self._obs, self._final = (self._form.places(arrays, name) for name in ("obs", "final"))
        self._acted, self._info = arrays.get("actions"), arrays["info"].reshape(-1).data
        self._mask = arrays.get("mask")
        # Views of memory take and give single numbers in half the time of arrays.
        self._paid = arrays["reward"].data
        if self._native:
            self._last_info = arrays["last_info"].reshape(-1).data
            self._longest = 0
        else:
            assert self._acted is not None
            self._episode, self._log = arrays["episode"].data, arrays["log"]
            self._streams = arrays["seed"].data, arrays["index"].data
            self._longest = self._log.shape[1]
            # Of copies that are alone: actions of the newest steps, in turn, of all that go on.
            self._turns = np.zeros((self._longest, *self._acted.shape), self._log.dtype)
            self._taken = 0
        for copy in self.copies:
            row, length = copy.number, copy.length
            copy.show_in(self._place(row))
            if self.alone and 0 < length <= self._longest:
                self._turns[self._newest(length), row] = self._log[row, :length]

    def _room(self, lo: int, hi: int) -> list[SubEnv]:
        """Further copies, of the rows lo..hi-1; none is made yet."""
        more = [SubEnv(self.name, row, self._what.limit, self._native) for row in range(lo, hi)]
        for copy in more:
            copy.show_in(self._place(copy.number))
        self.ranges.append((lo, hi))
        self.copies += more
        return more

    def _index(self) -> None:
        """`rows`, and `index`: the same as a slice if they follow each other."""
        self.rows = [copy.number for copy in self.copies]
        self._by_row = dict(zip(self.rows, self.copies, strict=True))
        self._numbers = np.array(self.rows, np.int64)
        own_rows = [slice(*own) for own in self.ranges]
        self.index = own_rows[0] if len(own_rows) == 1 else self._numbers
        self._flags = [self.at[name][rows] for name in FRESH for rows in own_rows]
        self.stained = True
        # The numbers of each array of floats in one line: of all copies of a range, of a row.
        floats = [] if self._native else [own for own in self._obs if own.dtype.kind == "f"]
        self._wide = all(own.dtype.itemsize > 2 for own in floats)  # the product fits
        self._flat = [own[rows].reshape(-1) for own in floats for rows in own_rows]
        self._flat_row = {row: [own[row].reshape(-1) for own in floats] for row in self.rows}

    def _place(self, row: int) -> NDArray[Any] | None:
        """Where a copy's observations go if they are vectors of numbers."""
        only = self._form.only
        return self._obs[0][row] if only is not None and len(only.shape) == 1 else None

    # Made and closed.

    def adopt(self, env: Any) -> None:
        """The first copy is there already."""
        self.copies[0].adopt(env)

    def make(self, first: int = 0) -> None:
        """Makes the copies, from that of this number on; one that fails is reported and down."""
        self._make(self.copies[first:])

    def _make(self, copies: Iterable[SubEnv]) -> None:
        for copy in copies:
            try:
                self._remake(copy)
            except BaseException as error:
                self._failed(copy, error)

    def _remake(self, copy: SubEnv) -> None:
        """Makes the environment of a copy; closes the one that it had."""
        row, what, old = copy.number, self._what, copy.env
        self.at_hand(row)
        copy.close()
        env = what.make(row)
        check_same_spaces(self.name, env, row, what.spaces)
        if self._mask is None and self._sizes and get_mask_method(env) is not None:
            raise ConfigError(
                f"gym:{self.name}: environment {row} has a method `action_masks()`, but the first "
                "environment (without `env.training_wrappers`) has no action mask. Give every "
                "environment the method or none. Name a wrapper that adds it in `env.wrappers`."
            )
        for name, value in self._assigned.get(row, {}).items():
            env.set_wrapper_attr(name, value)
        check_not_shared(self.name, env, (old, *(other.env for other in self.copies)))
        copy.adopt(env)
        self.at_hand(None)

    def grow(self, arrays: dict[str, NDArray[Any]], lo: int, hi: int, begun: bool) -> None:
        """Takes on the copies of rows lo..hi-1, made here; arrays that are larger."""
        self._attach(arrays)
        more = self._room(lo, hi) if hi > lo else []
        self._index()
        self._make(more)
        if begun:
            self._begin_some(more)

    def shrink(self, arrays: dict[str, NDArray[Any]], size: int) -> None:
        """Closes the copies of rows from `size` on."""
        for copy in self.copies:
            if copy.number >= size:
                copy.close()
        self.copies = [copy for copy in self.copies if copy.number < size]
        self.ranges = [(lo, min(hi, size)) for lo, hi in self.ranges if lo < size]
        self._assigned = {row: own for row, own in self._assigned.items() if row < size}
        self._attach(arrays)
        self._index()

    def close(self) -> None:
        """Closes the environments."""
        for copy in self.copies:
            copy.close()

    # Episodes begun.

    def begin(self, seeds: list[Any] | None = None, options: list[Any] | None = None) -> None:
        """Begins new episodes of the copies that are selected.

        Args:
            seeds, options: of each copy, as Gymnasium's `reset` takes them; without them the next
                episode of its own stream.
        """
        self.clear()
        for i in np.flatnonzero(self.at["selected"][self.index]).tolist():
            copy = self.copies[i]
            try:
                if copy.env is None:
                    self._remake(copy)
                if seeds is None or options is None:
                    self._begin_next(copy)
                    continue
                if seeds[i] is not None:
                    self.at["seed"][copy.number] = int(seeds[i]) % 2**62 + 1
                self._begin(copy, 0, seed=seeds[i], options=options[i])
            except BaseException as error:
                self._fault(copy, error, running=False)

    def begin_all(self) -> None:
        """Begins an episode of every copy: they are new, and the others have begun before."""
        self._begin_some(self.copies)

    def _begin_some(self, copies: Iterable[SubEnv], *, again: bool = False) -> None:
        for copy in copies:
            if copy.env is not None:
                try:
                    self._begin_next(copy, again=again)
                except BaseException as error:
                    self._fault(copy, error, running=False)

    def start(self, same: bool) -> None:
        """After a loss: begins with the episodes that were lost, or those after them."""
        at = self.at
        for copy in self.copies:
            row, held = copy.number, bool(at["held"][copy.number])
            if copy.env is None:  # it could not be made, and is down
                continue
            if self._native:
                at["restarts"][row] += np.uint64(1)
            else:
                failed = bool(at["tries"][row] >= TRIES)  # the next step gives it up
                copy.asleep = held or failed
                at["down"][row] = failed and not held
        self._begin_some([copy for copy in self.copies if not copy.asleep], again=same)

    def _begin_next(self, copy: SubEnv, *, again: bool = False) -> None:
        """Begins the next episode of a copy, or the one that it was in."""
        at, row = self.at, copy.number
        if self._native:  # by what it was seeded with, and how often it has failed
            seed, restarts = at["seed"][row], at["restarts"][row]
            if not seed:  # it was never given one; others are kept with 1 added
                self._begin(copy, 0)
                return
            with np.errstate(over="ignore"):
                word = stream(np.uint64(seed), np.uint64(2**63), restarts)
            self._begin(copy, 0, seed=int(word & SEED_MASK))
            return
        if again:
            self._episode[row] -= self._episode[row] > 0
        episode = self._episode[row]
        self._episode[row] = episode + 1
        if not self.alone:
            at["ret"][row], at["length"][row] = 0.0, 0
        seeds, indices = self._streams
        self._begin(copy, episode, seed=copy.seed_of(seeds[row], indices[row], episode))

    def _begin(self, copy: SubEnv, episode: int, **arguments: Any) -> None:
        row = copy.number
        if copy.asleep:
            self.at["held"][row] = self.at["down"][row] = copy.asleep = False
        copy.later = False
        self.at_hand(row)
        first = copy.reset(episode, **arguments)
        self.at_hand(None)
        if not copy.show(first):
            self._store(copy, "reset", first)
        if self._native:
            self._say(copy, copy.info)
            return
        if not self._finite(row):
            raise copy.misfit("reset", SpaceMismatchError(_NOT_FINITE))
        self._allow(copy, "reset")

    def _allow(self, copy: SubEnv, doing: str) -> None:
        """Writes what a copy's mask allows next; refuses one that nobody has looked for."""
        if self._mask is not None:
            self.at_hand(copy.number)
            copy.write_mask(self._mask[copy.number], self._sizes, doing)
            self.at_hand(None)
        elif self._sizes and mask_from_info(copy.info) is not None:
            what = (
                "the info `action_mask`, which the first `reset` of the first environment did not "
                "(a mask of allowed choices comes with every observation or with none)"
            )
            if self._what.spec is not None and self._what.spec.has_action_mask is None:
                what = (
                    "the info `action_mask`, but the first `reset`, in a forked process, took more "
                    f"than {PROBE_SECONDS:g} s or failed, so that it was not known whether `info` "
                    "has one: offer it by a method `action_masks()`"
                )
            raise copy.failure(doing, what)

    def _allow_all(self, copies: Iterable[SubEnv]) -> None:
        """Writes the masks of those copies whose episode goes on after a step."""
        ended = self.at["ended"]
        for copy in copies:
            if copy.asleep or ended[copy.number]:
                continue
            try:
                self._allow(copy, "step")
            except BaseException as error:
                copy.take_back(float(self.at["reward"][copy.number]))
                self._fault(copy, error)

    # Steps.

    def step(self, t: int) -> None:
        """Steps every copy; one that ends begins its next episode at once, or as its rule says."""
        if self.stained:
            self.clear()
            self.stained = any(copy.asleep for copy in self.copies)
        if self.alone and self._longest:
            self._turns[self._taken % self._longest] = self._acted
            self._taken += 1
        else:
            self._note_actions(self._numbers, self.index)
        stepping = zip(self.copies, self._natives(self.copies, self.index), strict=True)
        if not self.stained:  # all are awake
            self._step_each(stepping, self.rows[0], t)
        else:
            asleep = [copy for copy in self.copies if copy.asleep]
            awake = [(copy, action) for copy, action in stepping if not copy.asleep]
            self._step_each(awake, self.rows[0], t)
            for copy in asleep:
                self._wake(copy)
        self.at_hand(None)
        if self._native:
            self._say_all(self.copies)
            return
        if self._mask is not None:
            self._allow_all(self.copies)
        self._look()
        if not self.alone:
            self.note()

    def step_one(self, i: int) -> None:
        """Steps copy i alone."""
        copy, at = self.copies[i], self.at
        row = copy.number
        if self.alone and self._longest:  # from now on they do not act in turn
            self.note()
            self.alone = False
        self._note_actions(row, row)
        self.stained = True
        at["valid"][row], at["reward"][row] = True, 0.0
        for name in FRESH:
            at[name][row] = False
        if copy.asleep:
            self._wake(copy)
        else:
            action = self._natives([copy], slice(row, row + 1))[0]
            self._step_each([(copy, action)], row, 0)
        self.at_hand(None)
        if self._native:
            self._say_all([copy])
            return
        if self._mask is not None:
            self._allow_all([copy])
        if not copy.asleep and not self._finite(row):
            self._fault(copy, self._unreal(copy))
        at["ret"][row], at["length"][row] = copy.returned, copy.length

    def _step_each(self, stepping: Any, first: int, t: int) -> None:
        """Steps copies that are awake, from row `first` on; those that fail are begun again."""
        hand, stepping = self.hand, iter(stepping)
        hand[AT] = first
        while True:
            try:
                self.at_hand(hand[AT])
                step_envs(stepping, self._last, self._paid, hand, t, self._store_step, self._ended)
                return
            except BaseException as error:
                copy = self._by_row[hand[AT]]
                self._fault(copy, copy.explained(error, self._last(copy.number), t))

    def _last(self, row: int) -> list[Any]:
        """The last action of the copy that has a row, as plain numbers, for messages."""
        if given := self._by_row[row].given:
            return given
        return [] if self._acted is None else list(np.ravel(self._acted[row]).tolist())

    def act(self, actions: dict[int, Any]) -> None:
        """Actions by row, of the next step, that have no place in the block."""
        self._given.update(actions)

    def _natives(self, copies: Sequence[SubEnv], index: slice | NDArray[np.int64]) -> Sequence[Any]:
        """Actions of some copies, whose rows `index` picks, as the environment takes them."""
        if not self._given:
            assert self._acted is not None
            return self._form.natives(self._acted[index])
        actions = []
        for copy in copies:
            row = copy.number
            if row in self._given:
                actions.append(self._given.pop(row))
                copy.given = [actions[-1]]
            else:
                assert self._acted is not None
                actions += self._form.natives(self._acted[row : row + 1])
        return actions

    def _store_step(self, copy: SubEnv, seen: Any) -> None:
        """Stores an observation that is no vector of the space's own dtype."""
        only = self._form.only
        if (
            only is not None
            and type(seen) is np.ndarray
            and seen.dtype == only.dtype
            and seen.shape == only.shape
        ):
            self._obs[0][copy.number] = seen
        else:
            self._store(copy, "step", seen)

    def _store(self, copy: SubEnv, doing: str, seen: Any) -> None:
        if not self._form.fixed:
            copy.seen = seen
            return
        try:
            self._form.store(seen, self._obs, copy.number)
        except SpaceMismatchError as error:
            raise copy.misfit(doing, error) from None

    def _ended(self, copy: SubEnv, seen: Any, terminated: bool, truncated: bool) -> None:
        at, row, at_end = self.at, copy.number, self.job.at_end
        self.stained = True
        if not self._finite(row):
            raise self._unreal(copy)
        if self._mask is None:
            self._allow(copy, "step")
        at["terminated"][row], at["truncated"][row], at["ended"][row] = terminated, truncated, True
        if self._native:
            if at_end == NEXT_STEP:
                copy.later = copy.asleep = True
            if at_end != SAME_STEP:
                return
            self._keep(copy, seen)
        else:
            at["ended_ret"][row], at["ended_length"][row] = copy.returned, copy.length
            if self._names:
                at["metrics"][row] = episode_metrics(copy.info, self._names)
            if at_end == RESET_KEEP_ALL or (at_end == RESET and not terminated):
                at["kept"][row] = True
                for final, obs in zip(self._final, self._obs, strict=True):
                    final[row] = obs[row]
            if at_end == HOLD:
                at["held"][row] = copy.asleep = True
                return
        try:
            if self._native:
                self._begin(copy, 0)
            else:
                self._begin_next(copy)
        except BaseException as error:
            self._fault(copy, error, running=self._native)
        self.at_hand(row)  # the others are still to be stepped

    def _keep(self, copy: SubEnv, seen: Any) -> None:
        """Keeps how an episode ended, before anything overwrites it."""
        at, row = self.at, copy.number
        kept, code, info = None, NO_INFO, copy.info
        for final, obs in zip(self._final, self._obs, strict=True):
            final[row] = obs[row]
        if not self._form.plain(seen):  # as Gymnasium returns it: an int, another dtype, ...
            kept, code = copying.deepcopy(seen), ON_REQUEST
        elif info:
            code = self._table.write(info, self._last_info, row)
        if code == ON_REQUEST:
            copy.final = kept, dict(info)  # environments may fill the same one at a reset
        at["kept"][row], at["told_last"][row] = True, code

    def clear(self) -> None:
        """Before a step or something else of all copies."""
        self.stained = True
        self.at["valid"][self.index], self.at["reward"][self.index] = True, 0.0
        for flags in self._flags:
            flags.fill(False)

    def timed(self, rows: NDArray[Any]) -> list[float]:
        """Seconds of the steps with these actions [n, copies, K] in which no copy failed."""
        times = []
        assert self._acted is not None
        for t, actions in enumerate(rows):
            if self._mask is not None:
                actions = replace_masked_actions(actions, self._mask[self.index], self._sizes)
            self._acted[self.index] = actions
            began = time.perf_counter()
            self.step(t)
            if self.at["valid"][self.index].all():
                times.append(time.perf_counter() - began)
        return times

    # What agents ask for: finite numbers, and episodes that are taken again.

    def _finite(self, row: int) -> bool:
        """Return true if a copy shows numbers that float32 holds; not asked where it need not."""
        for flat in self._flat_row[row]:
            if self._wide and flat.dot(flat) < _SURELY:
                continue
            with np.errstate(over="ignore"):
                if not np.isfinite(flat.astype(np.float32)).all():
                    return False
        return True

    def _unreal(self, copy: SubEnv) -> KernelError:
        """Takes back a step that was counted before its observation was looked at."""
        copy.take_back(float(self.at["reward"][copy.number]))
        return copy.misfit("step", SpaceMismatchError(_NOT_FINITE))

    def _look(self) -> None:
        """Finds observations that are not finite, by one product over all copies."""
        for flat in self._flat:
            if not (self._wide and flat.dot(flat) < _SURELY):
                break
        else:
            return
        for copy in self.copies:
            if not copy.asleep and not self._finite(copy.number):
                self._fault(copy, self._unreal(copy))

    def note(self) -> None:
        """Writes down the state of all episodes, and the actions of copies that are alone."""
        at = self.at
        at["ret"][self.index] = [copy.returned for copy in self.copies]
        at["length"][self.index] = [copy.length for copy in self.copies]
        if self.alone and self._longest:
            for copy in self.copies:
                if (n := copy.length) <= self._longest:
                    self._log[copy.number, :n] = self._turns[self._newest(n), copy.number]

    def _newest(self, n: int) -> NDArray[np.int64]:
        """Where the newest n actions of copies that are alone lie."""
        turns: NDArray[np.int64] = np.arange(self._taken - n, self._taken) % max(1, self._longest)
        return turns

    def _note_actions(self, rows: int | NDArray[np.int64], index: Any) -> None:
        """Actions of some rows, which `index` picks, into their logs at their episodes' steps."""
        if self._longest:
            assert self._acted is not None
            length = np.minimum(self.at["length"][index], self._longest - 1)
            self._log[rows, length] = self._acted[index]

    def replay(self) -> None:
        """Takes `length` actions of the log in the episode before `episode` again.

        `astray` where that cannot be done; what they show then is compared by the parent.
        """
        at = self.at
        assert self._acted is not None
        lengths, logs = at["length"][self.index].copy(), at["log"][self.index].copy()
        self.clear()
        for i in np.flatnonzero(at["selected"][self.index]).tolist():
            copy = self.copies[i]
            row = copy.number
            at["astray"][row] = True
            try:
                if copy.env is None:
                    self._remake(copy)
                self._begin_next(copy, again=True)
                taken = logs[i, : int(lengths[i])]
                at["log"][row, : len(taken)] = taken
                if self.alone and len(taken):
                    self._turns[self._newest(len(taken)), row] = taken
                natives = self._form.natives(taken.astype(self._acted.dtype))
                step_envs(
                    self._again(copy, natives),
                    self._last, self._paid, self.hand, 0, self._store_step, _raise_diverged,
                )  # fmt: skip
                self._allow(copy, "step")
                at["astray"][row] = False
                at["ret"][row], at["length"][row] = copy.returned, copy.length
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
            self.at_hand(None)

    def _again(self, copy: SubEnv, natives: Sequence[Any]) -> Iterator[tuple[SubEnv, Any]]:
        """Actions of one copy, each of which may take as long as any call of it."""
        for native in natives:
            self.at_hand(copy.number)
            yield copy, native

    # Failures.

    def _fault(self, copy: SubEnv, error: BaseException, running: bool = True) -> None:
        """A call of a copy failed: its step is not real, its episode is lost."""
        row, waits = copy.number, False
        if self._native:
            self.at["restarts"][row] += np.uint64(1)
            copy.later = False
            # Else it shows its last observation, and the next step begins another episode.
            waits = running and self.job.at_end != SAME_STEP
        if running:
            self._lose(copy)
        self._failed(copy, error)
        if isinstance(error, HangError):
            copy.clear()  # nobody knows what closing it would do
        if self.job.restart and not waits and not (running and self._given_up(copy)):
            self._wake(copy, now=True)
        if self._native and running:
            cause = error.__cause__ or error
            copy.shown = {**copy.shown, "fault": f"{type(cause).__name__}: {error_text(cause)}"}
            self.at["told"][row] = ON_REQUEST

    def _lose(self, copy: SubEnv) -> None:
        """The step at hand of a copy is not real."""
        self.stained = True
        at, row = self.at, copy.number
        at["valid"][row] = at["terminated"][row] = False
        at["truncated"][row] = at["lost"][row] = not self.job.holds
        at["reward"][row], at["kept"][row], at["ended"][row] = 0.0, False, False
        copy.shown = {}
        if not self._native:
            copy.discard_raw()
            at["ended_ret"][row], at["ended_length"][row] = copy.returned, copy.length

    def _failed(self, copy: SubEnv, error: BaseException) -> None:
        """Reports a failure; the copy is down."""
        self.at_hand(None)
        row = copy.number
        kind = "hung" if isinstance(error, HangError) else "raised"
        text = error_text(error)
        if kind == "raised":
            text += "\n" + "".join(traceback.format_exception(error.__cause__ or error))
        at_fault = copy.episode, copy.length, self._last(row)
        self._report(Fault(kind, row, 0, 0, *at_fault, text, error))
        self.stained = True
        copy.failures = 1 if copy.steps + copy.length > 0 else copy.failures + 1
        copy.due = time.monotonic() + backoff(copy.failures)
        copy.asleep = self.at["down"][row] = True
        if not self._native:  # to others it goes on showing its last observation
            self.at["tries"][row] += 1
            for obs in self._obs:
                obs[row] = 0
            if self._mask is not None:
                self._mask[row] = True

    def _given_up(self, copy: SubEnv) -> bool:
        """Return true if a copy gives up, at this step, an episode that has failed too often."""
        at, row = self.at, copy.number
        if not self.job.holds or at["tries"][row] < TRIES:
            return False
        at["truncated"][row] = at["lost"][row] = at["held"][row] = copy.asleep = True
        at["down"][row] = False
        return True

    def _wake(self, copy: SubEnv, now: bool = False) -> None:
        """A copy that is down is made again when it is time; one that is held goes on waiting."""
        row = copy.number
        if self.at["held"][row]:
            return
        self.stained = True
        if not now:
            self.at["valid"][row] = False
            if copy.later:
                try:
                    self._begin(copy, 0)
                except BaseException as error:
                    self._fault(copy, error)
                return
            if self._given_up(copy):
                return
        if not self.job.restart or time.monotonic() < copy.due:
            return
        try:
            self._remake(copy)
            self._begin_next(copy, again=self.job.holds)
        except BaseException as error:
            self._failed(copy, error)

    # What is asked of them.

    def _say(self, copy: SubEnv, info: Any) -> None:
        """Writes down the info of a copy, or keeps it to be asked for."""
        row = copy.number
        copy.shown = info
        self.stained = True
        self.at["told"][row] = self._table.write(info, self._info, row) if info else NO_INFO

    def _say_all(self, copies: Iterable[SubEnv]) -> None:
        """Writes the infos of those copies whose step was real."""
        lost, down = self.at["lost"], self.at["down"]
        for copy in copies:
            if copy.info and not (lost[copy.number] or down[copy.number]):
                self._say(copy, copy.info)

    def tell(self, signatures: Sequence[Signature]) -> list[InfoMessage]:
        """Infos that copies could not write down: row, info, how the episode ended.

        Args:
            signatures: of the infos that may be written from now on.
        """
        at, found = self.at, list[InfoMessage]()
        self._table.take(signatures)
        if not self._native:
            for copy in self.copies:
                self._say(copy, copy.info)
        for copy in self.copies:
            row = copy.number
            said = at["told"][row] == ON_REQUEST
            ended = self._native and at["kept"][row] and at["told_last"][row] == ON_REQUEST
            if said or ended:
                own = copy.shown if said else None, copy.final if ended else None
                found.append((row, *own))
        return found

    def objects(self) -> list[Any]:
        """Observations without a place in the block."""
        return [copy.seen for copy in self.copies]

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
        copy = self._by_row[row]
        if copy.env is None:
            raise KernelError(f"gym:{self.name}: environment {row} is down; reset it first.")
        return copy.env
