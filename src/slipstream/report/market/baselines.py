"""What the agent is compared with: fixed rules whose decisions run through the very same kernel.

Every baseline is a sequence of actions replayed on the agent's bars with the agent's costs. Flat,
buy and hold, short, moving-average cross and oracle trade at exposure 1 and without the agent's own
stops, cooldowns and loss limits; the matched random draws and the stress tests keep all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from slipstream.report.inputs import BUY_AND_HOLD, EMA_CROSS, FLAT, ORACLE, SHORT, Comparison
from slipstream.report.market.oracle import Hindsight, best_plan
from slipstream.report.market.passes import Passes
from slipstream.report.market.stress import RANDOM_DRAWS, random_returns
from slipstream.report.statistics import Floats
from slipstream.training.record.track import Track


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
