"""What the agent is compared with: fixed rules whose decisions run through the very same kernel.

Every baseline is a sequence of actions replayed on the agent's bars with the agent's costs. Flat,
buy and hold, short, moving-average cross and oracle trade at exposure 1 and without the agent's own
stops, cooldowns and loss limits; the matched random draws and the stress tests keep all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from scipy.signal import lfilter

from slipstream.core.kernel import Kernel, Loaded
from slipstream.envs._forex_record import (
    CLOSE,
    NEXT_CLOSE,
    NEXT_OPEN,
    OPEN,
    PIP,
    RATE_CLOSE,
    RATE_OPEN,
    SPREAD,
)
from slipstream.report.inputs import Comparison, RoundTrip, Stress
from slipstream.report.oracle import Plan, best_plan
from slipstream.report.statistics import Floats
from slipstream.training.episodes import replay
from slipstream.training.track import Track

FLAT, BUY_AND_HOLD, SHORT = "flat", "buy and hold", "always short"
EMA_CROSS, MATCHED_RANDOM, ORACLE = "EMA 20/50 cross", "matched random", "oracle"
RANDOM_DRAWS = 200
COST_MULTIPLES = (0.0, 0.5, 1.0, 2.0, 3.0)
MOST_COSTS = 100.0
_SEED = 20_260_102
_MOST_ACTIONS = 4_000_000  # replayed at once: 32 MB
_NO_RULES = {
    "exposure": 1.0,
    "stop_loss": 0.0,
    "take_profit": 0.0,
    "max_daily_drawdown": 0.0,
    "cooldown": 0,
    "stop_cooldown": 0,
}

Actions = NDArray[Any]


@dataclass(frozen=True)
class Passes:
    """The continuous passes of one split through a market kernel, one per record.

    Attributes:
        kernel, loaded: the rules and their data; `Data` has `bars`, `segments`, `segment_symbol`
            and `constants`, laid out as in the forex kernel.
        split: whose records are passed through.
        backend: how the copies are stepped.
    """

    kernel: Kernel
    loaded: Loaded
    split: str
    backend: str = "compiled"

    @property
    def params(self) -> tuple[Any, ...]:
        """The split's records."""
        return self.loaded.params[self.split]

    @property
    def data(self) -> Any:
        """The kernel's arrays."""
        return self.loaded.data

    @cached_property
    def discrete(self) -> bool:
        """Whether actions are short / flat / long, not exposures in [-1, 1]."""
        return isinstance(self.kernel.spec(self.params[0], self.data).action, spaces.Discrete)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Symbol of each pass."""
        specs = [self.kernel.spec(p, self.data).market for p in self.params]
        return tuple(market.symbols[0] for market in specs if market is not None)

    def window(self, record: int) -> tuple[int, int]:
        """First decision row and last row of a pass: decisions at [first, last)."""
        start, stop = self.data.segments[self.params[record].first_segment]
        return int(start), int(stop) - 1

    def encode(self, positions: NDArray[Any]) -> Actions:
        """Actions [n, 1] of positions [n] in {-1, 0, 1}, at exposure 1 when so replayed."""
        if self.discrete:
            return (np.asarray(positions, np.int64) + 1)[:, None]
        return np.asarray(positions, np.float32)[:, None]

    def plain(self) -> tuple[Any, ...]:
        """The records at exposure 1 and without the agent's own exit rules; costs stay."""
        return tuple(
            p._replace(**{k: v for k, v in _NO_RULES.items() if k in p._fields})
            for p in self.params
        )

    def replay(
        self, actions: Sequence[Actions], params: tuple[Any, ...] | None = None
    ) -> list[Track]:
        """Plays one action sequence per record, named by symbol."""
        tracks = replay(
            self.kernel, self.loaded, self.split, actions, params=params, backend=self.backend
        )
        return [replace(t, name=name) for t, name in zip(tracks, self.symbols, strict=True)]

    def growth(
        self, actions: Sequence[Actions], params: tuple[Any, ...] | None = None
    ) -> NDArray[np.float64]:
        """Final equity over the start of all passes together, without keeping traces.

        Args:
            actions: D sets of one sequence per record, one after another.
            params: records to use instead of the split's.

        Returns:
            [D].
        """
        tracks = replay(
            self.kernel,
            self.loaded,
            self.split,
            actions,
            params=params,
            backend=self.backend,
            record=False,
        )
        final = np.array([t.metrics["total_return"] for t in tracks]).reshape(-1, len(self.params))
        return final.mean(axis=1) + 1.0


def compare(passes: Passes, agent: Sequence[Track], draws: int = RANDOM_DRAWS) -> Comparison:
    """All baselines of one split."""
    count = range(len(passes.params))
    lengths = [last - first for first, last in map(passes.window, count)]
    plain = passes.plain()

    def constant(position: int) -> list[Track]:
        return passes.replay([passes.encode(np.full(n, position)) for n in lengths], plain)

    plans = [oracle(passes, k) for k in count]
    tracks = {
        FLAT: constant(0),
        BUY_AND_HOLD: constant(1),
        SHORT: constant(-1),
        EMA_CROSS: passes.replay([passes.encode(ema_cross(passes, k)) for k in count], plain),
        ORACLE: passes.replay([passes.encode(p.positions) for p in plans], plain),
    }
    random = np.random.Generator(np.random.PCG64(_SEED))
    full = padded(passes, agent)
    returns = []
    at_once = max(_MOST_ACTIONS // sum(lengths), 1)
    for done in range(0, draws, at_once):
        sets = range(min(at_once, draws - done))
        shuffled = [matched_random(a, random) for _ in sets for a in full]
        returns.append(passes.growth(shuffled) - 1.0)
    return Comparison(
        tracks, np.concatenate(returns or [np.empty(0)]), float(np.mean([p.growth for p in plans]))
    )


def padded(passes: Passes, agent: Sequence[Track]) -> list[Actions]:
    """The agent's actions, flat from where its pass ended early."""
    out = []
    for record, track in enumerate(agent):
        first, last = passes.window(record)
        rest = passes.encode(np.zeros(max(last - first - len(track.actions), 0)))
        out.append(np.concatenate([track.actions, rest.astype(track.actions.dtype)]))
    return out


def ema(values: Floats, span: int) -> Floats:
    """Exponential moving average, weight 2 / (span + 1), started at the first value."""
    weight = 2.0 / (span + 1.0)
    start = np.array([(1.0 - weight) * values[0]])
    return np.asarray(lfilter([weight], [1.0, weight - 1.0], values, zi=start)[0])


def ema_cross(passes: Passes, record: int, fast: int = 20, slow: int = 50) -> NDArray[np.int64]:
    """Long while the fast average of closes is above the slow one, else short; decided on each bar.

    The averages start up to 1,000 bars before the pass, where the same symbol has them.
    """
    first, last = passes.window(record)
    start = max(first - 1_000, _symbol_start(passes, record))
    close = passes.data.bars[start:last, CLOSE]
    gap = ema(close, fast) - ema(close, slow)
    return np.sign(gap).astype(np.int64)[first - start :]


def _symbol_start(passes: Passes, record: int) -> int:
    """First row that certainly belongs to the record's symbol."""
    data, segment = passes.data, passes.params[record].first_segment
    mine = data.segment_symbol == data.segment_symbol[segment]
    return int(data.segments[mine, 0].min())


def fills(passes: Passes, record: int) -> tuple[Floats, Floats, Floats]:
    """Mid, conversion rate and cost of one unit (account currency) at every fill, [n + 1].

    The last is the liquidation at the last close.
    """
    first, last = passes.window(record)
    p, bars = passes.params[record], passes.data.bars
    rows = np.arange(first + 1, last + 1)
    if p.fill == NEXT_OPEN:
        mid, rate = bars[rows, OPEN], bars[rows, RATE_OPEN]
    else:
        rows = rows if p.fill == NEXT_CLOSE else rows - 1
        mid, rate = bars[rows, CLOSE], bars[rows, RATE_CLOSE]
    mid = np.append(mid, bars[last, CLOSE])
    rate = np.append(rate, bars[last, RATE_CLOSE])
    half = 0.5 * np.append(bars[rows, SPREAD], bars[last, SPREAD])
    slip = p.slippage_pips * passes.data.constants[p.first_segment, PIP]
    return mid, rate, p.cost_multiple * rate * (half + slip + mid * p.commission)


def oracle(passes: Passes, record: int) -> Plan:
    """The best positions in hindsight; swaps and calendar rules are not seen by the programme."""
    mid, rate, leg = fills(passes, record)
    return best_plan(mid, leg, rate)


def round_trip(passes: Passes, record: int, symbol: str) -> RoundTrip:
    """Mean cost of opening and closing, over the bars of a pass."""
    mid, rate, leg = fills(passes, record)
    pip = float(passes.data.constants[passes.params[record].first_segment, PIP])
    quote = 2.0 * leg / rate
    return RoundTrip(symbol, float(np.mean(quote)) / pip, float(np.mean(quote / mid)) * 1e4)


def matched_random(actions: Actions, random: np.random.Generator) -> Actions:
    """The agent's own positions and holding times at random places.

    The sequence is cut where the action changes. The order of the kinds (short, flat, long) stays,
    from a random piece on, so there are as many trades as before; the pieces of each kind are
    shuffled among themselves. Exposure and holding times keep their exact distribution.
    """
    starts = np.flatnonzero(np.append(True, (actions[1:] != actions[:-1]).any(axis=1)))
    lengths = np.diff(np.append(starts, len(actions)))
    if actions.dtype.kind == "f":
        kind = np.sign(np.where(np.abs(actions[starts, 0]) < 0.05, 0.0, actions[starts, 0])).astype(
            int
        )
    else:
        kind = actions[starts, 0].astype(int)
    offset = int(random.integers(len(starts)))
    order = (np.arange(len(starts)) + offset) % len(starts)
    for value in np.unique(kind):
        mine = np.flatnonzero(kind[order] == value)
        order[mine] = random.permutation(order[mine])
    return np.repeat(actions[starts[order]], lengths[order], axis=0)


def percentile(value: float, draws: Floats) -> float | None:
    """Share of the draws below `value`, ties counted half, in percent."""
    if not len(draws):
        return None
    below = np.count_nonzero(draws < value - 1e-12)
    ties = np.count_nonzero(np.abs(draws - value) <= 1e-12)
    return 100.0 * (below + 0.5 * ties) / len(draws)


def stress(passes: Passes, agent: Sequence[Track]) -> Stress:
    """The agent's decisions with scaled costs and one bar late."""
    actions = padded(passes, agent)

    def net(multiple: float) -> float:
        records = tuple(p._replace(cost_multiple=p.cost_multiple * multiple) for p in passes.params)
        return float(passes.growth(actions, records)[0]) - 1.0

    late = [
        np.concatenate([passes.encode(np.zeros(1)).astype(a.dtype), a[:-1]]) if len(a) else a
        for a in actions
    ]
    return Stress(
        multiples=tuple((m, net(m)) for m in COST_MULTIPLES),
        break_even=break_even(net),
        delayed=float(passes.growth(late)[0]) - 1.0,
    )


def break_even(net: Callable[[float], float], tolerance: float = 1e-3) -> float | None:
    """Cost multiple at which the return reaches zero, by bisection."""
    if net(0.0) <= 0.0:
        return None
    low, high = 0.0, 1.0
    while net(high) > 0.0:
        low, high = high, high * 2.0
        if low >= MOST_COSTS:
            return float("inf")
    while high - low > tolerance * max(high, 1.0):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if net(middle) > 0.0 else (low, middle)
    return 0.5 * (low + high)
