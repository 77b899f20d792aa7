"""Gymnasium environments for agents, stepped in this process or in worker processes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.child_process import FaultPolicy
from slipstream.core.errors import ConfigError
from slipstream.gym.action_masks import probe_mask, separate_mask
from slipstream.gym.env_factory import (
    close_env,
    env_name,
    is_env_error,
    make_gymnasium,
    make_row_spec,
    wrap_env_error,
)
from slipstream.gym.infos import InfoReader
from slipstream.gym.process.fault_log import Fault
from slipstream.gym.process.process_driver import ProcessDriver
from slipstream.gym.process.process_pool import ProcessPool
from slipstream.gym.serial_driver import Arrays, SerialDriver
from slipstream.gym.shared_layout import agent_layout
from slipstream.gym.worker_config import EnvScheduler, SubEnvConfig, WorkerConfig, registered_specs
from slipstream.kernels.loop import HOLD, RESET
from slipstream.kernels.space_codec import SpaceMismatchError
from slipstream.kernels.spec import EnvSpec, Metric
from slipstream.kernels.vector_env import (
    AsyncStepResult,
    Episodes,
    FinalObs,
    StepBuffers,
    VectorEnv,
    allocate_buffers,
)

LONGEST_LOG = 10_000  # actions per episode stored for a replay
_EPISODE_ARRAYS = ("ended_ret", "ended_length", "lost", "metrics")
_RETRY_SECONDS = 0.01  # between attempts while nothing can be stepped


class ForeignEnv(VectorEnv):
    """Sub-environments of another library, for agents.

    Every episode is seeded by (seed of the member, index within the member, episode). A trajectory
    therefore depends neither on other sub-environments nor on the backend. Such environments
    cannot be saved. The episode number and its actions are stored instead, and a resumed
    sub-environment replays them. If the environment is not deterministic, it begins a new episode.

    With backend "serial", errors are raised immediately. With W worker processes, which share
    memory with this process, a sub-environment that raises, hangs or returns an invalid value is
    restarted alone. A lost worker is replaced and resets its sub-environments. The others
    continue. Lost rows have ``valid`` false, and their episodes end truncated and marked in
    `Episodes.lost`.

    Args:
        env: Id (``"module:ID"``), or a function that creates the environment, or a list of these,
            used in turn. In workers an id must be registered by the import of its module, by
            Gymnasium, or in this process by a picklable entry point. A function may use
            importable modules and the main program.
        seeds: Seed of each sub-environment's member, uint64 [E].
        indices: Index of each sub-environment within its member, uint64 [E].
        kwargs: Keyword arguments of the environment.
        spec: Specification, if known. Otherwise one environment is created here to get it.
        metrics: Names of numbers in the final info of an episode, used without `spec`; see
            `episode_metrics`.
        at_end: RESET, RESET_KEEP_ALL or HOLD of `kernels/loop.py`.
        limit: Time limit of an episode in steps, besides the environment's own.
        workers: Number of workers. 0 steps in this process. None uses one per available core.
        method: Start method of workers, "forkserver" or "spawn".
        policy: Fault policy of workers.
        process_pool: Source of the workers. None starts a private pool.
        scheduler: Order of single steps between `send` and `recv`.

    Attributes:
        driver: Steps the sub-environments.
        fault_log: Faults so far.

    Raises:
        ConfigError, ResourceError, KernelError: The environment cannot be created or violates
            Gymnasium's interface.
    """

    def __init__(
        self,
        env: Any,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        *,
        kwargs: Mapping[str, Any] | None = None,
        spec: EnvSpec | None = None,
        metrics: Sequence[str] = (),
        at_end: int = RESET,
        limit: int | None = None,
        workers: int | None = 0,
        method: str = "forkserver",
        policy: FaultPolicy = FaultPolicy(),  # noqa: B008  (a tuple)
        process_pool: ProcessPool | None = None,
        scheduler: EnvScheduler | None = None,
    ) -> None:
        self.backend = "serial" if workers == 0 else "process"
        self.num_envs, self._at_end = len(seeds), at_end
        name, uses_workers, first = f"gym:{env_name(env)}", workers != 0, None
        if spec is None:
            first = make_probe_env(env, kwargs)
            try:
                spec = spec_from_env(first, env_name(env), metrics)
            finally:
                if uses_workers:
                    close_env(first, name)
        self.spec, self.mask_size = spec, spec.num_actions if spec.has_action_mask else 0
        config = SubEnvConfig(
            env if isinstance(env, list) else [env],
            env_name(env),
            spec.native_observation_space,
            spec.native_action_space,
            spec,
            dict(kwargs or {}),
            limit,
            registered_specs=registered_specs(env if isinstance(env, list) else [env])
            if uses_workers
            else (),
        )
        restart = uses_workers and policy.on_fault == "restart"
        codec = config.codec()
        self._leaves, self._alone = codec.leaves, codec.single_leaf is not None
        longest = 0 if at_end == HOLD else min(spec.max_episode_steps or LONGEST_LOG, LONGEST_LOG)
        self._layout = partial(agent_layout, spec, self._leaves, log=(longest, _log_dtype(spec)))
        self._finals: list[tuple[NDArray[Any], NDArray[np.int64]]] = []
        self._episodes: list[tuple[Any, ...]] = []
        self._over = np.zeros(self.num_envs, np.bool_)  # held after a reported end
        layout = self._layout(self.num_envs)
        make_worker_config = partial(
            WorkerConfig, config, at_end=at_end, restart=restart, scheduler=scheduler
        )
        self.driver: SerialDriver | ProcessDriver
        if not uses_workers:
            self.driver = SerialDriver(
                layout, make_worker_config, first, num_envs=self.num_envs, name=name
            )
        else:
            self.driver = driver = ProcessDriver(
                layout,
                make_worker_config,
                num_envs=self.num_envs,
                name=name,
                on_lost=self._record_lost,
                workers=workers,
                method=method,
                policy=policy,
                process_pool=process_pool,
                repeat_lost=at_end == HOLD,
            )
        self.fault_log, self._infos = self.driver.fault_log, InfoReader(self.driver)
        self._attach()
        self.arrays["seed"][:], self.arrays["index"][:] = seeds, indices
        self._allow_all_actions(slice(None))
        if uses_workers:
            driver.start()

    @property
    def arrays(self) -> Arrays:
        """Arrays that sub-environments read and write, [E, ...] each."""
        return self.driver.arrays

    def _attach(self) -> None:
        """Store references to the arrays that every step reads."""
        names = ("actions", "reward", "terminated", "truncated", "valid")
        self._stepped = [self.arrays[name] for name in names]
        self._newest: NDArray[Any] | None = None  # observations that need no conversion
        if self._alone:
            shape = (self.num_envs, *self.spec.observation_shape)
            self._newest = self.arrays["obs.0"].reshape(shape)

    @property
    def _obs(self) -> list[NDArray[Any]]:
        return [self.arrays[f"obs.{i}"] for i in range(len(self._leaves))]

    @property
    def _final(self) -> list[NDArray[Any]]:
        return [self.arrays[f"final.{i}"] for i in range(len(self._leaves))]

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        self.driver.ready()
        self._finals, self._episodes = [], []
        self._begin(slice(None))
        self._write_observations(obs, mask)
        self.fault_log.check()

    def begin(
        self,
        env_ids: NDArray[np.int64],
        episodes: NDArray[np.int64],
        seed: int,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.driver.ready()
        arrays = self.arrays
        arrays["seed"][env_ids] = seed % 2**64
        arrays["index"][env_ids] = np.asarray(episodes).astype(np.uint64)
        arrays["episode"][env_ids] = 0
        self._begin(env_ids)
        obs[env_ids] = self._concat_leaves([part[env_ids] for part in self._obs])
        if mask is not None:
            mask[env_ids] = self.arrays["mask"][env_ids]
        self.fault_log.check()

    def _begin(self, rows: slice | NDArray[np.int64]) -> None:
        """Begin the next episodes of rows, whatever the state of the current ones."""
        arrays = self.arrays
        arrays["selected"][:] = False
        arrays["selected"][rows] = True
        self._over[rows] = arrays["held"][rows] = False
        arrays["failed_attempts"][rows] = 0
        self.driver.run("reset")
        self.driver.begun = True

    def step_rows(self, actions: NDArray[Any], out: StepBuffers, t: int = 0) -> None:
        driver = self.driver
        action_rows, reward, terminated, truncated, valid = self._stepped
        driver.settle()  # raises while steps that read these actions are in flight
        if not driver.begun:
            raise ConfigError("Call `reset()` before the first `step(actions)`.")
        if actions.shape != action_rows.shape or len(out.obs) != self.num_envs:
            raise ConfigError(
                f"`step` of {self.num_envs} environments takes actions of shape "
                f"{action_rows.shape} and {self.num_envs} rows of buffers, got {actions.shape} and "
                f"{len(out.obs)} rows."
            )
        action_rows[...] = actions
        while True:
            driver.begin_step(t)
            driver.end_step()
            if driver.has_events:
                self._collect(t)
                # Otherwise all wait at the end of an episode or for a restart.
                alive = driver.stepped or self.arrays["lost"].any() or self.arrays["held"].all()
                if not alive:
                    time.sleep(_RETRY_SECONDS)
                    self.fault_log.check()
                    continue
            break
        out.reward[...] = reward
        out.terminated[...] = terminated
        out.truncated[...] = truncated
        out.valid[...] = valid
        self._write_observations(out.obs, out.mask)
        if self.fault_log.total:
            self.fault_log.record_valid(valid)
            self.fault_log.check()

    def _record_lost(self, at: NDArray[np.int64]) -> None:
        """Record the episodes of a lost worker."""
        arrays = self.arrays
        arrays["ended_ret"][at] = arrays["ret"][at]
        arrays["ended_length"][at] = arrays["length"][at]
        arrays["held"][at] = self._over[at]  # an unreported end is dropped
        for obs in self._obs:  # it may be partly written
            obs[at] = 0
        self._allow_all_actions(at)

    def _allow_all_actions(self, rows: slice | NDArray[np.int64]) -> None:
        """Allow all actions of rows without an observation."""
        if self.mask_size:
            self.arrays["mask"][rows] = True

    def _collect(self, t: int, rows: NDArray[np.int64] | None = None) -> None:
        """Record the episodes that ended at a step, of all or of some rows."""
        arrays = self.arrays
        over = arrays["ended"]
        if self.fault_log.total:  # otherwise nothing is lost
            over = over | arrays["lost"]
        if rows is None:
            (at,) = over.nonzero()
        else:
            at = rows[over[rows]]
        if not len(at):
            return
        if self._at_end == HOLD:
            self._over[at] = True
            for env_id in at[arrays["lost"][at]].tolist():
                self.fault_log.give_up(env_id)
        columns = [arrays[name].take(at, axis=0) for name in _EPISODE_ARRAYS]
        self._episodes.append((t, at, *columns))
        if not np.count_nonzero(arrays["has_final"]):
            return
        has_final = at[arrays["has_final"][at]]
        if len(has_final):
            rows = self._concat_leaves([final[has_final] for final in self._final])
            self._finals.append((rows, np.stack([np.full(len(has_final), t), has_final], axis=1)))

    def _concat_leaves(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        if self.observation_codec.layout != "flat":
            return parts[0]
        return self.observation_codec.concat_leaves(parts, parts[0].shape[:1])

    def _write_observations(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        obs[...] = self._concat_leaves(self._obs) if self._newest is None else self._newest
        if mask is not None:
            mask[...] = self.arrays["mask"]

    def send(self, actions: Any, env_ids: Any = None) -> None:
        self.driver.check_open()
        if not self.driver.begun:
            raise ConfigError("Call `reset()` before the first `send(actions)`.")
        rows = self.driver.idle_rows(env_ids)
        try:
            numbers = self.action_codec.encode(actions, (len(rows),), self.spec.action_dim)
        except SpaceMismatchError as error:
            raise ConfigError(f"`send` to {len(rows)} environments got {error}.") from None
        self._check_allowed(numbers, rows)
        self.arrays["actions"][rows] = numbers
        self.driver.send(rows)

    def recv(self, count: int | None = None, timeout: float | None = None) -> AsyncStepResult:
        self.driver.check_open()
        arrays, at = self.arrays, self.driver.receive(count, timeout)
        self._collect(0, at)
        self.episodes, self.final_obs = self.drain_episodes(), self.drain_final_obs()
        self.fault_log.record_valid(arrays["valid"][at], at)
        self.fault_log.check()
        if self.mask is not None:
            self.mask[at] = arrays["mask"][at]
        rows = self._concat_leaves([part[at] for part in self._obs])
        return AsyncStepResult(
            at,
            self.observation_codec.decode(rows),
            arrays["reward"][at].astype(np.float32),
            arrays["terminated"][at],
            arrays["truncated"][at],
            arrays["valid"][at],
        )

    def time_steps(self, rows: NDArray[Any]) -> list[float]:
        """Take steps with rows of actions [n, E, K] without waiting in between.

        Returns:
            Seconds of each step without a failure, worker after worker. Lost workers have none.
        """
        self.driver.ready()
        parts = self.driver.call("time_steps", lambda ids: (rows[:, ids],), allow_lost=True)
        return [seconds for _, part in parts for seconds in part or []]

    def infos(self) -> dict[str, Any]:
        self.driver.check_open()
        self._infos.clear()
        return self._infos.batch()

    def resize(self, num_envs: int) -> Any:
        self.driver.check_open()
        self._store_episode_state()
        before, old = self.num_envs, self.arrays
        last = int(old["index"].max())

        def fill(arrays: Arrays) -> None:
            new = slice(before, num_envs)
            arrays["seed"][new] = old["seed"][0]
            arrays["index"][new] = np.arange(last + 1, last + 1 + max(0, num_envs - before))
            if self.mask_size:
                arrays["mask"][new] = True

        self.driver.resize(num_envs, self._layout, fill)
        self.num_envs = num_envs
        self._attach()
        self._over = self.arrays["held"].copy()
        rows = allocate_buffers(self)
        self._write_observations(rows.obs, rows.mask)
        self.mask = rows.mask
        return self.observation_codec.decode(rows.obs)

    def _store_episode_state(self) -> None:
        """Write the state of all episodes to the arrays; workers do this at every step."""
        if self.backend == "serial":
            self.driver.call("store_episode_state", lambda ids: ())

    def drain_final_obs(self) -> FinalObs:
        has_final, self._finals = self._finals, []
        if not has_final:
            shape = (0, *self.spec.observation_shape)
            return FinalObs(
                np.zeros(shape, self.spec.observation_dtype), np.zeros((0, 2), np.int64)
            )
        obs = np.concatenate([rows for rows, _ in has_final])
        return FinalObs(obs, np.concatenate([index for _, index in has_final]).astype(np.int64))

    def drain_episodes(self) -> Episodes:
        ended, self._episodes = self._episodes, []
        arrays = self.arrays
        if not ended:
            ended = [
                (0, np.zeros(0, np.int64), *(arrays[name][:0].copy() for name in _EPISODE_ARRAYS))
            ]
        times, *columns = zip(*ended, strict=True)
        e, ret, length, lost, metrics = map(np.concatenate, columns)
        t = np.repeat(np.array(times, np.int64), [len(at) for at in columns[0]])
        named = {m.name: metrics[:, i].copy() for i, m in enumerate(self.spec.metrics)}
        return Episodes(t, e, ret, length, named, lost if lost.any() else None)

    def drain_faults(self) -> list[Fault]:
        """Return the faults since the last call, at most the newest 100."""
        return self.fault_log.drain()

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Return the state of each episode: number, length, return, observation, actions.

        `actions` is [E, longest, K] and zero beyond the length of an episode.
        """
        self.driver.check_open()
        self._store_episode_state()
        arrays = self.arrays
        log, length = arrays["log"], arrays["length"].copy()
        taken = np.arange(log.shape[1]) < length[:, None]
        obs = allocate_buffers(self).obs
        self._write_observations(obs)
        return {
            "episode": arrays["episode"].copy(),
            "length": length,
            "ret": arrays["ret"].copy(),
            "seen": obs,
            "actions": np.where(taken[..., None], log, log.dtype.type(0)),
        }

    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Replay the actions of each episode; `num_restarted` counts those that diverged."""
        self.driver.ready()
        self._finals, self._episodes = [], []
        self.driver.begun = True
        arrays, actions = self.arrays, state["actions"]
        longest = min(actions.shape[1], arrays["log"].shape[1])
        able = (state["length"] <= longest) & (state["episode"] > 0)
        arrays["episode"][:] = state["episode"]
        arrays["length"][:] = np.where(able, state["length"], 0)
        arrays["log"][:, :longest] = actions[:, :longest]
        arrays["selected"][:] = able
        self.driver.run("replay")
        self._write_observations(obs)
        same = (obs == state["seen"]).reshape(self.num_envs, -1).all(axis=1)
        able &= ~arrays["diverged"] & same & (arrays["ret"] == state["ret"])
        able &= ~self.driver.dirty  # their worker was lost meanwhile
        self.num_restarted = int((~able).sum())
        if self.num_restarted:
            arrays["selected"][:] = ~able
            arrays["episode"][~able] = state["episode"][~able]
            self.driver.run("reset")
        self._write_observations(obs, mask)
        self.fault_log.check()

    def close(self) -> None:
        """Close all sub-environments and workers. Safe to call again."""
        self.driver.close()


def make_probe_env(env: Any, kwargs: Mapping[str, Any] | None = None) -> Any:
    """Create an environment whose observations contain no action mask."""
    return separate_mask(make_gymnasium(env, kwargs))


def spec_from_env(env: Any, name: str, metrics: Sequence[str] = ()) -> EnvSpec:
    """Return the specification of an environment for agents.

    Args:
        env: Gymnasium environment.
        name: Name without ``gym:``, for messages.
        metrics: Names of numbers that its episodes report.

    Raises:
        ConfigError: A space has no row format.
        KernelError: The spaces cannot be read.
    """
    try:
        observation_space, action_space = env.observation_space, env.action_space
        limit = getattr(env.spec, "max_episode_steps", None)
    except BaseException as error:
        if not is_env_error(error):
            raise
        raise wrap_env_error(name, "its spaces", error) from error
    more = {"metrics": tuple(map(Metric, metrics)), "max_episode_steps": limit}
    return replace(
        make_row_spec(name, observation_space, action_space, **more),
        has_action_mask=probe_mask(env),
    )


def _log_dtype(spec: EnvSpec) -> np.dtype[Any]:
    """Return the smallest dtype for logged actions, which are non-negative if discrete."""
    return np.min_scalar_type(max(spec.nvec)) if spec.nvec else spec.action_dtype
