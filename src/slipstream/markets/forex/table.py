"""One symbol's bars, features, clock and rates, row by row as the kernel reads them.

The clock is one integer a bar and four columns of the observation; the quote currency is converted
into the account's bar by bar (docs/rules.md, section 3).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, DataError
from slipstream.core.timeline import DAY, NEW_YORK, NEW_YORK_ROLL, DayRoll, day_number, local_time
from slipstream.markets.data.bars import Bars
from slipstream.markets.data.calendar import (
    FRIDAY,
    SATURDAY,
    Calendar,
    calendar,
    day_weekday,
    swap_nights,
)
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import Market, load_market
from slipstream.markets.data.reading.source import find_files
from slipstream.markets.data.symbols import parse
from slipstream.markets.features.registry import compute, longest_memory
from slipstream.markets.forex.config import Config, clock_minutes
from slipstream.markets.forex.record import FLAT, NIGHT, ROLL

_ATR_FEATURE = "atr_14"  # what `record.ATR` is filled with


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
    text = longest_memory((*config.features, _ATR_FEATURE), market.bars[0].extra)
    return (
        f"{text}, which the rules themselves need" if text.startswith(f"{_ATR_FEATURE} ") else text
    )


def _table(bars: Bars, market: Market, days: Calendar, config: Config) -> tuple[SymbolTable, int]:
    features = compute(config.features, bars, market.bar_seconds)
    atr = compute((_ATR_FEATURE,), bars, market.bar_seconds)
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
    prices = (bars.open, bars.high, bars.low, bars.close, bars.spread)
    columns = (*prices, rates.at_open, rates.at_close, np.roll(atr.values[:, 0], 1))
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


def calendar_bits(
    time: NDArray[np.int64], bar_seconds: int, roll: DayRoll, config: Config
) -> NDArray[np.int64]:
    """Rolls, forced-flat fills and swap nights of each bar, int64 [n]; bits in `record`."""
    day = day_number(time, roll)
    rolled = np.diff(day, prepend=day[:1]) != 0
    flat = _flat(time, bar_seconds, roll, config)
    return rolled * ROLL + flat * FLAT + swap_nights(time, roll) * NIGHT


def _flat(
    time: NDArray[np.int64], bar_seconds: int, roll: DayRoll, config: Config
) -> NDArray[np.bool_]:
    """Whether the fill of the step into each bar happens at a time that must be flat.

    Only the fill's own clock time counts: whether another bar follows is not known then.
    """
    if config.fill == "next_open":
        return _flat_at(time, roll, config)
    closed = time + bar_seconds
    if config.fill == "compat_same_close":
        closed = np.concatenate([closed[:1], closed[:-1]])
    # A fill at the last close before the roll belongs to the day that ends there.
    return _flat_at(closed, roll, config) | _flat_at(closed - 1, roll, config)


def _flat_at(moment: NDArray[np.int64], roll: DayRoll, config: Config) -> NDArray[np.bool_]:
    local = local_time(moment, NEW_YORK) if roll == NEW_YORK_ROLL else moment
    roll_second = 17 * 3600 if roll == NEW_YORK_ROLL else 0
    flat = np.zeros(len(moment), dtype=np.bool_)
    if config.flat_at is not None:
        start = (60 * clock_minutes(config.flat_at) - roll_second) % DAY
        if start == 0:
            raise ConfigError(
                f"`env.flat_at` must lie before the day's roll ({roll}), got {config.flat_at!r}: "
                "positions would always be flat."
            )
        flat |= (local - roll_second) % DAY >= start
    if config.flat_on_friday is not None:
        friday = day_weekday(local // DAY) == FRIDAY
        flat |= friday & (local % DAY >= 60 * clock_minutes(config.flat_on_friday))
        flat |= day_weekday(day_number(moment, roll)) >= SATURDAY
    return flat


def clock_columns(time: NDArray[np.int64], bar_seconds: int, roll: DayRoll) -> NDArray[np.float64]:
    """Sine and cosine of time of day and of day of week at each bar's close, float64 [n, 4]."""
    closed = time + bar_seconds
    local = local_time(closed, NEW_YORK) if roll == NEW_YORK_ROLL else closed
    day_angle = 2.0 * np.pi * (local % DAY) / DAY
    week_angle = 2.0 * np.pi * day_weekday(local // DAY) / 7.0
    return np.stack(
        [np.sin(day_angle), np.cos(day_angle), np.sin(week_angle), np.cos(week_angle)], axis=1
    )


MAX_AGE = 4  # bars of the traded pair since the converting pair's last close


class Rates(NamedTuple):
    """Account currency per unit of quote currency.

    Attributes:
        at_open, at_close: float64 [n], at each bar's open and close.
        usable: bool [n], false where the converting pair's last close is too old.
        inverse: the rate is 1 / mid of the traded pair itself.
        pair: the converting pair, None where none is needed.
        note: a sentence the user must see, or None.
        accepted: findings about the converting pair that the config's `accept` let in.
    """

    at_open: NDArray[np.float64]
    at_close: NDArray[np.float64]
    usable: NDArray[np.bool_]
    inverse: bool
    pair: str | None
    note: str | None
    accepted: tuple[str, ...] = ()


def conversion(bars: Bars, account: str, market: Market, data: DataConfig) -> Rates:
    """The rates of one symbol, from its own prices or from a second pair in the folder.

    Raises:
        DataError: the pair that converts its quote currency is not there.
    """
    ones = np.ones(len(bars))
    always = np.ones(len(bars), dtype=np.bool_)
    pair = parse(bars.symbol)
    if pair is None:
        note = (
            f"{bars.symbol} does not name its currencies: its prices are taken to be in {account}."
        )
        return Rates(ones, ones, always, False, None, note)
    if pair.quote == account:
        return Rates(ones, ones, always, False, None, None)
    if pair.base == account:
        return Rates(1.0 / bars.open, 1.0 / bars.close, always, True, bars.symbol, None)
    second, quoted_in_account, accepted = _converting_pair(
        bars.symbol, pair.quote, account, market, data
    )
    closed_at = second.time + market.bar_seconds
    at_open, age_open = _last_close(second, closed_at, bars.time, bars.time + market.bar_seconds)
    at_close, age_close = _last_close(
        second, closed_at, bars.time + market.bar_seconds, bars.time + market.bar_seconds
    )
    if not quoted_in_account:
        at_open, at_close = 1.0 / at_open, 1.0 / at_close
    usable = np.maximum(age_open, age_close) <= MAX_AGE
    dropped = int(np.count_nonzero(~usable))
    note = f"{bars.symbol}: {pair.quote} is converted into {account} by {second.symbol}."
    if dropped:
        when = np.datetime64(int(bars.time[np.flatnonzero(~usable)[0]]), "s")
        note += (
            f" {dropped:,} bars were left out because {second.symbol} had no close within "
            f"{MAX_AGE} bars before them (first: {when} UTC)."
        )
    return Rates(at_open, at_close, usable, False, second.symbol, note, accepted)


def _converting_pair(
    symbol: str, quote: str, account: str, market: Market, data: DataConfig
) -> tuple[Bars, bool, tuple[str, ...]]:
    """The bars that convert `quote`, whether in the account currency, and what was accepted."""
    here = {one.symbol: one for one in (*market.bars, *market.converting)}
    folder = data.model_copy(update={"symbols": None})
    try:
        others = [one for one in find_files(folder) if one not in here]
    except (ConfigError, DataError):  # a market that did not come from this folder
        others = []
    for name in (*here, *others):
        pair = parse(name)
        if pair is None or {pair.base, pair.quote} != {quote, account}:
            continue
        if name in here:
            bars, accepted = here[name], tuple[str, ...]()
        else:
            second = load_market(data.model_copy(update={"symbols": (name,)}))
            if second.bar_seconds != market.bar_seconds:
                continue
            bars, accepted = second.symbol(name), second.accepted
        return bars, pair.quote == account, accepted
    raise DataError(
        f"{symbol} earns {quote}, and turning that into {account} needs {quote}{account} or "
        f"{account}{quote} with bars of the same length; neither is in {data.folder}. Add one of "
        f"them, or choose an `account_currency` that {symbol} contains."
    )


def _last_close(
    second: Bars,
    closed_at: NDArray[np.int64],
    moment: NDArray[np.int64],
    own_close: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Last close known at each moment, and its age in closes of the traded pair.

    Age counts bars, not hours: nothing ages while both markets are closed.
    """
    index = np.searchsorted(closed_at, moment, side="right") - 1
    price = second.close[np.maximum(index, 0)]
    seen = np.searchsorted(own_close, moment, side="right")
    at_close = np.searchsorted(own_close, closed_at[np.maximum(index, 0)], side="right")
    age = np.where(index >= 0, seen - at_close, MAX_AGE + 1)
    return price, age
