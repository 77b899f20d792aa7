"""Adapters with Gymnasium's `VectorEnv` interface for kernels and Gymnasium environments."""

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
    ResetNeededError,
    SpaceError,
    check_single_player,
    get_foreign_env_fn,
    make_batch,
    split_batch,
)
from slipstream.core.child_process import FaultPolicy
from slipstream.core.errors import ConfigError, KernelError, SlipstreamError
from slipstream.gym.env_factory import WrappedEnv, make_gymnasium
from slipstream.gym.gymnasium_semantics import NativeEnv
from slipstream.gym.shared_layout import NativeCodec


class VectorAdapter(VectorEnv[Any, Any, NDArray[Any]]):
    """Base class of the adapters for Gymnasium: spaces, seeds, `reset_mask` and closing.

    Args:
        num_envs: Number of sub-environments, E.
        observation_space, action_space: Spaces of one sub-environment.
        autoreset_mode: NextStep, SameStep or Disabled, or a `gymnasium.vector.AutoresetMode`.
        metadata: Metadata of the environment, which is not modified.
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
        self.autoreset_mode = as_autoreset_mode(autoreset_mode)
        self.metadata = {**(metadata or {}), "autoreset_mode": self.autoreset_mode}

    def _seeds(self, seed: Any) -> list[int | None]:
        """Return one seed per sub-environment."""
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
            return [int(seed) + e for e in range(self.num_envs)]
        try:
            seeds = [None if item is None else int(item) for item in seed]
        except (TypeError, ValueError):
            raise TypeError(
                f"`seed` must be an integer or one per sub-environment, got {seed!r:.60}"
            ) from None
        if len(seeds) != self.num_envs:
            raise ValueError(
                "If seeds are passed as a list the length must match "
                f"num_envs={self.num_envs} but got length={len(seeds)}."
            )
        return seeds

    def _selected(self, options: dict[str, Any] | None) -> NDArray[np.bool_] | None:
        """Remove and return `options['reset_mask']`."""
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


def as_autoreset_mode(autoreset_mode: str | AutoresetMode) -> AutoresetMode:
    """Convert the name of an autoreset mode to `gymnasium.vector.AutoresetMode`."""
    try:
        return AutoresetMode(autoreset_mode)
    except ValueError:
        names = ", ".join(mode.value for mode in AutoresetMode)
        raise ConfigError(
            f"`autoreset_mode` must be one of {names}, got {autoreset_mode!r}."
        ) from None


_RESERVED_METHODS = ("reset", "step", "close", "_setattr", "_check_spaces")


class ForeignVectorAdapter(VectorAdapter):
    """Drop-in replacement for `AsyncVectorEnv`: the same arguments, results and exceptions.

    Differences:

    - Several sub-environments share a worker process.
    - Returned arrays always belong to the caller.
    - A call that times out stays pending and can be awaited again.
    - After an error of a sub-environment the others remain intact, and `reset` continues.
    - Stepping an ended sub-environment with autoreset disabled is an error.

    Args:
        env_fns: Functions that create a sub-environment, or ids, [E].
        shared_memory: Store observations in shared memory (True) or pickle them (False). None
            stores them if their space has a fixed size.
        copy: Ignored, because all arrays are new.
        context: Start method of workers, "forkserver" (default) or "spawn".
        daemon: Ignored: workers never outlive this process.
        worker: Must be None: the worker function cannot be replaced.
        observation_mode: "same", "different" (equal shape and dtype, other bounds), or a tuple of
            the batched and the single space.
        autoreset_mode: NextStep, SameStep or Disabled.
        max_concurrency: Maximum number of workers.
        backend: "process" ("auto"), or "serial" in this process.
        workers: Number of workers. None uses one per available core.
        on_fault: "raise" errors of a sub-environment, or "restart" it alone: its episode ends
            truncated, with the reason in `infos["fault"]`.
        hang_seconds: Time limit of one call of a sub-environment.
        kwargs: Keyword arguments of every entry of `env_fns`.
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
                "`worker` must be None: workers share memory with this process in a layout of "
                "slipstream. Wrap the environment instead."
            )
        workers = limit_workers(workers, max_concurrency)
        mode, factories = as_autoreset_mode(autoreset_mode), list(env_fns)
        batched, single = get_observation_spaces(observation_mode, factories, kwargs)
        try:
            env = NativeEnv(
                factories,
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
            raise as_space_error(error, observation_mode) from None
        self.env = env
        try:
            if shared_memory:
                check_fixed_size(env.observation_space)
            single_space = env.observation_space if single is None else single
            if observation_mode != "same":
                check_equal_spaces(env.get_attr("observation_space"), single_space)
            super().__init__(env.num_envs, single_space, env.action_space, mode, env.metadata)
        except BaseException:
            env.close()
            raise
        if batched is not None:
            self.observation_space = batched
        self.render_mode, self.observation_mode = env.render_mode, observation_mode
        self._pending: str | None = None
        self._pending_call: tuple[str, tuple[Any, ...], dict[str, Any]] | None = None
        self._over = np.zeros(self.num_envs, np.bool_)

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Random generators of all sub-environments."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """Last seed of each sub-environment."""
        return self.get_attr("np_random_seed")

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Any = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset sub-environments; see `VectorEnv.reset`.

        Args:
            seed: Sub-environment e gets seed + e, or the e-th seed of a list.
            options: Options of every sub-environment, or a list with one entry each. The key
                ``reset_mask`` (bool [E]) selects sub-environments. The others keep their last
                observation.
        """
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: Any = None
    ) -> None:
        """Start a reset; `reset_wait` completes it."""
        self._check_open()
        seeds = self._seeds(seed)
        self._check_idle("reset_async", "")
        selected = self._selected(options) if isinstance(options, dict) else None
        self.env.reset_async(seeds, options, selected)
        self._pending = "reset"
        self._over &= np.zeros(self.num_envs, np.bool_) if selected is None else ~selected

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Complete `reset_async`."""
        self._await("reset", timeout)
        return self.env.observation(), self.env.infos()

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Step every sub-environment; see `VectorEnv.step`."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Start a step; `step_wait` completes it."""
        self._check_open()
        self._check_idle("step_async", ".")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._over.any():
            raise ResetNeededError(
                f"The episodes of envs {np.flatnonzero(self._over)[:8].tolist()} have ended, and "
                "autoreset is disabled. Reset them with "
                "options={'reset_mask': terminations | truncations} before the next step."
            )
        self.env.step_async(actions)
        self._pending = "step"

    def step_wait(
        self, timeout: float | None = None
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Complete `step_async`."""
        self._await("step", timeout)
        arrays = self.env.arrays
        terminated, truncated = arrays["terminated"].copy(), arrays["truncated"].copy()
        self._over = terminated | truncated
        infos = self.env.infos()
        return self.env.observation(), arrays["reward"].copy(), terminated, truncated, infos

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return an attribute of every sub-environment, called if callable."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Store a call; `call_wait` executes it."""
        self._check_open()
        self._check_idle("call_async", ".")
        if name in _RESERVED_METHODS:
            raise ValueError(
                f"Trying to call function `{name}` with `call`, use `{name}` directly instead."
            )
        self._pending, self._pending_call = "call", (name, args, kwargs)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Execute the call stored by `call_async`."""
        self._check_pending("call")
        assert self._pending_call is not None
        (name, args, kwargs), self._pending = self._pending_call, None
        with ForeignErrors():
            return tuple(self.env.call(name, args, kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every sub-environment, called if callable, as Gymnasium does."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute: one value for all sub-environments, or a list with one each."""
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
        """Return the rendered frame of each sub-environment."""
        return self.call("render")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close all sub-environments and workers.

        Args:
            timeout: Seconds to wait for a pending call.
            terminate: Do not wait.
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
            with suppress(UserWarning):  # if warnings are errors, the first error is raised
                self._log_faults()
            raise
        self._pending = None

    def _log_faults(self) -> None:
        """Log all faults with Gymnasium's messages, because only one exception is raised."""
        faults = self.env.drain_faults()
        for fault in faults:
            logger.error(
                f"Received the following error from Worker-{fault.env_id} - Shutting it down"
            )
            logger.error("%s", fault.text[max(0, fault.text.find("Traceback (")) :])
        if faults:
            logger.error("Raising the last exception back to the main process.")


def limit_workers(workers: int | None, max_concurrency: Any) -> int | None:
    """Return the number of workers, limited by `max_concurrency`."""
    if max_concurrency is None:
        return workers
    if isinstance(max_concurrency, bool) or not isinstance(max_concurrency, (int, np.integer)):
        raise ValueError(
            f"`max_concurrency` must be an integer or None, got {type(max_concurrency)}."
        )
    if max_concurrency < 1:
        raise ValueError(f"`max_concurrency` must be a positive or None, got {max_concurrency}.")
    return min(workers or int(max_concurrency), int(max_concurrency))


def get_observation_spaces(
    observation_mode: Any, env_fns: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> tuple[Space[Any] | None, Space[Any] | None]:
    """Return the batched and the single observation space of an observation mode, or None."""
    if isinstance(observation_mode, tuple) and len(observation_mode) == 2:
        for space in observation_mode:
            if not isinstance(space, Space):
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
    env_spaces = []
    for env_fn in env_fns:
        env = make_gymnasium(env_fn, kwargs)
        env_spaces.append(env.observation_space)
        env.close()
    return batch_differing_spaces(env_spaces), env_spaces[0]


def as_space_error(error: SlipstreamError, observation_mode: Any) -> SlipstreamError:
    """Return an error about unequal spaces with Gymnasium's message; other errors unchanged."""
    if "all sub-environments must have the same" not in str(error):
        return error
    hint = (
        "If this is intentional, use `observation_mode='different'` instead. "
        if observation_mode == "same"
        else ""
    )
    return SpaceError(f"the sub-environments observation spaces are not equivalent. {hint}{error}")


def check_equal_spaces(env_spaces: Sequence[Space[Any]], single: Space[Any]) -> None:
    """Check that all sub-environments have observations of one shape and dtype."""
    for e, space in enumerate(env_spaces):
        if not is_space_dtype_shape_equiv(space, single):
            raise SpaceError(
                f"the sub-environments observation spaces do not share a common shape and dtype: "
                f"environment {e} has {space} instead of {single}."
            )


def check_fixed_size(space: Space[Any]) -> None:
    """Check that a space has a fixed size, as Gymnasium does for shared memory.

    Text and OneOf, which Gymnasium stores in shared memory, are pickled here with the same results.
    """
    parts = _find_dynamic_parts(space)
    dynamic = (gymnasium.spaces.Graph, gymnasium.spaces.Sequence)
    if any(isinstance(part, dynamic) for part in parts):
        raise TypeError(
            f"As {space} has a dynamic shape so its not possible to make a static shared memory. "
            "For `AsyncVectorEnv`, disable `shared_memory`."
        )
    if any(not type(part).__module__.startswith("gymnasium.") for part in parts):
        raise ValueError(
            f"{space} is a custom space, which has no layout in shared memory. Omit or disable "
            "`shared_memory`."
        )


def _find_dynamic_parts(space: Space[Any]) -> list[Space[Any]]:
    """Return the parts of Dict, Tuple and OneOf spaces without a fixed size."""
    if isinstance(space, gymnasium.spaces.Dict):
        return [leaf for part in space.spaces.values() for leaf in _find_dynamic_parts(part)]
    if isinstance(space, gymnasium.spaces.Tuple | gymnasium.spaces.OneOf):
        return [leaf for part in space.spaces for leaf in _find_dynamic_parts(part)]
    return [] if NativeCodec(space).fixed_size else [space]


class KernelVectorAdapter(VectorAdapter):
    """Vector environment of a kernel, on any backend.

    Infos have these keys, each with its ``_key`` mask:

    - `metrics`: the kernel's metrics, where an episode ended.
    - `episode` (``r``, ``l``): its return and length, with `statistics`.
    - `action_mask`: bool [E, n] at every step, if the kernel has a mask.
    - `valid`: false for transitions that did not happen.

    Under SAME_STEP the first two are in `final_info`, beside `final_obs`.

    Args:
        batch: The sub-environments.
        statistics: Add `episode`. It replaces the wrapper `RecordEpisodeStatistics`.
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
        """Reset sub-environments.

        Args:
            seed: Sub-environment e gets seed + e, or the e-th seed of a list. None continues the
                current random streams.
            options: ``{"reset_mask": bool [E]}`` selects sub-environments. Others are unchanged.
        """
        self._check_open()
        seeds, selected = self._seeds(seed), self._selected(options)
        if options:
            raise ConfigError(
                f"{self.batch.name} has no reset options {sorted(options)}. Kernels only support "
                "`reset_mask`; pass settings when the environment is created."
            )
        if isinstance(seed, (int, np.integer)):
            super().reset(seed=int(seed))
        obs = self.batch.reset(seeds, selected)
        selected_rows = np.ones(self.num_envs, np.bool_) if selected is None else selected
        return obs, self._get_mask_info(selected_rows)

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Step every sub-environment and return new arrays.

        Raises:
            ActionError: Wrong number, shape or dtype, or outside the action space.
            ResetNeededError: A sub-environment needs a reset.
        """
        self._check_open()
        result = self.batch.step(actions)
        infos = self._make_infos(result) if len(result.ended) else {}
        if result.valid is not None:
            infos |= {"valid": result.valid, "_valid": ~result.valid}
        if self.batch.mask is not None:
            # Under NEXT_STEP the next action of an ended episode is ignored.
            next_step = self.autoreset_mode is AutoresetMode.NEXT_STEP
            ended = result.terminated | result.truncated
            infos |= self._get_mask_info(~ended if next_step else np.ones(self.num_envs, np.bool_))
        return (
            result.obs,
            result.reward.astype(np.float64),
            result.terminated,
            result.truncated,
            infos,
        )

    def close_extras(self, **kwargs: Any) -> None:
        """Close all sub-environments."""
        self.batch.close()

    def _make_infos(self, step: BatchStep) -> dict[str, Any]:
        """Return the infos of episodes that ended."""
        infos: dict[str, Any] = {}
        if self.statistics:
            infos |= self._make_info_column(
                "episode", step, {"r": step.episodes.returns, "l": step.episodes.length}
            )
        if step.episodes.metrics:
            infos |= self._make_info_column("metrics", step, step.episodes.metrics)
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            return infos
        finals = np.full(self.num_envs, None, dtype=object)
        for e, obs in zip(step.ended.tolist(), split_batch(step.final_obs), strict=False):
            finals[e] = obs
        ended = step.terminated | step.truncated
        return {
            "final_obs": finals,
            "_final_obs": ended,
            "final_info": infos,
            "_final_info": ended.copy(),
        }

    def _make_info_column(
        self, name: str, step: BatchStep, values: Mapping[str, NDArray[Any]]
    ) -> dict[str, Any]:
        """Return values of ended episodes as arrays [E] with masks."""
        mask = np.zeros(self.num_envs, np.bool_)
        mask[step.episodes.e] = True
        inner: dict[str, Any] = {}
        for key, column in values.items():
            inner[key] = np.zeros((self.num_envs, *column.shape[1:]), column.dtype)
            inner[key][step.episodes.e] = column
            inner[f"_{key}"] = mask.copy()
        return {name: inner, f"_{name}": mask}

    def _get_mask_info(self, selected: NDArray[np.bool_]) -> dict[str, Any]:
        mask = self.batch.mask
        return {} if mask is None else {"action_mask": mask.copy(), "_action_mask": selected.copy()}


def make_vec(
    target: str | Mapping[str, Any],
    num_envs: int = 1,
    *,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    **options: Any,
) -> VectorAdapter:
    """Create a Gymnasium `VectorEnv`; called by ``gym.make_vec("slipstream/...")``.

    Args:
        target: As for `slipstream.make_vec`: kernel name or file, or ``gym:ID``.
        num_envs: Number of sub-environments, E.
        autoreset_mode: NextStep, SameStep or Disabled.
        **options: `backend` and `workers` as for `make_batch`. Kernels: `split`, `statistics` (see
            `KernelVectorAdapter`) and fields of their Config. ``gym:ID``: `kwargs`, `wrappers`
            and options of `ForeignVectorAdapter`.
    """
    if factory := get_foreign_env_fn(target, options):
        return ForeignVectorAdapter([factory] * num_envs, autoreset_mode=autoreset_mode, **options)
    statistics, mode = options.pop("statistics", False), as_autoreset_mode(autoreset_mode)
    batch = make_batch(target, num_envs, autoreset=mode, foreign=False, **options)
    return KernelVectorAdapter(batch, statistics=statistics)
