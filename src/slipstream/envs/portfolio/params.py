"""The scalar records of the portfolio environment, one for each split and window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slipstream.core.errors import ConfigError, DataError
from slipstream.envs.portfolio.config import Config
from slipstream.envs.portfolio.record import (
    CHANGE,
    EXCESS_LOG_RETURN,
    EXCESS_VALUE,
    LOG_RETURN,
    MIN_QUANTITY,
    MIXED,
    SIMPLEX,
    SOFTMAX,
    Data,
    Params,
)
from slipstream.envs.portfolio.spec import names_of
from slipstream.market.calendar import NEW_YORK_ROLL, Calendar
from slipstream.market.folds import RUNWAY

_MAPS = {"softmax": SOFTMAX, "simplex": SIMPLEX, "change": CHANGE}
_REWARDS = {
    "excess_log_return": EXCESS_LOG_RETURN,
    "log_return": LOG_RETURN,
    "excess_value": EXCESS_VALUE,
    "mixed": MIXED,
}

EVERYTHING = "everything/train"  # holds the hold-out, which no check may read

Picked = Mapping[str, Sequence[int]]
"""Split -> rows of `Data.segments`; consecutive where they are trained on."""


def records_of(
    config: Config, data: Data, picked: Picked, bar_seconds: int, days: Calendar
) -> dict[str, tuple[Params, ...]]:
    """Records by split: random starts to train on, one continuous pass a segment for all others.

    Args:
        config: the settings.
        data: the arrays.
        picked: names that are, or end in, `train` are trained on.
        bar_seconds: length of a bar.
        days: the market's calendar.

    Raises:
        ConfigError: a full unit order is below an asset's smallest one.
        DataError: a training segment has no start.
    """
    blank = _settings(config, data, bar_seconds, days)
    params = {}
    for split, rows in picked.items():
        own = blank._replace(scale=scale_of(split, len(data.feature_mean)))
        if split == "train" or split.endswith("/train"):
            params[split] = (_training(own, data, rows, split),)
        else:
            params[split] = tuple(own._replace(first_segment=k, evaluation=True) for k in rows)
    if config.orders == "units":
        trained = [name for name in picked if name.endswith("train") and name != EVERYTHING]
        _refuse_small_orders(config, data, {k for name in trained for k in picked[name]})
    return {"train": params["fold0/train"], **params} if "fold0/train" in params else params


def scale_of(split: str, scales: int) -> int:
    """The folds' scales come first, then the development range's, last everything's."""
    name = split.partition("/")[0]
    if scales == 1:
        return 0
    if name.startswith("fold"):
        return int(name.removeprefix("fold"))
    return scales - 1 if name == "everything" else scales - 2


def _training(blank: Params, data: Data, rows: Sequence[int], split: str) -> Params:
    lengths = [int(data.segments[k, 1] - data.segments[k, 0]) - blank.early_end for k in rows]
    # Where no segment is that long, the longest still has a start, and one bar that follows it.
    runway = min(blank.max_steps, RUNWAY, max(lengths) - 1)
    if runway < 1:
        raise DataError(
            f"A segment of {split} must have at least 2 usable bars, the longest has "
            f"{max(lengths):,}: load more bars, or shorten the lookback and the features' warm-up."
        )
    runway += blank.early_end
    starts = sum(max(length + blank.early_end - runway, 0) for length in lengths)
    return blank._replace(
        first_segment=rows[0], num_segments=len(rows), num_starts=starts, runway=runway
    )


# Long: a line for each field.
def _settings(config: Config, data: Data, bar_seconds: int, days: Calendar) -> Params:
    """What all records of a config have in common."""
    units = config.units
    unit_orders = config.orders == "units"
    return Params(
        first_segment=0,
        num_segments=1,
        num_starts=1,
        runway=0,
        evaluation=False,
        from_start=unit_orders and units.start == "first",
        scale=0,
        assets=len(data.lots),
        num_features=data.feature_mean.shape[1],
        lookback=config.lookback,
        union=config.universe == "union",
        unit_orders=unit_orders,
        action_map=_MAPS[config.action_map],
        sharpness=config.sharpness,
        max_change=config.max_change,
        band=config.band,
        decide_every=config.decide_every,
        min_holding=config.min_holding,
        reserve=config.reserve,
        max_position=config.max_position,
        trailing_stop=config.trailing_stop or 0.0,
        min_notional=config.min_notional,
        initial_equity=config.initial_equity,
        fee=config.fee,
        tiered=bool(config.fee_tiers),
        start_volume=config.start_volume,
        slippage=1e-4 * config.slippage_bp,
        cost_multiple=1.0,
        benchmark_costs=config.benchmark_costs,
        reward=_REWARDS[config.reward],
        norm_reward=config.norm_reward,
        time_decay_floor=config.time_decay_floor,
        concentration_penalty=config.concentration_penalty,
        drawdown_penalty=config.drawdown_penalty,
        volatility_penalty=config.volatility_penalty,
        value_scale=units.action_scale == "value",
        norm_action=units.norm_action,
        norm_cash=units.norm_cash,
        norm_stocks=units.norm_stocks,
        norm_features=units.norm_tech if unit_orders else 1.0,
        buy_share=units.buy_share,
        forced_sale_bars=units.forced_sale_bars,
        forced_sale_share=units.forced_sale_share,
        min_factor=units.min_factor,
        discount=units.discount,
        anchor_back=config.lookback - 1 if units.anchor == "first_row" else 0,
        early_end=config.lookback if unit_orders and units.ending == "original" else 0,
        discounted_end=unit_orders and units.final_reward == "discounted",
        max_steps=config.max_steps,
        bar_seconds=bar_seconds,
        bars_per_year=days.bars_per_year,
        days_per_year=days.days_per_year,
        rolls_in_new_york=days.day_roll == NEW_YORK_ROLL,
    )


def _refuse_small_orders(config: Config, data: Data, segments: Iterable[int]) -> None:
    """A full action must trade in every asset, or the agent could never act there."""
    units, assets = config.units, len(data.lots)
    for segment in data.first[sorted(segments)]:
        for i, name in enumerate(names_of(data)):
            price = segment[i]
            if price <= 0.0:
                continue
            full = units.norm_action * segment[assets + i]
            if units.action_scale == "value":
                full = config.initial_equity / (price * units.norm_action)
            smallest = units.min_factor * data.lots[i, MIN_QUANTITY]
            if full <= smallest:
                advice = "lower" if units.action_scale == "value" else "raise"
                raise ConfigError(
                    f"`env.units.norm_action` {units.norm_action:g}: a full action must exceed the "
                    f"smallest order in every asset; in {name} it trades {full:.6g} coins (worth "
                    f"{full * price:.4g} {config.account_currency}), the smallest order is "
                    f"{smallest:.6g}: {advice} it, or set `env.min_quantity`."
                )
