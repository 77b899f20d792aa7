"""planted-forex: a market whose optimum is known (docs/rules.md, section 14).

A signal x_t walks on seven levels in [-1, 1] and moves the price of the next bar:

    open[t+1] = close[t]
    log(close[t+1] / open[t+1]) = beta x[t] - sigma^2 / 2 + sigma eps[t+1]

An agent that sees x_t and pays `cost` per unit of exposure change has an average-reward optimum on
the 21-state chain (signal, position). With `beta = 0` the market has no edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from slipstream.market.bars import Bars, FloatArray, IntArray
from slipstream.market.calendar import in_weekend
from slipstream.market.planted.prices import write_prices

LEVELS = np.linspace(-1.0, 1.0, 7)
POSITIONS = np.array([-1.0, 0.0, 1.0])
STAY = 0.6
NOISE_COLUMNS = 14
BASIS_POINT = 1e-4
_START = 1_577_916_000  # Wednesday 2020-01-01 22:00 UTC = 17:00 New York
_FIRST_PRICE = 1.1


@dataclass(frozen=True)
class PlantedForex:
    """Parameters of the generator, as fractions (1 bp = 1e-4).

    Attributes:
        beta: log drift of the next bar per unit of signal.
        sigma: standard deviation of a bar's log return.
        cost: fraction of equity paid per unit of exposure change.
    """

    beta: float = 1.0 * BASIS_POINT
    sigma: float = 5.0 * BASIS_POINT
    cost: float = 2.0 * BASIS_POINT


STANDARD = PlantedForex()


@dataclass(frozen=True, eq=False)
class Optimum:
    """The best stationary policy of the chain.

    Attributes:
        gain: average reward per bar, a fraction of equity.
        policy: position in {-1, 0, 1} by [signal level, current position index], float64 [7, 3].
    """

    gain: float
    policy: FloatArray


def planted_forex(
    bars: int,
    seed: int,
    market: PlantedForex = STANDARD,
    symbol: str = "EURUSD",
    bar_seconds: int = 900,
) -> Bars:
    """Draws a path of `bars` bars; extra columns `signal` and `noise_0` ... `noise_13`.

    Stamps follow the forex week, so that the data check finds nothing to complain about; the
    process itself knows no weekends. Equal arguments give equal bars.
    """
    draw = np.random.default_rng(np.random.SeedSequence([seed, 0x91A27ED]))
    signal = LEVELS[_walk(bars, draw)]
    seen = np.concatenate([[0.0], signal[:-1]])  # what moved each bar; nothing moved the first
    growth = market.beta * seen - 0.5 * market.sigma**2
    growth = growth + market.sigma * draw.standard_normal(bars)
    close = _FIRST_PRICE * np.exp(np.cumsum(growth))
    opens = np.concatenate([[_FIRST_PRICE], close[:-1]])
    noise = draw.standard_normal((NOISE_COLUMNS, bars))
    return Bars(
        symbol=symbol,
        time=_forex_times(bars, bar_seconds),
        open=opens,
        high=np.maximum(opens, close),
        low=np.minimum(opens, close),
        close=close,
        volume=np.exp(draw.standard_normal(bars)),
        spread=np.zeros(bars),
        extra={"signal": signal, **{f"noise_{k}": noise[k] for k in range(NOISE_COLUMNS)}},
    )


def write_planted_forex(
    folder: str | Path,
    bars: int = 60_000,
    seed: int = 0,
    market: PlantedForex = STANDARD,
    symbol: str = "EURUSD",
    bar_seconds: int = 900,
) -> Path:
    """Writes one path as ``{symbol}.parquet`` into `folder` and returns the file."""
    return write_prices(Path(folder), planted_forex(bars, seed, market, symbol, bar_seconds))


@lru_cache(maxsize=16)
def optimum(market: PlantedForex = STANDARD) -> Optimum:
    """The average-reward optimum by relative value iteration, to a span of 1e-14.

    In state (x, position) the agent chooses a; it earns
    a beta x - a^2 sigma^2 / 2 - cost |a - position|, then x moves. Rewards are scaled to
    units of `sigma` so that 1e-14 is a meaningful span.
    """
    scale = market.sigma
    earned = (
        POSITIONS[None, :] * market.beta * LEVELS[:, None]
        - 0.5 * (POSITIONS[None, :] * market.sigma) ** 2
    ) / scale  # [x, a]
    paid = market.cost * np.abs(POSITIONS[None, :] - POSITIONS[:, None]) / scale  # [position, a]
    moves = transition()
    value = np.zeros((len(LEVELS), len(POSITIONS)))
    while True:
        choices = earned[:, None, :] - paid[None, :, :] + (moves @ value)[:, None, :]
        best = choices.max(axis=2)
        change = best - value
        value = best - best[0, 0]
        if np.ptp(change) < 1e-14:
            break
    gain = 0.5 * (change.max() + change.min()) * scale
    return Optimum(float(gain), POSITIONS[choices.argmax(axis=2)])


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


def optimal_positions(
    signal: FloatArray, market: PlantedForex = STANDARD, initial_position: float = 0.0
) -> FloatArray:
    """The optimal policy's positions along a path of signals, float64 [n]."""
    policy = optimum(market).policy
    levels = np.rint((np.asarray(signal) + 1.0) * 3.0).astype(np.int64)
    positions = np.empty(len(levels))
    held = round(initial_position) + 1
    for row, level in enumerate(levels):
        positions[row] = policy[level, held]
        held = int(positions[row]) + 1
    return positions


def score(
    positions: FloatArray,
    signal: FloatArray,
    initial_position: float = 0.0,
    market: PlantedForex = STANDARD,
) -> float:
    """What positions earn in expectation given the signal: conditional drift, not the noisy return.

    Args:
        positions: exposure decided on bar t and held through bar t + 1, fractions of equity, [n].
        signal: x_t of the same bars, [n].
        initial_position: exposure before the first decision.

    Returns:
        Sum over bars of position beta x - position^2 sigma^2 / 2 - cost |change|.
    """
    held = np.asarray(positions, dtype=np.float64)
    change = np.abs(np.diff(held, prepend=initial_position))
    drift = held * market.beta * np.asarray(signal) - 0.5 * (held * market.sigma) ** 2
    return float(np.sum(drift - market.cost * change))


def _walk(bars: int, draw: np.random.Generator) -> IntArray:
    """Level indices of the signal, started from its stationary (uniform) distribution."""
    steps = draw.choice([-1, 0, 1], size=bars, p=[(1 - STAY) / 2, STAY, (1 - STAY) / 2])
    level = int(draw.integers(len(LEVELS)))
    levels = np.empty(bars, dtype=np.int64)
    for row, step in enumerate(steps.tolist()):
        levels[row] = level
        level = min(max(level + step, 0), len(LEVELS) - 1)
    return levels


def _forex_times(bars: int, bar_seconds: int) -> IntArray:
    """The first `bars` stamps of the forex week's grid, UTC seconds."""
    weeks = bars * bar_seconds // (5 * 86400) + 2
    grid = _START + np.arange(weeks * 7 * 86400 // bar_seconds, dtype=np.int64) * bar_seconds
    return grid[~in_weekend(grid)][:bars]
