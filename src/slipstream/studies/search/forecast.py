"""Forecast of a study: duration, memory, disk and detectable effects, before it starts.

A study that memory or disk cannot hold is refused here, before anything is trained.
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
from slipstream.rl.experience.replay.replay_config import replay_bytes
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
# Settings that shorten a study, with their wording; below, settings that reduce its disk usage.
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
_WAL_BYTES = 4 * 2**20  # at which SQLite wraps its log
_DATABASES = 200_000, 3_000  # bytes of both without anything in them; Optuna's of a trial
_POLICY_BYTES = 2_500  # of a policy beside its weights
_REPORT_BYTES = 2_000_000  # a page with its figures
_POLL_SECONDS = 0.5


def check_disk(folder: Path, needs: ResourceEstimate | None = None, suggestion: str = "") -> None:
    """Check that the disk can hold the study.

    Args:
        folder: folder of the study.
        needs: estimated resources; None: only the reserve is checked.
        suggestion: sentences on what would need less.

    Raises:
        ResourceError: with the free and the required bytes.
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
    """Return the free bytes of the disk of a folder, which may not exist yet."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def check_memory(
    plan: StudyPlan,
    spec: EnvSpec,
    observed_bytes: int | None,
    suggestion: str = "",
    memory: int | None = None,
) -> None:
    """Check that a single member and its replay fit in memory; batches are sized to fit.

    Args:
        plan: plan of the study.
        spec: spec of the environment.
        observed_bytes: bytes that a replay may store in place of an observation, see `Environment`.
        suggestion: sentences on what else would need less.
        memory: available bytes; None: the free memory.

    Raises:
        ResourceError: with the size, its largest term and the settings to lower.
    """
    free = free_memory() if memory is None else memory
    terms = max(
        _member_memory_terms(plan, spec, observed_bytes),
        key=lambda member_terms: sum(member_terms.values()),
    )
    alone, main = sum(terms.values()), max(terms, key=lambda name: terms[name])
    if alone > free:
        sizes = (*(AGENT + name for name in plan.base.agent.SIZES), NUM_ENVS)
        suggestions = plan.suggest_sizes(
            sizes, lambda less: _member_bytes(less, spec, observed_bytes) <= free
        )
        raise ResourceError(
            f"One member of the study needs {alone / 2**30:,.1f} GiB with its environments, "
            f"{terms[main] / 2**30:,.1f} GiB of it for {main}, and {free / 2**30:.1f} GiB of "
            f"memory are free. {format_suggestions(suggestions)} {suggestion}".rstrip()
        )


def _member_bytes(plan: StudyPlan, spec: EnvSpec, observed_bytes: int | None) -> int:
    """Return the bytes of the largest member while it is trained."""
    return max(sum(terms.values()) for terms in _member_memory_terms(plan, spec, observed_bytes))


def _member_memory_terms(
    plan: StudyPlan, spec: EnvSpec, observed_bytes: int | None
) -> list[dict[str, int]]:
    """Return the bytes of a member of each sampled config while it is trained, by purpose."""
    terms = []
    for config in plan.sampled_configs:
        member_terms = agent_terms(config.agent, spec, 1, config.num_envs)
        member_terms["replay"] = replay_memory(config, spec, observed_bytes)
        terms.append({f"its {what}": size for what, size in member_terms.items()})
    return terms


def describe_replay(draws: Sequence[RunConfig], kept: int) -> str:
    """Describe the replay capacity of members, lost transitions and disk usage."""
    plans = [plan for config in draws if (plan := config.agent.replay(config.num_envs))]
    most = max(plan.buffer_size for plan in plans)
    text = f"Of it are replays: a member keeps its last {most:,} transitions"
    if most < max(num_steps(config) for config in draws):
        text += ", and learns no more from older ones"
    return (
        f"{text}; it saves all of them, {kept / 2**20:,.1f} MiB at most, at the end of every "
        "stretch. agent.buffer_size sets the number."
    )


def replay_memory(
    config: RunConfig, spec: EnvSpec, observed_bytes: int | None, steps: int | None = None
) -> int:
    """Return the bytes of a member's replay, which is saved with its state.

    Args:
        config: config of the member.
        spec: spec of the environment.
        observed_bytes: see `check_memory`.
        steps: steps after which the replay is measured; None: when it is full.
    """
    plan, n = config.agent.replay(config.num_envs), config.num_envs
    if plan is not None and steps is not None:
        plan = plan._replace(buffer_size=min(plan.buffer_size, steps))
    return 0 if plan is None else replay_bytes(plan, spec, 1, n, observed_bytes)


@dataclass(frozen=True)
class MeasuredSpeed:
    """Speed of a slice of the study on this machine, with the base config.

    Attributes:
        steps_per_second: environment steps of training per second, all members together.
        test_seconds: seconds of a member's segment besides training: batching, scoring, saving.
        backtests: backtest of one member, used for market figures.
        members: number of members trained together.
        phase_shares: shares of the training time by env, policy and update.
        state_bytes: largest state of a member on disk, after `_TIMED_ITERATIONS` iterations.
    """

    steps_per_second: float
    test_seconds: float
    backtests: DailyReturns | None
    members: int
    phase_shares: Mapping[str, float] = field(default_factory=lambda: {"env": 1.0})
    state_bytes: int = 0


@dataclass(frozen=True)
class ResourceEstimate:
    """Estimated resources of a study.

    Attributes:
        search_minutes: mean over the space, without pruning.
        confirm_minutes: minutes of everything after the search.
        memory: bytes with as many members trained at once as possible, without data and libraries.
        on_disk: bytes of the whole folder at its largest, by purpose.
    """

    search_minutes: float
    confirm_minutes: float
    memory: int
    on_disk: Mapping[str, int]

    @property
    def total_minutes(self) -> float:
        """Minutes to the end."""
        return self.search_minutes + self.confirm_minutes

    @property
    def disk(self) -> int:
        """Bytes of the folder."""
        return sum(self.on_disk.values())

    @property
    def largest_on_disk(self) -> tuple[str, int]:
        """The largest item on disk, and its bytes."""
        return max(self.on_disk.items(), key=lambda item: item[1])


@dataclass(frozen=True)
class Forecast:
    """Minutes, bytes and sentences of a forecast.

    Attributes:
        search_minutes: mean over the space, without pruning; less with pruning.
        confirm_minutes: confirmation, final training and hold-out.
        memory_bytes: with as many members trained at once as possible, without data and libraries.
        disk_bytes: whole folder at its largest.
        sentences: for the user.
        warnings: for the user.
        fit_suggestion: settings that would end in time; empty if these settings do.
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
    """Measure the speed of a slice: all concurrent members, one segment or one second of it.

    Time besides the iterations is measured apart, because short iterations end in milliseconds. The
    members of the slice are not part of the study and are discarded.

    Args:
        pool: pool of workers.
        plan: plan of the study.
        tick: called regularly; it may raise to leave.
    """
    count = min(plan.study.max_concurrent_trials, plan.study.n_trials) * plan.num_folds
    slots = [Slot("measure", k // plan.num_folds, 0, k % plan.num_folds) for k in range(count)]
    members = [plan.member(slot, plan.base) for slot in slots]
    _run_segment(
        pool, members, _WARM_UP_ITERATIONS, tick
    )  # with its backtest: what is compiled is not measured
    bare = [replace(member, test=None) for member in members]
    first = _run_segment(pool, bare, _TIMED_ITERATIONS, tick)
    state = max(pool.state_bytes(member.name) for member in members)
    first_milestone = plan.stages(plan.base).milestones[0]  # in iterations
    # 0 if the first segment was long enough.
    more = min(first_milestone, int(_MEASURED_SECONDS / max(first.training, 1e-9)))
    measured = _run_segment(pool, members, _TIMED_ITERATIONS + more, tick)
    for member in members:
        pool.drop(member.name)
    trained = measured if more else first
    steps = count * plan.base.iteration_steps * max(1, more) / max(trained.training, 1e-9)
    work = sum(trained.spent[kind] for kind in _TRAINING_PHASES)
    shares = (
        {kind: trained.spent[kind] / work for kind in _TRAINING_PHASES} if work else {"env": 1.0}
    )
    backtests = next((outcome.backtests for outcome in measured.outcomes), None)
    return MeasuredSpeed(
        steps, (measured.wall - measured.training) / count, backtests, count, shares, state
    )


@dataclass(frozen=True)
class _SegmentTiming:
    """Seconds until all members reached a milestone, and their outcomes."""

    wall: float
    outcomes: list[Outcome]

    @property
    def spent(self) -> dict[str, float]:
        """Seconds of workers, by phase."""
        return {
            kind: sum(outcome.seconds.get(kind, 0.0) for outcome in self.outcomes)
            for kind in SPENT_ON
        }

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
    outcomes: list[Outcome] = []
    while len(outcomes) < len(members):
        tick()
        outcomes += pool.collect(_POLL_SECONDS)
    return _SegmentTiming(time.perf_counter() - began, outcomes)


def num_confirmation_members(
    plan: StudyPlan, trials: int, top: int | None = None
) -> tuple[int, int, int]:
    """Return the numbers of members of the confirmation, the final training and the refit.

    Args:
        plan: plan of the study.
        trials: number of trials of its search.
        top: candidates of the confirmation; default: those of the config.
    """
    study, confirmation = plan.study, plan.study.confirmation
    again = min(top or confirmation.top, trials) * confirmation.seeds * plan.num_folds
    return again, study.final_seeds, int(study.final_refit)


def confirmation_load(plan: StudyPlan, trials: int, workers: int, top: int | None = None) -> float:
    """Return `num_confirmation_members`, weighted by the workers that they leave idle.

    Confirmation, final training and refit run one after another. A worker trains a few members in
    about the time of many, because it trains them together.

    Args:
        plan, trials, top: see `num_confirmation_members`.
        workers: number of processes that train.
    """
    return sum(
        effective_members(count, workers) for count in num_confirmation_members(plan, trials, top)
    )


def max_candidates(plan: StudyPlan, trials: int, workers: int, load: float) -> int:
    """Return the largest number of candidates whose confirmation load is at most `load`.

    Args:
        plan, trials, workers: see `confirmation_load`.
        load: number of members, see `confirmation_load`.

    Returns:
        At least 1, at most the number of the config.
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
    """Forecast the resources of a study.

    Args:
        plan: plan of the study.
        spec: spec of the environment.
        speed: measured speed.
        provenance: metadata of the environment.
        folder: folder of the study.
        observed_bytes: see `check_memory`.
        workers: number of processes; None: one per core.
        hours: time limit for which settings are suggested.

    Raises:
        ResourceError: memory or the disk cannot hold the study.
    """
    study, draws = plan.study, plan.sampled_configs

    def needed(less: StudyPlan) -> ResourceEstimate:
        return estimate_resources(less, spec, observed_bytes, workers, speed)

    estimate = needed(plan)
    fitting = _describe_fit(plan, estimate, needed, hours)
    check_memory(plan, spec, observed_bytes, fitting)
    room = free_disk(folder) - _DISK_RESERVE
    if estimate.disk > room:
        less = plan.suggest_sizes(_DISK_SETTINGS, lambda less_plan: needed(less_plan).disk <= room)
        lean = plan.with_configs(draws, study.model_copy(update={"keep_weights": False}))
        suggestions = [format_suggestions(less)] if less else []
        if study.keep_weights and needed(lean).disk <= room:
            suggestions.append(
                "`--set study.keep_weights=false` is enough too: it keeps no weights of the "
                "search's trials, which nothing reads later."
            )
        check_disk(
            folder, estimate, " ".join((*(suggestions or [format_suggestions(less)]), fitting))
        )
    replay_bytes = max(
        replay_memory(config, spec, observed_bytes, num_steps(config)) for config in draws
    )
    pruning = "; pruning will shorten the search" if study.pruning.enabled else ""
    budgets = sorted({num_steps(config) for config in draws})
    steps = f"{budgets[0]:,} steps"
    if len(budgets) > 1:
        steps = f"{budgets[0]:,} to {budgets[-1]:,} steps, {plan.mean_steps:,.0f} on average"
    size = f"{study.n_trials:,} trials x {plan.num_folds} folds x {steps}"
    measured = f"{speed.steps_per_second:,.0f} steps/s measured"
    base_bytes = plan.base.agent.weight_bytes(spec)
    if any(config.agent.weight_bytes(spec) != base_bytes for config in draws):
        measured += " with the config's own networks, scaled by size"
    sentences = [
        f"Forecast: search {format_minutes(estimate.search_minutes)} ({size}; {measured}), "
        f"confirmation and hold-out {format_minutes(estimate.confirm_minutes)}{pruning}.",
        *([fitting] if fitting else []),
        f"Memory at most {_format_size(estimate.memory)} beside data and libraries, disk about "
        f"{_format_size(estimate.disk)}.",
        *([describe_replay(draws, replay_bytes)] if replay_bytes else []),
        *_describe_updates(plan, provenance),
        *_describe_detectable(plan, speed, provenance),
    ]
    totals = estimate.search_minutes, estimate.confirm_minutes, estimate.memory, estimate.disk
    return Forecast(*totals, tuple(sentences), _warnings(plan), fitting)


def _describe_fit(
    plan: StudyPlan,
    estimate: ResourceEstimate,
    needed: Callable[[StudyPlan], ResourceEstimate],
    hours: float,
) -> str:
    """Describe settings that would end within the hours; empty if these settings do."""
    if estimate.total_minutes <= 60 * hours:
        return ""
    less = plan.suggest_sizes(
        _TIME_SETTINGS, lambda less_plan: needed(less_plan).total_minutes <= 60 * hours
    )
    named = [_TIME_SETTINGS[path].format(most) for path, most in less.items()]
    fits = ", or ".join(named) if named else "none of trials, steps and width is enough alone"
    time_limit, total = format_minutes(60 * hours), format_minutes(estimate.total_minutes)
    return f"For {time_limit}: {fits}; these settings need {total}."


def forecast_other_space(
    name: str, rival: StudyPlan, measured: StudyPlan, spec: EnvSpec, speed: MeasuredSpeed
) -> str:
    """Forecast the search of another space from the measured speed of this study.

    Args:
        name: name of the other space.
        rival: the study with that space.
        measured: the study whose speed was measured.
        spec: spec of the environment.
        speed: measured speed.
    """
    taken = format_minutes(_search_minutes(rival, measured.base, spec, speed))
    sizes = [config.agent.weight_bytes(spec) for config in rival.sampled_configs]
    larger = float(np.mean(sizes)) / measured.base.agent.weight_bytes(spec)
    return (
        f"Forecast of the same search with `--space {name}`: {taken} ({rival.mean_steps:,.0f} "
        f"steps on average, networks {larger:,.3g} times as large as this study's)."
    )


def _update_range(plan: StudyPlan) -> tuple[int, int]:
    """Return the smallest and the largest number of optimizer updates of a member."""
    updates = [
        num_iterations(config) * config.agent.updates(config.num_envs)
        for config in plan.sampled_configs
    ]
    return min(updates), max(updates)


def _describe_updates(plan: StudyPlan, provenance: Mapping[str, Any]) -> list[str]:
    """Describe updates and passes over the training data."""
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
    """Describe the effect that the test data can confirm, and the break-even holding time."""
    market, folds, sentences = plan.market, provenance.get("folds"), list[str]()
    if market is None:
        return sentences
    if folds:
        confirmation = plan.study.confirmation
        candidates = min(confirmation.top, plan.study.n_trials)
        detectable = detectable_sharpe(
            tested_years(folds), candidates, market.days_per_year, confirmation.level
        )
        sentences.append(describe_detectable(detectable))
    trip, bar = mean_round_trip_cost(provenance), mean_bar_move(market, speed, provenance)
    if trip and bar:
        bars = max(1.0, (trip / bar) ** 2)
        held = bars * market.bar_seconds / 3600
        sentences.append(
            f"A round trip costs {trip:.1f} basis points and a bar moves {bar:.1f}: a position "
            f"breaks even against its cost once held about {plural(round(bars), 'bar')} "
            f"({held:,.1f} h)."
        )
    return sentences


def mean_bar_move(
    market: MarketSpec, speed: MeasuredSpeed, provenance: Mapping[str, Any]
) -> float | None:
    """Return the mean move of a bar in basis points, over symbols or from equal weight's days."""
    moves = provenance.get("bar_move")
    if isinstance(moves, Mapping) and moves:
        return float(np.mean(list(moves.values())))
    backtests = speed.backtests
    if backtests is None or len(backtests.benchmark) < 3:
        return None
    daily = float(np.std(backtests.benchmark, ddof=1))
    return 1e4 * daily / math.sqrt(market.bars_per_year / market.days_per_year)


def mean_round_trip_cost(provenance: Mapping[str, Any]) -> float | None:
    """Return the mean cost of a round trip in basis points over symbols; None without prices."""
    costs = provenance.get("round_trip") or {}
    return float(np.mean([cost["basis_points"] for cost in costs.values()])) if costs else None


def _sample_reuse(config: RunConfig) -> float:
    """Return how often a step is used for learning."""
    n = config.num_envs
    return config.agent.updates(n) * config.agent.rows(n) / config.iteration_steps


def _search_minutes(plan: StudyPlan, base: RunConfig, spec: EnvSpec, speed: MeasuredSpeed) -> float:
    """Return the minutes of a search without pruning; `speed` was measured with `base`."""
    train, test = _mean_member_seconds(plan, base, spec, speed)
    stages = len(plan.stages(plan.base).milestones)
    return plan.study.n_trials * plan.num_folds * (train + stages * test) / 60


def _mean_member_seconds(
    plan: StudyPlan, base: RunConfig, spec: EnvSpec, speed: MeasuredSpeed
) -> tuple[float, float]:
    """Return the mean of `_member_seconds` over the space."""
    costs = [_member_seconds(config, base, spec, speed) for config in plan.sampled_configs]
    train, test = (float(np.mean(column)) for column in zip(*costs, strict=True))
    return train, test


def _member_seconds(
    config: RunConfig, base: RunConfig, spec: EnvSpec, speed: MeasuredSpeed
) -> tuple[float, float]:
    """Return seconds of a member's training and of its backtest, scaled from the base config.

    Acting and learning scale with the size of the networks, learning also with the reuse of a step.
    Stepping scales with neither.
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
    """Estimate the resources of a study.

    On disk, every finished member of the search leaves its policy. Running members have a state,
    and every worker writes one more in its place. In the search, all concurrent members have a full
    state, because they wait for each other at rungs. In the confirmation only members in training
    have one; finished members keep their policy. Fixed bytes of a state are taken from the measured
    slice.

    Args:
        plan, spec, observed_bytes: as for `forecast`.
        workers: number of processes; None: one per core.
        speed: measured speed; None: minutes are not estimated.
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
        days = 32 * len(speed.backtests.days) if speed.backtests is not None else 0
        measured = _TIMED_ITERATIONS * plan.base.iteration_steps
        beside = max(0, speed.state_bytes - _state_bytes(plan.base, spec, observed_bytes, measured))
    state = max(
        _state_bytes(config, spec, observed_bytes, num_steps(config))
        + int(beside * max(1.0, config.num_envs / plan.base.num_envs))
        for config in draws
    )
    weights = [config.agent.weight_bytes(spec) for config in draws]
    policy = int(np.mean(weights)) + _POLICY_BYTES
    done = max(weights) + _POLICY_BYTES + max(draw.agent.state_bytes(spec) for draw in draws) // 2
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
    """Return the bytes of a member's networks and replay after `steps` steps."""
    return config.agent.state_bytes(spec) + replay_memory(config, spec, observed_bytes, steps)


def _format_size(value: float) -> str:
    """Format bytes: ``0.4 MiB``, ``85 MiB``, ``3.2 GiB``."""
    if value < 0.1 * 2**30:
        return f"{value / 2**20:.{int(value < 10 * 2**20)}f} MiB"
    return f"{value / 2**30:,.1f} GiB"


def format_minutes(value: float) -> str:
    """Format minutes: ``under 10 s``, ``40 s``, ``12 min``, ``3.4 h``, ``5.2 days``."""
    if value < 1 / 6:
        return "under 10 s"
    if value < 1.5:
        return f"{value * 60:.0f} s"
    if value >= 2880:
        return f"{value / 1440:,.1f} days"
    return f"{value:.0f} min" if value < 120 else f"{value / 60:.3g} h"
