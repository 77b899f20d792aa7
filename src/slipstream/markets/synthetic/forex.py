"""planted-forex: a market whose optimum is known (docs/rules.md, section 14).

A signal x_t walks on seven levels in [-1, 1] and moves the price of the next bar:

    open[t+1] = close[t]
    log(close[t+1] / open[t+1]) = beta x[t] - sigma^2 / 2 + sigma eps[t+1]

An agent that sees x_t and pays `fee` per unit of exposure change has an average-reward optimum on
the 21-state chain (signal, position). With `beta = 0` the market has no edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.markets.data.bars import FloatArray, IntArray
from slipstream.markets.data.calendar import in_weekend
from slipstream.markets.synthetic.prices import BASIS_POINT, Drawn, PlantedMarket

LEVELS = np.linspace(-1.0, 1.0, 7)
POSITIONS = np.array([-1.0, 0.0, 1.0])
STAY = 0.6
NOISE_COLUMNS = 14
_START = 1_577_916_000  # Wednesday 2020-01-01 22:00 UTC = 17:00 New York


@dataclass(frozen=True, eq=False)
class Optimum:
    """The best stationary policy of the chain.

    Attributes:
        gain: average reward per bar, a fraction of equity.
        policy: position in {-1, 0, 1} by [signal level, current position index], float64 [7, 3].
    """

    gain: float
    policy: FloatArray


@dataclass(frozen=True)
class PlantedForex(PlantedMarket):
    """Parameters of the generator, as fractions (1 bp = 1e-4).

    Its state is the column `signal`; `noise_0` ... `noise_13` tell nothing.

    Attributes:
        beta: log drift of the next bar per unit of signal.
        sigma: standard deviation of a bar's log return.
    """

    name, column, stream = "planted-forex", "signal", 0x91A27ED
    symbols, bars, bar_seconds, first_price = ("EURUSD",), 60_000, 900, 1.1
    fee: float = 2.0 * BASIS_POINT
    beta: float = 1.0 * BASIS_POINT
    sigma: float = 5.0 * BASIS_POINT

    def draw(self, bars: int, assets: int, random: np.random.Generator) -> Drawn:
        """Draws the signal of one pair."""
        assert assets == 1
        signal = LEVELS[_walk(bars, random)]
        seen = np.concatenate([[0.0], signal[:-1]])  # what moved each bar; nothing moved the first
        growth = self.beta * seen - 0.5 * self.sigma**2
        growth = growth + self.sigma * random.standard_normal(bars)
        noise = random.standard_normal((NOISE_COLUMNS, bars))
        extra = {self.column: signal, **{f"noise_{k}": noise[k] for k in range(NOISE_COLUMNS)}}
        columns = {name: column[:, None] for name, column in extra.items()}
        return Drawn(growth[:, None], random.standard_normal((bars, 1)), columns)

    def times(self, bars: int, bar_seconds: int) -> IntArray:
        """The forex week, so that the data check finds nothing to complain about.

        The process itself knows no weekends.
        """
        weeks = bars * bar_seconds // (5 * 86400) + 2
        grid = _START + np.arange(weeks * 7 * 86400 // bar_seconds, dtype=np.int64) * bar_seconds
        return grid[~in_weekend(grid)][:bars]

    @property
    def gain(self) -> float:
        """What the best policy that sees the signal earns a bar, a fraction of equity."""
        return self.optimum().gain

    def optimum(self) -> Optimum:
        """The average-reward optimum by relative value iteration, to a span of 1e-14.

        In state (x, position) the agent chooses a; it earns
        a beta x - a^2 sigma^2 / 2 - fee |a - position|, then x moves. Rewards are scaled to
        units of `sigma` so that 1e-14 is a meaningful span.
        """
        scale = self.sigma
        earned = self.earned(POSITIONS[None, :], LEVELS[:, None]) / scale  # [x, a]
        change = np.abs(POSITIONS[None, :] - POSITIONS[:, None])
        paid = self.fee * change / scale  # [position, a]
        moves = transition()
        value = np.zeros((len(LEVELS), len(POSITIONS)))
        while True:
            choices = earned[:, None, :] - paid[None, :, :] + (moves @ value)[:, None, :]
            best = choices.max(axis=2)
            grown = best - value
            value = best - best[0, 0]
            if np.ptp(grown) < 1e-14:
                break
        gain = 0.5 * (grown.max() + grown.min()) * scale
        return Optimum(float(gain), POSITIONS[choices.argmax(axis=2)])

    def drift(self, state: FloatArray) -> FloatArray:
        """Log drift in the bar after each of these signals, but for the variance's part, [n]."""
        return self.beta * np.asarray(state, dtype=np.float64)

    def earned(self, held: FloatArray, state: FloatArray) -> FloatArray:
        """What positions earn in expectation: position beta x - position^2 sigma^2 / 2, [n]."""
        return super().earned(held, state) - 0.5 * (held * self.sigma) ** 2

    def optimal_positions(self, signal: FloatArray) -> FloatArray:
        """The optimal policy's positions along a path of signals, begun flat, float64 [n]."""
        policy = self.optimum().policy
        levels = np.rint((np.asarray(signal) + 1.0) * 3.0).astype(np.int64)
        positions = np.empty(len(levels))
        held = 1
        for row, level in enumerate(levels):
            positions[row] = policy[level, held]
            held = int(positions[row]) + 1
        return positions


def transition() -> FloatArray:
    """Probability that the signal moves from level i to level j, float64 [7, 7]."""
    count = len(LEVELS)
    moves = np.zeros((count, count))
    step = (1.0 - STAY) / 2.0
    for level in range(count):
        moves[level, level] += STAY
        for target in (level - 1, level + 1):
            moves[level, target if 0 <= target < count else level] += step
    return moves


def _walk(bars: int, draw: np.random.Generator) -> IntArray:
    """Level indices of the signal, started from its stationary (uniform) distribution."""
    steps = draw.choice([-1, 0, 1], size=bars, p=[(1 - STAY) / 2, STAY, (1 - STAY) / 2])
    level = int(draw.integers(len(LEVELS)))
    levels = np.empty(bars, dtype=np.int64)
    for row, step in enumerate(steps.tolist()):
        levels[row] = level
        level = min(max(level + step, 0), len(LEVELS) - 1)
    return levels
