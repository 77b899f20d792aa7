"""The one place where policy meets environments: for a rollout, or a replay to learn from.

Where it can, an iteration runs without a step of Python: `kernels/fused.py` links acting and
stepping for a rollout, and `FusedReplayLoop` links acting, stepping, writing a replay and learning
from it. The numbers are bit for bit those of separate calls at every row.
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
from slipstream.rl.agents.agent import Agent, Learning
from slipstream.rl.experience.replay.plan import ReplayPlan, updates_due
from slipstream.rl.experience.replay.replay import Replay
from slipstream.rl.experience.rollout import Rollout

# Bound by the renderer.
act: Any = None
advance: Any = None  # of the kernel's batch loop
write: Any = None  # of the replay
learn: Any = None
seconds: Any = None  # a clock

MASKED = False  # whether the kernel has a mask; Numba drops the branches that are not taken

SAMPLED = 16  # acting is timed at every 16th row: a reading costs as much as a small policy

# Places of `ReplayLoopState.spent`.
ACTING = 0
LEARNING = 1
REPLAY = "replay."
_TIMED_BLOCKS = 64  # of a loop that acts and steps at once, from one whose first row is timed


class ReplayLoopState(NamedTuple):
    """What is kept of each row, and when members learn.

    Attributes:
        ring: the replay's Ring; schedule: its Schedule.
        learned: int64 [M], updates that each member was told to make so far.
        due: int64 [M], those of one row, overwritten.
        valid: bool [E], all true; nothing: bool [E, 0].
        final_of: int64 [E], all -1, overwritten in between.
        spent: float64 [2], seconds of acting (in rows that are timed) and learning so far.
    """

    ring: Any
    schedule: Any
    learned: NDArray[np.int64]
    due: NDArray[np.int64]
    valid: NDArray[np.bool_]
    nothing: NDArray[np.bool_]
    final_of: NDArray[np.int64]
    spent: NDArray[np.float64]


# Long: what happens at a row, in the order in which it happens, stands in one place.
def collect(
    begin: int, end: int, batch: Any, block: Any, by: Any, sent: Any, keeping: Any, store: Any,
    feed: Any, learner: Any,
) -> int:  # fmt: skip
    """Rows begin..end-1.

    Args:
        batch: of the kernel's loop; block: RolloutRows; by: see `Acting`.
        sent: [E, K], what the copies receive, overwritten.
        keeping: ReplayLoopState
        store: of the replay's `ReplayLoops`; feed, learner: see `Learning`.

    Returns:
        The row that is next: `end`, unless there is no room for what ends, or a fault.
    """
    obs, flat, mask, action, log_prob, reward, terminated, truncated = block
    final_obs, final_index, counts, copies = batch[4], batch[5], batch[7], len(sent)
    finals = final_obs.reshape(len(final_obs), final_obs.size // len(final_obs))
    for t in range(begin, end):
        if len(final_obs) - counts[EPISODES] < copies:
            return t
        timed = t % SAMPLED == 0
        began = seconds() if timed else 0.0
        allowed = mask[t] if MASKED else mask
        act(by, t, flat[t], allowed, action[t], log_prob[t], sent)
        if timed:
            keeping.spent[ACTING] += seconds() - began
        now = (sent, obs[t + 1], reward[t], terminated[t], truncated[t])
        counts[FINALS] = 0
        if MASKED:
            advance(0, copies, t, RESET, batch, (*now, mask[t + 1]))
        else:
            advance(0, copies, t, RESET, batch, now)
        if counts[FAULT] != 0:
            return t + 1
        for i in range(counts[FINALS]):
            keeping.final_of[final_index[i, 1]] = i
        shown = mask[t + 1] if MASKED else keeping.nothing
        happened = (action[t], reward[t], terminated[t], truncated[t], keeping.valid)
        seen = (flat[t + 1], shown, finals, keeping.final_of)
        write(keeping.ring, store, 0, copies, *happened, *seen)
        for i in range(counts[FINALS]):
            keeping.final_of[final_index[i, 1]] = -1
        counts[FINALS] = 0
        some = False
        for m in range(len(keeping.due)):
            keeping.due[m] = 0
            if keeping.ring.held[m] > 0:
                total = updates_due(keeping.schedule, keeping.ring.steps[m])
                keeping.due[m] = total - keeping.learned[m]
                keeping.learned[m] = total
                some = some or keeping.due[m] > 0
        if some:
            began = seconds()
            learn(feed, learner, keeping.ring, store, keeping.due)
            keeping.spent[LEARNING] += seconds() - began
    return end


class FusedReplayLoop:
    """Runs the rows of an iteration for a kernel's copies.

    Args:
        env: all copies, which `FusedLoop.fits`.
        replay: what is kept of them; it has `loops`.
        acting, learning, block: examples of their types.
        learned: see `ReplayLoopState`.
    """

    def __init__(
        self,
        env: KernelVectorEnv,
        replay: Replay,
        acting: CompiledActor,
        learning: Learning,
        block: RolloutRows,
        learned: NDArray[np.int64],
    ) -> None:
        copies, spec = env.num_envs, env.spec
        loops = replay.loops
        assert loops is not None
        self._env, self._replay = env, replay
        self._sent = np.zeros((copies, spec.action_dim), spec.action_dtype)
        self._keeping = ReplayLoopState(
            replay.ring,
            replay.plan.schedule,
            learned,
            np.zeros_like(learned),
            np.ones(copies, np.bool_),
            np.zeros((copies, 0), np.bool_),
            np.full(copies, -1, np.int64),
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
                **{"MASKED": bool(env.mask_size), "RESET": RESET, "SAMPLED": SAMPLED},
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
        self, begin: int, end: int, block: RolloutRows, acting: CompiledActor, learning: Learning
    ) -> tuple[Any, ...]:
        """Arguments of the loop, with the arrays that there are now."""
        loops = self._replay.loops
        assert loops is not None
        return (
            *(begin, end, self._env.batch, tuple(block), acting.ctx, self._sent),
            *(self._keeping, loops.store, learning.feed, learning.by),
        )

    def run(
        self, rollout: Rollout, acting: CompiledActor, learning: Learning, run_tasks: RunTasks
    ) -> tuple[float, float, float]:
        """Fills all rows, keeps them, and learns as often as is due.

        Args:
            run_tasks: whose threads may take part in updates.

        Returns:
            Seconds of acting (from every 16th row), stepping and keeping, and learning.

        Raises:
            KernelError: a number that nobody can train on, or an index beyond an array.
        """
        end, began, before = len(rollout.reward), time.perf_counter(), self._keeping.spent.copy()
        learning.share(partial(self._run_rows, rollout, acting, learning), run_tasks)
        rollout.valid[:] = True
        acted, learned = (self._keeping.spent - before).tolist()
        spent = time.perf_counter() - began
        acted *= end / -(-end // SAMPLED)
        acted = min(acted, spent - learned)  # a sample may have met an interruption
        return acted, spent - acted - learned, learned

    def _run_rows(self, rollout: Rollout, acting: CompiledActor, learning: Learning) -> None:
        env, t, end = self._env, 0, len(rollout.reward)
        while t < end:
            env.ensure_capacity()  # by other arrays
            try:
                t = self._collect(*self._arguments(t, end, rollout.rows, acting, learning))
            except Exception as error:
                raise env.explain_error(error, self._sent) from error
            env.raise_fault(self._sent, t - 1)
        env.ensure_capacity()


def make_collector(
    agent: Agent,
    envs: Sequence[VectorEnv],
    spec: EnvSpec,
    steps: int,
    num_envs: int,
    plan: ReplayPlan | None = None,
) -> Collector:
    """What writes the experience that an agent wants.

    Args:
        agent, envs: see `Collector`.
        spec: of the environments.
        steps: of every copy, in one iteration.
        num_envs: N.
        plan: of the replay, where the agent wants one.

    Raises:
        ConfigError: it wants a replay, and its Config does not say which.
    """
    rollout = Rollout(spec, steps, agent.members, num_envs, envs[0].mask_size)
    if agent.wants == "rollout":
        return Collector(agent, envs, rollout)
    if plan is None:
        raise ConfigError(
            f"The agent {type(agent).__name__} wants a replay, and the method `replay` of its "
            "Config does not say how large: return a ReplayPlan from it (docs/extending-agents.md)."
        )
    replay = Replay(plan, spec, agent.members, num_envs, envs[0].mask_size, envs)
    return ReplayCollector(agent, envs, rollout, replay)


class Collector:
    """Fills a rollout: the policy acts on row t, environments write row t + 1, uncopied.

    Args:
        agent: M members.
        envs: the E = M x N copies in consecutive slices, which may be stepped side by side. Several
            slices are for one member only: a slice must hold the same copies of every member.
        experience: the rollout that is filled; it is used again for every block.
    """

    def __init__(self, agent: Agent, envs: Sequence[VectorEnv], experience: Rollout) -> None:
        if agent.members > 1 and len(envs) > 1:
            raise ValueError("the environments of several members are stepped in one slice")
        self.agent, self.envs, self.experience = agent, list(envs), experience
        edges = np.cumsum([0, *(env.num_envs for env in envs)]).tolist()
        self._ranges = list(itertools.pairwise(edges))
        self._follows = False  # row T of the rollout continues in row 0 of the next one
        self._loops: list[FusedLoop | None] | None = None
        self._blocks = 0  # filled so far
        self._acting = [0.5] * len(self.envs)  # share of a slice's seconds that the policy takes
        self.seconds_env = 0.0
        self.seconds_policy = 0.0
        self.seconds_learning = 0.0  # between steps

    def prepare(self) -> None:
        """Makes the loops that act and step; what they need is compiled where it never was."""
        if self._loops is None:
            self._loops = self._make_loops()

    def reset(self) -> None:
        """Begins an episode everywhere."""
        for env, _, obs, mask in self._latest_slices():
            env.reset(obs, mask)

    def restart(self, copies: NDArray[np.int64]) -> None:
        """Begins new episodes of some copies between two blocks; what they were in is dropped."""
        for env, (lo, hi), obs, mask in self._latest_slices():
            own = copies[(copies >= lo) & (copies < hi)] - lo
            if len(own):
                env.restart(own, None, obs, mask)

    def forget(self, member: int) -> None:
        """Drops what was kept of a member; a rollout keeps nothing."""

    def collect(self, run_tasks: RunTasks) -> Episodes:
        """Fills the rollout with T steps of every copy, from the last block's last observation on.

        Returns:
            The episodes that ended, in the order (t, e); `e` counts over all slices.
        """
        if self._follows:
            self.experience.carry_over()
        self._follows = True
        self.prepare()
        assert self._loops is not None
        run_tasks([self._filling(i, loop) for i, loop in enumerate(self._loops)])
        self._blocks += 1
        self.experience.set_finals(*self._drained_finals())
        self._look_for_faults()
        return self._drained_episodes()

    def _drained_finals(self) -> list[FinalObs]:
        """Final observations of each slice; copies count over all slices."""
        finals = [env.drain_final_obs() for env in self.envs]
        for final, (lo, _) in zip(finals, self._ranges, strict=True):
            final.index[:, 1] += lo
        return finals

    def _drained_episodes(self) -> Episodes:
        """Episodes that ended, in the order (t, e); `e` counts over all slices."""
        ended = zip((env.drain_episodes() for env in self.envs), self._ranges, strict=True)
        return concat_episodes([one._replace(e=one.e + lo) for one, (lo, _) in ended])

    def _filling(self, i: int, loop: FusedLoop | None) -> Callable[[], None]:
        """What fills the rollout's rows of a slice."""
        if loop is None:
            env, halves = self.envs[i], self.agent.halves()
            if halves and isinstance(env, KernelVectorEnv):
                return partial(self._collect_halves, env, halves)
            return partial(self._collect_slice, i, range(len(self.experience.reward)))
        # Before the threads begin: two that run Python at once wait for each other.
        acting = self.agent.acting(*self._ranges[i])
        assert acting is not None
        return partial(self._collect_fused, i, loop, acting)

    def _collect_fused(self, i: int, loop: FusedLoop, acting: CompiledActor) -> None:
        """Acting and stepping are timed apart for the first row of some blocks."""
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
        """Steps one half of the copies while a card calculates the other one's actions."""
        rollout, agent, stepped = self.experience, self.agent, 0.0
        began = time.perf_counter()
        acting = [agent.begin_act(rollout, 0, lo, hi) for lo, hi in halves]
        for t in range(len(rollout.reward)):
            for i, (lo, hi) in enumerate(halves):
                actions, acted = acting[i](), time.perf_counter()
                env.step_rows(actions, rollout.step_out(t), t, lo, hi)
                stepped += time.perf_counter() - acted
                if t + 1 < len(rollout.reward):
                    acting[i] = agent.begin_act(rollout, t + 1, lo, hi)
        self._count_seconds(time.perf_counter() - began - stepped, stepped)

    def _collect_row(self, i: int, t: int) -> tuple[float, float]:
        """Acts and steps a slice once; returns the seconds of both."""
        env, (lo, hi), rollout = self.envs[i], self._ranges[i], self.experience
        began = time.perf_counter()
        actions = self.agent.act(rollout, t, lo, hi)
        acted = time.perf_counter()
        env.step(actions, rollout.step_out(t, lo, hi), t)
        return acted - began, time.perf_counter() - acted

    def _count_seconds(self, acted: float, stepped: float) -> None:
        self.seconds_policy += acted / len(self.envs)
        self.seconds_env += stepped / len(self.envs)

    def _make_loops(self) -> list[FusedLoop | None]:
        """One loop a slice that acts and steps without Python; None where either cannot."""
        loops: list[FusedLoop | None] = []
        for env, (lo, hi) in zip(self.envs, self._ranges, strict=True):
            acting = self.agent.acting(lo, hi) if FusedLoop.is_supported(env) else None
            block = self.experience.rows
            loops.append(None if acting is None else FusedLoop(env, acting, block))
        return loops

    def _latest(self) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Observations and masks of all copies as they stand between two blocks, [E, ...]."""
        row, mask = len(self.experience.reward) if self._follows else 0, self.experience.mask
        return self.experience.obs[row], None if mask is None else mask[row]

    def _latest_slices(
        self,
    ) -> Iterator[tuple[VectorEnv, tuple[int, int], NDArray[Any], NDArray[np.bool_] | None]]:
        """Each slice with its range and its part of `_latest`."""
        obs, mask = self._latest()
        for env, (lo, hi) in zip(self.envs, self._ranges, strict=True):
            yield env, (lo, hi), obs[lo:hi], None if mask is None else mask[lo:hi]

    def _look_for_faults(self) -> None:
        """`_check_observations`, whose time is the environments'."""
        began = time.perf_counter()
        self._check_observations()
        self.seconds_env += time.perf_counter() - began

    def _check_observations(self) -> None:
        """A NaN observation is named here: once a block is much cheaper than at every step."""
        obs = self.experience.obs
        if obs.dtype.kind != "f":
            return
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(obs.sum()):
                return
        bad = np.argwhere(~np.isfinite(self.experience.obs.reshape(len(obs), obs.shape[1], -1)))
        if len(bad) == 0:
            return  # finite numbers whose sum overflowed
        t, e, column = (int(place) for place in bad[0])
        last = self.experience.actions[t - 1, e].tolist() if t else "none (a new episode)"
        raise KernelError(
            f"The environment returned an observation that is NaN or infinite: environment {e}, "
            f"step {t}, column {column}, last action {last}. Guard the divisor or the argument of "
            "log or sqrt that produced it."
        )

    def get_state(self) -> dict[str, NDArray[Any]]:
        """State of all copies, [E, ...] by name."""
        states = [env.get_state() for env in self.envs]
        return {name: np.concatenate([state[name] for state in states]) for name in states[0]}

    def bulk(self, member: int) -> Mapping[str, Callable[[], NDArray[Any]]]:
        """The large part of a member's state: what makes each chunk, by name; a rollout has none.

        It never passes a pipe: the process that holds a chunk writes it. A name says what is in it,
        for a chunk that has a file is not written again.
        """
        return {}

    def set_state(
        self,
        state: dict[str, NDArray[Any]],
        bulk: Sequence[Iterable[tuple[str, NDArray[Any]]]] = (),
    ) -> int:
        """Goes on from `get_state()`; the rollout's first row shows the copies as they stand.

        Args:
            state: as it was.
            bulk: chunks of each member, by name; one is in memory at a time.

        Returns:
            Copies that could not be brought back and begin a fresh episode.
        """
        self._follows = False
        for env, (lo, hi), obs, mask in self._latest_slices():
            env.set_state({name: values[lo:hi] for name, values in state.items()}, obs, mask)
        return sum(env.num_restarted for env in self.envs)


class ReplayCollector(Collector):
    """Steps every copy, keeps what happened, and lets the agent learn as often as is due.

    Args:
        agent, envs: as for `Collector`.
        experience: of one iteration; its rows are what the policy acts on.
        replay: of the same copies.

    Attributes:
        learned: int64 [M], updates that each member was told to make so far.
    """

    def __init__(
        self, agent: Agent, envs: Sequence[VectorEnv], experience: Rollout, replay: Replay
    ) -> None:
        super().__init__(agent, envs, experience)
        self.replay = replay
        self.learned = np.zeros(agent.members, np.int64)
        self._pass: FusedReplayLoop | None = None
        self._schedule = replay.plan.schedule
        self._final_of = np.full(experience.reward.shape[1], -1, np.int64)
        self._no_finals = concat_final_obs([env.drain_final_obs() for env in envs])

    def prepare(self) -> None:
        self._prepared()

    def reset(self) -> None:
        super().reset()
        self.replay.begin(*self._latest())

    def restart(self, copies: NDArray[np.int64]) -> None:
        super().restart(copies)
        self.replay.go_on(*self._latest())

    def forget(self, member: int) -> None:
        self.replay.forget(member)
        self.replay.begin(*self._latest())

    def collect(self, run_tasks: RunTasks) -> Episodes:
        """T times: every copy acts and is stepped, and what is due is learned.

        Returns:
            The episodes that ended, in the order (t, e).
        """
        rollout, everything = self.experience, []
        if self._follows:
            rollout.carry_over()
        self._follows = True
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
            self._keep(t, finals)
            kept = time.perf_counter()
            self.seconds_env += kept - began
            everything.append(finals)
            self._learn(run_tasks)
            self.seconds_learning += time.perf_counter() - kept
        self._look_for_faults()
        rollout.set_finals(*everything)
        return self._drained_episodes()

    def _fused(self, run_tasks: RunTasks) -> Episodes | None:
        """Collects in one compiled call where that can be done; else does nothing: None."""
        ready, rollout = self._prepared(), self.experience
        if ready is None or self._pass is None:
            return None
        acting, learning = ready
        acted, stepped, learned = self._pass.run(rollout, acting, learning, run_tasks)
        self.seconds_policy += acted
        self.seconds_env += stepped
        self.seconds_learning += learned
        rollout.set_finals(self._no_finals)
        self._look_for_faults()
        return concat_episodes([self.envs[0].drain_episodes()])

    def _prepared(self) -> tuple[CompiledActor, Learning] | None:
        """What one compiled call needs, the call itself made; None where it cannot be."""
        env = self.envs[0]
        # Asked also where steps lie between: `learn` uses what it compiles.
        learning = None if self.replay.loops is None else self.agent.learning(self.replay)
        if learning is None or len(self.envs) > 1 or not FusedLoop.is_supported(env):
            return None
        acting = self.agent.acting()
        if acting is None:
            return None
        assert isinstance(env, KernelVectorEnv)
        if self._pass is None:
            rows = self.experience.rows
            self._pass = FusedReplayLoop(env, self.replay, acting, learning, rows, self.learned)
        return acting, learning

    def _row_finals(self, t: int) -> FinalObs:
        """Final observations of the copies whose episodes step t cut short."""
        if not self.experience.truncated[t].any():
            return self._no_finals
        return concat_final_obs(self._drained_finals())

    def _keep(self, t: int, finals: FinalObs) -> None:
        final_of, copies = self._final_of, finals.index[:, 1]
        final_of[copies] = np.arange(len(copies))
        self.replay.write(self.experience, t, finals, final_of)
        final_of[copies] = -1

    def _learn(self, run_tasks: RunTasks) -> None:
        replay, schedule = self.replay, self._schedule
        in_all = [updates_due(schedule, steps) for steps in replay.steps.tolist()]
        due = np.where(replay.held > 0, np.array(in_all) - self.learned, 0)
        if due.any():
            self.agent.learn(replay, due, run_tasks)
            self.learned += due

    def bulk(self, member: int) -> Mapping[str, Any]:
        return self.replay.bulk(member)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """State of all copies, and the small part of the replay's."""
        own = {**self.replay.state_dict(), "learned": self.learned.copy()}
        return {**super().get_state(), **add_prefix(REPLAY, own)}

    def set_state(
        self,
        state: dict[str, NDArray[Any]],
        bulk: Sequence[Iterable[tuple[str, NDArray[Any]]]] = (),
    ) -> int:
        """Goes on from `get_state()` and each member's `bulk`.

        Where a copy does not come back to where it stood, its episode was cut short there.
        """
        own = strip_prefix(REPLAY, state)
        fresh = super().set_state({k: v for k, v in state.items() if not k.startswith(REPLAY)})
        self.learned[:] = own.pop("learned")
        self.replay.load_state_dict(own)
        for m, chunks in enumerate(bulk):
            self.replay.load_bulk(m, chunks)
        self.replay.go_on(*self._latest())
        return fresh
