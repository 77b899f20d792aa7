"""The continuous passes of a portfolio's split, and the weights replayed through them.

A portfolio is compared with fixed weights that run through the very same kernel: cash; equal weight
bought once, the benchmark; equal weight rebalanced; each asset bought and held; the agent's own
decisions at random places; and, where fees are constant and nothing must stay in cash, the best
that hindsight allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.kernel import Kernel, Loaded
from slipstream.kernels.spec import MarketSpec
from slipstream.markets.market_pass import PortfolioPass
from slipstream.markets.report.oracle import Hindsight
from slipstream.markets.report.passes import Actions, Passes
from slipstream.report import inputs
from slipstream.report.inputs import Backtest
from slipstream.report.statistics import Floats
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.track import Track

BAND = 0.05  # of the oracle, whose weights are 0 or 1


@dataclass(frozen=True)
class MarketBacktest(Backtest):
    """A market whose kernel declares a `market_pass`.

    Attributes:
        kernel, loaded: the rules and their data.
    """

    kernel: Kernel
    loaded: Loaded

    @classmethod
    def of(cls, environment: Environment) -> Self | None:
        rules = environment.part(KernelEnvironment)
        if rules is None or rules.spec.market is None or rules.kernel.hook("market_pass") is None:
            return None
        return cls(rules.kernel, rules.loaded)

    def of_split(self, split: str, backend: str = "compiled") -> Passes:
        record, declares = self.loaded.params[split][0], self.kernel.hook("market_pass")
        several = isinstance(declares(record, self.loaded.data), PortfolioPass)
        kind = PortfolioPasses if several else Passes
        return kind(self.kernel, self.loaded, split, backend)


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
        """The names of the assets."""
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
    def prices(self) -> inputs.Prices:
        """Closes and fills of all assets; what cannot be traded stands at its last close."""
        one = self.declared[0]
        return inputs.Prices(one.time, one.close, self.assets, one.fill)

    @property
    def comparable(self) -> bool:
        """Always true: weights are replayed as they are."""
        return True

    @property
    def financing(self) -> bool:
        """Always false: no coin pays for the night."""
        return False

    def round_trips(self) -> list[inputs.RoundTrip]:
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
                found.append(inputs.RoundTrip(name, float("nan"), cost * 1e4))
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

    def rivals(self) -> inputs.Comparison:
        """What anybody could have held."""
        records = range(len(self.params))
        nothing = np.zeros(len(self.assets), np.bool_)
        return inputs.Comparison(
            {
                inputs.CASH: self.buy([nothing for _ in records]),
                inputs.EQUAL_WEIGHT: self.buy([self.listed(record) for record in records]),
                inputs.REBALANCED: self.rebalanced(),
            }
        )

    def rebalanced(self) -> list[Track]:
        """Equal weight of what is listed at the start, restored on every bar, without a band."""
        steady = []
        for record in range(len(self.params)):
            first, last = self.window(record)
            listed = self.listed(record).astype(np.float64)
            equal = np.append(listed / max(listed.sum(), 1.0), 0.0 if listed.any() else 1.0)
            steady.append(np.repeat(equal[None], last - first, axis=0))
        return self.follow(steady, 0.0)

    @property
    def computable(self) -> bool:
        """Whether all in one asset, or all in cash, is as good as any mix at every bar.

        With costs in proportion to notional, final wealth is linear in what is held, so the best
        plan is at a corner. Fees that follow volume, and a reserve, break that; assets that come
        and go are sold by the rules at times that the programme does not see.
        """
        return all(one.corner for one in self.declared)

    def hindsight(self) -> tuple[Mapping[str, Sequence[Track]], float | None]:
        """The oracle's tracks by its name, and its growth; nothing where it is not computable."""
        if not self.computable:
            return {}, None
        plans = [best_weights(one) for one in self.declared]
        tracks = self.follow([plan.positions for plan in plans], BAND)
        return {inputs.ORACLE: tracks}, float(np.prod([plan.growth for plan in plans]))

    def each_asset(self) -> dict[str, list[Track]]:
        """Buy and hold of each asset that can be bought; none where it is not listed at first."""
        held, listed = {}, [self.listed(record) for record in range(len(self.params))]
        for asset, name in enumerate(self.assets):
            if self.tradable()[asset]:
                alone = np.arange(len(self.assets)) == asset
                held[name] = self.buy([alone & there for there in listed])
        return held

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


def best_weights(one: PortfolioPass) -> Hindsight:
    """Weights [n, A + 1], one row a decision, by dynamic programming over the assets and cash."""
    rows = slice(one.first + 1, one.last + 1)
    close, opened, half = one.close[rows], one.opened[rows], one.half_spread[rows]
    mid = np.where(opened > 0.0, opened, close)
    end = np.concatenate([mid[1:], close[-1:]])
    fee = (one.fee + one.slippage) * one.cost_multiple
    cost = fee + half * one.cost_multiple / mid
    with np.errstate(divide="ignore"):
        closed = np.where(opened > 0.0, 0.0, -np.inf)
    return _programme(np.log(end / mid), np.log1p(-cost) + closed, -np.log1p(cost) + closed, cost)


def _programme(moves: Floats, sell: Floats, buy: Floats, cost: Floats) -> Hindsight:
    """Finds the largest sum of logarithms by dynamic programming.

    Args:
        moves: log price change from each fill to the next, the last to the final close [f, A].
        sell, buy: log of what is left after selling, after buying; -inf where nobody can.
        cost: fraction of notional [f, A]; the last row is paid for the final sale.
    """
    count, n = moves.shape
    value = np.append(np.full(n, -np.inf), 0.0)  # cash last
    bought = np.zeros((count, n), np.bool_)
    source = np.full(count, n)  # whose sale made the cash, n: it was cash
    for fill in range(count):
        sold = value[:n] + sell[fill]
        best = int(np.argmax(sold))
        if sold[best] > value[n]:
            source[fill], value[n] = best, sold[best]
        fresh = value[n] + buy[fill]
        bought[fill] = fresh > value[:n]
        value[:n] = np.maximum(fresh, value[:n]) + moves[fill]
    value[:n] += np.log1p(-cost[-1])
    return Hindsight(_plan(int(np.argmax(value)), bought, source), float(np.exp(value.max())))


def _plan(state: int, bought: NDArray[np.bool_], source: NDArray[np.int64]) -> Floats:
    """Weights [f, A + 1] that end in `state`."""
    count, n = bought.shape
    states = np.empty(count, np.int64)
    for fill in range(count - 1, -1, -1):
        states[fill] = state
        if state < n and bought[fill, state]:
            state = n
        if state == n:
            state = int(source[fill])
    return np.asarray(np.eye(n + 1)[states])
