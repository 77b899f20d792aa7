"""Stable-Baselines3's `VecEnv` over envs of a kernel, or over any Gymnasium environments."""

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
    UnreadyError,
    check_single_player,
    chosen,
    each,
    foreign_maker,
    make_batch,
)
from slipstream.adapters.wrapper_lookup import WrapperLookup
from slipstream.core.child_process import FaultPolicy
from slipstream.core.errors import ConfigError
from slipstream.core.extras import import_optional
from slipstream.gym.env_factory import WrappedEnv
from slipstream.gym.gymnasium_semantics import SAME_STEP, NativeEnv
from slipstream.kernels.spec import EnvSpec

_VEC_ENV = import_optional(
    "stable_baselines3.common.vec_env", "The face for Stable-Baselines3", "sb3"
)
_MONITOR = import_optional(
    "stable_baselines3.common.monitor", "The face for Stable-Baselines3", "sb3"
)


class KernelVecEnv(_VEC_ENV.VecEnv):  # type: ignore[misc, name-defined]
    """Sub-environments of a kernel with the interface of SB3, which resets within a step.

    Every info has `TimeLimit.truncated`. Where an episode ended it has `terminal_observation`, the
    kernel's metrics by name (of a market `market_metrics`'s, too), and `episode` (``r``,
    ``l``, ``t``) as `VecMonitor` writes it, which is why `env_is_wrapped(Monitor)` says yes; a
    `VecMonitor` around it is superfluous.

    Attributes of a env, for `get_attr` and `set_attr`: what was set before; the kernel's STATE
    fields, which may be written; its Params, which may not.

    Args:
        batch: the sub-environments, under SAME_STEP.
        info_keywords: metrics that `episode` has, too.
    """

    def __init__(self, batch: KernelBatch, *, info_keywords: Sequence[str] = ()) -> None:
        if batch.autoreset is not AutoresetMode.SAME_STEP:
            raise ConfigError(f"{batch.name}: SB3 steps with autoreset SameStep.")
        check_single_player(batch, "SB3 steps")
        known = [metric.name for metric in batch.spec.metrics]
        self._peaks = batch.spec.market is not None and "peak" in (
            batch.env.state.dtype.names or ()
        )
        if self._peaks:
            none = np.ones(1)
            known += market_metrics(batch.spec, dict.fromkeys(known, none), none)
        unknown = sorted(set(info_keywords) - set(known))
        if unknown:
            raise ConfigError(
                f"`info_keywords` names {', '.join(unknown)}; {batch.name} has "
                f"{', '.join(known) or 'no metrics'}."
            )
        self.batch, self.info_keywords = batch, tuple(info_keywords)
        self._own: list[dict[str, Any]] = [{"render_mode": None} for _ in range(batch.num_envs)]
        self._actions: Any = None
        self._began = time.time()
        super().__init__(batch.num_envs, batch.observation_space, batch.action_space)

    def reset(self) -> Any:
        """First observations; seeds and options given before are used once."""
        options = next((one for one in self._options if one), None)
        if options:
            raise ConfigError(f"{self.batch.name} has no reset options {sorted(options)}.")
        self._actions = None
        obs = self.batch.reset(self._seeds)
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return obs

    def step_async(self, actions: Any) -> None:
        """Takes the actions; `step_wait` steps."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Observations, rewards float32, dones, infos; all of them the caller's."""
        actions, self._actions = self._actions, None
        if actions is None:
            raise UnreadyError(f"{self.batch.name}: call `step_async` before `step_wait`.")
        env = self.batch.env
        peak = env.read(("peak",))["peak"] if self._peaks else np.zeros(self.num_envs)
        came = self.batch.step(actions)
        dones = came.terminated | came.truncated
        infos = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        if len(came.ended):
            self._tell(came, infos, peak)
        return came.obs, came.reward, dones, infos

    def _tell(self, came: BatchStep, infos: list[dict[str, Any]], peak: NDArray[Any]) -> None:
        """Completes the infos of episodes that ended; `peak` [E] is equity's, before the step."""
        cut = (came.truncated & ~came.terminated)[came.ended].tolist()
        for e, limited, final in zip(came.ended.tolist(), cut, each(came.finals), strict=True):
            infos[e]["TimeLimit.truncated"] = limited
            infos[e]["terminal_observation"] = final
        if came.valid is not None:
            for e in np.flatnonzero(~came.valid).tolist():
                infos[e]["valid"] = False
        ended = came.episodes
        since = round(time.time() - self._began, 6)
        more = market_metrics(self.batch.spec, ended.metrics, peak[ended.e]) if self._peaks else {}
        told = {**ended.metrics, **more}
        metrics = {name: values.tolist() for name, values in told.items()}
        numbers = zip(ended.e.tolist(), ended.returns.tolist(), ended.length.tolist(), strict=True)
        for i, (e, ret, length) in enumerate(numbers):
            own = {name: values[i] for name, values in metrics.items()}
            episode = {"r": ret, "l": length, "t": since}
            episode |= {name: own[name] for name in self.info_keywords}
            infos[e] |= {**own, "episode": episode}

    def close(self) -> None:
        """Ends the sub-environments. Safe to call again."""
        self.batch.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of some sub-environments."""
        return [self._get(attr_name, e) for e in self._chosen(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Sets an attribute of some environments; a STATE field shows in the next observation."""
        state = self.batch.env.state
        for e in self._chosen(indices):
            if attr_name in (state.dtype.names or ()):
                state[attr_name][e] = value
            else:
                self._own[e][attr_name] = value

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method of some sub-environments: `action_masks`, or one that was set."""
        methods = [self._get(method_name, e) for e in self._chosen(indices)]
        return [method(*method_args, **method_kwargs) for method in methods]

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Yes for `Monitor`, whose statistics the infos have; no other wrapper is there."""
        return [wrapper_class is _MONITOR.Monitor for _ in self._chosen(indices)]

    def get_images(self) -> list[None]:
        """None: kernels draw no pictures."""
        warnings.warn(f"{self.batch.name} draws no pictures.", stacklevel=2)
        return [None] * self.num_envs

    def _chosen(self, indices: Any) -> list[int]:
        return chosen(indices, self.num_envs)

    def _get(self, name: str, e: int) -> Any:
        """An attribute of sub-environment e."""
        if name in self._own[e]:
            return self._own[e][name]
        built_in: dict[str, Callable[[], Any]] = {
            "observation_space": lambda: self.observation_space,
            "action_space": lambda: self.action_space,
            "get_wrapper_attr": lambda: lambda wanted: self._get(wanted, e),
            "set_wrapper_attr": lambda: lambda wanted, value: self.set_attr(wanted, value, e),
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
            f"{self.batch.name} has no attribute {name!r}: a kernel's environments have its STATE "
            "fields, its Params, and what `set_attr` gave them"
        )


def market_metrics(
    spec: EnvSpec, metrics: Mapping[str, NDArray[Any]], peak: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """What SB3's users ask of a market's episodes and its metrics do not say by themselves.

    Args:
        spec, metrics: of the environment, of n episodes that ended.
        peak: highest equity of each before its last bar, float64 [n].

    Returns:
        ``sharpe_ratio``, of returns per bar, annualised; ``drawdown`` at the end, a fraction.
    """
    if spec.market is None or not {"sharpe", "total_return"} <= metrics.keys():
        return {}
    equity = spec.market.initial_equity * (1.0 + metrics["total_return"])
    return {
        "sharpe_ratio": metrics["sharpe"] * math.sqrt(spec.market.bars_per_year),
        "drawdown": 1.0 - equity / np.maximum(peak, equity),
    }


class ForeignVecEnv(_VEC_ENV.VecEnv):  # type: ignore[misc, name-defined]
    """Takes `SubprocVecEnv`'s place: many envs in each worker, what a env raises comes out as
    it was raised, and the infos of ended episodes have `episode` as `VecMonitor` writes it.

    Args:
        env_fns: [E] functions that make a sub-environment, or ids.
        backend: process (auto), or serial in this process.
        workers: W. None uses one per available core.
        start_method: forkserver or spawn.
        monitor: write `episode` where the copy's own info has none.
        info_keywords: of a sub-environment's info when its episode ends, which `episode` has, too.
        on_fault: "raise" what a sub-environment raises, or "restart" it alone.
        hang_seconds: of one call of a sub-environment, after which it is given up.
        kwargs: keyword arguments of every one of `env_fns`.
        seed: of the first reset, as by `VecEnv.seed`; drawn by the environments unless given.
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
        self._stepping, self._began = False, time.time()
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
        options = [one or None for one in self._options]
        with ForeignErrors():
            self.env.reset(self._seeds, options)
        self.reset_infos = self.env.info_list()
        self._ret[:], self._length[:] = 0.0, 0
        self._reset_seeds()
        self._reset_options()
        return self.env.observation()

    def step_async(self, actions: Any) -> None:
        """Begins a step; SB3 takes the i-th of the actions for environment i, whatever they are."""
        if isinstance(self.action_space, spaces.Dict | spaces.Tuple):
            out: Any = create_empty_array(self.action_space, len(actions))
            actions = concatenate(self.action_space, list(actions), out)
        self.env.step_async(actions)
        self._stepping = True

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Observations, rewards float32, dones, infos; all of them the caller's."""
        if not self._stepping:
            raise UnreadyError("Call `step_async` before `step_wait`.")
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
            self._end(np.flatnonzero(dones).tolist(), infos)
        return self.env.observation(), rewards, dones, infos

    def _end(self, ended: list[int], infos: list[dict[str, Any]]) -> None:
        """Completes what is told of episodes that ended."""
        arrays, last = self.env.arrays, self.env.final_info_list()
        since = round(time.time() - self._began, 6)
        for e in ended:
            begun, final = infos[e], last[e]
            info: dict[str, Any] = begun if final is None else final  # none of a lost episode
            begun.pop("TimeLimit.truncated", None)
            self.reset_infos[e] = {} if final is None else begun
            cut = bool(arrays["truncated"][e] and not arrays["terminated"][e])
            info["TimeLimit.truncated"] = cut
            seen = self.env.observation_of(e) if final is None else self.env.final_of(e)
            info["terminal_observation"] = seen
            if self.monitor and "episode" not in info:
                episode = {"r": float(self._ret[e]), "l": int(self._length[e]), "t": since}
                if final is None:  # its last step told nothing
                    kept = {name: info.get(name) for name in self.info_keywords}
                else:
                    kept = {name: info[name] for name in self.info_keywords}
                info["episode"] = episode | kept
            infos[e] = info
            self._ret[e], self._length[e] = 0.0, 0

    def close(self) -> None:
        """Ends the sub-environments and their workers. Safe to call again."""
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of some sub-environments, found through their wrappers."""
        with ForeignErrors():
            return self.env.get_attr(attr_name, chosen(indices, self.env.num_envs))

    def has_attr(self, attr_name: str) -> bool:
        """Whether every sub-environment has an attribute, which is not fetched."""
        with ForeignErrors():
            return all(self.env.call("has_wrapper_attr", (attr_name,)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Sets an attribute of some envs, where they have it, else on the outermost wrapper."""
        at = chosen(indices, self.num_envs)
        with ForeignErrors():
            self.env.set_attr(attr_name, [value] * len(at), at)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method of some sub-environments, found through their wrappers."""
        at = chosen(indices, self.num_envs)
        with ForeignErrors():
            return self.env.call(method_name, method_args, method_kwargs, at)

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Whether some envs have such a wrapper, or the infos the statistics of a `Monitor`."""
        if self.monitor and wrapper_class is _MONITOR.Monitor:
            return [True] * len(chosen(indices, self.num_envs))
        return self.env_method("is_wrapped", wrapper_class, indices=indices)

    def get_images(self) -> list[Any]:
        """What each sub-environment draws; None where it draws nothing."""
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
    """Sub-environments of an environment as SB3's `VecEnv`.

    Args:
        target, num_envs: as for `make_batch`.
        info_keywords: as for `KernelVecEnv` and `ForeignVecEnv`.
        **options: `backend`, `split`, `workers` and `seed` as for `make_batch`; fields of the
            environment's Config; of ``gym:ID`` its `kwargs` and `wrappers`.

    Raises:
        ResourceError: Stable-Baselines3 is not installed.
    """
    if make := foreign_maker(target, options):
        options = {"seed": 0, **options}
        split = options.pop("split", "train")
        other = sorted(options.keys() - {"backend", "workers", "seed", "kwargs"})
        if other or split != "train":
            other = other or ["split"]
            raise ConfigError(f"{target} takes `kwargs` and `wrappers` only, not {other}.")
        return ForeignVecEnv([make] * num_envs, info_keywords=info_keywords, **options)
    batch = make_batch(target, num_envs, foreign=False, **options)
    assert isinstance(batch, KernelBatch)
    return KernelVecEnv(batch, info_keywords=info_keywords)
