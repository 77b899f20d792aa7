"""Arrays, params and state of the forex environment, with columns and units.

`params_by_split` creates the scalar params from a config, one record per symbol and window.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import DataError
from slipstream.markets.data.calendar import Calendar
from slipstream.markets.folds import MIN_EPISODE_BARS
from slipstream.markets.forex.config import Config
from slipstream.markets.shared_rules import (
    DRAWDOWN_FIELDS,
    EPISODE_FIELDS,
    RETURN_FIELDS,
    base_params,
    continuous_passes,
    decode_name,
    is_training_split,
    scaling_index,
    with_first_fold,
)

# Columns of Data.bars: one cache line per bar. Prices are mid; the spread is the full bid-ask
# spread in price units.
OPEN = 0
HIGH = 1
LOW = 2
CLOSE = 3
SPREAD = 4
RATE_OPEN = 5  # account currency per unit of quote at the bar's open ...
RATE_CLOSE = 6  # ... and at its close
ATR = 7  # average true range known at the bar's open, in price units

# Columns of Data.constants: one row per segment.
PIP = 0
INVERSE = 1  # 1 if the account currency is the base, so the rate is 1 / mid inside a bar as well
VARIANCE = 2  # of simple returns per bar over the training window

# Bits of Data.calendar.
ROLL = 1  # a trading day ended between the previous bar and this one
FLAT = 2  # the position must be flat after a fill in this bar's step
NIGHT = 4  # nights of swap due at this bar's open, as a multiple of this value

# Params.fill_at
NEXT_OPEN = 0
NEXT_CLOSE = 1
SAME_CLOSE = 2

# Params.stop_unit
PIPS = 0
ATR_MULTIPLES = 1
FRACTION = 2

# Params.reward
LOG_RETURN = 0
PNL = 1
DIFFERENTIAL_SHARPE = 2


class Params(NamedTuple):
    """Scalar params of one symbol and window, or of all symbols if episodes draw one.

    Attributes:
        first_segment, num_segments: range of rows of `Data.segments` from which starts are drawn.
        num_starts: number of valid starts in these segments.
        min_remaining_bars: minimum number of bars from a random start to the end of its segment.
        from_start: start at the first row of a segment, without a time limit.
        sells_at_end: close the position at the end and pay its exit costs.
        scaling: row of `Data.feature_mean` and `feature_std` that the policy uses.
        lookback: L, bars of features in the observation; num_features: F.
        discrete: three discrete actions; otherwise one continuous action in [-1, 1].
        exposure: notional / equity of a discrete position, or at continuous action 1.
        rebalance_threshold: smallest traded change of a continuous exposure, notional / equity.
        unit_step: orders are multiples of this many units of the base currency.
        initial_equity: account currency.
        leverage: maximum notional / equity.
        fill_at: NEXT_OPEN, NEXT_CLOSE or SAME_CLOSE.
        cost_multiple: factor on spread, slippage, commission and charged swaps (used by stress
            tests).
        slippage_pips: adverse slippage in pips, on every fill except take-profits.
        commission: fraction of notional per leg.
        stop_loss, take_profit: distance in `stop_unit`; 0 = none.
        stop_unit: PIPS, ATR_MULTIPLES or FRACTION.
        favourable_first: if a bar reaches the levels on both sides, the better one fills.
        stop_cooldown: bars after a stop or target without entry on that side.
        cooldown: bars after a fill during which positions can only be reduced.
        max_daily_drawdown: fraction of equity at the last roll; 0 = none.
        terminate_on_breach: a breach ends the episode; otherwise positions are flat until the next
            roll.
        swap_long, swap_short: fraction of notional credited per night (negative: charged).
        reward: LOG_RETURN, PNL or DIFFERENTIAL_SHARPE.
        eta: decay of the differential Sharpe ratio's moments, per bar.
        turnover_penalty: reward per traded notional / equity.
        holding_penalty: reward per bar at exposure 1.
        drawdown_penalty: reward per bar at a drawdown of 100 %.
        max_steps: bars of a training episode.
        bar_seconds: seconds per bar; bars_per_year, days_per_year: trading bars and days.
        day_bars_root: square root of bars per day; ATR times it approximates a day's move.
        rolls_in_new_york: trading days end at 17:00 in New York; otherwise at 00:00 UTC.
    """

    first_segment: int
    num_segments: int
    num_starts: int
    min_remaining_bars: int
    from_start: bool
    sells_at_end: bool
    scaling: int
    lookback: int
    num_features: int
    discrete: bool
    exposure: float
    rebalance_threshold: float
    unit_step: float
    initial_equity: float
    leverage: float
    fill_at: int
    cost_multiple: float
    slippage_pips: float
    commission: float
    stop_loss: float
    take_profit: float
    stop_unit: int
    favourable_first: bool
    stop_cooldown: int
    cooldown: int
    max_daily_drawdown: float
    terminate_on_breach: bool
    swap_long: float
    swap_short: float
    reward: int
    eta: float
    turnover_penalty: float
    holding_penalty: float
    drawdown_penalty: float
    max_steps: int
    bar_seconds: int
    bars_per_year: float
    days_per_year: float
    day_bars_root: float
    rolls_in_new_york: bool


class Data(NamedTuple):
    """Read-only arrays shared by all environments. Symbols are stored one after another.

    Attributes:
        bars: float64 [rows, 8], columns as above.
        features: float32 [rows, >= F + 4]: the configured features, causal and unscaled, then sine
            and cosine of the time of day and of the day of the week at the bar's close; padded with
            zeros to whole cache lines.
        calendar: int64 [rows], bits as above.
        time: int64 [rows], UTC seconds of the bar's open.
        segments: int64 [K, 2], first decision row and one past the last row.
        segment_symbol: int64 [K].
        constants: float64 [K, 3], columns as above.
        feature_mean, feature_std: float64 [scales, F] over the training rows of all symbols. Rows
            are the folds, the development range and the whole range, or a single window.
        symbols: int64 [S, 32], names as character codes; currency: int64 [32], account currency.
    """

    bars: NDArray[np.float64]
    features: NDArray[np.float32]
    calendar: NDArray[np.int64]
    time: NDArray[np.int64]
    segments: NDArray[np.int64]
    segment_symbol: NDArray[np.int64]
    constants: NDArray[np.float64]
    feature_mean: NDArray[np.float64]
    feature_std: NDArray[np.float64]
    symbols: NDArray[np.int64]
    currency: NDArray[np.int64]


# Fields used in every step come first, fields used only by fills come last.
STATE = np.dtype(
    [
        *EPISODE_FIELDS,
        ("units", "f8"),  # signed, base currency
        ("entry", "f8"),  # average fill price, quote currency
        ("cash", "f8"),  # account currency, as all money below
        ("equity", "f8"),
        ("exposure", "f8"),  # signed notional / equity
        *DRAWDOWN_FIELDS,
        *RETURN_FIELDS,
        ("exposure_sum", "f8"),
        ("mean_exposure", "f8"),
        ("holding_bars", "i8"),
        ("stop", "f8"),  # price levels on the exit side
        ("target", "f8"),
        ("day_equity", "f8"),  # at the last roll
        ("breached", "i8"),
        ("long_blocked_to", "i8"),  # no long entry up to this row
        ("short_blocked_to", "i8"),
        ("reduce_only_to", "i8"),
        ("sharpe_a", "f8"),  # moving moments of the differential Sharpe ratio, first and second
        ("sharpe_b", "f8"),
        ("turnover", "f8"),  # traded notional / equity, summed
        ("fills", "i8"),
        ("trades", "i8"),  # positions closed
        ("wins", "i8"),
        ("gross_profit", "f8"),
        ("gross_loss", "f8"),
        ("trade_cash", "f8"),  # cash before the open position was opened
        ("stop_exits", "i8"),
        ("target_exits", "i8"),
        ("stop_outs", "i8"),
        ("both_touched", "i8"),  # exits whose bar reached the levels on both sides
        ("costs", "f8"),
        ("cost_spread", "f8"),
        ("cost_slippage", "f8"),
        ("cost_commission", "f8"),
        ("cost_swap", "f8"),
    ],
    align=True,
)


_YEAR_NIGHTS = 365.0

_FILLS = {"next_open": NEXT_OPEN, "next_close": NEXT_CLOSE, "compat_same_close": SAME_CLOSE}
_STOP_UNITS = {"pips": PIPS, "atr": ATR_MULTIPLES, "fraction": FRACTION}
_REWARDS = {"log_return": LOG_RETURN, "pnl": PNL, "differential_sharpe": DIFFERENTIAL_SHARPE}


SegmentRows = dict[str, list[list[int]]]
"""Rows of `Data.segments` by split: per symbol for training, otherwise per tested group."""


def params_by_split(
    config: Config, data: Data, picked: SegmentRows, bar_seconds: int, calendar: Calendar
) -> dict[str, tuple[Params, ...]]:
    """Create the params of each split.

    Training splits start at random rows. All other splits have one continuous pass per segment.

    Args:
        config: the environment config.
        data: the arrays.
        picked: rows of `data.segments` by split. The rows of a training split are consecutive.
        bar_seconds: length of a bar in seconds.
        calendar: trading calendar of the market.

    Raises:
        DataError: a symbol has no training segment in which an episode can start.
    """
    lengths = data.segments[:, 1] - data.segments[:, 0]
    min_remaining_bars = min(config.max_steps, MIN_EPISODE_BARS)
    if "train" in picked:  # a single window: at least one start, followed by at least one bar
        min_remaining_bars = min(
            min_remaining_bars, *(int(lengths[k]) - 1 for rows in picked["train"] for k in rows)
        )
    blank = _base_params(config, bar_seconds, calendar)._replace(
        min_remaining_bars=min_remaining_bars
    )
    params = dict[str, tuple[Params, ...]]()
    for split, groups in picked.items():
        base = blank._replace(scaling=scaling_index(split, len(data.feature_mean)))
        if is_training_split(split):
            params[split] = _training_params(base, data, split, groups, config.symbol_assignment)
        else:
            params[split] = continuous_passes(base, [k for rows in groups for k in rows])
    return with_first_fold(params)


def _training_params(
    blank: Params, data: Data, split: str, symbols: list[list[int]], deal: str
) -> tuple[Params, ...]:
    """Return params with random starts: one record per symbol, or a single one."""
    lengths = data.segments[:, 1] - data.segments[:, 0]
    starts = np.maximum(lengths - blank.min_remaining_bars, 0)
    for rows in symbols:
        if not starts[rows].any():
            raise DataError(
                f"{decode_name(data.symbols[data.segment_symbol[rows[0]]])} must have more than "
                f"{blank.min_remaining_bars:,} bars in a training segment of {split}, so that an "
                f"episode can start there; its longest segment has {lengths[rows].max():,}. "
                "Exclude the symbol with `data.symbols`, load more of its bars, or use fewer "
                "`groups`."
            )
    groups = symbols if deal == "round_robin" else [[k for rows in symbols for k in rows]]
    return tuple(
        blank._replace(
            first_segment=rows[0], num_segments=len(rows), num_starts=int(starts[rows].sum())
        )
        for rows in groups
    )


def _base_params(config: Config, bar_seconds: int, calendar: Calendar) -> Params:
    """Return the params that all splits of a config share: the first segment and no starts."""
    bars_per_day = calendar.bars_per_year / calendar.days_per_year
    discrete = config.action == "discrete"
    return base_params(
        Params,
        (config,),
        bar_seconds,
        calendar,
        num_features=len(config.features),
        discrete=discrete,
        exposure=config.exposure if discrete else config.max_exposure,
        fill_at=_FILLS[config.fill],
        commission=1e-6 * config.commission_per_million,
        stop_loss=config.stop_loss or 0.0,
        take_profit=config.take_profit or 0.0,
        stop_unit=_STOP_UNITS[config.stop_unit],
        favourable_first=config.intrabar_fill == "favourable_first",
        max_daily_drawdown=config.max_daily_drawdown or 0.0,
        terminate_on_breach=config.on_breach == "terminate",
        swap_long=config.swap_long / 100.0 / _YEAR_NIGHTS,
        swap_short=config.swap_short / 100.0 / _YEAR_NIGHTS,
        reward=_REWARDS[config.reward],
        eta=1.0 / max(bars_per_day, 1.0),
        day_bars_root=math.sqrt(max(bars_per_day, 1.0)),
    )
