"""A portfolio's weights over time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from slipstream.report.canvas import PALE, canvas, dates, legend, percent_axis, time_axis
from slipstream.report.inputs import Holdings
from slipstream.report.market.account import bars
from slipstream.report.statistics import Ints
from slipstream.training.record.track import Track

_MOST_PIECES = 400
# Okabe and Ito's palette and lighter shades of it, for a dozen assets; then it begins again.
_SHADES = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"),
    *("#66AAD1", "#F0C566", "#66C5AB", "#E0AFCA", "#E69E66"),
)


def weights(split: str, tracks: Sequence[Track], holdings: Holdings, time: Ints) -> Figure:
    """Stacked shares of equity in each asset, and cash; means over neighbouring bars."""
    rows = np.concatenate([bars(t) for t in tracks])
    value = np.concatenate([t.trace["units"] * holdings.close[bars(t)] for t in tracks])
    equity = np.concatenate([t.trace["equity"].ravel() for t in tracks])
    share = value / np.maximum(equity, 1e-12)[:, None]
    edges = np.unique(np.linspace(0, len(rows), min(_MOST_PIECES, len(rows)) + 1).astype(np.int64))
    means = np.add.reduceat(share, edges[:-1], axis=0) / np.diff(edges)[:, None]
    figure, (axes,) = canvas(f"Weights, {split}", 3.6)
    colours = [_SHADES[k % len(_SHADES)] for k in range(len(holdings.names))]
    axes.stackplot(
        dates(time[rows[edges[:-1]]]),
        *means.T,
        np.clip(1.0 - means.sum(axis=1), 0.0, None),
        labels=[*holdings.names, "cash"],
        colors=[*colours, PALE],
        linewidth=0,
    )
    axes.set_ylim(0.0, 1.0)
    axes.set_ylabel("share of equity")
    axes.margins(x=0.0)
    percent_axis(axes)
    time_axis(axes)
    legend(axes, 6)
    return figure
