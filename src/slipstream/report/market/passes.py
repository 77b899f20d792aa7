"""The continuous passes of one split, through which any sequence of actions can be replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.core.kernel import Kernel, Loaded
from slipstream.core.spec import MarketSpec
from slipstream.environments.episodes import replay
from slipstream.environments.kernel_environment import KernelEnvironment
from slipstream.files.track import Track
from slipstream.report.inputs import Holdings, RoundTrip
from slipstream.report.statistics import Floats

Actions = NDArray[Any]


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
        return KernelEnvironment.of(self.kernel.name, self.kernel, self.loaded)

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
    def holdings(self) -> Holdings | None:
        """A portfolio's prices."""
        return None

    @property
    def comparable(self) -> bool:
        """Whether an action is one position that can be replayed under other costs."""
        action = self.kernel.spec(self.params[0], self.data).action
        one = action.n == 3 if isinstance(action, spaces.Discrete) else action.shape == (1,)
        scaled = "cost_multiple" in self.params[0]._fields
        return bool(one) and scaled and all(record is not None for record in self.plain())

    def round_trips(self) -> list[RoundTrip]:
        """Mean cost of opening and closing in each symbol, over the bars of its pass."""
        found = []
        for one, symbol in zip(self.declared, self.symbols, strict=True):
            quote = 2.0 * one.cost / one.rate
            points = float(np.mean(quote / one.mid)) * 1e4
            found.append(RoundTrip(symbol, float(np.mean(quote)) / one.pip, points))
        return found

    @cached_property
    def declared(self) -> tuple[Any, ...]:
        """What the kernel says of each pass."""
        assert self.kernel.market_pass is not None
        return tuple(self.kernel.market_pass(p, self.data) for p in self.params)

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
