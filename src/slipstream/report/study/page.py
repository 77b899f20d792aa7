"""study.html: the confirmed winner's hold-out first, then what qualifies it.

See docs/rules.md, section 15.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slipstream.report.market import wording
from slipstream.report.page import Page, Picture, Section, Table, picture, write
from slipstream.report.provenance import machine_pictures
from slipstream.report.study import figures as study_figures
from slipstream.report.study import screen as study_screen
from slipstream.report.study import tables as study_tables
from slipstream.report.study import wording as study_wording
from slipstream.report.study.view import Axis, StudyView, read_view
from slipstream.studies.outcome.sentences import chance_sentence
from slipstream.studies.record.folder import StudyFolder

_MOST_COLUMNS = 40  # trials in the heat map
_MOST_SLICES = 9
_MOST_AXES = 10
_MOST_SETTINGS = 8  # columns of the table of trials: it fits a page of 1,000 pixels
_FIRST = ("holdout", "confirmation", "trials")


def write_study_page(folder: StudyFolder, say: Callable[[str], None] | None = None) -> Path:
    """Writes `study.html` and `figures/*.png` into a study's folder; returns the page's path.

    Args:
        folder: the study's.
        say: told the headline and what qualifies it.

    Raises:
        CheckpointError: the study has not ended.
    """
    page = study_page(read_view(folder))
    if say is not None:
        for line in page.lines:
            say(line)
    return write(page, folder.path, "study.html")


def study_page(view: StudyView) -> Page:
    """Builds the page."""
    opening = study_wording.opening(view)
    every = [
        _holdout(view),
        _confirmation(view),
        _evidence(view),
        _search(view),
        _settings(view),
        _development(view),
        _notes(view),
    ]
    sections = [section for section in every if section is not None]
    first = _first_picture(sections)
    return Page(
        title=f"Study {view.name}",
        headline=opening[0],
        figures=study_screen.figures(view),
        picture=first,
        warnings=study_wording.warnings(view),
        sentences=opening[1:],
        sections=[_without(section, first) for section in sections],
    )


def _first_picture(sections: Sequence[Section]) -> Picture | None:
    """The hold-out's equity; where it was not opened, the confirmation, or else the trials."""
    pictures = {shown.name: shown for section in sections for shown in section.pictures}
    return next((pictures[name] for name in _FIRST if name in pictures), None)


def _without(section: Section, shown: Picture | None) -> Section:
    return replace(section, pictures=[one for one in section.pictures if one is not shown])


def _holdout(view: StudyView) -> Section | None:
    told = view.result["holdout"]
    if told is None:
        if not view.market:
            return None
        return Section("Hold-out", ("It was not opened: there is nothing to show it to.",))
    if view.holdout is None or view.days_per_year is None:
        return _episodes(told)
    label = "first seed, deployable"
    drawn = study_figures.equity("Hold-out, after costs", view.holdout, "other seeds", label)
    return Section(
        "Hold-out",
        (),
        [study_tables.holdout(view.holdout, view.days_per_year, told["seeds"])],
        [picture("holdout", f"Return of all seeds on the hold-out beside {view.rivals}", drawn)],
    )


def _episodes(told: Mapping[str, Any]) -> Section:
    rows = [
        [f"seed {one['seed']}", "diverged" if one["failed"] else wording.number(one["score"], 2)]
        for one in told["seeds"]
    ]
    return Section("Final training", (), [Table("Fresh episodes", ("", "mean return"), rows)])


def _confirmation(view: StudyView) -> Section:
    told = view.result["confirmation"]
    fine = [one for one in told["candidates"] if "lcb" in one]
    pictures: list[Picture] = []
    if fine:
        what, rivals = "mean return", {}
        if view.benchmark:
            what = "annual information ratio against equal weight"
            rivals = {"equal weight": 0.0, "cash, lower bound": told["cash"]}
        elif view.market:
            what, rivals = "annual Sharpe ratio", {"cash": 0.0}
        ranked = sorted(fine, key=lambda one: -one["lcb"])
        drawn = study_figures.confirmation(ranked, what, rivals)
        pictures.append(picture("confirmation", "Lower bounds of the best trials", drawn))
    sentences = ["The best trials of the search were trained again on seeds that it never saw."]
    sentences += chance_sentence(view.result)
    if told["reason"]:
        sentences.append(f"No winner: {told['reason']}.")
    return Section("Confirmation", sentences, [study_tables.candidates(view)], pictures)


def _evidence(view: StudyView) -> Section | None:
    if not view.market:
        return None
    return Section(
        "How far to trust the search", study_wording.chance(view), [study_tables.evidence(view)]
    )


def _search(view: StudyView) -> Section:
    result, ranked = view.result, view.complete
    tables = [study_tables.counts(result["trials"])]
    if result["rungs"]:
        tables.append(study_tables.rungs(result["rungs"]))
    if view.shown is not None:
        tables.append(study_tables.folds(view.trial(view.shown), view.market, view.benchmark))
    tables.append(study_tables.trials(ranked, _by_importance(view), view.trials, _MOST_SETTINGS))
    tables += study_tables.failed(view.trials)
    pictures = []
    if any(trial.score is not None for trial in view.trials):
        drawn = study_figures.history(view.trials)
        pictures.append(picture("trials", "Score of every trial", drawn))
    whole = [trial for trial in ranked[:_MOST_COLUMNS] if trial.folds]
    if whole:
        drawn = study_figures.folds(whole, view.market)
        pictures.append(picture("folds", "Fold scores of the best trials", drawn))
    return Section("Search", study_wording.search(view), tables, pictures)


def _by_importance(view: StudyView) -> list[Axis]:
    """What mattered most comes first."""
    order = {name: place for place, name in enumerate(view.importance)}
    return sorted(view.axes, key=lambda axis: order.get(axis.name, len(order)))


def _settings(view: StudyView) -> Section:
    ranked = view.complete
    if len(ranked) < 2:
        return Section("Settings", ("Too few trials finished to compare settings.",))
    sentences = []
    axes = _by_importance(view)
    pictures = []
    if view.importance:
        top = dict(list(view.importance.items())[:15])
        sentences.append(
            "Importance counts trials that were stopped early, with their last scores; the other "
            "pictures show finished trials only."
        )
        pictures.append(
            picture("importance", "Importance of the settings", study_figures.importance(top))
        )
    else:
        sentences.append("Too few trials to say which setting mattered.")
    drawn = study_figures.slices(ranked, axes[:_MOST_SLICES])
    pictures.append(picture("slices", "Score against each setting", drawn))
    shown = axes[:_MOST_AXES]
    if len(shown) > 1:
        drawn = study_figures.parallel(ranked, shown)
        pictures.append(picture("parallel", "Settings of all finished trials", drawn))
    return Section("Settings", sentences, (), pictures)


def _development(view: StudyView) -> Section | None:
    pictures = []
    name = f"trial {view.shown}"
    for key, lines, title, each in (
        ("fresh", view.fresh, f"Fresh seeds on the folds, {name}", "one seed, mean of its paths"),
        ("paths", view.development, f"Backtest paths of the search, {name}", "one path"),
    ):
        if lines is not None:
            drawn = study_figures.equity(title, lines, each)
            pictures.append(picture(key, f"{title}, beside {view.rivals}", drawn))
    if not pictures:
        return None
    sentence = (
        "Every bar here was tested by policies that had not trained on it, but the trial was "
        "chosen among all trials by these very bars: the curves are too good."
    )
    return Section("On the folds' test blocks", (sentence,), [_groups(view)], pictures)


def _groups(view: StudyView) -> Table:
    """When each tested group was."""
    rows = [[f"group {k}", dates] for k, dates in enumerate(view.fold_dates)]
    return Table("Tested groups", (), rows)


def _notes(view: StudyView) -> Section:
    tables = [study_tables.time(view.result)]
    if view.provenance:
        tables.append(Table("Provenance", (), list(view.provenance.items())))
    pictures = machine_pictures(view.machine)
    return Section("Time, notes and provenance", view.notes, tables, pictures)
