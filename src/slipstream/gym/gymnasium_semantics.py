"""E copies of foreign environments as Gymnasium itself steps them, for faces to other libraries.

Nothing is flattened, scaled or cast: observations and actions keep their spaces and dtypes, seeds
and infos are the environment's own. Training uses `VectorEnv` instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from slipstream.core.child_process import FaultPolicy
from slipstream.core.errors import ConfigError
from slipstream.gym.env_factory import env_name, make_gymnasium
from slipstream.gym.infos import InfoReader
from slipstream.gym.process.fault_log import Fault
from slipstream.gym.process.process_driver import ProcessDriver
from slipstream.gym.process.process_pool import ProcessPool
from slipstream.gym.serial_driver import SerialDriver
from slipstream.gym.shared_layout import NativeCodec, gymnasium_layout
from slipstream.gym.worker_config import (
    DISABLED,
    NEXT_STEP,
    SAME_STEP,
    SubEnvConfig,
    WorkerConfig,
    registered_specs,
)
from slipstream.kernels.space_codec import RECURSIVE_SPACE

__all__ = ["DISABLED", "NEXT_STEP", "SAME_STEP", "NativeEnv"]
RAISE = FaultPolicy("raise")
_PAUSE_SECONDS = 0.01  # between two tries where no copy at all can be stepped


class NativeEnv:
    """E copies of environments, stepped in this process or in workers.

    The arrays are overwritten by the next call; `observation` and its like return fresh ones.

    Args:
        envs: [E] ids, or what makes a copy when called; the first is made here to look at.
        backend: "serial" or "process".
        at_end: NEXT_STEP, SAME_STEP or DISABLED: what follows the end of an episode.
        workers, method, policy, crowd: of backend "process"; see `ForeignEnv`.
        fixed: observations have places of fixed size if their space allows it; else they are
            handed over pickled, as they must be if it does not.
        alike: all copies must have the same observation space; else only its form.
        kwargs: keyword arguments of every id, or of what makes a copy.
        wrap: a wrapper that is laid around every copy.

    Attributes:
        num_envs: E.
        observation_space, action_space: of the first copy; metadata, spec, render_mode: likewise.
        copies: who steps them.

    Raises:
        ConfigError, ResourceError, KernelError: they cannot be made.
    """

    def __init__(
        self,
        envs: Sequence[Any],
        *,
        backend: str = "serial",
        at_end: int = NEXT_STEP,
        workers: int | None = None,
        method: str = "forkserver",
        policy: FaultPolicy = RAISE,
        fixed_size: bool = True,
        same_spaces: bool = True,
        process_pool: ProcessPool | None = None,
        kwargs: Mapping[str, Any] | None = None,
        wrapper: Callable[[Any], Any] | None = None,
    ) -> None:
        if not envs:
            raise ConfigError("An environment of no copies was asked for; give at least one.")
        if backend not in ("serial", "process"):
            raise ConfigError(
                f"Foreign environments are stepped by `serial` or `process`; `{backend}` is "
                "neither."
            )
        probe, name, given = make_gymnasium(envs[0], kwargs), env_name(envs[0]), dict(kwargs or {})
        shown, acted = probe.observation_space, probe.action_space
        try:
            placed = fixed_size and NativeCodec(shown).fixed_size
        except RecursionError:
            raise ConfigError(f"{name}, observations: {RECURSIVE_SPACE}") from None
        what = SubEnvConfig(
            tuple(envs),
            name,
            shown,
            acted,
            kwargs=given,
            same_spaces=same_spaces,
            fixed_size=placed,
            registered_specs=registered_specs(envs),
            wrapper=wrapper,
        )
        probe = probe if wrapper is None else wrapper(probe)
        self.num_envs, self.backend, self.env_config = len(envs), backend, what
        # Clients may change theirs; copies that are made later are compared with the first one's.
        self.observation_space, self.action_space = deepcopy((shown, acted))
        self.metadata = dict(getattr(probe, "metadata", {}) or {})
        self.spec = getattr(probe, "spec", None)
        self.render_mode = getattr(probe, "render_mode", None)
        self._observations, self._actions = NativeCodec(shown, placed), NativeCodec(acted)
        self._restart = policy.on_fault == "restart"
        self._pending: tuple[str, list[Any] | None] | None = None
        self._found: list[Any] = []  # observations without a place in the arrays
        self._layout = partial(gymnasium_layout, self._observations, self._actions)
        job = partial(WorkerConfig, what, at_end=at_end, restart=self._restart)
        layout = self._layout(self.num_envs)
        self.driver: SerialDriver | ProcessDriver
        if backend == "serial":
            self.driver = SerialDriver(
                layout, job, probe, num_envs=self.num_envs, name=name, policy=policy
            )
            self._infos = InfoReader(self.driver, self.final_of)
            return
        try:
            self.driver = driver = ProcessDriver(
                layout,
                job,
                num_envs=self.num_envs,
                name=name,
                workers=workers,
                method=method,
                policy=policy,
                process_pool=process_pool,
            )
            driver.start()
        finally:
            probe.close()
        self._infos = InfoReader(self.driver, self.final_of)

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Arrays that copies wrote, each [E, ...].

        ``obs.i`` and ``final.i`` of the observation's i-th leaf, ``reward`` float64,
        ``terminated``, ``truncated``, ``ended``, ``kept`` (``final.i`` is of this step), ``valid``
        (false at a reset that stands in for a step, and after a fault), ``lost`` (the episode was
        cut by a fault).
        """
        return self.driver.arrays

    # Steps and resets, in one call or begun and awaited.

    def reset(
        self,
        seeds: Sequence[int | None] | None = None,
        options: Any = None,
        selected: NDArray[np.bool_] | None = None,
    ) -> None:
        """Begins new episodes.

        Args:
            seeds: [E], handed to each copy's `reset`; None leaves its random stream as it is.
            options: a mapping for all, or a list of them, one for each copy.
            selected: bool [E], which copies; all unless given.
        """
        self.reset_async(seeds, options, selected)
        self.wait()

    def step(self, actions: Any) -> None:
        """Steps every copy; actions as Gymnasium's vector environments take them."""
        self.step_async(actions)
        self.wait()

    def reset_async(
        self,
        seeds: Sequence[int | None] | None = None,
        options: Any = None,
        selected: NDArray[np.bool_] | None = None,
    ) -> None:
        """Begins `reset`; `wait` ends it."""
        self._idle()
        self.driver.settle()
        every, each = list(seeds or [None] * self.num_envs), self._options(options)
        self.arrays["selected"][:] = True if selected is None else selected
        self._infos.clear()
        self.driver.begin_reset(
            lambda rows: ([every[row] for row in rows], [each[row] for row in rows])
        )
        self._pending = ("reset", None)

    def step_async(self, actions: Any) -> None:
        """Begins `step`; `wait` ends it.

        Raises:
            ValueError, TypeError: too few or too many actions, or none; nothing was stepped.
        """
        self._idle()
        array, each = self._actions_of(actions)
        self.driver.settle()  # refuses while steps are under way, which read these actions
        self._infos.clear()
        if array is not None:
            self.arrays["actions"][...] = array
        self._begin_step(each)
        self._pending = ("step", each)

    def _begin_step(self, each: list[Any] | None) -> None:
        if each is not None:
            self._hand_actions(dict(enumerate(each)))
        self.driver.begin_step(0)

    def _hand_actions(self, by_row: Mapping[int, Any]) -> None:
        """Those that have no place in the arrays."""
        self.driver.call(
            "set_actions",
            lambda rows: ({row: by_row[row] for row in rows if row in by_row},),
            self._chosen(by_row),
            allow_lost=True,
        )

    def wait(self, timeout: float | None = None) -> None:
        """Ends what was begun.

        Raises:
            TimeoutError: after so many seconds; it is still under way, and can be awaited again.
            KernelError: a copy failed, where the policy is "raise"; its cause is what was raised.
        """
        driver = self.driver
        driver.check_open()
        pending, self._pending = self._pending, None
        if pending is not None:
            what, each = pending
            over = driver.end_reset if what == "reset" else partial(self._end_step, each)
            if not over(timeout):
                self._pending = pending
                raise TimeoutError(f"`{what}` is not over after {timeout:g} s.")
            driver.fault_log.record_valid(self.arrays["valid"])
        driver.fault_log.check()

    def _end_step(self, each: list[Any] | None, timeout: float | None) -> bool:
        """Return true if the step of at least one copy is over in time, if any can be stepped."""
        driver, until = self.driver, None if timeout is None else time.monotonic() + timeout
        while driver.end_step(None if until is None else max(0.0, until - time.monotonic())):
            if driver.stepped or self.arrays["lost"].any() or not self._restart:
                return True
            time.sleep(_PAUSE_SECONDS)  # all are being made anew
            driver.fault_log.check()
            self._begin_step(each)
        return False

    def _idle(self) -> None:
        """Ends what was begun and never awaited; its outcome is nobody's."""
        self.driver.check_open()
        if self._pending is not None:
            self.wait()

    def send(self, actions: Any, copies: Any = None) -> None:
        """Asks for a step of some copies, at their own pace in worker processes.

        Args:
            actions: of these copies, as for `step`.
            copies: [n] which; all unless given.
        """
        self._idle()
        rows = self.driver.idle_rows(copies)
        array = self._actions.as_batch_array(actions, len(rows))
        if array is not None:
            self.arrays["actions"][rows] = array
        else:
            each = self._actions.split_actions(actions, len(rows))
            self._hand_actions(dict(zip(rows.tolist(), each, strict=True)))
        self.driver.send(rows)

    def recv(self, count: int | None = None, timeout: float | None = None) -> NDArray[np.int64]:
        """Waits for the first copies that are ready; which, in the order of their becoming so.

        That order depends on timing; in this process it is that of `send`. Their rows of the
        arrays hold the outcome until the next `send` to them; so do `infos` and its like, which
        tell of all copies that are not under way.

        Args:
            count: how many; all that are under way unless given.
            timeout: seconds; TimeoutError after that.
        """
        self.driver.check_open()
        ready = self.driver.receive(count, timeout)
        self._infos.clear()
        self.driver.fault_log.record_valid(self.arrays["valid"][ready], ready)
        self.driver.fault_log.check()
        return ready

    @property
    def in_flight(self) -> NDArray[np.bool_]:
        """Copies that were sent an action and not received since, bool [E]."""
        return self.driver.in_flight

    # What came of it.

    def observation(self) -> Any:
        """The newest observations, a fresh batch."""
        if not self._observations.fixed_size:
            return self._observations.stack(self._objects())
        return self._observations.unflatten(
            [self.arrays[f"obs.{i}"].copy() for i in range(len(self._observations.leaves))]
        )

    def observations_at(self, copies: NDArray[np.int64]) -> Any:
        """Those of some copies, a fresh batch in their order."""
        return self._batch_of(copies, np.zeros(len(copies), np.bool_))

    def final_observations_at(self, copies: NDArray[np.int64]) -> Any:
        """What copies whose episode ended at this step showed last, a fresh batch."""
        return self._batch_of(copies, self.arrays["has_final"][copies])

    def _batch_of(self, copies: NDArray[np.int64], final: NDArray[np.bool_]) -> Any:
        """Their newest observations, or the last ones of the episodes that ended."""
        if not self._observations.fixed_size:
            shown = [self.final_of if own else self.observation_of for own in final.tolist()]
            pairs = zip(shown, copies.tolist(), strict=True)
            return self._observations.stack([show(copy) for show, copy in pairs])
        parts = []
        for i in range(len(self._observations.leaves)):
            part = self.arrays[f"obs.{i}"][copies]
            part[final] = self.arrays[f"final.{i}"][copies[final]]
            parts.append(part)
        return self._observations.unflatten(parts)

    def observation_of(self, copy: int) -> Any:
        """That of one copy, fresh, as the environment itself shows it."""
        if not self._observations.fixed_size:
            return self._objects()[copy]
        return self._single("obs", copy)

    def final_of(self, copy: int) -> Any:
        """The last observation of an episode that ended at this step (SAME_STEP), fresh."""
        final = self._infos.final_info(copy)
        if self._observations.fixed_size and (final is None or final[0] is None):
            return self._single("final", copy)
        return None if final is None else final[0]

    def _single(self, name: str, copy: int) -> Any:
        rows = (self.arrays[f"{name}.{i}"][copy] for i in range(len(self._observations.leaves)))
        return self._observations.unflatten([deepcopy(row) for row in rows])

    def info_list(self) -> list[dict[str, Any]]:
        """Newest info of each copy, [E]; of an ended episode's successor under SAME_STEP.

        The dicts are the caller's.
        """
        return self._infos.info_list()

    def final_info_list(self) -> list[dict[str, Any] | None]:
        """The last info of episodes that ended at this step (SAME_STEP), [E]; None elsewhere."""
        return self._infos.final_info_list()

    def infos(self) -> dict[str, Any]:
        """The same as arrays [E] with a mask ``_key`` of each, in Gymnasium's form.

        Under SAME_STEP with ``final_obs`` and ``final_info`` where episodes ended; ``{}`` where
        nobody said anything. Infos of numbers alone lie in the block; others, and the first ones
        of every form, are pickled in worker processes.
        """
        return self._infos.batch()

    def _objects(self) -> list[Any]:
        found, new = self._found, self.num_envs - len(self._found)
        if new > 0:  # of copies that were never shown
            found += [None] * new
            parts = self.driver.call_with_retry("get_observations", lambda _: ())
        else:
            parts = self.driver.call("get_observations", lambda _: (), allow_lost=True)
        for rows, part in parts:
            if part is not None:  # else its copies go on showing what they showed last
                for row, value in zip(rows.tolist(), part, strict=True):
                    found[row] = value
        return found[: self.num_envs]

    # The copies themselves.

    def call(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        copies: Sequence[int] | None = None,
    ) -> list[Any]:
        """An attribute of the copies, called where it can be; found through their wrappers."""
        wanted = list(range(self.num_envs) if copies is None else copies)
        values = self._each(
            "call", {row: (row, name, tuple(args), dict(kwargs or {})) for row in wanted}
        )
        return [values[row] for row in wanted]

    def get_attr(self, name: str, copies: Sequence[int] | None = None) -> list[Any]:
        """An attribute of the copies, found through their wrappers."""
        return self.call("get_wrapper_attr", (name,), None, copies)

    def set_attr(
        self, name: str, values: Sequence[Any], copies: Sequence[int] | None = None
    ) -> None:
        """Sets an attribute, one value for each of the copies.

        A copy that is made again after a failure is given it, too; what `call` did is not repeated.
        """
        wanted = range(self.num_envs) if copies is None else copies
        self._each(
            "set_attrs", dict(zip(wanted, zip(wanted, values, strict=True), strict=True)), name
        )
        for row, value in zip(wanted, values, strict=True):
            self.env_config.attributes.setdefault(row, {})[name] = value

    def _each(self, method: str, by_row: Mapping[int, Any], *first: Any) -> dict[int, Any]:
        """Calls a method of the copies with what each is to have; what it returns of each."""
        self._idle()
        self.driver.ready()
        answers = self.driver.call(
            method,
            lambda rows: (*first, [by_row[row] for row in rows if row in by_row]),
            self._chosen(by_row),
        )
        return {
            row: value
            for rows, part in answers
            if part is not None
            for row, value in zip([r for r in rows.tolist() if r in by_row], part, strict=True)
        }

    def _chosen(self, by_row: Mapping[int, Any]) -> NDArray[np.bool_]:
        chosen = np.zeros(self.num_envs, np.bool_)
        chosen[list(by_row)] = True
        return chosen

    def resize(self, num_envs: int) -> None:
        """More copies, or fewer: those of the highest rows are closed, the others go on.

        New ones are made as the first ones were, in turn; where the others have been reset, they
        are, too, without a seed. `arrays` are others after it.
        """
        self._idle()
        self.driver.resize(num_envs, self._layout)
        self.num_envs = num_envs
        self._infos.clear()
        del self._found[num_envs:]
        for row in [row for row in self.env_config.attributes if row >= num_envs]:
            del self.env_config.attributes[row]

    def drain_faults(self) -> list[Fault]:
        """Faults of copies or their processes since the last call."""
        return self.driver.fault_log.drain()

    def close(self) -> None:
        """Closes the copies; may be called again."""
        self.driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _actions_of(self, actions: Any) -> tuple[NDArray[Any] | None, list[Any] | None]:
        """Actions as an array for the block, or one for each copy."""
        array = self._actions.as_batch_array(actions, self.num_envs)
        if array is not None:
            return array, None
        return None, self._actions.split_actions(actions, self.num_envs)

    def _options(self, options: Any) -> list[Any]:
        if not isinstance(options, list):
            return [options] * self.num_envs
        if len(options) != self.num_envs:
            raise ConfigError(
                f"`options` has {len(options)} entries for {self.num_envs} copies: give one for "
                "each, or one mapping for all."
            )
        return options
