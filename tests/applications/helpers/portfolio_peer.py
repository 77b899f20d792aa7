"""A portfolio as a Gymnasium environment in plain NumPy: a second statement of the rules.

It is what the benchmarks train peers on, as their users would write it.

Target weights by the rules of `slipstream.markets.portfolio` with its defaults: softmax of the
action, a band without trades, fills at the next open, a fee on notional, reward beside equal
weight.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

SHARPNESS, BAND, FEE, SMALLEST_ORDER, EQUITY = 30.0, 0.05, 0.001, 10.0, 100_000.0
QUANTITY_STEP = 1e-8
EPISODE = 2_016
RUNWAY = 200
ROUNDS = 8


class PeerPrices(NamedTuple):
    """Input of an environment; A assets, T bars.

    Attributes:
        open, close: float64 [T, A].
        features: float32 [T, A x F], scaled.
        train: int64 [K, 2], half-open segments to start in.
        test: int64 [G, 2], half-open ranges of one pass each.
    """

    open: NDArray[np.float64]
    close: NDArray[np.float64]
    features: NDArray[np.float32]
    train: NDArray[np.int64]
    test: NDArray[np.int64]

    @classmethod
    def read(cls, folder: str) -> PeerPrices:
        """The arrays that `write` left in a folder, mapped: processes share one copy."""
        arrays = (np.load(Path(folder) / f"{name}.npy", mmap_mode="r") for name in cls._fields)
        return cls(*arrays)

    def write(self, folder: str | Path) -> None:
        """One file an array."""
        for name, array in zip(self._fields, self, strict=True):
            np.save(Path(folder) / f"{name}.npy", array)


class PortfolioEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Weights of A assets and cash, from an action in [-1, 1]^(A + 1).

    Args:
        prices: what it trades on.
        part: a row of `prices.test` to pass through once; None: random starts in training.
    """

    def __init__(self, prices: PeerPrices, part: int | None = None) -> None:
        self.prices, self.part = prices, part
        assets, columns = prices.close.shape[1], prices.features.shape[1]
        self.action_space = spaces.Box(-1.0, 1.0, (assets + 1,), np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, (columns + assets + 1,), np.float32)
        lengths = prices.train[:, 1] - prices.train[:, 0] - RUNWAY
        self._starts = np.maximum(lengths, 0).cumsum()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts anew with cash alone."""
        super().reset(seed=seed)
        if self.part is None:
            draw = int(self.np_random.integers(self._starts[-1]))
            segment = int(np.searchsorted(self._starts, draw, side="right"))
            before = int(self._starts[segment - 1]) if segment else 0
            low, high = self.prices.train[segment]
            self.bar = int(low) + draw - before
            self.last = min(int(high) - 1, self.bar + EPISODE)
        else:
            low, high = self.prices.test[self.part]
            self.bar, self.last = int(low), int(high) - 1
        assets = self.prices.close.shape[1]
        self.units = np.zeros(assets)
        self.cash = self.equity = self.benchmark = EQUITY
        self.benchmark_units = np.zeros(0)
        return self._observation(), {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Trades at the next bar's open and marks at its close."""
        self.bar += 1
        fill, close = self.prices.open[self.bar], self.prices.close[self.bar]
        self._trade(np.clip(action, -1.0, 1.0).astype(np.float64), fill)
        if not len(self.benchmark_units):
            self.benchmark_units = EQUITY / len(fill) / (fill * (1.0 + FEE))
        equity = self.cash + float(self.units @ close)
        benchmark = float(self.benchmark_units @ close)
        ended = self.bar >= self.last
        if ended and self.part is not None:
            equity -= FEE * float(self.units @ close)
            benchmark -= FEE * benchmark
            self.cash, self.units = equity, np.zeros(len(close))
        reward = float(np.log(equity / self.equity) - np.log(benchmark / self.benchmark))
        self.equity, self.benchmark = equity, benchmark
        return self._observation(), reward, False, ended, {}

    def _trade(self, action: NDArray[np.float64], fill: NDArray[np.float64]) -> None:
        value = self.cash + float(self.units @ fill)
        powers = np.exp(SHARPNESS * (action - 1.0))
        target = powers[:-1] / powers.sum()
        weights = self.units * fill / value
        traded = np.abs(target - weights) >= BAND
        if not traded.any():
            return
        room = max(1.0 - float(weights[~traded].sum()), 0.0)
        moved = float(target[traded].sum())
        if moved > room:
            target *= room / moved
        after = value
        for _ in range(ROUNDS):
            change = np.abs(target * after - self.units * fill)
            after = value - FEE * float(change[traded].sum())
        wanted = np.where(traded, target * after / fill - self.units, 0.0)
        orders = np.sign(wanted) * np.floor(np.abs(wanted) / QUANTITY_STEP) * QUANTITY_STEP
        orders[np.abs(orders) * fill < SMALLEST_ORDER] = 0.0
        sold = np.maximum(-orders, 0.0)
        self.cash += float(sold @ fill) * (1.0 - FEE)
        bought = np.maximum(orders, 0.0)
        need = float(bought @ fill) * (1.0 + FEE)
        if need > self.cash:
            bought = np.floor(bought * self.cash / need / QUANTITY_STEP) * QUANTITY_STEP
        self.cash -= float(bought @ fill) * (1.0 + FEE)
        self.units += bought - sold

    def _observation(self) -> NDArray[np.float32]:
        held = self.units * self.prices.close[self.bar] / self.equity
        own = np.append(held, self.cash / self.equity)
        return np.concatenate([self.prices.features[self.bar], own]).astype(np.float32)


def make_portfolio(folder: str, part: int | None = None) -> PortfolioEnv:
    """An environment over the prices of a folder; see `PeerPrices.write`."""
    return PortfolioEnv(PeerPrices.read(folder), part)
