"""What a portfolio is compared with: fixed weights that run through the very same kernel.

Cash; equal weight bought once, the benchmark; equal weight rebalanced; each asset bought and held;
the agent's own decisions at random places; and, where fees are constant and nothing must stay in
cash, the best that hindsight allows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.files.track import Track
from slipstream.report.inputs import CASH, EQUAL_WEIGHT, ORACLE, REBALANCED, Comparison
from slipstream.report.market.baselines import RANDOM_DRAWS, random_returns
from slipstream.report.market.oracle import Hindsight
from slipstream.report.portfolio.passes import BAND, PortfolioPasses
from slipstream.report.statistics import Floats


def rivals(passes: PortfolioPasses) -> Comparison:
    """What anybody could have held."""
    records = range(len(passes.params))
    nothing = np.zeros(len(passes.assets), np.bool_)
    return Comparison(
        {
            CASH: passes.buy([nothing for _ in records]),
            EQUAL_WEIGHT: passes.buy([passes.listed(record) for record in records]),
            REBALANCED: rebalanced(passes),
        }
    )


def rebalanced(passes: PortfolioPasses) -> list[Track]:
    """Equal weight of what is listed at the start, kept within a band."""
    steady = []
    for record in range(len(passes.params)):
        first, last = passes.window(record)
        steady.append(np.repeat(_equal(passes, record)[None], last - first, axis=0))
    return passes.follow(steady, band(passes))


def compare(
    passes: PortfolioPasses, agent: Sequence[Track], draws: int = RANDOM_DRAWS
) -> Comparison:
    """All baselines of one split."""
    tracks = dict(rivals(passes).tracks)
    growth = None
    if computable(passes):
        plans = [best_weights(passes, record) for record in range(len(passes.params))]
        tracks[ORACLE] = passes.follow([plan.positions for plan in plans], BAND)
        growth = float(np.prod([plan.growth for plan in plans]))
    held = {
        name: passes.buy([_alone(passes, record, asset) for record in range(len(passes.params))])
        for asset, name in enumerate(passes.assets)
        if passes.tradable()[asset]
    }
    return Comparison(tracks, random_returns(passes, agent, draws), growth, held)


def band(passes: PortfolioPasses) -> float:
    """Of the rebalanced baseline: the agent's own, or 5 points."""
    own = passes.declared[0].band
    return BAND if own is None else float(own)


def _equal(passes: PortfolioPasses, record: int) -> Floats:
    """Equal weights of what is listed at the start; what is kept in cash comes last."""
    yes = passes.listed(record).astype(np.float64)
    if not yes.any():
        return np.append(yes, 1.0)
    return np.append(yes / yes.sum(), 0.0)


def _alone(passes: PortfolioPasses, record: int, asset: int) -> NDArray[np.bool_]:
    """One asset [A]; none where it is not listed at the start."""
    chosen = np.zeros(len(passes.assets), np.bool_)
    chosen[asset] = passes.listed(record)[asset]
    return chosen


def computable(passes: PortfolioPasses) -> bool:
    """Whether all in one asset, or all in cash, is as good as any mix at every bar.

    With costs in proportion to notional, final wealth is linear in what is held, so the best plan
    is at a corner. Fees that follow volume, and a reserve, break that; assets that come and go are
    sold by the rules at times that the programme does not see.
    """
    return all(one.corner for one in passes.declared)


def best_weights(passes: PortfolioPasses, record: int) -> Hindsight:
    """Weights [n, A + 1], one row a decision, by dynamic programming over the assets and cash."""
    one = passes.declared[record]
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
    """Largest sum of logarithms.

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
