"""What the portfolio environment says about itself: facts and notes for the run directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from slipstream.core.conditions import Conditions
from slipstream.markets.features.registry import parameters_of
from slipstream.markets.portfolio.arrays import PanelSegments, PanelTable, tiers_of
from slipstream.markets.portfolio.config import Config
from slipstream.markets.portfolio.record import Picked


def spreads_of(table: PanelTable, layout: PanelSegments, picked: Picked) -> dict[str, float]:
    """Mean spread over close of each asset, basis points, over all bars that are trained on.

    Of folds these are the development bars: the hold-out is not read.
    """
    name = "development/train" if "development/train" in picked else "train"
    rows = np.concatenate([np.arange(*layout.rows[k]) for k in picked[name]])
    listed = table.known[rows]
    share = np.divide(
        table.panel.spread[rows], table.panel.close[rows], out=np.zeros(listed.shape), where=listed
    )
    mean = share.sum(axis=0) / np.maximum(listed.sum(axis=0), 1)
    return {
        name: float(1e4 * one) for name, one in zip(table.panel.symbols, mean.tolist(), strict=True)
    }


def round_trips(config: Config, spread_bp: Mapping[str, float]) -> dict[str, Any]:
    """What buying and selling each asset costs on average; tiers as at `start_volume`."""
    tiers = tiers_of(config)
    fee = float(tiers[np.searchsorted(tiers[:, 0], config.start_volume, side="right") - 1, 1])
    return {
        name: {
            "spread_bp": spread,
            "basis_points": 2.0 * (1e4 * fee + config.slippage_bp) + spread,
        }
        for name, spread in spread_bp.items()
    }


def conditions_of(config: Config, table: PanelTable) -> Conditions:
    """What a policy that is trained on these prices takes along."""
    panel, features = table.panel, table.features
    blank = Conditions(
        bar_seconds=panel.bar_seconds,
        symbols=tuple(panel.symbols),
        symbols_at_once=len(panel.symbols),
        features=tuple(parameters_of(features.names, panel.extra)),
        warm_up_bars=features.warm_up,
        lookback=config.lookback,
        fill="next_open",
        decide_every=config.decide_every,
        data_sha256=panel.hash,
    )
    return varied_conditions(blank, config)


def varied_conditions(conditions: Conditions, config: Config) -> Conditions:
    """The same prices under other settings that need no other arrays."""
    own = {"data", "split", "features", "lookback", "decide_every"}
    return replace(
        conditions,
        fill="next_close" if config.orders == "units" else "next_open",
        decide_every=config.decide_every,
        settings=config.model_dump(mode="json", exclude=own),
    )


def notes_of(config: Config, bar_seconds: int) -> list[str]:
    """What the settings mean here."""
    notes = []
    if config.orders == "units" and config.units.forced_sale_bars > 0:
        bars = config.units.forced_sale_bars
        notes.append(
            f"`units.forced_sale_bars`: {bars} bars are {bars * bar_seconds / 3600:g} hours here."
        )
    if not config.benchmark_costs:
        notes.append(
            "`benchmark_costs: false`: equal weight trades for free, as in FinRL_Crypto, and is "
            "harder to beat than the one that anybody could hold."
        )
    if config.fee == 0.0 and not config.fee_tiers and config.slippage_bp == 0.0:
        notes.append("Trading is free here but for the spread: fee and slippage are 0.")
    return notes
