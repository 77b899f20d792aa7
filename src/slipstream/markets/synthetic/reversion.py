"""planted-reversion: assets that give back a part of every move one bar later; optimum known.

Each asset's log growth is a moving average of shocks that nobody can foresee:

    open[t+1] = close[t]
    log(close[t+1] / open[t+1]) = shock[t+1] - share x shock[t]
    shock ~ noise x N(0, 1), independent between bars and assets
    log(volume[t]) = 10 + own noise of deviation 1, which tells nothing

Who sees bar t expects -share x shock[t] of the next bar, and nothing of any later one: an edge that
lasts one bar, beside planted-crypto's, which lasts 288. The bar's own return shows the shock but
for the echo of the one before. With `share = 0` the market has no edge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.markets.data.bars import FloatArray
from slipstream.markets.synthetic.prices import BASIS_POINT, LOG_VOLUME, Drawn, PlantedMarket

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(400)  # of the integrals: exact to rounding


@dataclass(frozen=True)
class ReversionOptimum:
    """The best policy that sees the shocks.

    Attributes:
        gain: log growth a bar.
        lead: what holding an asset rather than cash is worth before the next shock is seen, in log
            growth: with it the best policy is the best of staying, changing and selling.
    """

    gain: float
    lead: float


@dataclass(frozen=True)
class PlantedReversion(PlantedMarket):
    """Parameters of the generator, as fractions (1 bp = 1e-4).

    Its state, the column `shock`, is the part of a bar's growth that was new.

    Attributes:
        share: of a shock, what the next bar gives back.
        noise: standard deviation of a bar's shock.
    """

    name, column, stream = "planted-reversion", "shock", 0x2E7E2
    fee: float = 1.0 * BASIS_POINT
    share: float = 0.3
    noise: float = 100.0 * BASIS_POINT

    def draw(self, bars: int, assets: int, random: np.random.Generator) -> Drawn:
        """Draws the shocks."""
        shock = self.noise * random.standard_normal((bars, assets))
        growth = shock.copy()
        growth[1:] -= self.share * shock[:-1]
        log_volume = LOG_VOLUME + random.standard_normal(shock.shape)
        return Drawn(growth, log_volume, {self.column: shock})

    def drift(self, state: FloatArray) -> FloatArray:
        """Log drift of every asset in the bar after each of these shocks, float64 [n, A]."""
        return -self.share * np.asarray(state, dtype=np.float64)

    @property
    def gain(self) -> float:
        """Log growth a bar of the best policy that sees the shocks of all assets."""
        return self.optimum().gain

    def optimum(self, assets: int = len(PlantedMarket.symbols)) -> ReversionOptimum:
        """The average-reward optimum (Puterman 1994, chapter 8), exact but for rounding.

        Growth less fees is linear in the weights, so all in one asset or all in cash is best.
        Drifts D_i = -share x shock_i are independent from bar to bar, so the value of a position
        before they are seen is one number: 0 in cash, v (`lead`) in an asset. With M the largest
        of A drifts, M' of the A - 1 other ones, D the own one and f the fee, the optimality
        equations are

            cash:  g     = E max(0, M - f + v)
            asset: g + v = E max(D + v, M' - 2 f + v, -f)

        Their difference falls in v and changes sign between -f and f: v is found by bisection, and
        each expectation of a maximum Z >= c is c plus the integral of P(Z > z) from c on.
        """
        deviation, fee = self.share * self.noise, self.fee
        if deviation == 0.0:
            return ReversionOptimum(0.0, 0.0)

        def cash(v: float) -> float:
            return _mean_above(0.0, [(v - fee, assets)], deviation)

        def asset(v: float) -> float:
            return _mean_above(-fee, [(v, 1), (v - 2.0 * fee, assets - 1)], deviation)

        low, high = -fee, fee
        for _ in range(60):
            middle = 0.5 * (low + high)
            if asset(middle) - middle > cash(middle):
                low = middle
            else:
                high = middle
        lead = 0.5 * (low + high)
        return ReversionOptimum(cash(lead), lead)


def _mean_above(floor: float, groups: Sequence[tuple[float, int]], deviation: float) -> float:
    """Mean of max(floor, all X), X ~ N(mean, deviation^2), `count` independent of each mean."""
    half = 0.5 * (max(floor, max(mean for mean, _ in groups)) + 12.0 * deviation - floor)
    z = floor + half * (1.0 + _NODES)
    below = np.ones(len(z))
    for mean, count in groups:
        below *= _normal((z - mean) / deviation) ** count
    return floor + half * float(np.sum(_WEIGHTS * (1.0 - below)))


def _normal(x: FloatArray) -> FloatArray:
    """The standard normal distribution function."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in x.tolist()])
