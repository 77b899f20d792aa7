"""One symbol's bars, features, calendar and rates, row by row as the kernel reads them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import DataError
from slipstream.envs.forex.calendar import calendar_bits, clock_columns
from slipstream.envs.forex.config import Config
from slipstream.envs.forex.rates import Rates, conversion
from slipstream.features.registry import compute, longest_memory
from slipstream.market.bars import Bars
from slipstream.market.calendar import Calendar, calendar
from slipstream.market.market import Market

ATR = "atr_14"


class SymbolTable(NamedTuple):
    """One symbol's rows after warm-up."""

    symbol: str
    time: NDArray[np.int64]
    bars: NDArray[np.float64]
    features: NDArray[np.float32]
    calendar: NDArray[np.int64]
    rates: Rates
    notes: tuple[str, ...]


def tables_of(market: Market, config: Config) -> tuple[list[SymbolTable], int]:
    """The tables of a market's symbols, and the longest warm-up among them in bars."""
    days = calendar(market.kind, market.bar_seconds)
    tables, longest = [], 0
    for bars in market.bars:
        table, warm_up = _table(bars, market, days, config)
        tables.append(table)
        longest = max(longest, warm_up)
    return tables, longest


def memory_of(config: Config, market: Market) -> str:
    """What remembers most, features or rules, in words, for messages about too few bars."""
    text = longest_memory((*config.features, ATR), market.bars[0].extra)
    return f"{text}, which the rules themselves need" if text.startswith(f"{ATR} ") else text


def _table(bars: Bars, market: Market, days: Calendar, config: Config) -> tuple[SymbolTable, int]:
    features = compute(config.features, bars, market.bar_seconds)
    atr = compute((ATR,), bars, market.bar_seconds)
    warm_up = max(features.warm_up, atr.warm_up + 1)
    rates = conversion(bars, config.account_currency, market, config.data)
    keep = rates.usable.copy()
    keep[:warm_up] = False
    if np.count_nonzero(keep) < config.lookback + 1:
        raise DataError(
            f"{bars.symbol} must have more than {warm_up + config.lookback:,} bars (warm-up "
            f"{warm_up:,} of the features, lookback {config.lookback:,}), it has {len(bars):,}: "
            "load more bars, or choose features with a shorter memory."
        )
    time = bars.time[keep]
    values = features.values[keep]
    columns = (bars.open, bars.high, bars.low, bars.close, bars.spread)
    columns = (*columns, rates.at_open, rates.at_close, np.roll(atr.values[:, 0], 1))
    clock = clock_columns(time, market.bar_seconds, days.day_roll)
    table = SymbolTable(
        bars.symbol,
        time,
        np.stack([column[keep] for column in columns], axis=1),
        np.concatenate([values, clock], axis=1).astype(np.float32),
        calendar_bits(time, market.bar_seconds, days.day_roll, config),
        rates,
        (rates.note,) if rates.note else (),
    )
    return table, warm_up
