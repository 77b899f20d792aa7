"""From a config to the forex environment's arrays and records: one training window, others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slipstream.core.errors import DataError
from slipstream.core.kernel import Loaded
from slipstream.envs.forex.arrays import SymbolSegments, arrays_of, offsets_of, trained_variances
from slipstream.envs.forex.config import Config
from slipstream.envs.forex.facts import bars_in, conditions_of, facts_of, feature_notes, notes_of
from slipstream.envs.forex.params import params_of
from slipstream.envs.forex.table import SymbolTable, memory_of, tables_of
from slipstream.market.calendar import calendar
from slipstream.market.folds import split_times
from slipstream.market.market import Market, load_market

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


def load_window(config: Config, start: int | None = None, stop: int | None = None) -> Loaded:
    """Everything between two moments (UTC seconds, half open) as one window, split `window`.

    For scoring a policy on other bars than it was trained on; `config.split` is not used.
    """
    market = load_market(config.data)
    tables, warm_up = tables_of(market, config)
    first = min(int(table.time[0]) for table in tables) if start is None else start
    last = max(int(table.time[-1]) + 1 for table in tables) if stop is None else stop
    for table in tables:
        if np.count_nonzero((table.time >= first) & (table.time < last)) < 2:
            raise DataError(
                f"The chosen window, {_date(first)} to {_date(last)}, holds fewer than 2 usable "
                f"bars of {table.symbol}, which has them from {_date(int(table.time[0]))} to "
                f"{_date(int(table.time[-1]))}: choose a window within that."
            )
    loaded = _assemble(market, tables, {"train": (first, last)}, config, warm_up)
    params = {"train": loaded.params["train"], "window": loaded.params["train_window"]}
    return replace(loaded, params=params)


def _date(seconds: int) -> str:
    return str(np.datetime64(seconds, "s")).replace("T", " ") + " UTC"


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
