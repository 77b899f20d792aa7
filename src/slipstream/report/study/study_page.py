"""study.html: the confirmed winner's hold-out first, then its qualifications.

See docs/explanation/statistics.md, section 15.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from slipstream.core.text import percent, span
from slipstream.report.history import notes_section
from slipstream.report.number_format import format_interval, format_number, format_percent
from slipstream.report.page import (
    KeyFigure,
    Page,
    Picture,
    Section,
    Table,
    make_picture,
    write_page,
)
from slipstream.report.statistics import compound_return, sharpe, sharpe_interval
from slipstream.report.study import study_figures, study_summary, study_tables
from slipstream.report.study.study_tables import requirements
from slipstream.report.study.study_view import ReturnCurves, SearchAxis, StudyView, read_view
from slipstream.report.summary_text import sharpe_figures
from slipstream.studies.outcome.outcome_text import describe_chance
from slipstream.studies.record.folder import StudyFolder

_MOST_COLUMNS = 40  # maximum number of trials in the heat map
_MOST_SLICES = 9
_MOST_AXES = 10
_MOST_SHARES = 15  # maximum number of settings in the importance plot
_MOST_SETTINGS = 8  # columns of the table of trials, which fits 1,000 pixels
_FIRST = ("holdout", "confirmation", "trials")


def write_study_page(folder: StudyFolder, log: Callable[[str], None] | None = None) -> Path:
    """Write `study.html` and `figures/*.png` into a study's folder; return the page's path.

    Args:
        folder: folder of the study.
        log: called with the headline and the warnings.

    Raises:
        CheckpointError: the study is not complete.
    """
    return write_page(study_page(read_view(folder)), folder.path, "study.html", log)


def study_page(view: StudyView) -> Page:
    """Build the page.

    Its first picture is the equity on the hold-out, else the confirmation, else
    the trials.
    """
    headline, *sentences = study_summary.summary_sentences(view)
    sections = [
        *_holdout(view),
        _confirmation(view),
        *_evidence(view),
        *requirements(view),
        _search(view),
        _settings(view),
        *_development(view),
        notes_section(
            "Time, notes and provenance",
            view.notes,
            view.provenance,
            view.resources,
            [study_tables.time(view.result)],
        ),
    ]
    pictures = {shown.name: shown for section in sections for shown in section.pictures}
    first = next((pictures[name] for name in _FIRST if name in pictures), None)
    return Page(
        title=f"Study {view.name}",
        headline=headline,
        figures=_figures(view),
        picture=first,
        warnings=study_summary.warnings(view),
        sentences=sentences,
        sections=[
            replace(
                section, pictures=[picture for picture in section.pictures if picture is not first]
            )
            for section in sections
        ],
    )


def _figures(view: StudyView) -> list[KeyFigure]:
    """Return key figures of the deployed policy on the hold-out, else those of the search."""
    entry, trials = view.result["holdout"], view.result["trials"]
    ends = f"{trials['complete']} complete, {trials['pruned']} pruned"
    tried = KeyFigure("Trials", format_number(trials["started"], 0), ends)
    if view.holdout is not None:
        return _holdout_figures(view, view.holdout, entry)
    if entry is None or view.has_prices:
        return [tried, *_search_figures(view)]
    known = [float(seed["score"]) for seed in entry["seeds"] if not seed["failed"]]
    finished = f"{len(known)} of {len(entry['seeds'])} finished"
    return [
        KeyFigure("Mean return", format_number(entry.get("mean"), 2), "of the final seeds"),
        KeyFigure("Single seeds", format_interval(known, 2), finished),
        tried,
    ]


def _holdout_figures(
    view: StudyView, lines: ReturnCurves, entry: Mapping[str, Any]
) -> list[KeyFigure]:
    mine, periods, beside = lines.curves[0], lines.periods, span(len(lines.time), lines.periods)
    if entry["opening"] > 1:  # first: choices made between the openings bias the return upwards
        beside = f"opening {entry['opening']} of these days; {beside}"
    if lines.benchmark is not None:
        beside += f"; equal weight {percent(compound_return(lines.benchmark))}"
    shown = [KeyFigure("Return on the hold-out", percent(compound_return(mine)), beside)]
    bounds = sharpe_interval(mine, periods)
    shown += sharpe_figures(sharpe(mine, periods), bounds, len(mine), periods)
    if view.random_traders is not None:
        worse = format_percent(view.random_traders.percentile / 100.0)
        note = f"of {view.random_traders.draws} with its own decisions at other times"
        shown.append(KeyFigure("Random traders that did worse", worse, note))
    first: Mapping[str, Any] = next((seed for seed in entry["seeds"] if not seed["failed"]), {})
    fills = format_number(first.get("fills"), 0)
    return [
        *shown,
        KeyFigure("Mean exposure", format_number(first.get("exposure"), 2), f"{fills} fills"),
    ]


def _search_figures(view: StudyView) -> list[KeyFigure]:
    """Return key figures of the search if nothing was deployed."""
    evidence, shown = view.result["evidence"] or {}, []
    candidates = view.result["confirmation"]["candidates"]
    kinds = ("lcb", "sharpe_lcb", "timing_lcb")
    bounds = [
        min(candidate[name] for name in kinds if name in candidate)
        for candidate in candidates
        if "lcb" in candidate
    ]
    if bounds:
        rival = "above 0 would win" if view.has_prices else "of the mean return"
        shown.append(
            KeyFigure("Best lower bound, fresh seeds", format_number(max(bounds), 2), rival)
        )
    pbo = evidence.get("pbo") or {}
    if "value" in pbo:
        note = "of the search (PBO)"
        if study_summary.has_stable_losers(pbo):
            note = f"(PBO); the best loses in {format_percent(pbo['loses'])} of halves"
        shown.append(KeyFigure("Overfitting probability", format_number(pbo["value"], 2), note))
    deflated = (evidence.get("deflated_sharpe") or {}).get("value")
    if deflated is not None:
        shown.append(
            KeyFigure("Deflated Sharpe ratio", format_number(deflated, 2), "a probability")
        )
    folds = (view.result.get("detectable") or {}).get("folds")
    if folds is not None:
        label, days = "Smallest detectable Sharpe", f"with {folds['span']} of folds"
        shown.append(KeyFigure(label, format_number(folds["sharpe"]), days))
    return shown


def _holdout(view: StudyView) -> list[Section]:
    entry = view.result["holdout"]
    if entry is None:
        closed = Section(
            "Hold-out", ("It was not opened, because there is no winner to evaluate.",)
        )
        return [closed] if view.has_prices else []
    if view.holdout is None:
        rows = [
            [
                f"seed {seed['seed']}",
                "failed" if seed["failed"] else format_number(seed["score"], 2),
            ]
            for seed in entry["seeds"]
        ]
        episodes = Table("Fresh episodes", ("", "mean return"), rows)
        return [Section("Final training", (), [episodes])]
    label = "first seed, deployable"
    drawn = study_figures.equity("Hold-out, after costs", view.holdout, "other seeds", label)
    shown = make_picture(
        "holdout", f"Return of all seeds on the hold-out beside {view.rival_name}", drawn
    )
    table = study_tables.holdout(view.holdout, entry["seeds"])
    return [Section("Hold-out", (), [table], [shown])]


def _confirmation(view: StudyView) -> Section:
    entry = view.result["confirmation"]
    fine = [candidate for candidate in entry["candidates"] if "lcb" in candidate]
    pictures: list[Picture] = []
    if fine:
        what, rivals = "mean return", {}
        if view.has_benchmark:
            what = "annual information ratio against equal weight"
            rivals = {"equal weight": 0.0, "cash, lower bound": entry["cash"]}
        elif view.has_prices:
            what, rivals = "annual Sharpe ratio", {"cash": 0.0}
        drawn = study_figures.confirmation(
            sorted(fine, key=lambda candidate: -candidate["lcb"]), what, rivals
        )
        pictures.append(make_picture("confirmation", "Lower bounds of the best trials", drawn))
    sentences = ["The best trials of the search were trained again on fresh seeds."]
    sentences += describe_chance(view.result)
    if entry["reason"]:
        sentences.append(f"No winner: {entry['reason']}.")
    return Section("Confirmation", sentences, [study_tables.candidates(view)], pictures)


def _evidence(view: StudyView) -> list[Section]:
    if not view.has_prices:
        return []
    title = "Reliability of the search"
    return [Section(title, study_summary.expected_by_chance(view), [study_tables.evidence(view)])]


def _search(view: StudyView) -> Section:
    result, ranked = view.result, view.ranked_trials
    shown = [study_tables.counts(result["trials"])]
    if result["rungs"]:
        shown.append(study_tables.rungs(result["rungs"]))
    if view.shown is not None:
        shown.append(
            study_tables.folds(view.trial(view.shown), view.has_prices, view.has_benchmark)
        )
    shown.append(
        study_tables.trials(ranked, _sort_by_importance(view), view.trials, _MOST_SETTINGS)
    )
    shown += study_tables.failed(view.trials)
    pictures = []
    if any(trial.score is not None for trial in view.trials):
        drawn = study_figures.history(view.trials)
        pictures.append(make_picture("trials", "Score of every trial", drawn))
    whole = [trial for trial in ranked[:_MOST_COLUMNS] if trial.last_decision.folds]
    if whole:
        drawn = study_figures.folds(whole, view.has_prices)
        pictures.append(make_picture("folds", "Fold scores of the best trials", drawn))
    return Section("Search", study_summary.scoring_sentences(view), shown, pictures)


def _sort_by_importance(view: StudyView) -> list[SearchAxis]:
    """Return the axes sorted by importance, most important first."""
    order = {name: place for place, name in enumerate(view.importance)}
    return sorted(view.axes, key=lambda axis: order.get(axis.name, len(order)))


def _settings(view: StudyView) -> Section:
    ranked, axes, pictures = view.ranked_trials, _sort_by_importance(view), []
    if len(ranked) < 2:
        return Section("Settings", ("Too few trials finished to compare settings.",))
    sentence = "Too few trials to rank settings by importance."
    if view.importance:
        sentence = (
            "Importance counts trials that were stopped early, with their last scores; the other "
            "pictures show finished trials only."
        )
        drawn = study_figures.importance(dict(list(view.importance.items())[:_MOST_SHARES]))
        pictures.append(make_picture("importance", "Importance of the settings", drawn))
    drawn = study_figures.slices(ranked, axes[:_MOST_SLICES])
    pictures.append(make_picture("slices", "Score against each setting", drawn))
    if len(axes) > 1:
        drawn = study_figures.parallel(ranked, axes[:_MOST_AXES])
        pictures.append(make_picture("parallel", "Settings of all finished trials", drawn))
    return Section("Settings", (sentence,), (), pictures)


def _development(view: StudyView) -> list[Section]:
    pictures = []
    name = f"trial {view.shown}"
    for key, lines, title, each in (
        ("fresh", view.fresh, f"Fresh seeds on the folds, {name}", "one seed, mean of its paths"),
        ("paths", view.development, f"Backtest paths of the search, {name}", "one path"),
    ):
        if lines is not None:
            drawn = study_figures.equity(title, lines, each)
            pictures.append(make_picture(key, f"{title}, beside {view.rival_name}", drawn))
    sentence = (
        "Every bar here was tested by policies that had not trained on it. The trial was chosen "
        "among all trials by the same bars, so the curves are too optimistic."
    )
    rows = [[f"group {k}", dates] for k, dates in enumerate(view.fold_dates)]
    groups = [Table("Tested groups", (), rows)]
    title = "On the folds' test blocks"
    return [Section(title, (sentence,), groups, pictures)] if pictures else []
