"""What a study will take, and what it can find, said before it starts.

What memory or disk cannot hold is refused here, before anything is trained.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.capacity import free_memory, usable_cores
from slipstream.core.errors import ResourceError
from slipstream.core.text import plural
from slipstream.kernels.spec import EnvSpec, MarketSpec
from slipstream.rl.experience.replay.plan import replay_bytes
from slipstream.studies.record.ledger import Slot
from slipstream.studies.search.study_plan import StudyPlan, num_iterations, num_steps
from slipstream.studies.space import AGENT, NUM_ENVS
from slipstream.studies.statistics.overfitting import (
    describe_detectable,
    detectable_sharpe,
    tested_years,
)
from slipstream.training.population.batches import effective_members, max_members
from slipstream.training.population.member import DailyReturns, Member, Outcome
from slipstream.training.population.member_pool import Pool
from slipstream.training.population.training_segment import SPENT_ON
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.sizing import agent_terms, format_suggestions

DAY_HOURS = 24.0  # hours
_DISK_RESERVE = 256 * 2**20  # bytes that a disk must have left
# What a study may have less of: to end sooner, and how that is told; to take less of a disk.
_TIME_SETTINGS = {
    "study.n_trials": "{:,} trials",
    "training.total_timesteps": "{:,} steps a fold",
    "agent.net_arch": "width {:,}",
}
_DISK_SETTINGS = (
    *("study.n_trials", "study.max_concurrent_trials", "study.confirmation.top"),
    *("study.confirmation.seeds", "agent.net_arch", "agent.buffer_size"),
)
MIN_UPDATES = 50  # optimiser updates per member, below which little is learned
_WARM_UP_ITERATIONS, _TIMED_ITERATIONS = 1, 2  # iterations of the slice before it is measured
_MEASURED_SECONDS = 1.0  # of training, where a stretch of the study takes as long
_TRAINING_PHASES = ("env", "policy", "update")  # phases of training
_OUTCOME_BYTES = 900  # a row of the ledger without its days
_PAGE_BYTES = 4_096  # of SQLite: what is longer than a row's share of one takes whole ones
_WAL_BYTES = 4 * 2**20  # after which SQLite goes on at the beginning of its log
_DATABASES = 200_000, 3_000  # bytes of both without anything in them; Optuna's of a trial
_POLICY_BYTES = 2_500  # of a policy beside its weights
_REPORT_BYTES = 2_000_000  # a page with its figures
_POLL_SECONDS = 0.5


def check_disk(folder: Path, needs: ResourceEstimate | None = None, suggestion: str = "") -> None:
    """Refuses to begin what the disk cannot hold.

    Args:
        folder: of the study.
        needs: what it takes; None: little.
        advice: what would need less, in sentences.

    Raises:
        ResourceError: with what is free and what is needed.
    """
    needed = needs.disk if needs else 0
    free = free_disk(folder)
    if free < needed + _DISK_RESERVE:
        main = (
            f", {needs.largest_on_disk[1] / 2**30:.2f} GiB of it for {needs.largest_on_disk[0]}"
            if needs
            else ""
        )
        raise ResourceError(
            f"The study needs about {(needed + _DISK_RESERVE) / 2**30:.2f} GiB in {folder} (of it "
            f"{_DISK_RESERVE / 2**30:.2f} to spare{main}), and {free / 2**30:.2f} GiB are free "
            "there. "
            f"Free some space, or run it from a folder on another disk. {suggestion}".rstrip()
        )


def free_disk(folder: Path) -> int:
    """Bytes that are free where a folder is, or will be."""
    place = folder
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def check_memory(
    plan: StudyPlan,
    spec: EnvSpec,
    observed_bytes: int | None,
    suggestion: str = "",
    memory: int | None = None,
) -> None:
    """Refuses to begin where a single member does not fit, or its replay: batches are made to.

    Args:
        plan, spec: of the study; observed: bytes that a replay may keep in
            place of an observation, see `Environment`.
        advice: what else would need less, in sentences.
        memory: bytes that it may have; those that are free unless given.

    Raises:
        ResourceError: with the size, its main term and what to lower.
    """
    free = free_memory() if memory is None else memory
    terms = max(_member_memory_terms(plan, spec, observed_bytes), key=lambda one: sum(one.values()))
    alone, main = sum(terms.values()), max(terms, key=lambda name: terms[name])
    if alone > free:
        sizes = (*(AGENT + name for name in plan.base.agent.SIZES), NUM_ENVS)
        found = plan.suggest_sizes(
            sizes, lambda less: _member_bytes(less, spec, observed_bytes) <= free
        )
        raise ResourceError(
            f"One member of the study needs {alone / 2**30:,.1f} GiB with its copies, "
            f"{terms[main] / 2**30:,.1f} GiB of it for {main}, and {free / 2**30:.1f} GiB of "
            f"memory are free. {format_suggestions(found)} {suggestion}".rstrip()
        )


def _member_bytes(plan: StudyPlan, spec: EnvSpec, observed_bytes: int | None) -> int:
    """Of the largest member while it is trained."""
    return max(sum(terms.values()) for terms in _member_memory_terms(plan, spec, observed_bytes))


def _member_memory_terms(
    plan: StudyPlan, spec: EnvSpec, observed_bytes: int | None
) -> list[dict[str, int]]:
    """Bytes of a member of each draw while it is trained, by what takes them."""
    found = []
    for config in plan.sampled_configs:
        own = agent_terms(config.agent, spec, 1, config.num_envs)
        own["replay"] = replay_memory(config, spec, observed_bytes)
        found.append({f"its {what}": size for what, size in own.items()})
    return found


def describe_replay(draws: Sequence[RunConfig], kept: int) -> str:
    """What members keep of their experience, what is lost by that, and what it takes."""
    plans = [plan for config in draws if (plan := config.agent.replay(config.num_envs))]
    most = max(plan.capacity for plan in plans)
    text = f"Of it are replays: a member keeps its last {most:,} transitions"
    if most < max(num_steps(config) for config in draws):
        text += ", and learns no more from older ones"
    return (
        f"{text}; it saves all of them, {kept / 2**20:,.1f} MiB at most, at the end of every "
        "stretch. agent.buffer_size says how many."
    )


def replay_memory(
    config: RunConfig, spec: EnvSpec, observed_bytes: int | None, steps: int | None = None
) -> int:
    """What of it is a replay, which is saved with the member's state; filled by so many steps."""
    plan, n = config.agent.replay(config.num_envs), config.num_envs
    if plan is not None and steps is not None:
        plan = plan._replace(capacity=min(plan.capacity, steps))
    return 0 if plan is None else replay_bytes(plan, spec, 1, n, observed_bytes)


@dataclass(frozen=True)
class MeasuredSpeed:
    """What a slice of the study did on this machine, with the base config.

    Attributes:
        steps: environment steps of training per second, all members together.
        test_seconds: of one member's stretch without its training: it is put together with others,
            scored and saved.
        passes: the pass of one member, for what it says about the market.
        members: how many were trained side by side.
        shares: of the training time by env, policy, update.
        state: bytes on the disk of the member that had most there, after `_FIRST` iterations.
    """

    steps_per_second: float
    test_seconds: float
    passes: DailyReturns | None
    members: int
    phase_shares: Mapping[str, float] = field(default_factory=lambda: {"env": 1.0})
    state_bytes: int = 0


@dataclass(frozen=True)
class ResourceEstimate:
    """What a study takes.

    Attributes:
        search, confirm: minutes: the mean over the space, without pruning; of all after the search.
        memory: bytes if as many as can be are trained at once; data and libraries come on top.
        on_disk: bytes of the whole folder at its largest, by what takes them.
    """

    search_minutes: float
    confirm_minutes: float
    memory: int
    on_disk: Mapping[str, int]

    @property
    def total_minutes(self) -> float:
        """To the end."""
        return self.search_minutes + self.confirm_minutes

    @property
    def disk(self) -> int:
        """Bytes of the folder."""
        return sum(self.on_disk.values())

    @property
    def largest_on_disk(self) -> tuple[str, int]:
        """What takes most of the disk, and its bytes."""
        return max(self.on_disk.items(), key=lambda one: one[1])


@dataclass(frozen=True)
class Forecast:
    """Minutes, bytes and sentences.

    Attributes:
        search_minutes: without pruning, for the mean over the space; with pruning less.
        confirm_minutes: confirmation, final training and hold-out.
        memory_bytes: if as many as can be are trained at once; data and libraries come on top.
        disk_bytes: of the whole folder at its largest.
        sentences: for the user.
        fitting: of them what would end in time, where these settings do not; else empty.
        warnings: for the user, to be heeded.
    """

    search_minutes: float
    confirm_minutes: float
    memory_bytes: int
    disk_bytes: int
    sentences: tuple[str, ...]
    warnings: tuple[str, ...]
    fit_suggestion: str = ""


def measure_speed(
    pool: Pool, plan: StudyPlan, tick: Callable[[], None] = lambda: None
) -> MeasuredSpeed:
    """Trains a slice: as many members as the study has in flight, a stretch or a second of one.

    What a stretch takes beside its iterations is told apart: short iterations are over in
    milliseconds. Its members are none of the study's and are forgotten.

    Args:
        pool, plan: of the study.
        tick: called now and then; it may raise to leave.
    """
    count = min(plan.study.max_concurrent_trials, plan.study.n_trials) * plan.num_folds
    slots = [Slot("measure", k // plan.num_folds, 0, k % plan.num_folds) for k in range(count)]
    members = [plan.member(slot, plan.base) for slot in slots]
    _run_segment(
        pool, members, _WARM_UP_ITERATIONS, tick
    )  # with its test pass: what is compiled is not measured
    bare = [replace(member, test=None) for member in members]
    first = _run_segment(pool, bare, _TIMED_ITERATIONS, tick)
    state = max(pool.state_bytes(member.name) for member in members)
    own = plan.stages(plan.base).milestones[0]  # iterations of the study's first stretches
    more = min(own, int(_MEASURED_SECONDS / max(first.training, 1e-9)))  # 0: one was long enough
    found = _run_segment(pool, members, _TIMED_ITERATIONS + more, tick)
    for member in members:
        pool.drop(member.name)
    trained = found if more else first
    steps = count * plan.base.iteration_steps * max(1, more) / max(trained.training, 1e-9)
    work = sum(trained.spent[kind] for kind in _TRAINING_PHASES)
    shares = (
        {kind: trained.spent[kind] / work for kind in _TRAINING_PHASES} if work else {"env": 1.0}
    )
    passes = next((one.passes for one in found.outcomes), None)
    return MeasuredSpeed(steps, (found.wall - found.training) / count, passes, count, shares, state)


@dataclass(frozen=True)
class _SegmentTiming:
    """Members that went on to a milestone: seconds until all were there, and what came of them."""

    wall: float
    outcomes: list[Outcome]

    @property
    def spent(self) -> dict[str, float]:
        """Workers' seconds, by kind."""
        return {kind: sum(one.seconds.get(kind, 0.0) for one in self.outcomes) for kind in SPENT_ON}

    @property
    def training(self) -> float:
        """Seconds of `wall` in which workers trained."""
        spent = self.spent
        total = sum(spent.values())
        return (
            self.wall * sum(spent[kind] for kind in _TRAINING_PHASES) / total
            if total
            else self.wall
        )


def _run_segment(
    pool: Pool, members: list[Member], milestone: int, tick: Callable[[], None]
) -> _SegmentTiming:
    began = time.perf_counter()
    pool.submit(members, [milestone] * len(members))
    found: list[Outcome] = []
    while len(found) < len(members):
        tick()
        found += pool.collect(_POLL_SECONDS)
    return _SegmentTiming(time.perf_counter() - began, found)


def num_confirmation_members(
    plan: StudyPlan, trials: int, top: int | None = None
) -> tuple[int, int, int]:
    """Return the members of confirmation, final training and refit after so many trials.

    Args:
        plan: of the study; trials: of its search.
        top: candidates of the confirmation; those of the config by default.
    """
    study, confirmation = plan.study, plan.study.confirmation
    again = min(top or confirmation.top, trials) * confirmation.seeds * plan.num_folds
    return again, study.final_seeds, int(study.final_refit)


def confirmation_load(plan: StudyPlan, trials: int, workers: int, top: int | None = None) -> float:
    """Return the members of `confirm_members`, weighted by how many workers they leave idle.

    The confirmation, the final training and the refit follow each other. A few members are one
    worker's batch, so each of them takes as long as several do side by side.

    Args:
        plan, trials, top: see `confirm_members`.
        workers: processes that train.
    """
    return sum(
        effective_members(each, workers) for each in num_confirmation_members(plan, trials, top)
    )


def max_candidates(plan: StudyPlan, trials: int, workers: int, load: float) -> int:
    """Return the most candidates whose confirmation, with all after it, is at most such a load.

    Args:
        plan, trials, workers: see `load_after`.
        load: members.

    Returns:
        At least 1, at most those of the config.
    """
    most = min(plan.study.confirmation.top, trials)
    fits = [
        top for top in range(1, most + 1) if confirmation_load(plan, trials, workers, top) <= load
    ]
    return max(fits, default=1)


def forecast(
    plan: StudyPlan,
    spec: EnvSpec,
    speed: MeasuredSpeed,
    provenance: Mapping[str, Any],
    folder: Path,
    observed_bytes: int | None = None,
    workers: int | None = None,
    hours: float = DAY_HOURS,
) -> Forecast:
    """Adds it up.

    Args:
        plan, spec, speed, provenance, folder: of the study.
        observed: bytes that a replay may keep in place of an observation, see `Environment`.
        workers: processes; None: one per core.
        hours: for which it says what would fit, where these settings do not.

    Raises:
        ResourceError: memory or the disk cannot hold it.
    """
    study, draws = plan.study, plan.sampled_configs

    def needed(less: StudyPlan) -> ResourceEstimate:
        return estimate_resources(less, spec, observed_bytes, workers, speed)

    found = needed(plan)
    fitting = _describe_fit(plan, found, needed, hours)
    check_memory(plan, spec, observed_bytes, fitting)
    room = free_disk(folder) - _DISK_RESERVE
    if found.disk > room:
        less = plan.suggest_sizes(_DISK_SETTINGS, lambda one: needed(one).disk <= room)
        lean = plan.with_configs(draws, study.model_copy(update={"keep_weights": False}))
        ways = [format_suggestions(less)] if less else []
        if study.keep_weights and needed(lean).disk <= room:
            ways.append(
                "`--set study.keep_weights=false` is enough too: it keeps no weights of the "
                "search's trials, which nothing reads later."
            )
        check_disk(folder, found, " ".join((*(ways or [format_suggestions(less)]), fitting)))
    kept = max(replay_memory(config, spec, observed_bytes, num_steps(config)) for config in draws)
    pruning = "; pruning will shorten the search" if study.pruning.enabled else ""
    budgets = sorted({num_steps(config) for config in draws})
    steps = f"{budgets[0]:,} steps"
    if len(budgets) > 1:
        steps = f"{budgets[0]:,} to {budgets[-1]:,} steps, {plan.mean_steps:,.0f} on average"
    size = f"{study.n_trials:,} trials x {plan.num_folds} folds x {steps}"
    measured = f"{speed.steps_per_second:,.0f} steps/s measured"
    own = plan.base.agent.weight_bytes(spec)
    if any(config.agent.weight_bytes(spec) != own for config in draws):
        measured += " with the config's own networks, scaled by size"
    sentences = [
        f"Forecast: search {format_minutes(found.search_minutes)} ({size}; {measured}), "
        f"confirmation to hold-out {format_minutes(found.confirm_minutes)}{pruning}.",
        *([fitting] if fitting else []),
        f"Memory at most {_format_size(found.memory)} beside data and libraries, disk about "
        f"{_format_size(found.disk)}.",
        *([describe_replay(draws, kept)] if kept else []),
        *_describe_updates(plan, provenance),
        *_describe_detectable(plan, speed, provenance),
    ]
    told = found.search_minutes, found.confirm_minutes, found.memory, found.disk
    return Forecast(*told, tuple(sentences), _warnings(plan), fitting)


def _describe_fit(
    plan: StudyPlan,
    found: ResourceEstimate,
    needed: Callable[[StudyPlan], ResourceEstimate],
    hours: float,
) -> str:
    """What would end within so many hours, where these settings do not."""
    if found.total_minutes <= 60 * hours:
        return ""
    less = plan.suggest_sizes(_TIME_SETTINGS, lambda one: needed(one).total_minutes <= 60 * hours)
    named = [_TIME_SETTINGS[path].format(most) for path, most in less.items()]
    fits = ", or ".join(named) if named else "none of trials, steps and width is enough alone"
    time_limit, total = format_minutes(60 * hours), format_minutes(found.total_minutes)
    return f"For {time_limit}: {fits}; these settings need {total}."


def forecast_other_space(
    name: str, rival: StudyPlan, measured: StudyPlan, spec: EnvSpec, speed: MeasuredSpeed
) -> str:
    """What the search of another space would take, from the speed of this study's slice.

    Args:
        name: of the space; rival: the study with it; measured, spec, speed: of the study itself.
    """
    taken = format_minutes(_search_minutes(rival, measured.base, spec, speed))
    sizes = [config.agent.weight_bytes(spec) for config in rival.sampled_configs]
    larger = float(np.mean(sizes)) / measured.base.agent.weight_bytes(spec)
    return (
        f"Forecast of the same search with `--space {name}`: {taken} ({rival.mean_steps:,.0f} "
        f"steps on average, networks {larger:,.3g} times as large as this study's)."
    )


def _update_range(plan: StudyPlan) -> tuple[int, int]:
    """Fewest and most optimiser updates that a member makes."""
    each = [
        num_iterations(config) * config.agent.updates(config.num_envs)
        for config in plan.sampled_configs
    ]
    return min(each), max(each)


def _describe_updates(plan: StudyPlan, provenance: Mapping[str, Any]) -> list[str]:
    """Updates and passes over the data."""
    least, most = _update_range(plan)
    text = f"Each member makes {least:,}{f' to {most:,}' * (most > least)} updates"
    folds = (provenance.get("folds") or {}).get("folds") or []
    bars = [fold["train_bars"] for fold in folds if fold.get("train_bars")]
    if bars:
        text += f" and {plan.mean_steps / float(np.mean(bars)):.1f} passes over its training bars"
    return [f"{text}."]


def _warnings(plan: StudyPlan) -> tuple[str, ...]:
    least, most = _update_range(plan)
    if least >= MIN_UPDATES:
        return ()
    lengths = (NUM_ENVS, *(AGENT + name for name in plan.base.agent.LENGTHS))
    return (
        f"{'Some' if most > least else 'Each'} member makes only {least} updates; below "
        f"{MIN_UPDATES} little is learned. Raise training.total_timesteps, or lower "
        f"{' or '.join(lengths)}.",
    )


def _describe_detectable(
    plan: StudyPlan, speed: MeasuredSpeed, provenance: Mapping[str, Any]
) -> list[str]:
    """The effect that the test data can show, and how long a position must be held to pay."""
    market, folds, found = plan.market, provenance.get("folds"), list[str]()
    if market is None:
        return found
    if folds:
        confirmation = plan.study.confirmation
        candidates = min(confirmation.top, plan.study.n_trials)
        told = detectable_sharpe(
            tested_years(folds), candidates, market.days_per_year, confirmation.level
        )
        found.append(describe_detectable(told))
    trip, bar = mean_round_trip_cost(provenance), mean_bar_move(market, speed, provenance)
    if trip and bar:
        bars = max(1.0, (trip / bar) ** 2)
        held = bars * market.bar_seconds / 3600
        found.append(
            f"A round trip costs {trip:.1f} basis points and a bar moves {bar:.1f}: a position "
            f"breaks even against its cost once held about {plural(round(bars), 'bar')} "
            f"({held:,.1f} h)."
        )
    return found


def mean_bar_move(
    market: MarketSpec, speed: MeasuredSpeed, provenance: Mapping[str, Any]
) -> float | None:
    """Basis points by which a bar moves: the mean of symbols, or by equal weight's days."""
    moves = provenance.get("bar_move")
    if isinstance(moves, Mapping) and moves:
        return float(np.mean(list(moves.values())))
    passes = speed.passes
    if passes is None or len(passes.benchmark) < 3:
        return None
    daily = float(np.std(passes.benchmark, ddof=1))
    return 1e4 * daily / math.sqrt(market.bars_per_year / market.days_per_year)


def mean_round_trip_cost(provenance: Mapping[str, Any]) -> float | None:
    """Basis points that buying and selling costs, the mean over symbols; None without prices."""
    found = provenance.get("round_trip") or {}
    return float(np.mean([one["basis_points"] for one in found.values()])) if found else None


def _sample_reuse(config: RunConfig) -> float:
    """How often a member learns from a step."""
    n = config.num_envs
    return config.agent.updates(n) * config.agent.rows(n) / config.iteration_steps


def _search_minutes(plan: StudyPlan, base: RunConfig, spec: EnvSpec, speed: MeasuredSpeed) -> float:
    """Of a search without pruning; `speed` is what `base` did."""
    train, test = _mean_member_seconds(plan, base, spec, speed)
    stages = len(plan.stages(plan.base).milestones)
    return plan.study.n_trials * plan.num_folds * (train + stages * test) / 60


def _mean_member_seconds(
    plan: StudyPlan, base: RunConfig, spec: EnvSpec, speed: MeasuredSpeed
) -> tuple[float, float]:
    """Mean of `_seconds` over the space."""
    costs = [_member_seconds(config, base, spec, speed) for config in plan.sampled_configs]
    train, test = (float(np.mean(column)) for column in zip(*costs, strict=True))
    return train, test


def _member_seconds(
    config: RunConfig, base: RunConfig, spec: EnvSpec, speed: MeasuredSpeed
) -> tuple[float, float]:
    """Seconds of a member's training and of its test pass, from what the base config's took.

    Acting and learning cost by the networks' numbers, learning by a step's uses too, stepping
    neither.
    """
    work = config.agent.weight_bytes(spec) / base.agent.weight_bytes(spec)
    reuse = _sample_reuse(config) / _sample_reuse(base)
    env, policy, update = (speed.phase_shares.get(kind, 0.0) for kind in _TRAINING_PHASES)
    step = env + policy * work + update * work * reuse
    test = (env + policy * work) / (env + policy) if env + policy > 0 else 1.0
    return num_steps(config) / speed.steps_per_second * step, speed.test_seconds * test


def estimate_resources(
    plan: StudyPlan,
    spec: EnvSpec,
    observed_bytes: int | None,
    workers: int | None = None,
    speed: MeasuredSpeed | None = None,
) -> ResourceEstimate:
    """What a study takes.

    On the disk, every finished member of the search leaves its policy; members under way have a
    state, and every worker writes one more in its place. In the search all that are in flight have
    a whole one, for they wait for each other at rungs; in the confirmation those that are being
    trained, and of who is done what acts. What a state has beside networks and replay is as the
    slice's members had it.

    Args:
        plan, spec, observed: as for `forecast`.
        workers: processes; None: one per core.
        speed: None where minutes are not asked for.
    """
    study, draws, count = plan.study, plan.sampled_configs, plan.study.n_trials
    searched, confirmed = count * plan.num_folds, sum(num_confirmation_members(plan, count))
    in_flight = min(study.max_concurrent_trials, count) * plan.num_folds
    alone = _member_bytes(plan, spec, observed_bytes)
    processes = min(workers or usable_cores(), in_flight)
    together = (workers or usable_cores()) * max_members(alone)
    search = confirm = days = beside = 0.0
    stages = len(plan.stages(plan.base).milestones)
    if speed is not None:
        train, test = _mean_member_seconds(plan, plan.base, spec, speed)
        search = _search_minutes(plan, plan.base, spec, speed)
        confirm = confirmation_load(plan, count, workers or usable_cores()) * (train + test) / 60
        days = 32 * len(speed.passes.days) if speed.passes is not None else 0
        measured = _TIMED_ITERATIONS * plan.base.iteration_steps
        beside = max(0, speed.state_bytes - _state_bytes(plan.base, spec, observed_bytes, measured))
    state = max(
        _state_bytes(config, spec, observed_bytes, num_steps(config))
        + int(beside * max(1.0, config.num_envs / plan.base.num_envs))
        for config in draws
    )
    weights = [config.agent.weight_bytes(spec) for config in draws]
    policy = int(np.mean(weights)) + _POLICY_BYTES
    done = max(weights) + _POLICY_BYTES + max(one.agent.state_bytes(spec) for one in draws) // 2
    trained = min(together, confirmed)

    def kept(members: int, finals: int = 0) -> dict[str, int]:
        members = members * study.keep_weights + finals
        return {f"the weights of {members:,} members": members * policy}

    searching = f"states of {in_flight:,} members in flight (study.max_concurrent_trials x folds)"
    confirming = (
        f"states of {confirmed:,} members of the confirmation (top x seeds x folds), of which "
        f"{trained:,} are trained at a time"
    )
    finals = study.final_seeds + int(study.final_refit)
    phases: list[dict[str, int]] = [
        {searching: (in_flight + processes) * state, **kept(searched - in_flight)},
        {
            confirming: (trained + processes) * state + (confirmed - trained) * done,
            **kept(searched),
        },
        {"the report": _REPORT_BYTES, **kept(searched, finals)},
    ]
    row = _OUTCOME_BYTES + _PAGE_BYTES * math.ceil(days / _PAGE_BYTES)
    rows = (searched * stages + confirmed) * row
    empty, trial = _DATABASES
    largest = max(phases, key=lambda phase: sum(phase.values()))
    disk = {**largest, "results": rows + min(rows, _WAL_BYTES) + empty + count * trial}
    memory = min(together, max(in_flight, confirmed)) * alone
    return ResourceEstimate(search, confirm, memory, disk)


def _state_bytes(config: RunConfig, spec: EnvSpec, observed_bytes: int | None, steps: int) -> int:
    """Bytes of a member's networks and of its replay after so many steps, as its state has them."""
    return config.agent.state_bytes(spec) + replay_memory(config, spec, observed_bytes, steps)


def _format_size(value: float) -> str:
    """``0.4 MiB``, ``85 MiB``, ``3.2 GiB``."""
    if value < 0.1 * 2**30:
        return f"{value / 2**20:.{int(value < 10 * 2**20)}f} MiB"
    return f"{value / 2**30:,.1f} GiB"


def format_minutes(value: float) -> str:
    """``under 10 s``, ``40 s``, ``12 min``, ``3.4 h``, ``5.2 days``."""
    if value < 1 / 6:
        return "under 10 s"
    if value < 1.5:
        return f"{value * 60:.0f} s"
    if value >= 2880:
        return f"{value / 1440:,.1f} days"
    return f"{value:.0f} min" if value < 120 else f"{value / 60:.3g} h"
