"""Adapters with Stable-Baselines3's `VecEnv` interface for kernels and Gymnasium environments."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from slipstream.adapters.batch import (
    HANG_SECONDS,
    BatchStep,
    ForeignErrors,
    KernelBatch,
    ResetNeededError,
    check_single_player,
    get_foreign_env_fn,
    make_batch,
    resolve_indices,
    split_batch,
)
from slipstream.adapters.wrapper_lookup import WrapperLookup
from slipstream.core.child_process import FaultPolicy
from slipstream.core.errors import ConfigError
from slipstream.core.extras import import_optional
from slipstream.gym.env_factory import WrappedEnv
from slipstream.gym.gymnasium_semantics import SAME_STEP, NativeEnv
from slipstream.kernels.spec import EnvSpec

_VEC_ENV = import_optional(
    "stable_baselines3.common.vec_env", "The adapter for Stable-Baselines3", "sb3"
)
_MONITOR = import_optional(
    "stable_baselines3.common.monitor", "The adapter for Stable-Baselines3", "sb3"
)


class KernelVecEnv(_VEC_ENV.VecEnv):  # type: ignore[misc, name-defined]
    """SB3 `VecEnv` of a kernel, which resets within the step.

    Every info has `TimeLimit.truncated`. At the end of an episode it also has
    `terminal_observation`, the kernel's metrics by name (for markets with those of
    `market_metrics`), and `episode` (``r``, ``l``, ``t``) as written by `VecMonitor`. Therefore
    `env_is_wrapped(Monitor)` is true, and a `VecMonitor` is not needed.

    `get_attr` and `set_attr` access attributes that were set, the kernel's STATE fields, and its
    Params, which are read-only.

    Args:
        batch: The sub-environments, with SAME_STEP.
        info_keywords: Metrics that are also added to `episode`.
    """

    def __init__(self, batch: KernelBatch, *, info_keywords: Sequence[str] = ()) -> None:
        if batch.autoreset is not AutoresetMode.SAME_STEP:
            raise ConfigError(
                f"{batch.name}: SB3 requires autoreset SameStep, got {batch.autoreset}."
            )
        check_single_player(batch, "SB3 steps")
        known_metrics = [metric.name for metric in batch.spec.metrics]
        self._has_peak = batch.spec.market is not None and "peak" in (
            batch.env.state.dtype.names or ()
        )
        if self._has_peak:
            ones = np.ones(1)
            known_metrics += market_metrics(batch.spec, dict.fromkeys(known_metrics, ones), ones)
        unknown = sorted(set(info_keywords) - set(known_metrics))
        if unknown:
            raise ConfigError(
                f"`info_keywords` has the unknown metrics {', '.join(unknown)}. {batch.name} has "
                f"{', '.join(known_metrics) or 'no metrics'}."
            )
        self.batch, self.info_keywords = batch, tuple(info_keywords)
        self._attributes: list[dict[str, Any]] = [
            {"render_mode": None} for _ in range(batch.num_envs)
        ]
        self._actions: Any = None
        self._start_time = time.time()
        super().__init__(batch.num_envs, batch.observation_space, batch.action_space)

    def reset(self) -> Any:
        """First observations; seeds and options given before are used once."""
        options = next((item for item in self._options if item), None)
        if options:
            raise ConfigError(f"{self.batch.name} has no reset options {sorted(options)}.")
        self._actions = None
        obs = self.batch.reset(self._seeds)
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return obs

    def step_async(self, actions: Any) -> None:
        """Store the actions; `step_wait` takes the step."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Observations, rewards float32, dones, infos; all of them the caller's."""
        actions, self._actions = self._actions, None
        if actions is None:
            raise ResetNeededError(f"{self.batch.name}: call `step_async` before `step_wait`.")
        env = self.batch.env
        peak = env.read(("peak",))["peak"] if self._has_peak else np.zeros(self.num_envs)
        result = self.batch.step(actions)
        dones = result.terminated | result.truncated
        infos = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        if len(result.ended):
            self._complete_infos(result, infos, peak)
        return result.obs, result.reward, dones, infos

    def _complete_infos(
        self, step: BatchStep, infos: list[dict[str, Any]], peak: NDArray[Any]
    ) -> None:
        """Add final values to infos of ended episodes; `peak` [E] is the peak equity before."""
        cut = (step.truncated & ~step.terminated)[step.ended].tolist()
        for e, limited, final in zip(
            step.ended.tolist(), cut, split_batch(step.final_obs), strict=True
        ):
            infos[e]["TimeLimit.truncated"] = limited
            infos[e]["terminal_observation"] = final
        if step.valid is not None:
            for e in np.flatnonzero(~step.valid).tolist():
                infos[e]["valid"] = False
        ended = step.episodes
        elapsed = round(time.time() - self._start_time, 6)
        more = (
            market_metrics(self.batch.spec, ended.metrics, peak[ended.e]) if self._has_peak else {}
        )
        all_metrics = {**ended.metrics, **more}
        metrics = {name: values.tolist() for name, values in all_metrics.items()}
        numbers = zip(ended.e.tolist(), ended.returns.tolist(), ended.length.tolist(), strict=True)
        for i, (e, ret, length) in enumerate(numbers):
            row = {name: values[i] for name, values in metrics.items()}
            episode = {"r": ret, "l": length, "t": elapsed}
            episode |= {name: row[name] for name in self.info_keywords}
            infos[e] |= {**row, "episode": episode}

    def close(self) -> None:
        """Close all sub-environments. Safe to call again."""
        self.batch.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of some sub-environments."""
        return [self._get_attribute(attr_name, e) for e in self._resolve_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of some sub-environments; STATE fields affect the next observation."""
        state = self.batch.env.state
        for e in self._resolve_indices(indices):
            if attr_name in (state.dtype.names or ()):
                state[attr_name][e] = value
            else:
                self._attributes[e][attr_name] = value

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of some sub-environments: `action_masks`, or a method that was set."""
        methods = [self._get_attribute(method_name, e) for e in self._resolve_indices(indices)]
        return [method(*method_args, **method_kwargs) for method in methods]

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Return true for `Monitor`, whose statistics are in the infos, and false for others."""
        return [wrapper_class is _MONITOR.Monitor for _ in self._resolve_indices(indices)]

    def get_images(self) -> list[None]:
        """Return None for each sub-environment, with a warning: kernels cannot be rendered."""
        warnings.warn(f"{self.batch.name} cannot be rendered.", stacklevel=2)
        return [None] * self.num_envs

    def _resolve_indices(self, indices: Any) -> list[int]:
        return resolve_indices(indices, self.num_envs)

    def _get_attribute(self, name: str, e: int) -> Any:
        """Return an attribute of sub-environment e."""
        if name in self._attributes[e]:
            return self._attributes[e][name]
        built_in: dict[str, Callable[[], Any]] = {
            "observation_space": lambda: self.observation_space,
            "action_space": lambda: self.action_space,
            "get_wrapper_attr": lambda: lambda attribute: self._get_attribute(attribute, e),
            "set_wrapper_attr": lambda: lambda attribute, value: self.set_attr(attribute, value, e),
        }
        if name in built_in:
            return built_in[name]()
        if name == "action_masks" and self.batch.mask is not None:
            mask = self.batch.mask[e].copy()
            return lambda: mask
        env = self.batch.env
        if name in (env.kernel.STATE.names or ()):
            value = env.read((name,))[name][e]
            return value.copy() if isinstance(value, np.ndarray) else value.item()
        if name in (env.params.dtype.names or ()):
            return env.params[name][env.episode_state["param_row"][e]].item()
        raise AttributeError(
            f"{self.batch.name} has no attribute {name!r}: kernels have their STATE fields, their "
            "Params, and attributes set by `set_attr`"
        )


def market_metrics(
    spec: EnvSpec, metrics: Mapping[str, NDArray[Any]], peak: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """Return additional metrics of market episodes for SB3; empty for other environments.

    Args:
        spec: Specification of the environment.
        metrics: Metrics of n ended episodes.
        peak: Highest equity of each before its last bar, float64 [n].

    Returns:
        ``sharpe_ratio``: annualized Sharpe ratio of returns per bar. ``drawdown``: drawdown at the
        end, as a fraction.
    """
    if spec.market is None or not {"sharpe", "total_return"} <= metrics.keys():
        return {}
    equity = spec.market.initial_equity * (1.0 + metrics["total_return"])
    return {
        "sharpe_ratio": metrics["sharpe"] * math.sqrt(spec.market.bars_per_year),
        "drawdown": 1.0 - equity / np.maximum(peak, equity),
    }


class ForeignVecEnv(_VEC_ENV.VecEnv):  # type: ignore[misc, name-defined]
    """Drop-in replacement for `SubprocVecEnv`.

    Workers have several sub-environments each. Errors of a sub-environment are raised unchanged.
    Final infos have `episode` as written by `VecMonitor`.

    Args:
        env_fns: Functions that create a sub-environment, or ids, [E].
        backend: "process" ("auto"), or "serial" in this process.
        workers: Number of workers. None uses one per available core.
        start_method: "forkserver" or "spawn".
        monitor: Add `episode` to final infos that do not have it.
        info_keywords: Keys of final infos that are also added to `episode`.
        on_fault: "raise" errors of a sub-environment, or "restart" it alone.
        hang_seconds: Time limit of one call of a sub-environment.
        kwargs: Keyword arguments of every entry of `env_fns`.
        seed: Seed of the first reset, as for `VecEnv.seed`. None leaves seeding to the
            environments.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any] | str | WrappedEnv],
        *,
        backend: str = "process",
        workers: int | None = None,
        start_method: str = "forkserver",
        monitor: bool = True,
        info_keywords: Sequence[str] = (),
        on_fault: str = "raise",
        hang_seconds: float = HANG_SECONDS,
        kwargs: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        self.env = NativeEnv(
            list(env_fns),
            backend="process" if backend == "auto" else backend,
            at_end=SAME_STEP,
            workers=workers,
            method=start_method,
            policy=FaultPolicy(on_fault, hang_seconds),  # type: ignore[arg-type]
            kwargs=kwargs,
            wrapper=WrapperLookup,
        )
        self.monitor, self.info_keywords = monitor, tuple(info_keywords)
        self._stepping, self._start_time = False, time.time()
        e = self.env.num_envs
        self._ret, self._length = np.zeros(e), np.zeros(e, np.int64)
        try:
            super().__init__(e, self.env.observation_space, self.env.action_space)
        except BaseException:
            self.env.close()
            raise
        self.metadata = self.env.metadata
        if seed is not None:
            self.seed(seed)

    def reset(self) -> Any:
        """First observations; seeds and options given before are used once."""
        self._stepping = False
        options = [item or None for item in self._options]
        with ForeignErrors():
            self.env.reset(self._seeds, options)
        self.reset_infos = self.env.info_list()
        self._ret[:], self._length[:] = 0.0, 0
        self._reset_seeds()
        self._reset_options()
        return self.env.observation()

    def step_async(self, actions: Any) -> None:
        """Start a step. As in SB3, action i is for environment i, for any sequence of actions."""
        if isinstance(self.action_space, spaces.Dict | spaces.Tuple):
            out: Any = create_empty_array(self.action_space, len(actions))
            actions = concatenate(self.action_space, list(actions), out)
        self.env.step_async(actions)
        self._stepping = True

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Observations, rewards float32, dones, infos; all of them the caller's."""
        if not self._stepping:
            raise ResetNeededError("Call `step_async` before `step_wait`.")
        self._stepping = False
        with ForeignErrors():
            self.env.wait()
        arrays = self.env.arrays
        rewards = arrays["reward"].astype(np.float32)
        dones = arrays["terminated"] | arrays["truncated"]
        infos = self.env.info_list()
        self._ret += rewards
        self._length += 1
        for info in infos:
            info["TimeLimit.truncated"] = False
        if dones.any():
            self._complete_infos(np.flatnonzero(dones).tolist(), infos)
        return self.env.observation(), rewards, dones, infos

    def _complete_infos(self, ended: list[int], infos: list[dict[str, Any]]) -> None:
        """Add final values to the infos of ended episodes."""
        arrays, last = self.env.arrays, self.env.final_info_list()
        elapsed = round(time.time() - self._start_time, 6)
        for e in ended:
            begun, final = infos[e], last[e]
            info: dict[str, Any] = begun if final is None else final  # lost episodes have none
            begun.pop("TimeLimit.truncated", None)
            self.reset_infos[e] = {} if final is None else begun
            cut = bool(arrays["truncated"][e] and not arrays["terminated"][e])
            info["TimeLimit.truncated"] = cut
            final_obs = (
                self.env.get_observation(e) if final is None else self.env.get_final_observation(e)
            )
            info["terminal_observation"] = final_obs
            if self.monitor and "episode" not in info:
                episode = {"r": float(self._ret[e]), "l": int(self._length[e]), "t": elapsed}
                if final is None:  # lost episodes have no final info
                    values = {name: info.get(name) for name in self.info_keywords}
                else:
                    values = {name: info[name] for name in self.info_keywords}
                info["episode"] = episode | values
            infos[e] = info
            self._ret[e], self._length[e] = 0.0, 0

    def close(self) -> None:
        """Close all sub-environments and workers. Safe to call again."""
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of some sub-environments, found through wrappers."""
        with ForeignErrors():
            return self.env.get_attr(attr_name, resolve_indices(indices, self.env.num_envs))

    def has_attr(self, attr_name: str) -> bool:
        """Return true if every sub-environment has an attribute. Its value is not fetched."""
        with ForeignErrors():
            return all(self.env.call("has_wrapper_attr", (attr_name,)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute where it exists, else on the outermost wrapper."""
        at = resolve_indices(indices, self.num_envs)
        with ForeignErrors():
            self.env.set_attr(attr_name, [value] * len(at), at)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of some sub-environments, found through wrappers."""
        at = resolve_indices(indices, self.num_envs)
        with ForeignErrors():
            return self.env.call(method_name, method_args, method_kwargs, at)

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Return true for each environment with such a wrapper, and for `Monitor` if monitored."""
        if self.monitor and wrapper_class is _MONITOR.Monitor:
            return [True] * len(resolve_indices(indices, self.num_envs))
        return self.env_method("is_wrapped", wrapper_class, indices=indices)

    def get_images(self) -> list[Any]:
        """Return the rendered frame of each sub-environment, or None."""
        if self.render_mode != "rgb_array":
            return [None] * self.num_envs
        return self.env_method("render")


def make_vec(
    target: str | Mapping[str, Any],
    num_envs: int = 1,
    *,
    info_keywords: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Create an SB3 `VecEnv`.

    Args:
        target, num_envs: As for `make_batch`.
        info_keywords: As for `KernelVecEnv` and `ForeignVecEnv`.
        **options: `backend`, `split`, `workers` and `seed` as for `make_batch`; fields of the
            environment's Config; `kwargs` and `wrappers` of ``gym:ID``.

    Raises:
        ResourceError: Stable-Baselines3 is not installed.
    """
    if factory := get_foreign_env_fn(target, options):
        options = {"seed": 0, **options}
        split = options.pop("split", "train")
        other = sorted(options.keys() - {"backend", "workers", "seed", "kwargs"})
        if other or split != "train":
            other = other or ["split"]
            raise ConfigError(f"{target} only takes `kwargs` and `wrappers`, got {other}.")
        return ForeignVecEnv([factory] * num_envs, info_keywords=info_keywords, **options)
    batch = make_batch(target, num_envs, foreign=False, **options)
    assert isinstance(batch, KernelBatch)
    return KernelVecEnv(batch, info_keywords=info_keywords)
