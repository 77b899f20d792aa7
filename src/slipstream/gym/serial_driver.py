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
from slipstream.gym.env_factory import is_env_error
from slipstream.gym.process.fault_log import Fault, FaultLog
from slipstream.gym.process.shared_memory import Layout
from slipstream.gym.sub_env_group import SubEnvGroup
from slipstream.gym.worker_config import WorkerConfig

Arrays = Mapping[str, NDArray[Any]]
Arguments = Callable[[list[int]], tuple[Any, ...]]
"""Builds the arguments of a call for a list of rows."""
Answers = list[tuple[NDArray[np.int64], Any]]
"""Pairs of rows and the value returned for them."""


class BaseDriver:
    """Base class of both drivers.

    Attributes:
        num_envs: Number of sub-environments, E.
        begun: True after the first reset.
        closed: True after `close`.
        fault_log: Counts faults and raises if there are too many.
    """

    def __init__(self, num_envs: int, name: str, policy: FaultPolicy) -> None:
        self.num_envs, self.begun, self.closed = num_envs, False, False
        self.fault_log = FaultLog(policy, num_envs, name)

    def check_open(self) -> None:
        """Raise ConfigError if the driver is closed."""
        if self.closed:
            raise ConfigError(f"{self.fault_log.name} is closed. Create it again to use it.")

    def not_received(self) -> ConfigError:
        """Return the error for a command that comes while steps are in flight."""
        return ConfigError(
            f"{self.fault_log.name} has steps that were sent but not received. Call `recv` until "
            "all are received before you use it otherwise."
        )

    def idle_rows(self, env_ids: Any) -> NDArray[np.int64]:
        """Return the rows of idle sub-environments; None selects all of them.

        Raises:
            ConfigError: Ids are out of range, repeated, or have a step in flight.
        """
        rows = (
            np.arange(self.num_envs) if env_ids is None else np.asarray(env_ids, np.int64).ravel()
        )
        if len(np.unique(rows)) < len(rows) or not ((rows >= 0) & (rows < self.num_envs)).all():
            raise ConfigError(
                f"`send` takes distinct environment ids from 0 to {self.num_envs - 1}, got "
                f"{rows.tolist()[:8]}."
            )
        busy = rows[self.in_flight[rows]].tolist()
        if busy:
            raise ConfigError(
                f"Environments {busy[:8]} have a step in flight. Call `recv` before the next "
                "`send` to them."
            )
        return rows

    @property
    def in_flight(self) -> NDArray[np.bool_]:
        """Mask of sub-environments whose step was sent but not received, bool [E]."""
        raise NotImplementedError

    def _count(self, count: int | None) -> int:
        """Return the number of sub-environments to receive.

        Raises:
            ConfigError: It is zero, or more than are in flight.
        """
        sent = int(np.count_nonzero(self.in_flight))
        count = sent if count is None else count
        if not 1 <= count <= sent:
            raise ConfigError(
                f"`recv` cannot return {count} environments: {sent} have a step in flight. Call "
                "`send` first, or lower the count."
            )
        return count

    def _move(
        self, old: Arrays, arrays: Arrays, num_envs: int, fill: Callable[[Arrays], None]
    ) -> None:
        """Copy the state of the remaining rows to other arrays and set `num_envs`."""
        common = min(self.num_envs, num_envs)
        for name, array in arrays.items():
            array[:common] = old[name][:common]
        fill(arrays)
        self.num_envs = num_envs
        self.fault_log.resize(num_envs)


class SerialDriver(BaseDriver):
    """Sub-environments in this process, stepped one after another.

    Args:
        layout: Layout of the arrays.
        config: Builds a `WorkerConfig` from `layout` and `ranges`.
        first: First sub-environment, if it exists already.
        num_envs: Number of sub-environments, E.
        name: Name of the environment, for messages.
        policy: Fault policy. With None, errors are raised unchanged.

    Attributes:
        arrays: Arrays [E, ...] that the sub-environments read and write. `resize` replaces them.
        group: The sub-environments.

    Raises:
        ConfigError, ResourceError, KernelError: A sub-environment could not be created.
    """

    backend = "serial"

    def __init__(
        self,
        layout: Layout,
        config: Callable[..., WorkerConfig],
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
        self._ready: list[int] = []  # stepped, not received
        worker_config = config(layout=layout, ranges=((0, num_envs),))
        self.group = SubEnvGroup(
            worker_config, self.arrays, self._report, self._pulse, exclusive=True
        )
        try:
            if first is not None:
                self.group.set_env(first)
            self.group.make(int(first is not None))
            self.fault_log.check_startup()
        except BaseException:
            self.close()
            raise

    def _report(self, fault: Fault) -> None:
        error = fault.error
        assert error is not None
        if self._raises or not is_env_error(error):
            raise error
        self.fault_log.add(fault._replace(error=error.__cause__ or error))

    def ready(self) -> None:
        """Wait until every sub-environment exists and, after a reset, has begun an episode."""
        self.check_open()

    def settle(self) -> None:
        """Check that no step is in flight.

        Raises:
            ConfigError: Steps were sent but not received, or the driver is closed.
        """
        self.check_open()
        if self._ready:
            raise self.not_received()

    def run(self, method: str) -> None:
        """Call "reset" or "replay" of the selected sub-environments, ending their episodes."""
        self.settle()
        getattr(self.group, method)()

    def begin_reset(self, arguments: Arguments) -> None:
        """Start the reset of the selected sub-environments; `end_reset` waits for it.

        Args:
            arguments: Builds the arguments of `SubEnvGroup.reset`.
        """
        self.begun = True
        self.group.reset(*arguments(list(range(self.num_envs))))

    def end_reset(self, timeout: float | None = None) -> bool:
        """Wait for the reset and return true if it ends within `timeout` seconds."""
        return True

    def begin_step(self, t: int) -> None:
        """Start a step of all available sub-environments."""
        self.group.step(t)

    def end_step(self, timeout: float | None = None) -> bool:
        """Wait for the step and return true if it ends within `timeout` seconds."""
        return True

    @property
    def has_events(self) -> bool:
        """True if an episode may have ended, or a sub-environment failed or waited."""
        return self.group.needs_clear

    @property
    def stepped(self) -> bool:
        """True if any sub-environment took part in the last step or is available by now."""
        return not (self.fault_log.total and (self.arrays["down"] | self.arrays["held"]).all())

    def send(self, rows: NDArray[np.int64]) -> None:
        """Step idle sub-environments whose actions are written.

        In this process the steps are taken immediately, and `receive` returns them in this order.
        """
        for row in rows.tolist():
            self.group.step_one(row)
        self._ready += rows.tolist()

    def receive(self, count: int | None, timeout: float | None = None) -> NDArray[np.int64]:
        """Return the rows of the first `count` finished steps, in the order of completion.

        Args:
            count: Number of rows; None for all in flight.
            timeout: Seconds to wait.

        Raises:
            ConfigError: Fewer are in flight.
            TimeoutError: They are not ready in time. Finished steps remain for the next call.
        """
        count = self._count(count)
        ready = np.array(self._ready[:count], np.int64)
        del self._ready[:count]
        return ready

    @property
    def in_flight(self) -> NDArray[np.bool_]:
        return np.isin(np.arange(self.num_envs), self._ready)

    @property
    def dirty(self) -> NDArray[np.bool_]:
        """Mask of sub-environments whose state changed after their last output, bool [E]."""
        return np.zeros(self.num_envs, np.bool_)

    def call(
        self,
        method: str,
        arguments: Arguments,
        selected: NDArray[np.bool_] | None = None,
        *,
        allow_lost: bool = False,
    ) -> Answers:
        """Call a method of `SubEnvGroup` in every process that has sub-environments; slow.

        Args:
            method: Name of the method.
            arguments: Builds its arguments.
            selected: Mask, bool [E]. Only processes with selected sub-environments are called.
            allow_lost: Return None for a worker that is lost during the call.

        Returns:
            Pairs (rows, value), one for each call.

        Raises:
            KernelError: A worker was lost during the call. Errors of the method are raised too.
        """
        rows = np.arange(self.num_envs)
        return [(rows, getattr(self.group, method)(*arguments(rows.tolist())))]

    def call_with_retry(self, method: str, arguments: Arguments) -> Answers:
        """Like `call`, but call a lost worker again after its restart."""
        return self.call(method, arguments)

    def resize(
        self,
        num_envs: int,
        layout: Callable[[int], Layout],
        fill: Callable[[Arrays], None] = lambda arrays: None,
    ) -> None:
        """Change the number of sub-environments; remaining episodes continue.

        Shrinking closes the highest rows.

        Args:
            num_envs: New number of sub-environments, E.
            layout: Returns the layout of the arrays for E sub-environments.
            fill: Called with the new arrays before new sub-environments are reset.

        Raises:
            ConfigError: Steps are in flight.
            ResourceError: The new arrays do not fit into memory. Nothing is changed.
        """
        num_envs = check_count("num_envs", num_envs)
        self.settle()
        before, old, new_layout = self.num_envs, self.arrays, layout(num_envs)
        self.arrays = new_layout.views(bytearray(new_layout.size))
        self._move(old, self.arrays, num_envs, fill)
        if num_envs < before:
            self.group.shrink(self.arrays, num_envs)
        else:
            self.group.grow(self.arrays, before, num_envs, self.begun)
        self.fault_log.check()

    def close(self) -> None:
        """Close all sub-environments. Safe to call again."""
        if self.closed:
            return
        self.closed = True
        self.group.close()
        if self._pulse is not None:
            HEARTBEATS.append(self._pulse)
