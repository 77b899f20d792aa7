"""Feature: a named, causal function of bars with a declared warm-up."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from slipstream.market.bars import Bars, FloatArray

Compute = Callable[[Bars, int], FloatArray]

# The share of a recursive average that may still come from bars before the warm-up began.
FORGOTTEN = 1e-8


@dataclass(frozen=True)
class Feature:
    """One line of the registry.

    Attributes:
        pattern: the name, with ``{n}`` for its window in bars (``rsi_{n}``).
        compute: ``(bars, n) -> float64 [rows]``; row t uses bars <= t; n is 0 where the name has
            no window.
        warm_up: ``n -> rows`` to drop: 0 where row 0 is final. For recursive averages it is long
            enough that the result no longer depends on where the file begins (see `FORGOTTEN`).
        meaning: one phrase for the documentation, with the unit.
        stationary: whether the value has the same meaning at any price level.
        smallest: the smallest window that makes sense.
        cumulative: whether it counts from the first bar of the data, so that no warm-up makes it
            independent of where they begin; for sets of other systems only, and refused in
            studies (see `registry.refuse_endless`).
    """

    pattern: str
    compute: Compute
    warm_up: Callable[[int], int]
    meaning: str
    stationary: bool = True
    smallest: int = 1
    cumulative: bool = False

    def window(self, name: str) -> int | None:
        """The window in `name`, 0 where the pattern has none, None when the name does not fit."""
        before, braces, after = self.pattern.partition("{n}")
        if not braces:
            return 0 if name == self.pattern else None
        match = re.fullmatch(re.escape(before) + r"([1-9]\d{0,4})" + re.escape(after), name)
        if match is None:
            return None
        n = int(match.group(1))
        return n if n >= self.smallest else None


def exponential(alpha: float) -> int:
    """Rows after which an exponential average with weight `alpha` has forgotten its start."""
    return math.ceil(math.log(FORGOTTEN) / math.log1p(-alpha)) if alpha < 1.0 else 1


def ema_rows(n: int) -> int:
    """Warm-up of EMA(n): the seeding average, then 2 / (n + 1) per bar."""
    return n + exponential(2.0 / (n + 1))


def wilder_rows(n: int) -> int:
    """Warm-up of Wilder's average: the seeding average of n changes, then 1 / n per bar."""
    return n + 1 + exponential(1.0 / n)


def twice_wilder_rows(n: int) -> int:
    """Warm-up of a Wilder average of Wilder averages (ADX), which forgets 1.2 times slower."""
    return 2 * n + 1 + math.ceil(1.25 * exponential(1.0 / n))


def macd_rows(n: int = 0) -> int:
    """Warm-up of MACD(12, 26, 9) and its signal: the slow average, then that of the signal."""
    return 34 + math.ceil(1.1 * exponential(2.0 / 27.0))


def window_rows(n: int) -> int:
    """Warm-up of a plain window of n bars."""
    return n - 1


def change_rows(n: int) -> int:
    """Warm-up of something that looks n bars back."""
    return n


def no_rows(n: int) -> int:
    """Warm-up of something that needs its own bar only."""
    return 0


def one_row(n: int = 0) -> int:
    """Warm-up of something that looks at the bar before."""
    return 1


def breakout_rows(n: int = 0) -> int:
    """Warm-up of `range_breakout_volume`: the 20 bars before."""
    return 20


def regime_rows(n: int = 0) -> int:
    """Warm-up of `atr_regime_shift`: ATR(14), then its mean of 50."""
    return wilder_rows(14) + 49


def reacceleration_rows(n: int = 0) -> int:
    """Warm-up of `trend_reacceleration`: ADX(14), then two differences."""
    return twice_wilder_rows(14) + 2


def ultosc_rows(n: int = 0) -> int:
    """Warm-up of the ultimate oscillator: 28 bars and the close before them."""
    return 28


def phase_rows(n: int = 0) -> int:
    """Warm-up of HT_DCPHASE, whose filters adapt: measured, up to 405 bars on 5-minute coins."""
    return 600
