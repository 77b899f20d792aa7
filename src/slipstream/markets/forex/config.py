"""Configuration of the forex environment, the section `env:`."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from slipstream.core import config
from slipstream.core.bounds import (
    BarCount,
    Equity,
    Exposure,
    InnerShare,
    Leverage,
    Penalty,
    Share,
    SlippagePips,
    SomeBars,
)
from slipstream.markets.data.config import DataConfig
from slipstream.markets.features.feature_registry import DEFAULT_FEATURES
from slipstream.markets.folds import SplitConfig

# Distance of stops in pips, multiples of ATR, or as a fraction of the price.
Distance = Annotated[float, Field(gt=0.0, le=100_000.0)]
Variance = Share


class Config(config.Config):
    """Configuration of the forex environment; docs/explanation/market-rules.md, sections 1 to 9.

    Each environment trades one symbol, and a batch contains many symbols.

    Attributes:
        data: location and format of the prices.
        features: names of the feature columns in the observation.
        split: fractions of the time range for training, validation and test.
        lookback: bars of features in the observation.
        action: discrete target position (short, flat, long) or target exposure in [-1, 1].
        exposure: notional of a discrete position, multiples of equity.
        max_exposure: notional at continuous action 1, multiples of equity.
        rebalance_threshold: smallest change of a continuous exposure that is traded.
        unit_step: order sizes are rounded toward zero to multiples of this, in base currency.
        initial_equity: in account currency.
        account_currency: currency of equity, costs and rewards.
        leverage: maximum notional per equity; stop-out at half the margin.
        fill: open or close of the next bar, or the close of the observed bar (for compatibility).
        slippage_pips: adverse slippage, on every fill except take-profits.
        commission_per_million: account currency per million of notional and leg.
        stop_loss, take_profit: distance from the entry's mid price, in `stop_unit`; null disables.
        stop_unit: pips, multiples of ATR(14), or fraction of the price.
        intrabar_fill: level that fills if a bar reaches the levels on both sides.
        stop_cooldown: bars after a stop or target exit without entry on the same side.
        cooldown: bars after any fill during which positions can only be reduced.
        max_daily_drawdown: fraction of the equity at the last roll; null disables.
        on_breach: a daily drawdown blocks trading until the next roll, or ends the episode.
        flatten_at: clock time ("16:45", New York; UTC in 24/7 markets) from which positions are
            flat until the day's roll.
        flat_on_friday: clock time on Fridays from which positions are flat until the week reopens.
        swap_long, swap_short: % per annum of notional credited (negative: charged) per night.
        reward: log return, profit / initial equity, or differential Sharpe ratio.
        return_variance: variance of simple returns per bar, the initial second moment and scale of
            the differential Sharpe ratio; one number, or one per symbol. null uses the variance of
            the training bars, also in evaluations on other bars.
        turnover_penalty: deducted from the reward per traded notional / equity.
        holding_penalty: deducted from the reward per bar at exposure 1.
        drawdown_penalty: deducted from the reward per bar at a drawdown of 100 %.
        max_steps: bars of a training episode.
        symbol_assignment: environments are assigned symbols in turn, or draw one per episode.
    """

    FIXED_KEYS: ClassVar[tuple[str, ...]] = (
        "data",
        "split",
        "unit_step",
        "initial_equity",
        "account_currency",
        "leverage",
        "fill",
        "slippage_pips",
        "commission_per_million",
        "intrabar_fill",
        "return_variance",
        "swap_long",
        "swap_short",
    )

    data: DataConfig
    features: tuple[str, ...] = DEFAULT_FEATURES
    split: SplitConfig = SplitConfig()
    lookback: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, json_schema_extra=config.tunable(choices=[1, 2, 4, 8], by_default=False)
    )
    action: Literal["discrete", "continuous"] = "discrete"
    exposure: Exposure = 1.0
    max_exposure: Exposure = 1.0
    rebalance_threshold: Annotated[float, Field(ge=0.0, le=10_000.0)] = Field(
        0.1, json_schema_extra=config.tunable(0.02, 0.4, when={"action": "continuous"})
    )
    unit_step: Annotated[float, Field(ge=1e-8, le=1e12)] = 1.0
    initial_equity: Equity = 100_000.0
    account_currency: Annotated[str, Field(pattern="^[A-Z]{3,8}$")] = "USD"
    leverage: Leverage = 30.0
    fill: Literal["next_open", "next_close", "compat_same_close"] = "next_open"
    slippage_pips: SlippagePips = 0.0
    commission_per_million: Annotated[float, Field(ge=0.0, lt=1e6)] = 0.0
    stop_loss: Distance | None = None
    take_profit: Distance | None = None
    stop_unit: Literal["pips", "atr", "fraction"] = "pips"
    intrabar_fill: Literal["adverse_first", "favourable_first"] = "adverse_first"
    stop_cooldown: BarCount = 1
    cooldown: BarCount = Field(0, json_schema_extra=config.tunable(0, 12, by_default=False))
    max_daily_drawdown: InnerShare | None = None
    on_breach: Literal["block", "terminate"] = "block"
    flatten_at: str | None = None
    flat_on_friday: str | None = None
    swap_long: Annotated[float, Field(ge=-100.0, le=100.0)] = 0.0
    swap_short: Annotated[float, Field(ge=-100.0, le=100.0)] = 0.0
    reward: Literal["log_return", "pnl", "differential_sharpe"] = "log_return"
    return_variance: Variance | dict[str, Variance] | None = None
    turnover_penalty: Penalty = Field(0.0, json_schema_extra=config.tunable(0.0, 2e-4))
    holding_penalty: Penalty = 0.0
    drawdown_penalty: Penalty = 0.0
    max_steps: SomeBars = 1000
    symbol_assignment: Literal["round_robin", "random"] = "round_robin"

    @field_validator("features")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) != len(value):
            raise ValueError("`features` must not contain duplicates")
        return value

    @field_validator("flatten_at", "flat_on_friday")
    @classmethod
    def _clock_time(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", value):
            raise ValueError('must be a New York clock time between "00:00" and "23:59", in quotes')
        return value

    @model_validator(mode="after")
    def _possible(self) -> Config:
        largest = self.exposure if self.action == "discrete" else self.max_exposure
        if largest > self.leverage:
            raise ValueError(
                f"`leverage` must be at least the exposure of {largest:g} times equity, got "
                f"{self.leverage:g}"
            )
        if self.action == "continuous" and self.rebalance_threshold >= self.max_exposure:
            raise ValueError(
                f"`rebalance_threshold` {self.rebalance_threshold:g} must be smaller than "
                f"`max_exposure` {self.max_exposure:g}, or no position could ever be opened"
            )
        if self.stop_unit == "fraction":
            for name in ("stop_loss", "take_profit"):
                distance = getattr(self, name)
                if distance is not None and distance >= 1.0:
                    raise ValueError(
                        f"`{name}` {distance:g} must be below 1 with `stop_unit: fraction`"
                    )
        return self


def clock_minutes(clock: str) -> int:
    """Return the minutes after midnight of "HH:MM"."""
    hours, minutes = clock.split(":")
    return 60 * int(hours) + int(minutes)
