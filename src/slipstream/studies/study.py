"""Study: search, confirmation, final training, hold-out; each goes on from where it stopped."""

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
from slipstream.studies.outcome.result import result_of
from slipstream.studies.outcome.winner import deploy
from slipstream.studies.record.folder import (
    StudyFolder,
    check_data,
    check_same,
    identity,
    write_study,
)
from slipstream.studies.record.ledger import Ledger, ranked
from slipstream.studies.record.storage import Mirror, shown, storage_url
from slipstream.studies.record.warm_start import FACT, WarmStart, check_holdout
from slipstream.studies.search.asker import LIBRARIES
from slipstream.studies.search.forecast import (
    DAY,
    candidates_within,
    check_disk,
    check_memory,
    forecast,
    load_after,
    measure,
    minutes,
    rival_sentence,
)
from slipstream.studies.search.judge import Judge, RungLog
from slipstream.studies.search.plan import StudyPlan
from slipstream.studies.search.search import Search
from slipstream.studies.search.session import Pools, Session, Survey
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
    """What a call of `slipstream.tune` may use, and no part of what the study is.

    A resume may bring other values. No score depends on them, but `hours` may end the search early.

    Attributes:
        storage: Optuna's, which mirrors the ledger; None: a file of the study's folder.
        workers: processes; None: one per core, or those of the cluster.
        group_size: members of a population; None: by measurement.
        hours: time budget of the call. The search ends, and the confirmation has fewer candidates,
            so that all of it fits; what cannot fit is refused.
        force_deploy: deploys the best candidate although nothing was recommended.
        cluster: who trains instead of processes of this machine.
        fit: hours; a study that is forecast to take longer is not begun, but told what would fit.
        began: when the call began, by `time.monotonic`.
    """

    storage: str | None = None
    workers: int | None = None
    group_size: int | None = None
    hours: float | None = None
    force_deploy: bool = False
    cluster: ClusterOptions | None = None
    fit: float | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def processes(self) -> int:
        """Workers that train on this machine; 1 with a cluster, whose batches are its own."""
        return 1 if self.cluster is not None else self.workers or usable_cores()

    def __post_init__(self) -> None:
        if self.hours is not None and not self.hours > 0.0:
            raise ConfigError(f"--hours {self.hours:g}: give the hours that the study may take.")
        if self.cluster is not None and self.workers is not None:
            raise ConfigError(
                "--workers counts processes of this machine alone, and with --cluster there are "
                "none: leave it out, or give --max-workers."
            )


def hours_of(time: str | float | None) -> float | None:
    """Hours of a time such as ``24h``, ``90min``, ``2d`` or a number of hours.

    Raises:
        ConfigError: it is none, or not above 0.
    """
    if time is None:
        return None
    found = re.fullmatch(r"\s*([0-9.]+)\s*(s|min|h|d)?\s*", str(time))
    try:
        hours = float(found[1]) * _HOURS[found[2] or "h"] if found else 0.0
    except ValueError:
        hours = 0.0
    if not hours > 0.0:
        raise ConfigError(
            f"--fit {time}: give a time above 0 in {', '.join(_HOURS)}, hours without a unit, such "
            "as 90min, 24h or 2d."
        )
    return hours


_HOURS = {"s": 1 / 3600, "min": 1 / 60, "h": 1.0, "d": 24.0}


@dataclass
class Study:
    """One study being run by this process.

    Attributes:
        folder: its directory, new or not.
        base, config, space: what `prepare` made of the user's words.
        pools: who loads the data, and lends workers that share it.
        resources: of this call.
        say: told in sentences.
        show: told where the study stands, often.
        rivals: by name, configs and spaces whose search is forecast, too, and not run.
        warm_start: what its sampler is told of another study.
    """

    folder: StudyFolder
    base: RunConfig
    config: StudyConfig
    space: SearchSpace
    pools: Pools
    resources: Resources
    say: Callable[[str], None]
    show: Callable[[Status], None] = lambda status: None
    rivals: Mapping[str, tuple[RunConfig, SearchSpace]] = field(default_factory=dict)
    warm_start: WarmStart | None = None

    def __post_init__(self) -> None:
        self._identity = identity(self.base, self.config, self.space)
        if self.warm_start is not None:
            self._identity["from_study_sha256"] = self.warm_start.digest
        self._logbook = Logbook(self.folder.path, "study", self.say)
        self._deadline = math.inf

    def _tell(self, sentence: str) -> None:
        self.say(sentence)
        self._logbook.say(sentence)

    def _enter(self, phase: str, trials: int = 0) -> None:
        """Tells what begins, and how many trials are to come where none was asked before."""
        status = Status("study", phase=phase, of=trials, unit="trials")
        self.show(status)
        self._logbook.show(status, at_once=True)

    def run(self) -> dict[str, Any]:
        """Runs or goes on to the end; returns what `result.json` says.

        Raises:
            SlipstreamError: with one paragraph that says what to do; nothing that was done is lost.
            Interrupted: a signal or `slipstream stop`; it can be resumed.
        """
        if self.resources.hours is not None:
            self._deadline = self.resources.began + _BEFORE_END * 3600 * self.resources.hours
        storage_url(self.resources.storage, self.folder.path)  # refused before anything takes time
        self._check_place()
        fresh = not self.folder.exists
        self.folder.lock()
        try:
            self._check_place()  # another process may have begun it meanwhile
            with self._logbook:
                return self._run(resumed=self.folder.exists)
        except SlipstreamError:
            if fresh and not self._asked_any():  # its name is free for another try
                self.folder.discard()
            raise
        finally:
            self.folder.unlock()

    def _check_place(self) -> None:
        """The folder holds this study, or nothing."""
        if self.folder.exists:
            facts, handle = self.folder.provenance, self.folder.handle
            read = f"slipstream study report {handle}"
            config = shlex.quote(str(self.folder.config))
            again = f"slipstream tune {config} --study-name NEW_NAME"
            check_state_version(facts, self.base, f"The study {handle}", read, again)
            check_same(handle, facts.get("identity") or {}, self._identity, read, again)
        elif self.folder.foreign:
            raise ConfigError(
                f"{self.folder.path} is not empty and holds no study; name this one otherwise with "
                "--study-name."
            )

    def _asked_any(self) -> bool:
        if not self.folder.ledger.is_file():
            return False
        with Ledger(self.folder.ledger) as ledger:
            return bool(ledger.asks())

    def _run(self, resumed: bool) -> dict[str, Any]:
        self._enter("loading")
        self._tell(f"The study {self.folder.handle}: loading {self.base.short_name}.")
        survey = self.pools.survey(self.base, self.config)
        known = [metric.name for metric in survey.spec.metrics]
        check_constraints(self.config.constraints, known, self.base.short_name)
        folds = survey.facts.get("folds") or {}
        if resumed:
            self._compare(survey.facts)
        else:
            check_holdout(self.config, folds, survey.register)
        told = self.warm_start
        plan = StudyPlan(self.base, self.config, self.space, survey.folds, survey.spec.market, told)
        for note in survey.notes:
            self._tell(f"Note: {note}")
        path = self._begin(survey)
        study, place = str(self.folder.provenance.get("id", self.folder.path)), self.folder.path
        earlier = survey.register.begin_search(
            folds.get(DEVELOPMENT), study, f"study {place}", place.parent, self.config.n_trials
        )
        with Ledger(path, read_only=False) as ledger, Interruption(self.folder.path) as asked:
            if earlier:
                ledger.record(earlier_searches=earlier)
            if told is not None:
                ledger.record(**{FACT: told.facts})
                self._tell(told.sentence)
            try:
                return self._phases(plan, survey, ledger, asked)
            finally:
                # Fewer than planned, if it was stopped or its time was over.
                survey.register.end_search(study, len(ledger.asks()), place.parent)

    def _compare(self, facts: Mapping[str, Any]) -> None:
        """Refuses other prices; says what else is not as it was when the study began."""
        before, name = self.folder.provenance, self.folder.name
        old = before.get("environment") or {}
        check_data(name, old.get("market_sha256"), facts.get("market_sha256"))
        libraries = ("slipstream", "numba", "numpy", "optuna", *LIBRARIES[self.config.sampler])
        if other := provenance.other_bits(before, f"the study {name}", libraries):
            self._tell(other)
            self.folder.record(notes=list(dict.fromkeys([*(before.get("notes") or ()), other])))
        if changed := provenance.changed_facts(_sources(old), _sources(facts)):
            self._tell(
                f"Since {name} began, its environment changed ({', '.join(changed)}); trials "
                "before and after may not compare."
            )

    def _begin(self, survey: Survey) -> Path:
        """Writes the folder's first files, or renews what may change."""
        if not self.folder.exists:
            check_disk(self.folder.path)
            self.folder.record(
                **provenance.describe(),
                identity=self._identity,
                study=self.folder.name,
                config_hash=digest(self._identity),
                state=state_version(self.base),
                environment=dict(survey.facts),
                notes=list(survey.notes),
            )
            values = self.base.as_mapping()
            enter(self.folder.path, "study", self.base.short_name, values, self._tell)
        write_text(self.folder.config, write_study(self.base, self.config, self.space))
        return self.folder.ledger

    def _phases(
        self, plan: StudyPlan, survey: Survey, ledger: Ledger, asked: Interruption
    ) -> dict[str, Any]:
        mirror = self._mirror(ledger)
        try:
            with self.pools.pool(self.folder) as pool:
                self._forecast(plan, survey, ledger, pool, asked)
                self._tell(vectorized_line(plan.base.num_envs, survey.backend))
                session = Session(
                    self.folder,
                    plan,
                    ledger,
                    pool,
                    asked,
                    logbook=self._logbook,
                    say=self._tell,
                    show=self.show,
                    notes=survey.notes,
                    deadline=self._deadline,
                    workers=self.resources.processes,
                )
                search = self._search(session, mirror)
                session.begin()
                mirror.flush(last=True)  # now, for the phases that follow are long
                session.spent("mirror")
                top = self._candidates(session, search)
                confirmed = confirm_best(session, search, survey.facts.get("folds"), top)
                deployed = deploy(
                    session,
                    search,
                    confirmed,
                    force=self.resources.force_deploy,
                    study_config=digest(self._identity),
                    register=survey.register,
                )
                nodes = tuple(pool.nodes)
        finally:
            try:
                mirror.flush(last=True)  # after a signal or an error, too
            finally:
                mirror.close()
        result = result_of(self.folder, plan, survey.facts, ledger, confirmed, deployed)
        phases = dict(session.meter.seconds)
        self._logbook.show(replace(session.found, phases=phases, nodes=nodes), at_once=True)
        self.folder.save_result(result)
        for sentence in result["sentences"]:
            self._logbook.say(sentence)
        return result

    def _mirror(self, ledger: Ledger) -> Mirror:
        """The storage: the one of the study's first start, unless another place is its address."""
        wanted, before = self.resources.storage, ledger.fact("storage")
        if wanted is None and before is not None:
            if ":***@" in before:
                raise ConfigError(
                    f"The study {self.folder.name} is mirrored to {before}, whose password is not "
                    "kept: give --storage again."
                )
            wanted = before
        mirror = Mirror(wanted, self.folder.path, self.folder.name, self._identity, self._tell)
        ledger.record(storage=shown(mirror.url))
        return mirror

    def _forecast(
        self, plan: StudyPlan, survey: Survey, ledger: Ledger, pool: Pool, asked: Interruption
    ) -> None:
        """Measures a slice and says what everything will take, once for a study."""

        def tick() -> None:
            if asked.requested:
                raise Interrupted(self.folder.path, f"slipstream resume {self.folder.handle}")

        told = ledger.fact("forecast")
        if told is None:
            # What cannot even be measured; the rest is refused with what would fit beside it.
            check_memory(plan.of([plan.base]), survey.spec, survey.observed_bytes)
            self._enter("measuring", self.config.n_trials)
            self._tell(
                "Training a slice to forecast minutes, memory and disk; what is compiled for the "
                "first time takes up to a minute."
            )
            speed = measure(pool, plan, tick)
            hours = self.resources.fit
            found = forecast(
                plan,
                survey.spec,
                speed,
                survey.facts,
                self.folder.path,
                survey.observed_bytes,
                self.resources.workers,
                hours or DAY,
            )
            told = asdict(found)
            needed = found.search_minutes + found.confirm_minutes
            if hours is not None and needed > 60 * hours:
                self._tell(found.sentences[0])
                raise ConfigError(f"{found.fitting} Nothing was begun: --fit changes no setting.")
            ledger.record(forecast=told)
            others = [
                rival_sentence(
                    name, replace(plan, base=base, space=space), plan, survey.spec, speed
                )
                for name, (base, space) in self.rivals.items()
            ]
            for sentence in (*found.sentences, *others):
                self._tell(sentence)
            if hours is not None:
                self._tell(f"It fits: {minutes(needed)} of {minutes(60 * hours)}.")
        elif self.resources.fit is not None:
            self._tell("--fit is for the beginning of a study: this one has begun, and goes on.")
        self._check_hours(plan, ledger, told)
        for warning in told["warnings"]:
            self._tell(f"Warning: {warning}")

    def _check_hours(self, plan: StudyPlan, ledger: Ledger, told: Mapping[str, Any]) -> None:
        """Refuse a time budget below one trial and the confirmation of one candidate.

        The search begins with as many trials as fit at half of the speed, so that some end even if
        the forecast was too low.
        """
        hours, count, workers = self.resources.hours, plan.study.n_trials, self.resources.processes
        if hours is None:
            return
        each = told["search_minutes"] / count / _TRUST
        alone = each * effective_members(plan.folds, workers) / plan.folds
        confirm = told["confirm_minutes"] / load_after(plan, count, workers) / _TRUST
        confirm *= load_after(plan, count, workers, 1)
        begun = any(verdict.kind == "complete" for verdict in ledger.verdicts())
        left = (self._deadline - time.monotonic()) / 60
        need = confirm + (0.0 if begun else alone)
        if need > left:
            enough = _MORE * (need / 60 + max(0.0, hours - left / 60))
            digits = 10.0 ** (1 - math.floor(math.log10(enough)))
            enough = math.ceil(enough * digits) / digits  # two digits, rounded up
            raise ConfigError(
                f"--hours {hours:g} leaves {minutes(max(0.0, left))} after loading and measuring, "
                f"and {'' if begun else 'one trial with '}the confirmation of one candidate "
                f"({plural(plan.study.confirmation.seeds, 'seed')} x {plural(plan.folds, 'fold')}) "
                f"needs {minutes(need)}. Give --hours {enough:g}, or lower "
                "training.total_timesteps. Nothing more was begun."
            )
        fit = max(1, int(_FIRST * (left - confirm) / each)) if each else count
        if not ledger.asks() and fit < min(plan.study.max_concurrent_trials, count):
            ledger.record(in_flight=fit)

    def _candidates(self, session: Session, search: Search) -> int | None:
        """Candidates of the confirmation: fewer where the time budget has no room for all."""
        ledger, plan, speed = session.ledger, session.plan, self._speed(session)
        top, most = ledger.fact("candidates"), plan.study.confirmation.top
        if top is None and session.left < math.inf and speed:
            able = len(ranked(search.verdicts.values()))
            load = _KEPT * max(0.0, session.left) * speed / plan.mean_steps
            top = candidates_within(plan, max(1, able), self.resources.processes, load)
            if top >= min(most, able):
                return None
            ledger.record(candidates=top)
        if top is None:
            return None
        sentence = (
            f"The confirmation has {plural(top, 'candidate')} instead of {most}: --hours has no "
            "time for more."
        )
        self._tell(sentence)
        known = self.folder.provenance.get("notes") or ()
        self.folder.record(notes=list(dict.fromkeys([*known, sentence])))
        return int(top)

    def _speed(self, session: Session) -> float | None:
        """Return steps per second of all workers at work; before the first outcome, as forecast.

        A cluster's workers are not known: there it is what the session has done a second.
        """
        plan, told, meter = session.plan, session.ledger.fact("forecast"), session.meter
        if meter.done and self.resources.cluster is None:
            return meter.capacity(self.resources.processes)
        if meter.speed or told is None or not told["search_minutes"]:
            return meter.speed
        steps = plan.study.n_trials * plan.folds * plan.mean_steps
        return float(steps / (60 * told["search_minutes"]))

    def _search(self, session: Session, mirror: Mirror | None) -> Search:
        plan, ledger = session.plan, session.ledger
        judge = Judge(plan.study, plan.market)
        limit, in_flight = self._limit(ledger), ledger.fact("in_flight")
        search = Search(plan, ledger, session.pool, judge, mirror, limit, in_flight)
        search.on_outcome = session.counting("search")
        rungs = RungLog(plan.study.pruning, self._tell)
        search.on_verdict = lambda one: rungs.look(one, search.stages(one.trial))

        def after() -> float:
            limit, workers, share = search.scheduler.limit, self.resources.processes, math.inf
            if self.resources.hours is not None and (speed := self._speed(session)):
                share = _CONFIRMATION * _KEPT * 3600 * self.resources.hours * speed
            top = ledger.fact("candidates") or candidates_within(
                plan, limit, workers, share / plan.mean_steps
            )
            return load_after(plan, limit, workers, top) * plan.mean_steps

        def look() -> Status:
            return search.status(session, after())

        def tick() -> None:
            session.leave("search")
            self._cut(search, session, after())
            session.tell(look)

        def may_ask() -> bool:
            more = search.remaining_steps(to_come=False) + plan.folds * plan.mean_steps
            if self._fits(session, more + after()):
                return True
            self._tell_cut(session, search, self._budget, "go on to their ends")
            return False

        search.may_ask = may_ask
        session.begin()
        self._logbook.note("phase", f"search: {limit} trials", phase="search", trials=limit)
        search.run(tick)
        session.found = replace(look(), notes=session.found.notes)
        if self.folder.asked_to_cut:  # the search ended by itself meanwhile
            self.folder.forget_stop()
        session.spent("search")
        return search

    def _limit(self, ledger: Ledger) -> int:
        """Trials asked at most: as configured, or where an earlier call cut."""
        cut = ledger.fact("cut")
        if cut is not None and ledger.fact("cut_of") == self.config.n_trials:
            self._tell(f"The search was cut after trial {cut - 1}.")
            return int(cut)
        asked = len(ledger.asks())
        if self.folder.asked_to_cut and asked:  # made while no process ran the study
            ledger.record(cut=asked, cut_of=self.config.n_trials)
            self.folder.forget_stop()
            self._tell(f"The search ends after trial {asked - 1} (`study stop`).")
            return asked
        return self.config.n_trials

    def _fits(self, session: Session, steps: float) -> bool:
        """Return whether the time budget has room for so many steps, if their speed is known."""
        speed = self._speed(session)
        return not speed or session.left * _KEPT * speed > steps

    @property
    def _budget(self) -> str:
        return f"--hours {self.resources.hours:g}, with the confirmation's share kept"

    def _cut(self, search: Search, session: Session, after: float) -> None:
        """Follow `study stop`, and end trials in flight if the confirmation needs their time.

        Before a trial is complete there is nothing to confirm: those in flight have all the time.
        """
        asking = search.scheduler.asked < search.scheduler.limit
        some = any(one.kind == "complete" for one in search.verdicts.values())
        late = not self._fits(session, after) if some else session.left <= 0.0
        if search.scheduler.running and late:
            self._tell_cut(
                session, search, self._budget, f"are cut: {len(search.scheduler.running)}"
            )
            search.end(self._budget)
        elif asking and self.folder.asked_to_cut:
            self._tell_cut(session, search, "`study stop`", "go on to their ends")
            search.cut()

    def _tell_cut(self, session: Session, search: Search, reason: str, become: str) -> None:
        """Record that the search asks no further trial, and what becomes of those in flight."""
        last, line = search.scheduler.asked - 1, f"({reason}); trials in flight {become}."
        line = f"The search ends after trial {last} {line}"
        session.ledger.record(cut_of=self.config.n_trials)
        self.folder.forget_stop()
        self._logbook.note("cut", line, trials=last + 1, reason=reason)
        self.say(line)


_BEFORE_END = 0.9  # of a time budget: tests, storage and the page take the rest
_TRUST = 0.5  # of the forecast's speed: few members at a time are slower than the slice was
_KEPT = 0.8  # of a time budget: what the forecast may use, for speeds vary
_FIRST = 0.8  # of the search's time: the most that trials in flight at its beginning take
_MORE = 1.3  # times the need: what a refusal recommends
_CONFIRMATION = 0.5  # of a time budget: the most that the confirmation keeps from the search


def _sources(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"sources": facts["sources"]} if "sources" in facts else {}
