"""The scalar records of the forex environment, one for each symbol and window."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from slipstream.envs.forex.config import Config
from slipstream.envs.forex.record import (
    ATR_MULTIPLES,
    DIFFERENTIAL_SHARPE,
    FRACTION,
    LOG_RETURN,
    NEXT_CLOSE,
    NEXT_OPEN,
    PIPS,
    PNL,
    SAME_CLOSE,
    Params,
)
from slipstream.market.calendar import NEW_YORK_ROLL, Calendar
from slipstream.market.folds import RUNWAY

_YEAR_NIGHTS = 365.0

_FILLS = {
    "next_open": NEXT_OPEN,
    "next_close": NEXT_CLOSE,
    "compat_same_close": SAME_CLOSE,
}
_STOP_UNITS = {"pips": PIPS, "atr": ATR_MULTIPLES, "fraction": FRACTION}
_REWARDS = {
    "log_return": LOG_RETURN,
    "pnl": PNL,
    "differential_sharpe": DIFFERENTIAL_SHARPE,
}


def params_of(
    config: Config,
    segments: NDArray[np.int64],
    picked: dict[str, list[int]],
    bar_seconds: int,
    days: Calendar,
) -> dict[str, tuple[Params, ...]]:
    """Records by split: random starts for `train`, one continuous pass a symbol for all others.

    Args:
        segments: int64 [K, 2].
        picked: split -> rows of `segments`; `train`'s are consecutive.
        bar_seconds: length of a bar.
        days: the market's calendar.
    """
    train = picked["train"]
    # A short segment still has a start; one bar must follow it.
    shortest = min(int(segments[k, 1] - segments[k, 0]) for k in train)
    runway = min(config.max_steps, RUNWAY, shortest - 1)
    blank = settings(config, bar_seconds, days)._replace(runway=runway)
    params = {"train": training(blank, segments, [[k] for k in train], config.deal)}
    for split, rows in {"train_window": train, **picked}.items():
        if split != "train" and rows:
            params[split] = passes(blank, rows)
    return params


def training(
    blank: Params, segments: NDArray[np.int64], symbols: list[list[int]], deal: str
) -> tuple[Params, ...]:
    """Records of random starts: one for all symbols, or one each.

    Args:
        blank: the settings, with the runway that a start leaves.
        segments: int64 [K, 2].
        symbols: for each symbol the rows of `segments` it is trained on; together consecutive.
        deal: whether copies draw their symbol or take them in turn.
    """
    groups = symbols if deal == "round_robin" else [[k for rows in symbols for k in rows]]
    return tuple(
        blank._replace(
            first_segment=rows[0],
            num_segments=len(rows),
            num_starts=sum(starts(segments[k], blank.runway) for k in rows),
        )
        for rows in groups
    )


def starts(segment: NDArray[np.int64], runway: int) -> int:
    """Rows of a segment that leave the runway."""
    return max(int(segment[1] - segment[0]) - runway, 0)


def passes(blank: Params, rows: list[int]) -> tuple[Params, ...]:
    """Records of one continuous pass for each of the given rows of `segments`."""
    return tuple(blank._replace(first_segment=k, evaluation=True) for k in rows)


def settings(config: Config, bar_seconds: int, days: Calendar) -> Params:
    """What all records of a config have in common: the first segment and no starts."""
    bars_per_day = days.bars_per_year / days.days_per_year
    discrete = config.action == "discrete"
    return Params(
        first_segment=0,
        num_segments=1,
        num_starts=1,
        runway=0,
        evaluation=False,
        scale=0,
        lookback=config.lookback,
        num_features=len(config.features),
        discrete=discrete,
        exposure=config.exposure if discrete else config.max_exposure,
        band=config.band,
        unit_step=config.unit_step,
        initial_equity=config.initial_equity,
        leverage=config.leverage,
        fill_at=_FILLS[config.fill],
        cost_multiple=1.0,
        slippage_pips=config.slippage_pips,
        commission=1e-6 * config.commission_per_million,
        stop_loss=config.stop_loss or 0.0,
        take_profit=config.take_profit or 0.0,
        stop_unit=_STOP_UNITS[config.stop_unit],
        favourable_first=config.intrabar == "favourable_first",
        stop_cooldown=config.stop_cooldown,
        cooldown=config.cooldown,
        max_daily_drawdown=config.max_daily_drawdown or 0.0,
        terminate_on_breach=config.on_breach == "terminate",
        swap_long=config.swap_long / 100.0 / _YEAR_NIGHTS,
        swap_short=config.swap_short / 100.0 / _YEAR_NIGHTS,
        reward=_REWARDS[config.reward],
        eta=1.0 / max(bars_per_day, 1.0),
        turnover_penalty=config.turnover_penalty,
        holding_penalty=config.holding_penalty,
        drawdown_penalty=config.drawdown_penalty,
        max_steps=config.max_steps,
        bar_seconds=bar_seconds,
        bars_per_year=days.bars_per_year,
        days_per_year=days.days_per_year,
        day_bars_root=math.sqrt(max(bars_per_day, 1.0)),
        rolls_in_new_york=days.day_roll == NEW_YORK_ROLL,
    )
