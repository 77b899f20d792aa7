"""Acting, stepping, keeping and learning in turn: the loop of agents that learn from a replay."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.agent import Agent
from slipstream.experience.replay.plan import updates_due
from slipstream.experience.replay.replay import Replay
from slipstream.experience.rollout import Rollout
from slipstream.machine.gate import RunTasks
from slipstream.training.collector import Collector
from slipstream.training.replay_pass import ReplayPass
from slipstream.vector.kernel.copies import KernelVectorEnv
from slipstream.vector.kernel.fused import FusedLoop
from slipstream.vector.vector_env import Episodes, Finals, VectorEnv, join_episodes, join_finals

_REPLAY = "replay."


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
        self._pass: ReplayPass | None = None
        self._schedule = replay.plan.schedule
        self._final_of = np.full(experience.reward.shape[1], -1, np.int64)
        self._no_finals = join_finals([env.drain_finals() for env in envs])

    def reset(self) -> None:
        super().reset()
        self.replay.begin(self.experience.obs[0], self._first_mask(0, len(self._final_of)))

    def restart(self, copies: NDArray[np.int64]) -> None:
        super().restart(copies)
        row = len(self.experience.reward) if self._follows else 0
        mask = self.experience.mask
        self.replay.go_on(self.experience.obs[row], None if mask is None else mask[row])

    def forget(self, member: int) -> None:
        self.replay.forget(member)
        row = len(self.experience.reward) if self._follows else 0
        mask = self.experience.mask
        self.replay.begin(self.experience.obs[row], None if mask is None else mask[row])

    def collect(self, run: RunTasks) -> Episodes:
        """T times: every copy acts and is stepped, and what is due is learned.

        Returns:
            The episodes that ended, in the order (t, e).
        """
        rollout, everything = self.experience, []
        if self._follows:
            rollout.carry_over()
        self._follows = True
        fused = self._fused(run)
        if fused is not None:
            return fused
        for t in range(len(rollout.reward)):
            slices = [partial(self._step_slice, i, t) for i in range(len(self.envs))]
            run(slices) if len(slices) > 1 else slices[0]()
            began = time.perf_counter()
            finals = self._row_finals(t)
            self._keep(t, finals)
            kept = time.perf_counter()
            self.seconds_env += kept - began
            everything.append(finals)
            self._learn(run)
            self.seconds_learning += time.perf_counter() - kept
        self._look_for_faults()
        rollout.set_finals(*everything)
        ended = [env.drain_episodes() for env in self.envs]
        starts = [lo for lo, _ in self._ranges]
        return join_episodes(
            [one._replace(e=one.e + lo) for one, lo in zip(ended, starts, strict=True)]
        )

    def _fused(self, run: RunTasks) -> Episodes | None:
        """The same in one compiled call, where it can be done; else None."""
        rollout, env = self.experience, self.envs[0]
        if len(self.envs) > 1 or not FusedLoop.fits(env) or self.replay.loops is None:
            return None
        acting, learning = self.agent.acting(), self.agent.learning(self.replay)
        if acting is None or learning is None:
            return None
        assert isinstance(env, KernelVectorEnv)
        if self._pass is None:
            self._pass = ReplayPass(env, self.replay, acting, learning, rollout.rows, self.learned)
        acted, stepped, learned = self._pass.run(rollout, acting, learning, run)
        self.seconds_policy += acted
        self.seconds_env += stepped
        self.seconds_learning += learned
        rollout.set_finals(self._no_finals)
        self._look_for_faults()
        return join_episodes([env.drain_episodes()])

    def _step_slice(self, i: int, t: int) -> None:
        env, (lo, hi), rollout = self.envs[i], self._ranges[i], self.experience
        began = time.perf_counter()
        actions = self.agent.act(rollout, t, lo, hi)
        acted = time.perf_counter()
        env.step(actions, rollout.step_out(t, lo, hi), t)
        share = 1.0 / len(self.envs)
        self.seconds_policy += share * (acted - began)
        self.seconds_env += share * (time.perf_counter() - acted)

    def _row_finals(self, t: int) -> Finals:
        """Of those that step t cut short."""
        if not self.experience.truncated[t].any():
            return self._no_finals
        finals = [env.drain_finals() for env in self.envs]
        for final, (lo, _) in zip(finals, self._ranges, strict=True):
            final.index[:, 1] += lo
        return join_finals(finals)

    def _keep(self, t: int, finals: Finals) -> None:
        final_of, copies = self._final_of, finals.index[:, 1]
        final_of[copies] = np.arange(len(copies))
        self.replay.write(self.experience, t, finals, final_of)
        final_of[copies] = -1

    def _learn(self, run: RunTasks) -> None:
        replay, schedule = self.replay, self._schedule
        in_all = [updates_due(schedule, steps) for steps in replay.steps.tolist()]
        due = np.where(replay.held > 0, np.array(in_all) - self.learned, 0)
        if due.any():
            self.agent.learn(replay, due, run)
            self.learned += due

    def bulk(self, member: int) -> Mapping[str, Any]:
        return self.replay.bulk(member)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """State of all copies, and the small part of the replay's."""
        own = {f"{_REPLAY}{name}": value for name, value in self.replay.state_dict().items()}
        return {**super().get_state(), **own, f"{_REPLAY}learned": self.learned.copy()}

    def set_state(
        self,
        state: dict[str, NDArray[Any]],
        bulk: Sequence[Iterable[tuple[str, NDArray[Any]]]] = (),
    ) -> int:
        """Goes on from `get_state()` and each member's `bulk`.

        Where a copy does not come back to where it stood, its episode was cut short there.
        """
        own = {
            name.removeprefix(_REPLAY): values
            for name, values in state.items()
            if name.startswith(_REPLAY)
        }
        fresh = super().set_state(
            {name: values for name, values in state.items() if not name.startswith(_REPLAY)}
        )
        self.learned[:] = own.pop("learned")
        self.replay.load_state_dict(own)
        for m, chunks in enumerate(bulk):
            self.replay.load_bulk(m, chunks)
        obs, mask = self.experience.obs[0], self._first_mask(0, len(self._final_of))
        self.replay.go_on(obs, mask)
        return fresh
