"""Stable-Baselines3's `VecEnv` over any Gymnasium environments, in worker processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from slipstream.adapters.copies import HANG_SECONDS, chosen
from slipstream.adapters.errors import Theirs, UnreadyError
from slipstream.adapters.knows_wrappers import KnowsWrappers
from slipstream.core.extras import require
from slipstream.core.process import FaultPolicy
from slipstream.gym.making import Wrapped
from slipstream.gym.native import SAME_STEP, native_env

_VEC_ENV = require("stable_baselines3.common.vec_env", "The face for Stable-Baselines3", "sb3")
_MONITOR = require("stable_baselines3.common.monitor", "The face for Stable-Baselines3", "sb3")


class ForeignVecEnv(_VEC_ENV.VecEnv):  # type: ignore[misc, name-defined]
    """Takes `SubprocVecEnv`'s place: many copies in each worker, what a copy raises comes out as
    it was raised, and the infos of ended episodes have `episode` as `VecMonitor` writes it.

    Args:
        env_fns: [E] functions that make a copy, or ids.
        backend: process (auto), or serial in this process.
        workers: W; the machine's cores unless given.
        start_method: forkserver or spawn.
        monitor: write `episode` where the copy's own info has none.
        info_keywords: of a copy's info when its episode ends, which `episode` has, too.
        on_fault: "raise" what a copy raises, or "restart" it alone.
        hang_seconds: of one call of a copy, after which it is given up.
        kwargs: keyword arguments of every one of `env_fns`.
        seed: of the first reset, as by `VecEnv.seed`; drawn by the environments unless given.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any] | str | Wrapped],
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
        self.env = native_env(
            list(env_fns),
            backend="process" if backend == "auto" else backend,
            at_end=SAME_STEP,
            workers=workers,
            method=start_method,
            policy=FaultPolicy(on_fault, hang_seconds),  # type: ignore[arg-type]
            kwargs=kwargs,
            wrap=KnowsWrappers,
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
        with Theirs():
            self.env.reset(self._seeds, options)
        self.reset_infos = self.env.info_list()
        self._ret[:], self._length[:] = 0.0, 0
        self._reset_seeds()
        self._reset_options()
        return self.env.observation()

    def step_async(self, actions: Any) -> None:
        """Begins a step; SB3 takes the i-th of the actions for copy i, whatever they are."""
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
        with Theirs():
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
        """Ends the copies and their workers; may be called again."""
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of some copies, found through their wrappers."""
        with Theirs():
            return self.env.get_attr(attr_name, chosen(indices, self.env.num_envs))

    def has_attr(self, attr_name: str) -> bool:
        """Whether every sub-environment has an attribute, which is not fetched."""
        with Theirs():
            return all(self.env.call("has_wrapper_attr", (attr_name,)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Sets an attribute of some copies, where they have it, else on the outermost wrapper."""
        at = chosen(indices, self.num_envs)
        with Theirs():
            self.env.set_attr(attr_name, [value] * len(at), at)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method of some copies, found through their wrappers."""
        at = chosen(indices, self.num_envs)
        with Theirs():
            return self.env.call(method_name, method_args, method_kwargs, at)

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Whether some copies have such a wrapper, or the infos the statistics of a `Monitor`."""
        if self.monitor and wrapper_class is _MONITOR.Monitor:
            return [True] * len(chosen(indices, self.num_envs))
        return self.env_method("is_wrapped", wrapper_class, indices=indices)

    def get_images(self) -> list[Any]:
        """What each copy draws; None where it draws nothing."""
        if self.render_mode != "rgb_array":
            return [None] * self.num_envs
        return self.env_method("render")
