"""The agent's own decisions under other costs, one bar late, and at random places."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.report.inputs import Stress
from slipstream.report.market.passes import Passes, padded
from slipstream.report.statistics import Floats
from slipstream.training.record.track import Track

COST_MULTIPLES = (0.0, 0.5, 1.0, 2.0, 3.0)
RANDOM_DRAWS = 200
_SEED = 20_260_102
_MOST_ACTIONS = 4_000_000  # numbers replayed at once: 32 MB


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
