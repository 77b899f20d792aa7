"""Loading of the forex environment: from a config to arrays, params and metadata.

Symbols are stored one after another. Prices are loaded for the windows of a single split, or once
for all folds of a study. The second half of this file builds the table of one symbol: bars,
features, clock (one integer per bar and four observation columns), and the rates that convert its
quote currency to the account currency, bar by bar (docs/explanation/market-rules.md, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, DataError
from slipstream.core.text import date_text
from slipstream.core.timeline import (
    DAY,
    DEVELOPMENT,
    NEW_YORK,
    NEW_YORK_ROLL,
    DayRoll,
    FoldPlan,
    day_number,
    local_time,
    train_split,
)
from slipstream.kernels.kernel import KernelData
from slipstream.kernels.spec import TrainingContext
from slipstream.markets.data.bars import Bars
from slipstream.markets.data.calendar import (
    FRIDAY,
    SATURDAY,
    Calendar,
    day_weekday,
    get_calendar,
    swap_nights,
)
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.file_discovery import find_files, override_data_config
from slipstream.markets.data.market import Market, load_market
from slipstream.markets.data.symbols import parse, pip_size
from slipstream.markets.features.feature_registry import (
    compute_features,
    constant_feature_warnings,
    describe_longest_warm_up,
    feature_parameters,
    reject_cumulative_features,
)
from slipstream.markets.folds import (
    MIN_EPISODE_BARS,
    FoldSplit,
    Range,
    fold_metadata,
    make_folds,
    split_times,
)
from slipstream.markets.forex.config import Config, clock_minutes
from slipstream.markets.forex.forex_state import (
    CLOSE,
    FLAT,
    NIGHT,
    ROLL,
    SPREAD,
    VARIANCE,
    Data,
    Params,
    SegmentRows,
    params_by_split,
)
from slipstream.markets.shared_rules import (
    SegmentList,
    decode_name,
    encode_name,
    is_training_split,
    scaling_index,
    stack_cache_aligned,
    utc_text,
)

WindowTimes = dict[str, tuple[int, int]]

# Config keys that determine the arrays. All others affect only the params.
_DATA_KEYS = ("data", "features", "lookback", "account_currency", "return_variance")
_CALENDAR_KEYS = ("flatten_at", "flat_on_friday", "fill")


def load(config: Config) -> KernelData:
    """Load prices, compute features and split them into windows.

    Splits: `train` starts at random within the training window; `train_window`, `validation` and
    `test` are continuous passes, one record per symbol.
    """
    market = load_market(config.data)
    tables, warm_up = build_tables(market, config)
    embargo = config.lookback + warm_up
    memory_note = describe_memory(config, market)
    times = split_times(market, config.split, embargo, memory_note=memory_note)
    return _load_windows(market, tables, times, config, warm_up)


def load_window(
    config: Config,
    start: int | None = None,
    stop: int | None = None,
    market: Market | None = None,
    data: str | Path | None = None,
    symbols: Sequence[str] | None = None,
) -> KernelData:
    """Load all bars between two times as one window, in split `window`.

    Used to evaluate a policy on bars other than its training bars; `config.split` is ignored.

    Args:
        config: the environment config.
        start, stop: half-open range of UTC seconds.
        market: prices that are already in memory, used instead of those of `config.data`.
        data: folder that replaces the one in `config.data`.
        symbols: symbols that replace those in `config.data`.
    """
    config = config.model_copy(update={"data": override_data_config(config.data, data, symbols)})
    market = load_market(config.data) if market is None else market
    tables, warm_up = build_tables(market, config)
    first = min(int(table.time[0]) for table in tables) if start is None else start
    last = max(int(table.time[-1]) + 1 for table in tables) if stop is None else stop
    for table in tables:
        if np.count_nonzero((table.time >= first) & (table.time < last)) < 2:
            raise DataError(
                f"The window must contain at least 2 usable bars of {table.symbol}, got "
                f"{utc_text(first)} to {utc_text(last)}. Choose a window within "
                f"{utc_text(table.time[0])} to {utc_text(table.time[-1])}."
            )
    loaded = _load_windows(market, tables, {"train": (first, last)}, config, warm_up)
    params = {"train": loaded.params["train"], "window": loaded.params["train_window"]}
    return replace(loaded, params=params)


def _load_windows(
    market: Market, tables: list[SymbolTable], times: WindowTimes, config: Config, warm_up: int
) -> KernelData:
    """Split all symbols into windows."""
    offsets = _offsets(tables)
    layout = SegmentList()
    picked: SegmentRows = {}
    warnings = []
    for split, (start, stop) in times.items():
        rows = []
        for index, table in enumerate(tables):
            low, high = (int(row) for row in np.searchsorted(table.time, [start, stop]))
            low = max(low, config.lookback - 1)
            if high - low >= 2:
                symbol_rows = (offsets[index] + low, offsets[index] + high)
                rows.append(layout.add(symbol_rows, 0, training=split == "train", symbol=index))
            elif split == "train":
                raise DataError(
                    f"{table.symbol} must have at least 2 usable bars in the training window, "
                    f"got {max(high - low, 0)}. Exclude the symbol or load more bars."
                )
            else:
                warnings.append(
                    f"{table.symbol} has no bars in the {split} window and is not evaluated there."
                )
        if split == "train":
            picked |= {"train": [[row] for row in rows], "train_window": [rows]}
        elif rows:
            picked[split] = [rows]
    windows = {name: list(window) for name, window in times.items()}
    return _assemble(market, tables, layout, picked, windows, config, warm_up, warnings)


class _Symbol(NamedTuple):
    """One symbol on the common timeline of all symbols."""

    table: SymbolTable
    offset: int  # first row of the symbol in the arrays
    timeline: NDArray[np.int64]
    lookback: int

    def rows(self, part: Range, embargo: int = 0) -> Range:
        """Return the symbol's rows in a range of the timeline.

        Args:
            part: half-open range of the timeline.
            embargo: number of the symbol's bars to skip after the preceding test range.
        """
        time = self.table.time
        edges = (self.timeline[part[0]], self.timeline[part[1] - 1] + 1)
        low, high = (int(row) for row in np.searchsorted(time, edges))
        low = max(low, self.lookback - 1)
        if embargo and part[0] > 0:
            tested = self.timeline[part[0] - embargo]
            low = max(low, int(np.searchsorted(time, tested)) + embargo)
        return self.offset + low, self.offset + max(low, high)


def load_folds(config: Config, plan: FoldPlan) -> KernelData:
    """Load prices and compute features once, and split them into the folds of `plan`.

    Groups contain equal numbers of bars of the union of all symbols' bars. They are cut at the same
    times for all symbols, so the training range of one symbol never overlaps the test range of
    another. The embargo is counted in each symbol's own bars.

    Splits: `foldI/train`, `development/train` (everything before the hold-out) and
    `everything/train` start at random. `foldI/test` has one continuous pass per tested group and
    symbol, group by group. `holdout` has one pass per symbol. `train` is `fold0/train`. Each fold
    has its own feature scaling; the hold-out uses that of the development range.
    """
    market = load_market(config.data)
    tables, warm_up = build_tables(market, config)
    timeline = np.unique(np.concatenate([table.time for table in tables]))
    reject_cumulative_features(config.features, market.bars[0].extra)
    remembers = describe_memory(config, market)
    split = _make_folds(len(timeline), plan, config.lookback + warm_up, config, remembers)
    symbols = [
        _Symbol(table, offset, timeline, config.lookback)
        for table, offset in zip(tables, _offsets(tables), strict=True)
    ]
    layout = SegmentList()
    picked: SegmentRows = {}
    for name, parts in split.ranges().items():
        scaling = scaling_index(name, len(split.folds) + 2)
        if is_training_split(name):
            picked[name] = _add_training_segments(symbols, layout, scaling, parts, split.embargo)
        else:
            picked[name] = [_add_test_segments(symbols, layout, scaling, part) for part in parts]
    folds = fold_metadata(split, plan, timeline, market.bar_seconds)
    windows = {name: folds[name] for name in ("development", "holdout")}
    metadata = {"folds": folds, "kind": market.kind, "settings": config.model_dump(mode="json")}
    return _assemble(market, tables, layout, picked, windows, config, warm_up, (), metadata)


def _assemble(
    market: Market,
    tables: list[SymbolTable],
    layout: SegmentList,
    picked: SegmentRows,
    windows: Mapping[str, list[int]],
    config: Config,
    warm_up: int,
    warnings: Iterable[str],
    metadata: Mapping[str, Any] | None = None,
) -> KernelData:
    """Build arrays, params and metadata; symbols are stored one after another.

    Costs and price moves in the metadata are measured on the training bars. For folds these are the
    development bars; the hold-out is not read.

    Args:
        market, tables: prices, and the tables built from them.
        layout, picked: segments of the arrays, and the segments of each split.
        windows: UTC seconds by name; the training window comes first.
        config: the environment config.
        warm_up: maximum warm-up in bars over all columns.
        warnings: warnings about the windows.
        metadata: further JSON-serialisable metadata for the run folder.
    """
    data = _build_arrays(tables, layout, config)
    days = get_calendar(market.kind, market.bar_seconds)
    counts = {table.symbol: len(table.time) for table in tables}
    trained = next(iter(windows.values()))
    bars = _bars_in_window(data, counts, trained)
    converting = [sentence for table in tables for sentence in table.rates.allowed_issues]
    development = train_split(DEVELOPMENT)
    rows = [
        row for group in picked[development if development in picked else "train"] for row in group
    ]
    return KernelData(
        data,
        params_by_split(config, data, picked, market.bar_seconds, days),
        (
            *market.notes,
            *(table.rates.warning for table in tables if table.rates.warning),
            *warnings,
            *_feature_warnings(config, tables, trained),
            *_config_warnings(config, bars),
        ),
        {
            "market_sha256": market.hash,
            "accepted": [*market.accepted, *dict.fromkeys(converting)],
            "symbols": [table.symbol for table in tables],
            "bar_seconds": market.bar_seconds,
            "bars": counts,
            "windows_utc_seconds": windows,
            "converted_by": {table.symbol: table.rates.pair for table in tables},
            "round_trip": _round_trip_costs(config, bars),
            "bar_move": _bar_moves(tables, trained, market.bar_seconds),
            "carried": {"return_variance": _variance_by_symbol(data, rows)},
            **(metadata or {}),
        },
        training_context=_training_context(config, market, warm_up),
    )


def with_params(loaded: KernelData, config: Config) -> KernelData | None:
    """Return the result of `load_folds` for another config without reading the data again.

    None if the config needs other arrays: other data, features, lookback or currency.
    """
    metadata = loaded.provenance
    if "settings" not in metadata:
        return None
    before = Config.model_validate(metadata["settings"])
    if any(getattr(before, name) != getattr(config, name) for name in _DATA_KEYS):
        return None
    folds = metadata["folds"]
    _make_folds(folds["bars"], FoldPlan(**folds["plan"]), folds["embargo_bars"], config)
    data, days = loaded.data, get_calendar(metadata["kind"], metadata["bar_seconds"])
    if any(getattr(before, name) != getattr(config, name) for name in _CALENDAR_KEYS):
        bits = [
            calendar_bits(time, metadata["bar_seconds"], days.day_roll, config)
            for time in _split_by_symbol(data.time, metadata["bars"])
        ]
        data = data._replace(calendar=np.concatenate(bits))
        data.calendar.flags.writeable = False
    bars = _bars_in_window(data, metadata["bars"], folds["development"])
    num_kept = len(loaded.warnings) - len(_config_warnings(before, bars))
    picked = {
        split: _segment_rows(records, data)
        for split, records in loaded.params.items()
        if split != "train"
    }
    return KernelData(
        data,
        params_by_split(config, data, picked, metadata["bar_seconds"], days),
        (*loaded.warnings[:num_kept], *_config_warnings(config, bars)),
        {
            **metadata,
            "round_trip": _round_trip_costs(config, bars),
            "settings": config.model_dump(mode="json"),
        },
        training_context=loaded.training_context and with_config(loaded.training_context, config),
    )


def timeline(p: Params, d: Data) -> NDArray[np.int64]:
    """Return the UTC seconds at which bars end and equity is marked, int64 [n], one per step."""
    low, high = d.segments[p.first_segment]
    return np.asarray(d.time[low + 1 : high] + p.bar_seconds)


def _make_folds(
    rows: int, plan: FoldPlan, embargo: int, config: Config, remembers: str = ""
) -> FoldSplit:
    least = min(config.max_steps, MIN_EPISODE_BARS) + 1
    return make_folds(rows, plan, embargo, min_train=least, memory_note=remembers)


def _add_training_segments(
    symbols: list[_Symbol],
    layout: SegmentList,
    scaling: int,
    parts: tuple[Range, ...],
    embargo: int,
) -> list[list[int]]:
    """Add the training segments of a fold, symbol by symbol."""
    segments = []
    for index, symbol in enumerate(symbols):
        ranges = [symbol.rows(part, embargo) for part in parts]
        rows = [
            layout.add((low, high), scaling, training=True, symbol=index)
            for low, high in ranges
            if high - low >= 2
        ]
        if not rows:
            raise DataError(_missing_bars_text(symbol, "train on", parts))
        segments.append(rows)
    return segments


def _add_test_segments(
    symbols: list[_Symbol], layout: SegmentList, scaling: int, part: Range
) -> list[int]:
    """Add one test pass per symbol."""
    segments = []
    for index, symbol in enumerate(symbols):
        low, high = symbol.rows(part)
        if high - low < 2:
            raise DataError(_missing_bars_text(symbol, "evaluate", (part,)))
        segments.append(layout.add((low, high), scaling, training=False, symbol=index))
    return segments


def _missing_bars_text(symbol: _Symbol, purpose: str, parts: tuple[Range, ...]) -> str:
    time, symbol_time = symbol.timeline, symbol.table.time
    first, last = date_text(time[parts[0][0]]), date_text(time[parts[-1][1] - 1])
    return (
        f"{symbol.table.symbol} must have bars to {purpose} between {first} and {last}; its usable "
        f"bars range from {date_text(symbol_time[0])} to {date_text(symbol_time[-1])}. Exclude the "
        "symbol with `data.symbols`, load more of its bars, or use fewer `groups`."
    )


def _segment_rows(records: tuple[Params, ...], data: Data) -> list[list[int]]:
    """Return the rows of `Data.segments` from which records were created by `load_folds`."""
    if records[0].from_start:
        return [[record.first_segment for record in records]]
    rows = range(records[0].first_segment, records[-1].first_segment + records[-1].num_segments)
    symbols: dict[int, list[int]] = {}
    for row in rows:
        symbols.setdefault(int(data.segment_symbol[row]), []).append(row)
    return list(symbols.values())


def _offsets(tables: Sequence[SymbolTable]) -> list[int]:
    """Return the first row of each symbol in the arrays."""
    ends = np.cumsum([len(table.time) for table in tables])
    return [0, *ends[:-1].tolist()]


def _split_by_symbol(column: NDArray[Any], counts: Mapping[str, int]) -> list[NDArray[Any]]:
    """Split a column of all symbols into one array per symbol."""
    return np.split(column, np.cumsum(list(counts.values()))[:-1])


def _build_arrays(tables: list[SymbolTable], layout: SegmentList, config: Config) -> Data:
    """Build all arrays that the kernel reads, read-only."""
    bars = stack_cache_aligned([table.bars for table in tables])
    features = stack_cache_aligned([table.features for table in tables])
    mean, deviation = [], []
    for scaling in range(layout.num_scalings):
        rows = [slice(*segment.rows) for segment in layout.training_segments(scaling)]
        training_rows = np.concatenate([features[span, : len(config.features)] for span in rows])
        mean.append(training_rows.mean(axis=0, dtype=np.float64))
        spread = training_rows.std(axis=0, dtype=np.float64)
        deviation.append(np.where(spread > 0.0, spread, 1.0))
    data = Data(
        bars=bars,
        features=features,
        calendar=np.concatenate([table.calendar for table in tables]),
        time=np.concatenate([table.time for table in tables]),
        segments=np.array([segment.rows for segment in layout], dtype=np.int64),
        segment_symbol=np.array([segment.symbol for segment in layout], dtype=np.int64),
        constants=_segment_constants(tables, layout, bars, config.return_variance),
        feature_mean=np.stack(mean),
        feature_std=np.stack(deviation),
        symbols=np.stack([encode_name(table.symbol) for table in tables]),
        currency=encode_name(config.account_currency),
    )
    for array in data:
        array.flags.writeable = False
    return data


def _segment_constants(
    tables: list[SymbolTable],
    layout: SegmentList,
    bars: NDArray[np.float64],
    variances: float | Mapping[str, float] | None,
) -> NDArray[np.float64]:
    """Return PIP, INVERSE and VARIANCE of each segment.

    The variance is that of the symbol's training rows. `variances` variances replace it. A symbol
    without a known variance gets the mean of the known ones, since its own would be measured on the
    bars under evaluation.
    """

    @cache
    def variance(symbol: int, scaling: int) -> float:
        if isinstance(variances, Mapping):
            return variances.get(tables[symbol].symbol, float(np.mean(list(variances.values()))))
        if variances is not None:
            return variances
        return _variance(
            bars, [s.rows for s in layout.training_segments(scaling) if s.symbol == symbol]
        )

    constants = [
        (
            pip_size(tables[segment.symbol].symbol),
            float(tables[segment.symbol].rates.inverse),
            max(variance(segment.symbol, segment.scaling), 1e-16),
        )
        for segment in layout
    ]
    return np.array(constants, dtype=np.float64)


def _variance(bars: NDArray[np.float64], segments: list[Range]) -> float:
    """Return the variance (ddof 1) of simple returns per bar, without returns across segments."""
    closes = [bars[low:high, CLOSE] for low, high in segments]
    parts = [close[1:] / close[:-1] - 1.0 for close in closes]
    returns = np.concatenate(parts) if parts else np.zeros(0)
    return float(returns.var(ddof=1)) if len(returns) > 1 else 0.0


def _variance_by_symbol(data: Data, rows: Sequence[int]) -> dict[str, float]:
    """Return VARIANCE by symbol for some rows of `Data.segments`, to be stored with the policy."""
    names = [decode_name(data.symbols[data.segment_symbol[row]]) for row in rows]
    return dict(zip(names, (float(data.constants[row, VARIANCE]) for row in rows), strict=True))


def _bars_in_window(
    data: Data, counts: Mapping[str, int], window: list[int]
) -> dict[str, NDArray[np.float64]]:
    """Return the bars [n, 8] of each symbol that open in a window of UTC seconds."""
    times, bars = _split_by_symbol(data.time, counts), _split_by_symbol(data.bars, counts)
    return {
        symbol: rows[slice(*np.searchsorted(time, window))]
        for symbol, time, rows in zip(counts, times, bars, strict=True)
    }


def _config_warnings(config: Config, bars: Mapping[str, NDArray[np.float64]]) -> list[str]:
    """Return warnings about the config; `bars` are the training bars by symbol, float64 [n, 8]."""
    warnings = []
    if config.fill == "compat_same_close":
        warnings.append(
            "`fill: compat_same_close` fills at the close that the agent has just observed. This "
            "is "
            "not possible in practice: results include the bid-ask bounce and are not comparable "
            "with other fills."
        )
    if config.swap_long == 0.0 and config.swap_short == 0.0:
        warnings.append("Financing is not modelled: `swap_long` and `swap_short` are 0.")
    free = config.slippage_pips == 0.0 and config.commission_per_million == 0.0
    if free and not any(rows[:, SPREAD].any() for rows in bars.values()):
        warnings.append("Trading is free: spread, slippage and commission are all 0.")
    return warnings


def _feature_warnings(config: Config, tables: list[SymbolTable], window: list[int]) -> list[str]:
    """Return warnings about features that are constant in a window of UTC seconds."""
    warnings = []
    for table in tables:
        low, high = np.searchsorted(table.time, window)
        features = table.features[low:high, : len(config.features)]
        warnings += constant_feature_warnings(table.symbol, config.features, features)
    return warnings


def _round_trip_costs(config: Config, tables: Mapping[str, NDArray[np.float64]]) -> dict[str, Any]:
    """Return the mean cost of buying and selling by symbol; `tables` are bars, float64 [n, 8]."""
    trips = {}
    for symbol, bars in tables.items():
        price = float(bars[:, CLOSE].mean())
        cost = float(bars[:, SPREAD].mean()) + 2.0 * config.slippage_pips * pip_size(symbol)
        cost += 2.0 * config.commission_per_million * 1e-6 * price
        trips[symbol] = {"pips": cost / pip_size(symbol), "basis_points": 1e4 * cost / price}
    return trips


def _bar_moves(tables: list[SymbolTable], window: list[int], bar_seconds: int) -> dict[str, float]:
    """Return the standard deviation of log returns per bar in a window, basis points, by symbol.

    Symbols with fewer than three bars in the window are omitted.
    """
    moves = {}
    for table in tables:
        low, high = np.searchsorted(table.time, window)
        close, time = table.bars[low:high, CLOSE], table.time[low:high]
        ratios = np.diff(np.log(close))[np.diff(time) == bar_seconds]
        if len(ratios) > 1:
            moves[table.symbol] = 1e4 * float(np.std(ratios, ddof=1))
    return moves


def _training_context(config: Config, market: Market, warm_up: int) -> TrainingContext:
    """Return the training context stored with a policy; `warm_up` in bars over all columns."""
    blank = TrainingContext(
        bar_seconds=market.bar_seconds,
        symbols=market.symbols,
        symbols_at_once=1,
        features=tuple(feature_parameters(config.features, market.bars[0].extra)),
        warm_up_bars=warm_up,
        lookback=config.lookback,
        fill=config.fill,
        decide_every=1,
        data_sha256=market.hash,
    )
    return with_config(blank, config)


def with_config(training_context: TrainingContext, config: Config) -> TrainingContext:
    """Return the same training context for a config that needs no other arrays."""
    fixed_keys = {"data", "split", "features", "lookback", "fill"}
    settings = config.model_dump(mode="json", exclude=fixed_keys)
    return replace(training_context, fill=config.fill, settings=settings)


_ATR_FEATURE = "atr_14"  # fills the column `forex_state.ATR`


class SymbolTable(NamedTuple):
    """Rows of one symbol after warm-up."""

    symbol: str
    time: NDArray[np.int64]
    bars: NDArray[np.float64]
    features: NDArray[np.float32]
    calendar: NDArray[np.int64]
    rates: ConversionRates


def build_tables(market: Market, config: Config) -> tuple[list[SymbolTable], int]:
    """Build the tables of all symbols, and return them with the longest warm-up in bars."""
    days = get_calendar(market.kind, market.bar_seconds)
    tables = [_build_table(bars, market, days, config) for bars in market.bars]
    return [table for table, _ in tables], max(warm_up for _, warm_up in tables)


def describe_memory(config: Config, market: Market) -> str:
    """Describe the feature or rule with the longest memory, for errors about too few bars."""
    text = describe_longest_warm_up((*config.features, _ATR_FEATURE), market.bars[0].extra)
    return f"{text}, which the trading rules need" if text.startswith(f"{_ATR_FEATURE} ") else text


def _build_table(
    bars: Bars, market: Market, days: Calendar, config: Config
) -> tuple[SymbolTable, int]:
    features = compute_features(config.features, bars, market.bar_seconds)
    atr = compute_features((_ATR_FEATURE,), bars, market.bar_seconds)
    warm_up = max(features.warm_up, atr.warm_up + 1)
    rates = conversion_rates(bars, config.account_currency, market, config.data)
    keep = rates.usable.copy()
    keep[:warm_up] = False
    if np.count_nonzero(keep) < config.lookback + 1:
        raise DataError(
            f"{bars.symbol} must have more than {warm_up + config.lookback:,} bars (feature "
            "warm-up "
            f"{warm_up:,}, lookback {config.lookback:,}), got {len(bars):,}. Load more bars, or "
            "choose features with a shorter memory."
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
    )
    return table, warm_up


def calendar_bits(
    time: NDArray[np.int64], bar_seconds: int, roll: DayRoll, config: Config
) -> NDArray[np.int64]:
    """Return rolls, forced-flat fills and swap nights per bar, int64 [n]."""
    day = day_number(time, roll)
    rolled = np.diff(day, prepend=day[:1]) != 0
    flat = _must_be_flat(time, bar_seconds, roll, config)
    return rolled * ROLL + flat * FLAT + swap_nights(time, roll) * NIGHT


def _must_be_flat(
    time: NDArray[np.int64], bar_seconds: int, roll: DayRoll, config: Config
) -> NDArray[np.bool_]:
    """Return True for each bar whose step fills at a time at which positions must be flat.

    Only the clock time of the fill counts, since it is not known then whether another bar follows.
    """
    if config.fill == "next_open":
        return _is_flat_time(time, roll, config)
    closed = time + bar_seconds
    if config.fill == "compat_same_close":
        closed = np.concatenate([closed[:1], closed[:-1]])
    # A fill at the last close before the roll belongs to the day that ends at that close.
    return _is_flat_time(closed, roll, config) | _is_flat_time(closed - 1, roll, config)


def _is_flat_time(moment: NDArray[np.int64], roll: DayRoll, config: Config) -> NDArray[np.bool_]:
    local = local_time(moment, NEW_YORK) if roll == NEW_YORK_ROLL else moment
    roll_second = 17 * 3600 if roll == NEW_YORK_ROLL else 0
    flat = np.zeros(len(moment), dtype=np.bool_)
    if config.flatten_at is not None:
        start = (60 * clock_minutes(config.flatten_at) - roll_second) % DAY
        if start == 0:
            raise ConfigError(
                f"`env.flatten_at` must be before the day's roll ({roll}), got "
                f"{config.flatten_at!r}: positions would always be flat."
            )
        flat |= (local - roll_second) % DAY >= start
    if config.flat_on_friday is not None:
        friday = day_weekday(local // DAY) == FRIDAY
        flat |= friday & (local % DAY >= 60 * clock_minutes(config.flat_on_friday))
        flat |= day_weekday(day_number(moment, roll)) >= SATURDAY
    return flat


def clock_columns(time: NDArray[np.int64], bar_seconds: int, roll: DayRoll) -> NDArray[np.float64]:
    """Return sine and cosine of time of day and day of week at each close, float64 [n, 4]."""
    closed = time + bar_seconds
    local = local_time(closed, NEW_YORK) if roll == NEW_YORK_ROLL else closed
    day_angle = 2.0 * np.pi * (local % DAY) / DAY
    week_angle = 2.0 * np.pi * day_weekday(local // DAY) / 7.0
    return np.stack(
        [np.sin(day_angle), np.cos(day_angle), np.sin(week_angle), np.cos(week_angle)], axis=1
    )


MAX_CONVERSION_AGE = 4  # bars of the traded pair since the last close of the conversion pair


class ConversionRates(NamedTuple):
    """Account currency per unit of quote currency.

    Attributes:
        at_open, at_close: float64 [n], at each bar's open and close.
        usable: bool [n], False if the last close of the conversion pair is too old.
        inverse: the rate is 1 / mid of the traded pair itself.
        pair: the conversion pair, None if none is needed.
        warning: a warning for the user, or None.
        allowed_issues: issues of the conversion pair that the config allows.
    """

    at_open: NDArray[np.float64]
    at_close: NDArray[np.float64]
    usable: NDArray[np.bool_]
    inverse: bool
    pair: str | None
    warning: str | None
    allowed_issues: tuple[str, ...] = ()


def conversion_rates(bars: Bars, account: str, market: Market, data: DataConfig) -> ConversionRates:
    """Return the rates of one symbol, from its own prices or from a second pair in the folder.

    Raises:
        DataError: there is no pair that converts the quote currency.
    """
    ones = np.ones(len(bars))
    all_usable = np.ones(len(bars), dtype=np.bool_)
    pair = parse(bars.symbol)
    if pair is None:
        note = (
            f"{bars.symbol} does not contain currency codes: its prices are assumed to be in "
            f"{account}."
        )
        return ConversionRates(ones, ones, all_usable, False, None, note)
    if pair.quote == account:
        return ConversionRates(ones, ones, all_usable, False, None, None)
    if pair.base == account:
        return ConversionRates(
            1.0 / bars.open, 1.0 / bars.close, all_usable, True, bars.symbol, None
        )
    conversion_bars, quoted_in_account, accepted = _find_conversion_pair(
        bars.symbol, pair.quote, account, market, data
    )
    closed_at, own_close = conversion_bars.time + market.bar_seconds, bars.time + market.bar_seconds
    at_open, age_open = _last_close(conversion_bars, closed_at, bars.time, own_close)
    at_close, age_close = _last_close(conversion_bars, closed_at, own_close, own_close)
    if not quoted_in_account:
        at_open, at_close = 1.0 / at_open, 1.0 / at_close
    usable = np.maximum(age_open, age_close) <= MAX_CONVERSION_AGE
    dropped = int(np.count_nonzero(~usable))
    note = f"{bars.symbol}: {pair.quote} is converted into {account} by {conversion_bars.symbol}."
    if dropped:
        when = np.datetime64(int(bars.time[np.flatnonzero(~usable)[0]]), "s")
        note += (
            f" {dropped:,} bars were dropped because {conversion_bars.symbol} had no close within "
            f"the {MAX_CONVERSION_AGE} bars before them (first: {when} UTC)."
        )
    return ConversionRates(at_open, at_close, usable, False, conversion_bars.symbol, note, accepted)


def _find_conversion_pair(
    symbol: str, quote: str, account: str, market: Market, data: DataConfig
) -> tuple[Bars, bool, tuple[str, ...]]:
    """Return the conversion bars, whether `account` is their quote, and their allowed issues."""
    loaded = {pair_bars.symbol: pair_bars for pair_bars in (*market.bars, *market.converting)}
    folder = data.model_copy(update={"symbols": None})
    try:
        others = [symbol for symbol in find_files(folder) if symbol not in loaded]
    except (ConfigError, DataError):  # the market was not loaded from this folder
        others = []
    for name in (*loaded, *others):
        pair = parse(name)
        if pair is None or {pair.base, pair.quote} != {quote, account}:
            continue
        if name in loaded:
            bars, accepted = loaded[name], tuple[str, ...]()
        else:
            conversion_bars = load_market(data.model_copy(update={"symbols": (name,)}))
            if conversion_bars.bar_seconds != market.bar_seconds:
                continue
            bars, accepted = conversion_bars.symbol(name), conversion_bars.accepted
        return bars, pair.quote == account, accepted
    raise DataError(
        f"Profits of {symbol} are in {quote}. Converting them to {account} requires bars of "
        f"{quote}{account} or {account}{quote} with the same length, and {data.folder} has "
        f"neither. Add one of them, or choose an `account_currency` that {symbol} contains."
    )


def _last_close(
    conversion_bars: Bars,
    closed_at: NDArray[np.int64],
    moment: NDArray[np.int64],
    own_close: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the last close known at each time, and its age in closes of the traded pair.

    Age is counted in bars, not hours: closes do not age while both markets are closed.
    """
    index = np.searchsorted(closed_at, moment, side="right") - 1
    price = conversion_bars.close[np.maximum(index, 0)]
    seen = np.searchsorted(own_close, moment, side="right")
    at_close = np.searchsorted(own_close, closed_at[np.maximum(index, 0)], side="right")
    age = np.where(index >= 0, seen - at_close, MAX_CONVERSION_AGE + 1)
    return price, age
