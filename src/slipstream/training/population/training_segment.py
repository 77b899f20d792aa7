"""Training segment: members are trained from their states to their milestones and scored there.

Members of any trials and folds that have the same shape form a temporary population.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slipstream.rl.agents.agent import AgentConfig
from slipstream.rl.nets import networks
from slipstream.rl.nets.policy import Policy
from slipstream.training.population.backtests import batch_key, score
from slipstream.training.population.environment_source import (
    EnvironmentSource,
    MemberEnv,
    join_envs,
)
from slipstream.training.population.member import DailyReturns, Member, Outcome
from slipstream.training.population.member_state import (
    BULK,
    LiveStates,
    MemberProgress,
    State,
    Tensors,
)
from slipstream.training.shard import Shard, join_states, select_members

SAVE_SECONDS = 60.0
SAVE_SHARE = 0.03  # maximum share of time for saving; large replay buffers are saved less often
DIVERGED = "its gradient became NaN or infinite"
SPENT_ON = ("env", "policy", "update", "evaluate", "overhead")


class Population:
    """Members of one shape that are trained together.

    Args:
        members: [M], the members.
        states: [M], their states; None for a new member.

    Attributes:
        iterations: int64 [M], completed iterations of each member.
        failed: bool [M], members with values that are not finite; they are no longer updated.
        scores: float64 [M], mean returns of the last training episodes.
        resumable: False if its environments may not be restorable between milestones.
    """

    def __init__(self, members: Sequence[MemberEnv], states: Sequence[State | None]) -> None:
        self.places = list(members)
        first = members[0]
        training = first.member.config.training
        begins = any(state is None for state in states)
        with nullcontext() if begins else networks.skip_initialization():
            self._shard = Shard(
                join_envs(members),
                AgentConfig.join([place.member.config.agent for place in members]),
                [place.member.seed for place in members],
                range(len(members)),
                first.member.config.num_envs,
                training.resolved_backend,
                specs=[place.spec for place in members],
                learner=training.learner,
                device=training.device,
                precision=training.precision,
            )
        self.failed = np.zeros(len(members), np.bool_)
        self.scores = np.full(len(members), np.nan)
        self.iterations = np.array([state.iteration if state else 0 for state in states], np.int64)
        self._budgets = np.array([place.member.budget for place in members], np.float64)
        self.resumable = first.environment.kind.resumable
        if self.resumable or all(state is None for state in states):
            self._shard.reset()
        if any(state is not None for state in states):
            self._restore(states)

    def _restore(self, states: Sequence[State | None]) -> None:
        """Restore the states; new members keep the state after `reset`.

        Foreign environments replay the actions of their episodes; those that are not deterministic
        start new ones. This happens at milestones only, so that kills change no result.
        """
        new_state = self._shard.get_state()
        restored = []
        for m, state in enumerate(states):
            tensors = {} if state is None else state.small
            if state is None or state.policy is not None:  # a finished member kept only its policy
                tensors = {**select_members(new_state, range(m, m + 1), len(states)), **tensors}
            restored.append(tensors)
        chunks = [() if state is None else state.bulk.items() for state in states]
        self._shard.set_state(join_states(restored), chunks=chunks)

    def iterate(self) -> None:
        """Run one rollout and update of every member."""
        spent = self.iterations * self.places[0].iteration_steps / self._budgets
        metrics = self._shard.iterate(np.minimum(spent, 1.0))
        self.iterations += 1
        self.failed |= metrics["failed"].astype(bool)
        self.scores = metrics["score"]

    @property
    def policy(self) -> Policy:
        """Return the policies of all members."""
        policy: Policy = self._shard.agent.policy
        return policy

    def states(self) -> Iterator[State]:
        """Iterate over the members' states, with the policy if a member has reached its budget.

        Only one replay buffer is copied at a time. A member at its budget is not trained further;
        only its policy is kept, because it may have to be scored again.
        """
        everything = self._shard.get_state()
        for m, place in enumerate(self.places):
            tensors = select_members(everything, range(m, m + 1), len(self.places))
            iteration = int(self.iterations[m])
            done = iteration * place.iteration_steps >= place.member.budget
            if not done:
                chunks = self._shard.collector.bulk(m)
                tensors |= {f"{BULK}{name}": make() for name, make in chunks.items()}
            elif self.resumable:
                tensors = {
                    name: value for name, value in tensors.items() if _is_policy_weight(name)
                }
            policy: tuple[Tensors, Mapping[str, Any]] | None = (
                self._shard.policy(m, place.environment) if done else None
            )
            yield State(iteration, tensors, policy)

    def notes(self) -> list[str]:
        """Return notices about the computation since the last call."""
        return self._shard.notices()

    @property
    def seconds(self) -> dict[str, float]:
        """Return seconds of stepping, acting and learning so far, of all members together."""
        stats = self._shard.stats()
        return {name: stats[f"seconds_{name}"] for name in ("env", "policy", "update")}

    def close(self) -> None:
        """Close the environments."""
        self._shard.close()


def _is_policy_weight(name: str) -> bool:
    """Return whether a tensor of a state is a policy weight, not a moment of Adam."""
    return name.startswith("agent.") and not name.endswith(("first_moment", "second_moment"))


def policy_of(members: Sequence[MemberEnv], states: Sequence[State | None]) -> Policy:
    """Return the policies of members that are not being trained."""
    population = Population(members, states)
    population.close()
    return population.policy


@dataclass(frozen=True)
class Task:
    """A member and the milestone (completed iterations) up to which it is trained and scored."""

    member: Member
    until: int


@dataclass(eq=False)
class _Runner:
    """A member during a segment."""

    task: Task
    place: MemberEnv
    state: State | None
    failed: bool = False
    backtests: DailyReturns | None = None
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SPENT_ON, 0.0))
    notes: list[str] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Iterations to the milestone."""
        return self.task.until - (self.state.iteration if self.state else 0)


def run_training_segment(
    tasks: Sequence[Task],
    source: EnvironmentSource,
    live: LiveStates,
    check_stop: Callable[[], None] = lambda: None,
    save_seconds: float | None = None,
) -> list[Outcome]:
    """Train members of one shape together and score each at its milestone.

    A member's results do not depend on the others; members with less work leave earlier. States are
    saved in `live` on return, and regularly before.

    Args:
        tasks: members and milestones.
        source: source of environments.
        live: states of the members.
        check_stop: called after every iteration; may raise to stop. States are saved then.
        save_seconds: interval between two saves; None for a minute.

    Returns:
        One outcome per task, in their order.
    """
    began = time.perf_counter()
    runners = [_begin(task, source, live) for task in tasks]
    trained, policy = runners, None
    save_interval = SAVE_SECONDS if save_seconds is None else save_seconds
    while left := [runner for runner in runners if runner.left > 0 and not runner.failed]:
        trained, policy = left, _train(left, live, check_stop, save_interval)
    _score([runner for runner in runners if not runner.failed], trained, policy, check_stop)
    spent = sum(sum(runner.seconds.values()) for runner in runners)
    for runner in runners:
        runner.seconds["overhead"] += (time.perf_counter() - began - spent) / len(runners)
    return [_outcome(runner) for runner in runners]


def _begin(task: Task, source: EnvironmentSource, live: LiveStates) -> _Runner:
    place = MemberEnv(task.member, source.environment(task.member.config))
    state = live.load(task.member)
    # Only the policy is left, after `LiveStates.slim` or of a study that had got further.
    if state is not None and (state.iteration > task.until or not state.tensors):
        state = None
    return _Runner(task, place, state)


def _train(
    runners: Sequence[_Runner], live: LiveStates, check_stop: Callable[[], None], every: float
) -> Policy:
    """Train all members up to the nearest milestone; return their policies."""
    for runner in runners:
        if runner.state is not None and not runner.state.is_complete:
            runner.state = live.load(runner.task.member)
    population = Population(
        [runner.place for runner in runners], [runner.state for runner in runners]
    )
    for runner in runners:
        runner.state = None if runner.state is None else runner.state.without_bulk()
    saved, pause = time.monotonic(), every
    resumable = population.resumable
    try:
        for _ in range(min(runner.left for runner in runners)):
            population.iterate()
            if population.failed.all():
                break
            if live.due:
                live.write_progress(_progress_of(population))
            try:
                check_stop()
            except BaseException:
                if resumable:
                    _save_states(runners, population, live)
                raise
            if resumable and (began := time.monotonic()) - saved >= pause:
                _save_states(runners, population, live)
                saved = time.monotonic()
                pause = max(every, (saved - began) / SAVE_SHARE)
        _save_states(runners, population, live)
        runners[0].notes += population.notes()
        for runner in runners:
            for phase, seconds in population.seconds.items():
                runner.seconds[phase] += seconds / len(runners)
        return population.policy
    finally:
        population.close()


def _progress_of(population: Population) -> list[MemberProgress]:
    """Return the progress of each member."""
    rows = zip(population.places, population.iterations, population.scores, strict=True)
    return [
        MemberProgress.now(member_env.member.name, int(n) * member_env.iteration_steps, float(s))
        for member_env, n, s in rows
    ]


def _save_states(runners: Sequence[_Runner], population: Population, live: LiveStates) -> None:
    states = population.states()
    for runner, state, failed in zip(runners, states, population.failed.tolist(), strict=True):
        if not failed:
            live.save(runner.task.member, state)
        runner.state, runner.failed = state.without_bulk(), failed


def _score(
    runners: Sequence[_Runner],
    trained: Sequence[_Runner],
    policy: Policy | None,
    check_stop: Callable[[], None],
) -> None:
    """Score all members that have a test split, together where possible.

    Args:
        runners: members to score.
        trained, policy: members trained last, and their policies.
        check_stop: see `run_training_segment`.
    """
    tested = [runner for runner in runners if runner.task.member.test is not None]
    for _, group in itertools.groupby(
        sorted(tested, key=lambda runner: batch_key(runner.place)),
        key=lambda runner: batch_key(runner.place),
    ):
        group_runners = list(group)
        began = time.perf_counter()
        members = [runner.place for runner in group_runners]
        if policy is None or group_runners != trained:
            policy = policy_of(members, [runner.state for runner in group_runners])
        results = score(members, policy, check_stop)
        seconds = (time.perf_counter() - began) / len(group_runners)
        for runner, backtests in zip(group_runners, results, strict=True):
            runner.backtests = backtests
            runner.seconds["evaluate"] += seconds


def _outcome(runner: _Runner) -> Outcome:
    iteration = runner.state.iteration if runner.state else 0
    backtests = runner.backtests
    broken = backtests is not None and not np.isfinite(backtests.returns).all()
    return Outcome(
        name=runner.task.member.name,
        milestone=runner.task.until,
        backtests=None if broken else backtests,
        failed=runner.failed or broken,
        reason=DIVERGED if runner.failed else "a test return is NaN or infinite" if broken else "",
        steps=iteration * runner.place.iteration_steps,
        seconds=runner.seconds,
        notes=runner.notes,
    )
