"""The tables of a study's page, as rows of text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.core.text import NOTHING, percent, plural
from slipstream.report import statistics
from slipstream.report.inputs import BUY_AND_HOLD, REBALANCED
from slipstream.report.number_format import format_interval, format_number, format_percent
from slipstream.report.page import Section, Table
from slipstream.report.study.study_view import ReturnCurves, SearchAxis, StudyView
from slipstream.report.summary_text import DRAWDOWN, interval_note
from slipstream.studies.record.ledger import Trial
from slipstream.studies.search.pruner import describe_rung
from slipstream.studies.statistics.bootstrap import MIN_BOUND_DAYS
from slipstream.studies.statistics.overfitting import (
    MAX_PBO,
    MIN_DSR,
    days_to_min_dsr,
    sharpe_to_min_dsr,
)

FOLLOWS = "Net exposure: signed mean. Correlation: of daily returns with the market's."
_ABSENT = "n/a: the daily returns have no deviation, or there are too few days."
MOST_TRIALS = 30
_MOST_FAILED = 10


def holdout(lines: ReturnCurves, seeds: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row for each seed and each benchmark."""
    rows, periods = list[list[str]](), lines.periods
    named: dict[str, statistics.Interval | None] = {}
    known = [seed for seed in seeds if not seed["failed"]]
    for returns, seed in zip(lines.curves, known, strict=False):
        label = f"seed {seed['seed']}" + (", deployable" if seed is known[0] else "")
        more = [
            format_number(seed.get(name), 2)
            for name in ("exposure", "net_exposure", "market_correlation")
        ]
        rows.append(
            [label, *_figures(returns, periods), *more, format_number(seed.get("fills"), 0)]
        )
        named[f"seed {seed['seed']}"] = statistics.sharpe_interval(returns, periods)
    rows += [[f"seed {seed['seed']}, failed", *[NOTHING] * 8] for seed in seeds if seed["failed"]]
    rivals = {
        "equal weight, bought once": lines.benchmark,
        REBALANCED: lines.rebalanced,
        BUY_AND_HOLD: lines.market,
        "cash": np.zeros(len(lines.time)),
    }
    for label, line in rivals.items():
        if line is not None:
            rows.append([label, *_figures(line, periods), *[""] * 4])
            named[label] = statistics.sharpe_interval(line, periods)
    sizes = ("exposure", "net exposure", "correlation", "fills")
    columns = ("", "return", "Sharpe", "95 % interval", "drawdown", *sizes)
    note = f"Daily returns, annualised by sqrt({periods:g}). {DRAWDOWN} {FOLLOWS}"
    if lines.market is not None:
        note += " Buy and hold: each symbol bought once with equal capital, free of costs."
    if lines.benchmark is not None:
        note += " Equal weight pays the same fees, spread and final sale."
    if lines.missing:
        note += f" Equal weight, rebalanced, is not shown: {lines.missing}."
    note += f" {interval_note(named)}"
    return Table("Hold-out", columns, rows, emphasis=0, note=note)


def _figures(returns: statistics.Floats, periods: float) -> list[str]:
    curve = np.append(1.0, np.cumprod(1.0 + returns))
    return [
        percent(float(curve[-1]) - 1.0),
        format_number(statistics.sharpe(returns, periods), 2),
        format_interval(statistics.sharpe_interval(returns, periods)),
        format_percent(statistics.max_drawdown(curve), 1),
    ]


def candidates(view: StudyView) -> Table:
    """Return the confirmation: retrained trials and their lower bounds."""
    entry = view.result["confirmation"]
    winner, emphasis = entry.get("winner"), None
    timed = any("timing_lcb" in candidate for candidate in entry["candidates"])
    rows: list[list[str]] = []
    for candidate in sorted(entry["candidates"], key=lambda c: -c.get("lcb", -math.inf)):
        if candidate["trial"] == winner:
            emphasis = len(rows)
        rows.append(
            [
                f"trial {candidate['trial']}"
                + (", winner" if candidate["trial"] == winner else ""),
                format_number(candidate.get("search_score"), 2),
                _ratio(candidate.get("value"), view.has_prices),
                format_interval(
                    [seed for seed in candidate.get("seeds", ()) if seed or not view.has_prices], 2
                ),
                format_number(candidate.get("lcb"), 2),
                *([format_number(candidate.get("sharpe_lcb"), 2)] if view.has_benchmark else []),
                *([format_number(candidate.get("timing_lcb"), 2)] if timed else []),
                candidate.get("excluded") or "",
            ]
        )
    judged = any("lcb" in candidate for candidate in entry["candidates"])
    rival = "0.00" if judged else NOTHING  # too few days give no bounds
    if view.has_benchmark:
        rows.append(["equal weight", "", "0.00", "", rival, *[""] * (2 + timed)])
        rows.append(
            ["cash", "", "", "", format_number(entry.get("cash"), 2), rival, *[""] * (1 + timed)]
        )
    elif view.has_prices:
        rows.append(["cash", "", "0.00", "", rival, *[""] * (1 + timed)])
    value = "mean return"
    if view.has_prices:
        value = "information ratio" if view.has_benchmark else "Sharpe"
    optional_columns = ["own Sharpe, lower bound"] * view.has_benchmark + [
        "timing, lower bound"
    ] * timed
    columns = (
        "",
        "search score",
        value,
        "single seeds",
        "lower bound",
        *optional_columns,
        "excluded",
    )
    count = max(len(entry["candidates"]), 1)
    level = entry["level"]
    note = (
        f"{entry['seeds']} fresh seeds on every fold, {entry['bootstrap']:,} resamples of seeds "
        f"and days (the same days for all); the lower bound is the {level / count:.2g} "
        f"quantile: the level of the bound, {level:g}, is shared by {plural(count, 'candidate')}."
    )
    if view.has_prices:
        less = " minus equal weight's" if view.has_benchmark else ""
        note += f" Daily returns{less}, averaged over the backtest paths."
    if view.has_benchmark:
        note += " A winner must beat equal weight and have a Sharpe ratio above 0."
    if timed:
        note += (
            " Timing: returns minus mean net exposure times the market's return; the winner's "
            "bound is above 0 there too."
        )
    if view.has_prices:
        note += f" {_ABSENT} A lower bound requires {MIN_BOUND_DAYS} days."
    return Table("Confirmation", columns, rows, emphasis=emphasis, note=note)


def _ratio(value: float | None, market: bool = True) -> str:
    """Return a ratio as text; exactly 0 means returns without a deviation."""
    return format_number((value or None) if market else value, 2)


def folds(trial: Trial, market: bool, benchmark: bool) -> Table:
    """Return the folds of a trial with their benchmark, if there is one."""
    caption = f"Trial {trial.number} by fold, search seed"
    if not market:
        rows = [
            [f"fold {k}", format_number(fold["score"], 2)]
            for k, fold in enumerate(trial.last_decision.folds)
        ]
        return Table(caption, ("", "mean return"), rows)
    columns = ["", "score", "Sharpe", "return", "exposure", "fills", "days"]
    if benchmark:
        columns[3:4] = ["equal weight's", "return", "equal weight's"]
    directed = any("net_exposure" in fold for fold in trial.last_decision.folds)
    if directed:
        columns[-2:-2] = ["net", *([] if benchmark else [BUY_AND_HOLD]), "follows"]
    rows = []
    for k, fold in enumerate(trial.last_decision.folds):
        ratio = [format_number(fold["score"], 2), _ratio(fold.get("sharpe"))]
        growth = [percent(fold.get("growth"))]
        if benchmark:
            ratio.append(_ratio(fold.get("benchmark_sharpe")))
            growth.append(percent(fold.get("benchmark_growth")))
        more = [format_number(fold.get("exposure"), 2)]
        if directed:
            more.append(format_number(fold.get("net_exposure"), 2))
            more += [] if benchmark else [percent(fold.get("market_growth"))]
            more.append(format_number(fold.get("market_correlation"), 2))
        more += [format_number(fold.get(n), 0) for n in columns[-2:]]
        label = f"fold {k}" + (", inactive" if fold.get("inactive") else "")
        rows.append([label, *ratio, *growth, *more])
    note = f"{_ABSENT} Its part of the score is 0. {FOLLOWS * directed}".strip()
    return Table(caption, tuple(columns), rows, note=note)


def evidence(view: StudyView) -> Table:
    """Return PBO and deflated Sharpe ratio, or why they are not computed."""
    entry = view.result["evidence"] or {}
    pbo, deflated = entry.get("pbo") or {}, entry.get("deflated_sharpe") or {}
    rows = []
    if "value" in pbo:
        rows += [
            ["Probability of backtest overfitting (PBO)", format_number(pbo["value"], 2)],
            [
                "Best half's trial loses money in the other half",
                format_percent(pbo["probability_of_loss"]),
            ],
            ["Trials and days of the PBO", f"{pbo['columns']} and {pbo['days']}"],
        ]
    else:
        rows.append(["Probability of backtest overfitting (PBO)", _not_computed(pbo)])
    if "value" in deflated:
        root = math.sqrt(view.result["days_per_year"])
        kinds = {"excess": "information ratio", "timing": "Sharpe ratio of timing"}
        ratio = kinds.get(deflated["of"], "Sharpe ratio")
        effective = format_number(deflated["effective_trials"], 0)
        tried = f"{deflated['trials']:g} skill-less trials"
        skewed = (
            f"{format_number(deflated['skew'], 2)} and {format_number(deflated['kurtosis'], 1)}"
        )
        best, best_effective = deflated["expected"] * root, deflated["effective_expected"] * root
        rows += [
            [
                f"Deflated Sharpe ratio of trial {deflated['trial']}",
                format_number(deflated["value"], 2),
            ],
            [
                f"the same with {effective} effective trials",
                format_number(deflated["effective_value"], 2),
            ],
            [f"Its annual {ratio} on the folds", format_number(deflated["sharpe"] * root, 2)],
            [f"Expected of the best of {tried}", format_number(best, 2)],
            ["Deviation of annual ratios over finished trials", _deviations(deflated, root)],
            [
                f"Expected of the best of {effective} effective ones",
                format_number(best_effective, 2),
            ],
            ["Skew and kurtosis of its daily returns", skewed],
        ]
    else:
        rows.append(["Deflated Sharpe ratio", _not_computed(deflated)])
    note = (
        "PBO: combinatorially symmetric cross-validation of daily returns (Bailey et al. 2017). "
        "Deflated Sharpe ratio (Bailey and Lopez de Prado 2014): the probability that the true "
        "ratio is above what the best of all started trials would show without skill; an "
        "indicator, because the sampler's trials are not independent."
    )
    kinds = {
        "excess": "returns in excess of equal weight's",
        "own": "own returns",
        "timing": "timing, returns minus mean net exposure times the market's",
    }
    if deflated.get("of") in kinds and (view.has_benchmark or deflated["of"] == "timing"):
        note += (
            f" It is the smallest of several, here of {kinds[deflated['of']]}: a market that rises "
            "is no skill, nor is cash in one that falls."
        )
    return Table("What chance alone could show", ("", "value"), rows, note=note)


def _deviations(entry: Mapping[str, Any], root: float) -> str:
    """Return the deviation used, and the measured one if it is smaller."""
    used, measured = entry["deviation"], entry.get("measured_deviation", entry["deviation"])
    if measured >= used:
        return format_number(used * root, 2)
    least, measured_text = format_number(used * root, 2), format_number(measured * root, 2)
    return (
        f"{least}, the least for {entry['days']} days; {measured_text} measured: survivors are too "
        "alike"
    )


def _not_computed(entry: Mapping[str, Any]) -> str:
    return f"not computed: {entry.get('reason') or 'nothing finished'}"


def rungs(entry: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of rungs at which trials could stop early."""
    rows = []
    for rung in entry:
        label = f"at {describe_rung(rung['share'], rung['rollouts'])} of the budget"
        if rung.get("same_as"):
            rows.append([label, "", "", "", f"same as {rung['same_as']}"])
            continue
        counted = [format_number(rung[name], 0) for name in ("judged", "pruned")]
        state = "armed" if rung["armed"] else "disarmed"
        rho = "not known" if rung["rho"] is None else format_number(rung["rho"], 2)
        rows.append([label, *counted, rho, state])
    columns = ("", "trials scored", "stopped", "rank correlation", "at the end")
    return Table("Rungs", columns, rows)


def counts(entry: Mapping[str, Any]) -> Table:
    """Return the table of trial counts by state."""
    names = {"started": "started", "complete": "finished", "inactive": "of these inactive"}
    if entry.get("violating"):
        names["violating"] = "of these violating"
    names |= {"pruned": "stopped early", "failed": "failed"}
    return Table(
        "Trials", tuple(names.values()), [[format_number(entry[name], 0) for name in names]]
    )


def trials(
    ranked: Sequence[Trial], axes: Sequence[SearchAxis], every: Sequence[Trial], most: int
) -> Table:
    """Return the best trials with the first `most` of their settings."""
    hidden, axes = axes[most:], axes[:most]
    rows = []
    for trial in ranked[:MOST_TRIALS]:
        values = [_value(trial.suggestion.params.get(axis.name)) for axis in axes]
        rows.append([str(trial.number), format_number(trial.score, 3), *values])
    left = len(every) - len(rows)
    parts = [f"{left} more trials"] if left else []
    if hidden:
        names = ", ".join(axis.short for axis in hidden)
        parts.append(f"the setting{'s' * (len(hidden) > 1)} {names}")
    note = f"{' and '.join(parts)} in `slipstream study export`." if parts else ""
    note = note[:1].upper() + note[1:]
    columns = ("trial", "score", *(axis.short for axis in axes))
    return Table("Best finished trials", columns, rows, note=note)


def _value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def failed(every: Sequence[Trial]) -> list[Table]:
    """Return tables of violated constraints and of failures; neither counts as zero."""
    failed_rows = []
    for standing, title in (
        ("violating", "Trials that violate a constraint"),
        ("failed", "Failed trials"),
    ):
        mine = [trial for trial in every if trial.final_state == standing]
        rows = [[str(trial.number), trial.reason] for trial in mine[:_MOST_FAILED]]
        note = f"{len(mine) - len(rows)} more {standing}." if len(mine) > len(rows) else ""
        failed_rows += [Table(title, (), rows, note=note)] if rows else []
    return failed_rows


def time(result: Mapping[str, Any]) -> Table:
    """Return minutes, steps and the share of work by phase."""
    rows = []
    kinds = ("env", "policy", "update", "evaluate", "overhead")
    for phase, words in (("search", "search"), ("confirm", "confirmation"), ("final", "final")):
        seconds = result["seconds"]["workers"].get(phase) or {}
        total = sum(seconds.values())
        if not total:
            continue
        parts = [format_percent(seconds.get(name, 0.0) / total) for name in kinds]
        steps = result["steps"].get(phase, 0)
        rows.append([words, format_number(steps / 1e6), format_number(total / 60.0), *parts])
    columns = ("", "million steps", "worker minutes", *kinds)
    return Table("Where the time went", columns, rows)


_KINDS = {
    "lcb": "Lower bound of the search's measure",
    "sharpe_lcb": "Lower bound of its own Sharpe ratio",
    "timing_lcb": "Lower bound of its timing",
}
_UNKNOWN = "cannot be computed"
_NOTE = (
    "Each row supposes that everything else stays as it was found. Days for the deflated Sharpe "
    "ratio keep daily ratio, skew, kurtosis and number of trials. Days for a lower bound suppose "
    "that its distance from the ratio shrinks with the root of the days, which is approximate. "
    "More days may show another ratio."
)


def requirements(view: StudyView) -> list[Section]:
    """Return the section of a market study without a confirmed winner; empty otherwise."""
    result = view.result
    if not view.has_prices or (result["winner"] is not None and not result["winner"]["forced"]):
        return []
    entry, evidence = result["confirmation"], result["evidence"] or {}
    rows = []
    if entry.get("best") is None:
        rows.append(["Candidates", "none", "one that trades on every fold", entry["reason"]])
    else:
        best = next(
            candidate for candidate in entry["candidates"] if candidate["trial"] == entry["best"]
        )
        days = (evidence.get("deflated_sharpe") or {}).get("days")
        rows += [_bound(best, name, days) for name in _KINDS if name in best]
        if "lcb" not in best:
            few = f"at least {MIN_BOUND_DAYS} days that folds test"
            rows.append([f"Lower bounds of trial {entry['best']}", "none", few, entry["reason"]])
    for name, p in (entry.get("chance") or {}).items():
        if name in ("excess", "own", "timing"):
            limit = f"at most {entry['level']:g}"
            why = f"{_UNKNOWN}: other trials on other days decide it too"
            row = [f"Hansen's p, {name}", f"{p:.2g}", limit]
            rows.append([*row, "holds" if p <= entry["level"] else why])
    rows.append(_deflated(evidence.get("deflated_sharpe") or {}, result["days_per_year"]))
    pbo = evidence.get("pbo") or {}
    pbo_text = format_number(pbo.get("value"), 2) if "value" in pbo else "not computed"
    why = pbo.get("reason") or f"{_UNKNOWN}: the ranks of all trials on other days decide it"
    passed = pbo.get("value", math.inf) <= MAX_PBO
    limit = f"at most {MAX_PBO:g}"
    rows.append(["Overfitting probability (PBO)", pbo_text, limit, "holds" if passed else why])
    holdout = result["holdout"]
    if holdout is None:
        fresh = f"{MIN_BOUND_DAYS} fresh days, bounds above 0"
        rows.append(["Hold-out", "not opened", fresh, "it is opened for a confirmed winner"])
    columns = ("condition", "found", "needed", "what would have to be true")
    return [
        Section("What would have to be true", (), [Table("Conditions", columns, rows, note=_NOTE)])
    ]


def _bound(best: Mapping[str, Any], name: str, days: int | None) -> list[str]:
    """Return the row of a candidate's lower bound."""
    bound, what = float(best[name]), f"{_KINDS[name]}, trial {best['trial']}"
    row = [what, format_number(bound, 2), "above 0"]
    if bound > 0.0:
        return [*row, "holds"]
    if name != "lcb":
        edge = format_number(-bound, 2)
        return [
            *row,
            f"a ratio higher by {edge} on the same days; days: {_UNKNOWN}, as the ratio "
            "is not stored",
        ]
    ratio = float(best["value"])
    needed = format_number(ratio - bound, 2)
    edge = f"a ratio of {needed} instead of {format_number(ratio, 2)} on the same days"
    if ratio <= 0.0:
        return [*row, f"{edge}; no number of days, as the ratio is not above 0"]
    times = ((ratio - bound) / ratio) ** 2
    many = f"about {format_number(times, 1)} times the days"
    if days is not None:
        many += f" ({math.ceil(times * days):,} instead of {days:,})"
    return [*row, f"{edge}; or {many} at the same ratio"]


def _deflated(entry: Mapping[str, Any], per_year: float) -> list[str]:
    """Return the row of the deflated Sharpe ratio."""
    limit = f"at least {MIN_DSR:g}"
    if "value" not in entry:
        why = entry.get("reason") or "nothing finished"
        return ["Deflated Sharpe ratio", "not computed", limit, f"{_UNKNOWN}: {why}"]
    row = [
        f"Deflated Sharpe ratio, trial {entry['trial']}",
        format_number(entry["value"], 2),
        limit,
    ]
    if entry["value"] >= MIN_DSR:
        return [*row, "holds"]
    days, ratio, parts = days_to_min_dsr(entry), sharpe_to_min_dsr(entry), list[str]()
    root, now = math.sqrt(per_year), int(entry["days"])
    if days is None:
        bar = "no number of days: its ratio is not above the expected best of all trials"
        parts.append(bar)
    else:
        parts.append(f"{days - now:,} more days at the same daily ratio ({days:,} in all)")
    if ratio is not None:
        present = format_number(entry["sharpe"] * root, 2)
        annual = f"{format_number(ratio * root, 2)} instead of {present}"
        parts.append(f"an annual ratio of {annual} on the same {now:,} days")
    else:
        parts.append("no ratio is enough on so few days with this kurtosis")
    return [*row, "; or ".join(parts)]
