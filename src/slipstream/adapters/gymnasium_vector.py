"""Gymnasium's `VectorEnv` over sub-environments of a kernel, or over any Gymnasium environments."""

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
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_differing_spaces, batch_space
from numpy.typing import NDArray

from slipstream.adapters.batch import (
    AT_END,
    HANG_SECONDS,
    AdapterBatch,
    BatchStep,
    ClosedError,
    ForeignErrors,
    SpaceError,
    UnreadyError,
    check_single_player,
    each,
    foreign_maker,
    make_batch,
)
from slipstream.core.child_process import FaultPolicy
from slipstream.core.errors import ConfigError, KernelError, SlipstreamError
from slipstream.gym.env_factory import WrappedEnv, make_gymnasium
from slipstream.gym.gymnasium_semantics import NativeEnv
from slipstream.gym.shared_layout import NativeCodec


class VectorAdapter(VectorEnv[Any, Any, NDArray[Any]]):
    """What all faces for Gymnasium share: spaces, seeds, `reset_mask`, and the end.

    Args:
        num_envs: E.
        observation_space, action_space: of one sub-environment.
        autoreset_mode: NextStep, SameStep or Disabled, or Gymnasium's own constant.
        metadata: of the environment; it is copied.
    """

    def __init__(
        self,
        num_envs: int,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        autoreset_mode: str | AutoresetMode,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self.autoreset_mode = mode_of(autoreset_mode)
        self.metadata = {**(metadata or {}), "autoreset_mode": self.autoreset_mode}

    def _seeds(self, seed: Any) -> list[int | None]:
        """One for each sub-environment."""
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
            return [int(seed) + e for e in range(self.num_envs)]
        try:
            seeds = [None if one is None else int(one) for one in seed]
        except (TypeError, ValueError):
            raise TypeError(
                f"`seed` must be a whole number or one for each sub-environment, got {seed!r:.60}"
            ) from None
        if len(seeds) != self.num_envs:
            raise ValueError(
                "If seeds are passed as a list the length must match "
                f"num_envs={self.num_envs} but got length={len(seeds)}."
            )
        return seeds

    def _selected(self, options: dict[str, Any] | None) -> NDArray[np.bool_] | None:
        """`options['reset_mask']`, taken out of the options."""
        if options is None or "reset_mask" not in options:
            return None
        mask, name = options.pop("reset_mask"), "`options['reset_mask']`"
        if not isinstance(mask, np.ndarray):
            raise TypeError(f"{name} must be a numpy array, got {type(mask)}")
        if mask.shape != (self.num_envs,):
            raise ValueError(f"{name} must have shape `({self.num_envs},)`, got {mask.shape}")
        if mask.dtype != np.bool_:
            raise TypeError(f"{name} must have `dtype=np.bool_`, got {mask.dtype}")
        if not mask.any():
            raise ValueError(
                f"{name} must contain a boolean array with at least one True value, got "
                f"reset_mask={mask}"
            )
        return mask

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(
                f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            )


def mode_of(autoreset_mode: str | AutoresetMode) -> AutoresetMode:
    """Gymnasium's constant, of its value, too."""
    try:
        return AutoresetMode(autoreset_mode)
    except ValueError:
        names = ", ".join(mode.value for mode in AutoresetMode)
        raise ConfigError(
            f"There is no autoreset mode {autoreset_mode!r}: choose one of {names}."
        ) from None


_RESERVED_METHODS = ("reset", "step", "close", "_setattr", "_check_spaces")


class ForeignVectorAdapter(VectorAdapter):
    """Takes `AsyncVectorEnv`'s place: the same arguments, results and exceptions.

    What differs: several envs share a worker process; arrays are always the caller's; a time-out
    leaves the call pending, so that it can be awaited again; after an error of a env the others
    are whole and `reset` goes on; stepping an ended copy under DISABLED is an error.

    Args:
        env_fns: [E] functions that make a sub-environment, or ids.
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
        backend: process (auto), or serial in this process.
        workers: W. None uses one per available core.
        on_fault: "raise" what a env raises; "restart" it alone: its episode ends truncated, and
            `infos["fault"]` says why.
        hang_seconds: of one call of a sub-environment, after which it is given up.
        kwargs: keyword arguments of every one of `env_fns`.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any] | str | WrappedEnv],
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
                "`worker` cannot be replaced here: its envs share memory with this process in a "
                "layout of slipstream's. Wrap the environment instead."
            )
        workers = limit_workers(workers, max_concurrency)
        mode, makers = mode_of(autoreset_mode), list(env_fns)
        batched, single = spaces(observation_mode, makers, kwargs)
        try:
            env = NativeEnv(
                makers,
                backend="process" if backend == "auto" else backend,
                at_end=AT_END[mode],
                workers=workers,
                method=context or "forkserver",
                policy=FaultPolicy(on_fault, hang_seconds),  # type: ignore[arg-type]
                fixed_size=shared_memory is not False,
                same_spaces=observation_mode == "same",
                kwargs=kwargs,
            )
        except (ConfigError, KernelError) as error:
            raise observation_error(error, observation_mode) from None
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
        """The generators of all sub-environments."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """What each sub-environment was last seeded with."""
        return self.get_attr("np_random_seed")

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Any = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begins new episodes; see `VectorEnv.reset`.

        Args:
            seed: sub-environment e gets seed + e, or the e-th seed of a list.
            options: handed to every env; a list of them has one for each. ``reset_mask`` (bool
                [E]) in a dict chooses sub-environments, the others show what they did.
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
        """Steps every sub-environment; see `VectorEnv.step`."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Begins `step`; `step_wait` ends it."""
        self._check_open()
        self._check_idle("step_async", ".")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._over.any():
            raise UnreadyError(
                f"The episodes of envs {np.flatnonzero(self._over)[:8].tolist()} have ended, and "
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
        """An attribute of every environment, found through its wrappers; called if it can be."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Keeps a call; `call_wait` makes it."""
        self._check_open()
        self._check_idle("call_async", ".")
        if name in _RESERVED_METHODS:
            raise ValueError(
                f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
            )
        self._pending, self._asked = "call", (name, args, kwargs)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Makes the call that `call_async` kept."""
        self._check_pending("call")
        assert self._asked is not None
        (name, args, kwargs), self._pending = self._asked, None
        with ForeignErrors():
            return tuple(self.env.call(name, args, kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every sub-environment; called if it can be, as Gymnasium does."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of every env: one value for all, or a list with one for each."""
        self._check_open()
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(values)}` values for {self.num_envs} environments."
            )
        self._check_idle("set_attr", ".")
        with ForeignErrors():
            self.env.set_attr(name, values)

    def render(self) -> tuple[Any, ...]:
        """What each sub-environment draws."""
        return self.call("render")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Ends the sub-environments and their workers.

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
            with ForeignErrors():
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
        """All envs that failed, in Gymnasium's words: only one of their exceptions is raised."""
        faults = self.env.drain_faults()
        for fault in faults:
            logger.error(
                f"Received the following error from Worker-{fault.env_id} - Shutting it down"
            )
            logger.error("%s", fault.text[max(0, fault.text.find("Traceback (")) :])
        if faults:
            logger.error("Raising the last exception back to the main process.")


def limit_workers(workers: int | None, max_concurrency: Any) -> int | None:
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
    """The batched and the single observation space, where they are not those of all envs."""
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


def observation_error(error: SlipstreamError, observation_mode: Any) -> SlipstreamError:
    """Spaces that differ, in Gymnasium's words; any other error as it is."""
    if "all sub-environments must have the same" not in str(error):
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
    """Refuses sub-environments whose observations are not of one shape and dtype."""
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
    return [] if NativeCodec(space).fixed_size else [space]


class KernelVectorAdapter(VectorAdapter):
    """Sub-environments of a kernel, on any backend.

    Infos hold what there is to say, each key with its ``_key`` mask: `metrics`, the kernel's, where
    an episode ended; `episode` (``r``, ``l``) there, too, if asked for; `action_mask` bool
    [E, n] at every step where the kernel has a mask; `valid` where a transition is not real. Under
    SAME_STEP the first two stand in `final_info`, beside `final_obs`.

    Args:
        batch: the sub-environments.
        statistics: tell `episode`, as `RecordEpisodeStatistics` would: leave that wrapper out then.
    """

    def __init__(self, batch: AdapterBatch, *, statistics: bool = False) -> None:
        check_single_player(batch, "a VectorEnv has")
        super().__init__(
            batch.num_envs, batch.observation_space, batch.action_space, batch.autoreset
        )
        self.batch, self.statistics = batch, statistics

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begins new episodes.

        Args:
            seed: env e begins the stream of seed + e, or of the e-th seed of a list; None: each
                goes on with its own.
            options: ``{"reset_mask": bool [E]}`` chooses environments; the others stay as they are.
        """
        self._check_open()
        seeds, selected = self._seeds(seed), self._selected(options)
        if options:
            raise ConfigError(
                f"{self.batch.name} has no reset options {sorted(options)}: a kernel takes "
                "`reset_mask` only; its settings are given where it is made."
            )
        if isinstance(seed, (int, np.integer)):
            super().reset(seed=int(seed))
        obs = self.batch.reset(seeds, selected)
        chosen = np.ones(self.num_envs, np.bool_) if selected is None else selected
        return obs, self._allowed(chosen)

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Steps every sub-environment; all arrays are fresh.

        Raises:
            ActionError: wrong number, shape or dtype, or not in the action space.
            UnreadyError: a sub-environment was not reset, or has ended under DISABLED.
        """
        self._check_open()
        came = self.batch.step(actions)
        infos = self._infos(came) if len(came.ended) else {}
        if came.valid is not None:
            infos |= {"valid": came.valid, "_valid": ~came.valid}
        if self.batch.mask is not None:
            # NEXT_STEP ignores the next action of a sub-environment that has ended.
            next_step = self.autoreset_mode is AutoresetMode.NEXT_STEP
            ended = came.terminated | came.truncated
            infos |= self._allowed(~ended if next_step else np.ones(self.num_envs, np.bool_))
        return came.obs, came.reward.astype(np.float64), came.terminated, came.truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the sub-environments."""
        self.batch.close()

    def _infos(self, came: BatchStep) -> dict[str, Any]:
        """What there is to say of the episodes that ended."""
        told: dict[str, Any] = {}
        if self.statistics:
            told |= self._column(
                "episode", came, {"r": came.episodes.returns, "l": came.episodes.length}
            )
        if came.episodes.metrics:
            told |= self._column("metrics", came, came.episodes.metrics)
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            return told
        finals = np.full(self.num_envs, None, dtype=object)
        for e, obs in zip(came.ended.tolist(), each(came.finals), strict=False):
            finals[e] = obs
        ended = came.terminated | came.truncated
        return {
            "final_obs": finals,
            "_final_obs": ended,
            "final_info": told,
            "_final_info": ended.copy(),
        }

    def _column(
        self, name: str, came: BatchStep, values: Mapping[str, NDArray[Any]]
    ) -> dict[str, Any]:
        """Numbers of the ended episodes as arrays [E] with their masks."""
        mask = np.zeros(self.num_envs, np.bool_)
        mask[came.episodes.e] = True
        inner: dict[str, Any] = {}
        for key, column in values.items():
            inner[key] = np.zeros((self.num_envs, *column.shape[1:]), column.dtype)
            inner[key][came.episodes.e] = column
            inner[f"_{key}"] = mask.copy()
        return {name: inner, f"_{name}": mask}

    def _allowed(self, chosen: NDArray[np.bool_]) -> dict[str, Any]:
        mask = self.batch.mask
        return {} if mask is None else {"action_mask": mask.copy(), "_action_mask": chosen.copy()}


def make_vec(
    target: str | Mapping[str, Any],
    num_envs: int = 1,
    *,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    **options: Any,
) -> VectorAdapter:
    """Sub-environments as Gymnasium's `VectorEnv`; what ``gym.make_vec("slipstream/...")`` calls.

    Args:
        target: as for `slipstream.make_vec`: a kernel's name or file, or ``gym:ID``.
        num_envs: E.
        autoreset_mode: NextStep, SameStep or Disabled.
        **options: `backend` and `workers` as for `make_batch`; of a kernel `split`, `statistics`
            (see `KernelVectorAdapter`) and the fields of its Config; of ``gym:ID`` its `kwargs` and
            `wrappers`, and options of `ForeignVectorAdapter`.
    """
    if make := foreign_maker(target, options):
        return ForeignVectorAdapter([make] * num_envs, autoreset_mode=autoreset_mode, **options)
    statistics, mode = options.pop("statistics", False), mode_of(autoreset_mode)
    batch = make_batch(target, num_envs, autoreset=mode, foreign=False, **options)
    return KernelVectorAdapter(batch, statistics=statistics)
