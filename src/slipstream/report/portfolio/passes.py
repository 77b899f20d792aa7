"""The continuous passes of a portfolio's split, and any target weights replayed through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.kernel import Kernel, Loaded
from slipstream.core.market_pass import PortfolioPass
from slipstream.core.spec import MarketSpec
from slipstream.files.track import Track
from slipstream.report.inputs import Holdings, RoundTrip
from slipstream.report.market.passes import Actions, Passes
from slipstream.report.statistics import Floats

BAND = 0.05  # of the rebalanced baseline, where the agent's own rules have none


def passes_of(kernel: Kernel, loaded: Loaded, split: str, backend: str = "compiled") -> Passes:
    """Passes of the kind that the kernel declares."""
    assert kernel.market_pass is not None
    declared = kernel.market_pass(loaded.params[split][0], loaded.data)
    kind = PortfolioPasses if isinstance(declared, PortfolioPass) else Passes
    return kind(kernel, loaded, split, backend)


@dataclass(frozen=True)
class PortfolioPasses(Passes):
    """One pass for each stretch of bars without a hole, one after the other, never at once.

    Attributes:
        kernel, loaded: the rules and their data; the kernel declares a `PortfolioPass`.
        split: whose records are passed through.
        backend: how the copies are stepped.
    """

    @property
    def assets(self) -> tuple[str, ...]:
        """Their names."""
        names: tuple[str, ...] = self.declared[0].names
        return names

    @property
    def symbols(self) -> tuple[str, ...]:
        """A name for each pass."""
        count = len(self.params)
        return ("portfolio",) if count == 1 else tuple(f"stretch {k + 1}" for k in range(count))

    @property
    def market(self) -> MarketSpec:
        """One market of all assets."""
        market = self.kernel.spec(self.params[0], self.data).market
        assert market is not None
        return market

    @property
    def holdings(self) -> Holdings:
        """Closes and fills of all assets; what cannot be traded stands at its last close."""
        one = self.declared[0]
        return Holdings(self.assets, one.close, one.fill)

    @property
    def comparable(self) -> bool:
        """Always: weights are replayed as they are."""
        return True

    def round_trips(self) -> list[RoundTrip]:
        """Mean cost of buying and selling each asset; a tiered fee counts as at the start."""
        one = self.declared[0]
        rows = slice(one.first + 1, one.last + 1)
        found = []
        for name, close, half in zip(
            self.assets, one.close[rows].T, one.half_spread[rows].T, strict=True
        ):
            known = close > 0.0
            if known.any():  # a universe of all assets has some that are gone, or to come
                spread = float(np.mean(half[known] / close[known]))
                cost = 2.0 * (one.start_fee + one.slippage + spread) * one.cost_multiple
                found.append(RoundTrip(name, float("nan"), cost * 1e4))
        return found

    def flat(self, count: int) -> Actions:
        """Actions [count, K] that hold cash, under the agent's own rules."""
        return np.tile(self.declared[0].flat, (count, 1))

    def shuffled(self, actions: Actions, random: np.random.Generator) -> Actions:
        """The agent's own decisions begun at a random place and dealt to other assets.

        Exposure, turnover and holding times stay; when, and in what, is left to chance.
        """
        count = len(self.assets)
        order = np.concatenate([random.permutation(count), np.arange(count, actions.shape[1])])
        return np.roll(actions, int(random.integers(len(actions))), axis=0)[:, order]

    def pooled(self, returns: Floats) -> Floats:
        """Final equity over the start [D], of passes one after the other."""
        return np.asarray(np.prod(1.0 + returns, axis=1))

    def buy(self, chosen: Sequence[NDArray[np.bool_]]) -> list[Track]:
        """Buys equal shares of the chosen assets [A] of each pass once and trades no more.

        Each asset is bought at its own first tradable fill, as the environment's benchmark is
        (docs/rules.md, section 10); until then its share is cash.
        """
        plans = [self._bought(record, yes) for record, yes in enumerate(chosen)]
        return self._weighted(plans, tuple(one.held for one in self.declared))

    def follow(self, weights: Sequence[Floats], band: float) -> list[Track]:
        """Keeps weights [n, A + 1] of each pass within a band, decided on every bar."""
        return self._weighted(
            weights, tuple(one.followed._replace(band=band) for one in self.declared)
        )

    def listed(self, record: int) -> NDArray[np.bool_]:
        """Assets that are listed when a pass begins, [A]."""
        one = self.declared[record]
        return np.asarray(one.close[one.first] > 0.0)

    def tradable(self) -> NDArray[np.bool_]:
        """Assets that are listed when a pass begins and can be bought in it, [A]."""
        each = [
            self.listed(record) & (one.opened[one.first + 1 : one.last + 1] > 0.0).any(axis=0)
            for record, one in enumerate(self.declared)
        ]
        return np.asarray(np.any(each, axis=0))

    def _bought(self, record: int, chosen: NDArray[np.bool_]) -> Floats:
        """Target weights [n, A + 1] that buy each chosen asset with its share, costs included."""
        one, n = self.declared[record], len(self.assets)
        rows = slice(one.first + 1, one.last + 1)
        close, opened, half = one.close[rows], one.opened[rows], one.half_spread[rows]
        weights = np.zeros((one.last - one.first, n + 1))
        weights[:, n] = 1.0
        share = one.initial_equity * (1.0 - one.reserve) / max(int(chosen.sum()), 1)
        waiting, cash, units = chosen.copy(), one.initial_equity, np.zeros(n)
        for t in range(len(close)):
            gone = (close[t] <= 0.0) & (waiting | (units > 0.0))
            if gone.any():  # delisted: sold at the last close
                price, spread = close[t - 1, gone], half[t - 1, gone]
                cash += float(units[gone] @ (price - self._cost(record, price, spread)))
                units[gone], waiting[gone] = 0.0, False
            buys = waiting & (opened[t] > 0.0)
            if buys.any():
                price = opened[t, buys]
                units[buys] = share / (price + self._cost(record, price, half[t, buys]))
                cash -= share * int(buys.sum())
                waiting[buys] = False
                mid = np.where(opened[t] > 0.0, opened[t], close[t])
                value = units * mid
                weights[t] = np.append(value, cash) / (value.sum() + cash)
            if not waiting.any():
                break
        return weights

    def _cost(self, record: int, price: Floats, half_spread: Floats) -> Floats:
        """What a coin's purchase or sale costs at these prices, account currency, [k]."""
        one = self.declared[record]
        return np.asarray(((one.fee + one.slippage) * price + half_spread) * one.cost_multiple)

    def _weighted(self, weights: Sequence[Floats], params: tuple[Any, ...]) -> list[Track]:
        """Replays target weights with the agent's costs, without its other rules."""
        return self.replay([w.astype(np.float32) for w in weights], params)
