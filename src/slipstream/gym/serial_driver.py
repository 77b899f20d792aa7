"""Drivers step all sub-environments: in this process (`SerialDriver`) or in workers.

`ProcessDriver` (`gym/process/process_driver.py`) has the same methods and uses worker processes.
Sub-environments write their results into the arrays of `gym/shared_layout.py`, one row each. Two
classes on top define the meaning of a step: `ForeignEnv` for agents, `NativeEnv` for other
libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.bounds import check_count
from slipstream.core.child_process import HEARTBEATS, FaultPolicy
from slipstream.core.errors import ConfigError
from slipstream.gym.env_factory import theirs
from slipstream.gym.process.fault_log import Fault, FaultLog
from slipstream.gym.process.shared_memory import Layout
from slipstream.gym.sub_env_group import SubEnvGroup
from slipstream.gym.worker_config import WorkerConfig

Arrays = Mapping[str, NDArray[Any]]
Arguments = Callable[[list[int]], tuple[Any, ...]]
"""Makes the arguments of a call from the rows of the copies that it is made to."""
Answers = list[tuple[NDArray[np.int64], Any]]
"""Rows of the copies, and what the method returned for them."""


class BaseDriver:
    """Base of both drivers.

    Attributes:
        num_envs: E.
        begun: copies have been reset.
        closed: nothing can be asked of them any more.
        ledger: counts faults, and raises if there are too many.
    """

    def __init__(self, num_envs: int, name: str, policy: FaultPolicy) -> None:
        self.num_envs, self.begun, self.closed = num_envs, False, False
        self.ledger = FaultLog(policy, num_envs, name)

    def check_open(self) -> None:
        """Raises ConfigError if it was closed."""
        if self.closed:
            raise ConfigError(f"{self.ledger.name} was closed; make it again to use it.")

    def not_received(self) -> ConfigError:
        """Error for an order that comes while steps are under way."""
        return ConfigError(
            f"Steps of {self.ledger.name} are under way that were sent and not received; `recv` "
            "them all before anything else is asked of the copies."
        )

    def idle_rows(self, copies: Any) -> NDArray[np.int64]:
        """Rows that may be sent to, before their actions are written; all if `copies` is None.

        Raises:
            ConfigError: they are no different copies, or one of them is under way already.
        """
        rows = np.arange(self.num_envs) if copies is None else np.asarray(copies, np.int64).ravel()
        if len(np.unique(rows)) < len(rows) or not ((rows >= 0) & (rows < self.num_envs)).all():
            raise ConfigError(
                f"`send` takes the numbers of different copies, 0 to {self.num_envs - 1}; it was "
                f"given {rows.tolist()[:8]}."
            )
        busy = rows[self.under_way[rows]].tolist()
        if busy:
            raise ConfigError(
                f"Copies {busy[:8]} were sent an action that nobody has received the outcome of; "
                "`recv` it first."
            )
        return rows

    @property
    def under_way(self) -> NDArray[np.bool_]:
        """Copies that were sent an action and not received since, bool [E]."""
        raise NotImplementedError

    def _count(self, count: int | None) -> int:
        """Number of copies to receive.

        Raises:
            ConfigError: none, or more than are under way.
        """
        sent = int(np.count_nonzero(self.under_way))
        count = sent if count is None else count
        if not 1 <= count <= sent:
            raise ConfigError(
                f"`recv` was asked for {count} copies, and {sent} were sent an action."
            )
        return count

    def _move(
        self, old: Arrays, arrays: Arrays, num_envs: int, fill: Callable[[Arrays], None]
    ) -> None:
        """Copies what the first copies show into other arrays; from now on there are `num_envs`."""
        common = min(self.num_envs, num_envs)
        for name, array in arrays.items():
            array[:common] = old[name][:common]
        fill(arrays)
        self.num_envs = num_envs
        self.ledger.resize(num_envs)


class SerialDriver(BaseDriver):
    """Copies in this process, stepped one after another.

    Args:
        layout: of their arrays.
        job: makes an `Assignment` of `layout` and `ranges`.
        first: the first copy, if it exists already.
        name: of the environment, for messages.
        policy: what a fault leads to; it is raised as it is unless given.

    Attributes:
        arrays: what copies read and write, [E, ...] each; others after `resize`.
        copies: the copies themselves.

    Raises:
        ConfigError, ResourceError, KernelError: a copy could not be made.
    """

    backend = "serial"

    def __init__(
        self,
        layout: Layout,
        job: Callable[..., WorkerConfig],
        first: Any,
        *,
        num_envs: int,
        name: str,
        policy: FaultPolicy | None = None,
    ) -> None:
        super().__init__(num_envs, name, policy or FaultPolicy("raise"))
        self._raises = policy is None
        self._pulse: Any = HEARTBEATS.pop() if HEARTBEATS else None
        self.arrays: Arrays = layout.views(bytearray(layout.size))
        self._arrived: list[int] = []  # were stepped, and nobody has received them yet
        part = job(layout=layout, ranges=((0, num_envs),))
        self.copies = SubEnvGroup(part, self.arrays, self._report, self._pulse, alone=True)
        try:
            if first is not None:
                self.copies.adopt(first)
            self.copies.make(int(first is not None))
            self.ledger.check_any()
        except BaseException:
            self.close()
            raise

    def _report(self, fault: Fault) -> None:
        error = fault.error
        assert error is not None
        if self._raises or not theirs(error):
            raise error
        self.ledger.add(fault._replace(error=error.__cause__ or error))

    def ready(self) -> None:
        """Waits until every copy is there, and has begun if the others have."""
        self.check_open()

    def settle(self) -> None:
        """Before any other order.

        Raises:
            ConfigError: steps were sent that nobody has received, or it was closed.
        """
        self.check_open()
        if self._arrived:
            raise self.not_received()

    def run(self, what: str) -> None:
        """Has the copies that are `selected` "begin" or "replay": what they did before is over."""
        self.settle()
        getattr(self.copies, what)()

    def begin_reset(self, arguments: Arguments) -> None:
        """Begins episodes of the copies that are `selected`; `end_reset` waits for them.

        Args:
            arguments: of `begin`, for copies of these rows.
        """
        self.begun = True
        self.copies.begin(*arguments(list(range(self.num_envs))))

    def end_reset(self, timeout: float | None = None) -> bool:
        """Return true if all have begun, at the latest after so many seconds."""
        return True

    def begin_step(self, t: int) -> None:
        """Orders a step of all copies that are there."""
        self.copies.step(t)

    def end_step(self, timeout: float | None = None) -> bool:
        """Waits for the step; returns true if it is over."""
        return True

    @property
    def eventful(self) -> bool:
        """Return true if an episode may have ended at the last step, or a copy failed or idled."""
        return self.copies.stained

    @property
    def stepped(self) -> bool:
        """Return true if any copy was alive at the last step, or is by now."""
        return not (self.ledger.total and (self.arrays["down"] | self.arrays["held"]).all())

    def send(self, rows: NDArray[np.int64]) -> None:
        """Steps these copies, which are idle and whose actions are written.

        In this process that happens at once, and `receive` returns them in this order.
        """
        for row in rows.tolist():
            self.copies.step_one(row)
        self._arrived += rows.tolist()

    def receive(self, count: int | None, timeout: float | None = None) -> NDArray[np.int64]:
        """The first so many copies that are ready, in the order in which they became so.

        Args:
            count: how many; None: all that are under way.

        Raises:
            ConfigError: fewer are under way.
            TimeoutError: they are not ready in time; what is ready waits for the next call.
        """
        count = self._count(count)
        ready = np.array(self._arrived[:count], np.int64)
        del self._arrived[:count]
        return ready

    @property
    def under_way(self) -> NDArray[np.bool_]:
        return np.isin(np.arange(self.num_envs), self._arrived)

    @property
    def unseen(self) -> NDArray[np.bool_]:
        """Copies whose state is another one than they last showed, bool [E]."""
        return np.zeros(self.num_envs, np.bool_)

    def ask(
        self,
        method: str,
        arguments: Arguments,
        selected: NDArray[np.bool_] | None = None,
        *,
        spare: bool = False,
    ) -> Answers:
        """Calls a method of `SubEnvGroup` wherever copies are: slow.

        Args:
            method: its name.
            arguments: of it.
            selected: bool [E]; only where any of these are. All unless given.
            spare: an answer that was lost with a worker is None, if the policy is to go on.

        Returns:
            (rows of the copies, value) of each call.

        Raises:
            KernelError: a worker was lost over it; whatever the method raised.
        """
        rows = np.arange(self.num_envs)
        return [(rows, getattr(self.copies, method)(*arguments(rows.tolist())))]

    def insist(self, method: str, arguments: Arguments) -> Answers:
        """`ask`; a worker that is lost over it is asked again once it is back."""
        return self.ask(method, arguments)

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
            fill: is called with the new arrays before the new copies begin.

        Raises:
            ConfigError: steps are under way.
            ResourceError: the new arrays do not fit; everything is as it was.
        """
        num_envs = check_count("num_envs", num_envs)
        self.settle()
        before, old, own = self.num_envs, self.arrays, layout(num_envs)
        self.arrays = own.views(bytearray(own.size))
        self._move(old, self.arrays, num_envs, fill)
        if num_envs < before:
            self.copies.shrink(self.arrays, num_envs)
        else:
            self.copies.grow(self.arrays, before, num_envs, self.begun)
        self.ledger.check()

    def close(self) -> None:
        """Ends everything; may be called again."""
        if self.closed:
            return
        self.closed = True
        self.copies.close()
        if self._pulse is not None:
            HEARTBEATS.append(self._pulse)
