"""Small forex markets and an interpreted copy of the environment to step through them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from slipstream.core.random import stream
from slipstream.kernels.kernel import KernelData, params_table
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.markets.data.calendar import get_calendar
from slipstream.markets.forex import kernel as forex
from slipstream.markets.forex.forex_state import FLAT, NIGHT, ROLL, params_by_split

BAR = 900
KERNEL = load_kernel("forex")


class Bar(NamedTuple):
    """One bar by hand; mid prices, `flag` from `record` (ROLL, FLAT, n * NIGHT)."""

    open: float
    high: float
    low: float
    close: float
    spread: float = 0.0
    flag: int = 0
    atr: float = 0.001
    rate_open: float = 1.0
    rate_close: float = 1.0


def flat_bar(price: float, **more: Any) -> Bar:
    """A bar that does not move."""
    return Bar(price, price, price, price, **more)


class World:
    """One interpreted copy of the environment on given bars.

    Args:
        bars: the first is the bar decided on first.
        pip: price units.
        inverse: the account currency is the base: rates are 1 / mid.
        evaluation: liquidate at the end.
        settings: fields of `forex.Config`.
    """

    def __init__(
        self,
        bars: list[Bar],
        pip: float = 0.0001,
        inverse: bool = False,
        evaluation: bool = False,
        **settings: Any,
    ) -> None:
        kernel = KERNEL
        settings = {"data": {"folder": "-"}, "features": ("close",), **settings}
        self.config = kernel.configure(settings)
        self.loaded = _loaded(self.config, bars, pip, inverse)
        split = "train_window" if evaluation else "train"
        table = params_table(kernel, self.loaded.params[split])
        self.p = table.view(np.recarray)[0]
        self.d = self.loaded.data
        self.s = np.zeros(1, kernel.STATE).view(np.recarray)[0]
        self.spec = forex.spec(self.loaded.params[split][0], self.d)
        with np.errstate(over="ignore"):
            self.s.key = stream(np.uint64(1), np.uint64(2), np.uint64(3))
            forex.reset(self.s, self.p, self.d)

    def begin_at(self, bar: int) -> World:
        """Moves the start to a bar of choice."""
        self.s.bar = bar
        return self

    def step(self, action: float) -> tuple[float, bool, bool]:
        """Steps with a discrete action 0, 1, 2 or a continuous exposure."""
        dtype = self.spec.action_dtype
        with np.errstate(over="ignore"):
            reward, terminated, truncated = forex.step(
                self.s, np.array([action], dtype=dtype), self.p, self.d
            )
            forex.finalize_episode(self.s, self.p, self.d)  # so that a test may look after any step
        return float(reward), bool(terminated), bool(truncated)

    def observe(self) -> np.ndarray:
        """The observation row."""
        out = np.zeros(self.spec.observation_shape, np.float32)
        forex.observe(self.s, self.p, self.d, out)
        return out


def _loaded(config: forex.Config, bars: list[Bar], pip: float, inverse: bool) -> KernelData:
    n = len(bars)
    prices = np.array([bar[:5] for bar in bars])
    rates = np.array([(bar.rate_open, bar.rate_close) for bar in bars])
    if inverse:
        rates = 1.0 / prices[:, [0, 3]]
    atr = np.array([bar.atr for bar in bars])
    close = prices[:, 3]
    returns = close[1:] / close[:-1] - 1.0
    variance = float(max(returns.var(), 1e-10))
    clock = np.zeros((n, 4))
    segments = np.array([[config.lookback - 1, n]], dtype=np.int64)
    data = forex.Data(
        bars=np.concatenate([prices, rates, atr[:, None]], axis=1),
        features=np.concatenate([close[:, None], clock], axis=1).astype(np.float32),
        calendar=np.array([bar.flag for bar in bars], dtype=np.int64),
        time=np.arange(n, dtype=np.int64) * BAR,
        segments=segments,
        segment_symbol=np.zeros(1, np.int64),
        constants=np.array([[pip, float(inverse), variance]]),
        feature_mean=np.zeros((1, 1)),
        feature_std=np.ones((1, 1)),
        symbols=np.array([[ord(letter) for letter in "EURUSD"]]),
        currency=np.array([ord(letter) for letter in config.account_currency]),
    )
    params = params_by_split(
        config, data, {"train": [[0]], "train_window": [[0]]}, BAR, get_calendar("fx", BAR)
    )
    return KernelData(data, params)


def random_bars(
    n: int, seed: int, price: float = 1.1, volatility: float = 4e-4, spread: float = 1e-4
) -> list[Bar]:
    """A walk with heavy tails, gaps between bars, wide bars, rolls, swap nights and flat times."""
    draw = np.random.default_rng(seed)
    bars = []
    conversion = 1.0
    for row in range(n):
        gap = volatility * draw.standard_t(3) if draw.random() < 0.3 else 0.0
        opening = price * float(np.exp(gap))
        closing = opening * float(np.exp(volatility * draw.standard_t(3)))
        reach = volatility * abs(draw.standard_normal(2)) * opening
        next_conversion = conversion * float(np.exp(1e-4 * draw.standard_normal()))
        flag = 0
        if row % 40 == 39:
            flag |= ROLL | (int(draw.choice([0, 1, 3])) * NIGHT)
        if draw.random() < 0.03:
            flag |= FLAT
        bars.append(
            Bar(
                opening,
                max(opening, closing) + float(reach[0]),
                min(opening, closing) - float(reach[1]),
                closing,
                spread * float(draw.uniform(0.5, 2.0)),
                flag,
                2.0 * volatility * price,
                conversion,
                next_conversion,
            )
        )
        price, conversion = closing, next_conversion
    return bars
