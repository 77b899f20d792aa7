"""Copies of a kernel behind a `FaceCopies`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from slipstream.adapters.batch import FaceCopies, FaceStep
from slipstream.core.bounds import check_count
from slipstream.core.errors import ConfigError
from slipstream.environments.factory import make_environment
from slipstream.environments.kernel_environment import KernelEnvironment
from slipstream.settings.config import resolve
from slipstream.vector.kernel_env import KernelVectorEnv
from slipstream.vector.loop import HOLD, RESET_KEEP_ALL
from slipstream.vector.vector_env import VectorEnv, blank, member_indices


class KernelBatch(FaceCopies):
    """E copies of a kernel.

    Args:
        env: the copies, which keep every final observation (`RESET_KEEP_ALL`) or, for
            `AutoresetMode.DISABLED`, hold where an episode ends (`HOLD`).
        name: of the environment, for messages.
        autoreset: what follows an episode's end.
    """

    def __init__(self, env: VectorEnv, name: str, autoreset: AutoresetMode) -> None:
        super().__init__(name, env.spec, env.actions, env.num_envs, autoreset)
        self.env = env
        spec = env.spec
        one = isinstance(spec.action, spaces.Discrete) and spec.action == self.action_space
        plain = one and spec.players == 1 and not env.mask_width and spec.action.start == 0
        self._choices = int(spec.action.n) if plain else 0  # of a single choice without a mask
        self._out = blank(env)
        self._pending = blank(env).obs  # first observations that NEXT_STEP shows one step later
        self._none = np.zeros(self.num_envs, np.bool_)

    @property
    def mask(self) -> NDArray[np.bool_] | None:  # type: ignore[override]
        return self._out.mask

    def reset(self, seeds: Sequence[int | None], selected: NDArray[np.bool_] | None = None) -> Any:
        self.check_open()
        chosen = np.ones(self.num_envs, np.bool_) if selected is None else selected
        rows = self._out
        seeded = np.array([seed is not None for seed in seeds]) & chosen
        fresh = np.flatnonzero(seeded)
        if len(fresh):
            words = np.array([int(seeds[e] or 0) % 2**64 for e in fresh.tolist()], np.uint64)
            self.env.restart(fresh, words, rows.obs, rows.mask)
        others = np.flatnonzero(chosen & ~seeded)
        if len(others):
            self.env.restart(others, None, rows.obs, rows.mask)
        self.env.drain_episodes()
        self.env.drain_finals()
        self._waiting = self._waiting & ~chosen
        self._begun = self._begun | chosen
        return self.env.observations.native(rows.obs.copy())

    def step(self, actions: Any, copies: NDArray[np.int64] | None = None) -> FaceStep:
        chosen = None
        if copies is not None:
            chosen = np.zeros(self.num_envs, np.bool_)
            chosen[copies] = True
        self.check_ready(chosen)
        rows = self._rows(actions, copies)
        env, out, passed = self.env, self._out, None if chosen is None else ~chosen
        waking = None
        if self.autoreset is AutoresetMode.NEXT_STEP and self._waiting.any():
            waking = self._waiting if chosen is None else self._waiting & chosen
            passed = waking if passed is None else passed | waking
        if passed is not None:
            env.hold(passed)
        env.step(rows, out)
        obs = out.obs
        if passed is not None:
            env.hold(self._none)
        if waking is not None:
            obs[waking] = self._pending[waking]
        over = out.terminated | out.truncated
        finals, episodes = env.drain_finals(), env.drain_episodes()
        self._waiting = over if chosen is None else np.where(chosen, over, self._waiting)
        ended = np.flatnonzero(over)
        last = self._last(ended, finals.obs, finals.index[:, 1])
        if self.autoreset is AutoresetMode.NEXT_STEP and len(ended):
            self._pending[ended] = obs[ended]
            obs[ended] = last
        at = slice(None) if copies is None else copies
        return FaceStep(
            env.observations.native(obs[at].copy()),
            out.reward[at].copy(),
            out.terminated[at].copy(),
            out.truncated[at].copy(),
            ended,
            env.observations.native(last),
            episodes,
            None if out.valid.all() else out.valid[at].copy(),
        )

    def end(self) -> None:
        self.env.close()

    def _last(self, ended: NDArray[np.int64], obs: NDArray[Any], at: NDArray[np.int64]) -> Any:
        """Final observations in the order of `ended`."""
        if self.autoreset is AutoresetMode.DISABLED:
            return self._out.obs[ended]  # a copy that waits goes on showing it
        if len(at) == len(ended):
            return obs[np.argsort(at, kind="stable")]
        rows = self._out.obs[ended]  # of a copy that was lost there is none
        rows[np.searchsorted(ended, at)] = obs
        return rows

    def _rows(self, actions: Any, copies: NDArray[np.int64] | None) -> NDArray[Any]:
        """Actions as rows [E, K], checked; of copies that are not stepped, anything."""
        if copies is None and self._choices and type(actions) is np.ndarray:
            plain = actions.dtype == np.int64 and actions.shape == (self.num_envs,)
            # As uint64 a negative number is too large, too.
            if (
                plain
                and actions.flags.c_contiguous
                and actions.view(np.uint64).max() < self._choices
            ):
                return actions.reshape(-1, 1)
        rows = self.rows(actions, copies)
        if copies is None:
            return rows
        whole = np.zeros((self.num_envs, *rows.shape[1:]), rows.dtype)
        whole[copies] = rows
        return whole


# Long: a line for each argument.
def make_kernel_batch(
    target: str | Mapping[str, Any],
    num_envs: int,
    *,
    autoreset: AutoresetMode = AutoresetMode.SAME_STEP,
    backend: str = "auto",
    split: str = "train",
    workers: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> KernelBatch:
    """Copies of a kernel by name, path or YAML file.

    Args:
        target: as for `slipstream.make_vec`, but no ``gym:ID``.
        num_envs: E.
        autoreset: what follows an episode's end.
        backend: auto (compiled), compiled or serial.
        split: of a market's prices.
        workers: None; worker processes are for ``gym:ID``.
        seed: random streams before the first `reset` with seeds.
        settings: fields of the environment's Config.

    Raises:
        ConfigError: unknown names, settings or backends.
    """
    config = resolve(target, {f"env.{name}": value for name, value in (settings or {}).items()})
    environment = make_environment(config.env_name, config.env_settings)
    if not isinstance(environment, KernelEnvironment):
        raise ConfigError(
            f"{config.env_name} is no kernel: this face is for slipstream's own environments and "
            "kernel files; foreign ones have theirs (docs/faces.md)."
        )
    num_envs = check_count("num_envs", num_envs)
    if workers is not None:
        raise ConfigError(
            f"{config.env_name} is a kernel, which is compiled and stepped in this process: "
            "`workers` is for gym:ID; leave it out."
        )
    if config.env_settings.get("self_play") is not None:
        raise ConfigError(
            f"{config.env_name}: `self_play` is for `slipstream train`; a face steps both seats, "
            "so that the second one's actions are yours. Leave it out."
        )
    at_end = HOLD if autoreset is AutoresetMode.DISABLED else RESET_KEEP_ALL
    seeds, indices = member_indices([seed], num_envs)
    env = KernelVectorEnv(
        environment.kernel,
        environment.loaded,
        seeds,
        indices,
        split=split,
        backend=environment.chosen_backend(backend),
        stagger=False,
        at_end=at_end,
    )
    return KernelBatch(env, environment.short_name(config.env_name), autoreset)
