"""Arrays and records of the forex environment from a config.

One training window and others, or the folds of a study, for which data are read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import DataError
from slipstream.core.fold_plan import (
    DEVELOPMENT,
    EVERYTHING,
    FOLD,
    HOLDOUT,
    FoldPlan,
    test_split,
    train_split,
)
from slipstream.kernels.kernel import Loaded
from slipstream.markets.data.calendar import calendar
from slipstream.markets.data.market import Market, load_market
from slipstream.markets.data.reading.source import chosen_data
from slipstream.markets.data.symbols import MarketKind
from slipstream.markets.features.registry import refuse_endless
from slipstream.markets.folds import RUNWAY, FoldSplit, Range, fold_facts, make_folds, split_times
from slipstream.markets.forex.arrays import SymbolSegments, arrays_of, offsets_of, trained_variances
from slipstream.markets.forex.config import Config
from slipstream.markets.forex.facts import (
    bars_in,
    conditions_of,
    facts_of,
    feature_notes,
    notes_of,
    round_trips,
    varied_conditions,
)
from slipstream.markets.forex.record import Data, Params, params_of, settings, starts, training
from slipstream.markets.forex.table import SymbolTable, calendar_bits, memory_of, tables_of
from slipstream.markets.shared_rules import moment, name_of, passes, scale_of

Times = dict[str, tuple[int, int]]


def load(config: Config) -> Loaded:
    """Loads prices, computes features and deals out windows.

    Splits: `train` starts at random within the training window; `train_window`, `validation` and
    `test` are continuous passes, one record a symbol.
    """
    market = load_market(config.data)
    tables, warm_up = tables_of(market, config)
    embargo = config.lookback + warm_up
    remembers = memory_of(config, market)
    times = split_times(market, config.split, embargo, remembers=remembers)
    return _assemble(market, tables, times, config, warm_up)


def load_window(
    config: Config,
    start: int | None = None,
    stop: int | None = None,
    market: Market | None = None,
    data: str | Path | None = None,
    symbols: Sequence[str] | None = None,
) -> Loaded:
    """Everything between two moments (UTC seconds, half open) as one window, split `window`.

    For scoring a policy on other bars than it was trained on; `config.split` is not used. Prices
    that are in memory already, `market`, stand in place of those of `config.data`. `data` and
    `symbols` replace the folder and the symbols of that section.
    """
    config = config.model_copy(update={"data": chosen_data(config.data, data, symbols)})
    market = load_market(config.data) if market is None else market
    tables, warm_up = tables_of(market, config)
    first = min(int(table.time[0]) for table in tables) if start is None else start
    last = max(int(table.time[-1]) + 1 for table in tables) if stop is None else stop
    for table in tables:
        if np.count_nonzero((table.time >= first) & (table.time < last)) < 2:
            raise DataError(
                f"The chosen window, {moment(first)} to {moment(last)}, holds fewer than 2 usable "
                f"bars of {table.symbol}, which has them from {moment(table.time[0])} to "
                f"{moment(table.time[-1])}: choose a window within that."
            )
    loaded = _assemble(market, tables, {"train": (first, last)}, config, warm_up)
    params = {"train": loaded.params["train"], "window": loaded.params["train_window"]}
    return replace(loaded, params=params)


def _assemble(
    market: Market, tables: list[SymbolTable], times: Times, config: Config, warm_up: int
) -> Loaded:
    """Lays symbols end to end and cuts the windows out of them."""
    offsets = offsets_of(tables)
    layout = SymbolSegments.empty(1)
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
            rows = (offsets[index] + low, offsets[index] + high)
            picked[split].append(layout.add(rows, index, 0, training=split == "train"))
    data = arrays_of(tables, layout, config)
    days = calendar(market.kind, market.bar_seconds)
    params = params_of(config, data.segments, picked, market.bar_seconds, days)
    windows = {name: list(window) for name, window in times.items()}
    trained = windows["train"]
    own = bars_in({table.symbol: (table.time, table.bars) for table in tables}, trained)
    notes += feature_notes(config, tables, trained)
    notes += notes_of(config, own.values())
    carried = {"return_variance": trained_variances(data, picked["train"])}
    facts = {**facts_of(config, market, tables, windows), "carried": carried}
    conditions = conditions_of(config, market, warm_up)
    return Loaded(data, params, tuple(notes), facts, conditions=conditions)


# Settings that decide the arrays; all others only decide the records.
_READ = ("data", "features", "lookback", "account_currency", "return_variance")
_CLOCK = ("flat_at", "flat_on_friday", "fill")

Picked = dict[str, list[list[int]]]  # split -> rows of `Data.segments`: by symbol, or by group


class _Symbol(NamedTuple):
    """One symbol on the timeline of all symbols."""

    table: SymbolTable
    offset: int  # its first row in the arrays
    timeline: NDArray[np.int64]
    lookback: int

    def rows(self, part: Range, after: int | None = None) -> Range:
        """Own rows of a range of the timeline.

        Args:
            part: half-open range of the timeline.
            after: an own row that must not be preceded.
        """
        edges = (self.timeline[part[0]], self.timeline[part[1] - 1] + 1)
        low, high = (int(row) for row in np.searchsorted(self.table.time, edges))
        low = max(low, self.lookback - 1, after or 0)
        return self.offset + low, self.offset + max(low, high)

    def remembering(self, row: int, embargo: int) -> int:
        """First own row whose features remember nothing before a moment of the timeline."""
        return int(np.searchsorted(self.table.time, self.timeline[row])) + embargo


def load_folds(config: Config, plan: FoldPlan) -> Loaded:
    """Loads prices and computes features once, and deals out the folds of `plan`.

    Groups are equal bar counts of the union of all symbols' bars, cut at the same moments for
    all symbols, so that one symbol's training never overlaps another's test. An embargo is
    counted in each symbol's own bars.

    Splits: `foldI/train` and `development/train` (everything before the hold-out) and
    `everything/train` start at random; `foldI/test` is one continuous pass for each tested group
    and symbol, group by group; `holdout` is one for each symbol; `train` is `fold0/train`. Each
    fold has its own scales; the hold-out has those of the development range.
    """
    market = load_market(config.data)
    tables, warm_up = tables_of(market, config)
    timeline = np.unique(np.concatenate([table.time for table in tables]))
    refuse_endless(config.features, market.bars[0].extra)
    remembers = memory_of(config, market)
    split = _split(len(timeline), plan, config.lookback + warm_up, config, remembers)
    offsets = offsets_of(tables)
    symbols = [
        _Symbol(table, offset, timeline, config.lookback)
        for table, offset in zip(tables, offsets, strict=False)
    ]
    layout = SymbolSegments.empty(len(split.folds) + 2)
    picked: Picked = {}
    for k, fold in enumerate(split.folds):
        picked[train_split(f"{FOLD}{k}")] = _train(symbols, layout, k, fold.train, split.embargo)
        picked[test_split(f"{FOLD}{k}")] = [_test(symbols, layout, k, part) for part in fold.test]
    last = len(split.folds)
    picked[train_split(DEVELOPMENT)] = _train(symbols, layout, last, (split.development,), 0)
    picked[HOLDOUT] = [_test(symbols, layout, last, split.holdout)]
    whole = ((0, len(timeline)),)
    picked[train_split(EVERYTHING)] = _train(symbols, layout, last + 1, whole, 0)

    data = arrays_of(tables, layout, config)
    whole_development = [row for rows in picked[train_split(DEVELOPMENT)] for row in rows]
    facts = fold_facts(split, plan, timeline, market.bar_seconds)
    windows = {name: facts[name] for name in ("development", "holdout")}
    notes = [*market.notes, *(note for table in tables for note in table.notes)]
    notes += feature_notes(config, tables, windows["development"])
    own = bars_in({one.symbol: (one.time, one.bars) for one in tables}, windows["development"])
    return Loaded(
        data,
        _records(config, data, picked, market.bar_seconds, market.kind),
        (*notes, *notes_of(config, own.values())),
        {
            **facts_of(config, market, tables, windows),
            "carried": {"return_variance": trained_variances(data, whole_development)},
            "folds": facts,
            "kind": market.kind,
            "settings": config.model_dump(mode="json"),
        },
        conditions=conditions_of(config, market, warm_up),
    )


def vary(loaded: Loaded, config: Config) -> Loaded | None:
    """What `load_folds` would give for another config, without reading the data again.

    None where the config needs other arrays: other data, features, lookback or currency.
    """
    facts = loaded.provenance
    if "settings" not in facts:
        return None
    before = Config.model_validate(facts["settings"])
    if any(getattr(before, name) != getattr(config, name) for name in _READ):
        return None
    folds = facts["folds"]
    _split(folds["bars"], FoldPlan(**folds["plan"]), folds["embargo_bars"], config)
    data = loaded.data
    if any(getattr(before, name) != getattr(config, name) for name in _CLOCK):
        data = data._replace(calendar=_calendar(data, facts, config))
    ends = np.cumsum(list(facts["bars"].values()))[:-1]
    parts = zip(np.split(data.time, ends), np.split(data.bars, ends), strict=True)
    bars = bars_in(dict(zip(facts["bars"], parts, strict=True)), folds["development"])
    kept = len(loaded.notes) - len(notes_of(before, bars.values()))
    picked = {
        split: _picked(records, data)
        for split, records in loaded.params.items()
        if split != "train"
    }
    return Loaded(
        data,
        _records(config, data, picked, facts["bar_seconds"], facts["kind"]),
        (*loaded.notes[:kept], *notes_of(config, bars.values())),
        {
            **facts,
            "round_trip": round_trips(config, bars),
            "settings": config.model_dump(mode="json"),
        },
        conditions=loaded.conditions and varied_conditions(loaded.conditions, config),
    )


def timeline(p: Params, d: Data) -> NDArray[np.int64]:
    """UTC seconds at which the bars end that equity is marked at, int64 [n], one a step."""
    low, high = d.segments[p.first_segment]
    return np.asarray(d.time[low + 1 : high] + p.bar_seconds)


def _split(
    rows: int, plan: FoldPlan, embargo: int, config: Config, remembers: str = ""
) -> FoldSplit:
    least = min(config.max_steps, RUNWAY) + 1
    return make_folds(rows, plan, embargo, min_train=least, remembers=remembers)


def _train(
    symbols: list[_Symbol],
    layout: SymbolSegments,
    scale: int,
    segments: tuple[Range, ...],
    embargo: int,
) -> list[list[int]]:
    """Adds a fold's training segments, symbol by symbol."""
    chosen = []
    for index, symbol in enumerate(symbols):
        rows = []
        for part in segments:
            # A segment that does not begin with the timeline begins an embargo after a test.
            after = symbol.remembering(part[0] - embargo, embargo) if part[0] > 0 else None
            low, high = symbol.rows(part, after)
            if high - low >= 2:
                rows.append(layout.add((low, high), index, scale, training=True))
        if not rows:
            raise DataError(_absent(symbol, "train on", segments))
        chosen.append(rows)
    return chosen


def _test(symbols: list[_Symbol], layout: SymbolSegments, scale: int, part: Range) -> list[int]:
    """Adds one pass for each symbol."""
    chosen = []
    for index, symbol in enumerate(symbols):
        low, high = symbol.rows(part)
        if high - low < 2:
            raise DataError(_absent(symbol, "score", (part,)))
        chosen.append(layout.add((low, high), index, scale, training=False))
    return chosen


def _absent(symbol: _Symbol, purpose: str, parts: tuple[Range, ...]) -> str:
    time, own = symbol.timeline, symbol.table.time
    first, last = _day(time[parts[0][0]]), _day(time[parts[-1][1] - 1])
    return (
        f"{symbol.table.symbol} must have bars to {purpose} between {first} and {last}; its usable "
        f"bars reach from {_day(own[0])} to {_day(own[-1])}: leave it out with `data.symbols`, "
        "load more of its bars, or use fewer `groups`."
    )


def _day(second: Any) -> str:
    return str(np.datetime64(int(second), "s"))[:10]


def _picked(records: tuple[Params, ...], data: Data) -> list[list[int]]:
    """The rows of `Data.segments` that records were made of, as `load_folds` picked them."""
    if records[0].from_start:
        return [[record.first_segment for record in records]]
    rows = range(records[0].first_segment, records[-1].first_segment + records[-1].num_segments)
    symbols: dict[int, list[int]] = {}
    for row in rows:
        symbols.setdefault(int(data.segment_symbol[row]), []).append(row)
    return list(symbols.values())


def _records(
    config: Config, data: Data, picked: Picked, bar_seconds: int, kind: MarketKind
) -> dict[str, tuple[Params, ...]]:
    """Records of every split, each with the scale of its own fold."""
    runway = min(config.max_steps, RUNWAY)
    blank = settings(config, bar_seconds, calendar(kind, bar_seconds))._replace(runway=runway)
    params = {}
    for split, rows in picked.items():
        own = blank._replace(scale=scale_of(split, len(data.feature_mean)))
        if split.endswith("/train"):
            _refuse_without_start(split, rows, data, runway)
            params[split] = training(own, data.segments, rows, config.deal)
        else:
            params[split] = passes(own, [k for group in rows for k in group])
    return {"train": params["fold0/train"], **params}


def _refuse_without_start(split: str, rows: list[list[int]], data: Data, runway: int) -> None:
    for own in rows:
        if not any(starts(data.segments[k], runway) for k in own):
            symbol = name_of(data.symbols[data.segment_symbol[own[0]]])
            longest = max(int(data.segments[k, 1] - data.segments[k, 0]) for k in own)
            raise DataError(
                f"{symbol} must have more than {runway:,} bars in a training segment of {split}, "
                f"or no episode can start there; its longest has {longest:,}: leave it out with "
                "`data.symbols`, load more of its bars, or use fewer `groups`."
            )


def _calendar(data: Data, facts: Mapping[str, Any], config: Config) -> NDArray[np.int64]:
    """Calendar bits of all symbols for other clock rules."""
    seconds = facts["bar_seconds"]
    roll = calendar(facts["kind"], seconds).day_roll
    ends = np.cumsum(list(facts["bars"].values()))[:-1]
    bits = [calendar_bits(part, seconds, roll, config) for part in np.split(data.time, ends)]
    joined = np.concatenate(bits)
    joined.flags.writeable = False
    return joined
