"""Gymnasium's `VectorEnv` over any Gymnasium environments, in worker processes of slipstream's."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.spaces import Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_differing_spaces
from numpy.typing import NDArray

from slipstream.adapters.copies import AT_END, HANG_SECONDS
from slipstream.adapters.errors import ClosedError, SpaceError, Theirs, UnreadyError
from slipstream.adapters.gymnasium_face import VectorFace, mode_of
from slipstream.core.errors import ConfigError, KernelError, SlipstreamError
from slipstream.core.process import FaultPolicy
from slipstream.gym.form import NativeForm
from slipstream.gym.making import Wrapped, make_gymnasium
from slipstream.gym.native import native_env

_OWN_CALLS = ("reset", "step", "close", "_setattr", "_check_spaces")


class ForeignVectorFace(VectorFace):
    """Takes `AsyncVectorEnv`'s place: the same arguments, results and exceptions.

    What differs: several copies share a worker process; arrays are always the caller's; a time-out
    leaves the call pending, so that it can be awaited again; after an error of a copy the others
    are whole and `reset` goes on; stepping an ended copy under DISABLED is an error.

    Args:
        env_fns: [E] functions that make a copy, or ids.
        shared_memory: observations have places in shared memory; False: they are pickled; None:
            shared where their space has a fixed size.
        copy: either; fresh arrays cost no more here.
        context: how workers are started: forkserver (default) or spawn.
        daemon: either; workers never outlive this process.
        worker: None; the worker cannot be replaced.
        observation_mode: "same", "different" (bounds differ, shape and dtype do not), or the
            batched and the single space.
        autoreset_mode: NextStep, SameStep or Disabled.
        max_concurrency: the most workers.
        backend: process, or serial in this process.
        workers: W; the machine's cores unless given.
        on_fault: "raise" what a copy raises; "restart" it alone: its episode ends truncated, and
            `infos["fault"]` says why.
        hang_seconds: of one call of a copy, after which it is given up.
        kwargs: keyword arguments of every one of `env_fns`.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any] | str | Wrapped],
        shared_memory: bool | None = None,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: None = None,
        observation_mode: str | tuple[Space[Any], Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        *,
        backend: str = "process",
        workers: int | None = None,
        on_fault: str = "raise",
        hang_seconds: float = HANG_SECONDS,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if worker is not None:
            raise ValueError(
                "`worker` cannot be replaced here: its copies share memory with this process in a "
                "layout of slipstream's. Wrap the environment instead."
            )
        workers = most_workers(workers, max_concurrency)
        mode, makers = mode_of(autoreset_mode), list(env_fns)
        batched, single = spaces(observation_mode, makers, kwargs)
        try:
            env = native_env(
                makers,
                backend=backend,
                at_end=AT_END[mode],
                workers=workers,
                method=context or "forkserver",
                policy=FaultPolicy(on_fault, hang_seconds),  # type: ignore[arg-type]
                fixed=shared_memory is not False,
                alike=observation_mode == "same",
                kwargs=kwargs,
            )
        except (ConfigError, KernelError) as error:
            raise misfit(error, observation_mode) from None
        self.env = env
        try:
            if shared_memory:
                check_fixed(env.observation_space)
            shown = env.observation_space if single is None else single
            if observation_mode != "same":
                check_alike(env.get_attr("observation_space"), shown)
            super().__init__(env.num_envs, shown, env.action_space, mode, env.metadata)
        except BaseException:
            env.close()
            raise
        if batched is not None:
            self.observation_space = batched
        self.render_mode, self.observation_mode = env.render_mode, observation_mode
        self._pending: str | None = None
        self._asked: tuple[str, tuple[Any, ...], dict[str, Any]] | None = None
        self._over = np.zeros(self.num_envs, np.bool_)

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generators of all copies."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """What each copy was last seeded with."""
        return self.get_attr("np_random_seed")

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Any = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begins new episodes; see `VectorEnv.reset`.

        Args:
            seed: copy e gets seed + e, or the e-th seed of a list.
            options: handed to every copy; a list of them has one for each. ``reset_mask`` (bool
                [E]) in a dict chooses copies, the others show what they did.
        """
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: Any = None
    ) -> None:
        """Begins `reset`; `reset_wait` ends it."""
        self._check_open()
        seeds = self._seeds(seed)
        self._check_idle("reset_async", "")
        selected = self._selected(options) if isinstance(options, dict) else None
        self.env.reset_async(seeds, options, selected)
        self._pending = "reset"
        self._over &= np.zeros(self.num_envs, np.bool_) if selected is None else ~selected

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Ends `reset_async`."""
        self._await("reset", timeout)
        return self.env.observation(), self.env.infos()

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Steps every copy; see `VectorEnv.step`."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Begins `step`; `step_wait` ends it."""
        self._check_open()
        self._check_idle("step_async", ".")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._over.any():
            raise UnreadyError(
                f"The episodes of copies {np.flatnonzero(self._over)[:8].tolist()} have ended, and "
                "with autoreset disabled nobody begins them again: reset with "
                "options={'reset_mask': terminations | truncations} before the next step."
            )
        self.env.step_async(actions)
        self._pending = "step"

    def step_wait(
        self, timeout: float | None = None
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Ends `step_async`."""
        self._await("step", timeout)
        arrays = self.env.arrays
        terminated, truncated = arrays["terminated"].copy(), arrays["truncated"].copy()
        self._over = terminated | truncated
        infos = self.env.infos()
        return self.env.observation(), arrays["reward"].copy(), terminated, truncated, infos

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """An attribute of every copy, found through its wrappers; called if it can be."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Keeps a call; `call_wait` makes it."""
        self._check_open()
        self._check_idle("call_async", ".")
        if name in _OWN_CALLS:
            raise ValueError(
                f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
            )
        self._pending, self._asked = "call", (name, args, kwargs)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Makes the call that `call_async` kept."""
        self._check_pending("call")
        assert self._asked is not None
        (name, args, kwargs), self._pending = self._asked, None
        with Theirs():
            return tuple(self.env.call(name, args, kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every copy; called if it can be, as Gymnasium does."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of every copy: one value for all, or a list with one for each."""
        self._check_open()
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(values)}` values for {self.num_envs} environments."
            )
        self._check_idle("set_attr", ".")
        with Theirs():
            self.env.set_attr(name, values)

    def render(self) -> tuple[Any, ...]:
        """What each copy draws."""
        return self.call("render")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Ends the copies and their workers.

        Args:
            timeout: seconds to wait for what is pending.
            terminate: wait for nothing.
        """
        if not hasattr(self, "env"):
            return
        if getattr(self, "_pending", None) is not None:
            logger.warn(
                f"Calling `close` while waiting for a pending call to `{self._pending}` to "
                "complete."
            )
            if not terminate and self._pending != "call":
                with suppress(TimeoutError, KernelError):
                    self.env.wait(timeout)
        self.env.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(
                f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            )

    def _check_idle(self, name: str, stop: str) -> None:
        if self._pending is not None:
            raise AlreadyPendingCallError(
                f"Calling `{name}` while waiting for a pending call to `{self._pending}` to "
                f"complete{stop}",
                self._pending,
            )

    def _check_pending(self, what: str) -> None:
        self._check_open()
        if self._pending != what:
            raise NoAsyncCallError(
                f"Calling `{what}_wait` without any prior call to `{what}_async`.", what
            )

    def _await(self, what: str, timeout: float | None) -> None:
        self._check_pending(what)
        try:
            with Theirs():
                self.env.wait(timeout)
        except TimeoutError:
            raise multiprocessing.TimeoutError(
                f"The call to `{what}_wait` has timed out after {timeout} second(s)."
            ) from None
        except BaseException:
            self._pending = None
            with suppress(UserWarning):  # where warnings are errors, what was raised matters more
                self._log_faults()
            raise
        self._pending = None

    def _log_faults(self) -> None:
        """All copies that failed, in Gymnasium's words: only one of their exceptions is raised."""
        faults = self.env.drain_faults()
        for fault in faults:
            logger.error(
                f"Received the following error from Worker-{fault.copy} - Shutting it down"
            )
            logger.error("%s", fault.text[max(0, fault.text.find("Traceback (")) :])
        if faults:
            logger.error("Raising the last exception back to the main process.")


def most_workers(workers: int | None, max_concurrency: Any) -> int | None:
    """The number of workers under `max_concurrency`."""
    if max_concurrency is None:
        return workers
    if isinstance(max_concurrency, bool) or not isinstance(max_concurrency, (int, np.integer)):
        raise ValueError(
            f"`max_concurrency` must be an integer or None, got {type(max_concurrency)}."
        )
    if max_concurrency < 1:
        raise ValueError(f"`max_concurrency` must be a positive or None, got {max_concurrency}.")
    return min(workers or int(max_concurrency), int(max_concurrency))


def spaces(
    observation_mode: Any, makers: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> tuple[Space[Any] | None, Space[Any] | None]:
    """The batched and the single observation space, where they are not those of all copies."""
    if isinstance(observation_mode, tuple) and len(observation_mode) == 2:
        for one in observation_mode:
            if not isinstance(one, Space):
                raise TypeError(
                    "Expected both elements of observation_mode to be Spaces, got "
                    f"{type(observation_mode[0])} and {type(observation_mode[1])}"
                )
        return observation_mode
    if observation_mode == "same":
        return None, None
    if observation_mode != "different":
        raise ValueError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and "
            f"batch observation space, actual got {observation_mode}"
        )
    shown = []
    for make in makers:
        env = make_gymnasium(make, kwargs)
        shown.append(env.observation_space)
        env.close()
    return batch_differing_spaces(shown), shown[0]


def misfit(error: SlipstreamError, observation_mode: Any) -> SlipstreamError:
    """Spaces that differ, in Gymnasium's words; any other error as it is."""
    if "all copies must have the same" not in str(error):
        return error
    way_out = (
        "If this is intentional, use `observation_mode='different'` instead. "
        if observation_mode == "same"
        else ""
    )
    return SpaceError(
        f"the sub-environments observation spaces are not equivalent. {way_out}{error}"
    )


def check_alike(each: Sequence[Space[Any]], single: Space[Any]) -> None:
    """Refuses copies whose observations are not of one shape and dtype."""
    for e, space in enumerate(each):
        if not is_space_dtype_shape_equiv(space, single):
            raise SpaceError(
                f"the sub-environments observation spaces do not share a common shape and dtype: "
                f"copy {e} has {space}, and {single} is expected."
            )


def check_fixed(space: Space[Any]) -> None:
    """Refuses shared memory for spaces without a fixed size, as Gymnasium does.

    Text and OneOf, which Gymnasium lays out there, are pickled here, with the same results.
    """
    parts = _unfixed(space)
    dynamic = (gymnasium.spaces.Graph, gymnasium.spaces.Sequence)
    if any(isinstance(part, dynamic) for part in parts):
        raise TypeError(
            f"As {space} has a dynamic shape so its not possible to make a static shared memory. "
            "For `AsyncVectorEnv`, disable `shared_memory`."
        )
    if any(not type(part).__module__.startswith("gymnasium.") for part in parts):
        raise ValueError(
            f"{space} is a space of your own, which has no layout in shared memory: leave "
            "`shared_memory` out, or disable it."
        )


def _unfixed(space: Space[Any]) -> list[Space[Any]]:
    """The parts of Dicts, Tuples and OneOfs that have no place of fixed size."""
    if isinstance(space, gymnasium.spaces.Dict):
        return [leaf for part in space.spaces.values() for leaf in _unfixed(part)]
    if isinstance(space, gymnasium.spaces.Tuple | gymnasium.spaces.OneOf):
        return [leaf for part in space.spaces for leaf in _unfixed(part)]
    return [] if NativeForm(space).fixed else [space]
