"""From a config to the forex environment's arrays and records; the only part that reads files."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import DataError
from slipstream.core.kernel import Loaded
from slipstream.envs._forex_calendar import calendar_bits, clock_columns
from slipstream.envs._forex_config import Config
from slipstream.envs._forex_params import params_of
from slipstream.envs._forex_rates import Rates, conversion
from slipstream.envs._forex_record import Data
from slipstream.features.registry import compute
from slipstream.market.bars import Bars
from slipstream.market.calendar import Calendar, calendar
from slipstream.market.market import Market, load_market
from slipstream.market.split import split_times
from slipstream.market.symbols import pip

Times = dict[str, tuple[int, int]]
_NAME_LENGTH = 32
_ATR = "atr_14"
_LINE = 64  # bytes of a cache line


class _Table(NamedTuple):
    """One symbol's rows after warm-up, as the kernel reads them."""

    symbol: str
    time: NDArray[np.int64]
    bars: NDArray[np.float64]
    features: NDArray[np.float32]
    calendar: NDArray[np.int64]
    rates: Rates
    notes: tuple[str, ...]


def load(config: Config) -> Loaded:
    """Loads prices, computes features and deals out windows.

    Splits: `train` starts at random within the training window; `train_window`, `validation` and
    `test` are continuous passes, one record a symbol.
    """
    market = load_market(config.data)
    tables, warm_up = _tables(market, config)
    embargo = config.lookback + warm_up
    return _assemble(market, tables, split_times(market, config.split, embargo), config)


def load_window(config: Config, start: int | None = None, stop: int | None = None) -> Loaded:
    """Everything between two moments (UTC seconds, half open) as one window, split `window`.

    For scoring a policy on other bars than it was trained on; `config.split` is not used.
    """
    market = load_market(config.data)
    tables, _ = _tables(market, config)
    first = min(int(table.time[0]) for table in tables) if start is None else start
    last = max(int(table.time[-1]) + 1 for table in tables) if stop is None else stop
    for table in tables:
        if np.count_nonzero((table.time >= first) & (table.time < last)) < 2:
            raise DataError(
                f"The chosen window, {_date(first)} to {_date(last)}, holds fewer than 2 usable "
                f"bars of {table.symbol}, which has them from {_date(int(table.time[0]))} to "
                f"{_date(int(table.time[-1]))}: choose a window within that."
            )
    loaded = _assemble(market, tables, {"train": (first, last)}, config)
    params = {"train": loaded.params["train"], "window": loaded.params["train_window"]}
    return Loaded(loaded.data, params, loaded.notes, loaded.provenance)


def _date(seconds: int) -> str:
    return str(np.datetime64(seconds, "s")).replace("T", " ") + " UTC"


def _tables(market: Market, config: Config) -> tuple[list[_Table], int]:
    days = calendar(market.kind, market.bar_seconds)
    tables, longest = [], 0
    for bars in market.bars:
        table, warm_up = _table(bars, market, days, config)
        tables.append(table)
        longest = max(longest, warm_up)
    return tables, longest


def _table(bars: Bars, market: Market, days: Calendar, config: Config) -> tuple[_Table, int]:
    features = compute(config.features, bars, market.bar_seconds)
    atr = compute((_ATR,), bars, market.bar_seconds)
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
    table = _Table(
        bars.symbol,
        time,
        np.stack([column[keep] for column in columns], axis=1),
        np.concatenate([values, clock], axis=1).astype(np.float32),
        calendar_bits(time, market.bar_seconds, days.day_roll, config),
        rates,
        (*features.notes, *((rates.note,) if rates.note else ())),
    )
    return table, warm_up


def _assemble(market: Market, tables: list[_Table], times: Times, config: Config) -> Loaded:
    """Lays symbols end to end and cuts the windows out of them."""
    days = calendar(market.kind, market.bar_seconds)
    offsets = np.cumsum([0, *(len(table.time) for table in tables)])
    rows: list[tuple[int, int]] = []
    symbol_of: list[int] = []
    picked: dict[str, list[int]] = {}
    notes = [*market.notes, *(note for table in tables for note in table.notes)]
    for split, (start, stop) in times.items():
        picked[split] = []
        for index, table in enumerate(tables):
            low, high = (int(row) for row in np.searchsorted(table.time, [start, stop]))
            low = max(low, config.lookback - 1)
            if high - low < 2:
                if split == "train":
                    raise DataError(
                        f"{table.symbol} must have at least 2 usable bars in the training window, "
                        f"it has {max(high - low, 0)}: leave the symbol out or load more bars."
                    )
                notes.append(
                    f"{table.symbol} has no bars in the {split} window and is not scored there."
                )
                continue
            picked[split].append(len(rows))
            rows.append((int(offsets[index]) + low, int(offsets[index]) + high))
            symbol_of.append(index)
    segments = np.array(rows, dtype=np.int64)
    bars = _cache_lines([table.bars for table in tables])
    features = _cache_lines([table.features for table in tables])
    train = [segments[k] for k in picked["train"]]
    seen = np.concatenate([features[low:high, : len(config.features)] for low, high in train])
    deviation = seen.std(axis=0, dtype=np.float64)
    constants = np.array(
        [_constants(tables[index], bars, train[index]) for index in symbol_of],
        dtype=np.float64,
    )
    data = Data(
        bars=bars,
        features=features,
        calendar=np.concatenate([table.calendar for table in tables]),
        time=np.concatenate([table.time for table in tables]),
        segments=segments,
        segment_symbol=np.array(symbol_of, dtype=np.int64),
        constants=constants,
        feature_mean=seen.mean(axis=0, dtype=np.float64),
        feature_std=np.where(deviation > 0.0, deviation, 1.0),
        symbols=np.stack([_codes(table.symbol) for table in tables]),
        currency=_codes(config.account_currency),
    )
    for array in data:
        array.flags.writeable = False
    params = params_of(config, segments, picked, market.bar_seconds, days)
    notes += _notes(config, bars)
    return Loaded(data, params, tuple(notes), _provenance(config, market, tables, times))


def _cache_lines(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """All parts in one table that starts on a cache line, read-only use.

    Rows that nearly fill their cache lines are widened to whole ones, so that reading one row
    touches as few as possible; the columns added are zero and stay unused.
    """
    line = _LINE // parts[0].itemsize
    rows, columns = sum(len(part) for part in parts), parts[0].shape[1]
    whole = -(-columns // line) * line
    wide = whole if 3 * whole <= 4 * columns else columns
    block = np.zeros(rows * wide + line, dtype=parts[0].dtype)
    first = -block.ctypes.data % _LINE // parts[0].itemsize
    table = block[first : first + rows * wide].reshape(rows, wide)
    np.concatenate(parts, out=table[:, :columns])
    return table


def _constants(
    table: _Table, bars: NDArray[np.float64], window: NDArray[np.int64]
) -> tuple[float, float, float]:
    """PIP, INVERSE and VARIANCE of one segment; variance over its symbol's training window."""
    close = bars[window[0] : window[1], 3]
    returns = close[1:] / close[:-1] - 1.0
    variance = float(returns.var(ddof=1)) if len(returns) > 1 else 0.0
    return pip(table.symbol), float(table.rates.inverse), max(variance, 1e-16)


def _codes(name: str) -> NDArray[np.int64]:
    """A name as character codes: kernels hold numbers only."""
    codes = np.zeros(_NAME_LENGTH, dtype=np.int64)
    codes[: len(name)] = [ord(letter) for letter in name[:_NAME_LENGTH]]
    return codes


def _notes(config: Config, bars: NDArray[np.float64]) -> list[str]:
    notes = []
    if config.fill == "compat_same_close":
        notes.append(
            "`fill: compat_same_close` fills at the very close that the agent has just seen. "
            "Nobody can trade that: results contain the bid-ask bounce and compare with no others."
        )
    if config.swap_long == 0.0 and config.swap_short == 0.0:
        notes.append("Financing not modelled: `swap_long` and `swap_short` are 0.")
    free = not bars[:, 4].any() and config.slippage_pips == 0.0
    if free and config.commission_per_million == 0.0:
        notes.append("Trading is free here: spread, slippage and commission are all 0.")
    return notes


def _provenance(
    config: Config, market: Market, tables: list[_Table], times: Times
) -> dict[str, Any]:
    """JSON-able facts for the run directory."""
    trips = {}
    for table in tables:
        spread = float(table.bars[:, 4].mean())
        price = float(table.bars[:, 3].mean())
        cost = spread + 2.0 * config.slippage_pips * pip(table.symbol)
        cost += 2.0 * config.commission_per_million * 1e-6 * price
        trips[table.symbol] = {
            "pips": cost / pip(table.symbol),
            "basis_points": 1e4 * cost / price,
        }
    return {
        "market_sha256": market.hash,
        "symbols": [table.symbol for table in tables],
        "bar_seconds": market.bar_seconds,
        "bars": {table.symbol: len(table.time) for table in tables},
        "windows_utc_seconds": {name: list(window) for name, window in times.items()},
        "converted_by": {table.symbol: table.rates.pair for table in tables},
        "round_trip": trips,
    }
