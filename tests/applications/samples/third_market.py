"""A user's own market, laid out like none of slipstream's: hold -1, 0 or 1 lots of an index."""

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from slipstream.core.config import Config as Base
from slipstream.kernels.kernel import KernelData
from slipstream.kernels.spec import EnvSpec, MarketSpec, Metric
from slipstream.markets.backtest_spec import SymbolBacktestSpec

HOUR = 3_600
CAPITAL = 10_000.0


class Config(Base):
    commission: float = 0.5  # account currency, each lot traded
    bars: int = 2_000


class Params(NamedTuple):
    begin: int
    end: int
    fee: float
    cost_multiple: float


class Data(NamedTuple):
    index: NDArray[np.float64]
    stamps: NDArray[np.int64]


STATE = np.dtype(
    [
        ("key", "u8"),
        ("counter", "u8"),
        ("bar", "i8"),
        ("lots", "f8"),
        ("equity", "f8"),
        ("exposure", "f8"),
        ("paid", "f8"),
        ("fills", "f8"),
        ("total_return", "f8"),
        ("held", "f8"),
        ("mean_exposure", "f8"),
        ("costs", "f8"),
    ],
    align=True,
)


def load(config: Config) -> KernelData:
    growth = 0.003 * np.random.default_rng(5).standard_normal(config.bars)
    data = Data(1_000.0 * np.exp(np.cumsum(growth)), 1_700_006_400 + HOUR * np.arange(config.bars))
    cut = config.bars // 2
    windows = {"train": (1, cut), "validation": (cut, cut + 400), "test": (cut + 400, config.bars)}
    return KernelData(
        data,
        {
            name: (Params(low, high - 1, config.commission, 1.0),)
            for name, (low, high) in windows.items()
        },
    )


def reset(s: Any, p: Any, d: Any) -> None:
    s.bar = p.begin
    s.equity = 10_000.0


def step(s: Any, action: Any, p: Any, d: Any) -> tuple[float, bool, bool]:
    wish = float(int(action[0]) - 1)
    cost = p.fee * p.cost_multiple * abs(wish - s.lots)
    if wish != s.lots:
        s.fills += 1.0
    s.lots = wish
    gain = wish * (d.index[s.bar + 1] - d.index[s.bar]) - cost
    s.bar += 1
    s.paid += cost
    s.costs = s.paid
    s.equity += gain
    s.exposure = wish * d.index[s.bar] / s.equity if s.equity > 0.0 else 0.0
    s.total_return = s.equity / 10_000.0 - 1.0
    s.held += abs(s.exposure)
    s.mean_exposure = s.held / float(s.bar - p.begin)
    return 1e-3 * gain, False, s.bar >= p.end


def observe(s: Any, p: Any, d: Any, out: Any) -> None:
    out[0] = 100.0 * (d.index[s.bar] / d.index[s.bar - 1] - 1.0)
    out[1] = s.lots


def spec(p: Params, d: Data) -> EnvSpec:
    return EnvSpec(
        observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32),
        action_space=gymnasium.spaces.Discrete(3),
        metrics=(
            Metric("total_return", "fraction"),
            Metric("fills", "count"),
            Metric("mean_exposure", "equity"),
            Metric("costs", "account currency"),
        ),
        trace=("bar", "equity", "exposure", "paid"),
        market=MarketSpec(
            ("INDEX",), "EUR", CAPITAL, HOUR, 8_760.0, 365.0, "00:00 UTC", cost_fields=("paid",)
        ),
    )


def backtest_spec(p: Params, d: Data) -> SymbolBacktestSpec:
    fills = d.index[p.begin : p.end + 1]
    each = np.full(len(fills), p.fee * p.cost_multiple)
    return SymbolBacktestSpec(
        first=p.begin,
        last=p.end,
        time=d.stamps,
        close=d.index,
        mid=fills,
        rate=np.ones(len(fills)),
        cost=each,
        first_symbol_row=0,
        baseline_params=p,
    )
