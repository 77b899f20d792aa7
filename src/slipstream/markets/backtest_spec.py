"""Backtest specs: a market environment's declaration of one continuous pass over its bars.

An optional kernel function, `backtest_spec(p, d)`, returns one of these two for an evaluation
record. Reports need nothing else of an environment: its page, its baselines, and its decisions
under other costs. Records that are compared have a field `cost_multiple`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SymbolBacktestSpec:
    """One position in one symbol; the passes of a split run side by side, with equal capital.

    The data has T rows, all symbols one after another. Each of the n decisions is filled once.

    Attributes:
        first, last: rows of the first decision and of the last bar: decisions at [first, last).
        time: int64 [T], UTC seconds of each row's open; `bar` of the trace is a row.
        close: float64 [T], mid price at which equity is marked.
        mid, rate: float64 [n + 1], mid price of each fill, and account currency per unit of quote
            at that time; the last entry is the liquidation at the end.
        cost: float64 [n + 1], cost of trading one unit at each fill, account currency.
        first_symbol_row: first row that certainly belongs to the symbol; `first` if unknown.
        pip: one pip in price units.
        baseline_params: the record at exposure 1 and without exit rules, with its costs; None if
            decisions are not positions, so that nothing is compared.
        financing: True if positions pay overnight financing.
        close_rate: float64 [T], account currency per unit of quote at each close; None if it does
            not change.
    """

    first: int
    last: int
    time: NDArray[np.int64]
    close: NDArray[np.float64]
    mid: NDArray[np.float64]
    rate: NDArray[np.float64]
    cost: NDArray[np.float64]
    first_symbol_row: int
    pip: float = 1.0
    baseline_params: Any = None
    financing: bool = False
    close_rate: NDArray[np.float64] | None = None

    @property
    def market_returns(self) -> NDArray[np.float64]:
        """Return per bar of one unit of notional, account currency, [last - first].

        A position of exposure w earns w times this return, before costs.
        """
        rows = slice(self.first, self.last + 1)
        close = self.close[rows]
        rate = np.ones(len(close)) if self.close_rate is None else self.close_rate[rows]
        return np.asarray(np.diff(close) * rate[1:] / (close[:-1] * rate[:-1]))


@dataclass(frozen=True)
class PortfolioBacktestSpec:
    """Weights of A assets and cash; the passes of a split follow each other.

    Attributes:
        names: names of the assets.
        first, last, time: as for `SymbolBacktestSpec`; the trace has `units` [A].
        close, opened: float64 [T, A], mid prices; 0 if an asset is not listed or not tradable.
        fill: float64 [T, A], mid price at which orders fill.
        half_spread: float64 [T, A], half of the bid-ask spread, price units.
        initial_equity: equity at the start, account currency.
        fee: fee of the first volume tier, or of every trade without tiers, fraction of notional.
        start_fee: fee of the tier at the initial volume, fraction of notional.
        slippage: fraction of notional.
        cost_multiple: factor on fee, slippage and spread.
        cash_reserve: fraction of capital that stays in cash.
        cash_action: [K], an action that holds cash under the record's own rules.
        weights_params: the record whose action is weights [A + 1], cash last. They are filled
            unchanged except for its `rebalance_threshold`.
        buy_and_hold_params: the same record without sales before the end and without a reserve.
        is_corner_optimal: True if, at every bar, one asset or cash alone is as good as any mix.
    """

    names: tuple[str, ...]
    first: int
    last: int
    time: NDArray[np.int64]
    close: NDArray[np.float64]
    opened: NDArray[np.float64]
    fill: NDArray[np.float64]
    half_spread: NDArray[np.float64]
    initial_equity: float
    fee: float
    start_fee: float
    slippage: float
    cost_multiple: float
    cash_reserve: float
    cash_action: NDArray[np.float32]
    weights_params: Any
    buy_and_hold_params: Any
    is_corner_optimal: bool
