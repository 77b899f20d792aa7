"""A pool that trains nothing: an outcome is a function of the member and its milestone."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from slipstream.core.random import derive_seed
from slipstream.kernels.spec import MarketSpec
from slipstream.studies.config import StudyConfig
from slipstream.studies.record.ledger import TrialDecision
from slipstream.studies.search.study_plan import StudyPlan, num_iterations
from slipstream.studies.space import SearchSpace
from slipstream.training.population.member import DailyReturns, Member, Outcome
from slipstream.training.settings.config import resolve

MARKET = MarketSpec(("A", "B"), "USD", 1e4, 300, 105_120.0, 365.0, "00:00 UTC", benchmark=True)
SKILL = 0.0  # a test may set it: added to every member's mean daily return
SPACE = {
    "agent.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
    "agent.n_epochs": {"low": 1, "high": 8},
    "agent.activation": {"choices": ["tanh", "relu"]},
}


def plan(folds: int = 3, market: MarketSpec | None = MARKET, **study: Any) -> StudyPlan:
    """A small study: 10 iterations of 64 steps a member."""
    base = resolve(
        "cartpole",
        {
            "training.num_envs": 8,
            "training.total_timesteps": 640,
            "agent.n_steps": 8,
            "agent.batch_size": 32,
        },
    )
    settings = StudyConfig.model_validate({"max_concurrent_trials": 4, **study})
    return StudyPlan(base, settings, SearchSpace.from_mapping(SPACE, base), folds, market)


def backtests(member: Member, milestone: int) -> DailyReturns:
    """60 days in two groups whose mean return follows from the member's params."""
    agent = member.config.agent
    draws = np.random.default_rng(derive_seed("passes", member.seed, milestone))
    assert isinstance(agent.learning_rate, float)
    skill = 0.004 - 0.002 * abs(np.log10(agent.learning_rate) + 3) - 0.0002 * agent.n_epochs
    skill *= milestone / num_iterations(member.config)
    skill += SKILL
    first = 20_000 + 60 * (int(member.fold[4:]) if member.fold.startswith("fold") else 9)
    return DailyReturns(
        days=np.arange(first, first + 60),
        returns=draws.normal(skill, 0.01, 60),
        benchmark=np.random.default_rng(first).normal(0, 0.01, 60),
        group=np.repeat([0, 1], 30),
        metrics=[{"mean_exposure": 0.5, "fills": 50.0}] * 2,
    )


class FakePool:
    """Outcomes come in any order, a few at a time.

    Args:
        order: seed of the order.
        fails: names of members that diverge at their first milestone.
        seconds: what a call to `collect` takes.
    """

    def __init__(self, order: int = 0, fails: Sequence[str] = (), seconds: float = 0.0) -> None:
        self._draws, self._fails, self._seconds = random.Random(order), set(fails), seconds
        self._queue: list[tuple[Member, int]] = []
        self.trained: list[tuple[str, int]] = []
        self.finished: set[str] = set()
        self.dropped: set[str] = set()

    nodes = ()

    def __enter__(self) -> FakePool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, members: Sequence[Member], until: Sequence[int]) -> None:
        self._queue += zip(members, until, strict=True)

    def collect(self, timeout: float | None) -> list[Outcome]:
        time.sleep(self._seconds)
        self._draws.shuffle(self._queue)
        count = self._draws.randint(1, max(1, len(self._queue)))
        batch, self._queue = self._queue[:count], self._queue[count:]
        return [self._outcome(member, milestone) for member, milestone in batch]

    def _outcome(self, member: Member, milestone: int) -> Outcome:
        self.trained.append((member.name, milestone))
        steps = milestone * member.config.iteration_steps
        seconds = {"env": 0.1, "policy": 0.1, "update": 0.2, "evaluate": 0.05, "overhead": 0.01}
        if member.name in self._fails:
            return Outcome(member.name, milestone, None, True, "its loss is NaN", steps, seconds)
        found = backtests(member, milestone) if member.test else None
        return Outcome(member.name, milestone, found, False, "", steps, seconds)

    def finish(self, name: str) -> None:
        self.finished.add(name)

    def drop(self, name: str) -> None:
        self.dropped.add(name)

    def abandon(self) -> None:
        self._queue = [one for one in self._queue if one[0].name not in self.dropped]

    def state_bytes(self, name: str) -> int:
        return 0


class HalvingPruner:
    """Stops trials below the mean of what reached the rung earlier; scores are mean returns."""

    def __init__(self, study: StudyConfig) -> None:
        self._study = study
        self._seen: dict[int, list[float]] = {}

    def record(self, verdict: TrialDecision) -> None:
        if verdict.score is not None:
            self._seen.setdefault(verdict.stage, []).append(verdict.score)

    def decide(self, event: Any, outcomes: Sequence[Outcome], last: bool) -> TrialDecision:
        milestone = outcomes[0].milestone
        head = (event.trial, event.stage, milestone, event.time)
        if any(one.failed for one in outcomes):
            return TrialDecision(*head, "failed", None, reason="diverged")
        scores = [float(one.backtests.returns.mean()) for one in outcomes if one.backtests]
        score = float(np.mean(scores))
        folds = [{"score": one} for one in scores]
        if last:
            return TrialDecision(*head, "complete", score, folds)
        seen = self._seen.get(event.stage, [])
        stop = event.trial >= self._study.pruning.startup and seen and score < np.mean(seen)
        return TrialDecision(*head, "pruned" if stop else "continued", score, folds)
