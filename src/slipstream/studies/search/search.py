"""The search of a study: suggests trials, trains folds and prunes, in virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from slipstream.core.errors import ConfigError
from slipstream.core.storage.status_file import Status
from slipstream.studies.record.ledger import (
    Ledger,
    Suggestion,
    TrialDecision,
    count_states,
    rank_eligible,
)
from slipstream.studies.record.storage import StorageMirror, running_trial
from slipstream.studies.search.pruner import Pruner
from slipstream.studies.search.sampler import TrialSampler
from slipstream.studies.search.scheduler import ASK, Event, Scheduler
from slipstream.studies.search.session import Session
from slipstream.studies.search.study_plan import Stages, StudyPlan
from slipstream.studies.statistics.bootstrap import score_interval
from slipstream.training.population.member import DailyReturns, Outcome
from slipstream.training.population.member_pool import Pool
from slipstream.training.settings.config import RunConfig

_POLL_SECONDS = 0.5
_INTERVAL_SECONDS = 20.0  # between two intervals of a score
_INTERVAL_SHARE = 0.002  # of a core that they take at most


class Search:
    """Runs the trials of a study; restarts from any point after a kill.

    Args:
        plan: search space, configs and folds.
        ledger: known results; every new result is written there first.
        pool: workers that train members.
        pruner: decides on trials; it must be new.
        mirror: the Optuna storage that other tools read.
        limit: maximum number of trials.
        max_concurrent_trials: maximum number of running trials; default: the config's.

    Attributes:
        scheduler: defines the order of events.
        decisions: the last decision on each trial.
        on_outcome: called with every new outcome; on_decision: with every new decision.
        can_start_trial: called before a trial replaces one that ended; False stops the search.
    """

    def __init__(
        self,
        plan: StudyPlan,
        ledger: Ledger,
        pool: Pool,
        pruner: Pruner,
        mirror: StorageMirror | None,
        limit: int,
        max_concurrent_trials: int | None = None,
    ) -> None:
        self._plan, self._ledger, self._pool, self._mirror = plan, ledger, pool, mirror
        self._sampler = TrialSampler(plan.space, plan.study, plan.warm_start)
        self._pruner = pruner
        self._suggestions = ledger.suggestions()
        self._failed = ledger.failed_by_outcome("search")  # -> whether it failed
        self._past_decisions = {(v.trial, v.stage): v for v in ledger.decisions()}
        self._configs: dict[int, RunConfig] = {}
        self._stages: dict[int, Stages] = {}
        self._frozen_trials: dict[int, FrozenTrial] = {}
        self._submitted: set[tuple[int, int]] = set()
        self._ended: list[TrialDecision] = []  # since the last commit
        self._changed: set[int] = set()  # trials, since then
        self.decisions: dict[int, TrialDecision] = {}
        self._ended_now = 0  # trials, in this process
        self._intervals: dict[int, tuple[float, float] | None] = {}
        self._next_interval = _INTERVAL_SECONDS  # of the session
        self._num_startup_trials = (
            plan.study.pruning.startup if plan.study.pruning.enabled else limit
        )
        self.on_outcome: Callable[[Outcome], None] = lambda outcome: None
        self.on_decision: Callable[[TrialDecision], None] = lambda decision: None
        if mirror is not None:
            mirror.check_trials({number: ask.params for number, ask in self._suggestions.items()})
        self.can_start_trial: Callable[[], bool] = lambda: True
        self._max_concurrent_trials = max_concurrent_trials or plan.study.max_concurrent_trials
        self.scheduler = Scheduler(self._max_concurrent_trials, limit)

    def run(self, tick: Callable[[], None] = lambda: None) -> None:
        """Train until every started trial has ended. The caller makes the mirror's last `flush`.

        Args:
            tick: called after every wait; it may call `stop_asking`, or raise to leave the search.
        """
        outcomes: Sequence[Outcome] = ()
        while True:
            with self._ledger.transaction():
                self._record_outcomes(outcomes)
                self._advance()
            self._publish()
            if self.scheduler.is_finished:
                break
            self._submit()  # workers first: the storage is written while they train
            if self._mirror is not None:
                self._mirror.flush()
            tick()
            outcomes = self._pool.collect(_POLL_SECONDS)

    def stop_asking(self) -> None:
        """Start no further trials; the number is recorded, so that a resumed study keeps it."""
        self._ledger.set_metadata(cut=self.scheduler.stop_asking())

    def abort(self, reason: str) -> None:
        """Start no further trials and stop the running ones; they cannot win.

        Args:
            reason: recorded with each of them.
        """
        with self._ledger.transaction():
            self.stop_asking()
            while (event := self.scheduler.pop_event(lambda trial, stage: True)) is not None:
                milestone = self._stages[event.trial].milestones[event.stage]
                head = event.trial, event.stage, milestone, event.time
                decision = TrialDecision(*head, "timed_out", None, reason=reason)
                self._ledger.add_decision(decision)
                self._past_decisions[event.trial, event.stage] = decision
                self._finish_trial(decision)
                self.scheduler.finish_stage(event, False)
        self._publish()
        self._pool.abandon()

    def _advance(self) -> None:
        """Process every event whose outcomes are known, in order."""
        while (event := self.scheduler.pop_event(self._is_ready)) is not None:
            new = event.stage == ASK and event.trial not in self._suggestions
            if new and event.trial >= self._max_concurrent_trials and not self.can_start_trial():
                self.stop_asking()
            elif event.stage == ASK:
                self.scheduler.start_trial(event, self._ask(event))
            else:
                self.scheduler.finish_stage(event, self._decide(event))

    def _ask(self, event: Event) -> Sequence[int]:
        """Start a trial with a new or recorded suggestion; return the steps of its stages."""
        number = event.trial
        ask = self._suggestions.get(number)
        if ask is None:
            params = self._sampler.ask(number)
            ask = Suggestion(
                number, event.time, params, *self._plan.space.overrides(params, self._plan.base)
            )
            self._ledger.add_suggestion(ask)
            self._suggestions[number] = ask
        else:
            self._sampler.restore(number, ask.params)
        notes = {"notes": list(ask.notes)} if ask.notes else {}
        attributes = {"overrides": dict(ask.overrides), **notes}
        self._frozen_trials[number] = running_trial(
            ask.params, self._plan.space.distributions, attributes
        )
        try:
            config = self._plan.config(ask.overrides)
        except ConfigError as error:
            decision = TrialDecision(number, 0, 0, event.time, "failed", None, reason=str(error))
            self._ledger.add_decision(decision)
            self._finish_trial(decision)
            return ()
        self._configs[number] = config
        self._stages[number] = self._plan.stages(config)
        self._changed.add(number)
        return self._stages[number].steps

    def _decide(self, event: Event) -> bool:
        """Return whether a trial continues; the decision is on disk before anything is trained."""
        decision = self._past_decisions.get((event.trial, event.stage))
        if decision is None:
            outcomes = self._outcomes(event.trial, event.stage)
            last = event.stage + 1 == len(self._stages[event.trial].milestones)
            decision = self._pruner.decide(event, outcomes, last)
            self._ledger.add_decision(decision)
            self.on_decision(decision)
        self._pruner.record(decision)
        if decision.score is not None:
            step = self._stages[event.trial].steps[event.stage]
            self._frozen_trials[event.trial].intermediate_values[step] = decision.score
        if decision.kind == "continued":
            self.decisions[event.trial] = decision
            self._changed.add(event.trial)
            return True
        self._finish_trial(decision)
        return False

    def _is_ready(self, trial: int, stage: int) -> bool:
        """Return whether every outcome at a stage is recorded, or the trial timed out there."""
        past = self._past_decisions.get((trial, stage))
        if past is not None and past.kind == "timed_out":
            return True
        milestone = self._stages[trial].milestones[stage]
        return all((slot.name, milestone) in self._failed for slot in self._plan.trial_slots(trial))

    def _is_certain(self, trial: int, stage: int) -> bool:
        """Return whether a trial continues after a stage regardless of other trials."""
        pruning = self._plan.study.pruning
        if pruning.enabled and trial >= pruning.startup:
            return False
        milestone = self._stages[trial].milestones[stage]
        return not any(self._failed[s.name, milestone] for s in self._plan.trial_slots(trial))

    @property
    def best(self) -> TrialDecision | None:
        """The best trial so far that can win."""
        return next(iter(rank_eligible(self.decisions.values())), None)

    def suggestions(self) -> Mapping[int, Suggestion]:
        """Return the suggestions so far, by trial."""
        return self._suggestions

    def stages(self, trial: int) -> Stages:
        """Return the stages of a trial."""
        return self._stages[trial]

    def final_backtests(self, trial: int) -> list[DailyReturns]:
        """Return the backtests of a complete trial, by fold."""
        outcomes = self._outcomes(trial, len(self._stages[trial].milestones) - 1)
        return [outcome.backtests for outcome in outcomes if outcome.backtests is not None]

    def remaining_steps(self, include_future: bool = True) -> float:
        """Return the environment steps left in the search, given the survival seen so far.

        Args:
            include_future: include trials not started yet. Each is expected to take the mean share
                of its budget, measured over ended trials that could have been pruned.
        """
        shares = []
        for trial, decision in self.decisions.items():
            if decision.kind in ("complete", "pruned") and trial >= self._num_startup_trials:
                steps = self._stages[trial].steps
                shares.append(steps[decision.stage] / steps[-1])
        survival = float(np.mean(shares)) if shares else 1.0
        left = 0.0
        for trial in self.scheduler.running:
            steps = self._stages[trial].steps
            reached = self.decisions.get(trial)
            done = steps[reached.stage] if reached else 0
            left += max(0.0, steps[-1] * survival - done)
        if include_future:
            later = max(0, self.scheduler.limit - self.scheduler.num_asked)
            left += later * self._plan.mean_steps * survival
        return left * self._plan.num_folds

    def status(self, session: Session, after_steps: float) -> Status:
        """Return the status of the search.

        Args:
            session: provides speed and running members.
            after_steps: steps to train after the search.
        """
        meter, best = session.throughput, self.best
        counts = count_states(self.decisions.values())
        low, high = (self._interval(best.trial, meter.elapsed) if best else None) or (None, None)
        score = {"score": best.score, "trial": best.trial, "low": low, "high": high} if best else {}
        slots = [slot for trial in self.scheduler.running for slot in self._plan.trial_slots(trial)]
        return Status(
            "study",
            phase="search",
            completed=sum(counts[kind] for kind in ("complete", "pruned", "failed", "timed_out")),
            total=self.scheduler.limit,
            unit="trials",
            rate=meter.speed,
            trials_per_hour=3600 * self._ended_now / meter.elapsed if self._ended_now else None,
            eta=session.eta(self.remaining_steps() + after_steps),
            best=score,
            counts=counts,
            running=session.progress.running_members(slots),
            phases=dict(meter.seconds),
        )

    def _interval(self, trial: int, elapsed: float) -> tuple[float, float] | None:
        """Return the 95 % interval of a trial's score; None if it is unknown.

        It is computed rarely, because no work is handed out meanwhile.
        """
        if trial not in self._intervals and elapsed >= self._next_interval:
            began, study = time.thread_time(), self._plan.study
            self._intervals[trial] = score_interval(
                self.final_backtests(trial),
                self._plan.market,
                study.objective,
                study.fold_dispersion_penalty,
            )
            spent = time.thread_time() - began
            self._next_interval = elapsed + max(_INTERVAL_SECONDS, spent / _INTERVAL_SHARE)
        return self._intervals.get(trial)

    def _outcomes(self, trial: int, stage: int) -> list[Outcome]:
        milestone = self._stages[trial].milestones[stage]
        outcomes = [self._ledger.outcome(s.name, milestone) for s in self._plan.trial_slots(trial)]
        assert all(outcome is not None for outcome in outcomes)
        return [outcome for outcome in outcomes if outcome is not None]

    def _submit(self) -> None:
        members, until = [], []
        for trial, stage in self.scheduler.pending_stages(self._is_ready, self._is_certain):
            if (trial, stage) in self._submitted:
                continue
            self._submitted.add((trial, stage))
            milestone = self._stages[trial].milestones[stage]
            for slot in self._plan.trial_slots(trial):
                if (slot.name, milestone) not in self._failed:
                    members.append(self._plan.member(slot, self._configs[trial]))
                    until.append(milestone)
        if members:
            self._pool.submit(members, until)

    def _record_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        if outcomes:
            self._ledger.add_outcomes(outcomes)
            self._failed |= {(item.name, item.milestone): item.failed for item in outcomes}
            for outcome in outcomes:
                self.on_outcome(outcome)

    def _finish_trial(self, decision: TrialDecision) -> None:
        number, frozen = decision.trial, self._frozen_trials[decision.trial]
        attributes: dict[str, Any] = {"folds": [fold.get("score") for fold in decision.folds]}
        self._ended_now += (number, decision.stage) not in self._past_decisions
        self.decisions[number] = decision
        violations = [figure - most for figure, most in decision.constraint_values.values()]
        self._sampler.tell(number, decision.score, violations)
        if decision.kind in ("failed", "pruned", "timed_out"):
            attributes[decision.kind] = decision.reason
        elif decision.is_inactive:
            attributes["inactive"] = "almost no trades in a fold: it cannot win"
        elif not decision.is_eligible:
            attributes["violates"] = f"{decision.reason}: it cannot win"
        frozen.user_attrs |= attributes
        scored = decision.kind not in ("failed", "timed_out")
        frozen.state = TrialState.COMPLETE if scored else TrialState.FAIL
        frozen.value, frozen.datetime_complete = decision.score, datetime.now()
        self._changed.add(number)
        self._ended.append(decision)

    def _publish(self) -> None:
        """Update the storage and the pool after results are on disk.

        A study could not resume from a storage with a trial that the ledger lost.
        """
        if self._mirror is not None:
            for trial in sorted(self._changed):
                self._mirror.update(trial, self._frozen_trials[trial])
        self._changed.clear()
        for decision in self._ended:
            keeps_policy = decision.kind == "complete" and self._plan.study.keep_weights
            leave = self._pool.finish if keeps_policy else self._pool.drop
            for slot in self._plan.trial_slots(decision.trial):
                leave(slot.name)
        self._ended.clear()
