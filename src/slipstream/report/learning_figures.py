"""Pictures of learning itself, for every environment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from slipstream.report.canvas import BLUE, GREY, ORANGE, canvas, legend, percent_axis
from slipstream.report.inputs import Curve
from slipstream.report.statistics import Floats


def learning(curves: Sequence[Curve], score: str) -> Figure:
    """Scores over steps: members thin, their mean strong."""
    figure, (axes,) = canvas("Learning curve", 3.2)
    colours = {"training": GREY, "validation": BLUE}
    for curve in curves:
        colour = colours.get(curve.name, ORANGE)
        mark = "o" if len(curve.steps) <= 40 else None
        if curve.score.shape[1] > 1:
            axes.plot(curve.steps, curve.score, color=colour, linewidth=0.6, alpha=0.4)
        seen = ~np.isnan(curve.score).all(axis=1)
        axes.plot(
            curve.steps[seen],
            np.nanmean(curve.score[seen], axis=1),
            color=colour,
            linewidth=1.8,
            marker=mark,
            markersize=4,
            label=curve.name if curve.score.shape[1] == 1 else f"{curve.name}, mean of members",
        )
    axes.set_xlabel("steps per member")
    axes.set_ylabel(score)
    axes.xaxis.set_major_formatter(FuncFormatter(_count))
    legend(axes)
    return figure


def _count(value: float, _: object) -> str:
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
    if len(random):
        axes.hist(
            random,
            bins=list(edges),
            color=GREY,
            alpha=0.6,
            label="random policy",
            weights=np.full(len(random), 1 / len(random)),
        )
    axes.hist(
        agent,
        bins=list(edges),
        color=BLUE,
        alpha=0.75,
        label="agent",
        weights=np.full(len(agent), 1 / len(agent)),
    )
    axes.set_xlabel("episode return")
    axes.set_ylabel("share of episodes")
    percent_axis(axes)
    legend(axes)
    return figure
