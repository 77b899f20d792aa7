"""Past values do not change as bars are added: observations, records, all built-in markets.

A live account replays its bars from the first one whenever another has come; this is what makes
that the same account.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from forex_folder import START as SUNDAY
from numpy.typing import NDArray

from slipstream.core.errors import DataError
from slipstream.kernels.env_checker import allocate_buffers
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.loop import HOLD
from slipstream.markets.data.bars import NUMBERS, Bars
from slipstream.markets.data.calendar import is_weekend
from slipstream.markets.data.market import Market, market_from_bars
from slipstream.markets.data.symbols import MarketKind
from slipstream.markets.features.feature_registry import FEATURES

# What says where an episode ends, and rows counted over all symbols that lie end to end.
PLACES = ("bar", "long_blocked_to", "short_blocked_to", "reduce_only_to")
CONCLUDED = ("sharpe", "total_return", "mean_exposure", "benchmark_return")  # at the end only


def walk(
    symbol: str,
    time: NDArray[np.int64],
    price: float,
    seed: int,
    lacks: Sequence[range | int] = (),
    step: float = 3e-4,
) -> Bars:
    """A random walk, without the bars with the numbers in `lacks`."""
    draw, n = np.random.default_rng(seed), len(time)
    close = price * np.exp(np.cumsum(step * draw.standard_normal(n)))
    opened = np.append(price, close[:-1]) * np.exp(0.1 * step * draw.standard_normal(n))
    reach = step * price * draw.random((2, n))
    keep = np.ones(n, np.bool_)
    for part in lacks:
        keep[list(part) if isinstance(part, range) else part] = False
    columns = {
        "open": opened,
        "high": np.maximum(opened, close) + reach[0],
        "low": np.minimum(opened, close) - reach[1],
        "close": close,
        "volume": np.exp(draw.standard_normal(n)),
        "spread": 1e-4 * price * draw.random(n),
    }
    signal = {"signal": draw.standard_normal(n)[keep]}
    return Bars(symbol, time[keep], **{k: v[keep] for k, v in columns.items()}, extra=signal)


def week(bars: int, size: int = 900) -> NDArray[np.int64]:
    """Opens of the forex week from Sunday, 2025-02-23, on; clocks change two weeks later."""
    times = SUNDAY + size * np.arange(2 * bars + 400)
    return np.asarray(times[~is_weekend(times)][:bars])


def clock(bars: int, size: int = 300) -> NDArray[np.int64]:
    return 1_641_081_000 + size * np.arange(bars)


class World(NamedTuple):
    """A market to be cut.

    Attributes:
        kernel, settings: the rules.
        bars, converting: of all symbols.
        size, kind: as of a `Market`.
        cuts: times at which something is special; others are drawn.
        start: first moment decided at.
    """

    kernel: str
    settings: dict[str, Any]
    bars: tuple[Bars, ...]
    size: int
    kind: MarketKind
    cuts: tuple[int, ...] = ()
    converting: tuple[Bars, ...] = ()
    start: int | None = None

    def until(self, stop: int) -> Market:
        """The market of all bars that open before a moment."""
        known = tuple(one.between(0, stop) for one in self.bars)
        market = market_from_bars(known, self.size, self.kind)
        return Market(
            market.bars,
            self.size,
            self.kind,
            market.hash,
            converting=tuple(one.between(0, stop) for one in self.converting),
        )


class Seen(NamedTuple):
    """One pass: time of the bar, observation and record at every row, [n, ...]."""

    time: NDArray[np.int64]
    obs: NDArray[np.float32]
    record: NDArray[Any]


def passes(world: World, market: Market) -> list[Seen]:
    """Every pass of a market, with actions that are functions of the row and nothing else."""
    kernel = load_kernel(world.kernel)
    config = kernel.configure({"data": {"folder": "-"}, **world.settings})
    loaded = kernel.module.load_window(config, world.start, None, market)  # type: ignore[attr-defined]
    more = {"sells_at_end": False, "early_end": 0}
    records = [
        one._replace(**{k: v for k, v in more.items() if k in one._fields})
        for one in loaded.params["window"]
    ]
    found = []
    for record in records:
        own = loaded.__class__(
            loaded.data, {"train": (record,)}, loaded.warnings, loaded.provenance, loaded.state
        )
        zero = np.zeros(1, np.uint64)
        env = KernelVectorEnv(
            kernel, own, zero, zero, stagger=False, time_limit=False, autoreset_mode=HOLD
        )
        out = allocate_buffers(env)
        env.reset(out.obs)
        low, high = (int(row) for row in loaded.data.segments[record.first_segment])
        draw = np.random.default_rng(7)
        obs, states = [out.obs[0].copy()], [env.state.copy()]
        for _ in range(low + 1, high):
            if env.spec.num_actions:
                action = draw.integers(0, env.spec.num_actions, (1, 1))
            else:
                action = draw.uniform(-1.2, 1.2, (1, env.spec.action_dim)).astype(np.float32)
                action *= draw.random() < 0.3  # else as it is, or all to nothing
            env.step(np.ascontiguousarray(action, env.spec.action_dtype), out, 0)
            obs.append(out.obs[0].copy())
            states.append(env.state.copy())
            if env.episode_state["held"][0]:
                break
        count = len(obs)
        record_rows = np.concatenate(states)
        for name in PLACES:
            if name in (record_rows.dtype.names or ()):
                rows = record_rows[name]
                rows -= np.where(rows >= 0, low, 0)
        record_rows["last"] = record_rows["segment"] = 0
        found.append(Seen(loaded.data.time[low : low + count], np.stack(obs), record_rows))
    return found


def check(world: World, drawn: int = 4) -> int:
    """Cuts the market at many moments; the number of rows that were compared."""
    whole = passes(world, world.until(2**60))
    times = np.unique(np.concatenate([one.time for one in whole]))
    draw = np.random.default_rng(3)
    drawn_cuts = draw.choice(times[len(times) // 3 :], drawn, replace=False)
    cuts = [*(t for t in world.cuts if t > times[2]), *drawn_cuts.tolist()]
    compared = 0
    for cut in cuts:
        before = passes(world, world.until(cut + 1))
        for k, own in enumerate(before):
            full = whole[k]
            n = len(own.time)
            assert n <= len(full.time)
            np.testing.assert_array_equal(own.time, full.time[:n])
            assert own.obs.tobytes() == full.obs[:n].tobytes(), f"observations before {cut}"
            for name in own.record.dtype.names or ():
                mine, theirs = own.record[name], full.record[name][:n]
                if name in CONCLUDED:  # the episode's end is where the bars end
                    mine, theirs = mine[:-1], theirs[:-1]
                assert mine.tobytes() == theirs.tobytes(), f"{name} before {cut}"
            compared += n
        assert max(int(one.time[-1]) for one in before) == int(times[times <= cut][-1])
    return compared


ALL = tuple(one.pattern.replace("{n}", "14") for one in FEATURES)
RULES = {
    "action": "continuous",
    "stop_loss": 2.0,
    "take_profit": 3.0,
    "stop_unit": "atr",
    "max_daily_drawdown": 0.01,
    "cooldown": 2,
    "stop_cooldown": 3,
    "flatten_at": "16:30",
    "flat_on_friday": "12:00",
    "swap_long": -3.0,
    "slippage_pips": 0.2,
    "lookback": 3,
    "reward": "differential_sharpe",
}
FEW = ["log_return_1", "volatility_20", "signal"]
WEEK = week(2000)
WEEKENDS = tuple(int(WEEK[k]) for k in np.flatnonzero(np.diff(WEEK) > 900)[:3])
HOLES = (range(700, 713), range(1200, 1256), 1500)


def forex(*symbols: str, lacks: Sequence[range | int] = HOLES, **settings: Any) -> World:
    bars = [walk(one, WEEK, 1.1, k, lacks if k == 0 else ()) for k, one in enumerate(symbols)]
    cuts = (*WEEKENDS, *(int(WEEK[k]) for k in (699, 713, 714, 1199, 1256, 1499, 1501)))
    known = {"features": FEW, "return_variance": 1e-7}  # which a policy takes along
    return World("forex", known | settings, tuple(bars), 900, "fx", cuts)


COINS = clock(1600)
LACKS = ((range(300), range(700, 760), 900, range(1100, 1104)), (range(1000, 1600),), (range(5),))
SPECIAL = tuple(
    int(COINS[k]) for k in (305, 699, 700, 711, 712, 713, 714, 759, 760, 1011, 1012, 1013)
)


def coins(**settings: Any) -> World:
    """BTC lacks 60 bars and returns, ETH is gone from the 1,000th on: delisted 13 bars later."""
    names = ("BTCUSD", "ETHUSD", "LTCUSD")
    union = settings.get("universe") == "union"
    bars = tuple(
        walk(name, COINS, 10.0**k, k, own if union else own[-1:], 3e-3)
        for k, (name, own) in enumerate(zip(names, LACKS, strict=True))
        if union or name != "ETHUSD"
    )
    return World("portfolio", {"features": FEW, **settings}, bars, 300, "24/7", SPECIAL)


WORLDS: dict[str, Callable[[], World]] = {
    "forex": lambda: forex("EURUSD"),
    "forex, every feature": lambda: forex("EURUSD", features=list(ALL)),
    "forex, every rule": lambda: forex("EURUSD", **RULES),
    "forex, filled at the same close": lambda: forex("EURUSD", fill="compat_same_close"),
    "forex, filled at the next close": lambda: forex(
        "EURUSD", fill="next_close", flatten_at="09:00"
    ),
    "forex, two pairs": lambda: forex("EURUSD", "USDJPY", lookback=2),
    "forex, a pair that converts": lambda: forex("EURGBP")._replace(
        converting=(walk("GBPUSD", WEEK, 1.3, 9, (range(800, 820), 1000)),)
    ),
    "portfolio": lambda: coins(),
    "portfolio, every feature": lambda: coins(features=list(ALL)),
    "union": lambda: coins(universe="union"),
    "union, every rule": lambda: coins(
        universe="union",
        decide_every=3,
        min_holding=4,
        trailing_stop=0.02,
        lookback=2,
        fee_tiers=((0.0, 0.002), (1e5, 0.001)),
        max_position=0.6,
        cash_reserve=0.1,
        slippage_bp=2.0,
    ),
    "union, unit orders": lambda: coins(
        universe="union", orders="units", features=FEW, units={"forced_sale_bars": 20}
    ),
    "unit orders as the original": lambda: coins(
        orders="units",
        features=["cappuccino"],
        units={"start": "first", "anchor": "first_row", "ending": "original"},
    ),
}


QUICK = ("forex, every rule", "union, every rule")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in WORLDS],
)
def test_later_bars_change_nothing_that_was(name: str) -> None:
    assert check(WORLDS[name]()) > 3_000


def test_a_pass_begins_at_the_same_bar_however_few_there_are() -> None:
    """Warm-up at the edge of the store: the first bars at which there is anything to decide."""
    world = forex("EURUSD", lacks=())
    first = int(passes(world, world.until(2**60))[0].time[0])
    edge = int(np.searchsorted(WEEK, first))
    with pytest.raises(DataError):
        passes(world, world.until(int(WEEK[edge])))
    for k in range(edge + 1, edge + 4):
        own = passes(world, world.until(int(WEEK[k]) + 1))
        assert own[0].time[0] == first and len(own[0].time) == k - edge + 1


def test_a_bar_that_changes_is_seen() -> None:
    """The comparison is no matter of course: one price of the past, and the records differ."""
    world = forex("EURUSD")
    columns = {name: getattr(world.bars[0], name).copy() for name in NUMBERS}
    columns["close"][900] *= 1.0 + 1e-5
    other = Bars("EURUSD", world.bars[0].time, **columns, extra=world.bars[0].extra)
    one, two = (
        passes(each, each.until(2**60))[0] for each in (world, world._replace(bars=(other,)))
    )
    assert one.obs.tobytes() != two.obs.tobytes()
