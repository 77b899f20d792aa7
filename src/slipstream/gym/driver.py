"""The engine of foreign copies: E of them, begun, stepped, asked and resized by one interface.

A copy is one environment of somebody else's. `ForeignCopies` are those that one process steps; a
driver has all of them, in this process (`SerialDriver`) or in workers (`ProcessDriver`), and all
that they show lies in arrays by row: see `copies_layout` and `native_layout`. Environments on top
say what a step means: `VectorEnv` to agents, `NativeEnv` to other libraries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.bounds import check_count
from slipstream.core.errors import ConfigError
from slipstream.core.process import AT, BEAT, PULSES, FaultPolicy
from slipstream.gym.copies import ForeignCopies
from slipstream.gym.job import Assignment
from slipstream.gym.making import theirs
from slipstream.gym.process.faults import Fault, FaultLog
from slipstream.gym.process.shared_memory import Layout

Arrays = Mapping[str, NDArray[Any]]
Arguments = Callable[[list[int]], tuple[Any, ...]]
"""Makes the arguments of a call from the rows of the copies that it is made to."""


class CopyDriver(ABC):
    """All copies of an environment, whoever steps them.

    Attributes:
        num_envs: E.
        begun: copies have been reset.
        ledger: counts faults, and raises where they are too many.
    """

    backend: str
    num_envs: int
    begun: bool
    ledger: FaultLog

    @property
    @abstractmethod
    def arrays(self) -> Arrays:
        """What copies read and write, [E, ...] each; others after `resize`."""

    @abstractmethod
    def check_open(self) -> None:
        """Raises ConfigError where it was closed."""

    @abstractmethod
    def ready(self) -> None:
        """Waits until every copy is there, and has begun if the others have."""

    @abstractmethod
    def settle(self) -> None:
        """Before any other order.

        Raises:
            ConfigError: steps were sent that nobody has received, or it was closed.
        """

    @abstractmethod
    def run(self, what: str) -> None:
        """Has the copies that are `selected` "begin" or "replay": what they did before is over."""

    @abstractmethod
    def begin_reset(self, arguments: Arguments) -> None:
        """Begins episodes of the copies that are `selected`; `end_reset` waits for them.

        Args:
            arguments: of `begin`, for copies of these rows.
        """

    @abstractmethod
    def end_reset(self, timeout: float | None = None) -> bool:
        """Whether all have begun, at the latest after so many seconds."""

    @abstractmethod
    def begin_step(self, t: int) -> bool:
        """Orders a step of all copies that are there; False where none was."""

    @abstractmethod
    def end_step(self, timeout: float | None = None) -> bool:
        """Waits for the step; whether it is over."""

    @property
    def eventful(self) -> bool:
        """Whether an episode may have ended at the last step, or a copy failed or was idle."""
        return True

    @property
    @abstractmethod
    def stepped(self) -> bool:
        """Whether any copy was alive at the last step, or is by now."""

    @abstractmethod
    def idle_rows(self, copies: Any) -> NDArray[np.int64]:
        """Rows that may be sent to, before their actions are written; all where `copies` is None.

        Raises:
            ConfigError: they are no different copies, or one of them is under way already.
        """

    @abstractmethod
    def send(self, rows: NDArray[np.int64]) -> None:
        """A step of these copies, which are idle, is wanted; their actions are there."""

    @abstractmethod
    def receive(self, count: int | None, timeout: float | None = None) -> NDArray[np.int64]:
        """The first so many copies that are ready, in the order in which they became so.

        Args:
            count: how many; None: all that are under way.

        Raises:
            ConfigError: fewer are under way.
            TimeoutError: they are not ready in time; what is ready waits for the next call.
        """

    @property
    @abstractmethod
    def under_way(self) -> NDArray[np.bool_]:
        """Copies that were sent an action and not received since, bool [E]."""

    @property
    @abstractmethod
    def unseen(self) -> NDArray[np.bool_]:
        """Copies that stand elsewhere than where they were last shown, bool [E]."""

    @abstractmethod
    def ask(
        self,
        method: str,
        arguments: Arguments,
        selected: NDArray[np.bool_] | None = None,
        *,
        spare: bool = False,
    ) -> list[tuple[NDArray[np.int64], Any]]:
        """Calls a method of `ForeignCopies` wherever copies are: slow.

        Args:
            method: its name.
            arguments: of it.
            selected: bool [E]; only where any of these are. All unless given.
            spare: an answer that was lost with a worker is None, where the policy is to go on.

        Returns:
            (rows of the copies, value) of each call.

        Raises:
            KernelError: a worker was lost over it; whatever the method raised.
        """

    @abstractmethod
    def insist(self, method: str, arguments: Arguments) -> list[tuple[NDArray[np.int64], Any]]:
        """`ask`; whoever is lost over it is asked again once it is back."""

    @abstractmethod
    def resize(
        self,
        num_envs: int,
        layout: Callable[[int], Layout],
        fill: Callable[[Arrays], None] = lambda arrays: None,
    ) -> None:
        """More copies, or fewer: those of the highest rows go; the others' episodes go on.

        Args:
            num_envs: E from now on.
            layout: of the arrays of E copies.
            fill: told of the new arrays before the new copies begin.

        Raises:
            ConfigError: steps are under way.
            ResourceError: the new arrays do not fit; everything is as it was.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends everything; may be called again."""


class SerialDriver(CopyDriver):
    """Copies in this process, stepped one after another.

    Args:
        layout: of their arrays.
        job: makes an `Assignment` of `layout` and `ranges`.
        first: the first copy, where it is there already.
        name: of the environment, for messages.
        policy: what a fault leads to; it is raised as it is unless given.

    Raises:
        ConfigError, ResourceError, KernelError: a copy could not be made.
    """

    backend = "serial"

    def __init__(
        self,
        layout: Layout,
        job: Callable[..., Assignment],
        first: Any,
        *,
        num_envs: int,
        name: str,
        policy: FaultPolicy | None = None,
    ) -> None:
        self.num_envs, self.begun, self._closed = num_envs, False, False
        self._raises = policy is None
        self._pulse: Any = PULSES.pop() if PULSES else None
        self._arrays = layout.views(bytearray(layout.size))
        self.ledger = FaultLog(policy or FaultPolicy("raise"), num_envs, name)
        self._arrived: list[int] = []  # were stepped, and nobody has received them yet
        part = job(layout=layout, ranges=((0, num_envs),))
        watched = _nothing if self._pulse is None else self._beat
        self._copies = ForeignCopies(part, self._arrays, self._report, watched)
        self._copies.alone = True
        if self._pulse is not None:
            self._copies.hand = self._pulse
        try:
            if first is not None:
                self._copies.adopt(first)
            self._copies.make_some(range(first is not None, num_envs))
            self.ledger.check_any()
        except BaseException:
            self.close()
            raise

    def _beat(self, copy: int | None) -> None:
        """`BEAT` is odd while copies are called."""
        words = self._pulse
        if copy is None:
            words[BEAT] += words[BEAT] & 1
        else:
            words[AT] = copy
            words[BEAT] |= 1

    def _report(
        self,
        kind: str,
        copy: int,
        episode: int,
        step: int,
        action: list[Any],
        text: str,
        error: BaseException,
    ) -> None:
        if self._raises or not theirs(error):
            raise error
        cause = error.__cause__ or error
        self.ledger.add(Fault(kind, copy, 0, 0, episode, step, action, text, cause))

    @property
    def arrays(self) -> Arrays:
        return self._arrays

    def check_open(self) -> None:
        if self._closed:
            raise closed(self.ledger.name)

    def ready(self) -> None:
        self.check_open()

    def settle(self) -> None:
        if self._closed:
            raise closed(self.ledger.name)
        if self._arrived:
            raise not_received(self.ledger.name)

    def run(self, what: str) -> None:
        self.settle()
        self._call(what)

    def begin_reset(self, arguments: Arguments) -> None:
        self.begun = True
        self._call("begin", *arguments(list(range(self.num_envs))))

    def end_reset(self, timeout: float | None = None) -> bool:
        return True

    def begin_step(self, t: int) -> bool:
        self._copies.step(t)
        return True

    @property
    def eventful(self) -> bool:
        return self._copies.stained

    def end_step(self, timeout: float | None = None) -> bool:
        return True

    @property
    def stepped(self) -> bool:
        return not (self.ledger.total and (self._arrays["down"] | self._arrays["held"]).all())

    def idle_rows(self, copies: Any) -> NDArray[np.int64]:
        return idle_rows(copies, self.under_way)

    def send(self, rows: NDArray[np.int64]) -> None:
        """Steps them at once; `receive` gives them in this order."""
        for row in rows.tolist():
            self._copies.step_one(row)
        self._arrived += rows.tolist()

    def receive(self, count: int | None, timeout: float | None = None) -> NDArray[np.int64]:
        count = check_asked(count, len(self._arrived))
        ready = np.array(self._arrived[:count], np.int64)
        del self._arrived[:count]
        return ready

    @property
    def under_way(self) -> NDArray[np.bool_]:
        return np.isin(np.arange(self.num_envs), self._arrived)

    @property
    def unseen(self) -> NDArray[np.bool_]:
        return np.zeros(self.num_envs, np.bool_)

    def ask(
        self,
        method: str,
        arguments: Arguments,
        selected: NDArray[np.bool_] | None = None,
        *,
        spare: bool = False,
    ) -> list[tuple[NDArray[np.int64], Any]]:
        rows = np.arange(self.num_envs)
        return [(rows, self._call(method, *arguments(rows.tolist())))]

    def insist(self, method: str, arguments: Arguments) -> list[tuple[NDArray[np.int64], Any]]:
        return self.ask(method, arguments)

    def _call(self, method: str, *arguments: Any) -> Any:
        return getattr(self._copies, method)(*arguments)

    def resize(
        self,
        num_envs: int,
        layout: Callable[[int], Layout],
        fill: Callable[[Arrays], None] = lambda arrays: None,
    ) -> None:
        num_envs = check_count("num_envs", num_envs)
        self.check_open()
        self.settle()
        before, common = self.num_envs, min(self.num_envs, num_envs)
        own = layout(num_envs)
        old, self._arrays = self._arrays, own.views(bytearray(own.size))
        for name, array in self._arrays.items():
            array[:common] = old[name][:common]
        fill(self._arrays)
        self.num_envs = num_envs
        self.ledger.resize(num_envs)
        if num_envs < before:
            self._copies.shrink(self._arrays, num_envs)
        else:
            self._copies.grow(self._arrays, before, num_envs, self.begun)
        self.ledger.check()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._copies.close()
        if self._pulse is not None:
            PULSES.append(self._pulse)


def _nothing(copy: int | None) -> None:
    """Nobody watches."""


def closed(name: str) -> ConfigError:
    """Error for whoever uses what was closed."""
    return ConfigError(f"{name} was closed; make it again to use it.")


def not_received(name: str) -> ConfigError:
    """Error for an order that comes while steps are under way."""
    return ConfigError(
        f"Steps of {name} are under way that were sent and not received; `recv` them all before "
        "anything else is asked of the copies."
    )


def idle_rows(copies: Any, under_way: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Numbers of copies that may be sent to, int64 [n]; all where `copies` is None.

    Raises:
        ConfigError: one does not exist, is there twice, or is under way.
    """
    num_envs = len(under_way)
    rows = np.arange(num_envs) if copies is None else np.asarray(copies, np.int64).reshape(-1)
    if len(np.unique(rows)) < len(rows) or not ((rows >= 0) & (rows < num_envs)).all():
        raise ConfigError(
            f"`send` takes the numbers of different copies, 0 to {num_envs - 1}; it was given "
            f"{rows.tolist()[:8]}."
        )
    if under_way[rows].any():
        busy = rows[under_way[rows]].tolist()
        raise ConfigError(
            f"Copies {busy[:8]} were sent an action that nobody has received the outcome of; "
            "`recv` it first."
        )
    return rows


def check_asked(count: int | None, under_way: int) -> int:
    """How many copies are to be received.

    Raises:
        ConfigError: none, or more than are under way.
    """
    count = under_way if count is None else count
    if not 1 <= count <= under_way:
        raise ConfigError(
            f"`recv` was asked for {count} copies, and {under_way} were sent an action."
        )
    return count
