"""Loading of the portfolio environment: from a config to arrays, params and metadata."""

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
from slipstream.markets.folds import MIN_EPISODE_BARS, Range, fold_metadata, make_folds
from slipstream.markets.portfolio.config import Config
from slipstream.markets.portfolio.portfolio_state import (
    Data,
    Params,
    SegmentRows,
    params_by_split,
    state_dtype,
)
from slipstream.markets.shared_rules import (
    SegmentList,
    decode_symbols,
    encode_name,
    is_training_split,
    scaling_index,
    stack_cache_aligned,
    utc_text,
)

# Config keys that determine the arrays, besides lot sizes, fee tiers and currency. All others
# affect only the params.
_DATA_KEYS = ("data", "universe", "features", "lookback")


def load(config: Config) -> KernelData:
    """Load prices, compute features and split them into the windows of `config.split`.

    Splits: `train` starts at random within the training window; `train_window`, `validation` and
    `test` are continuous passes, one record per contiguous range of bars.
    """
    table, rows, memory = _load_table(config)
    shares = {name: share for name, share in config.split.model_dump().items() if share > 0.0}
    edges = np.rint(np.cumsum([0.0, *shares.values()]) * len(rows)).astype(int).tolist()
    parts: dict[str, tuple[Range, ...]] = {}
    for k, name in enumerate(shares):
        low = edges[k] + (memory if k > 0 else 0)
        if edges[k + 1] - low < 2:
            span = edges[k + 1] - edges[k]
            raise DataError(
                f"Split `{name}` must have at least 2 bars after an embargo of {memory:,}; its "
                f"share of {len(rows):,} usable bars is {span:,}. Increase its share, load more "
                "data, or shorten the lookback and the features' memory "
                f"({_describe_memory(table, span // 2)})."
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
    table, rows, _ = _load_table(config, market)
    time = table.panel.time[rows]
    low = 0 if start is None else int(np.searchsorted(time, start))
    high = len(rows) if stop is None else int(np.searchsorted(time, stop))
    if high - low < 2:
        raise DataError(
            f"The window must contain at least 2 usable bars, got {max(high - low, 0)}. Choose a "
            f"window within {utc_text(time[0])} to {utc_text(time[-1])}."
        )
    window = ((low, high),)
    return _assemble(table, rows, {"train": window, "window": window}, config)


def load_folds(config: Config, plan: FoldPlan) -> KernelData:
    """Load prices and compute features once, and split them into the folds of `plan`.

    Splits: `foldI/train`, `development/train` (everything before the hold-out) and
    `everything/train` start at random. `foldI/test` has one continuous pass per tested group (per
    contiguous range of it), `holdout` has one pass, and `train` is `fold0/train`. Each fold has its
    own feature scaling; the hold-out uses that of the development range.
    """
    table, rows, memory = _load_table(config)
    reject_cumulative_features(table.features.names, table.panel.extra)
    least = min(config.max_steps, MIN_EPISODE_BARS) + 1
    memory_note = _describe_memory(table, len(rows) // 20)
    split = make_folds(len(rows), plan, memory, min_train=least, memory_note=memory_note)
    folds = fold_metadata(split, plan, table.panel.time[rows], table.panel.bar_seconds)
    return _assemble(table, rows, split.ranges(), config, folds)


def with_params(loaded: KernelData, config: Config) -> KernelData | None:
    """Return the result of loading with another config without reading the data again.

    None if the config needs other arrays: other data, features, lookback, lot sizes, fee tiers or
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
    if not all(np.array_equal(values, old_values) for values, old_values in pairs):
        return None
    if "folds" in metadata:
        folds = metadata["folds"]
        least = min(config.max_steps, MIN_EPISODE_BARS) + 1
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
    """Return the UTC seconds at which bars end and equity is marked, int64 [n], one per step."""
    low, high = d.segments[p.first_segment]
    return np.asarray(d.time[low + 1 : high - p.early_end] + p.bar_seconds)


def _load_table(
    config: Config, market: Market | None = None
) -> tuple[PanelTable, NDArray[np.int64], int]:
    """Return prices with features, the decision rows, and the memory of an observation in bars.

    At a decision row every asset is available (with `universe: union`, at least one), and the bars
    of the lookback are in the same segment.
    """
    if market is None:
        panel = load_panel(config.data, config.universe)
    else:
        panel = align_panel(market, config.universe, config.data.bad_bars == "drop")
    features = panel_features(config.features, panel)
    table = PanelTable(panel, features)
    available = table.available
    usable = np.array(
        available.all(axis=1) if config.universe == "common" else available.any(axis=1)
    )
    for low, _ in panel.segments.tolist():
        usable[low : low + features.warm_up + config.lookback - 1] = False
    rows = np.flatnonzero(usable)
    if len(rows) < 3:
        raise DataError(
            f"Features of {'every' if config.universe == 'common' else 'any'} asset must be "
            f"available at 3 bars at least, got {len(rows)} of {len(panel.time):,} bars. Load more "
            "bars, exclude assets with short histories, or choose features with a shorter memory "
            f"({_describe_memory(table)})."
        )
    return table, rows, config.lookback + features.warm_up


def _describe_memory(table: PanelTable, most: int | None = None) -> str:
    return describe_longest_warm_up(table.features.names, table.panel.extra, most)


def _contiguous_ranges(rows: NDArray[np.int64], part: Range, table: PanelTable) -> list[Range]:
    """Return table rows of a range of usable rows, split at gaps; pieces of one bar are dropped."""
    part_rows = rows[part[0] : part[1]]
    segment = np.searchsorted(table.panel.segments[:, 0], part_rows, side="right")
    cuts = np.flatnonzero((np.diff(part_rows) != 1) | (np.diff(segment) != 0)) + 1
    pieces = np.split(part_rows, cuts)
    return [(int(piece[0]), int(piece[-1]) + 1) for piece in pieces if len(piece) >= 2]


def _assemble(
    table: PanelTable,
    rows: NDArray[np.int64],
    parts: dict[str, tuple[Range, ...]],
    config: Config,
    folds: dict[str, Any] | None = None,
) -> KernelData:
    """Build arrays and params for ranges of usable rows; `folds` describes a study's folds."""
    panel = table.panel
    layout, picked = SegmentList(), {}
    num_scalings = sum(name.endswith("/train") for name in parts) or 1
    for split, ranges in parts.items():
        trains, scaling = is_training_split(split), scaling_index(split, num_scalings)
        picked[split] = [
            layout.add(piece, scaling, training=trains)
            for part in ranges
            for piece in _contiguous_ranges(rows, part, table)
        ]
        if not picked[split]:
            raise DataError(
                f"{split} must have at least 2 consecutive bars at which all features are "
                "available, "
                "got none. Load more bars, or choose features with a shorter memory "
                f"({_describe_memory(table)})."
            )
        if trains and split != train_split(EVERYTHING) and "window" not in parts:
            training_rows = np.concatenate([np.arange(*layout[k].rows) for k in picked[split]])
            check_constant_features(table.features, panel.symbols, training_rows)
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


# Minimum order sizes of Alpaca in coins, as listed by FinRL_Crypto.
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
    """Prices with their features.

    Attributes:
        panel: prices, T rows.
        features: features of every asset; an asset without features counts as not listed.
    """

    panel: Panel
    features: PanelFeatures

    @cached_property
    def available(self) -> NDArray[np.bool_]:
        """True if an asset is listed and its features are available, bool [T, A]."""
        finite = np.isfinite(self.features.values).all(axis=2)
        return np.asarray(self.panel.listed & (self.panel.close > 0.0) & finite)


def build_arrays(table: PanelTable, layout: SegmentList, config: Config) -> Data:
    """Build all arrays, read-only."""
    panel, available = table.panel, table.available
    close = np.where(available, panel.close, 0.0)
    opened = np.where(available & panel.tradable, panel.open, 0.0)
    prices = stack_cache_aligned([np.concatenate([close, opened, 0.5 * panel.spread], axis=1)])
    values = np.where(available[:, :, None], table.features.values, 0.0).astype(np.float32)
    mean, deviation = _feature_moments(values, available, layout)
    segments = np.array([segment.rows for segment in layout], dtype=np.int64)
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
    """Return minimum order and quantity step of each asset, float64 [A, 2].

    Raises:
        ConfigError: a mapping contains an unknown asset.
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
            f"`env.{key}` contains {unknown[0]}, which is not an asset of this portfolio. Use only "
            f"{', '.join(symbols)}."
        )
    return [float(value.get(name, 0.0)) for name in symbols]


def base_currency(symbol: str) -> str:
    """Return the coin that a symbol trades: BTC for BTCUSD."""
    pair = parse(symbol)
    return symbol.upper() if pair is None else pair.base


def fee_tier_array(config: Config) -> NDArray[np.float64]:
    """Return volumes and fees, float64 [R, 2]; a single row without a fee table."""
    return np.array(config.fee_tiers or ((0.0, config.fee),), dtype=np.float64)


def _first_prices(
    close: NDArray[np.float64], segment: NDArray[np.int64], lookback: int
) -> NDArray[np.float64]:
    """Return the first price per asset that an episode can observe, 0 for none, [A]."""
    prices = close[segment[0] - (lookback - 1) : segment[1]]
    return np.asarray(prices[(prices > 0.0).argmax(axis=0), np.arange(prices.shape[1])])


def _inverse_magnitude(price: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 over 10 to the integer part of the decimal logarithm; 0 without a price."""
    is_listed = price > 0.0
    power = np.floor(np.log10(np.where(is_listed, price, 1.0)))
    return np.where(is_listed, 1.0 / 10.0**power, 0.0)


def _feature_moments(
    values: NDArray[np.float32], known: NDArray[np.bool_], layout: SegmentList
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and deviation of all columns over the training rows of each scaling, [S, A F]."""
    means, deviations = [], []
    for scaling in range(layout.num_scalings):
        parts = [slice(*segment.rows) for segment in layout.training_segments(scaling)]
        training_rows = np.concatenate([values[part] for part in parts])
        available = np.concatenate([known[part] for part in parts])[:, :, None]
        available = np.broadcast_to(available, training_rows.shape)
        count = np.maximum(available.sum(axis=0), 1)
        mean = training_rows.sum(axis=0, dtype=np.float64) / count  # 0 where unlisted
        deviations_from_mean = np.where(available, training_rows - mean, 0.0)
        deviation = np.sqrt((deviations_from_mean * deviations_from_mean).sum(axis=0) / count)
        means.append(mean.ravel())
        deviations.append(np.where(deviation > 0.0, deviation, 1.0).ravel())
    return np.stack(means), np.stack(deviations)


def mean_spreads(table: PanelTable, layout: SegmentList, picked: SegmentRows) -> dict[str, float]:
    """Return the mean spread over close per asset, basis points, over all training bars.

    For folds these are the development bars; the hold-out is not read.
    """
    development = train_split(DEVELOPMENT)
    segments = picked[development if development in picked else "train"]
    rows = np.concatenate([np.arange(*layout[k].rows) for k in segments])
    listed = table.available[rows]
    share = np.divide(
        table.panel.spread[rows], table.panel.close[rows], out=np.zeros(listed.shape), where=listed
    )
    mean = share.sum(axis=0) / np.maximum(listed.sum(axis=0), 1)
    return {
        name: float(1e4 * spread)
        for name, spread in zip(table.panel.symbols, mean.tolist(), strict=True)
    }


def round_trip_costs(config: Config, spread_bp: Mapping[str, float]) -> dict[str, Any]:
    """Return the mean cost of buying and selling per asset, with the fee tier of `start_volume`."""
    tiers = fee_tier_array(config)
    fee = float(tiers[np.searchsorted(tiers[:, 0], config.start_volume, side="right") - 1, 1])
    return {
        name: {"spread_bp": spread, "basis_points": 2.0 * (1e4 * fee + config.slippage_bp) + spread}
        for name, spread in spread_bp.items()
    }


def training_context(config: Config, table: PanelTable) -> TrainingContext:
    """Return the training context stored with a policy."""
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
    """Return the same training context for a config that needs no other arrays."""
    fixed_keys = {"data", "split", "features", "lookback", "decide_every"}
    return replace(
        training_context,
        fill="next_close" if config.orders == "units" else "next_open",
        decide_every=config.decide_every,
        settings=config.model_dump(mode="json", exclude=fixed_keys),
    )


def config_warnings(config: Config, bar_seconds: int) -> list[str]:
    """Return warnings about the config."""
    warnings = []
    if config.orders == "units" and config.units.forced_sale_bars > 0:
        bars = config.units.forced_sale_bars
        warnings.append(
            f"`units.forced_sale_bars`: {bars} bars are {bars * bar_seconds / 3600:g} hours."
        )
    if not config.benchmark_costs:
        warnings.append(
            "`benchmark_costs: false`: the equal-weight benchmark trades without costs, as in "
            "FinRL_Crypto, and is harder to beat than one that can be held in practice."
        )
    if config.fee == 0.0 and not config.fee_tiers and config.slippage_bp == 0.0:
        warnings.append("Trading costs only the spread: fee and slippage are 0.")
    return warnings
