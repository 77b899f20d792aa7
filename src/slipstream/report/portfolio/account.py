"""A portfolio's passes as one account, and what each asset made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.report.inputs import Holdings
from slipstream.report.market.account import bars
from slipstream.report.statistics import Floats, Ints
from slipstream.training.record.track import Track


@dataclass(frozen=True)
class AssetShare:
    """One asset in a portfolio.

    Attributes:
        name: of the asset.
        profit: what its prices made, before costs, over the start of the first pass.
        weight: mean share of equity after each bar.
        held: share of bars after which some of it is held.
        change: of its price over the passes.
    """

    name: str
    profit: float
    weight: float
    held: float
    change: float


def by_asset(tracks: Sequence[Track], holdings: Holdings, initial: float) -> list[AssetShare]:
    """One row an asset."""
    count = len(holdings.names)
    profit, weight, held = np.zeros(count), np.zeros(count), np.zeros(count)
    change, steps, scale = np.ones(count), 0, 1.0
    for track in tracks:
        rows = bars(track)
        units, equity = track.trace["units"], track.trace["equity"].ravel()
        profit += scale * gains(units, rows, holdings).sum(axis=0)
        weight += (units * holdings.close[rows] / equity[:, None]).sum(axis=0)
        held += np.count_nonzero(units > 0.0, axis=0)
        steps += len(rows)
        before, after = holdings.close[rows[0] - 1], holdings.close[rows[-1]]
        change *= np.where((before > 0.0) & (after > 0.0), after / np.maximum(before, 1e-300), 1.0)
        scale *= float(equity[-1]) / initial
    return [
        AssetShare(
            name,
            float(profit[k]) / initial,
            float(weight[k]) / steps,
            float(held[k]) / steps,
            float(change[k]) - 1.0,
        )
        for k, name in enumerate(holdings.names)
    ]


def gains(units: Floats, rows: Ints, holdings: Holdings) -> Floats:
    """What each bar's prices made of each asset before costs, account currency [n, A].

    The units held before earn from close to close, the change of units from its fill to the close.
    The last bar sells everything at its close; what was traded at its open is not told apart.
    """
    close = holdings.close
    before = np.concatenate([np.zeros((1, units.shape[1])), units[:-1]])
    fill = holdings.fill[rows].copy()
    fill[-1] = close[rows[-1]]
    moved = before * (close[rows] - close[rows - 1])
    return np.asarray(moved + (units - before) * (close[rows] - fill))
