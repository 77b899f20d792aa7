"""Arrays and records of the portfolio environment: what is stored, in which place and unit."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Params.action_map
SOFTMAX = 0
SIMPLEX = 1
CHANGE = 2

# Params.reward
EXCESS_LOG_RETURN = 0
LOG_RETURN = 1
EXCESS_VALUE = 2
MIXED = 3

# Columns of Data.lots: one row an asset.
MIN_QUANTITY = 0
STEP = 1

VOLUME_DAYS = 30  # complete UTC days whose volume decides the fee tier


class Params(NamedTuple):
    """Scalars of one record.

    Attributes:
        first_segment, num_segments: range of rows of `Data.segments` that starts are drawn from.
        num_starts: valid starts in them.
        runway: bars that a random start leaves in its segment.
        evaluation: start at the window's first row, sell everything at its end.
        from_start: start at a segment's first row in training too.
        scale: row of `Data.feature_mean` and `Data.feature_std`.
        union: assets come and go.
        unit_orders: orders in coin instead of target weights.
        value_scale: a full unit order is worth initial_equity / norm_action.
        anchor_back: rows between the one at which a free benchmark is bought and the start.
        early_end: rows of a segment's end that no episode reaches.
        discounted_end: the last reward is the discounted return.
        half_range: half-width of the band that slippage makes around the mid, fraction of price.
        tiered: the fee follows the volume traded.
        cost_multiple: factor on fee, spread and slippage (reports ask what if).
        trailing_stop: 0 = none.
    """

    first_segment: int
    num_segments: int
    num_starts: int
    runway: int
    evaluation: bool
    from_start: bool
    scale: int
    assets: int
    num_features: int
    lookback: int
    union: bool
    unit_orders: bool
    action_map: int
    sharpness: float
    max_change: float
    band: float
    decide_every: int
    min_holding: int
    reserve: float
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
    discount: float
    anchor_back: int
    early_end: int
    discounted_end: bool
    max_steps: int
    bar_seconds: int
    bars_per_year: float
    days_per_year: float
    rolls_in_new_york: bool


class Data(NamedTuple):
    """Read-only arrays shared by all copies. A assets, T rows, S scales.

    Attributes:
        prices: float64 [T, >= 3 A]: the closes of all assets, then their opens, then half their
            spreads in price units. A close of 0: not listed. An open of 0: nobody can trade the
            asset during this bar, as where it is not listed.
        features: float32 [T, >= A F]: causal and unscaled, asset after asset; 0 where not listed.
        time: int64 [T], UTC seconds of the bar's open.
        segments: int64 [K, 2], first decision row and one past the last row.
        first: float64 [K, 2 A]: each asset's first price in a segment, then 10 to the power of
            minus the whole part of its decimal logarithm; 0 for one that is never listed there.
        lots: float64 [A, 2], columns as above.
        fee_tiers: float64 [R, 2]: volume from which a fee holds, and the fee.
        feature_mean, feature_std: float64 [S, A F] over the training rows of each scale.
        symbols: int64 [A, 32], names as character codes; currency: int64 [32], the account's.
    """

    prices: NDArray[np.float64]
    features: NDArray[np.float32]
    time: NDArray[np.int64]
    segments: NDArray[np.int64]
    first: NDArray[np.float64]
    lots: NDArray[np.float64]
    fee_tiers: NDArray[np.float64]
    feature_mean: NDArray[np.float64]
    feature_std: NDArray[np.float64]
    symbols: NDArray[np.int64]
    currency: NDArray[np.int64]


def state_dtype(assets: int) -> np.dtype[Any]:
    """One record for a portfolio of `assets`; what every step touches comes first."""
    each = (assets,)
    return np.dtype(
        [
            ("key", "u8"),
            ("counter", "u8"),
            ("bar", "i8"),  # row of Data.prices whose close marks equity
            ("last", "i8"),  # last row that the episode can reach
            ("segment", "i8"),
            ("steps", "i8"),
            ("cash", "f8"),  # account currency, as all money below
            ("equity", "f8"),
            ("benchmark", "f8"),  # equal weight's value on the same bars
            ("benchmark_cash", "f8"),
            ("benchmark_waiting", "i8"),  # assets that it has yet to buy
            ("peak", "f8"),
            ("drawdown", "f8"),  # fraction below the peak
            ("max_drawdown", "f8"),
            ("total_return", "f8"),
            ("benchmark_return", "f8"),
            ("return_sum", "f8"),  # of simple returns per bar, with the sum of their squares
            ("return_square_sum", "f8"),
            ("sharpe", "f8"),  # per bar, not annualised
            ("exposure", "f8"),  # share of equity that is invested
            ("exposure_sum", "f8"),
            ("mean_exposure", "f8"),
            ("discounted", "f8"),  # return so far, each reward discounted once a later step
            ("traded", "f8"),  # notional of the running step's fills
            ("cost_spread", "f8"),
            ("fills", "i8"),
            ("trades", "i8"),  # holdings closed
            ("turnover", "f8"),  # traded notional / equity, summed
            ("costs", "f8"),
            ("cost_fee", "f8"),
            ("cost_slippage", "f8"),
            ("day_volume", "f8"),  # traded notional of the running UTC day
            ("units", "f8", each),  # coins held
            ("benchmark_units", "f8", each),
            ("benchmark_share", "f8", each),  # cash set aside for what it has yet to buy
            ("target", "f8", each),  # weights, negative: kept; unit orders: cost of a coin
            ("order", "f8", each),  # coins of the last step's orders, sales negative
            ("held", "i8", each),  # bars held since the last fill (unit orders: last sale)
            ("high", "f8", each),  # highest close since bought
            ("benchmark_costs", "f8"),
            ("tier_fee", "f8"),  # today's
            ("day", "i8"),  # number of the running UTC day
            ("volumes", "f8", (VOLUME_DAYS,)),  # of the complete days before it, a ring by day
        ],
        align=True,
    )


STATE = state_dtype(1)
