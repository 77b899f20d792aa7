"""Vector environments with Gymnasium's own semantics, for the adapters to other libraries.

Nothing is flattened, scaled or cast. Observations and actions keep their spaces and dtypes; seeds
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
_RETRY_SECONDS = 0.01  # between attempts while nothing can be stepped


class NativeEnv:
    """Sub-environments with Gymnasium's own semantics, in this process or in workers.

    The next call overwrites the arrays. `observation` and similar methods return new arrays.

    Args:
        envs: Ids, or functions that create a sub-environment, [E]. The first one is created here
            to read its spaces.
        backend: "serial" or "process".
        at_end: Autoreset mode: NEXT_STEP, SAME_STEP or DISABLED.
        workers, method, policy, process_pool: For backend "process", see `ForeignEnv`.
        fixed_size: Store observations in shared memory if their space allows it. Otherwise they
            are pickled.
        same_spaces: Require equal observation spaces. Otherwise only their structure is compared.
        kwargs: Keyword arguments of every entry of `envs`.
        wrapper: Wrapper applied to every sub-environment.

    Attributes:
        num_envs: Number of sub-environments, E.
        observation_space, action_space: Spaces of the first sub-environment.
        metadata, spec, render_mode: Those of the first sub-environment.
        driver: Steps the sub-environments.

    Raises:
        ConfigError, ResourceError, KernelError: A sub-environment cannot be created.
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
            raise ConfigError("`envs` is empty. Pass at least one environment.")
        if backend not in ("serial", "process"):
            raise ConfigError(
                f"The backend of Gymnasium environments must be `serial` or `process`, got "
                f"`{backend}`."
            )
        probe, name, env_kwargs = (
            make_gymnasium(envs[0], kwargs),
            env_name(envs[0]),
            dict(kwargs or {}),
        )
        observation_space, action_space = probe.observation_space, probe.action_space
        try:
            in_arrays = fixed_size and NativeCodec(observation_space).fixed_size
        except RecursionError:
            raise ConfigError(f"{name}, observations: {RECURSIVE_SPACE}") from None
        config = SubEnvConfig(
            tuple(envs),
            name,
            observation_space,
            action_space,
            kwargs=env_kwargs,
            same_spaces=same_spaces,
            fixed_size=in_arrays,
            registered_specs=registered_specs(envs),
            wrapper=wrapper,
        )
        probe = probe if wrapper is None else wrapper(probe)
        self.num_envs, self.backend, self.env_config = len(envs), backend, config
        # Clients may change these; later sub-environments are compared with the originals.
        self.observation_space, self.action_space = deepcopy((observation_space, action_space))
        self.metadata = dict(getattr(probe, "metadata", {}) or {})
        self.spec = getattr(probe, "spec", None)
        self.render_mode = getattr(probe, "render_mode", None)
        self._observations, self._actions = (
            NativeCodec(observation_space, in_arrays),
            NativeCodec(action_space),
        )
        self._restart = policy.on_fault == "restart"
        self._pending: tuple[str, list[Any] | None] | None = None
        self._cached_observations: list[Any] = []  # observations that are not in the arrays
        self._layout = partial(gymnasium_layout, self._observations, self._actions)
        make_worker_config = partial(WorkerConfig, config, at_end=at_end, restart=self._restart)
        layout = self._layout(self.num_envs)
        self.driver: SerialDriver | ProcessDriver
        if backend == "serial":
            self.driver = SerialDriver(
                layout, make_worker_config, probe, num_envs=self.num_envs, name=name, policy=policy
            )
            self._infos = InfoReader(self.driver, self.get_final_observation)
            return
        try:
            self.driver = driver = ProcessDriver(
                layout,
                make_worker_config,
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
        self._infos = InfoReader(self.driver, self.get_final_observation)

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Arrays that sub-environments write, each [E, ...].

        ``obs.i`` and ``final.i`` of the i-th leaf of an observation; ``reward`` float64;
        ``terminated``, ``truncated`` and ``ended``; ``has_final`` (``final.i`` is of this step);
        ``valid`` (false for a reset in place of a step, and after a fault); ``lost`` (a fault
        ended the episode).
        """
        return self.driver.arrays

    # Steps and resets, synchronous or asynchronous.

    def reset(
        self,
        seeds: Sequence[int | None] | None = None,
        options: Any = None,
        selected: NDArray[np.bool_] | None = None,
    ) -> None:
        """Reset sub-environments.

        Args:
            seeds: Seed of each sub-environment, [E]. None leaves its random generator unchanged.
            options: Mapping for all sub-environments, or a list with one mapping each.
            selected: Mask of sub-environments to reset, bool [E]. None resets all.
        """
        self.reset_async(seeds, options, selected)
        self.wait()

    def step(self, actions: Any) -> None:
        """Step every sub-environment with a batch of actions, as in Gymnasium's vector API."""
        self.step_async(actions)
        self.wait()

    def reset_async(
        self,
        seeds: Sequence[int | None] | None = None,
        options: Any = None,
        selected: NDArray[np.bool_] | None = None,
    ) -> None:
        """Start a reset; `wait` completes it."""
        self._finish_pending()
        self.driver.settle()
        all_seeds, all_options = list(seeds or [None] * self.num_envs), self._options(options)
        self.arrays["selected"][:] = True if selected is None else selected
        self._infos.clear()
        self.driver.begin_reset(
            lambda rows: ([all_seeds[row] for row in rows], [all_options[row] for row in rows])
        )
        self._pending = ("reset", None)

    def step_async(self, actions: Any) -> None:
        """Start a step; `wait` completes it.

        Raises:
            ValueError, TypeError: The number of actions is wrong. Nothing was stepped.
        """
        self._finish_pending()
        array, action_list = self._convert_actions(actions)
        self.driver.settle()  # raises while steps that read these actions are in flight
        self._infos.clear()
        if array is not None:
            self.arrays["actions"][...] = array
        self._begin_step(action_list)
        self._pending = ("step", action_list)

    def _begin_step(self, action_list: list[Any] | None) -> None:
        if action_list is not None:
            self._send_actions(dict(enumerate(action_list)))
        self.driver.begin_step(0)

    def _send_actions(self, by_row: Mapping[int, Any]) -> None:
        """Send actions that have no place in the arrays."""
        self.driver.call(
            "set_actions",
            lambda rows: ({row: by_row[row] for row in rows if row in by_row},),
            self._row_mask(by_row),
            allow_lost=True,
        )

    def wait(self, timeout: float | None = None) -> None:
        """Complete a started reset or step.

        Raises:
            TimeoutError: It is not complete in time. It stays pending and can be awaited again.
            KernelError: A sub-environment failed with policy "raise". The cause is its error.
        """
        driver = self.driver
        driver.check_open()
        pending, self._pending = self._pending, None
        if pending is not None:
            call, action_list = pending
            complete = driver.end_reset if call == "reset" else partial(self._end_step, action_list)
            if not complete(timeout):
                self._pending = pending
                raise TimeoutError(f"`{call}` did not complete within {timeout:g} s.")
            driver.fault_log.record_valid(self.arrays["valid"])
        driver.fault_log.check()

    def _end_step(self, action_list: list[Any] | None, timeout: float | None) -> bool:
        """Wait for a step in which at least one sub-environment took part."""
        driver, deadline = self.driver, None if timeout is None else time.monotonic() + timeout
        while driver.end_step(None if deadline is None else max(0.0, deadline - time.monotonic())):
            if driver.stepped or self.arrays["lost"].any() or not self._restart:
                return True
            time.sleep(_RETRY_SECONDS)  # all are waiting for a restart
            driver.fault_log.check()
            self._begin_step(action_list)
        return False

    def _finish_pending(self) -> None:
        """Complete a started call and discard its result."""
        self.driver.check_open()
        if self._pending is not None:
            self.wait()

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Request a step of sub-environments; workers step them independently.

        Args:
            actions: Batch of actions, as for `step`.
            env_ids: Ids of the sub-environments, [n]. None selects all.
        """
        self._finish_pending()
        rows = self.driver.idle_rows(env_ids)
        array = self._actions.as_batch_array(actions, len(rows))
        if array is not None:
            self.arrays["actions"][rows] = array
        else:
            action_list = self._actions.split_actions(actions, len(rows))
            self._send_actions(dict(zip(rows.tolist(), action_list, strict=True)))
        self.driver.send(rows)

    def recv(self, count: int | None = None, timeout: float | None = None) -> NDArray[np.int64]:
        """Wait for the first finished steps and return their ids in order of completion.

        The order depends on timing; in this process it is the order of `send`. Rows of the arrays
        hold the results until the next `send` to them. `infos` and similar methods cover all
        sub-environments that are not in flight.

        Args:
            count: Number of ids. None waits for all in flight.
            timeout: Seconds to wait before TimeoutError.
        """
        self.driver.check_open()
        ready = self.driver.receive(count, timeout)
        self._infos.clear()
        self.driver.fault_log.record_valid(self.arrays["valid"][ready], ready)
        self.driver.fault_log.check()
        return ready

    @property
    def in_flight(self) -> NDArray[np.bool_]:
        """Mask of sub-environments with a step sent but not received, bool [E]."""
        return self.driver.in_flight

    # Results.

    def observation(self) -> Any:
        """Return the newest observations as a new batch."""
        if not self._observations.fixed_size:
            return self._observations.stack(self._fetch_observations())
        return self._observations.unflatten(
            [self.arrays[f"obs.{i}"].copy() for i in range(len(self._observations.leaves))]
        )

    def observations_at(self, env_ids: NDArray[np.int64]) -> Any:
        """Return the newest observations of some sub-environments, in their order."""
        return self._batch_observations(env_ids, np.zeros(len(env_ids), np.bool_))

    def final_observations_at(self, env_ids: NDArray[np.int64]) -> Any:
        """Return the final observations of episodes that ended at this step."""
        return self._batch_observations(env_ids, self.arrays["has_final"][env_ids])

    def _batch_observations(self, env_ids: NDArray[np.int64], final: NDArray[np.bool_]) -> Any:
        """Return the newest or final observations of sub-environments."""
        if not self._observations.fixed_size:
            getters = [
                self.get_final_observation if is_final else self.get_observation
                for is_final in final.tolist()
            ]
            pairs = zip(getters, env_ids.tolist(), strict=True)
            return self._observations.stack([get(env_id) for get, env_id in pairs])
        parts = []
        for i in range(len(self._observations.leaves)):
            part = self.arrays[f"obs.{i}"][env_ids]
            part[final] = self.arrays[f"final.{i}"][env_ids[final]]
            parts.append(part)
        return self._observations.unflatten(parts)

    def get_observation(self, copy: int) -> Any:
        """Return the newest observation of one sub-environment, unbatched."""
        if not self._observations.fixed_size:
            return self._fetch_observations()[copy]
        return self._read_single("obs", copy)

    def get_final_observation(self, copy: int) -> Any:
        """Return the final observation of an episode that ended at this step (SAME_STEP)."""
        final = self._infos.final_info(copy)
        if self._observations.fixed_size and (final is None or final[0] is None):
            return self._read_single("final", copy)
        return None if final is None else final[0]

    def _read_single(self, name: str, env_id: int) -> Any:
        rows = (self.arrays[f"{name}.{i}"][env_id] for i in range(len(self._observations.leaves)))
        return self._observations.unflatten([deepcopy(row) for row in rows])

    def info_list(self) -> list[dict[str, Any]]:
        """Return the newest info of each sub-environment, [E], as new dicts.

        Under SAME_STEP, an ended episode has the reset info of its successor.
        """
        return self._infos.info_list()

    def final_info_list(self) -> list[dict[str, Any] | None]:
        """Return the final infos of episodes that ended (SAME_STEP), [E]; None elsewhere."""
        return self._infos.final_info_list()

    def infos(self) -> dict[str, Any]:
        """Return the infos in Gymnasium's vector format: arrays [E] with a mask ``_key`` each.

        Under SAME_STEP it has ``final_obs`` and ``final_info`` where episodes ended. It is ``{}``
        if all infos are empty. Infos of numbers are stored in shared memory; others, and the
        first one of every schema, are pickled.
        """
        return self._infos.batch()

    def _fetch_observations(self) -> list[Any]:
        observations, new = (
            self._cached_observations,
            self.num_envs - len(self._cached_observations),
        )
        if new > 0:  # rows that were never output
            observations += [None] * new
            parts = self.driver.call_with_retry("get_observations", lambda _: ())
        else:
            parts = self.driver.call("get_observations", lambda _: (), allow_lost=True)
        for rows, part in parts:
            if part is not None:  # a lost worker keeps its last observations
                for row, value in zip(rows.tolist(), part, strict=True):
                    observations[row] = value
        return observations[: self.num_envs]

    # Access to sub-environments.

    def call(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env_ids: Sequence[int] | None = None,
    ) -> list[Any]:
        """Return an attribute of sub-environments, found through wrappers, called if callable."""
        rows = list(range(self.num_envs) if env_ids is None else env_ids)
        values = self._call_rows(
            "call", {row: (row, name, tuple(args), dict(kwargs or {})) for row in rows}
        )
        return [values[row] for row in rows]

    def get_attr(self, name: str, env_ids: Sequence[int] | None = None) -> list[Any]:
        """Return an attribute of sub-environments, found through wrappers."""
        return self.call("get_wrapper_attr", (name,), None, env_ids)

    def set_attr(
        self, name: str, values: Sequence[Any], env_ids: Sequence[int] | None = None
    ) -> None:
        """Set an attribute, one value per sub-environment.

        Restarted sub-environments get it again. Effects of `call` are not repeated.
        """
        rows = range(self.num_envs) if env_ids is None else env_ids
        self._call_rows(
            "set_attrs", dict(zip(rows, zip(rows, values, strict=True), strict=True)), name
        )
        for row, value in zip(rows, values, strict=True):
            self.env_config.attributes.setdefault(row, {})[name] = value

    def _call_rows(
        self, method: str, by_row: Mapping[int, Any], *extra_args: Any
    ) -> dict[int, Any]:
        """Call a method with one argument per row and return one value per row."""
        self._finish_pending()
        self.driver.ready()
        answers = self.driver.call(
            method,
            lambda rows: (*extra_args, [by_row[row] for row in rows if row in by_row]),
            self._row_mask(by_row),
        )
        return {
            row: value
            for rows, part in answers
            if part is not None
            for row, value in zip([r for r in rows.tolist() if r in by_row], part, strict=True)
        }

    def _row_mask(self, by_row: Mapping[int, Any]) -> NDArray[np.bool_]:
        mask = np.zeros(self.num_envs, np.bool_)
        mask[list(by_row)] = True
        return mask

    def resize(self, num_envs: int) -> None:
        """Change the number of sub-environments; the highest rows are closed first.

        New ones are created like the first ones, in turn. They are reset without a seed if the
        others have been reset. `arrays` is replaced.
        """
        self._finish_pending()
        self.driver.resize(num_envs, self._layout)
        self.num_envs = num_envs
        self._infos.clear()
        del self._cached_observations[num_envs:]
        for row in [row for row in self.env_config.attributes if row >= num_envs]:
            del self.env_config.attributes[row]

    def drain_faults(self) -> list[Fault]:
        """Return the faults since the last call."""
        return self.driver.fault_log.drain()

    def close(self) -> None:
        """Close all sub-environments. Safe to call again."""
        self.driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _convert_actions(self, actions: Any) -> tuple[NDArray[Any] | None, list[Any] | None]:
        """Return actions as an array for shared memory, or as a list."""
        array = self._actions.as_batch_array(actions, self.num_envs)
        if array is not None:
            return array, None
        return None, self._actions.split_actions(actions, self.num_envs)

    def _options(self, options: Any) -> list[Any]:
        if not isinstance(options, list):
            return [options] * self.num_envs
        if len(options) != self.num_envs:
            raise ConfigError(
                f"`options` has {len(options)} entries for {self.num_envs} environments. Pass one "
                "per environment, or one mapping for all."
            )
        return options
