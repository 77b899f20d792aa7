"""From a portfolio's evaluated tracks to everything that its report shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from slipstream.report.inputs import Holdings, Prices, RoundTrip, RunEvaluation
from slipstream.report.market.stress import stress
from slipstream.report.portfolio.baselines import compare, rivals
from slipstream.report.portfolio.passes import PortfolioPasses
from slipstream.training.record.track import Track

# Split of the data -> name on the page.
LABELS = {"train_window": "train", "window": "chosen window"}


def with_portfolio(
    run: RunEvaluation,
    passes: Mapping[str, PortfolioPasses],
    agent: Sequence[Track],
    holdout: str,
    draws: int,
) -> RunEvaluation:
    """Adds market, prices, baselines and stress tests to `run`.

    Args:
        run: with the tracks of each split.
        passes: by split of the data.
        agent: tracks of the shown member on the hold-out.
        holdout: the split of the headline.
        draws: matched random traders.
    """
    held = passes[holdout]
    return replace(
        run,
        market=held.kernel.spec(held.params[0], held.data).market,
        prices=Prices(held.declared[0].time, np.empty(0)),
        holdings=holdings_of(held),
        comparisons={
            LABELS.get(name, name): compare(split, agent, draws)
            if name == holdout
            else rivals(split)
            for name, split in passes.items()
        },
        stress=stress(held, agent),
        round_trips=tuple(_round_trips(held)),
    )


def holdings_of(passes: PortfolioPasses) -> Holdings:
    """Closes and fills of all assets; what cannot be traded stands at its last close."""
    one = passes.declared[0]
    return Holdings(passes.assets, one.close, one.fill)


def _round_trips(passes: PortfolioPasses) -> list[RoundTrip]:
    """Mean cost of buying and selling each asset; a tiered fee counts as at the start."""
    one = passes.declared[0]
    rows = slice(one.first + 1, one.last + 1)
    found = []
    for k, name in enumerate(passes.assets):
        close = one.close[rows, k]
        if not (close > 0.0).any():  # a universe of all assets has some that are gone, or to come
            continue
        spread = float(np.mean(one.half_spread[rows, k][close > 0.0] / close[close > 0.0]))
        cost = 2.0 * (one.start_fee + one.slippage + spread) * one.cost_multiple
        found.append(RoundTrip(name, float("nan"), cost * 1e4))
    return found
