"""Arrays, params and state of the portfolio environment, with columns and units.

`params_by_split` creates the scalar params from a config, one record per split and window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, DataError
from slipstream.core.timeline import EVERYTHING, train_split
from slipstream.markets.data.calendar import Calendar
from slipstream.markets.folds import MIN_EPISODE_BARS
from slipstream.markets.portfolio.config import Config
from slipstream.markets.shared_rules import (
    DRAWDOWN_FIELDS,
    EPISODE_FIELDS,
    RETURN_FIELDS,
    base_params,
    continuous_passes,
    decode_symbols,
    is_training_split,
    scaling_index,
    with_first_fold,
)

# Params.action_map
SOFTMAX = 0
SIMPLEX = 1
CHANGE = 2

# Params.reward
EXCESS_LOG_RETURN = 0
LOG_RETURN = 1
EXCESS_VALUE = 2
MIXED = 3

# Columns of Data.lot_sizes: one row per asset.
MIN_QUANTITY = 0
STEP = 1

VOLUME_DAYS = 30  # complete UTC days whose volume determines the fee tier


class Params(NamedTuple):
    """Scalar params of one record.

    Attributes:
        first_segment, num_segments: range of rows of `Data.segments` from which starts are drawn.
        num_starts: number of valid starts in these segments.
        min_remaining_bars: minimum number of bars from a random start to the end of its segment.
        from_start: start at the first row of a segment, without a time limit.
        sells_at_end: sell everything at the end.
        scaling: row of `Data.feature_mean` and `Data.feature_std`.
        union: assets can be listed and delisted during an episode.
        unit_orders: orders in coins instead of target weights.
        value_scale: a full unit order is worth initial_equity / norm_action.
        anchor_back: rows between the purchase of a fee-free benchmark and the start.
        early_end: rows at a segment's end that no episode reaches.
        discounted_end: the last reward is the discounted return.
        tiered: the fee depends on the traded volume.
        cost_multiple: factor on fee, spread and slippage (used by stress tests).
        trailing_stop: 0 = none.
    """

    first_segment: int
    num_segments: int
    num_starts: int
    min_remaining_bars: int
    from_start: bool
    sells_at_end: bool
    scaling: int
    assets: int
    num_features: int
    lookback: int
    union: bool
    unit_orders: bool
    action_map: int
    sharpness: float
    max_change: float
    rebalance_threshold: float
    decide_every: int
    min_holding: int
    cash_reserve: float
    max_position: float
    trailing_stop: float
    min_notional: float
    initial_equity: float
    fee: float
    tiered: bool
    start_volume: float
    slippage: float
    cost_multiple: float
    benchmark_costs: bool
    reward: int
    norm_reward: float
    time_decay_floor: float
    concentration_penalty: float
    drawdown_penalty: float
    volatility_penalty: float
    value_scale: bool
    norm_action: float
    norm_cash: float
    norm_stocks: float
    norm_features: float
    buy_share: float
    forced_sale_bars: int
    forced_sale_share: float
    min_factor: float
    gamma: float
    anchor_back: int
    early_end: int
    discounted_end: bool
    max_steps: int
    bar_seconds: int
    bars_per_year: float
    days_per_year: float
    rolls_in_new_york: bool


class Data(NamedTuple):
    """Read-only arrays shared by all environments, with A assets, T rows and S scalings.

    Attributes:
        prices: float64 [T, >= 3 A]: closes of all assets, then opens, then half spreads in price
            units. A close of 0: not listed. An open of 0: the asset cannot be traded during this
            bar, or is not listed.
        features: float32 [T, >= A F]: causal and unscaled, asset by asset; 0 if not listed.
        time: int64 [T], UTC seconds of the bar's open.
        segments: int64 [K, 2], first decision row and one past the last row.
        first: float64 [K, 2 A]: first price of each asset in a segment, then 10 to the power of
            minus the integer part of its decimal logarithm; 0 for an asset that is never listed
            there.
        lot_sizes: float64 [A, 2], columns as above.
        fee_tiers: float64 [R, 2]: minimum volume of a tier, and its fee.
        feature_mean, feature_std: float64 [S, A F] over the training rows of each scaling.
        symbols: int64 [A, 32], names as character codes; currency: int64 [32], account currency.
    """

    prices: NDArray[np.float64]
    features: NDArray[np.float32]
    time: NDArray[np.int64]
    segments: NDArray[np.int64]
    first: NDArray[np.float64]
    lot_sizes: NDArray[np.float64]
    fee_tiers: NDArray[np.float64]
    feature_mean: NDArray[np.float64]
    feature_std: NDArray[np.float64]
    symbols: NDArray[np.int64]
    currency: NDArray[np.int64]


def state_dtype(assets: int) -> np.dtype[Any]:
    """Return the state of a portfolio of `assets`; fields used in every step come first."""
    shape = (assets,)
    return np.dtype(
        [
            *EPISODE_FIELDS,
            ("cash", "f8"),  # account currency, as all money below
            ("equity", "f8"),
            ("benchmark", "f8"),  # value of the equal-weight benchmark on the same bars
            ("benchmark_cash", "f8"),
            ("benchmark_waiting", "i8"),  # assets that the benchmark has not bought yet
            *DRAWDOWN_FIELDS,
            ("benchmark_return", "f8"),
            *RETURN_FIELDS,
            ("exposure", "f8"),  # share of equity that is invested
            ("exposure_sum", "f8"),
            ("mean_exposure", "f8"),
            ("discounted", "f8"),  # discounted return so far
            ("traded", "f8"),  # notional of this step's fills
            ("cost_spread", "f8"),
            ("fills", "i8"),
            ("trades", "i8"),  # holdings closed
            ("turnover", "f8"),  # traded notional / equity, summed
            ("costs", "f8"),
            ("cost_fee", "f8"),
            ("cost_slippage", "f8"),
            ("day_volume", "f8"),  # traded notional of the current UTC day
            ("units", "f8", shape),  # coins held
            ("benchmark_units", "f8", shape),
            ("benchmark_share", "f8", shape),  # benchmark cash reserved for assets not bought yet
            ("target", "f8", shape),  # weights, negative: unchanged; unit orders: cost per coin
            ("order", "f8", shape),  # orders of the last step in coins, sales negative
            ("held", "i8", shape),  # bars since the last fill (unit orders: last sale)
            ("high", "f8", shape),  # highest close since the purchase
            ("benchmark_costs", "f8"),
            ("tier_fee", "f8"),  # fee of the current day
            ("day", "i8"),  # number of the current UTC day
            (
                "volumes",
                "f8",
                (VOLUME_DAYS,),
            ),  # of previous complete days, a ring by day
        ],
        align=True,
    )


STATE = state_dtype(1)


_ACTION_MAPS = {"softmax": SOFTMAX, "simplex": SIMPLEX, "change": CHANGE}
_REWARDS = {
    "excess_log_return": EXCESS_LOG_RETURN,
    "log_return": LOG_RETURN,
    "excess_value": EXCESS_VALUE,
    "mixed": MIXED,
}

SegmentRows = Mapping[str, Sequence[int]]
"""Rows of `Data.segments` by split; consecutive for training splits."""


def params_by_split(
    config: Config, data: Data, picked: SegmentRows, bar_seconds: int, calendar: Calendar
) -> dict[str, tuple[Params, ...]]:
    """Create the params of each split.

    Training splits start at random rows. All other splits have one continuous pass per segment.

    Args:
        config: the environment config.
        data: the arrays.
        picked: rows of `data.segments` by split.
        bar_seconds: length of a bar in seconds.
        calendar: trading calendar of the market.

    Raises:
        ConfigError: a full unit order is smaller than an asset's minimum order.
        DataError: a training segment has no valid start.
    """
    blank = _base_params(config, data, bar_seconds, calendar)
    params = dict[str, tuple[Params, ...]]()
    for split, rows in picked.items():
        base = blank._replace(scaling=scaling_index(split, len(data.feature_mean)))
        if is_training_split(split):
            params[split] = (_training_params(base, data, rows, split),)
        else:
            params[split] = continuous_passes(base, rows)
    if config.orders == "units":
        everything = train_split(EVERYTHING)  # contains the hold-out, which checks must not read
        trained = [name for name in picked if name.endswith("train") and name != everything]
        _check_order_sizes(config, data, {k for name in trained for k in picked[name]})
    return with_first_fold(params)


def _training_params(blank: Params, data: Data, rows: Sequence[int], split: str) -> Params:
    lengths = [int(data.segments[k, 1] - data.segments[k, 0]) - blank.early_end for k in rows]
    # If no segment is that long, the longest one has a start that one bar follows.
    min_remaining_bars = min(blank.max_steps, MIN_EPISODE_BARS, max(lengths) - 1)
    if min_remaining_bars < 1:
        raise DataError(
            f"A segment of {split} must have at least 2 usable bars, the longest has "
            f"{max(lengths):,}. Load more bars, or shorten the lookback and the feature warm-up."
        )
    min_remaining_bars += blank.early_end
    starts = sum(max(length + blank.early_end - min_remaining_bars, 0) for length in lengths)
    return blank._replace(
        first_segment=rows[0],
        num_segments=len(rows),
        num_starts=starts,
        min_remaining_bars=min_remaining_bars,
    )


def _base_params(config: Config, data: Data, bar_seconds: int, calendar: Calendar) -> Params:
    """Return the params that all splits of a config share."""
    units = config.units
    unit_orders = config.orders == "units"
    return base_params(
        Params,
        (config, units),
        bar_seconds,
        calendar,
        from_start=unit_orders and units.start == "first",
        assets=len(data.lot_sizes),
        num_features=data.feature_mean.shape[1],
        union=config.universe == "union",
        unit_orders=unit_orders,
        action_map=_ACTION_MAPS[config.action_map],
        trailing_stop=config.trailing_stop or 0.0,
        tiered=bool(config.fee_tiers),
        slippage=1e-4 * config.slippage_bp,
        reward=_REWARDS[config.reward],
        value_scale=units.action_scale == "value",
        norm_features=units.norm_tech if unit_orders else 1.0,
        anchor_back=config.lookback - 1 if units.anchor == "first_row" else 0,
        early_end=config.lookback if unit_orders and units.ending == "original" else 0,
        discounted_end=unit_orders and units.final_reward == "discounted",
    )


def _check_order_sizes(config: Config, data: Data, segments: Iterable[int]) -> None:
    """Raise if a full action cannot trade in some asset, since the agent could never trade it."""
    units, assets = config.units, len(data.lot_sizes)
    for segment in data.first[sorted(segments)]:
        for i, name in enumerate(decode_symbols(data)):
            price = segment[i]
            if price <= 0.0:
                continue
            full = units.norm_action * segment[assets + i]
            if units.action_scale == "value":
                full = config.initial_equity / (price * units.norm_action)
            smallest = units.min_factor * data.lot_sizes[i, MIN_QUANTITY]
            if full <= smallest:
                advice = "Lower" if units.action_scale == "value" else "Raise"
                raise ConfigError(
                    "A full action must exceed the minimum order of every asset: with "
                    f"`env.units.norm_action` {units.norm_action:g} it trades {full:.6g} coins of "
                    f"{name} (worth {full * price:.4g} {config.account_currency}), and the minimum "
                    f"order is {smallest:.6g}. {advice} it, or set `env.min_quantity`."
                )
