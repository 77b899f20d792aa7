"""Conversion of quote currency into account currency, bar by bar (docs/rules.md, section 3)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, DataError
from slipstream.market.bars import Bars
from slipstream.market.config import DataConfig
from slipstream.market.market import Market, load_market
from slipstream.market.reading.source import find_files
from slipstream.market.symbols import parse

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
        second,
        closed_at,
        bars.time + market.bar_seconds,
        bars.time + market.bar_seconds,
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
    currencies = {one: parse(one) for one in market.symbols}
    folder = data.model_copy(update={"symbols": None})
    try:
        others = [one for one in find_files(folder) if one not in currencies]
    except (ConfigError, DataError):  # a market that did not come from this folder
        others = []
    for name in (*market.symbols, *others):
        pair = parse(name)
        if pair is None or {pair.base, pair.quote} != {quote, account}:
            continue
        if name in currencies:
            bars, accepted = market.symbol(name), ()
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
