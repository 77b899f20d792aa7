"""Synthetic markets: prices with an edge whose optimal return is known.

See docs/explanation/statistics.md, section 14. `SyntheticMarket` generates prices and writes them
to files. Every open is the previous close; a bar's growth is the signal of a subclass plus noise:

    open[t+1] = close[t]
    log(close[t+1] / open[t+1]) = drift(state[t]) + noise[t+1]
"""

from __future__ import annotations

import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from slipstream.core.errors import DataError
from slipstream.core.safe_io import UnreadableError, read_bytes, resolve_folder
from slipstream.core.storage.atomic_io import sha256
from slipstream.markets.data.bars import Bars, FloatArray, IntArray
from slipstream.markets.data.file_discovery import SUFFIXES

if TYPE_CHECKING:  # `is_synthetic` does not need panels
    from slipstream.markets.data.panel import Panel


import math

from slipstream.markets.data.calendar import is_weekend

BASIS_POINT = 1e-4
LOG_VOLUME = 10.0  # mean logarithm of a bar's volume
_START = 1_640_995_200  # 2022-01-01 00:00 UTC
_MARK = ".synthetic"  # file with the sha256 of each generated price file


class SignalDraw(NamedTuple):
    """One draw of a signal and of the prices and volume that it moves.

    Attributes:
        growth: log(close / open) of each bar, float64 [T, A].
        log_volume: float64 [T, A].
        extra: columns that hold the state, float64 [T, A], by name.
    """

    growth: FloatArray
    log_volume: FloatArray
    extra: Mapping[str, FloatArray]


@dataclass(frozen=True)
class SyntheticMarket(ABC):
    """Generator of prices; subclasses define the signal.

    Attributes:
        name: name of the market, as in `slipstream data synthetic-forex`.
        column: the extra column that holds the state.
        stream: number of its random stream.
        symbols, bars, bar_seconds, first_price: defaults of the generated files.
        fee: fraction of the notional bought or sold.
    """

    name: ClassVar[str]
    column: ClassVar[str]
    stream: ClassVar[int]
    symbols: ClassVar[tuple[str, ...]] = ("AAVE", "AVAX", "BTC", "ETH", "LINK", "LTC", "UNI")
    bars: ClassVar[int] = 125_000
    bar_seconds: ClassVar[int] = 300
    first_price: ClassVar[float] = 100.0
    fee: float = 0.0

    @abstractmethod
    def draw(self, bars: int, assets: int, random: np.random.Generator) -> SignalDraw:
        """Draw the signal, and the growth and volume that it moves."""

    @abstractmethod
    def drift(self, state: FloatArray) -> FloatArray:
        """Return the log drift in the bar after each of these states, float64 of their shape."""

    @property
    @abstractmethod
    def optimal_gain(self) -> float:
        """Log growth per bar of the best policy that observes the state."""

    def times(self, bars: int, bar_seconds: int) -> IntArray:
        """Return the timestamps of the bars, UTC seconds."""
        return _START + bar_seconds * np.arange(bars, dtype=np.int64)

    def generate(
        self, bars: int, seed: int, symbols: Sequence[str] = (), bar_seconds: int = 0
    ) -> tuple[Bars, ...]:
        """Generate one path of `bars` bars per symbol.

        Equal arguments give equal bars; a longer path is a different one.
        """
        symbols = symbols or self.symbols
        random = np.random.default_rng(np.random.SeedSequence([seed, self.stream]))
        growth, log_volume, extra = self.draw(bars, len(symbols), random)
        close = self.first_price * np.exp(np.cumsum(growth, axis=0))
        opens = np.concatenate([np.full((1, len(symbols)), self.first_price), close[:-1]])
        time = self.times(bars, bar_seconds or self.bar_seconds)
        return tuple(
            Bars(
                symbol,
                time,
                open=opens[:, a],
                high=np.maximum(opens, close)[:, a],
                low=np.minimum(opens, close)[:, a],
                close=close[:, a],
                volume=np.exp(log_volume[:, a]),
                spread=np.zeros(bars),
                extra={name: column[:, a] for name, column in extra.items()},
            )
            for a, symbol in enumerate(symbols)
        )

    def write(
        self,
        folder: str | Path,
        bars: int = 0,
        seed: int = 0,
        symbols: Sequence[str] = (),
        bar_seconds: int = 0,
    ) -> tuple[Path, ...]:
        """Write one path as ``{symbol}.parquet`` files into `folder` and return them.

        Raises:
            OSError: the folder cannot be written, or its disk is full.
        """
        drawn = self.generate(bars or self.bars, seed, symbols, bar_seconds)
        return tuple(_write(Path(folder), bars_of_symbol) for bars_of_symbol in drawn)

    def state(self, panel: Panel) -> FloatArray:
        """Return the state at each row of a synthetic panel, float64 [T, A].

        Raises:
            DataError: the panel has no such column.
        """
        if self.column not in panel.extra:
            raise DataError(
                f"The files must have the column `{self.column}` that the generator of "
                f"{self.name} writes; these have "
                f"{', '.join(panel.extra) or 'no columns beside prices and volume'}."
            )
        return panel.extra[self.column]

    def expected_returns(self, held: FloatArray, state: FloatArray) -> FloatArray:
        """Return the expected return of equity shares in the bar after each state, before fees."""
        return held * self.drift(state)

    def score(self, held: FloatArray, state: FloatArray, traded: FloatArray | None = None) -> float:
        """Return the expected return of a policy: conditional drift, not the noisy return.

        Args:
            held: shares of equity held through bar t + 1, decided on bar t, [n, A], or [n] of one
                symbol; the rest is cash.
            state: of the bars on which they were decided, of the same shape.
            traded: share of equity bought plus sold at each bar, [n]. None: the change of the
                shares, from cash before the first bar, without the drift of untraded shares.

        Returns:
            Sum over bars of the expected return - fee x traded.
        """
        held = np.asarray(held, dtype=np.float64)
        if traded is None:
            traded = np.abs(np.diff(held, axis=0, prepend=0.0))
        return float(self.expected_returns(held, state).sum() - self.fee * np.sum(traded))


def _write(folder: Path, bars: Bars) -> Path:
    """Write UTC timestamps and all columns except the spread; return the file.

    Raises:
        OSError: the folder cannot be written, or its disk is full; then there is no such file.
    """
    import polars as pl  # slow to import; not needed without price files

    folder.mkdir(parents=True, exist_ok=True)
    columns = {name: pl.Series(column) for name, column in bars.columns().items()}
    moments = pl.from_epoch(columns.pop("time"), "s").dt.replace_time_zone("UTC")
    del columns["spread"]
    content = io.BytesIO()  # polars would hide the system's error
    pl.DataFrame({"timestamp": moments, **columns}).write_parquet(content)
    file = folder / f"{bars.symbol}.parquet"
    try:
        file.write_bytes(content.getvalue())
        with (folder / _MARK).open("a") as mark:
            mark.write(hashlib.sha256(content.getvalue()).hexdigest() + "\n")
    except OSError:
        file.unlink(missing_ok=True)
        raise
    return file


def is_synthetic(folder: str) -> bool:
    """Return True if generators wrote every price file of a folder, unchanged.

    Args:
        folder: as in a config's `env.data.folder`.
    """
    root = resolve_folder(folder)
    place = root if root.is_dir() else root.parent
    files = [path for path in place.iterdir() if path.suffix.lower() in SUFFIXES]
    if not (files and (place / _MARK).is_file()):
        return False
    try:
        digests = set(read_bytes(place / _MARK).decode(errors="replace").split())
        return all(sha256(path) in digests for path in files)
    except UnreadableError:
        return False


@dataclass(frozen=True)
class SyntheticCrypto(SyntheticMarket):
    """synthetic-crypto: assets of which one is hot. Parameters are fractions (1 bp = 1e-4).

    With probability 1/288 per bar another asset becomes hot, drawn uniformly. The hot asset of bar
    t shows in the volume of bar t and moves the prices of bar t + 1:

        log(close[t+1] / open[t+1]) = drift[t] + noise (common[t+1] + own[t+1])
        drift = strength for the hot asset, -strength / (A - 1) for the others
        log(volume[t]) = 10 + own noise of deviation 1, + 4 for the hot asset

    A policy that observes the state and holds only the hot asset earns `strength` per bar and sells
    and buys once per change. With `strength = 0` the market has no edge, and volume is
    uninformative.

    Its state, the column `hot`, is 1 in bars in which the asset is hot.

    Attributes:
        strength: log drift per bar of the hot asset.
        noise: standard deviation of the common and of each asset's own part of a bar's log return.
        switch: probability per bar that another asset becomes hot.
        signal: added log volume of the hot asset, in standard deviations of its noise.
    """

    name, column, stream = "synthetic-crypto", "hot", 0xC0117
    fee: float = 10.0 * BASIS_POINT
    strength: float = 20.0 * BASIS_POINT
    noise: float = 20.0 * BASIS_POINT
    switch: float = 1.0 / 288.0
    signal: float = 4.0

    def draw(self, bars: int, assets: int, random: np.random.Generator) -> SignalDraw:
        """Draw the hot asset of each bar: at a change one of the others, all equally likely."""
        first = random.integers(assets)
        changes = random.random(bars) < self.switch
        changes[:1] = False
        jumps = random.integers(1, max(assets, 2), size=bars)
        asset = (first + np.cumsum(np.where(changes, jumps, 0))) % assets
        hot = (asset[:, None] == np.arange(assets)).astype(np.float64)
        common, idiosyncratic = (
            random.standard_normal((bars, 1)),
            random.standard_normal((bars, assets)),
        )
        growth = self.noise * (common + idiosyncratic)
        growth[1:] += self.drift(hot[:-1])
        log_volume = LOG_VOLUME + random.standard_normal((bars, assets)) + self.signal * hot
        return SignalDraw(growth, log_volume, {self.column: hot})

    def drift(self, state: FloatArray) -> FloatArray:
        """Return each asset's log drift in the bar after each of these states, float64 [n, A]."""
        return np.where(state > 0.0, self.strength, -self.strength / (state.shape[1] - 1))

    @property
    def optimal_gain(self) -> float:
        """Log growth per bar of the best policy that observes the state.

        It holds the hot asset and sells and buys once per change; or holds cash if that pays less.
        """
        return max(self.strength - 2.0 * self.fee * self.switch, 0.0)


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(400)  # of the integrals: exact to rounding


@dataclass(frozen=True)
class ReversionOptimum:
    """Optimum of the policies that observe the shocks.

    Attributes:
        gain: log growth per bar.
        holding_value: value of holding an asset rather than cash before the next shock is observed,
            in log growth: it determines the best choice of staying, changing and selling.
    """

    gain: float
    holding_value: float


@dataclass(frozen=True)
class SyntheticReversion(SyntheticMarket):
    """synthetic-reversion: assets that revert a part of every move one bar later.

    Each asset's log growth is a moving average of unpredictable shocks:

        log(close[t+1] / open[t+1]) = shock[t+1] - share x shock[t]
        shock ~ noise x N(0, 1), independent between bars and assets
        log(volume[t]) = 10 + own noise of deviation 1, uninformative

    Given bar t, the expected growth of the next bar is -share x shock[t], and that of any later bar
    is 0: the edge lasts one bar, compared with 288 bars of synthetic-crypto. The bar's own return
    reveals the shock except for the reversion of the previous one. With `share = 0` the market has
    no edge.

    Parameters are fractions (1 bp = 1e-4).
    Its state, the column `shock`, is the new part of a bar's growth.

    Attributes:
        share: fraction of a shock that the next bar reverts.
        noise: standard deviation of a bar's shock.
    """

    name, column, stream = "synthetic-reversion", "shock", 0x2E7E2
    fee: float = 1.0 * BASIS_POINT
    share: float = 0.3
    noise: float = 100.0 * BASIS_POINT

    def draw(self, bars: int, assets: int, random: np.random.Generator) -> SignalDraw:
        """Draw the shocks."""
        shock = self.noise * random.standard_normal((bars, assets))
        growth = shock.copy()
        growth[1:] -= self.share * shock[:-1]
        log_volume = LOG_VOLUME + random.standard_normal(shock.shape)
        return SignalDraw(growth, log_volume, {self.column: shock})

    def drift(self, state: FloatArray) -> FloatArray:
        """Return each asset's log drift in the bar after each of these shocks, float64 [n, A]."""
        return -self.share * np.asarray(state, dtype=np.float64)

    @property
    def optimal_gain(self) -> float:
        """Log growth per bar of the best policy that observes the shocks of all assets."""
        return self.optimum().gain

    def optimum(self, assets: int = len(SyntheticMarket.symbols)) -> ReversionOptimum:
        """Compute the average-reward optimum (Puterman 1994, chapter 8), exact up to rounding.

        Growth less fees is linear in the weights, so a single asset or cash is optimal. Drifts D_i
        = -share x shock_i are independent from bar to bar, so the value of a position before they
        are observed is
        one number: 0 in cash, v (`holding_value`) in an asset. With M the largest of A drifts, M'
            of the A
        - 1 other ones, D the own one and f the fee, the optimality equations are

            cash:  g     = E max(0, M - f + v)
            asset: g + v = E max(D + v, M' - 2 f + v, -f)

        Their difference falls in v and changes sign between -f and f: v is found by bisection. Each
        expectation of a maximum Z >= c is c plus the integral of P(Z > z) from c on.
        """
        deviation, fee = self.share * self.noise, self.fee
        if deviation == 0.0:
            return ReversionOptimum(0.0, 0.0)

        def cash(v: float) -> float:
            return _expected_maximum(0.0, [(v - fee, assets)], deviation)

        def asset(v: float) -> float:
            return _expected_maximum(-fee, [(v, 1), (v - 2.0 * fee, assets - 1)], deviation)

        low, high = -fee, fee
        for _ in range(60):
            middle = 0.5 * (low + high)
            if asset(middle) - middle > cash(middle):
                low = middle
            else:
                high = middle
        lead = 0.5 * (low + high)
        return ReversionOptimum(cash(lead), lead)


def _expected_maximum(floor: float, groups: Sequence[tuple[float, int]], deviation: float) -> float:
    """Return E max(floor, all X), X ~ N(mean, deviation^2), `count` independent per mean."""
    half = 0.5 * (max(floor, max(mean for mean, _ in groups)) + 12.0 * deviation - floor)
    z = floor + half * (1.0 + _NODES)
    below = np.ones(len(z))
    for mean, count in groups:
        below *= _normal_cdf((z - mean) / deviation) ** count
    return floor + half * float(np.sum(_WEIGHTS * (1.0 - below)))


def _normal_cdf(x: FloatArray) -> FloatArray:
    """Return the standard normal distribution function."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in x.tolist()])


LEVELS = np.linspace(-1.0, 1.0, 7)
POSITIONS = np.array([-1.0, 0.0, 1.0])
STAY = 0.6
NOISE_COLUMNS = 14
_FOREX_START = 1_577_916_000  # Wednesday 2020-01-01 22:00 UTC = 17:00 New York


@dataclass(frozen=True, eq=False)
class ForexOptimum:
    """Best stationary policy of the chain.

    Attributes:
        gain: average reward per bar, a fraction of equity.
        policy: position in {-1, 0, 1} by [signal level, current position index], float64 [7, 3].
    """

    gain: float
    policy: FloatArray


@dataclass(frozen=True)
class SyntheticForex(SyntheticMarket):
    """synthetic-forex: a signal x_t on seven levels in [-1, 1] moves the next bar's price.

        log(close[t+1] / open[t+1]) = beta x[t] - sigma^2 / 2 + sigma eps[t+1]

    An agent that observes x_t and pays `fee` per unit of exposure change has an average-reward
    optimum on the 21-state chain (signal, position). With `beta = 0` the market has no edge.
    Parameters are fractions (1 bp = 1e-4).

    Its state is the column `signal`; `noise_0` ... `noise_13` are uninformative.

    Attributes:
        beta: log drift of the next bar per unit of signal.
        sigma: standard deviation of a bar's log return.
    """

    name, column, stream = "synthetic-forex", "signal", 0x91A27ED
    symbols, bars, bar_seconds, first_price = ("EURUSD",), 60_000, 900, 1.1
    fee: float = 2.0 * BASIS_POINT
    beta: float = 1.0 * BASIS_POINT
    sigma: float = 5.0 * BASIS_POINT

    def draw(self, bars: int, assets: int, random: np.random.Generator) -> SignalDraw:
        """Draw the signal of one pair."""
        assert assets == 1
        signal = LEVELS[_walk(bars, random)]
        previous = np.concatenate(
            [[0.0], signal[:-1]]
        )  # what moved each bar; nothing moved the first
        growth = self.beta * previous - 0.5 * self.sigma**2
        growth = growth + self.sigma * random.standard_normal(bars)
        noise = random.standard_normal((NOISE_COLUMNS, bars))
        extra = {self.column: signal, **{f"noise_{k}": noise[k] for k in range(NOISE_COLUMNS)}}
        columns = {name: column[:, None] for name, column in extra.items()}
        return SignalDraw(growth[:, None], random.standard_normal((bars, 1)), columns)

    def times(self, bars: int, bar_seconds: int) -> IntArray:
        """Return times in the forex week, so that the data check reports no issue.

        The process itself has no weekends.
        """
        weeks = bars * bar_seconds // (5 * 86400) + 2
        rows = np.arange(weeks * 7 * 86400 // bar_seconds, dtype=np.int64)
        grid = _FOREX_START + rows * bar_seconds
        return grid[~is_weekend(grid)][:bars]

    @property
    def optimal_gain(self) -> float:
        """Expected return per bar of the best policy that observes the signal."""
        return self.optimum().gain

    def optimum(self) -> ForexOptimum:
        """Compute the average-reward optimum by relative value iteration, to a span of 1e-14.

        In state (x, position) the agent chooses a; its reward is
        a beta x - a^2 sigma^2 / 2 - fee |a - position|, then x moves. Rewards are scaled to units
        of `sigma` so that 1e-14 is a meaningful span.
        """
        scale = self.sigma
        earned = self.expected_returns(POSITIONS[None, :], LEVELS[:, None]) / scale  # [x, a]
        change = np.abs(POSITIONS[None, :] - POSITIONS[:, None])
        paid = self.fee * change / scale  # [position, a]
        moves = transition_matrix()
        value = np.zeros((len(LEVELS), len(POSITIONS)))
        while True:
            choices = earned[:, None, :] - paid[None, :, :] + (moves @ value)[:, None, :]
            best = choices.max(axis=2)
            grown = best - value
            value = best - best[0, 0]
            if np.ptp(grown) < 1e-14:
                break
        gain = 0.5 * (grown.max() + grown.min()) * scale
        return ForexOptimum(float(gain), POSITIONS[choices.argmax(axis=2)])

    def drift(self, state: FloatArray) -> FloatArray:
        """Return the log drift in the bar after each signal, without the variance term, [n]."""
        return self.beta * np.asarray(state, dtype=np.float64)

    def expected_returns(self, held: FloatArray, state: FloatArray) -> FloatArray:
        """Return the expected return of positions: p beta x - (p sigma)^2 / 2, [n]."""
        return super().expected_returns(held, state) - 0.5 * (held * self.sigma) ** 2

    def optimal_positions(self, signal: FloatArray) -> FloatArray:
        """Return the optimal positions along a path of signals, started flat, float64 [n]."""
        policy = self.optimum().policy
        levels = np.rint((np.asarray(signal) + 1.0) * 3.0).astype(np.int64)
        positions = np.empty(len(levels))
        held = 1
        for row, level in enumerate(levels):
            positions[row] = policy[level, held]
            held = int(positions[row]) + 1
        return positions


def transition_matrix() -> FloatArray:
    """Return the probability that the signal moves from level i to level j, float64 [7, 7]."""
    count = len(LEVELS)
    moves = np.zeros((count, count))
    step = (1.0 - STAY) / 2.0
    for level in range(count):
        moves[level, level] += STAY
        for target in (level - 1, level + 1):
            moves[level, target if 0 <= target < count else level] += step
    return moves


def _walk(bars: int, draw: np.random.Generator) -> IntArray:
    """Return level indices of the signal, started from its stationary (uniform) distribution."""
    steps = draw.choice([-1, 0, 1], size=bars, p=[(1 - STAY) / 2, STAY, (1 - STAY) / 2])
    level = int(draw.integers(len(LEVELS)))
    levels = np.empty(bars, dtype=np.int64)
    for row, step in enumerate(steps.tolist()):
        levels[row] = level
        level = min(max(level + step, 0), len(LEVELS) - 1)
    return levels
