"""From a config to the portfolio environment's arrays, records and facts: what reads files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, DataError
from slipstream.core.timeline import DEVELOPMENT, EVERYTHING, FoldPlan, train_split
from slipstream.kernels.kernel import KernelData
from slipstream.kernels.spec import TrainingContext
from slipstream.markets.data.calendar import get_calendar
from slipstream.markets.data.file_discovery import override_data_config
from slipstream.markets.data.market import Market
from slipstream.markets.data.panel import Panel, align_panel, load_panel
from slipstream.markets.data.symbols import parse
from slipstream.markets.features.feature_registry import (
    describe_longest_warm_up,
    feature_parameters,
    reject_cumulative_features,
)
from slipstream.markets.features.panel_features import (
    PanelFeatures,
    check_constant_features,
    panel_features,
)
from slipstream.markets.folds import RUNWAY, Range, fold_metadata, make_folds
from slipstream.markets.portfolio.config import Config
from slipstream.markets.portfolio.portfolio_state import (
    Data,
    Params,
    SegmentRows,
    params_by_split,
    state_dtype,
)
from slipstream.markets.shared_rules import (
    Segments,
    decode_symbols,
    encode_name,
    is_training_split,
    scale_index,
    stack_cache_aligned,
    utc_text,
)

# Settings that decide the arrays besides lots, tiers and currency; all others only the records.
_DATA_KEYS = ("data", "universe", "features", "lookback")


def load(config: Config) -> KernelData:
    """Loads prices, computes features and deals out windows of `config.split`.

    Splits: `train` starts at random within the training window; `train_window`, `validation` and
    `test` are continuous passes, one record for each stretch of bars without a hole.
    """
    table, rows, memory = _load_table(config)
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
                f"({_describe_memory(table, own // 2)})."
            )
        parts[name] = ((low, edges[k + 1]),)
    parts = {"train": parts["train"], "train_window": parts["train"], **parts}
    return _assemble(table, rows, parts, config)


def load_window(
    config: Config,
    start: int | None = None,
    stop: int | None = None,
    market: Market | None = None,
    data: str | Path | None = None,
    symbols: Sequence[str] | None = None,
) -> KernelData:
    """Everything between two moments (UTC seconds, half open) as one window, split `window`.

    For scoring a policy on other bars than it was trained on; `config.split` is not used. Prices
    that are in memory already, `market`, stand in place of those of `config.data`. `data` and
    `symbols` replace the folder and the symbols of that section.
    """
    config = config.model_copy(update={"data": override_data_config(config.data, data, symbols)})
    table, rows, _ = _load_table(config, market)
    time = table.panel.time[rows]
    low = 0 if start is None else int(np.searchsorted(time, start))
    high = len(rows) if stop is None else int(np.searchsorted(time, stop))
    if high - low < 2:
        raise DataError(
            f"The chosen window must hold at least 2 usable bars, it holds {max(high - low, 0)}: "
            f"the data reach from {utc_text(time[0])} to {utc_text(time[-1])}; choose a window "
            "within "
            "that."
        )
    window = ((low, high),)
    return _assemble(table, rows, {"train": window, "window": window}, config)


def load_folds(config: Config, plan: FoldPlan) -> KernelData:
    """Loads prices and computes features once, and deals out the folds of `plan`.

    Splits: `foldI/train`, `development/train` (everything before the hold-out) and
    `everything/train` start at random; `foldI/test` is one continuous pass for each tested group
    (for each stretch of it without a hole), `holdout` one; `train` is `fold0/train`. Each fold has
    its own scales; the hold-out has those of the development range.
    """
    table, rows, memory = _load_table(config)
    reject_cumulative_features(table.features.names, table.panel.extra)
    least = min(config.max_steps, RUNWAY) + 1
    memory_note = _describe_memory(table, len(rows) // 20)
    split = make_folds(len(rows), plan, memory, min_train=least, memory_note=memory_note)
    folds = fold_metadata(split, plan, table.panel.time[rows], table.panel.bar_seconds)
    return _assemble(table, rows, split.ranges(), config, folds)


def with_params(loaded: KernelData, config: Config) -> KernelData | None:
    """What loading with another config would give, without reading the data again.

    None where the config needs other arrays: other data, features, lookback, lots, fee tiers or
    currency, or windows of another `split`.
    """
    metadata, data = loaded.provenance, loaded.data
    before = Config.model_validate(metadata["settings"])
    read = _DATA_KEYS if "folds" in metadata else (*_DATA_KEYS, "split")
    if any(getattr(before, name) != getattr(config, name) for name in read):
        return None
    if bool(before.fee_tiers) != bool(config.fee_tiers):
        return None
    pairs = [
        (lot_size_array(config, decode_symbols(data)), data.lot_sizes),
        (encode_name(config.account_currency), data.currency),
    ]
    if config.fee_tiers:
        pairs.append((fee_tier_array(config), data.fee_tiers))
    if not all(np.array_equal(own, theirs) for own, theirs in pairs):
        return None
    if "folds" in metadata:
        folds = metadata["folds"]
        least = min(config.max_steps, RUNWAY) + 1
        make_folds(folds["bars"], FoldPlan(**folds["plan"]), folds["embargo_bars"], min_train=least)
    days = get_calendar(metadata["kind"], metadata["bar_seconds"])
    spreads = {name: trip["spread_bp"] for name, trip in metadata["round_trip"].items()}
    num_kept = len(loaded.warnings) - len(config_warnings(before, metadata["bar_seconds"]))
    return KernelData(
        data,
        params_by_split(config, data, metadata["segments"], metadata["bar_seconds"], days),
        (*loaded.warnings[:num_kept], *config_warnings(config, metadata["bar_seconds"])),
        {
            **metadata,
            "round_trip": round_trip_costs(config, spreads),
            "settings": config.model_dump(mode="json"),
        },
        loaded.state,
        loaded.training_context and with_config(loaded.training_context, config),
    )


def timeline(p: Params, d: Data) -> NDArray[np.int64]:
    """UTC seconds at which the bars end that equity is marked at, int64 [n], one a step."""
    low, high = d.segments[p.first_segment]
    return np.asarray(d.time[low + 1 : high - p.early_end] + p.bar_seconds)


def _load_table(
    config: Config, market: Market | None = None
) -> tuple[PanelTable, NDArray[np.int64], int]:
    """Prices with features, the rows to decide at, and the bars that an observation remembers.

    At such a row every asset is known (of a union: one at least), and the lookback's bars lie in
    the same segment.
    """
    if market is None:
        panel = load_panel(config.data, config.universe)
    else:
        panel = align_panel(market, config.universe, config.data.bad_bars == "drop")
    features = panel_features(config.features, panel)
    table = PanelTable(panel, features)
    known = table.available
    usable = np.array(known.all(axis=1) if config.universe == "common" else known.any(axis=1))
    for low, _ in panel.segments.tolist():
        usable[low : low + features.warm_up + config.lookback - 1] = False
    rows = np.flatnonzero(usable)
    if len(rows) < 3:
        raise DataError(
            f"{len(panel.time):,} bars hold {len(rows)} at which the features of "
            f"{'every' if config.universe == 'common' else 'any'} asset are there: load more bars, "
            "leave out assets with short histories, or choose features with a shorter memory "
            f"({_describe_memory(table)})."
        )
    return table, rows, config.lookback + features.warm_up


def _describe_memory(table: PanelTable, most: int | None = None) -> str:
    return describe_longest_warm_up(table.features.names, table.panel.extra, most)


def _contiguous_ranges(rows: NDArray[np.int64], part: Range, table: PanelTable) -> list[Range]:
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
    folds: dict[str, Any] | None = None,
) -> KernelData:
    """Lays out the arrays for ranges of usable rows; `folds` are facts about a study's."""
    panel = table.panel
    layout, picked = Segments(), {}
    scales = sum(name.endswith("/train") for name in parts) or 1
    for split, ranges in parts.items():
        trains, scale = is_training_split(split), scale_index(split, scales)
        picked[split] = [
            layout.add(piece, scale, training=trains)
            for part in ranges
            for piece in _contiguous_ranges(rows, part, table)
        ]
        if not picked[split]:
            raise DataError(
                f"{split} must have at least 2 neighbouring bars at which all features are there; "
                "it has none: load more bars, or choose features with a shorter memory "
                f"({_describe_memory(table)})."
            )
        if trains and split != train_split(EVERYTHING) and "window" not in parts:
            seen = np.concatenate([np.arange(*layout[k].rows) for k in picked[split]])
            check_constant_features(table.features, panel.symbols, seen)
    data = build_arrays(table, layout, config)
    if folds is None:
        time = panel.time[rows]
        windows = {
            name: [int(time[part[0][0]]), int(time[part[-1][1] - 1]) + panel.bar_seconds]
            for name, part in parts.items()
        }
        metadata: dict[str, Any] = {"windows_utc_seconds": windows}
    else:
        metadata = {"folds": folds}
    days = get_calendar(panel.kind, panel.bar_seconds)
    provenance = {
        "market_sha256": panel.hash,
        "accepted": list(panel.accepted),
        "symbols": list(panel.symbols),
        "bar_seconds": panel.bar_seconds,
        "bars": len(rows),
        "kind": panel.kind,
        "segments": picked,
        "round_trip": round_trip_costs(config, mean_spreads(table, layout, picked)),
        "settings": config.model_dump(mode="json"),
        **metadata,
    }
    return KernelData(
        data,
        params_by_split(config, data, picked, panel.bar_seconds, days),
        (*panel.notes, *table.features.notes, *config_warnings(config, panel.bar_seconds)),
        provenance,
        state_dtype(len(panel.symbols)),
        training_context(config, table),
    )


# Smallest orders of Alpaca, in coin, as FinRL_Crypto lists them.
ALPACA_LIMITS = {
    "AAVE": 0.01,
    "AVAX": 0.10,
    "BTC": 0.0001,
    "NEAR": 0.1,
    "LINK": 0.1,
    "ETH": 0.001,
    "LTC": 0.01,
    "MATIC": 10.0,
    "UNI": 0.1,
    "SOL": 0.01,
}


@dataclass(frozen=True)
class PanelTable:
    """A panel with its features.

    Attributes:
        panel: prices, T rows.
        features: of every asset; where they are missing it counts as unlisted.
    """

    panel: Panel
    features: PanelFeatures

    @cached_property
    def available(self) -> NDArray[np.bool_]:
        """Whether an asset is listed and its features are there, bool [T, A]."""
        finite = np.isfinite(self.features.values).all(axis=2)
        return np.asarray(self.panel.listed & (self.panel.close > 0.0) & finite)


def build_arrays(table: PanelTable, layout: Segments, config: Config) -> Data:
    """All arrays, read-only."""
    panel, known = table.panel, table.available
    close = np.where(known, panel.close, 0.0)
    opened = np.where(known & panel.tradable, panel.open, 0.0)
    prices = stack_cache_aligned([np.concatenate([close, opened, 0.5 * panel.spread], axis=1)])
    values = np.where(known[:, :, None], table.features.values, 0.0).astype(np.float32)
    mean, deviation = _feature_moments(values, known, layout)
    segments = np.array([one.rows for one in layout], dtype=np.int64)
    first = np.stack([_first_prices(close, row, config.lookback) for row in segments])
    data = Data(
        prices=prices,
        features=stack_cache_aligned([values.reshape(len(values), -1)]),
        time=panel.time,
        segments=segments,
        first=np.concatenate([first, _inverse_magnitude(first)], axis=1),
        lot_sizes=lot_size_array(config, panel.symbols),
        fee_tiers=fee_tier_array(config),
        feature_mean=mean,
        feature_std=deviation,
        symbols=np.stack([encode_name(symbol) for symbol in panel.symbols]),
        currency=encode_name(config.account_currency),
    )
    for array in data:
        array.flags.writeable = False
    return data


def lot_size_array(config: Config, symbols: Sequence[str]) -> NDArray[np.float64]:
    """Smallest order and quantity step of each asset, float64 [A, 2].

    Raises:
        ConfigError: a mapping names an asset that is not there.
    """
    smallest = config.min_quantity
    if smallest is None:
        smallest = 0.0
        if config.orders == "units":
            smallest = {name: ALPACA_LIMITS.get(base_currency(name), 0.0) for name in symbols}
    columns = [
        _per_symbol(smallest, symbols, "min_quantity"),
        _per_symbol(config.quantity_step, symbols, "quantity_step"),
    ]
    return np.array(columns, dtype=np.float64).T.copy()


def _per_symbol(
    value: float | Mapping[str, float], symbols: Sequence[str], key: str
) -> list[float]:
    if not isinstance(value, Mapping):
        return [float(value)] * len(symbols)
    unknown = sorted(set(value) - set(symbols))
    if unknown:
        raise ConfigError(
            f"`env.{key}` names {unknown[0]}, which is not among the assets ({', '.join(symbols)})."
        )
    return [float(value.get(name, 0.0)) for name in symbols]


def base_currency(symbol: str) -> str:
    """The coin that a symbol trades: BTC of BTCUSD."""
    pair = parse(symbol)
    return symbol.upper() if pair is None else pair.base


def fee_tier_array(config: Config) -> NDArray[np.float64]:
    """Volumes and fees, float64 [R, 2]; one row without a table."""
    return np.array(config.fee_tiers or ((0.0, config.fee),), dtype=np.float64)


def _first_prices(
    close: NDArray[np.float64], segment: NDArray[np.int64], lookback: int
) -> NDArray[np.float64]:
    """First price of each asset that an episode in the segment can see, 0 for none, [A]."""
    seen = close[segment[0] - (lookback - 1) : segment[1]]
    return np.asarray(seen[(seen > 0.0).argmax(axis=0), np.arange(seen.shape[1])])


def _inverse_magnitude(price: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 over 10 to the whole part of the decimal logarithm; 0 where there is no price."""
    known = price > 0.0
    power = np.floor(np.log10(np.where(known, price, 1.0)))
    return np.where(known, 1.0 / 10.0**power, 0.0)


def _feature_moments(
    values: NDArray[np.float32], known: NDArray[np.bool_], layout: Segments
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation of every column over the training rows of each scale, [S, A F]."""
    means, deviations = [], []
    for scale in range(layout.num_scales):
        parts = [slice(*one.rows) for one in layout.training_segments(scale)]
        seen = np.concatenate([values[part] for part in parts])
        available = np.concatenate([known[part] for part in parts])[:, :, None]
        available = np.broadcast_to(available, seen.shape)
        count = np.maximum(available.sum(axis=0), 1)
        mean = seen.sum(axis=0, dtype=np.float64) / count  # 0 where unlisted
        deviations_from_mean = np.where(available, seen - mean, 0.0)
        deviation = np.sqrt((deviations_from_mean * deviations_from_mean).sum(axis=0) / count)
        means.append(mean.ravel())
        deviations.append(np.where(deviation > 0.0, deviation, 1.0).ravel())
    return np.stack(means), np.stack(deviations)


def mean_spreads(table: PanelTable, layout: Segments, picked: SegmentRows) -> dict[str, float]:
    """Mean spread over close of each asset, basis points, over all bars that are trained on.

    Of folds these are the development bars: the hold-out is not read.
    """
    whole = train_split(DEVELOPMENT)
    chosen = picked[whole if whole in picked else "train"]
    rows = np.concatenate([np.arange(*layout[k].rows) for k in chosen])
    listed = table.available[rows]
    share = np.divide(
        table.panel.spread[rows], table.panel.close[rows], out=np.zeros(listed.shape), where=listed
    )
    mean = share.sum(axis=0) / np.maximum(listed.sum(axis=0), 1)
    return {
        name: float(1e4 * one) for name, one in zip(table.panel.symbols, mean.tolist(), strict=True)
    }


def round_trip_costs(config: Config, spread_bp: Mapping[str, float]) -> dict[str, Any]:
    """What buying and selling each asset costs on average; tiers as at `start_volume`."""
    tiers = fee_tier_array(config)
    fee = float(tiers[np.searchsorted(tiers[:, 0], config.start_volume, side="right") - 1, 1])
    return {
        name: {"spread_bp": spread, "basis_points": 2.0 * (1e4 * fee + config.slippage_bp) + spread}
        for name, spread in spread_bp.items()
    }


def training_context(config: Config, table: PanelTable) -> TrainingContext:
    """What a policy that is trained on these prices takes along."""
    panel, features = table.panel, table.features
    blank = TrainingContext(
        bar_seconds=panel.bar_seconds,
        symbols=tuple(panel.symbols),
        symbols_at_once=len(panel.symbols),
        features=tuple(feature_parameters(features.names, panel.extra)),
        warm_up_bars=features.warm_up,
        lookback=config.lookback,
        fill="next_open",
        decide_every=config.decide_every,
        data_sha256=panel.hash,
    )
    return with_config(blank, config)


def with_config(training_context: TrainingContext, config: Config) -> TrainingContext:
    """The same prices under other settings that need no other arrays."""
    own = {"data", "split", "features", "lookback", "decide_every"}
    return replace(
        training_context,
        fill="next_close" if config.orders == "units" else "next_open",
        decide_every=config.decide_every,
        settings=config.model_dump(mode="json", exclude=own),
    )


def config_warnings(config: Config, bar_seconds: int) -> list[str]:
    """What the settings mean here."""
    warnings = []
    if config.orders == "units" and config.units.forced_sale_bars > 0:
        bars = config.units.forced_sale_bars
        warnings.append(
            f"`units.forced_sale_bars`: {bars} bars are {bars * bar_seconds / 3600:g} hours here."
        )
    if not config.benchmark_costs:
        warnings.append(
            "`benchmark_costs: false`: equal weight trades for free, as in FinRL_Crypto, and is "
            "harder to beat than the one that anybody could hold."
        )
    if config.fee == 0.0 and not config.fee_tiers and config.slippage_bp == 0.0:
        warnings.append("Trading is free here but for the spread: fee and slippage are 0.")
    return warnings
