"""Session: one process at work on a study; what it trains, how far it is, what it tells."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.files.interruption import Interrupted, Interruption
from slipstream.files.logbook import Logbook
from slipstream.files.machine import Machine, MachineSampler, MachineTable
from slipstream.files.status import Status
from slipstream.settings.config import RunConfig
from slipstream.studies.engine.member import Outcome
from slipstream.studies.engine.pool import Pool
from slipstream.studies.engine.state import EVERY_SECONDS, UNDER_WAY, UnderWay, read_under_way
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger, Slot
from slipstream.studies.search.plan import StudyPlan, iterations, steps_of
from slipstream.studies.search.search import Search
from slipstream.studies.statistics.bootstrap import score_interval

_LATELY = 2**15  # bytes in which members say where they are between two looks
_POLL_SECONDS = 0.5
_SECONDS = 20.0  # between two intervals
_SHARE = 0.002  # of a core that intervals take at most


class Meter:
    """Measures a session: steps, seconds and what the processes use.

    Args:
        clock: seconds; replaced in tests.
        before: steps per second of earlier sessions; None where there were none.

    Attributes:
        done: steps of this session.
        seconds: of its workers, by kind.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, before: float | None = None
    ) -> None:
        self._clock, self._before = clock, before
        self._began = self._last = clock()  # the last outcome
        self._steps: dict[str, int] = {}
        self.done = 0
        self.seconds: dict[str, float] = {}
        self._sampler = MachineSampler()

    @property
    def elapsed(self) -> float:
        """Seconds of this session."""
        return self._clock() - self._began

    @property
    def machine(self) -> Machine:
        """What this session takes of the machine, a few seconds old."""
        return self._sampler.look()

    def add(self, name: str, steps: int, before: int, seconds: Mapping[str, float]) -> None:
        """An outcome came in: a member's steps so far, and those that an earlier session made."""
        self._last = self._clock()
        known = self._steps.get(name, before)
        self.done += max(0, steps - known)
        self._steps[name] = max(steps, known)
        for kind, value in seconds.items():
            self.seconds[kind] = self.seconds.get(kind, 0.0) + value

    @property
    def speed(self) -> float | None:
        """Steps per second up to the last outcome; before this session's first, of earlier ones."""
        if not self.done or self._last <= self._began:
            return self._before
        return self.done / (self._last - self._began)

    def eta(self, steps: float) -> float | None:
        """Seconds that so many steps take, of which some are done since the last outcome."""
        speed = self.speed
        if not speed:
            return None
        whole = steps / speed
        return max(whole - (self._clock() - self._last), whole / 20)  # somebody is late


class Watcher:
    """Knows what workers last said of members under way; a look reads what is new.

    Args:
        path: of the file that they append to.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._looked = path, -math.inf
        self._said: dict[str, UnderWay] = {}

    def of(self, slots: Sequence[Slot]) -> list[dict[str, Any]]:
        """For `Status.running`: each member, with its numbers where it said some."""
        if time.monotonic() - self._looked >= EVERY_SECONDS:
            self._looked = time.monotonic()
            known = {**self._said, **read_under_way(self._path, _LATELY)}
            self._said = {s.name: known[s.name] for s in slots if s.name in known}
        found = []
        for slot in slots:
            one = self._said.get(slot.name)
            numbers = {"step": one.step, "score": one.score, "time": one.at} if one else {}
            found.append({"trial": slot.trial, "fold": slot.fold, **numbers})
        return found


def search_status(
    session: Session,
    search: Search,
    after_steps: float,
    interval: Callable[[int], tuple[float, float] | None],
) -> Status:
    """Where the search stands.

    Args:
        session, search: of the study.
        after_steps: to be trained after the search.
        interval: of the score of a trial.
    """
    plan, meter = session.plan, session.meter
    running = sorted(search.scheduler.running)
    verdicts = search.verdicts.values()
    kinds = [verdict.kind for verdict in verdicts]
    counts = {kind: kinds.count(kind) for kind in ("complete", "pruned", "failed")}
    ended, best = sum(counts.values()), search.best
    low, high = (interval(best.trial) if best else None) or (None, None)
    score = {"score": best.score, "trial": best.trial, "low": low, "high": high} if best else {}
    return Status(
        "study",
        phase="search",
        done=ended,
        of=search.scheduler.limit,
        unit="trials",
        rate=meter.speed,
        trials_per_hour=3600 * search.ended_now / meter.elapsed if search.ended_now else None,
        eta=meter.eta(remaining_steps(search, plan) + after_steps),
        best=score,
        counts={**counts, "inactive": sum(v.kind == "complete" and v.inactive for v in verdicts)},
        running=session.watcher.of(
            [Slot("search", t, 0, k) for t in running for k in range(plan.folds)]
        ),
        phases=dict(meter.seconds),
    )


def remaining_steps(search: Search, plan: StudyPlan, to_come: bool = True) -> float:
    """Environment steps to the search's end, by the survival seen so far.

    Args:
        search, plan: the search.
        to_come: count trials that are not asked yet; each is expected to take the mean share of
            its budget that those took which ended.
    """
    survival = expected_share(search)
    later = max(0, search.scheduler.limit - search.scheduler.asked) * plan.mean_steps * survival
    in_flight = 0.0
    for trial in search.scheduler.running:
        stages = search.stages(trial)
        reached = search.verdicts.get(trial)
        done = stages.steps[reached.stage] if reached else 0
        in_flight += max(0.0, stages.steps[-1] * max(survival, done / stages.steps[-1]) - done)
    return (in_flight + later * to_come) * plan.folds


def expected_share(search: Search) -> float:
    """Mean share of its budget that a trial takes, of those that ended; 1 before any did."""
    shares = []
    for trial, verdict in search.verdicts.items():
        if verdict.kind in ("complete", "pruned") and trial >= search.unprunable:
            stages = search.stages(trial)
            shares.append(stages.steps[verdict.stage] / stages.steps[-1])
    return float(np.mean(shares)) if shares else 1.0


class RareInterval:
    """Calculates intervals rarely: nobody hands out work meanwhile.

    Args:
        plan, search, meter: of the study.
    """

    def __init__(self, plan: StudyPlan, search: Search, meter: Meter) -> None:
        self._plan, self._search, self._meter = plan, search, meter
        self._known: dict[int, tuple[float, float] | None] = {}
        self._next = _SECONDS  # of the session

    def __call__(self, trial: int) -> tuple[float, float] | None:
        """Low and high end; None where it is not known yet, or there is none."""
        study = self._plan.study
        if trial not in self._known and self._meter.elapsed >= self._next:
            began = time.thread_time()
            passes = self._search.final_passes(trial)
            self._known[trial] = score_interval(
                passes, self._plan.market, study.objective, study.penalty
            )
            spent = time.thread_time() - began
            self._next = self._meter.elapsed + max(_SECONDS, spent / _SHARE)
        return self._known.get(trial)


def train_all(
    plan: StudyPlan,
    ledger: Ledger,
    pool: Pool,
    jobs: Mapping[Slot, RunConfig],
    tick: Callable[[Sequence[Slot]], None] = lambda left: None,
    take: Callable[[Outcome], None] = lambda outcome: None,
) -> dict[Slot, Outcome]:
    """Outcomes of all slots at the end of their budgets; those in the ledger are not trained again.

    Args:
        plan: makes members of slots.
        ledger: where outcomes are and go.
        pool: who trains.
        jobs: config of each slot.
        tick: called after every wait with the slots that are left; it may raise to leave.
        take: called with every new outcome.
    """
    ends = {slot: iterations(config) for slot, config in jobs.items()}
    known = {key for phase in {slot.phase for slot in jobs} for key in ledger.known(phase)}
    missing = [slot for slot in jobs if (slot.name, ends[slot]) not in known]
    if missing:
        pool.submit(
            [plan.member(slot, jobs[slot]) for slot in missing], [ends[slot] for slot in missing]
        )
    while missing:
        tick(missing)
        outcomes = pool.collect(_POLL_SECONDS)
        if outcomes:
            ledger.add_outcomes(outcomes)
            there = {outcome.name for outcome in outcomes}
            missing = [slot for slot in missing if slot.name not in there]
            for outcome in outcomes:
                take(outcome)
    found = {slot: ledger.outcome(slot.name, end) for slot, end in ends.items()}
    return {slot: outcome for slot, outcome in found.items() if outcome is not None}


class Session:
    """Begins when a study's forecast is told.

    Args:
        folder, plan, ledger, pool: of the study.
        asked: whether to leave.
        logbook: what other processes are told.
        say: told in sentences.
        show: told where the study stands, often.
        notes: sentences that the user must see.

    Attributes:
        meter: steps and seconds of this session.
        watcher: knows how far members are.
        found: where the search ended: its counts and its best are told to the study's end.
    """

    def __init__(
        self,
        folder: StudyFolder,
        plan: StudyPlan,
        ledger: Ledger,
        pool: Pool,
        asked: Interruption,
        logbook: Logbook,
        say: Callable[[str], None],
        show: Callable[[Status], None],
        notes: Sequence[str] = (),
    ) -> None:
        self.folder, self.plan, self.ledger, self.pool = folder, plan, ledger, pool
        self._machine = MachineTable(folder.machine, say)
        self.watcher = Watcher(folder.path / "live" / UNDER_WAY)
        searched = ledger.fact("seconds", {}).get("search")
        before = ledger.totals("search")["steps"] / searched if searched else None
        self.say, self.meter = say, Meter(before=before)
        self.logbook, self._asked, self._show = logbook, asked, show
        self.found = Status("study", notes=notes)
        self.begin()

    def begin(self) -> None:
        """A phase begins: its seconds count from here."""
        self._began, self._untold = self._counters(), True

    def train(
        self, jobs: Mapping[Slot, RunConfig], phase: str, later: int = 0
    ) -> dict[Slot, Outcome]:
        """Outcomes of members that need nobody's verdict.

        Args:
            jobs: config of each.
            phase: what they are trained for.
            later: members of the phases after this one.
        """
        self.begin()
        self.logbook.note("phase", f"{phase}: {len(jobs)} members", phase=phase, members=len(jobs))

        def look(left: Sequence[Slot]) -> Status:
            steps = sum(steps_of(jobs[slot]) for slot in left) + later * self.plan.mean_steps
            return replace(
                self.found,
                phase=phase,
                done=len(jobs) - len(left),
                of=len(jobs),
                unit="members",
                rate=self.meter.speed,
                eta=self.meter.eta(steps),
                running=self.watcher.of(left),
                phases=dict(self.meter.seconds),
            )

        def tick(left: Sequence[Slot]) -> None:
            self.leave(phase)
            self.tell(lambda: look(left))

        take = self.counting(next(iter(jobs)).phase if jobs else phase)  # all are of one phase
        outcomes = train_all(self.plan, self.ledger, self.pool, jobs, tick, take)
        self.spent(phase)
        return outcomes

    def counting(self, phase: str) -> Callable[[Outcome], None]:
        """Adds new outcomes of a phase to the meter, without what earlier sessions trained."""
        before = self.ledger.steps(phase)
        return lambda one: self.meter.add(one.name, one.steps, before.get(one.name, 0), one.seconds)

    def tell(self, look: Callable[[], Status]) -> None:
        """Shows where things stand, also to other processes: at once, then once a second."""
        if not (self._untold or self.logbook.due):
            return
        machine, notes = self.meter.machine, self.found.notes
        nodes = tuple(self.pool.nodes)
        now = replace(look(), nodes=nodes, machine=asdict(machine), notes=notes)
        self._machine.add(machine, self.meter.elapsed, phase=now.phase)
        self._show(now)
        self.logbook.show(now, at_once=self._untold)
        self._untold = False

    def leave(self, phase: str) -> None:
        """Ends the session where a signal or `slipstream stop` asks for it.

        Raises:
            Interrupted: with the command that goes on.
        """
        if self._asked.requested:
            self.spent(phase)
            raise Interrupted(self.folder.path, f"slipstream study resume {self.folder.handle}")

    def spent(self, phase: str) -> None:
        """Adds what this session spent on a phase to what earlier ones did."""
        spent = {name: now - self._began.get(name, 0.0) for name, now in self._counters().items()}
        self.begin()
        known = {name: self.ledger.fact(name, {}) for name in spent}
        for name, value in spent.items():
            known[name][phase] = known[name].get(phase, 0.0) + value
        self.ledger.record(**known)

    def _counters(self) -> dict[str, float]:
        """On the clock, of this process's processor; of a cluster, how much was carried."""
        nodes = self.pool.nodes
        carried = {name: float(sum(node[name] for node in nodes)) for name in ("answers", "bytes")}
        return {
            "seconds": time.monotonic(),
            "cpu": time.process_time(),
            **(carried if nodes else {}),
        }
