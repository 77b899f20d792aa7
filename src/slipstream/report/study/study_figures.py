"""Pictures of a study: trials, importance of settings, and the confirmation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from slipstream.core.timeline import DAY
from slipstream.report.plot_style import (
    BLUE,
    DASHES,
    GREY,
    INK,
    ORANGE,
    PALE,
    VERMILION,
    dates,
    growth_axis,
    legend,
    new_figure,
    new_grid,
    percent_axis,
    time_axis,
)
from slipstream.report.statistics import Floats
from slipstream.report.study.study_view import ReturnCurves, SearchAxis
from slipstream.studies.record.ledger import Trial

_COLOURS = "viridis"
_STATES = (
    *(("complete", BLUE, "o"), ("pruned", GREY, "x"), ("inactive", ORANGE, "s")),
    ("violating", VERMILION, "v"),
)


def history(trials: Sequence[Trial]) -> Figure:
    """Plot the score of each trial in the order of its suggestion, and the best one so far."""
    figure, (axes,) = new_figure("Trials", 3.4)
    for state, colour, marker in _STATES:
        mine = [t for t in trials if t.score is not None and t.final_state == state]
        at, scores = [t.number for t in mine], np.array([t.score for t in mine], np.float64)
        if mine:
            axes.plot(at, scores, marker, markersize=3.5, color=colour, alpha=0.75, label=state)
    fine = [t for t in trials if t.score is not None and t.final_state == "complete"]
    if fine:
        best = np.maximum.accumulate(np.array([t.score for t in fine], np.float64))
        axes.step([t.number for t in fine], best, where="post", color=INK, label="best so far")
    failed = [t.number for t in trials if t.state == "failed"]
    if failed:
        floor = axes.get_ylim()[0]
        axes.plot(failed, [floor] * len(failed), "v", color=VERMILION, markersize=5, label="failed")
    axes.set_xlabel("trial")
    axes.set_ylabel("score")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(axes, 5)
    return figure


def importance(shares: Mapping[str, float]) -> Figure:
    """Plot the importance of each setting."""
    names = list(shares)[::-1]
    figure, (axes,) = new_figure("What made trials differ", 0.9 + 0.28 * len(names))
    axes.barh(range(len(names)), [shares[name] for name in names], color=BLUE, height=0.65)
    axes.set_yticks(range(len(names)), names)
    axes.grid(False, axis="y")
    axes.set_xlabel("share of the importance (PED-ANOVA)")
    percent_axis(axes, "x")
    return figure


def slices(trials: Sequence[Trial], axes_of: Sequence[SearchAxis]) -> Figure:
    """Plot scores against one setting at a time; later trials are darker."""
    rows = -(-len(axes_of) // 3)
    figure, panels = new_grid("Score by setting", 0.6 + 1.9 * rows, rows, 3)
    scores = np.array([trial.score for trial in trials], np.float64)
    order = np.array([trial.number for trial in trials], np.float64)
    for panel, axis in zip(panels, axes_of, strict=False):
        places, ticks = _places(trials, axis)
        pale = -0.5 * order.max()
        panel.scatter(places, scores, c=order, cmap="Blues", vmin=pale, s=9, linewidth=0)
        panel.set_xlabel(axis.short, fontsize=9.5)
        panel.tick_params(labelsize=8.5)
        _scale(panel, axis, ticks)
    for panel in panels[len(axes_of) :]:
        panel.set_axis_off()
    for panel in panels[::3]:
        panel.set_ylabel("score")
    return figure


def _places(trials: Sequence[Trial], axis: SearchAxis) -> tuple[Floats, list[str]]:
    """Return the positions of trials on an axis, and the names of its choices."""
    values = [trial.suggestion.params[axis.name] for trial in trials]
    if not axis.choices:
        return np.array(values, np.float64), []
    jitter = np.random.default_rng(0).uniform(-0.22, 0.22, len(values))
    places = np.array([axis.choices.index(value) for value in values], np.float64)
    return places + jitter, [str(choice) for choice in axis.choices]


def _scale(panel: Axes, axis: SearchAxis, ticks: Sequence[str]) -> None:
    if ticks:
        panel.set_xticks(range(len(ticks)), [_clip(name) for name in ticks])
        if len(ticks) > 3:
            panel.tick_params(axis="x", rotation=40)
    elif axis.log:
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(numticks=4))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.xaxis.set_minor_formatter(NullFormatter())
    else:
        panel.xaxis.set_major_locator(MaxNLocator(4))


def _clip(text: str) -> str:
    return text if len(text) <= 10 else text[:9] + "…"


def parallel(trials: Sequence[Trial], axes_of: Sequence[SearchAxis]) -> Figure:
    """Plot each trial as a line through all settings (parallel coordinates), best on top."""
    figure, (panel,) = new_figure("Settings of all finished trials", 3.9)
    ranked = sorted(trials, key=lambda trial: trial.score or 0.0)
    scores = np.array([trial.score for trial in ranked], np.float64)
    low, high = np.quantile(scores, [0.05, 1.0]) if len(scores) else (0.0, 1.0)
    norm = Normalize(low, high if high > low else low + 1.0)
    colours = ScalarMappable(norm, _COLOURS)
    heights, places = np.array([_unit(ranked, axis) for axis in axes_of]), range(len(axes_of))
    for column, trial in enumerate(ranked):
        colour = colours.to_rgba(np.array(trial.score, np.float64))
        alpha = 0.35 + 0.6 * column / max(len(ranked) - 1, 1)
        panel.plot(places, heights[:, column], color=colour, linewidth=0.9, alpha=alpha)
    panel.set_xticks(places, [axis.short for axis in axes_of], rotation=30, ha="right")
    panel.set_yticks([])
    for place, axis in enumerate(axes_of):
        panel.axvline(place, color=PALE, linewidth=1.0, zorder=0)
        lowest, highest = _ends(ranked, axis)
        panel.text(place, -0.03, lowest, ha="center", va="top", fontsize=8, color=GREY)
        panel.text(place, 1.03, highest, ha="center", va="bottom", fontsize=8, color=GREY)
    panel.set_ylim(-0.12, 1.12)
    panel.grid(False)
    for spine in panel.spines.values():
        spine.set_visible(False)
    figure.colorbar(colours, ax=panel, label="score", pad=0.01, aspect=30)
    return figure


def _unit(trials: Sequence[Trial], axis: SearchAxis) -> Floats:
    """Return the values of an axis scaled to 0..1."""
    if axis.choices:
        most = max(len(axis.choices) - 1, 1)
        return np.array([axis.choices.index(t.suggestion.params[axis.name]) / most for t in trials])
    values = np.array([trial.suggestion.params[axis.name] for trial in trials], np.float64)
    values = np.log(values) if axis.log else values
    spread = float(np.ptp(values)) if len(values) else 0.0
    return (values - values.min()) / spread if spread > 0.0 else np.full(len(values), 0.5)


def _ends(trials: Sequence[Trial], axis: SearchAxis) -> tuple[str, str]:
    if axis.choices:
        return _clip(str(axis.choices[0])), _clip(str(axis.choices[-1]))
    values = [trial.suggestion.params[axis.name] for trial in trials]
    return f"{min(values):.3g}", f"{max(values):.3g}"


def folds(trials: Sequence[Trial], market: bool) -> Figure:
    """Plot the fold scores of the best trials as a heat map."""
    table = np.array(
        [[fold["score"] for fold in trial.last_decision.folds] for trial in trials], np.float64
    ).T
    most = max(float(np.nanmax(np.abs(table))), 1e-9)
    figure, (axes,) = new_figure(
        f"Score by fold, the best {len(trials)} trials", 1.3 + 0.34 * len(table)
    )
    axes.grid(False)
    colours, low, high = "RdBu", -most, most
    if not market:
        colours, low, high = _COLOURS, float(np.nanmin(table)), float(np.nanmax(table))
    shown = axes.imshow(table, cmap=colours, vmin=low, vmax=high, aspect="auto")
    axes.set_yticks(range(len(table)), [f"fold {k}" for k in range(len(table))])
    axes.set_xticks(range(len(trials)), [str(t.number) for t in trials], rotation=90, fontsize=8)
    axes.set_xlabel("trial, the best on the left")
    axes.tick_params(length=0)
    figure.colorbar(shown, ax=axes, pad=0.01, label="score")
    return figure


def confirmation(
    candidates: Sequence[Mapping[str, Any]], what: str, rivals: Mapping[str, float]
) -> Figure:
    """Plot lower bound, value and single seeds of each candidate.

    Args:
        candidates: entries of `result.json` that were trained to the end.
        what: label of the axis.
        rivals: benchmarks to outperform: names and lower bounds.
    """
    figure, (axes,) = new_figure("Confirmation on fresh seeds", 1.2 + 0.3 * len(candidates))
    names = ("single seeds", "all seeds", "lower bound")
    for place, one in enumerate(candidates[::-1]):
        seeds, value, lower = one["seeds"], one["value"], one["lcb"]
        each, all_of_them, least = names if place == 0 else ("", "", "")
        level = [place] * len(seeds)
        axes.plot(seeds, level, "o", color=GREY, markersize=4, alpha=0.7, label=each)
        axes.plot([lower, value], [place, place], color=BLUE, linewidth=1.6)
        axes.plot(value, place, "D", color=BLUE, markersize=5, label=all_of_them)
        axes.plot(lower, place, "|", color=BLUE, markersize=13, markeredgewidth=2.2, label=least)
    for place, (name, bound) in enumerate(rivals.items()):
        colour, dashes = ((INK, "-"), (ORANGE, DASHES[1]))[place]
        axes.axvline(bound, color=colour, linestyle=dashes, linewidth=1.0 + place, label=name)
    axes.set_yticks(range(len(candidates)), [f"trial {c['trial']}" for c in candidates[::-1]])
    axes.set_ylim(-0.6, len(candidates) - 0.4)
    axes.grid(False, axis="y")
    axes.set_xlabel(what)
    legend(axes, 3)
    return figure


def equity(title: str, lines: ReturnCurves, each: str, first: str = "") -> Figure:
    """Plot the return since the start: each path or seed (thin), their mean, equal weight, cash.

    Args:
        title: title of the picture.
        lines: daily returns.
        each: label of the thin lines.
        first: label of the first line if it is emphasized instead of the mean.
    """
    figure, (axes,) = new_figure(title, 3.6)
    when = dates(np.append(lines.time[:1] - DAY, lines.time))

    def growth(returns: Floats) -> Floats:
        return np.append(0.0, np.cumprod(1.0 + returns) - 1.0)

    thin = lines.curves[1:] if first else lines.curves
    strong = lines.curves[0] if first else lines.curves.mean(axis=0)
    for number, returns in enumerate(thin):
        label = each if number == 0 else ""
        axes.plot(when, growth(returns), color=BLUE, linewidth=0.8, alpha=0.45, label=label)
    if lines.benchmark is not None:
        other = growth(lines.benchmark)
        axes.plot(
            when, other, color=ORANGE, linestyle=DASHES[1], linewidth=1.6, label="equal weight"
        )
    axes.plot(when, growth(strong), color=BLUE, linewidth=2.0, label=first or "equal mix of them")
    axes.axhline(0.0, color=INK, linewidth=0.8, label="cash")
    growth_axis(axes)
    time_axis(axes)
    legend(axes, 2)
    return figure
