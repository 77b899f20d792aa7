"""From a config to the portfolio environment's arrays and records: what reads files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from slipstream.markets.data.market import Market
from slipstream.markets.data.panel import load_panel, panel_of
from slipstream.markets.data.reading.source import chosen_data
from slipstream.markets.data.symbols import MarketKind
from slipstream.markets.features.panel import panel_features, refuse_constant
from slipstream.markets.features.registry import longest_memory, refuse_endless
from slipstream.markets.folds import RUNWAY, Range, fold_facts, make_folds
from slipstream.markets.portfolio.arrays import (
    PanelSegments,
    PanelTable,
    arrays_of,
    lots_of,
    tiers_of,
)
from slipstream.markets.portfolio.config import Config
from slipstream.markets.portfolio.facts import (
    conditions_of,
    notes_of,
    round_trips,
    spreads_of,
    varied_conditions,
)
from slipstream.markets.portfolio.record import (
    Data,
    Params,
    Picked,
    records_of,
    state_dtype,
)
from slipstream.markets.shared_rules import codes_of, moment, names_of, scale_of

# Settings that decide the arrays besides lots, tiers and currency; all others only the records.
_READ = ("data", "universe", "features", "lookback")


def load(config: Config) -> Loaded:
    """Loads prices, computes features and deals out windows of `config.split`.

    Splits: `train` starts at random within the training window; `train_window`, `validation` and
    `test` are continuous passes, one record for each stretch of bars without a hole.
    """
    table, rows, memory = _table(config)
    shares = {name: share for name, share in config.split.model_dump().items() if share > 0.0}
    edges = np.rint(np.cumsum([0.0, *shares.values()]) * len(rows)).astype(int).tolist()
    parts: dict[str, tuple[Range, ...]] = {}
    for k, name in enumerate(shares):
        low = edges[k] + (memory if k > 0 else 0)
        if edges[k + 1] - low < 2:
            own = edges[k + 1] - edges[k]
            raise DataError(
                f"Split `{name}` must have at least 2 bars after an embargo of {memory:,}; its "
                f"share of {len(rows):,} usable bars is {own:,}: give it a larger one, load more "
                "data, or shorten the lookback and the features' memory "
                f"({_memory(table, own // 2)})."
            )
        parts[name] = ((low, edges[k + 1]),)
    parts = {"train": parts["train"], "train_window": parts["train"], **parts}
    return _assemble(table, rows, parts, config, {"windows_utc_seconds": parts})


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
    table, rows, _ = _table(config, market)
    time = table.panel.time[rows]
    low = 0 if start is None else int(np.searchsorted(time, start))
    high = len(rows) if stop is None else int(np.searchsorted(time, stop))
    if high - low < 2:
        raise DataError(
            f"The chosen window must hold at least 2 usable bars, it holds {max(high - low, 0)}: "
            f"the data reach from {moment(time[0])} to {moment(time[-1])}; choose a window within "
            "that."
        )
    parts: dict[str, tuple[tuple[int, int], ...]]
    parts = {"train": ((low, high),), "window": ((low, high),)}
    return _assemble(table, rows, parts, config, {"windows_utc_seconds": parts})


def load_folds(config: Config, plan: FoldPlan) -> Loaded:
    """Loads prices and computes features once, and deals out the folds of `plan`.

    Splits: `foldI/train`, `development/train` (everything before the hold-out) and
    `everything/train` start at random; `foldI/test` is one continuous pass for each tested group
    (for each stretch of it without a hole), `holdout` one; `train` is `fold0/train`. Each fold has
    its own scales; the hold-out has those of the development range.
    """
    table, rows, memory = _table(config)
    refuse_endless(table.features.names, table.panel.extra)
    least = min(config.max_steps, RUNWAY) + 1
    remembers = _memory(table, len(rows) // 20)
    split = make_folds(len(rows), plan, memory, min_train=least, remembers=remembers)
    parts: dict[str, tuple[Range, ...]] = {}
    for k, fold in enumerate(split.folds):
        parts[train_split(f"{FOLD}{k}")] = fold.train
        parts[test_split(f"{FOLD}{k}")] = fold.test
    parts[train_split(DEVELOPMENT)] = (split.development,)
    parts[HOLDOUT] = (split.holdout,)
    parts[train_split(EVERYTHING)] = ((0, len(rows)),)
    facts = fold_facts(split, plan, table.panel.time[rows], table.panel.bar_seconds)
    return _assemble(table, rows, parts, config, {"folds": facts})


def vary(loaded: Loaded, config: Config) -> Loaded | None:
    """What loading with another config would give, without reading the data again.

    None where the config needs other arrays: other data, features, lookback, lots, fee tiers or
    currency, or windows of another `split`.
    """
    facts, data = loaded.provenance, loaded.data
    before = Config.model_validate(facts["settings"])
    read = _READ if "folds" in facts else (*_READ, "split")
    if any(getattr(before, name) != getattr(config, name) for name in read):
        return None
    if bool(before.fee_tiers) != bool(config.fee_tiers):
        return None
    own: tuple[NDArray[Any], ...]
    own = (lots_of(config, names_of(data)), codes_of(config.account_currency))
    if config.fee_tiers:
        own = (*own, tiers_of(config))
    theirs = (data.lots, data.currency, data.fee_tiers)
    if not all(np.array_equal(a, b) for a, b in zip(own, theirs, strict=False)):
        return None
    if "folds" in facts:
        folds = facts["folds"]
        least = min(config.max_steps, RUNWAY) + 1
        make_folds(folds["bars"], FoldPlan(**folds["plan"]), folds["embargo_bars"], min_train=least)
    spreads = {name: trip["spread_bp"] for name, trip in facts["round_trip"].items()}
    kept = len(loaded.notes) - len(notes_of(before, facts["bar_seconds"]))
    return Loaded(
        data,
        _records(config, data, facts["segments"], facts["bar_seconds"], facts["kind"]),
        (*loaded.notes[:kept], *notes_of(config, facts["bar_seconds"])),
        {
            **facts,
            "round_trip": round_trips(config, spreads),
            "settings": config.model_dump(mode="json"),
        },
        loaded.state,
        loaded.conditions and varied_conditions(loaded.conditions, config),
    )


def timeline(p: Params, d: Data) -> NDArray[np.int64]:
    """UTC seconds at which the bars end that equity is marked at, int64 [n], one a step."""
    low, high = d.segments[p.first_segment]
    return np.asarray(d.time[low + 1 : high - p.early_end] + p.bar_seconds)


def _table(
    config: Config, market: Market | None = None
) -> tuple[PanelTable, NDArray[np.int64], int]:
    """Prices with features, the rows to decide at, and the bars that an observation remembers.

    At such a row every asset is known (of a union: one at least), and the lookback's bars lie in
    the same segment.
    """
    if market is None:
        panel = load_panel(config.data, config.universe)
    else:
        panel = panel_of(market, config.universe, config.data.bad_bars == "drop")
    features = panel_features(config.features, panel)
    table = PanelTable(panel, features)
    known = table.known
    usable = np.array(known.all(axis=1) if config.universe == "common" else known.any(axis=1))
    for low, _ in panel.segments.tolist():
        usable[low : low + features.warm_up + config.lookback - 1] = False
    rows = np.flatnonzero(usable)
    if len(rows) < 3:
        raise DataError(
            f"{len(panel.time):,} bars hold {len(rows)} at which the features of "
            f"{'every' if config.universe == 'common' else 'any'} asset are there: load more bars, "
            "leave out assets with short histories, or choose features with a shorter memory "
            f"({_memory(table)})."
        )
    return table, rows, config.lookback + features.warm_up


def _memory(table: PanelTable, most: int | None = None) -> str:
    return longest_memory(table.features.names, table.panel.extra, most)


def _stretches(rows: NDArray[np.int64], part: Range, table: PanelTable) -> list[Range]:
    """Rows of the table in a range of usable rows, cut at holes; pieces of one bar are left out."""
    own = rows[part[0] : part[1]]
    segment = np.searchsorted(table.panel.segments[:, 0], own, side="right")
    cuts = np.flatnonzero((np.diff(own) != 1) | (np.diff(segment) != 0)) + 1
    pieces = np.split(own, cuts)
    return [(int(piece[0]), int(piece[-1]) + 1) for piece in pieces if len(piece) >= 2]


def _assemble(
    table: PanelTable,
    rows: NDArray[np.int64],
    parts: dict[str, tuple[Range, ...]],
    config: Config,
    facts: dict[str, Any],
) -> Loaded:
    panel = table.panel
    layout, picked = PanelSegments([], []), {}
    scales = sum(1 for name in parts if name.endswith("/train")) or 1
    for split, ranges in parts.items():
        trains = split == "train" or split.endswith("/train")
        scale = scale_of(split, scales) if trains else None
        picked[split] = [
            layout.add(piece, scale) for part in ranges for piece in _stretches(rows, part, table)
        ]
        if not picked[split]:
            raise DataError(
                f"{split} must have at least 2 neighbouring bars at which all features are there; "
                "it has none: load more bars, or choose features with a shorter memory "
                f"({_memory(table)})."
            )
        if trains and split != train_split(EVERYTHING) and "window" not in parts:
            seen = np.concatenate([np.arange(*layout.rows[k]) for k in picked[split]])
            refuse_constant(table.features, panel.symbols, seen)
    data = arrays_of(table, layout, config)
    if "windows_utc_seconds" in facts:
        time = panel.time[rows]
        windows = {
            name: [int(time[part[0][0]]), int(time[part[-1][1] - 1]) + panel.bar_seconds]
            for name, part in parts.items()
        }
        facts = {"windows_utc_seconds": windows}
    provenance = {
        "market_sha256": panel.hash,
        "accepted": list(panel.accepted),
        "symbols": list(panel.symbols),
        "bar_seconds": panel.bar_seconds,
        "bars": len(rows),
        "kind": panel.kind,
        "segments": picked,
        "round_trip": round_trips(config, spreads_of(table, layout, picked)),
        "settings": config.model_dump(mode="json"),
        **facts,
    }
    return Loaded(
        data,
        _records(config, data, picked, panel.bar_seconds, panel.kind),
        (*panel.notes, *table.features.notes, *notes_of(config, panel.bar_seconds)),
        provenance,
        state_dtype(len(panel.symbols)),
        conditions_of(config, table),
    )


def _records(
    config: Config, data: Data, picked: Picked, bar_seconds: int, kind: MarketKind
) -> dict[str, tuple[Params, ...]]:
    return records_of(config, data, picked, bar_seconds, calendar(kind, bar_seconds))
