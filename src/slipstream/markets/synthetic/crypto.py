"""planted-crypto: assets of which one is hot, with a known optimum (docs/rules.md, section 14).

One asset is hot; with probability 1/288 a bar another one becomes hot, drawn uniformly. What is
hot at bar t shows in the volume of bar t and moves the prices of bar t + 1:

    open[t+1] = close[t]
    log(close[t+1] / open[t+1]) = drift[t] + noise (common[t+1] + own[t+1])
    drift = strength for the hot asset, -strength / (A - 1) for the others
    log(volume[t]) = 10 + own noise of deviation 1, + 4 for the hot asset

Who sees the state and holds the hot asset alone earns `strength` a bar and sells and buys once a
change. With `strength = 0` the market has no edge, and volume tells nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.markets.data.bars import FloatArray
from slipstream.markets.synthetic.prices import BASIS_POINT, LOG_VOLUME, Drawn, PlantedMarket


@dataclass(frozen=True)
class PlantedCrypto(PlantedMarket):
    """Parameters of the generator, as fractions (1 bp = 1e-4).

    Its state, the column `hot`, is 1 in bars in which the asset is hot.

    Attributes:
        strength: log drift a bar of the hot asset.
        noise: standard deviation of the common and of each asset's own part of a bar's log return.
        switch: probability a bar that another asset becomes hot.
        signal: what being hot adds to the log volume, in deviations of its noise.
    """

    name, column, stream = "planted-crypto", "hot", 0xC0117
    fee: float = 10.0 * BASIS_POINT
    strength: float = 20.0 * BASIS_POINT
    noise: float = 20.0 * BASIS_POINT
    switch: float = 1.0 / 288.0
    signal: float = 4.0

    def draw(self, bars: int, assets: int, random: np.random.Generator) -> Drawn:
        """Draws the hot asset of each bar: at a change one of the others, all equally likely."""
        first = random.integers(assets)
        changes = random.random(bars) < self.switch
        changes[:1] = False
        jumps = random.integers(1, max(assets, 2), size=bars)
        asset = (first + np.cumsum(np.where(changes, jumps, 0))) % assets
        hot = (asset[:, None] == np.arange(assets)).astype(np.float64)
        common, own = random.standard_normal((bars, 1)), random.standard_normal((bars, assets))
        growth = self.noise * (common + own)
        growth[1:] += self.drift(hot[:-1])
        log_volume = LOG_VOLUME + random.standard_normal((bars, assets)) + self.signal * hot
        return Drawn(growth, log_volume, {self.column: hot})

    def drift(self, state: FloatArray) -> FloatArray:
        """Log drift of every asset in the bar after each of these states, float64 [n, A]."""
        return np.where(state > 0.0, self.strength, -self.strength / (state.shape[1] - 1))

    @property
    def gain(self) -> float:
        """Log growth a bar of the best policy that sees the state.

        It holds the hot asset and sells and buys once a change; or nothing, where that pays less.
        """
        return max(self.strength - 2.0 * self.fee * self.switch, 0.0)
