"""From a portfolio's evaluated tracks to everything that its report shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from slipstream.core.kernel import Kernel, Loaded
from slipstream.report.inputs import Holdings, Prices, RoundTrip, RunEvaluation
from slipstream.report.portfolio_baselines import compare, rivals
from slipstream.report.portfolio_passes import PortfolioPasses
from slipstream.report.stress import stress
from slipstream.training.record.track import Track

# Split of the data -> name on the page.
LABELS = {"train_window": "train", "window": "chosen window"}


def with_portfolio(
    run: RunEvaluation,
    kernel: Kernel,
    loaded: Loaded,
    tracks: Mapping[str, Sequence[Sequence[Track]]],
    holdout: str,
    backend: str,
    draws: int,
) -> RunEvaluation:
    """Adds market, prices, baselines and stress tests to `run`; arguments as for `gather`."""
    passes = {name: PortfolioPasses(kernel, loaded, name, backend) for name in tracks}
    held, agent = passes[holdout], tracks[holdout][run.member]
    return replace(
        run,
        holdout=LABELS.get(holdout, holdout),
        tracks={
            LABELS.get(name, name): [_named(mine, passes[name]) for mine in members]
            for name, members in tracks.items()
        },
        market=kernel.spec(held.params[0], loaded.data).market,
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


def _named(tracks: Sequence[Track], passes: PortfolioPasses) -> list[Track]:
    return [replace(t, name=n) for t, n in zip(tracks, passes.symbols, strict=True)]


def _round_trips(passes: PortfolioPasses) -> list[RoundTrip]:
    """Mean cost of buying and selling each asset; a tiered fee counts as at the start."""
    one = passes.declared[0]
    rows = slice(one.first + 1, one.last + 1)
    found = []
    for k, name in enumerate(passes.assets):
        close = one.close[rows, k]
        spread = float(np.mean(one.half_spread[rows, k][close > 0.0] / close[close > 0.0]))
        cost = 2.0 * (one.start_fee + one.slippage + spread) * one.cost_multiple
        found.append(RoundTrip(name, float("nan"), cost * 1e4))
    return found
