"""Upper bounds with hindsight: exact dynamic programmes over positions and over weights.

`optimal_positions` covers short, flat and long of one symbol. A position is sized once and then
held (docs/explanation/market-rules.md, section 4), so equity under a held position is linear in the
later price and conversion rate. For each side, the programme keeps the entries that could still
become optimal at some price inside the remaining range; all others are dominated and dropped.
`optimal_weights` covers the assets of a portfolio and cash, of which a single one is as good as any
mix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.markets.backtest_spec import PortfolioBacktestSpec
from slipstream.report.statistics import Floats

_FIRST_PRUNE = 192


@dataclass(frozen=True)
class OraclePlan:
    """Optimal holdings after each fill, and the final equity from a start of 1.

    For one symbol, positions [n] in {-1, 0, 1}; for a portfolio, weights [n, A + 1].
    """

    positions: NDArray[Any]
    growth: float


@dataclass
class _OpenPositions:
    """Open positions of one side; rows are candidates, each with its own history.

    Equity of row i at fill f: cash + side rate_f (units mid_f - paid); closing costs units leg_f.
    """

    side: int
    rows: NDArray[np.float64]  # [capacity, 3]: cash, units, units x entry mid
    name: NDArray[np.int64]  # [capacity]: index into the history
    count: int = 0
    prune_at: int = _FIRST_PRUNE

    def equity(self, mid: float, rate: float) -> Floats:
        cash, units, paid = self.rows[: self.count].T
        return np.asarray(cash + (self.side * rate) * (units * mid - paid))

    def add(self, cash: float, units: float, paid: float, name: int) -> None:
        if self.count == len(self.rows):
            self.rows = np.concatenate([self.rows, np.empty_like(self.rows)])
            self.name = np.concatenate([self.name, np.empty_like(self.name)])
        self.rows[self.count] = cash, units, paid
        self.name[self.count] = name
        self.count += 1

    def prune(self, corners: Floats) -> None:
        """Drop entries that another one dominates at every corner [3, c] of the remaining range."""
        value = self.rows[: self.count] @ corners
        order = np.argsort(-value.sum(axis=1), kind="stable")  # a dominator always comes first
        kept: list[int] = []
        best = np.empty((self.count, value.shape[1]))
        for row in order:
            if not kept or not bool((best[: len(kept)] >= value[row]).all(axis=1).any()):
                best[len(kept)] = value[row]
                kept.append(int(row))
        kept.sort()
        self.rows[: len(kept)] = self.rows[kept]
        self.name[: len(kept)] = self.name[kept]
        self.count = len(kept)
        self.prune_at = max(_FIRST_PRUNE, 2 * self.count)


def optimal_positions(mid: Floats, leg: Floats, rate: Floats | None = None) -> OraclePlan:
    """Return the positions that maximise the final equity at exposure 1, costs included.

    Args:
        mid: mid price [n + 1] of each fill; the last is the price of the final liquidation.
        leg: cost of one unit traded, account currency, at each of them [n + 1].
        rate: account currency per unit of quote currency [n + 1], 1 if absent.
    """
    steps = len(mid) - 1
    rate = np.ones(steps + 1) if rate is None else rate
    long, short = (_OpenPositions(s, np.empty((512, 3)), np.empty(512, np.int64)) for s in (1, -1))
    history: list[tuple[int, int, int]] = []  # (fill, side, parent): parent -1 = entered from flat
    # Entry closed at this fill to become flat; -1 if already flat.
    closed = np.full(steps + 1, -1, np.int64)
    flat = 1.0

    def ahead(fill: int, side: int) -> Floats:
        gain = rate[fill:] * mid[fill:]
        corners = [
            (1.0, side * x - c, -side * k)
            for x in (gain.min(), gain.max())
            for k in (rate[fill:].min(), rate[fill:].max())
            for c in (0.0, float(leg[fill:].max()))
        ]
        return np.array(corners).T

    for fill in range(steps + 1):
        price, k, cost = float(mid[fill]), float(rate[fill]), float(leg[fill])
        equity = {e.side: e.equity(price, k) for e in (long, short)}
        was_flat = flat
        for e in (long, short):
            if e.count:
                net = equity[e.side] - e.rows[: e.count, 1] * cost
                at = int(np.argmax(net))
                if net[at] > flat:
                    flat, closed[fill] = float(net[at]), e.name[at]
        if fill == steps:
            break
        starts: list[tuple[_OpenPositions, float, float, int]] = []
        for e, other in ((long, short), (short, long)):
            starts.append((e, was_flat, 0.0, -1))
            if other.count:
                held = equity[other.side]
                net = held - other.rows[: other.count, 1] * cost
                for at in {int(np.argmax(net)), int(np.argmax(held))}:
                    old, parent = float(other.rows[at, 1]), int(other.name[at])
                    starts.append((e, float(held[at]), old, parent))
        for e, money, old_units, parent in starts:
            units = money / (price * k)  # sized by equity at the fill's mid, before costs
            cash = money - (units + old_units) * cost
            if cash > 0.0:
                history.append((fill, e.side, parent))
                e.add(cash, units, units * price, len(history) - 1)
        for e in (long, short):
            if e.count > e.prune_at:
                e.prune(ahead(fill + 1, e.side))
    return OraclePlan(_backtrack_positions(history, closed, steps), flat)


def _backtrack_positions(
    history: list[tuple[int, int, int]], closed: NDArray[np.int64], steps: int
) -> NDArray[np.int64]:
    """Backtrack from the final liquidation to the first fill."""
    positions = np.zeros(steps, np.int64)
    end, entry = steps, -1
    while end > 0:
        if entry < 0:  # flat just before `end`: find where that began
            earlier = np.flatnonzero(closed[: end + 1] >= 0)
            if not len(earlier):
                break
            end = int(earlier[-1])
            entry = int(closed[end])
        fill, side, parent = history[entry]
        positions[fill:end] = side
        end, entry = fill, parent
        if entry < 0:
            # Flat before this fill; a close at the same fill belongs to another history.
            end -= 1
    return positions


def optimal_weights(spec: PortfolioBacktestSpec) -> OraclePlan:
    """Return weights [n, A + 1], one row per decision; dynamic programming over assets and cash."""
    rows = slice(spec.first + 1, spec.last + 1)
    close, opened, half = spec.close[rows], spec.opened[rows], spec.half_spread[rows]
    mid = np.where(opened > 0.0, opened, close)
    end = np.concatenate([mid[1:], close[-1:]])
    fee = (spec.fee + spec.slippage) * spec.cost_multiple
    cost = fee + half * spec.cost_multiple / mid
    with np.errstate(divide="ignore"):
        closed = np.where(opened > 0.0, 0.0, -np.inf)
    return _optimize(np.log(end / mid), np.log1p(-cost) + closed, -np.log1p(cost) + closed, cost)


def _optimize(moves: Floats, sell: Floats, buy: Floats, cost: Floats) -> OraclePlan:
    """Maximise the sum of logarithms by dynamic programming.

    Args:
        moves: log price change from each fill to the next, the last to the final close [f, A].
        sell, buy: log of the fraction left after selling, after buying; -inf if impossible.
        cost: fraction of notional [f, A]; the last row is paid for the final sale.
    """
    count, n = moves.shape
    value = np.append(np.full(n, -np.inf), 0.0)  # cash last
    bought = np.zeros((count, n), np.bool_)
    source = np.full(count, n)  # asset sold for cash; n if already cash
    for fill in range(count):
        sold = value[:n] + sell[fill]
        best = int(np.argmax(sold))
        if sold[best] > value[n]:
            source[fill], value[n] = best, sold[best]
        fresh = value[n] + buy[fill]
        bought[fill] = fresh > value[:n]
        value[:n] = np.maximum(fresh, value[:n]) + moves[fill]
    value[:n] += np.log1p(-cost[-1])
    return OraclePlan(
        _backtrack_weights(int(np.argmax(value)), bought, source), float(np.exp(value.max()))
    )


def _backtrack_weights(state: int, bought: NDArray[np.bool_], source: NDArray[np.int64]) -> Floats:
    """Return the weights [f, A + 1] that end in `state`."""
    count, n = bought.shape
    states = np.empty(count, np.int64)
    for fill in range(count - 1, -1, -1):
        states[fill] = state
        if state < n and bought[fill, state]:
            state = n
        if state == n:
            state = int(source[fill])
    return np.asarray(np.eye(n + 1)[states])
