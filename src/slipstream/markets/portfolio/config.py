"""Configuration of the portfolio environment, the section `env:`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from slipstream.core import config
from slipstream.core.bounds import (
    BarCount,
    Equity,
    Factor,
    Fraction,
    InnerShare,
    Money,
    Penalty,
    Quantity,
    Share,
    SomeBars,
)
from slipstream.markets.data.config import DataConfig
from slipstream.markets.folds import SplitConfig

BelowOne = Annotated[float, Field(ge=0.0, lt=1.0)]
Rate = Annotated[float, Field(ge=0.0, lt=0.1)]
Quantities = Quantity | dict[str, Quantity]

DEFAULT_FEATURES = ("portfolio",)

# Conditions under which a field is used, for the search space.
_UNITS = {"orders": "units"}
_WEIGHTS = {"orders": "weights"}
_SCALED = {"reward": ("excess_value", "mixed")}

# Defaults of `orders: units`: the constants of FinRL_Crypto.
_UNIT_DEFAULTS = {
    "fee": 0.003,
    "initial_equity": 1e6,
    "reward": "excess_value",
    "benchmark_costs": False,
    "min_notional": 0.0,
    "features": ("cappuccino",),
}


class UnitOrders(config.Config):
    """Orders in coins, as defined by `environment_Alpaca.py` of FinRL_Crypto.

    The CCXT variant of that project is `fee: 0.001`, `buy_share: 0.95`, `forced_sale_bars: 24` and
    the exchange's `min_quantity`. Cappuccino's is `fee: 0.0025`, `buy_share: 0.99`,
    `action_scale: value`, `reward: mixed`.

    Errors in the original's `reset` are not reproduced: benchmark and discounted return restart in
    every episode. The last four keys select the original's rules or standard ones.

    Attributes:
        action_scale: size of action 1: `magnitude`, norm_action / 10^floor(log10(first price))
            coins; `value`, coins worth initial_equity / norm_action at the first price.
        norm_action: see `action_scale`.
        norm_cash, norm_stocks, norm_tech: factors on those parts of the observation.
        buy_share: maximum fraction of the cash, after fees, that one order spends.
        forced_sale_bars: bars after an asset's last sale at which part of it is sold; 0 disables.
        forced_sale_share: fraction of the holding that is sold then.
        min_factor: orders must exceed this multiple of the minimum quantity.
        gamma: discount factor of the discounted return.
        start: training episodes start at `random` bars, or with the segment's `first` bar
            (original) and last until it ends.
        anchor: the fee-free benchmark is bought at the episode's `start`, or at the first row of
            the first observation (`first_row`, original; the same for lookback 1).
        ending: an episode lasts to the `last` bar, or ends `lookback` bars before it (`original`).
        final_reward: the last reward is the episode's `discounted` return (original), without
            bootstrapping, or the bar's own reward (`plain`).
    """

    action_scale: Literal["magnitude", "value"] = "magnitude"
    norm_action: Factor = Field(
        10_000.0, json_schema_extra=config.tunable(1_000.0, 25_000.0, log=True)
    )
    norm_cash: Factor = 2.0**-12
    norm_stocks: Factor = 2.0**-8
    norm_tech: Factor = 2.0**-15
    buy_share: Share = 0.9
    forced_sale_bars: BarCount = 48
    forced_sale_share: Share = 0.05
    min_factor: Annotated[float, Field(ge=1.0, le=1e6)] = 1.1
    gamma: Fraction = 0.99
    start: Literal["random", "first"] = "random"
    anchor: Literal["start", "first_row"] = "start"
    ending: Literal["last", "original"] = "last"
    final_reward: Literal["discounted", "plain"] = "discounted"


class Config(config.Config):
    """Configuration of the portfolio environment; docs/explanation/market-rules.md, section 10.

    Each environment manages a portfolio of all symbols. Keys that have no effect in a config, such
    as the rebalance threshold of unit orders, raise an error.

    Attributes:
        data: location and format of the prices.
        universe: `common`: the period that all assets share; `union`: all bars, with listings and
            delistings.
        features: names of the feature columns of each asset.
        split: fractions of the time range for training, validation and test.
        lookback: bars of features in the observation.
        orders: `weights`: target weights, filled at the next open; `units`: orders in coins, filled
            at the next close, by the rules under `units`.
        units: rules of `orders: units`.
        action_map: map from actions to target weights of assets and cash: `softmax` of sharpness x
            action; `change`, the current weights plus max_change x action, projected onto the
            simplex; or the nearest point of the `simplex`. With `change`, a zero action trades
            nothing and exploration noise costs less in fees, but weights are too slow for an edge
            that lasts one bar.
        sharpness: factor of `softmax`: at 30, an action that leads all others by 0.17 holds 96 % of
            one of seven assets; at 5, one that leads by 1 does.
        max_change: change of weight by action 1, for `change`.
        rebalance_threshold: smallest change of an asset's target weight that is traded.
        decide_every: bars between two decisions; actions in between are ignored.
        min_holding: bars that a holding is kept after its last fill (unit orders: last sale).
        cash_reserve: fraction of equity (unit orders: of the initial equity) that purchases leave
            in cash.
        max_position: maximum target weight of one asset (unit orders: maximum weight after a
            purchase).
        trailing_stop: fall from the highest close since the purchase, as a fraction, after which an
            asset is sold at the next fill; null disables.
        quantity_step: target-weight orders are rounded toward zero to this many coins; one number
            or one per symbol.
        min_quantity: minimum order in coins; one number or one per symbol. None: no minimum for
            target weights, Alpaca's minimum for unit orders.
        min_notional: minimum order of target weights, account currency.
        initial_equity: account currency.
        account_currency: quote currency of all prices.
        fee: fraction of notional, per side.
        fee_tiers: pairs (minimum 30-day volume in account currency, fee) that replace `fee`.
        start_volume: volume traded in the 30 days before an episode, account currency.
        slippage_bp: adverse slippage on every fill, basis points of the price.
        benchmark_costs: the equal-weight benchmark pays fee, spread and slippage, is bought at the
            first fill and keeps the cash reserve. If false (for compatibility), it is free and
            bought at the start of the episode.
        reward: log return minus that of equal weight (`excess_log_return`), `log_return`, gain
            minus that of equal weight x norm_reward (`excess_value`), or Cappuccino's `mixed`
            reward.
        norm_reward: factor of the last two, per unit of account currency.
        time_decay_floor: rewards decay linearly over the episode down to this factor; 1 disables.
        concentration_penalty: reward per bar and unit of weight above 0.4 in one asset, and half of
            it per active asset (weight above 0.01) fewer than three; a tenth of it is paid for
            evenness (0.4 - Gini coefficient).
        drawdown_penalty: reward per bar at a drawdown of 100 %.
        volatility_penalty: reward per bar at a standard deviation of 1 of the episode's returns.
        max_steps: bars of a training episode.
    """

    FIXED_KEYS: ClassVar[tuple[str, ...]] = (
        "data",
        "universe",
        "split",
        "quantity_step",
        "min_quantity",
        "min_notional",
        "initial_equity",
        "account_currency",
        "fee",
        "fee_tiers",
        "start_volume",
        "slippage_bp",
        "benchmark_costs",
    )

    data: DataConfig
    universe: Literal["common", "union"] = "common"
    features: tuple[str, ...] = DEFAULT_FEATURES
    split: SplitConfig = SplitConfig()
    lookback: Annotated[int, Field(ge=1, le=256)] = Field(
        1, json_schema_extra=config.tunable(choices=[1, 2, 4], by_default=False)
    )
    orders: Literal["weights", "units"] = "weights"
    units: UnitOrders = Field(UnitOrders(), json_schema_extra=config.tunable(when=_UNITS))
    action_map: Literal["change", "softmax", "simplex"] = Field(
        "softmax", json_schema_extra=config.tunable(when=_WEIGHTS)
    )
    sharpness: Annotated[float, Field(gt=0.0, le=50.0)] = Field(
        30.0,
        json_schema_extra=config.tunable(
            2.0, 40.0, log=True, when={**_WEIGHTS, "action_map": "softmax"}
        ),
    )
    max_change: Share = Field(
        0.5, json_schema_extra=config.tunable(0.05, 1.0, when={**_WEIGHTS, "action_map": "change"})
    )
    rebalance_threshold: BelowOne = Field(
        0.05, json_schema_extra=config.tunable(0.02, 0.3, when=_WEIGHTS)
    )
    decide_every: SomeBars = Field(
        1, json_schema_extra=config.tunable(choices=[1, 3, 6, 12], by_default=False)
    )
    min_holding: BarCount = Field(
        0, json_schema_extra=config.tunable(0, 48, step=12, by_default=False)
    )
    cash_reserve: BelowOne = 0.0
    max_position: Share = 1.0
    trailing_stop: InnerShare | None = None
    quantity_step: Quantities = Field(1e-8, json_schema_extra=config.tunable(when=_WEIGHTS))
    min_quantity: Quantities | None = None
    min_notional: Money = Field(10.0, json_schema_extra=config.tunable(when=_WEIGHTS))
    initial_equity: Equity = 100_000.0
    account_currency: Annotated[str, Field(pattern="^[A-Z]{3,8}$")] = "USD"
    fee: Rate = 0.001
    fee_tiers: tuple[tuple[Money, Rate], ...] = ()
    start_volume: Money = 0.0
    slippage_bp: Annotated[float, Field(ge=0.0, lt=1000.0)] = 0.0
    benchmark_costs: bool = True
    reward: Literal["excess_log_return", "log_return", "excess_value", "mixed"] = (
        "excess_log_return"
    )
    norm_reward: Factor = Field(
        2.0**-10,
        json_schema_extra=config.tunable(-13, -7, power_of=2, when=_SCALED, by_default=False),
    )
    time_decay_floor: Fraction = 1.0
    concentration_penalty: Penalty = 0.0
    drawdown_penalty: Penalty = 0.0
    volatility_penalty: Penalty = 0.0
    max_steps: SomeBars = 2016

    @model_validator(mode="before")
    @classmethod
    def _original_constants(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("orders") == "units":
            return {**_UNIT_DEFAULTS, **values}
        return values

    @field_validator("features", mode="before")
    @classmethod
    def _one_name(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("features")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or len(set(value)) != len(value):
            raise ValueError("`features` must contain at least one name and no duplicates")
        return value

    @model_validator(mode="after")
    def _possible(self) -> Config:
        volumes = [volume for volume, _ in self.fee_tiers]
        if volumes and (volumes[0] != 0.0 or volumes != sorted(set(volumes))):
            raise ValueError(
                f"`fee_tiers` must start at volume 0 and increase, got volumes {volumes}"
            )
        self._refuse_unread()
        if self.orders == "weights" and self.rebalance_threshold >= 1.0 - self.cash_reserve:
            raise ValueError(
                f"`rebalance_threshold` {self.rebalance_threshold:g} must be smaller than what "
                f"`cash_reserve` {self.cash_reserve:g} leaves to invest, or "
                "nothing can be bought"
            )
        return self

    def _refuse_unread(self) -> None:
        """Raise ValueError if a key was set that has no effect.

        Defaults are ignored, since complete files, such as those of `slipstream init`, contain
        them.
        """
        for name, info in type(self).model_fields.items():
            extra = info.json_schema_extra
            search: Any = extra.get("search", {}) if isinstance(extra, dict) else {}
            value = getattr(self, name)
            if value == info.default or value == _UNIT_DEFAULTS.get(name, info.default):
                continue
            for key, required in search.get("when", {}).items():
                reading = [required] if isinstance(required, str) else list(required)
                value_of_key = getattr(self, key)
                if value_of_key not in reading:
                    named = _named(name, value, info.default)
                    raise ValueError(
                        f"{named} has no effect with `{key}: {value_of_key}`, it is used only with "
                        f"`{key}: {' or '.join(reading)}`. Remove it, or change `{key}`"
                    )
        if self.start_volume and not self.fee_tiers:
            raise ValueError(
                f"`start_volume: {self.start_volume:g}` has no effect without `fee_tiers`. Remove "
                "it, or set `fee_tiers`"
            )


def _named(name: str, value: Any, default: Any) -> str:
    """Return a key with its value; for a section, its first key that differs from the default."""
    if not isinstance(value, config.Config):
        return f"`{name}: {value}`"
    keys = type(value).model_fields
    changed = next(key for key in keys if getattr(value, key) != getattr(default, key))
    return f"`{name}.{changed}: {getattr(value, changed)}`"
