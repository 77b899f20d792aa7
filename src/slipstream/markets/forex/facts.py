"""What the forex environment says about itself: notes for the user, facts for the run directory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.conditions import Conditions
from slipstream.markets.data.market import Market
from slipstream.markets.data.symbols import pip
from slipstream.markets.features.registry import never_changes, parameters_of
from slipstream.markets.forex.config import Config
from slipstream.markets.forex.table import SymbolTable


def notes_of(config: Config, bars: Iterable[NDArray[np.float64]]) -> list[str]:
    """Sentences about the settings; `bars` float64 [n, 8] of each symbol, those trained on."""
    notes = []
    if config.fill == "compat_same_close":
        notes.append(
            "`fill: compat_same_close` fills at the very close that the agent has just seen. "
            "Nobody can trade that: results contain the bid-ask bounce and compare with no others."
        )
    if config.swap_long == 0.0 and config.swap_short == 0.0:
        notes.append("Financing not modelled: `swap_long` and `swap_short` are 0.")
    free = not any(own[:, 4].any() for own in bars) and config.slippage_pips == 0.0
    if free and config.commission_per_million == 0.0:
        notes.append("Trading is free here: spread, slippage and commission are all 0.")
    return notes


def feature_notes(config: Config, tables: list[SymbolTable], window: list[int]) -> list[str]:
    """Sentences about features that never change in a window of UTC seconds."""
    notes = []
    for table in tables:
        low, high = np.searchsorted(table.time, window)
        own = table.features[low:high, : len(config.features)]
        notes += never_changes(table.symbol, config.features, own)
    return notes


def round_trips(config: Config, tables: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    """What buying and selling costs on average, by symbol; `tables` float64 [n, 8] each."""
    trips = {}
    for symbol, bars in tables.items():
        spread = float(bars[:, 4].mean())
        price = float(bars[:, 3].mean())
        cost = spread + 2.0 * config.slippage_pips * pip(symbol)
        cost += 2.0 * config.commission_per_million * 1e-6 * price
        trips[symbol] = {
            "pips": cost / pip(symbol),
            "basis_points": 1e4 * cost / price,
        }
    return trips


def bar_moves(tables: list[SymbolTable], window: list[int], bar_seconds: int) -> dict[str, float]:
    """Deviation of neighbouring closes' log ratios in a window, basis points, by symbol.

    Symbols with fewer than three bars there are left out.
    """
    moves = {}
    for table in tables:
        low, high = np.searchsorted(table.time, window)
        close, time = table.bars[low:high, 3], table.time[low:high]
        ratios = np.diff(np.log(close))[np.diff(time) == bar_seconds]
        if len(ratios) > 1:
            moves[table.symbol] = 1e4 * float(np.std(ratios, ddof=1))
    return moves


def bars_in(
    tables: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]], window: list[int]
) -> dict[str, NDArray[np.float64]]:
    """Bars [n, 8] of each symbol that begin in a window of UTC seconds."""
    found = {}
    for symbol, (time, bars) in tables.items():
        low, high = np.searchsorted(time, window)
        found[symbol] = bars[low:high]
    return found


def accepted(market: Market, tables: list[SymbolTable]) -> list[str]:
    """What `accept` let in, in the market's symbols and in the pairs that convert their profits."""
    converting = [sentence for table in tables for sentence in table.rates.accepted]
    return [*market.accepted, *dict.fromkeys(converting)]


def conditions_of(config: Config, market: Market, warm_up: int) -> Conditions:
    """What a policy that is trained on these prices takes along.

    Args:
        config, market: settings and files.
        warm_up: bars, of all that a row needs.
    """
    blank = Conditions(
        bar_seconds=market.bar_seconds,
        symbols=tuple(bars.symbol for bars in market.bars),
        symbols_at_once=1,
        features=tuple(parameters_of(config.features, market.bars[0].extra)),
        warm_up_bars=warm_up,
        lookback=config.lookback,
        fill=config.fill,
        decide_every=1,
        data_sha256=market.hash,
    )
    return varied_conditions(blank, config)


def varied_conditions(conditions: Conditions, config: Config) -> Conditions:
    """The same prices under other settings that need no other arrays."""
    own = {"data", "split", "features", "lookback", "fill"}
    settings = config.model_dump(mode="json", exclude=own)
    return replace(conditions, fill=config.fill, settings=settings)


def facts_of(
    config: Config, market: Market, tables: list[SymbolTable], windows: dict[str, list[int]]
) -> dict[str, Any]:
    """JSON-able facts for the run directory.

    What is told about costs and moves is of the bars that are trained on: of folds those are the
    development bars, and the hold-out is not read.

    Args:
        config, market, tables: settings, files, and what was made of them.
        windows: UTC seconds by split; what is trained on comes first.
    """
    window = next(iter(windows.values()))
    known = bars_in({table.symbol: (table.time, table.bars) for table in tables}, window)
    return {
        "market_sha256": market.hash,
        "accepted": accepted(market, tables),
        "symbols": [table.symbol for table in tables],
        "bar_seconds": market.bar_seconds,
        "bars": {table.symbol: len(table.time) for table in tables},
        "windows_utc_seconds": windows,
        "converted_by": {table.symbol: table.rates.pair for table in tables},
        "round_trip": round_trips(config, known),
        "bar_move": bar_moves(tables, window, market.bar_seconds),
    }
