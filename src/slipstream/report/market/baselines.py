"""What the agent is compared with: fixed rules, and its own decisions at other places and costs.

Everything is a sequence of actions replayed by the very same kernel on the agent's bars. Flat,
buy and hold, short, moving-average cross and oracle trade at exposure 1 and without the agent's own
stops, cooldowns and loss limits; the matched random draws and the stress tests keep all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from slipstream.files.track import Track
from slipstream.report.inputs import (
    BUY_AND_HOLD,
    EMA_CROSS,
    FLAT,
    ORACLE,
    SHORT,
    Comparison,
    Stress,
)
from slipstream.report.market.oracle import Hindsight, best_plan
from slipstream.report.market.passes import Passes, padded
from slipstream.report.statistics import Floats

COST_MULTIPLES = (0.0, 0.5, 1.0, 2.0, 3.0)
RANDOM_DRAWS = 200
_SEED = 20_260_102
_MOST_ACTIONS = 4_000_000  # numbers replayed at once: 32 MB


def rivals(passes: Passes) -> Comparison:
    """The fixed rules that a trader could have followed."""
    records = range(len(passes.params))
    lengths = [last - first for first, last in map(passes.window, records)]
    positions: dict[str, list[NDArray[Any]]] = {
        FLAT: [np.zeros(n) for n in lengths],
        BUY_AND_HOLD: [np.ones(n) for n in lengths],
        SHORT: [-np.ones(n) for n in lengths],
        EMA_CROSS: [ema_cross(passes, record) for record in records],
    }
    every = [passes.encode(taken) for rule in positions.values() for taken in rule]
    tracks = passes.replay(every, passes.plain())
    count = len(lengths)
    return Comparison(
        {name: tracks[k * count : (k + 1) * count] for k, name in enumerate(positions)}
    )


def compare(passes: Passes, agent: Sequence[Track], draws: int = RANDOM_DRAWS) -> Comparison:
    """All baselines of one split, with the oracle and the matched random traders."""
    plans = [oracle(passes, k) for k in range(len(passes.params))]
    best = passes.replay([passes.encode(p.positions) for p in plans], passes.plain())
    return Comparison(
        tracks={**rivals(passes).tracks, ORACLE: best},
        random_returns=random_returns(passes, agent, draws),
        oracle_growth=float(np.mean([plan.growth for plan in plans])),
    )


def oracle(passes: Passes, record: int) -> Hindsight:
    """The best positions in hindsight; swaps and calendar rules are not seen by the programme."""
    one = passes.declared[record]
    return best_plan(one.mid, one.cost, one.rate)


def ema(values: Floats, span: int) -> Floats:
    """Exponential moving average, weight 2 / (span + 1), started at the first value."""
    weight = 2.0 / (span + 1.0)
    start = np.array([(1.0 - weight) * values[0]])
    return np.asarray(lfilter([weight], [1.0, weight - 1.0], values, zi=start)[0])


def ema_cross(passes: Passes, record: int) -> NDArray[np.int64]:
    """Long while the average of 20 closes is above that of 50, else short; decided on each bar.

    The averages start up to 1,000 bars before the pass, where the same symbol has them.
    """
    first, last = passes.window(record)
    start = max(first - 1_000, passes.declared[record].history)
    close = passes.declared[record].close[start:last]
    return np.sign(ema(close, 20) - ema(close, 50)).astype(np.int64)[first - start :]


def stress(passes: Passes, agent: Sequence[Track]) -> Stress:
    """The agent's decisions with scaled costs and one bar late."""
    actions = padded(passes, agent)

    def net(multiples: Floats) -> Floats:
        """Total return under each cost multiple."""
        records = tuple(
            p._replace(cost_multiple=p.cost_multiple * float(multiple))
            for multiple in multiples
            for p in passes.params
        )
        return passes.growth(actions * len(multiples), records) - 1.0

    first = passes.flat(1)
    late = [np.concatenate([first.astype(a.dtype), a[:-1]]) for a in actions]
    returns = net(np.array(COST_MULTIPLES))
    return Stress(
        multiples=tuple(zip(COST_MULTIPLES, returns.tolist(), strict=True)),
        break_even=break_even(net),
        delayed=float(passes.growth(late)[0]) - 1.0,
    )


def break_even(net: Callable[[Floats], Floats]) -> float | None:
    """Cost multiple at which the return reaches zero, to about a thousandth.

    Brackets it by doubling, then cuts the bracket into nine three times.

    Args:
        net: total returns under several cost multiples at once.
    """
    ladder = np.concatenate([[0.0], 2.0 ** np.arange(8)])
    for _ in range(4):
        lost = np.flatnonzero(net(ladder) <= 0.0)
        if not len(lost):
            return float("inf")
        if lost[0] == 0:
            return None
        ladder = np.linspace(ladder[lost[0] - 1], ladder[lost[0]], 10)
    return float(ladder.mean())


def percentile(value: float, draws: Floats) -> float | None:
    """Share of the draws below `value`, ties counted half, in percent."""
    if not len(draws):
        return None
    below = np.count_nonzero(draws < value - 1e-12)
    ties = np.count_nonzero(np.abs(draws - value) <= 1e-12)
    return 100.0 * (below + 0.5 * ties) / len(draws)


def random_returns(
    passes: Passes, agent: Sequence[Track], draws: int = RANDOM_DRAWS
) -> NDArray[np.float64]:
    """Total returns [draws] of matched random traders under the agent's own rules."""
    random = np.random.Generator(np.random.PCG64(_SEED))
    full = padded(passes, agent)
    returns = []
    at_once = max(_MOST_ACTIONS // sum(a.size for a in full), 1)
    for done in range(0, draws, at_once):
        sets = range(min(at_once, draws - done))
        shuffled = [passes.shuffled(a, random) for _ in sets for a in full]
        returns.append(passes.growth(shuffled) - 1.0)
    return np.concatenate(returns or [np.empty(0)])
