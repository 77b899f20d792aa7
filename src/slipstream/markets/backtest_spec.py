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

    T rows of data, all symbols end to end; n decisions, each filled once.

    Attributes:
        first, last: rows of the first decision and of the last bar: decisions at [first, last).
        time: int64 [T], UTC seconds of each row's open; the trace's `bar` is a row.
        close: float64 [T], mid price at which equity is marked.
        mid, rate: float64 [n + 1], mid price of each fill and account currency per unit of quote
            there; the last is the liquidation at the end.
        cost: float64 [n + 1], of trading one unit there, account currency.
        history: first row that certainly belongs to the symbol; `first` where that is not known.
        pip: in price units.
        plain: the record at exposure 1 and without exit rules, its costs kept; None: decisions are
            not positions, and nothing is compared.
        financing: positions pay for the night.
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
    history: int
    pip: float = 1.0
    plain: Any = None
    financing: bool = False
    close_rate: NDArray[np.float64] | None = None

    @property
    def market_returns(self) -> NDArray[np.float64]:
        """What each bar of the pass made of one unit of notional, account currency [last - first].

        A position of exposure w earns w times as much, before costs.
        """
        rows = slice(self.first, self.last + 1)
        close = self.close[rows]
        rate = np.ones(len(close)) if self.close_rate is None else self.close_rate[rows]
        return np.asarray(np.diff(close) * rate[1:] / (close[:-1] * rate[:-1]))


@dataclass(frozen=True)
class PortfolioBacktestSpec:
    """Weights of A assets and cash; the passes of a split follow each other.

    Attributes:
        names: of the assets.
        first, last, time: as for `SymbolBacktestSpec`; the trace has `units` [A].
        close, opened: float64 [T, A], mids; 0 where an asset is not listed, or cannot be traded.
        fill: float64 [T, A], mid at which orders fill.
        half_spread: float64 [T, A], price units.
        initial_equity: account currency.
        fee, start_fee: fraction of notional, of the first trade and at the start's volume.
        slippage: fraction of notional.
        cost_multiple: factor on fee, slippage and spread.
        reserve: share of capital that stays in cash.
        flat: [K], an action that holds cash under the record's own rules.
        followed: the record whose action is weights [A + 1], cash last, filled as they are but for
            its field `rebalance_threshold`.
        held: the same where what is bought is kept, and nothing is reserved.
        corner: all in one asset, or in cash, is as good as any mix at every bar.
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
    flat: NDArray[np.float32]
    followed: Any
    held: Any
    corner: bool
