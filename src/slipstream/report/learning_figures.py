"""Pictures of learning itself, for every environment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from slipstream.report.canvas import (
    BLUE,
    GREY,
    ORANGE,
    SKY,
    VERMILION,
    canvas,
    grid,
    legend,
    percent_axis,
)
from slipstream.report.inputs import Curve
from slipstream.report.statistics import Floats

_COLOURS = {"training": GREY, "validation": BLUE, "evaluation": BLUE}


def learning(
    curves: Sequence[Curve], chosen: Sequence[tuple[int, float]] = (), shown: int = 0
) -> Figure:
    """Scores over steps, a panel for each unit: members thin, their mean strong.

    Args:
        curves: the last one is what policies are chosen by.
        chosen: step and score at which each member's policy was chosen.
        shown: index of the member whose policy the report shows.
    """
    units = list(dict.fromkeys(curve.unit for curve in curves))
    figure, panels = canvas("Learning curve", 1.2 + 2.0 * len(units), [1.0] * len(units))
    for curve in curves:
        _draw(panels[units.index(curve.unit)], curve)
    if chosen:
        _mark(panels[units.index(curves[-1].unit)], chosen, shown)
    for axes, unit in zip(panels, units, strict=True):
        axes.set_ylabel(unit)
        legend(axes, 2)  # long names: more columns would leave the panel no room
    panels[-1].set_xlabel("steps per member")
    panels[-1].xaxis.set_major_formatter(FuncFormatter(count))
    return figure


def _mark(axes: Axes, chosen: Sequence[tuple[int, float]], shown: int) -> None:
    """Where policies were chosen: a star for the one that is shown, small ones for the others."""
    others = [place for index, place in enumerate(chosen) if index != shown]
    if others:
        label = "chosen, other members"
        at, scores = zip(*others, strict=True)
        axes.scatter(at, scores, s=28, marker="*", color=SKY, zorder=4, label=label)
    steps, score = chosen[shown]
    axes.axvline(steps, color=VERMILION, linewidth=0.8, linestyle=":", zorder=3)
    axes.scatter(
        [steps], [score], s=130, marker="*", color=VERMILION, zorder=5, label="chosen and shown"
    )


def _draw(axes: Axes, curve: Curve, colour: str | None = None) -> None:
    colour = colour or _COLOURS.get(curve.name, ORANGE)
    members = curve.score.shape[1]
    if members > 1:
        axes.plot(curve.steps, curve.score, color=colour, linewidth=0.6, alpha=0.4)
    seen = ~np.isnan(curve.score).all(axis=1)
    axes.plot(
        curve.steps[seen],
        np.nanmean(curve.score[seen], axis=1),
        color=colour,
        linewidth=1.8,
        marker="o" if len(curve.steps) <= 40 else None,
        markersize=4,
        label=curve.name if members == 1 else f"{curve.name}, mean of members",
    )


def episodes(curves: Sequence[Curve]) -> Figure:
    """Training episodes over steps, a panel for each figure: members thin, their mean strong."""
    rows = -(-len(curves) // 2)
    title = "Training episodes, means of the last 100"
    figure, panels = grid(title, 0.7 + 1.55 * rows, rows, 2, share="x")
    for axes, curve in zip(panels, curves, strict=False):
        _draw(axes, curve, BLUE)
        unit = f" ({curve.unit})" if curve.unit else ""
        axes.set_title(f"{curve.name}{unit}", loc="left", fontsize=9.5)
        axes.tick_params(labelsize=9)
        axes.yaxis.set_major_formatter(FuncFormatter(count))
        axes.xaxis.set_major_formatter(FuncFormatter(count))
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    for axes in panels[max(0, len(curves) - 2) : len(curves)]:  # the lowest of each column
        axes.tick_params(labelbottom=True)
    figure.supxlabel("steps per member", fontsize=9.5)
    return figure


def count(value: float, _: object) -> str:
    """ "1.5 M" for a tick."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g} {letter}"
    return f"{value:g}"


def episode_returns(agent: Floats, random: Floats) -> Figure:
    """Histogram of episode returns beside those of a random policy."""
    figure, (axes,) = canvas("Episode returns", 3.2)
    both = np.concatenate([agent, random])
    low, high = float(both.min()), float(both.max())
    edges = np.linspace(low, high if high > low else low + 1.0, 31)
    for values, colour, alpha, label in (
        (random, GREY, 0.6, "random policy"),
        (agent, BLUE, 0.75, "agent"),
    ):
        if len(values):
            each = np.full(len(values), 1 / len(values))
            axes.hist(values, list(edges), weights=each, color=colour, alpha=alpha, label=label)
    axes.set_xlabel("episode return")
    axes.set_ylabel("share of episodes")
    percent_axis(axes)
    legend(axes)
    return figure
