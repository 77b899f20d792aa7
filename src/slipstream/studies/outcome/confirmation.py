"""Confirmation: retrain the best trials on fresh seeds and select a winner.

See docs/explanation/statistics.md, section 13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.random import derive_seed
from slipstream.studies.config import ConfirmationConfig
from slipstream.studies.outcome.outcome_text import format_p_values
from slipstream.studies.record.ledger import Slot, nearest_violation, rank_eligible
from slipstream.studies.search.search import Search
from slipstream.studies.search.session import Session
from slipstream.studies.search.study_plan import StudyPlan
from slipstream.studies.statistics import bootstrap
from slipstream.studies.statistics.returns import (
    FoldMap,
    align_series,
    backtest_paths,
    constraint_values,
    describe_nearest_violation,
    describe_violations,
    fold_score,
    largest_values,
    sharpe,
)
from slipstream.training.population.batches import effective_members
from slipstream.training.population.member import DailyReturns, Outcome

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ConfirmationResult:
    """Result of the confirmation.

    Attributes:
        winner: trial with the highest lower bound; None if no trial passes every test.
        best: trial with the highest lower bound, winner or not.
        candidates: per trial `trial`, `search_score`, `value` (information ratio against equal
            weight, or cash without equal weight; games: mean return), `lcb`, `sharpe_lcb` (of the
            Sharpe ratio, with equal weight), `timing_lcb` (of timing, if it is tested), `seeds`
            (value of each seed), `excluded` (reason).
        cash: lower bound of holding cash, 0 if cash is the benchmark; None for games and with too
            few days for a bound.
        chance: for the trial with the highest bounds above 0: `trial`, number of `trials` started,
            number of `full` trials with their whole budget, and p-values of Hansen's test: `excess`
            over equal weight, `own` returns and `timing` if it is tested; None without such a
            trial.
        reason: why there is no winner.
        closest: the trial with the smallest violation of a constraint, if no candidate is left.
    """

    winner: int | None
    best: int | None
    candidates: Sequence[Mapping[str, Any]] = ()
    cash: float | None = None
    chance: Mapping[str, Any] | None = None
    reason: str = ""
    closest: str = ""


def confirm_best(
    session: Session,
    search: Search,
    fold_metadata: Mapping[str, Any] | None,
    max_candidates: int | None = None,
) -> ConfirmationResult:
    """Retrain the best trials on fresh seeds and select a winner.

    Args:
        session: session that trains.
        search: the finished search.
        fold_metadata: tested groups of the folds; None for games.
        max_candidates: maximum number of candidates; default: the config's.
    """
    plan = session.plan
    best = rank_eligible(search.decisions.values())[: max_candidates or plan.study.confirmation.top]
    chosen = [decision.trial for decision in best]
    configs = {trial: plan.config(search.suggestions()[trial].overrides) for trial in chosen}
    jobs = {slot: configs[slot.trial] for slot in confirmation_slots(plan, chosen)}
    later = (plan.study.final_seeds, plan.study.final_refit)
    load = sum(effective_members(members, session.workers) for members in later)
    outcomes = session.train(jobs, "confirmation", load)
    for slot in jobs:
        session.pool.drop(slot.name)
    scores = {trial: search.decisions[trial].score for trial in chosen}
    full = {} if plan.market is None else session.ledger.complete_backtests()
    begun = len(search.suggestions()) + plan.num_prior_trials
    result = confirm(plan, chosen, scores, outcomes, fold_metadata, full, begun)
    return (
        result if chosen else replace(result, closest=nearest_violation(search.decisions.values()))
    )


def confirmation_slots(plan: StudyPlan, chosen: Sequence[int]) -> list[Slot]:
    """Return the members of the confirmation: each fold of each fresh seed of each candidate."""
    return [
        Slot("confirm", trial, repeat, fold)
        for trial in chosen
        for repeat in range(plan.study.confirmation.seeds)
        for fold in range(plan.num_folds)
    ]


def confirm(
    plan: StudyPlan,
    chosen: Sequence[int],
    scores: Mapping[int, float | None],
    outcomes: Mapping[Slot, Outcome],
    facts: Mapping[str, Any] | None,
    full: Mapping[int, Sequence[DailyReturns]],
    begun: int,
) -> ConfirmationResult:
    """Select a winner among the candidates.

    Args:
        plan: confirmation settings and market.
        chosen: candidates, by search score.
        scores: search score by trial.
        outcomes: outcomes of all `confirmation_slots`.
        facts: ``provenance["folds"]``: groups and paths; None for games.
        full: backtests by fold of the search's trials that ran their whole budget.
        begun: number of trials started, including those behind the warm start.
    """
    if not chosen:
        what = "" if plan.market is None else " with a policy that trades"
        what += " within the constraints" * bool(plan.study.constraints)
        return ConfirmationResult(None, None, reason=f"no trial finished{what}")
    excluded = {trial: _exclusion_reason(plan, trial, outcomes) for trial in chosen}
    remaining = [trial for trial in chosen if not excluded[trial]]
    rows: dict[int, dict[str, Any]] = {
        trial: {"trial": trial, "search_score": scores.get(trial), "excluded": excluded[trial]}
        for trial in chosen
    }
    if not remaining:
        traded = "" if plan.market is None else " and traded"
        reason = f"no candidate trained well{traded} on every fresh seed"
        reason += ", within the constraints" * bool(plan.study.constraints)
        near = describe_nearest_violation(
            {trial: _constraint_values(plan, trial, outcomes) for trial in chosen}
        )
        return ConfirmationResult(None, None, list(rows.values()), reason=reason, closest=near)
    backtests = {trial: _backtests_by_seed(plan, trial, outcomes) for trial in remaining}
    if plan.market is None or facts is None:
        return _confirm_games(plan, remaining, rows, backtests)
    layout = FoldMap.from_metadata(facts)
    selected = _confirm_market(plan, remaining, rows, backtests, layout)
    return (
        selected
        if selected.winner is None
        else _test_by_chance(plan, selected, full, begun, layout)
    )


def _confirm_market(
    plan: StudyPlan,
    kept: Sequence[int],
    rows: Mapping[int, dict[str, Any]],
    backtests: Mapping[int, Sequence[Sequence[DailyReturns]]],
    layout: FoldMap,
) -> ConfirmationResult:
    assert plan.market is not None
    settings, periods = plan.study.confirmation, plan.market.days_per_year
    excess, benchmark, timing = _align_returns([backtests[trial] for trial in kept], layout)
    selection = bootstrap.select_winner(
        excess,
        benchmark,
        periods,
        level=settings.level * len(kept) / len(rows),  # excluded candidates were tried, too
        draws=settings.bootstrap,
        mean_block=settings.block_days,
        seed=_bootstrap_seed(plan),
        rival="equal weight" if plan.market.benchmark else "cash",
        timing=timing,
    )
    for k, trial in enumerate(kept):
        own = {"sharpe_lcb": selection.own[k]} if plan.market.benchmark else {}
        timed = {} if selection.timing is None else {"timing_lcb": selection.timing[k]}
        bounds = {"lcb": selection.bounds.lower[k], **own, **timed}
        rows[trial] |= {
            "value": float(selection.bounds.ratio[k]),
            "seeds": [sharpe(path[None], periods) for path in excess[k]],
            **{name: float(one) for name, one in bounds.items() if not np.isnan(one)},
        }
    winner = None if selection.winner is None else kept[selection.winner]
    cash = None if np.isnan(selection.cash) else selection.cash
    best = kept[selection.best] if winner is None else winner
    return ConfirmationResult(winner, best, list(rows.values()), cash, None, selection.reason)


def _test_by_chance(
    plan: StudyPlan,
    found: ConfirmationResult,
    full: Mapping[int, Sequence[DailyReturns]],
    begun: int,
    layout: FoldMap,
) -> ConfirmationResult:
    """Drop the winner if trials without skill would probably show as much."""
    assert plan.market is not None and found.winner is not None
    settings, number = plan.study.confirmation, found.winner
    excess, benchmark, timing = _align_returns([[folds] for folds in full.values()], layout)
    matrix, chosen = np.concatenate(excess).T, list(full).index(number)
    returns = {"excess": matrix} if plan.market.benchmark else {}
    returns["own"], days = matrix + benchmark[:, None], len(benchmark)
    if timing is not None:
        returns["timing"] = np.concatenate(timing).T
    weight = bootstrap.day_weights(
        days, settings.bootstrap, settings.block_days, _bootstrap_seed(plan)
    )
    share = begun / len(full)  # pruned trials are not among the full ones, and were tried too
    chance: dict[str, Any] = {"trial": number, "trials": begun, "full": len(full)}
    for name, values in returns.items():
        alone = bootstrap.spa_p_value(values, chosen, weight)
        chance[name] = 1.0 - (1.0 - alone) ** share
    if max(chance[name] for name in returns) <= settings.level:
        return replace(found, chance=chance)
    reason = (
        f"trial {number} is the best candidate, but {begun} trials could show as much by chance: "
        f"Hansen's test over all of them gives {format_p_values(chance, settings.bootstrap)}, and "
        f"at most {settings.level:g} confirms"
    )
    return replace(found, winner=None, chance=chance, reason=reason)


def _align_returns(
    trials: Sequence[Sequence[Sequence[DailyReturns]]], layout: FoldMap
) -> tuple[list[Floats], Floats, list[Floats] | None]:
    """Return daily excess returns over equal weight per trial [R, n], and equal weight's [n].

    The last value is the timing of each trial [R, n]; None if a pass has none.
    """
    paths = [backtest_paths(folds, layout) for seeds in trials for folds in seeds]
    _, excess, benchmark = align_series(
        [(path.days, path.excess, path.benchmark) for path in paths]
    )
    ends = np.cumsum([len(seeds) for seeds in trials])[:-1]
    timed = [(path.days, path.timing, np.zeros(len(path.days))) for path in paths]
    known = [(days, returns, none) for days, returns, none in timed if returns is not None]
    timing = np.split(align_series(known)[1], ends) if len(known) == len(paths) else None
    return np.split(excess, ends), benchmark, timing


def _confirm_games(
    plan: StudyPlan,
    kept: Sequence[int],
    rows: Mapping[int, dict[str, Any]],
    backtests: Mapping[int, Sequence[Sequence[DailyReturns]]],
) -> ConfirmationResult:
    """Select by lower bounds of mean returns over seeds; games have no benchmark."""
    settings = plan.study.confirmation
    best, highest = kept[0], -np.inf
    for trial in kept:
        means = np.array([[fold.returns.mean() for fold in folds] for folds in backtests[trial]])
        bound = mean_lower_bound(means.ravel(), settings, len(rows), _bootstrap_seed(plan))
        seeds = [float(mean) for mean in means.mean(axis=1)]
        rows[trial] |= {"value": float(means.mean()), "lcb": bound, "seeds": seeds}
        if bound > highest:
            best, highest = trial, bound
    return ConfirmationResult(best, best, list(rows.values()))


def mean_lower_bound(values: Floats, settings: ConfirmationConfig, tried: int, seed: int) -> float:
    """Return the (level / tried) quantile of the mean of `values` resampled with replacement."""
    random = np.random.Generator(np.random.PCG64(seed))
    drawn = random.integers(0, len(values), (settings.bootstrap, len(values)))
    return float(np.quantile(values[drawn].mean(axis=1), settings.level / tried))


def _backtests_by_seed(
    plan: StudyPlan, trial: int, outcomes: Mapping[Slot, Outcome]
) -> list[list[DailyReturns]]:
    """Return backtests by fresh seed, then fold."""
    by_seed = []
    for repeat in range(plan.study.confirmation.seeds):
        folds = [
            outcomes[Slot("confirm", trial, repeat, k)].backtests for k in range(plan.num_folds)
        ]
        by_seed.append([fold for fold in folds if fold is not None])
    return by_seed


def _exclusion_reason(plan: StudyPlan, trial: int, outcomes: Mapping[Slot, Outcome]) -> str:
    """Return why a candidate cannot win; empty if it can.

    The rules of the search apply to every fresh seed: one inactive or violating fold is enough,
    because a deployed seed could be the one that does not trade.
    """
    for repeat in range(plan.study.confirmation.seeds):
        for fold in range(plan.num_folds):
            outcome = outcomes[Slot("confirm", trial, repeat, fold)]
            if outcome.failed or outcome.backtests is None:
                return (
                    f"fold {fold} of seed {repeat} could not be trained or scored: {outcome.reason}"
                )
            result = fold_score(outcome.backtests, plan.market, plan.study.objective)
            if not np.isfinite(result.score):
                return f"fold {fold} of seed {repeat}: a test return is not a number"
            if result.inactive:
                return (
                    f"fold {fold} of seed {repeat} is inactive: exposure "
                    f"{100 * result.exposure:.2f} %, {result.fills:.0f} fills"
                )
            violates = describe_violations(
                constraint_values(outcome.backtests, plan.study.constraints)
            )
            if violates:
                return f"fold {fold} of seed {repeat} violates a constraint: {violates}"
    return ""


def _constraint_values(
    plan: StudyPlan, trial: int, outcomes: Mapping[Slot, Outcome]
) -> dict[str, tuple[float, float]]:
    """Return the largest known values of constrained metrics over fresh seeds."""
    every = [p for seed in _backtests_by_seed(plan, trial, outcomes) for p in seed]
    return largest_values(constraint_values(backtest, plan.study.constraints) for backtest in every)


def _bootstrap_seed(plan: StudyPlan) -> int:
    return derive_seed(plan.study.seed, "bootstrap")
