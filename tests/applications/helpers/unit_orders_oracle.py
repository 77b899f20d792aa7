"""FinRL_Crypto's trading rules in plain NumPy, one environment at a time, beside a fast kernel.

A second statement of the unit-order rules, written from their description and not from the kernel:
tests compare the two step for step, and the benchmark compares their speed. It follows the original
in all that decides a step: the order of operations, what is scaled by what, sales before buys, buys
one after another out of the cash that is left, the state row joined from its parts. Unlike the
original it holds coins in float64, and starts benchmark and discounted return anew at `reset`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

DEFAULTS = {
    "initial_capital": 1e6,
    "buy_cost": 0.003,
    "sell_cost": 0.003,
    "gamma": 0.99,
    "norm_cash": 2.0**-12,
    "norm_stocks": 2.0**-8,
    "norm_tech": 2.0**-15,
    "norm_reward": 2.0**-10,
    "norm_action": 10_000.0,
    "buy_share": 0.9,
    "forced_sale_bars": 48,
    "forced_sale_share": 0.05,
    "min_factor": 1.1,
}


class NumpyUnitOrders:
    """One environment over given prices, from its first row to its last but `lookback`.

    Args:
        prices: closes, float64 [T, A].
        features: float64 [T, A F].
        min_quantity: smallest order of each asset, [A].
        lookback: rows of features in the state.
        settings: other constants, by the names of `DEFAULTS`.
    """

    def __init__(
        self,
        prices: NDArray[np.float64],
        features: NDArray[np.float64],
        min_quantity: NDArray[np.float64],
        lookback: int = 1,
        **settings: float,
    ) -> None:
        for name, value in {**DEFAULTS, **settings}.items():
            setattr(self, name, value)
        self.prices, self.features, self.lookback = prices, features, lookback
        self.smallest = self.min_factor * min_quantity
        self.magnitude = 10.0 ** np.floor(np.log10(prices[0]))
        self.full_order = self.norm_action / self.magnitude
        self.equal_weight = self.initial_capital / prices.shape[1] / prices[0]
        self.last = len(prices) - lookback - 1
        self.reset()

    initial_capital: float
    buy_cost: float
    sell_cost: float
    gamma: float
    norm_cash: float
    norm_stocks: float
    norm_tech: float
    norm_reward: float
    norm_action: float
    buy_share: float
    forced_sale_bars: float
    forced_sale_share: float
    min_factor: float

    def reset(self) -> NDArray[np.float32]:
        """Back to the first row; the state there."""
        self.time = self.lookback - 1
        self.cash = self.initial_capital
        self.stocks = np.zeros(self.prices.shape[1])
        self.cooldown = np.zeros(self.prices.shape[1])
        self.total = self.cash
        self.total_equal_weight = float(self.equal_weight @ self.prices[self.time])
        self.gamma_return = 0.0
        return self.state()

    def step(self, action: NDArray[Any]) -> tuple[NDArray[np.float32], float, bool]:
        """One bar: (state, reward, done)."""
        self.time += 1
        price = self.prices[self.time]
        stocks, cooldown = self.stocks, self.cooldown
        cooldown[stocks > 0] += 1
        order = action * self.full_order

        for i in np.flatnonzero((order < -self.smallest) & (stocks > 0) & (price > 0)):
            quantity = min(stocks[i], -order[i])
            stocks[i] -= quantity
            cooldown[i] = 0
            self.cash += price[i] * quantity * (1 - self.sell_cost)

        for i in np.flatnonzero(cooldown >= self.forced_sale_bars):
            quantity = stocks[i] * self.forced_sale_share
            stocks[i] -= quantity
            cooldown[i] = 0
            self.cash += price[i] * quantity * (1 - self.sell_cost)

        for i in np.flatnonzero((order > self.smallest) & (price > 0)):
            affordable = self.cash / (1 + self.buy_cost) / price[i] * self.buy_share
            quantity = min(affordable, order[i])
            if quantity >= self.smallest[i]:
                stocks[i] += quantity
                self.cash -= price[i] * quantity * (1 + self.buy_cost)

        total = self.cash + float(stocks @ price)
        total_equal_weight = float(self.equal_weight @ price)
        gained = total - self.total
        market = total_equal_weight - self.total_equal_weight
        reward = (gained - market) * self.norm_reward
        self.total, self.total_equal_weight = total, total_equal_weight
        self.gamma_return = self.gamma_return * self.gamma + reward
        done = self.time == self.last
        if done:
            reward = self.gamma_return
        return self.state(), reward, done

    def state(self) -> NDArray[np.float32]:
        """Cash, coins and features, the newest row first, each with its factor."""
        parts = [np.array([self.cash * self.norm_cash]), self.stocks * self.norm_stocks]
        for k in range(self.lookback):
            parts.append(self.features[self.time - k] * self.norm_tech)
        return np.concatenate(parts).astype(np.float32)
