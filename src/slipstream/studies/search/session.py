"""Session: one process that runs a study; its training, progress and status.

`PoolFactory` loads the study's data once in this process and opens pools of workers on it.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.core.storage.logbook import Logbook
from slipstream.core.storage.resource_monitor import ResourceSampler, ResourceTable, ResourceUsage
from slipstream.core.storage.signals import Interrupted, Interruption
from slipstream.core.storage.status_file import Status
from slipstream.kernels.spec import EnvSpec
from slipstream.studies.config import StudyConfig
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger, Slot
from slipstream.studies.search.study_plan import StudyPlan, num_iterations, num_steps
from slipstream.training.cluster.cluster import ClusterOptions
from slipstream.training.cluster.node_service import work_for
from slipstream.training.cluster.ray_cluster import connect
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.environments.parts import HoldoutRegister, get_holdout_register
from slipstream.training.population.batches import effective_members
from slipstream.training.population.environment_source import EnvironmentSource
from slipstream.training.population.member import Outcome
from slipstream.training.population.member_pool import Pool
from slipstream.training.population.member_state import (
    EVERY_SECONDS,
    PROGRESS_FILE,
    MemberProgress,
    read_progress,
)
from slipstream.training.population.pool_worker import SERVICE
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.sizing import check_learner

_MAX_PROGRESS_BYTES = 2**15  # bytes of progress that are read at once
_POLL_SECONDS = 0.5
_OTHER_MEMBERS = (
    "Later groups of the study may be halved without another notice. A smaller --group-size avoids "
    "it."
)


class Throughput:
    """Measures steps, seconds and resource use of a session.

    Args:
        clock: returns seconds; replaced in tests.
        before: steps per second of earlier sessions; None without any.

    Attributes:
        steps_done: steps of this session.
        seconds: seconds of its workers, by phase.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, before: float | None = None
    ) -> None:
        self._clock, self._before = clock, before
        self._began = self._last = clock()  # the last outcome
        self._cpu = time.process_time()
        self._steps: dict[str, int] = {}
        self.steps_done = 0
        self.seconds: dict[str, float] = {}
        self._sampler = ResourceSampler()

    @property
    def elapsed(self) -> float:
        """Seconds of this session."""
        return self._clock() - self._began

    @property
    def machine(self) -> ResourceUsage:
        """Resource use of this session, a few seconds old."""
        return self._sampler.sample()

    def record(self, name: str, steps: int, before: int, seconds: Mapping[str, float]) -> None:
        """Record an outcome: a member's steps so far, and those of earlier sessions."""
        self._last = self._clock()
        if not self._steps:  # what this process did before any came in is done once
            self._cpu = time.process_time()
        known = self._steps.get(name, before)
        self.steps_done += max(0, steps - known)
        self._steps[name] = max(steps, known)
        for kind, value in seconds.items():
            self.seconds[kind] = self.seconds.get(kind, 0.0) + value

    @property
    def speed(self) -> float | None:
        """Steps per second up to the last outcome; of earlier sessions before the first outcome."""
        if not self.steps_done or self._last <= self._began:
            return self._before
        return self.steps_done / (self._last - self._began)

    def capacity(self, workers: int) -> float:
        """Return steps per second if all workers were busy; few members keep few of them busy.

        Seconds of this process between segments count in full.
        """
        spent = sum(self.seconds.values()) / workers + time.process_time() - self._cpu
        return self.steps_done / max(spent, 1e-9)

    def eta(self, steps: float) -> float | None:
        """Return the seconds that `steps` take; part of them is done since the last outcome."""
        speed = self.speed
        if not speed:
            return None
        whole = steps / speed
        return max(whole - (self._clock() - self._last), whole / 20)  # the outcome is late


class ProgressReader:
    """Reads the latest progress of running members.

    Args:
        path: the file to which workers append.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._read_at = path, -math.inf
        self._progress: dict[str, MemberProgress] = {}

    def running_members(self, slots: Sequence[Slot]) -> list[dict[str, Any]]:
        """Return each member as in `Status.running`, with its progress if any was reported."""
        if time.monotonic() - self._read_at >= EVERY_SECONDS:
            self._read_at = time.monotonic()
            known = {**self._progress, **read_progress(self._path, _MAX_PROGRESS_BYTES)}
            self._progress = {s.name: known[s.name] for s in slots if s.name in known}
        rows = []
        for slot in slots:
            progress = self._progress.get(slot.name)
            numbers = (
                {"step": progress.step, "score": progress.score, "time": progress.at}
                if progress
                else {}
            )
            rows.append({"trial": slot.trial, "fold": slot.fold, **numbers})
        return rows


@dataclass
class Session:
    """One process that runs a study; it begins when the forecast is reported.

    Attributes:
        folder: folder of the study.
        plan: plan of the study.
        ledger: ledger of the study.
        pool: pool of workers.
        interruption: requests to stop.
        logbook: status for other processes.
        notify: called with messages.
        on_status: called with the status, often.
        warnings: sentences that the user must see.
        throughput: steps and seconds of this session.
        progress: progress of running members.
        last_status: status at the end of the search; its counts and best trial are kept.
        deadline: end of the time budget by `time.monotonic`; infinite without one.
        workers: number of processes that train.
    """

    folder: StudyFolder
    plan: StudyPlan
    ledger: Ledger
    pool: Pool
    interruption: Interruption
    logbook: Logbook
    notify: Callable[[str], None]
    on_status: Callable[[Status], None]
    warnings: InitVar[Sequence[str]] = ()
    deadline: float = math.inf
    workers: int = 1

    def __post_init__(self, notes: Sequence[str]) -> None:
        self._machine, self._warned = ResourceTable(self.folder.machine, self.notify), False
        self.progress = ProgressReader(self.folder.path / "live" / PROGRESS_FILE)
        searched = self.ledger.get_metadata("seconds", {}).get("search")
        before = sum(self.ledger.steps("search").values()) / searched if searched else None
        self.throughput, self.last_status = Throughput(before=before), Status("study", notes=notes)
        self.start_timer()

    def start_timer(self) -> None:
        """Start the timer of a phase."""
        self._began, self._status_pending = self._counters(), True

    @property
    def time_left(self) -> float:
        """Seconds left of the time budget; infinite without one."""
        return self.deadline - time.monotonic()

    def eta(self, steps: float) -> float | None:
        """Return the seconds until `steps` are done, at most until the end of the time budget."""
        eta = self.throughput.eta(steps)
        return eta if eta is None else min(eta, max(0.0, self.time_left))

    def train(
        self, configs: Mapping[Slot, RunConfig], phase: str, later_load: float = 0
    ) -> dict[Slot, Outcome]:
        """Train members without pruning to the end of their budgets and return their outcomes.

        Members whose outcomes are in the ledger are not trained again.

        Args:
            configs: config of each member.
            phase: name of the phase.
            later_load: load of the phases after this one, see `effective_members`.
        """
        self.start_timer()
        self.logbook.log_event(
            "phase", f"{phase}: {len(configs)} members", phase=phase, members=len(configs)
        )

        def look(left: Sequence[Slot]) -> Status:
            steps = sum(num_steps(configs[slot]) for slot in left) / max(1, len(left))
            steps = (
                steps * effective_members(len(left), self.workers)
                + later_load * self.plan.mean_steps
            )
            return replace(
                self.last_status,
                phase=phase,
                completed=len(configs) - len(left),
                total=len(configs),
                unit="members",
                rate=self.throughput.speed,
                eta=self.eta(steps),
                running=self.progress.running_members(left),
                phases=dict(self.throughput.seconds),
            )

        ends = {slot: num_iterations(config) for slot, config in configs.items()}
        kind = next(iter(configs)).phase if configs else phase  # all are of one
        known, count = self.ledger.failed_by_outcome(kind), self.outcome_counter(kind)
        missing = [slot for slot in configs if (slot.name, ends[slot]) not in known]
        if missing:
            members = [self.plan.member(slot, configs[slot]) for slot in missing]
            self.pool.submit(members, [ends[slot] for slot in missing])
        while missing:
            self.check_interruption(phase)
            self.publish_status(partial(look, missing))
            outcomes = self.pool.collect(_POLL_SECONDS)
            if outcomes:
                self.ledger.add_outcomes(outcomes)
                names = {outcome.name for outcome in outcomes}
                missing = [slot for slot in missing if slot.name not in names]
                for outcome in outcomes:
                    count(outcome)
        self.record_time(phase)
        final = {slot: self.ledger.outcome(slot.name, end) for slot, end in ends.items()}
        return {slot: outcome for slot, outcome in final.items() if outcome is not None}

    def outcome_counter(self, phase: str) -> Callable[[Outcome], None]:
        """Return a callback that counts new outcomes of a phase, without steps of earlier sessions.

        The warnings of the first outcome that has any are logged, recorded and shown. Later
        populations repeat them with other numbers.
        """
        before = self.ledger.steps(phase)

        def count(one: Outcome) -> None:
            self.throughput.record(one.name, one.steps, before.get(one.name, 0), one.seconds)
            if one.notes and not self._warned:
                self._warned = True
                sentence = f"{' '.join(one.notes)} {_OTHER_MEMBERS}"
                known = self.folder.provenance.get("notes") or ()
                self.notify(f"Note: {sentence}")
                self.folder.update_provenance(notes=list(dict.fromkeys([*known, sentence])))
                self.last_status = replace(
                    self.last_status, notes=[*self.last_status.notes, sentence]
                )

        return count

    def publish_status(self, look: Callable[[], Status]) -> None:
        """Publish the status, also to other processes: immediately, then once a second."""
        if not (self._status_pending or self.logbook.due):
            return
        machine, notes = self.throughput.machine, self.last_status.notes
        nodes = tuple(self.pool.nodes)
        now = replace(look(), nodes=nodes, machine=asdict(machine), notes=notes)
        self._machine.add(machine, self.throughput.elapsed, phase=now.phase)
        self.on_status(now)
        self.logbook.show(now, at_once=self._status_pending)
        self._status_pending = False

    def check_interruption(self, phase: str) -> None:
        """Stop the session on a signal, on `slipstream stop`, or at the end of the time budget.

        Raises:
            Interrupted: with the command that resumes.
        """
        if self.interruption.requested or self.time_left <= 0.0:
            self.record_time(phase)
            command = f"slipstream resume {self.folder.handle}"
            if self.interruption.requested:
                raise Interrupted(self.folder.path, command)
            how = f"The time budget ended during: {phase}. What was trained is kept. Resume with:"
            raise Interrupted(self.folder.path, command, how, final=True)

    def record_time(self, phase: str) -> None:
        """Add the time of a phase in this session to that of earlier sessions."""
        spent = {name: now - self._began.get(name, 0.0) for name, now in self._counters().items()}
        self.start_timer()
        known = {name: self.ledger.get_metadata(name, {}) for name in spent}
        for name, value in spent.items():
            known[name][phase] = known[name].get(phase, 0.0) + value
        self.ledger.set_metadata(**known)

    def _counters(self) -> dict[str, float]:
        """Return wall and process seconds; with a cluster, also the transferred data."""
        nodes = self.pool.nodes
        carried = {name: float(sum(node[name] for node in nodes)) for name in ("answers", "bytes")}
        return {
            "seconds": time.monotonic(),
            "cpu": time.process_time(),
            **(carried if nodes else {}),
        }


@dataclass(frozen=True)
class EnvInfo:
    """Properties of a study's environment.

    Attributes:
        spec: its spec.
        num_folds: number of folds of a trial.
        metadata: JSON-able: `market_sha256`, `folds` (groups, paths, ranges), `round_trip`, ...
        warnings: sentences that the user must see.
        observed_bytes: see `Environment`.
        backend: stepping backend; ``auto`` if it is measured later.
        holdout_register: register of searched and opened days.
    """

    spec: EnvSpec
    num_folds: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    observed_bytes: int | None = None
    backend: str = "auto"
    holdout_register: HoldoutRegister = field(default_factory=HoldoutRegister)


class PoolFactory:
    """Loads a study's data once in this process and opens pools of workers.

    Forked workers share the data; a cluster receives it.

    Args:
        workers: number of processes; None: one per core, see `Pool`. Must be None with a cluster.
        group_size: members of a population; None: measured.
        cluster: cluster that trains instead.
        notify: called with a message when nodes join or leave.
    """

    def __init__(
        self,
        workers: int | None,
        group_size: int | None,
        cluster: ClusterOptions | None = None,
        notify: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._workers = workers
        self._group_size, self._cluster, self._notify = group_size, cluster, notify
        self._source: EnvironmentSource | None = None
        self._base: RunConfig | None = None

    def load_env(self, base: RunConfig, study: StudyConfig) -> EnvInfo:
        """Load the environment's data and return its properties."""
        self._source, self._base = EnvironmentSource(study.folds, study.fold_seeds), base
        environment = self._source.environment(base)
        check_learner(base.training, environment.spec.is_image)
        base.agent.check_spaces(environment.spec)
        environment.check(base.env_settings, self._notify)
        facts = dict(environment.provenance)
        if sources := environment.metadata.get("sources"):
            facts["sources"] = sources
        if environment.spec.market is not None:
            facts["benchmark"] = environment.spec.market.benchmark
        folds = self._source.folds(base)
        rules = environment.part(KernelEnvironment)
        seen = None if rules is None else rules.observed_bytes
        backend = base.training.resolved_backend
        if "compiled" in environment.kind.backends:  # others are measured
            backend = environment.kind.select_backend(backend)
        register = get_holdout_register(environment)
        return EnvInfo(environment.spec, folds, facts, environment.notes, seen, backend, register)

    @contextmanager
    def pool(self, folder: StudyFolder) -> Iterator[Pool]:
        """Open a pool of workers on the loaded data.

        Raises:
            ConfigError: another process of the cluster runs the study.
            ResourceError: the cluster cannot be used.
        """
        assert self._source is not None and self._base is not None, "survey comes first"
        if self._cluster is None:
            with Pool(folder.path, self._source, self._workers, self._group_size) as pool:
                yield pool
            return
        environment = self._source.environment(self._base)
        with tempfile.TemporaryDirectory(prefix="slipstream-files-") as files:
            owner = f"the study {folder.name}"
            work = work_for(owner, SERVICE, environment, self._base, Path(files))
            with (
                connect(self._cluster, work, self._notify) as cluster,
                Pool(folder.path, self._source, 0, self._group_size, cluster) as pool,
            ):
                yield pool
