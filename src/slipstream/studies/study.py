"""Study: search, confirmation, final training and hold-out; each phase resumes where it stopped."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from slipstream.core.capacity import usable_cores
from slipstream.core.errors import ConfigError, SlipstreamError
from slipstream.core.storage import provenance
from slipstream.core.storage.atomic_io import write_text
from slipstream.core.storage.logbook import Logbook
from slipstream.core.storage.signals import Interrupted, Interruption
from slipstream.core.storage.status_file import Status
from slipstream.core.text import plural
from slipstream.core.timeline import DEVELOPMENT
from slipstream.studies.config import StudyConfig, digest
from slipstream.studies.outcome.confirmation import confirm_best
from slipstream.studies.outcome.final_model import train_final_model
from slipstream.studies.outcome.result import build_result
from slipstream.studies.record.folder import (
    StudyFolder,
    check_data,
    check_identity,
    study_identity,
    write_study,
)
from slipstream.studies.record.ledger import Ledger, rank_eligible
from slipstream.studies.record.storage import StorageMirror, redact_password, storage_url
from slipstream.studies.record.warm_start import METADATA_KEY, WarmStart, check_holdout
from slipstream.studies.search.forecast import (
    DAY_HOURS,
    check_disk,
    check_memory,
    confirmation_load,
    forecast,
    forecast_other_space,
    format_minutes,
    max_candidates,
    measure_speed,
)
from slipstream.studies.search.pruner import Pruner, RungLog
from slipstream.studies.search.sampler import LIBRARIES
from slipstream.studies.search.search import Search
from slipstream.studies.search.session import EnvInfo, PoolFactory, Session
from slipstream.studies.search.study_plan import StudyPlan
from slipstream.studies.space import SearchSpace
from slipstream.studies.statistics.returns import check_constraints
from slipstream.training.callbacks.progress_reporter import vectorized_line
from slipstream.training.cluster.cluster import ClusterOptions
from slipstream.training.population.batches import effective_members
from slipstream.training.population.member_pool import Pool
from slipstream.training.runs.run import check_state_version, state_version
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.trust import enter


@dataclass(frozen=True)
class Resources:
    """Resources of a call of `slipstream.tune`; they are not part of the study's identity.

    A resume may use other values. Scores do not depend on them, but `hours` may end the search
    early.

    Attributes:
        storage: Optuna storage that mirrors the ledger; None: a file in the study's folder.
        workers: number of processes; None: one per core, or those of the cluster.
        group_size: members of a population; None: measured.
        hours: time budget of the call. The search ends early and the confirmation has fewer
            candidates if necessary. A budget that is too small raises an error.
        force_deploy: deploy the best candidate although nothing was recommended.
        cluster: cluster that trains instead of local processes.
        time_limit: maximum forecast in hours; a longer forecast raises an error with settings that
            fit.
        start_time: start of the call, by `time.monotonic`.
    """

    storage: str | None = None
    workers: int | None = None
    group_size: int | None = None
    hours: float | None = None
    force_deploy: bool = False
    cluster: ClusterOptions | None = None
    time_limit: float | None = None
    start_time: float = field(default_factory=time.monotonic)

    @property
    def num_workers(self) -> int:
        """Workers that train on this machine; 1 with a cluster, which makes its own batches."""
        return 1 if self.cluster is not None else self.workers or usable_cores()

    def __post_init__(self) -> None:
        if self.hours is not None and not self.hours > 0.0:
            raise ConfigError(
                f"--hours must be positive, got {self.hours:g}. Give the time budget in hours."
            )
        if self.cluster is not None and self.workers is not None:
            raise ConfigError(
                "--workers sets processes of this machine and has no effect with --cluster. Remove "
                "it, or give --max-workers."
            )


def parse_hours(duration: str | float | None) -> float | None:
    """Parse a duration such as ``24h``, ``90min``, ``2d`` or a number of hours.

    Raises:
        ConfigError: the duration is invalid or not positive.
    """
    if duration is None:
        return None
    match = re.fullmatch(r"\s*([0-9.]+)\s*(s|min|h|d)?\s*", str(duration))
    try:
        hours = float(match[1]) * _HOURS[match[2] or "h"] if match else 0.0
    except ValueError:
        hours = 0.0
    if not hours > 0.0:
        raise ConfigError(
            f"--time-budget must be a positive time, got {duration}. Give a number with the unit "
            f"{', '.join(_HOURS)} (default: hours), such as 90min, 24h or 2d."
        )
    return hours


_HOURS = {"s": 1 / 3600, "min": 1 / 60, "h": 1.0, "d": 24.0}


@dataclass
class Study:
    """A study that this process runs.

    Attributes:
        folder: its folder, new or existing.
        base: config that trials vary.
        config: `study` section.
        space: search space.
        pool_factory: loads the data and opens pools of workers.
        resources: resources of this call.
        notify: called with messages.
        on_status: called with the status, often.
        comparison_spaces: configs and spaces that are only forecast, by name.
        warm_start: trials of another study given to the sampler.
    """

    folder: StudyFolder
    base: RunConfig
    config: StudyConfig
    space: SearchSpace
    pool_factory: PoolFactory
    resources: Resources
    notify: Callable[[str], None]
    on_status: Callable[[Status], None] = lambda status: None
    comparison_spaces: Mapping[str, tuple[RunConfig, SearchSpace]] = field(default_factory=dict)
    warm_start: WarmStart | None = None

    def __post_init__(self) -> None:
        self._identity = study_identity(self.base, self.config, self.space)
        if self.warm_start is not None:
            self._identity["from_study_sha256"] = self.warm_start.digest
        self._logbook = Logbook(self.folder.path, "study", self.notify)
        self._deadline = math.inf

    def _log(self, sentence: str) -> None:
        self.notify(sentence)
        self._logbook.log(sentence)

    def _start_phase(self, phase: str, trials: int = 0) -> None:
        """Publish the start of a phase, and the number of trials before the first one."""
        status = Status("study", phase=phase, total=trials, unit="trials")
        self.on_status(status)
        self._logbook.show(status, at_once=True)

    def run(self) -> dict[str, Any]:
        """Run or resume the study to its end; return the content of `result.json`.

        Raises:
            SlipstreamError: with the fix; nothing that was done is lost.
            Interrupted: a signal or `slipstream stop`; the study can be resumed.
        """
        if self.resources.hours is not None:
            self._deadline = self.resources.start_time + _BUDGET_SHARE * 3600 * self.resources.hours
        storage_url(self.resources.storage, self.folder.path)  # fails early if it is invalid
        self._check_folder()
        fresh = not self.folder.exists
        self.folder.lock()
        try:
            self._check_folder()  # another process may have created it since
            with self._logbook:
                return self._run(resumed=self.folder.exists)
        except SlipstreamError:
            if fresh and not self._has_trials():  # frees the name for another attempt
                self.folder.discard()
            raise
        finally:
            self.folder.unlock()

    def _check_folder(self) -> None:
        """Check that the folder holds this study, or is empty."""
        if self.folder.exists:
            provenance, handle = self.folder.provenance, self.folder.handle
            read_command = f"slipstream study report {handle}"
            config = shlex.quote(str(self.folder.config))
            retry_command = f"slipstream tune {config} --study-name NEW_NAME"
            check_state_version(
                provenance, self.base, f"The study {handle}", read_command, retry_command
            )
            check_identity(
                handle,
                provenance.get("identity") or {},
                self._identity,
                read_command,
                retry_command,
            )
        elif self.folder.is_occupied:
            raise ConfigError(
                f"{self.folder.path} is not empty and is not a study. Give another name with "
                "--study-name."
            )

    def _has_trials(self) -> bool:
        if not self.folder.ledger.is_file():
            return False
        with Ledger(self.folder.ledger) as ledger:
            return bool(ledger.suggestions())

    def _run(self, resumed: bool) -> dict[str, Any]:
        self._start_phase("loading")
        self._log(f"The study {self.folder.handle}: loading {self.base.short_name}.")
        env_info = self.pool_factory.load_env(self.base, self.config)
        metric_names = [metric.name for metric in env_info.spec.metrics]
        check_constraints(self.config.constraints, metric_names, self.base.short_name)
        folds = env_info.metadata.get("folds") or {}
        if resumed:
            self._check_changes(env_info.metadata)
        else:
            check_holdout(self.config, folds, env_info.holdout_register)
        warm_start = self.warm_start
        plan = StudyPlan(
            self.base, self.config, self.space, env_info.num_folds, env_info.spec.market, warm_start
        )
        for note in env_info.warnings:
            self._log(f"Note: {note}")
        ledger_path, path = self._write_folder(env_info), self.folder.path
        study = str(self.folder.provenance.get("id", path))
        earlier = env_info.holdout_register.begin_search(
            folds.get(DEVELOPMENT), study, f"study {path}", path.parent, self.config.n_trials
        )
        with Ledger(ledger_path, read_only=False) as ledger, Interruption(path) as interruption:
            if earlier:
                ledger.set_metadata(earlier_searches=earlier)
            if warm_start is not None:
                ledger.set_metadata(**{METADATA_KEY: warm_start.metadata})
                self._log(warm_start.sentence)
            try:
                return self._run_phases(plan, env_info, ledger, interruption)
            finally:
                # Fewer trials than planned after a stop or at the end of the time budget.
                env_info.holdout_register.end_search(study, len(ledger.suggestions()), path.parent)

    def _check_changes(self, metadata: Mapping[str, Any]) -> None:
        """Raise if the prices changed since the study's start; log other changes."""
        before, name = self.folder.provenance, self.folder.name
        old = before.get("environment") or {}
        check_data(name, old.get("market_sha256"), metadata.get("market_sha256"))
        libraries = ("slipstream", "numba", "numpy", "optuna", *LIBRARIES[self.config.sampler])
        if other := provenance.reproducibility_warning(before, f"the study {name}", libraries):
            self._log(other)
            self.folder.update_provenance(
                notes=list(dict.fromkeys([*(before.get("notes") or ()), other]))
            )
        if changed := provenance.changed_keys(_sources(old), _sources(metadata)):
            self._log(
                f"The environment of {name} has changed since its start ({', '.join(changed)}). "
                "Trials before and after the change may not be comparable."
            )

    def _write_folder(self, env_info: EnvInfo) -> Path:
        """Write the folder's first files, or update those that may change."""
        if not self.folder.exists:
            check_disk(self.folder.path)
            self.folder.update_provenance(
                **provenance.describe(),
                identity=self._identity,
                study=self.folder.name,
                config_hash=digest(self._identity),
                state=state_version(self.base),
                environment=dict(env_info.metadata),
                notes=list(env_info.warnings),
            )
            values = self.base.as_mapping()
            enter(self.folder.path, "study", self.base.short_name, values, self._log)
        write_text(self.folder.config, write_study(self.base, self.config, self.space))
        return self.folder.ledger

    def _run_phases(
        self, plan: StudyPlan, env_info: EnvInfo, ledger: Ledger, interruption: Interruption
    ) -> dict[str, Any]:
        mirror = self._open_mirror(ledger)
        try:
            with self.pool_factory.pool(self.folder) as pool:
                self._forecast(plan, env_info, ledger, pool, interruption)
                self._log(vectorized_line(plan.base.num_envs, env_info.backend))
                session = Session(
                    self.folder,
                    plan,
                    ledger,
                    pool,
                    interruption,
                    logbook=self._logbook,
                    notify=self._log,
                    on_status=self.on_status,
                    warnings=env_info.warnings,
                    deadline=self._deadline,
                    workers=self.resources.num_workers,
                )
                search = self._run_search(session, mirror)
                session.start_timer()
                mirror.flush(last=True)  # the following phases take long
                session.record_time("mirror")
                top = self._num_candidates(session, search)
                confirmed = confirm_best(session, search, env_info.metadata.get("folds"), top)
                deployed = train_final_model(
                    session,
                    search,
                    confirmed,
                    force=self.resources.force_deploy,
                    study_config=digest(self._identity),
                    register=env_info.holdout_register,
                )
                nodes = tuple(pool.nodes)
        finally:
            try:
                mirror.flush(last=True)  # also after a signal or an error
            finally:
                mirror.close()
        result = build_result(self.folder, plan, env_info.metadata, ledger, confirmed, deployed)
        phases = dict(session.throughput.seconds)
        self._logbook.show(replace(session.last_status, phases=phases, nodes=nodes), at_once=True)
        self.folder.save_result(result)
        for sentence in result["sentences"]:
            self._logbook.log(sentence)
        return result

    def _open_mirror(self, ledger: Ledger) -> StorageMirror:
        """Open the given storage, or the one of the study's first start."""
        requested, before = self.resources.storage, ledger.get_metadata("storage")
        if requested is None and before is not None:
            if ":***@" in before:
                raise ConfigError(
                    f"The study {self.folder.name} is mirrored to {before}, whose password is not "
                    "stored. Give --storage again."
                )
            requested = before
        mirror = StorageMirror(
            requested, self.folder.path, self.folder.name, self._identity, self._log
        )
        ledger.set_metadata(storage=redact_password(mirror.url))
        return mirror

    def _forecast(
        self,
        plan: StudyPlan,
        env_info: EnvInfo,
        ledger: Ledger,
        pool: Pool,
        interruption: Interruption,
    ) -> None:
        """Measure a slice of the study and log the forecast, once per study."""

        def tick() -> None:
            if interruption.requested:
                raise Interrupted(self.folder.path, f"slipstream resume {self.folder.handle}")

        stored = ledger.get_metadata("forecast")
        if stored is None:
            # A single member must fit before it can be measured. `forecast` checks the whole study.
            check_memory(plan.with_configs([plan.base]), env_info.spec, env_info.observed_bytes)
            self._start_phase("measuring", self.config.n_trials)
            self._log(
                "Training a slice of the study to forecast time, memory and disk. The first "
                "compilation takes up to a minute."
            )
            speed = measure_speed(pool, plan, tick)
            hours = self.resources.time_limit
            result = forecast(
                plan,
                env_info.spec,
                speed,
                env_info.metadata,
                self.folder.path,
                env_info.observed_bytes,
                self.resources.workers,
                hours or DAY_HOURS,
            )
            stored = asdict(result)
            needed = result.search_minutes + result.confirm_minutes
            if hours is not None and needed > 60 * hours:
                self._log(result.sentences[0])
                raise ConfigError(
                    f"{result.fit_suggestion} Nothing was started: --time-budget changes no "
                    "setting."
                )
            ledger.set_metadata(forecast=stored)
            others = [
                forecast_other_space(
                    name, replace(plan, base=base, space=space), plan, env_info.spec, speed
                )
                for name, (base, space) in self.comparison_spaces.items()
            ]
            for sentence in (*result.sentences, *others):
                self._log(sentence)
            if hours is not None:
                self._log(f"It fits: {format_minutes(needed)} of {format_minutes(60 * hours)}.")
        elif self.resources.time_limit is not None:
            self._log(
                "--time-budget applies only to the start of a study and is ignored by this resume."
            )
        self._check_hours(plan, ledger, stored)
        for warning in stored["warnings"]:
            self._log(f"Warning: {warning}")

    def _check_hours(self, plan: StudyPlan, ledger: Ledger, forecast: Mapping[str, Any]) -> None:
        """Raise if the time budget is too short for one trial and one candidate's confirmation.

        The search starts with as many trials as fit at half the forecast speed, so that some trials
        end even if the forecast was too optimistic.
        """
        hours, count, workers = (
            self.resources.hours,
            plan.study.n_trials,
            self.resources.num_workers,
        )
        if hours is None:
            return
        trial_minutes = forecast["search_minutes"] / count / _PESSIMISTIC_SPEED
        first_trial_minutes = (
            trial_minutes * effective_members(plan.num_folds, workers) / plan.num_folds
        )
        confirm = (
            forecast["confirm_minutes"]
            / confirmation_load(plan, count, workers)
            / _PESSIMISTIC_SPEED
        )
        confirm *= confirmation_load(plan, count, workers, 1)
        begun = any(decision.kind == "complete" for decision in ledger.decisions())
        left = (self._deadline - time.monotonic()) / 60
        need = confirm + (0.0 if begun else first_trial_minutes)
        if need > left:
            enough = _SUGGESTED_FACTOR * (need / 60 + max(0.0, hours - left / 60))
            digits = 10.0 ** (1 - math.floor(math.log10(enough)))
            enough = math.ceil(enough * digits) / digits  # two digits, rounded up
            raise ConfigError(
                f"--hours {hours:g} leaves {format_minutes(max(0.0, left))} after loading and "
                "measuring, "
                f"and {'' if begun else 'one trial with '}the confirmation of one candidate "
                f"({plural(plan.study.confirmation.seeds, 'seed')} x "
                f"{plural(plan.num_folds, 'fold')}) "
                f"needs {format_minutes(need)}. Give --hours {enough:g}, or lower "
                "training.total_timesteps. Nothing more was started."
            )
        fit = (
            max(1, int(_INITIAL_SHARE * (left - confirm) / trial_minutes))
            if trial_minutes
            else count
        )
        if not ledger.suggestions() and fit < min(plan.study.max_concurrent_trials, count):
            ledger.set_metadata(in_flight=fit)

    def _num_candidates(self, session: Session, search: Search) -> int | None:
        """Return the number of candidates that the time budget allows; None: all."""
        ledger, plan, speed = session.ledger, session.plan, self._speed(session)
        top, most = ledger.get_metadata("candidates"), plan.study.confirmation.top
        if top is None and session.time_left < math.inf and speed:
            able = len(rank_eligible(search.decisions.values()))
            load = _FORECAST_SHARE * max(0.0, session.time_left) * speed / plan.mean_steps
            top = max_candidates(plan, max(1, able), self.resources.num_workers, load)
            if top >= min(most, able):
                return None
            ledger.set_metadata(candidates=top)
        if top is None:
            return None
        sentence = (
            f"The confirmation has {plural(top, 'candidate')} instead of {most}: --hours allows no "
            "more."
        )
        self._log(sentence)
        known = self.folder.provenance.get("notes") or ()
        self.folder.update_provenance(notes=list(dict.fromkeys([*known, sentence])))
        return int(top)

    def _speed(self, session: Session) -> float | None:
        """Return steps per second of all busy workers; the forecast before the first outcome.

        The number of workers of a cluster is unknown, so its speed is that of the session.
        """
        plan, forecast, throughput = (
            session.plan,
            session.ledger.get_metadata("forecast"),
            session.throughput,
        )
        if throughput.steps_done and self.resources.cluster is None:
            return throughput.capacity(self.resources.num_workers)
        if throughput.speed or forecast is None or not forecast["search_minutes"]:
            return throughput.speed
        steps = plan.study.n_trials * plan.num_folds * plan.mean_steps
        return float(steps / (60 * forecast["search_minutes"]))

    def _run_search(self, session: Session, mirror: StorageMirror | None) -> Search:
        plan, ledger = session.plan, session.ledger
        pruner = Pruner(plan.study, plan.market)
        limit, in_flight = self._trial_limit(ledger), ledger.get_metadata("in_flight")
        search = Search(plan, ledger, session.pool, pruner, mirror, limit, in_flight)
        search.on_outcome = session.outcome_counter("search")
        rungs = RungLog(plan.study.pruning, self._log)
        search.on_decision = lambda decision: rungs.update(decision, search.stages(decision.trial))

        def after() -> float:
            limit, workers, share = search.scheduler.limit, self.resources.num_workers, math.inf
            if self.resources.hours is not None and (speed := self._speed(session)):
                share = _CONFIRMATION_SHARE * _FORECAST_SHARE * 3600 * self.resources.hours * speed
            top = ledger.get_metadata("candidates") or max_candidates(
                plan, limit, workers, share / plan.mean_steps
            )
            return confirmation_load(plan, limit, workers, top) * plan.mean_steps

        def look() -> Status:
            return search.status(session, after())

        def tick() -> None:
            session.check_interruption("search")
            self._check_cut(search, session, after())
            session.publish_status(look)

        def can_start_trial() -> bool:
            more = search.remaining_steps(include_future=False) + plan.num_folds * plan.mean_steps
            if self._fits_budget(session, more + after()):
                return True
            self._log_cut(session, search, self._budget_reason, "finish")
            return False

        search.can_start_trial = can_start_trial
        session.start_timer()
        self._logbook.log_event("phase", f"search: {limit} trials", phase="search", trials=limit)
        search.run(tick)
        session.last_status = replace(look(), notes=session.last_status.notes)
        if self.folder.is_cut_requested:  # requested after the search ended
            self.folder.clear_stop_request()
        session.record_time("search")
        return search

    def _trial_limit(self, ledger: Ledger) -> int:
        """Return the maximum number of trials: as configured, or the cut of an earlier call."""
        cut = ledger.get_metadata("cut")
        if cut is not None and ledger.get_metadata("cut_of") == self.config.n_trials:
            self._log(f"The search was ended early after trial {cut - 1}.")
            return int(cut)
        num_asked = len(ledger.suggestions())
        if self.folder.is_cut_requested and num_asked:  # requested while no process ran the study
            ledger.set_metadata(cut=num_asked, cut_of=self.config.n_trials)
            self.folder.clear_stop_request()
            self._log(f"The search ends after trial {num_asked - 1} (`study stop`).")
            return num_asked
        return self.config.n_trials

    def _fits_budget(self, session: Session, steps: float) -> bool:
        """Return whether the time budget allows `steps` more, if their speed is known."""
        speed = self._speed(session)
        return not speed or session.time_left * _FORECAST_SHARE * speed > steps

    @property
    def _budget_reason(self) -> str:
        return f"--hours {self.resources.hours:g}, with time reserved for the confirmation"

    def _check_cut(self, search: Search, session: Session, after: float) -> None:
        """Handle `study stop`, and end running trials if the confirmation needs their time.

        Without a complete trial there is nothing to confirm, so running trials may use all the
        time.
        """
        asking = search.scheduler.num_asked < search.scheduler.limit
        some = any(decision.kind == "complete" for decision in search.decisions.values())
        late = not self._fits_budget(session, after) if some else session.time_left <= 0.0
        if search.scheduler.running and late:
            self._log_cut(
                session,
                search,
                self._budget_reason,
                f"are stopped: {len(search.scheduler.running)}",
            )
            search.abort(self._budget_reason)
        elif asking and self.folder.is_cut_requested:
            self._log_cut(session, search, "`study stop`", "finish")
            search.stop_asking()

    def _log_cut(self, session: Session, search: Search, reason: str, become: str) -> None:
        """Record that the search starts no further trial, and the fate of the running ones."""
        last, line = search.scheduler.num_asked - 1, f"({reason}); running trials {become}."
        line = f"The search ends after trial {last} {line}"
        session.ledger.set_metadata(cut_of=self.config.n_trials)
        self.folder.clear_stop_request()
        self._logbook.log_event("cut", line, trials=last + 1, reason=reason)
        self.notify(line)


_BUDGET_SHARE = 0.9  # share of a time budget; tests, storage and the report take the rest
_PESSIMISTIC_SPEED = 0.5  # factor of the forecast speed: few concurrent members are slower
_FORECAST_SHARE = 0.8  # share of a time budget that the forecast may fill, as speeds vary
_INITIAL_SHARE = 0.8  # maximum share of the search's time for the first concurrent trials
_SUGGESTED_FACTOR = 1.3  # factor of the required time that an error suggests
_CONFIRMATION_SHARE = 0.5  # maximum share of a time budget reserved for the confirmation


def _sources(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"sources": metadata["sources"]} if "sources" in metadata else {}
