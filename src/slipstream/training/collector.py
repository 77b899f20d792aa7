"""Collectors step agent and environments together, for a rollout or a replay buffer.

If possible, an iteration runs without a step of Python. `kernels/fused.py` links acting and
stepping for a rollout. `FusedReplayLoop` links acting, stepping, writing to the replay buffer and
learning from it. Results are bit-identical to separate calls for every row.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, KernelError
from slipstream.core.storage.checkpoint import add_prefix, strip_prefix
from slipstream.jit import codegen
from slipstream.jit.intrinsics import compiled_clock
from slipstream.jit.work_sharing import RunTasks
from slipstream.kernels.fused import CompiledActor, FusedLoop, RolloutRows
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.loop import EPISODES, FAULT, FINALS, RESET
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import (
    Episodes,
    FinalObs,
    VectorEnv,
    concat_episodes,
    concat_final_obs,
)
from slipstream.rl.agents.agent import Agent, CompiledLearner
from slipstream.rl.experience.replay.replay import Replay
from slipstream.rl.experience.replay.replay_config import ReplayConfig, updates_due
from slipstream.rl.experience.rollout import Rollout

# Bound by the code generator.
act: Any = None
advance: Any = None  # of the kernel's batch loop
write: Any = None  # of the replay
learn: Any = None
seconds: Any = None  # a clock

MASKED = False  # True if the kernel has an action mask; Numba removes unused branches

TIMED_EVERY = 16  # acting is timed every 16 rows: reading the clock costs as much as a small policy

# Indices into `ReplayLoopState.spent`.
ACTING = 0
LEARNING = 1
REPLAY = "replay."
_TIMED_BLOCKS = 64  # fused blocks between two whose first row is timed


class ReplayLoopState(NamedTuple):
    """State of the loop that stores rows and schedules updates.

    Attributes:
        ring: Ring of the replay buffer.
        schedule: its Schedule.
        learned: int64 [M], updates that each member has been assigned so far.
        due: int64 [M], updates due after one row; overwritten.
        valid: bool [E], all true.
        nothing: bool [E, 0].
        final_of: int64 [E], all -1; overwritten in between.
        spent: float64 [2], seconds of acting (in timed rows) and learning so far.
    """

    ring: Any
    schedule: Any
    learned: NDArray[np.int64]
    due: NDArray[np.int64]
    valid: NDArray[np.bool_]
    nothing: NDArray[np.bool_]
    final_of: NDArray[np.int64]
    spent: NDArray[np.float64]


# One long function: it shows the order of events in a row.
def collect(
    begin: int, end: int, batch: Any, block: Any, ctx: Any, env_actions: Any, loop_state: Any,
    store: Any, source: Any, learner: Any,
) -> int:  # fmt: skip
    """Collect rows begin..end-1.

    Args:
        batch: arrays of the kernel's loop.
        block: RolloutRows.
        ctx: see `CompiledActor`.
        env_actions: [E, K], actions that the environments receive; overwritten.
        loop_state: ReplayLoopState.
        store: array of the replay buffer's loops.
        source, learner: see `Learning`.

    Returns:
        The next row: `end`, unless the buffer of episodes is full or a fault occurred.
    """
    obs, flat, mask, action, log_prob, reward, terminated, truncated = block
    final_obs, final_index, counts, num_envs = batch[4], batch[5], batch[7], len(env_actions)
    finals = final_obs.reshape(len(final_obs), final_obs.size // len(final_obs))
    for t in range(begin, end):
        if len(final_obs) - counts[EPISODES] < num_envs:
            return t
        timed = t % TIMED_EVERY == 0
        began = seconds() if timed else 0.0
        allowed = mask[t] if MASKED else mask
        act(ctx, t, flat[t], allowed, action[t], log_prob[t], env_actions)
        if timed:
            loop_state.spent[ACTING] += seconds() - began
        outputs = (env_actions, obs[t + 1], reward[t], terminated[t], truncated[t])
        counts[FINALS] = 0
        if MASKED:
            advance(0, num_envs, t, RESET, batch, (*outputs, mask[t + 1]))
        else:
            advance(0, num_envs, t, RESET, batch, outputs)
        if counts[FAULT] != 0:
            return t + 1
        for i in range(counts[FINALS]):
            loop_state.final_of[final_index[i, 1]] = i
        allowed_next = mask[t + 1] if MASKED else loop_state.nothing
        transition = (action[t], reward[t], terminated[t], truncated[t], loop_state.valid)
        next_inputs = (flat[t + 1], allowed_next, finals, loop_state.final_of)
        write(loop_state.ring, store, 0, num_envs, *transition, *next_inputs)
        for i in range(counts[FINALS]):
            loop_state.final_of[final_index[i, 1]] = -1
        counts[FINALS] = 0
        any_due = False
        for m in range(len(loop_state.due)):
            loop_state.due[m] = 0
            if loop_state.ring.num_valid[m] > 0:
                total = updates_due(loop_state.schedule, loop_state.ring.steps[m])
                loop_state.due[m] = total - loop_state.learned[m]
                loop_state.learned[m] = total
                any_due = any_due or loop_state.due[m] > 0
        if any_due:
            began = seconds()
            learn(source, learner, loop_state.ring, store, loop_state.due)
            loop_state.spent[LEARNING] += seconds() - began
    return end


class FusedReplayLoop:
    """Runs the rows of an iteration for the environments of a kernel.

    Args:
        env: all environments; `FusedLoop.is_supported` must be true for them.
        replay: replay buffer with compiled `loops`.
        acting, learning, block: examples of the argument types.
        learned: see `ReplayLoopState`.
    """

    def __init__(
        self,
        env: KernelVectorEnv,
        replay: Replay,
        acting: CompiledActor,
        learning: CompiledLearner,
        block: RolloutRows,
        learned: NDArray[np.int64],
    ) -> None:
        num_envs, spec = env.num_envs, env.spec
        loops = replay.loops
        assert loops is not None
        self._env, self._replay = env, replay
        self._env_actions = np.zeros((num_envs, spec.action_dim), spec.action_dtype)
        self._loop_state = ReplayLoopState(
            replay.ring,
            replay.config.schedule,
            learned,
            np.zeros_like(learned),
            np.ones(num_envs, np.bool_),
            np.zeros((num_envs, 0), np.bool_),
            np.full(num_envs, -1, np.int64),
            np.zeros(2),
        )
        examples = self._arguments(0, 0, block, acting, learning)
        module = codegen.compile_module(
            f"{env.kernel.name}_replay",
            codegen.get_source([collect]),
            {"collect": examples},
            {"updates_due": cast(FunctionType, updates_due)},
            {
                **{"Any": Any, "FINALS": FINALS, "EPISODES": EPISODES, "FAULT": FAULT},
                **{"MASKED": bool(env.mask_size), "RESET": RESET, "TIMED_EVERY": TIMED_EVERY},
                **{"ACTING": ACTING, "LEARNING": LEARNING},
            },
            linked={
                "act": acting.loop,
                "advance": env.loop.advance,
                "write": loops.write,
                "learn": learning.loop,
                "seconds": compiled_clock(),
            },
        )
        self._collect = module["collect"]

    def _arguments(
        self,
        begin: int,
        end: int,
        block: RolloutRows,
        acting: CompiledActor,
        learning: CompiledLearner,
    ) -> tuple[Any, ...]:
        """Return the loop's arguments with the current arrays."""
        loops = self._replay.loops
        assert loops is not None
        return (
            *(begin, end, self._env.batch, tuple(block), acting.ctx, self._env_actions),
            *(self._loop_state, loops.store, learning.source, learning.learner),
        )

    def run(
        self,
        rollout: Rollout,
        acting: CompiledActor,
        learning: CompiledLearner,
        run_tasks: RunTasks,
    ) -> tuple[float, float, float]:
        """Fill and store all rows, and run the updates that are due.

        Args:
            run_tasks: provides threads that may take part in updates.

        Returns:
            Seconds of acting (from every 16th row), of stepping and storing, and of learning.

        Raises:
            KernelError: an environment returned NaN or infinity, or indexed beyond an array.
        """
        end, began, before = len(rollout.reward), time.perf_counter(), self._loop_state.spent.copy()
        learning.share(partial(self._run_rows, rollout, acting, learning), run_tasks)
        rollout.valid[:] = True
        acted, learned = (self._loop_state.spent - before).tolist()
        spent = time.perf_counter() - began
        acted *= end / -(-end // TIMED_EVERY)
        acted = min(acted, spent - learned)  # an interruption may have inflated a sample
        return acted, spent - acted - learned, learned

    def _run_rows(self, rollout: Rollout, acting: CompiledActor, learning: CompiledLearner) -> None:
        env, t, end = self._env, 0, len(rollout.reward)
        while t < end:
            env.ensure_capacity()  # may replace arrays
            try:
                t = self._collect(*self._arguments(t, end, rollout.rows, acting, learning))
            except Exception as error:
                raise env.explain_error(error, self._env_actions) from error
            env.raise_fault(self._env_actions, t - 1)
        env.ensure_capacity()


def make_collector(
    agent: Agent,
    envs: Sequence[VectorEnv],
    spec: EnvSpec,
    steps: int,
    num_envs: int,
    plan: ReplayConfig | None = None,
) -> Collector:
    """Create the collector for the experience that an agent requires.

    Args:
        agent, envs: see `Collector`.
        spec: spec of the environments.
        steps: steps of every environment per iteration.
        num_envs: N.
        plan: plan of the replay buffer, if the agent uses one.

    Raises:
        ConfigError: the agent uses a replay buffer, and its Config does not define one.
    """
    rollout = Rollout(spec, steps, agent.members, num_envs, envs[0].mask_size)
    if agent.experience_type == "rollout":
        return Collector(agent, envs, rollout)
    if plan is None:
        raise ConfigError(
            f"The agent {type(agent).__name__} requires a replay buffer, but `replay` of "
            "its Config returns None. Return a ReplayConfig from it (docs/guides/custom-agent.md)."
        )
    replay = Replay(plan, spec, agent.members, num_envs, envs[0].mask_size, envs)
    return ReplayCollector(agent, envs, rollout, replay)


class Collector:
    """Fills a rollout: the policy acts on row t, and environments write row t + 1 in place.

    Args:
        agent: agent of M members.
        envs: the E = M x N sub-environments in consecutive slices, which may be stepped in
            parallel. Several slices are for a single member only.
        experience: rollout to fill; it is reused for every block.
    """

    def __init__(self, agent: Agent, envs: Sequence[VectorEnv], experience: Rollout) -> None:
        if agent.members > 1 and len(envs) > 1:
            raise ValueError("the environments of several members are stepped in one slice")
        self.agent, self.envs, self.experience = agent, list(envs), experience
        edges = np.cumsum([0, *(env.num_envs for env in envs)]).tolist()
        self._ranges = list(itertools.pairwise(edges))
        self._continues = False  # True if row 0 continues row T of the previous block
        self._loops: list[FusedLoop | None] | None = None
        self._blocks = 0  # blocks filled so far
        self._acting = [0.5] * len(self.envs)  # policy's share of each slice's time
        self.seconds_env = 0.0
        self.seconds_policy = 0.0
        self.seconds_learning = 0.0  # between steps

    def prepare(self) -> None:
        """Create and compile the loops that act and step."""
        if self._loops is None:
            self._loops = self._make_loops()

    def reset(self) -> None:
        """Start an episode in every environment."""
        for env, _, obs, mask in self._latest_slices():
            env.reset(obs, mask)

    def restart(self, env_ids: NDArray[np.int64]) -> None:
        """Abort the episodes of some environments between two blocks and start new ones."""
        for env, (lo, hi), obs, mask in self._latest_slices():
            slice_ids = env_ids[(env_ids >= lo) & (env_ids < hi)] - lo
            if len(slice_ids):
                env.restart(slice_ids, None, obs, mask)

    def clear_experience(self, member: int) -> None:
        """Discard a member's stored experience; a rollout stores none."""

    def collect(self, run_tasks: RunTasks) -> Episodes:
        """Fill the rollout with T steps of every environment, from the last block's last
        observation.

        Returns:
            Completed episodes in the order (t, e); `e` counts over all slices.
        """
        if self._continues:
            self.experience.start_next()
        self._continues = True
        self.prepare()
        assert self._loops is not None
        run_tasks([self._collect_task(i, loop) for i, loop in enumerate(self._loops)])
        self._blocks += 1
        self.experience.set_final_obs(*self._drained_finals())
        self._check_and_time()
        return self._drained_episodes()

    def _drained_finals(self) -> list[FinalObs]:
        """Return final observations of each slice; environments count over all slices."""
        finals = [env.drain_final_obs() for env in self.envs]
        for final, (lo, _) in zip(finals, self._ranges, strict=True):
            final.index[:, 1] += lo
        return finals

    def _drained_episodes(self) -> Episodes:
        """Return completed episodes in the order (t, e); `e` counts over all slices."""
        ended = zip((env.drain_episodes() for env in self.envs), self._ranges, strict=True)
        return concat_episodes(
            [episodes._replace(e=episodes.e + lo) for episodes, (lo, _) in ended]
        )

    def _collect_task(self, i: int, loop: FusedLoop | None) -> Callable[[], None]:
        """Return the task that fills the rollout's rows of a slice."""
        if loop is None:
            env, halves = self.envs[i], self.agent.double_buffered_ranges()
            if halves and isinstance(env, KernelVectorEnv):
                return partial(self._collect_halves, env, halves)
            return partial(self._collect_slice, i, range(len(self.experience.reward)))
        # Prepared before the threads start, as Python code in two threads would block.
        acting = self.agent.compiled_actor(*self._ranges[i])
        assert acting is not None
        return partial(self._collect_fused, i, loop, acting)

    def _collect_fused(self, i: int, loop: FusedLoop, acting: CompiledActor) -> None:
        """Collect a slice in compiled code; every 64th block times its first row."""
        rollout, lo, began = self.experience, self._ranges[i][0], time.perf_counter()
        timed = self._blocks % _TIMED_BLOCKS == 0
        if timed:
            acted, stepped = self._collect_row(i, 0)
            self._acting[i] = acted / max(acted + stepped, 1e-9)
        loop.run(int(timed), rollout.rows, lo, acting)
        rollout.valid[:, lo : self._ranges[i][1]] = True
        seconds = time.perf_counter() - began
        self._count_seconds(self._acting[i] * seconds, (1.0 - self._acting[i]) * seconds)

    def _collect_slice(self, i: int, rows: range) -> None:
        acted = stepped = 0.0
        for t in rows:
            a, s = self._collect_row(i, t)
            acted, stepped = acted + a, stepped + s
        self._count_seconds(acted, stepped)

    def _collect_halves(self, env: KernelVectorEnv, halves: list[tuple[int, int]]) -> None:
        """Step one half of the environments while a GPU computes the actions of the other half."""
        rollout, agent, stepped = self.experience, self.agent, 0.0
        began = time.perf_counter()
        acting = [agent.begin_act(rollout, 0, lo, hi) for lo, hi in halves]
        for t in range(len(rollout.reward)):
            for i, (lo, hi) in enumerate(halves):
                actions, acted = acting[i](), time.perf_counter()
                env.step_rows(actions, rollout.step_buffers(t), t, lo, hi)
                stepped += time.perf_counter() - acted
                if t + 1 < len(rollout.reward):
                    acting[i] = agent.begin_act(rollout, t + 1, lo, hi)
        self._count_seconds(time.perf_counter() - began - stepped, stepped)

    def _collect_row(self, i: int, t: int) -> tuple[float, float]:
        """Act and step a slice once; return the seconds of both."""
        env, (lo, hi), rollout = self.envs[i], self._ranges[i], self.experience
        began = time.perf_counter()
        actions = self.agent.act(rollout, t, lo, hi)
        acted = time.perf_counter()
        env.step(actions, rollout.step_buffers(t, lo, hi), t)
        return acted - began, time.perf_counter() - acted

    def _count_seconds(self, acted: float, stepped: float) -> None:
        self.seconds_policy += acted / len(self.envs)
        self.seconds_env += stepped / len(self.envs)

    def _make_loops(self) -> list[FusedLoop | None]:
        """Create a compiled loop per slice; None for a slice that cannot be compiled."""
        loops: list[FusedLoop | None] = []
        for env, (lo, hi) in zip(self.envs, self._ranges, strict=True):
            acting = self.agent.compiled_actor(lo, hi) if FusedLoop.is_supported(env) else None
            block = self.experience.rows
            loops.append(None if acting is None else FusedLoop(env, acting, block))
        return loops

    def _latest(self) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Return the current observations and masks [E, ...] between two blocks."""
        row, mask = len(self.experience.reward) if self._continues else 0, self.experience.mask
        return self.experience.obs[row], None if mask is None else mask[row]

    def _latest_slices(
        self,
    ) -> Iterator[tuple[VectorEnv, tuple[int, int], NDArray[Any], NDArray[np.bool_] | None]]:
        """Iterate over the slices with their range and part of `_latest`."""
        obs, mask = self._latest()
        for env, (lo, hi) in zip(self.envs, self._ranges, strict=True):
            yield env, (lo, hi), obs[lo:hi], None if mask is None else mask[lo:hi]

    def _check_and_time(self) -> None:
        """Run `_check_observations` and count its time as environment time."""
        began = time.perf_counter()
        self._check_observations()
        self.seconds_env += time.perf_counter() - began

    def _check_observations(self) -> None:
        """Raise if an observation is NaN. Checking once per block is cheaper than at every step."""
        obs = self.experience.obs
        if obs.dtype.kind != "f":
            return
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(obs.sum()):
                return
        bad = np.argwhere(~np.isfinite(self.experience.obs.reshape(len(obs), obs.shape[1], -1)))
        if len(bad) == 0:
            return  # all values are finite, and only their sum overflowed
        t, e, column = (int(place) for place in bad[0])
        last = self.experience.actions[t - 1, e].tolist() if t else "none (a new episode)"
        raise KernelError(
            f"The environment returned an observation that is NaN or infinite: environment {e}, "
            f"step {t}, column {column}, last action {last}. Guard the divisor or the argument of "
            "log or sqrt that produced it."
        )

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Return the state of all environments, [E, ...] by name."""
        states = [env.get_state() for env in self.envs]
        return {name: np.concatenate([state[name] for state in states]) for name in states[0]}

    def bulk(self, member: int) -> Mapping[str, Callable[[], NDArray[Any]]]:
        """Return functions that create the large chunks of a member's state, by name; none here.

        Chunks never pass a pipe: the process that holds a chunk writes it. A name identifies the
        content, so a chunk that already has a file is not written again.
        """
        return {}

    def set_state(
        self,
        state: dict[str, NDArray[Any]],
        bulk: Sequence[Iterable[tuple[str, NDArray[Any]]]] = (),
    ) -> int:
        """Restore `get_state()`; the rollout's first row then holds the current observations.

        Args:
            state: the state to restore.
            bulk: chunks of each member by name; only one is in memory at a time.

        Returns:
            Number of environments that could not be restored and start a new episode.
        """
        self._continues = False
        for env, (lo, hi), obs, mask in self._latest_slices():
            env.set_state({name: values[lo:hi] for name, values in state.items()}, obs, mask)
        return sum(env.num_restarted for env in self.envs)


class ReplayCollector(Collector):
    """Steps every environment, stores the transitions, and runs the agent's updates when due.

    Args:
        agent, envs: as for `Collector`.
        experience: rollout of one iteration; the policy acts on its rows.
        replay: replay buffer of the same environments.

    Attributes:
        learned: int64 [M], updates that each member has been assigned so far.
    """

    def __init__(
        self, agent: Agent, envs: Sequence[VectorEnv], experience: Rollout, replay: Replay
    ) -> None:
        super().__init__(agent, envs, experience)
        self.replay = replay
        self.learned = np.zeros(agent.members, np.int64)
        self._fused_loop: FusedReplayLoop | None = None
        self._schedule = replay.config.schedule
        self._final_of = np.full(experience.reward.shape[1], -1, np.int64)
        self._no_finals = concat_final_obs([env.drain_final_obs() for env in envs])

    def prepare(self) -> None:
        self._prepared()

    def reset(self) -> None:
        super().reset()
        self.replay.begin(*self._latest())

    def restart(self, env_ids: NDArray[np.int64]) -> None:
        super().restart(env_ids)
        self.replay.resume(*self._latest())

    def clear_experience(self, member: int) -> None:
        self.replay.clear(member)
        self.replay.begin(*self._latest())

    def collect(self, run_tasks: RunTasks) -> Episodes:
        """Step every environment T times and run the updates that are due.

        Returns:
            Completed episodes in the order (t, e).
        """
        rollout, final_obs = self.experience, []
        if self._continues:
            rollout.start_next()
        self._continues = True
        fused = self._fused(run_tasks)
        if fused is not None:
            return fused
        for t in range(len(rollout.reward)):
            slices = [
                partial(self._collect_slice, i, range(t, t + 1)) for i in range(len(self.envs))
            ]
            run_tasks(slices) if len(slices) > 1 else slices[0]()
            began = time.perf_counter()
            finals = self._row_finals(t)
            self._store_row(t, finals)
            stored = time.perf_counter()
            self.seconds_env += stored - began
            final_obs.append(finals)
            self._run_due_updates(run_tasks)
            self.seconds_learning += time.perf_counter() - stored
        self._check_and_time()
        rollout.set_final_obs(*final_obs)
        return self._drained_episodes()

    def _fused(self, run_tasks: RunTasks) -> Episodes | None:
        """Collect in one compiled call; return None if that is not possible."""
        ready, rollout = self._prepared(), self.experience
        if ready is None or self._fused_loop is None:
            return None
        acting, learning = ready
        acted, stepped, learned = self._fused_loop.run(rollout, acting, learning, run_tasks)
        self.seconds_policy += acted
        self.seconds_env += stepped
        self.seconds_learning += learned
        rollout.set_final_obs(self._no_finals)
        self._check_and_time()
        return concat_episodes([self.envs[0].drain_episodes()])

    def _prepared(self) -> tuple[CompiledActor, CompiledLearner] | None:
        """Return the arguments of the compiled call; None if it is not possible."""
        env = self.envs[0]
        # Called even if the loop is not fused: `learn` uses the compiled function.
        learning = None if self.replay.loops is None else self.agent.compiled_learner(self.replay)
        if learning is None or len(self.envs) > 1 or not FusedLoop.is_supported(env):
            return None
        acting = self.agent.compiled_actor()
        if acting is None:
            return None
        assert isinstance(env, KernelVectorEnv)
        if self._fused_loop is None:
            rows = self.experience.rows
            self._fused_loop = FusedReplayLoop(
                env, self.replay, acting, learning, rows, self.learned
            )
        return acting, learning

    def _row_finals(self, t: int) -> FinalObs:
        """Return final observations of the environments whose episodes step t truncated."""
        if not self.experience.truncated[t].any():
            return self._no_finals
        return concat_final_obs(self._drained_finals())

    def _store_row(self, t: int, finals: FinalObs) -> None:
        final_of, env_ids = self._final_of, finals.index[:, 1]
        final_of[env_ids] = np.arange(len(env_ids))
        self.replay.write(self.experience, t, finals, final_of)
        final_of[env_ids] = -1

    def _run_due_updates(self, run_tasks: RunTasks) -> None:
        replay, schedule = self.replay, self._schedule
        totals = [updates_due(schedule, steps) for steps in replay.steps.tolist()]
        due = np.where(replay.num_valid > 0, np.array(totals) - self.learned, 0)
        if due.any():
            self.agent.learn(replay, due, run_tasks)
            self.learned += due

    def bulk(self, member: int) -> Mapping[str, Any]:
        return self.replay.chunk_builders(member)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Return the state of all environments and the small part of the replay buffer's."""
        replay_state = {**self.replay.state_dict(), "learned": self.learned.copy()}
        return {**super().get_state(), **add_prefix(REPLAY, replay_state)}

    def set_state(
        self,
        state: dict[str, NDArray[Any]],
        bulk: Sequence[Iterable[tuple[str, NDArray[Any]]]] = (),
    ) -> int:
        """Restore `get_state()` and each member's `bulk`.

        If an environment cannot be restored, its stored episode is truncated at that point.
        """
        replay_state = strip_prefix(REPLAY, state)
        num_restarted = super().set_state(
            {k: v for k, v in state.items() if not k.startswith(REPLAY)}
        )
        self.learned[:] = replay_state.pop("learned")
        self.replay.load_state_dict(replay_state)
        for m, chunks in enumerate(bulk):
            self.replay.load_chunks(m, chunks)
        self.replay.resume(*self._latest())
        return num_restarted
