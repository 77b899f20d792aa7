"""The continuous passes of one split, and what is replayed through them beside the agent.

Everything that a page compares with is a sequence of actions replayed by the very same kernel on
the agent's bars. Flat, buy and hold, short, moving-average cross and oracle trade at exposure 1 and
without the agent's own stops, cooldowns and loss limits; the matched random draws and the stress
tests keep all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, cycle
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.kernels.kernel import Kernel, Loaded
from slipstream.kernels.spec import MarketSpec
from slipstream.markets.report.oracle import best_plan
from slipstream.report import inputs
from slipstream.report.inputs import RANDOM_DRAWS
from slipstream.report.statistics import Floats
from slipstream.training.environments.episodes import replay
from slipstream.training.environments.kernel_environment import KernelEnvironment, KernelKind
from slipstream.training.track import Track

Actions = NDArray[Any]
COST_MULTIPLES = (0.0, 0.5, 1.0, 2.0, 3.0)
_SEED = 20_260_102
_MOST_ACTIONS = 4_000_000  # numbers replayed at once: 32 MB


@dataclass(frozen=True)
class Passes:
    """The continuous passes of one split through a market kernel, one per record.

    Attributes:
        kernel, loaded: the rules and their data; the kernel declares `market_pass`.
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

    @cached_property
    def environment(self) -> KernelEnvironment:
        """The rules and their data."""
        return KernelEnvironment.from_loaded(KernelKind(self.kernel.name), self.kernel, self.loaded)

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

    @property
    def market(self) -> MarketSpec:
        """The market of all passes together: one record knows its own symbol only."""
        market = self.kernel.spec(self.params[0], self.data).market
        assert market is not None
        return replace(market, symbols=self.symbols)

    @property
    def prices(self) -> inputs.Prices:
        """The clock and the closes of all symbols."""
        return inputs.Prices(self.declared[0].time, self.declared[0].close)

    @property
    def comparable(self) -> bool:
        """Whether an action is one position that can be replayed under other costs."""
        action = self.kernel.spec(self.params[0], self.data).action
        one = action.n == 3 if isinstance(action, spaces.Discrete) else action.shape == (1,)
        scaled = "cost_multiple" in self.params[0]._fields
        return bool(one) and scaled and all(record is not None for record in self.plain())

    def round_trips(self) -> list[inputs.RoundTrip]:
        """Mean cost of opening and closing in each symbol, over the bars of its pass."""
        found = []
        for one, symbol in zip(self.declared, self.symbols, strict=True):
            quote = 2.0 * one.cost / one.rate
            points = float(np.mean(quote / one.mid)) * 1e4
            found.append(inputs.RoundTrip(symbol, float(np.mean(quote)) / one.pip, points))
        return found

    @cached_property
    def declared(self) -> tuple[Any, ...]:
        """What the kernel says of each pass."""
        declared = self.kernel.hook("market_pass")
        return tuple(declared(p, self.data) for p in self.params)

    @property
    def begins(self) -> int:
        """UTC second at which the first bar opens."""
        return min(int(one.time[one.first]) for one in self.declared)

    @property
    def financing(self) -> bool:
        """Whether positions pay for the night."""
        return any(one.financing for one in self.declared)

    def window(self, record: int) -> tuple[int, int]:
        """First decision row and last row of a pass: decisions at [first, last)."""
        return self.declared[record].first, self.declared[record].last

    def encode(self, positions: NDArray[Any]) -> Actions:
        """Actions [n, 1] of positions [n] in {-1, 0, 1}, at exposure 1 when so replayed."""
        if self.discrete:
            return (np.asarray(positions, np.int64) + 1)[:, None]
        return np.asarray(positions, np.float32)[:, None]

    def flat(self, count: int) -> Actions:
        """Actions [count, K] that hold nothing, under the agent's own rules."""
        return self.encode(np.zeros(count))

    def shuffled(self, actions: Actions, random: np.random.Generator) -> Actions:
        """The agent's own decisions at random places; see `matched_random`."""
        return matched_random(actions, random)

    def plain(self) -> tuple[Any, ...]:
        """The records at exposure 1 and without the agent's own exit rules; costs stay."""
        return tuple(one.plain for one in self.declared)

    def replay(
        self,
        actions: Sequence[Actions],
        params: tuple[Any, ...] | None = None,
        record: bool = True,
    ) -> list[Track]:
        """Plays one action sequence per record, or several sets of them, named by symbol.

        Args:
            actions: D sets of one sequence per record, one after another.
            params: records to use instead of the split's, one set or D of them.
            record: keep actions and traces.
        """
        kernel, split, backend = self.environment, self.split, self.backend
        played = replay(kernel, split, actions, params=params, backend=backend, record=record)
        return self.named(played)

    def named(self, tracks: Sequence[Track]) -> list[Track]:
        """One track per record, or several sets of them, by symbol."""
        return [replace(t, name=name) for t, name in zip(tracks, cycle(self.symbols))]

    def growth(self, actions: Sequence[Actions], params: tuple[Any, ...] | None = None) -> Floats:
        """Final equity over the start [D], without keeping traces; see `replay` and `pooled`."""
        returns = [t.metrics["total_return"] for t in self.replay(actions, params, record=False)]
        return self.pooled(np.array(returns).reshape(-1, len(self.params)))

    def pooled(self, returns: Floats) -> Floats:
        """Final equity over the start [D], of passes side by side that returned [D, records]."""
        return np.asarray(returns.mean(axis=1) + 1.0)

    def rivals(self) -> inputs.Comparison:
        """The fixed rules that a trader could have followed."""
        records = range(len(self.params))
        lengths = [last - first for first, last in map(self.window, records)]
        positions: dict[str, list[NDArray[Any]]] = {
            inputs.FLAT: [np.zeros(n) for n in lengths],
            inputs.BUY_AND_HOLD: [np.ones(n) for n in lengths],
            inputs.SHORT: [-np.ones(n) for n in lengths],
            inputs.EMA_CROSS: [ema_cross(self, record) for record in records],
        }
        every = [self.encode(taken) for rule in positions.values() for taken in rule]
        tracks = self.replay(every, self.plain())
        count = len(lengths)
        return inputs.Comparison(
            {name: tracks[k * count : (k + 1) * count] for k, name in enumerate(positions)}
        )

    def hindsight(self) -> tuple[Mapping[str, Sequence[Track]], float | None]:
        """The oracle's tracks by its name, and the growth that its programme promised.

        Swaps and calendar rules are not seen by the programme.
        """
        plans = [best_plan(one.mid, one.cost, one.rate) for one in self.declared]
        tracks = self.replay([self.encode(plan.positions) for plan in plans], self.plain())
        return {inputs.ORACLE: tracks}, float(np.mean([plan.growth for plan in plans]))

    def each_asset(self) -> dict[str, list[Track]]:
        """Buy and hold of each asset of a portfolio."""
        return {}

    def rebalanced(self) -> list[Track] | None:
        """Equal weight, restored on every bar; None if there are no weights."""
        return None

    def stressed(self, agent: Sequence[Track]) -> inputs.Stress:
        """The agent's decisions with scaled costs and one bar late."""
        return stress(self, agent)

    def place_of(self, agent: Sequence[Track], draws: int) -> float:
        """Percentile of the agent among matched random traders."""
        mine = float(self.growth(padded(self, agent))[0]) - 1.0
        place = percentile(mine, random_returns(self, agent, draws))
        assert place is not None
        return place

    def compare(self, agent: Sequence[Track], draws: int = RANDOM_DRAWS) -> inputs.Comparison:
        """All baselines of one split, with the oracle and the matched random traders."""
        best, growth = self.hindsight()
        tracks = {**self.rivals().tracks, **best}
        return inputs.Comparison(
            tracks, random_returns(self, agent, draws), growth, self.each_asset()
        )


def matched_random(actions: Actions, random: np.random.Generator) -> Actions:
    """The agent's own positions and holding times at random places.

    The sequence is cut where the action changes. The order of the kinds (short, flat, long) stays,
    from a random piece on, so there are as many trades as before; the pieces of each kind are
    shuffled among themselves. Exposure and holding times keep their exact distribution.
    """
    starts = np.flatnonzero(np.append(True, (actions[1:] != actions[:-1]).any(axis=1)))
    lengths = np.diff(np.append(starts, len(actions)))
    kind = actions[starts, 0]
    if actions.dtype.kind == "f":
        kind = np.sign(np.where(np.abs(kind) < 0.05, 0.0, kind))
    kind = kind.astype(int)
    offset = int(random.integers(len(starts)))
    order = (np.arange(len(starts)) + offset) % len(starts)
    for value in np.unique(kind):
        mine = np.flatnonzero(kind[order] == value)
        order[mine] = random.permutation(order[mine])
    return np.repeat(actions[starts[order]], lengths[order], axis=0)


def padded(passes: Passes, agent: Sequence[Track]) -> list[Actions]:
    """The agent's actions, flat from where its pass ended early."""
    out = []
    for record, track in enumerate(agent):
        first, last = passes.window(record)
        rest = passes.flat(max(last - first - len(track.actions), 0))
        out.append(np.concatenate([track.actions, rest.astype(track.actions.dtype)]))
    return out


def ema(values: Floats, span: int) -> Floats:
    """Exponential moving average, weight 2 / (span + 1), started at the first value."""
    weight = 2.0 / (span + 1.0)
    parts = (weight * values).tolist()
    averages = accumulate(parts, lambda mean, part: (1.0 - weight) * mean + part, initial=values[0])
    return np.array(list(averages)[1:])


def ema_cross(passes: Passes, record: int) -> NDArray[np.int64]:
    """Positions that are long while the average of 20 closes is above that of 50, else short.

    The averages start up to 1,000 bars before the pass, where the same symbol has them.
    """
    first, last = passes.window(record)
    start = max(first - 1_000, passes.declared[record].history)
    close = passes.declared[record].close[start:last]
    return np.sign(ema(close, 20) - ema(close, 50)).astype(np.int64)[first - start :]


def stress(passes: Passes, agent: Sequence[Track]) -> inputs.Stress:
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
    return inputs.Stress(
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
