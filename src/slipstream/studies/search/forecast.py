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
import psutil

from slipstream.core.errors import ResourceError
from slipstream.core.spec import MarketSpec, Spec
from slipstream.experience.replay.plan import replay_bytes
from slipstream.market.finding import plural
from slipstream.settings.config import RunConfig
from slipstream.studies.engine.member import DailyReturns, Member, Outcome
from slipstream.studies.engine.pool import Pool
from slipstream.studies.record.ledger import Slot
from slipstream.studies.search.plan import StudyPlan, iterations, steps_of
from slipstream.studies.space.settings import AGENT, NUM_ENVS
from slipstream.studies.statistics.overfitting import findable, findable_sentence, tested_years

_SPARE = 256 * 2**20  # bytes that a disk must have left
MIN_UPDATES = 50  # optimiser updates per member, below which little is learned
_WARM, _MEASURED = 1, 2  # milestones of the measured slice
_WORK = ("env", "policy", "update")  # phases of training
_OUTCOME_BYTES = 600  # a row of the ledger without its days
_POLL_SECONDS = 0.5


def check_disk(folder: Path, needed: int) -> None:
    """Refuses to begin what the disk cannot hold.

    Raises:
        ResourceError: with what is free and what is needed.
    """
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed + _SPARE:
        raise ResourceError(
            f"The study needs about {(needed + _SPARE) / 2**30:.2f} GiB in {folder} (of it "
            f"{_SPARE / 2**30:.2f} to spare), and {free / 2**30:.2f} GiB are free there. Free some "
            "space, run it from a folder on another disk, or lower --n-trials (of an agent with a "
            "replay, agent.replay_size)."
        )


def check_memory(plan: StudyPlan, spec: Spec, observed: int | None) -> None:
    """Refuses to begin where a single member does not fit, or its replay: batches are made to.

    Args:
        plan, spec: of the study; observed: bytes that a replay may keep in
            place of an observation, see `Environment`.

    Raises:
        ResourceError: with the size and what to lower.
    """
    free = psutil.virtual_memory().available
    kept = max(kept_bytes(config, spec, observed) for config in plan.draws)
    if kept > free:
        raise ResourceError(
            f"The replay of one member needs {kept / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB of "
            "memory are free. Lower agent.replay_size (or its range in study.space)."
        )
    alone = max(config.agent.bytes(spec, 1, config.num_envs) for config in plan.draws) + kept
    if alone > free:
        raise ResourceError(
            f"One member of the study needs {alone / 2**30:,.1f} GiB with its copies, and "
            f"{free / 2**30:.1f} GiB of memory are free. Lower training.num_envs or the sizes of "
            "the agent (or their ranges in study.space)."
        )


def kept_sentence(draws: Sequence[RunConfig], kept: int) -> str:
    """What members keep of their experience, what is lost by that, and what it takes."""
    plans = [plan for config in draws if (plan := config.agent.replay(config.num_envs))]
    most = max(plan.capacity for plan in plans)
    text = f"Of it are replays: a member keeps its last {most:,} transitions"
    if most < max(steps_of(config) for config in draws):
        text += ", and learns no more from older ones"
    return (
        f"{text}; it saves all of them, {kept / 2**20:,.1f} MiB at most, at the end of every "
        "stretch. agent.replay_size says how many."
    )


def kept_bytes(config: RunConfig, spec: Spec, observed: int | None) -> int:
    """What of it is a replay, which is saved with the member's state."""
    plan, n = config.agent.replay(config.num_envs), config.num_envs
    return 0 if plan is None else replay_bytes(plan, spec, 1, n, observed)


@dataclass(frozen=True)
class SliceSpeed:
    """What a slice of the study did on this machine, with the base config.

    Attributes:
        steps: environment steps of training per second, all members together.
        test_seconds: of one member's test pass, when tested beside others.
        passes: the pass of one member, for what it says about the market.
        members: how many were trained side by side.
        shares: of the training time by env, policy, update.
    """

    steps: float
    test_seconds: float
    passes: DailyReturns | None
    members: int
    shares: Mapping[str, float] = field(default_factory=lambda: {"env": 1.0})


@dataclass(frozen=True)
class Forecast:
    """Minutes, bytes and sentences.

    Attributes:
        search_minutes: without pruning, for the mean over the space; with pruning less.
        confirm_minutes: confirmation, final training and hold-out.
        memory_bytes: if all in flight were trained at once; data and libraries come on top.
        disk_bytes: of the whole folder at its largest.
        sentences: for the user.
        warnings: for the user, to be heeded.
    """

    search_minutes: float
    confirm_minutes: float
    memory_bytes: int
    disk_bytes: int
    sentences: tuple[str, ...]
    warnings: tuple[str, ...]


def measure(pool: Pool, plan: StudyPlan, tick: Callable[[], None] = lambda: None) -> SliceSpeed:
    """Trains a slice: as many members as the study has in flight, two iterations, one test pass.

    Its members are none of the study's and are forgotten.

    Args:
        pool, plan: of the study.
        tick: called now and then; it may raise to leave.
    """
    count = min(plan.study.trials_in_flight, plan.study.n_trials) * plan.folds
    slots = [Slot("measure", k // plan.folds, 0, k % plan.folds) for k in range(count)]
    members = [plan.member(slot, plan.base) for slot in slots]
    _until(pool, members, _WARM, tick)  # with its test pass: what is compiled once is not measured
    began = time.perf_counter()
    trained = _until(pool, [replace(member, test=None) for member in members], _MEASURED, tick)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    tested = _until(pool, members, _MEASURED, tick)
    test_seconds = (time.perf_counter() - began) / count
    for member in members:
        pool.drop(member.name)
    steps = count * plan.base.iteration_steps * (_MEASURED - _WARM) / max(seconds, 1e-9)
    spent = {kind: sum(one.seconds.get(kind, 0.0) for one in trained) for kind in _WORK}
    total = sum(spent.values())
    shares = {kind: value / total for kind, value in spent.items()} if total else {"env": 1.0}
    passes = next((one.passes for one in tested), None)
    return SliceSpeed(steps, test_seconds, passes, count, shares)


def _until(
    pool: Pool, members: list[Member], milestone: int, tick: Callable[[], None]
) -> list[Outcome]:
    pool.submit(members, [milestone] * len(members))
    found: list[Outcome] = []
    while len(found) < len(members):
        tick()
        found += pool.collect(_POLL_SECONDS)
    return found


def confirm_members(plan: StudyPlan, trials: int) -> int:
    """Members that are trained after a search with so many trials."""
    confirmation = plan.study.confirmation
    again = min(confirmation.top, trials) * confirmation.seeds * plan.folds
    return again + plan.study.final_seeds + int(plan.study.final_refit)


def forecast(
    plan: StudyPlan,
    spec: Spec,
    speed: SliceSpeed,
    provenance: Mapping[str, Any],
    folder: Path,
    observed: int | None = None,
) -> Forecast:
    """Adds it up.

    Args:
        plan, spec, speed, provenance, folder: of the study.
        observed: bytes that a replay may keep in place of an observation, see `Environment`.

    Raises:
        ResourceError: the disk cannot hold it.
    """
    study, draws = plan.study, plan.draws
    confirmed = confirm_members(plan, study.n_trials)
    train, test = _mean_seconds(plan, plan.base, spec, speed)
    search = _search_minutes(plan, plan.base, spec, speed)
    confirm = confirmed * (train + test) / 60
    kept = max(kept_bytes(config, spec, observed) for config in draws)
    alone = max(config.agent.bytes(spec, 1, config.num_envs) for config in draws)
    memory = speed.members * (alone + kept)
    disk = _disk(plan, spec, speed.passes, kept)
    check_disk(folder, disk)
    pruning = "; pruning will shorten the search" if study.pruning.enabled else ""
    budgets = sorted({steps_of(config) for config in draws})
    steps = f"{budgets[0]:,} steps"
    if len(budgets) > 1:
        steps = f"{budgets[0]:,} to {budgets[-1]:,} steps, {plan.mean_steps:,.0f} on average"
    size = f"{study.n_trials:,} trials x {plan.folds} folds x {steps}"
    measured = f"{speed.steps:,.0f} steps/s measured"
    own = plan.base.agent.weight_bytes(spec)
    if any(config.agent.weight_bytes(spec) != own for config in draws):
        measured += " with the config's own networks, scaled by size"
    sentences = [
        f"Forecast: search {minutes(search)} ({size}; {measured}), "
        f"confirmation to hold-out {minutes(confirm)}{pruning}.",
        f"Memory at most {memory / 2**30:.1f} GiB beside data and libraries, "
        f"disk about {disk / 2**30:.2f} GiB.",
        *([kept_sentence(draws, kept)] if kept else []),
        *_learning(plan, provenance),
        *_findable(plan, speed, provenance),
    ]
    return Forecast(search, confirm, memory, disk, tuple(sentences), _warnings(plan))


def rival_sentence(
    name: str, rival: StudyPlan, measured: StudyPlan, spec: Spec, speed: SliceSpeed
) -> str:
    """What the search of another space would take, from the speed of this study's slice.

    Args:
        name: of the space; rival: the study with it; measured, spec, speed: of the study itself.
    """
    taken = minutes(_search_minutes(rival, measured.base, spec, speed))
    sizes = [config.agent.weight_bytes(spec) for config in rival.draws]
    larger = float(np.mean(sizes)) / measured.base.agent.weight_bytes(spec)
    return (
        f"Forecast of the same search with `--space {name}`: {taken} ({rival.mean_steps:,.0f} "
        f"steps on average, networks {larger:,.3g} times as large as this study's)."
    )


def _updates(plan: StudyPlan) -> tuple[int, int]:
    """Fewest and most optimiser updates that a member makes."""
    each = [iterations(config) * config.agent.updates(config.num_envs) for config in plan.draws]
    return min(each), max(each)


def _learning(plan: StudyPlan, provenance: Mapping[str, Any]) -> list[str]:
    """Updates and passes over the data."""
    least, most = _updates(plan)
    text = f"Each member makes {least:,}{f' to {most:,}' * (most > least)} updates"
    folds = (provenance.get("folds") or {}).get("folds") or []
    bars = [fold["train_bars"] for fold in folds if fold.get("train_bars")]
    if bars:
        text += f" and {plan.mean_steps / float(np.mean(bars)):.1f} passes over its training bars"
    return [f"{text}."]


def _warnings(plan: StudyPlan) -> tuple[str, ...]:
    least, most = _updates(plan)
    if least >= MIN_UPDATES:
        return ()
    lengths = (NUM_ENVS, *(AGENT + name for name in plan.base.agent.LENGTHS))
    return (
        f"{'Some' if most > least else 'Each'} member makes only {least} updates; below "
        f"{MIN_UPDATES} little is learned. Raise training.total_steps, or lower "
        f"{' or '.join(lengths)}.",
    )


def _findable(plan: StudyPlan, speed: SliceSpeed, provenance: Mapping[str, Any]) -> list[str]:
    """The effect that the test data can show, and how long a position must be held to pay."""
    market, folds, found = plan.market, provenance.get("folds"), list[str]()
    if market is None:
        return found
    if folds:
        confirmation = plan.study.confirmation
        candidates = min(confirmation.top, plan.study.n_trials)
        told = findable(tested_years(folds), candidates, market.days_per_year, confirmation.level)
        found.append(findable_sentence(told))
    trip, bar = round_trip(provenance), bar_move(market, speed, provenance)
    if trip and bar:
        bars = max(1.0, (trip / bar) ** 2)
        held = bars * market.bar_seconds / 3600
        found.append(
            f"A round trip costs {trip:.1f} basis points and a bar moves {bar:.1f}: a position "
            f"breaks even against its cost once held about {plural(round(bars), 'bar')} "
            f"({held:,.1f} h)."
        )
    return found


def bar_move(market: MarketSpec, speed: SliceSpeed, provenance: Mapping[str, Any]) -> float | None:
    """Basis points by which a bar moves: the mean of symbols, or by equal weight's days."""
    moves = provenance.get("bar_move")
    if isinstance(moves, Mapping) and moves:
        return float(np.mean(list(moves.values())))
    passes = speed.passes
    if passes is None or len(passes.benchmark) < 3:
        return None
    daily = float(np.std(passes.benchmark, ddof=1))
    return 1e4 * daily / math.sqrt(market.bars_per_year / market.days_per_year)


def round_trip(provenance: Mapping[str, Any]) -> float | None:
    """Basis points that buying and selling costs, the mean over symbols; None without prices."""
    found = provenance.get("round_trip") or {}
    return float(np.mean([one["basis_points"] for one in found.values()])) if found else None


def _reuse(config: RunConfig) -> float:
    """How often a member learns from a step."""
    n = config.num_envs
    return config.agent.updates(n) * config.agent.rows(n) / config.iteration_steps


def _search_minutes(plan: StudyPlan, base: RunConfig, spec: Spec, speed: SliceSpeed) -> float:
    """Of a search without pruning; `speed` is what `base` did."""
    train, test = _mean_seconds(plan, base, spec, speed)
    stages = len(plan.stages(plan.base).milestones)
    return plan.study.n_trials * plan.folds * (train + stages * test) / 60


def _mean_seconds(
    plan: StudyPlan, base: RunConfig, spec: Spec, speed: SliceSpeed
) -> tuple[float, float]:
    """Mean of `_seconds` over the space."""
    costs = [_seconds(config, base, spec, speed) for config in plan.draws]
    train, test = (float(np.mean(column)) for column in zip(*costs, strict=True))
    return train, test


def _seconds(
    config: RunConfig, base: RunConfig, spec: Spec, speed: SliceSpeed
) -> tuple[float, float]:
    """Seconds of a member's training and of its test pass, from what the base config's took.

    Acting and learning cost by the networks' numbers, learning by a step's uses too, stepping
    neither.
    """
    work = config.agent.weight_bytes(spec) / base.agent.weight_bytes(spec)
    reuse = _reuse(config) / _reuse(base)
    env, policy, update = (speed.shares.get(kind, 0.0) for kind in _WORK)
    step = env + policy * work + update * work * reuse
    test = (env + policy * work) / (env + policy) if env + policy > 0 else 1.0
    return steps_of(config) / speed.steps * step, speed.test_seconds * test


def _disk(plan: StudyPlan, spec: Spec, passes: DailyReturns | None, kept: int) -> int:
    """The folder at its largest: final weights, live states (with replays `kept`), ledger."""
    study = plan.study
    sizes = [config.agent.weight_bytes(spec) for config in plan.draws]
    members = study.n_trials * plan.folds + confirm_members(plan, study.n_trials)
    observation = 4 * int(np.prod(spec.observation_shape))
    live = max(study.trials_in_flight * plan.folds, confirm_members(plan, study.n_trials))
    days = 32 * len(passes.days) if passes is not None else 0
    rows = members * len(plan.stages(plan.base).milestones)
    return int(
        members * float(np.mean(sizes))
        + 2 * live * (4 * max(sizes) + plan.base.num_envs * (observation + 1_000) + kept)
        + 2 * rows * (_OUTCOME_BYTES + days)
    )


def minutes(value: float) -> str:
    """``under 10 s``, ``40 s``, ``12 min``, ``3.4 h``, ``5.2 days``."""
    if value < 1 / 6:
        return "under 10 s"
    if value < 1.5:
        return f"{value * 60:.0f} s"
    if value >= 2880:
        return f"{value / 1440:,.1f} days"
    return f"{value:.0f} min" if value < 120 else f"{value / 60:.1f} h"
