"""The continuous passes of a portfolio's split, and any target weights replayed through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.kernel import Loaded
from slipstream.envs._portfolio_record import CHANGE, SIMPLEX
from slipstream.envs._portfolio_spec import names_of
from slipstream.report.passes import Actions, Passes
from slipstream.report.statistics import Floats
from slipstream.training.track import Track

BAND = 0.05  # of the rebalanced baseline, where the agent's own rules have none


def is_portfolio(loaded: Loaded) -> bool:
    """Whether the data is laid out as in the portfolio kernel."""
    record = next(iter(loaded.params.values()))[0]
    fields = {"unit_orders", "action_map", "decide_every", "cost_multiple"}
    return fields <= set(record._fields) and hasattr(loaded.data, "prices")


@dataclass(frozen=True)
class PortfolioPasses(Passes):
    """One pass for each stretch of bars without a hole, one after the other, never at once.

    Attributes:
        kernel, loaded: the rules and their data, laid out as in the portfolio kernel.
        split: whose records are passed through.
        backend: how the copies are stepped.
    """

    @property
    def assets(self) -> tuple[str, ...]:
        """Their names."""
        return names_of(self.data)

    @property
    def symbols(self) -> tuple[str, ...]:
        """A name for each pass."""
        count = len(self.params)
        return ("portfolio",) if count == 1 else tuple(f"stretch {k + 1}" for k in range(count))

    def window(self, record: int) -> tuple[int, int]:
        """First decision row and last row of a pass: decisions at [first, last)."""
        p = self.params[record]
        start, stop = self.data.segments[p.first_segment]
        return int(start), int(stop) - 1 - p.early_end

    def flat(self, count: int) -> Actions:
        """Actions [count, K] that hold cash, under the agent's own rules."""
        p = self.params[0]
        if p.unit_orders or p.action_map == CHANGE:
            return np.zeros((count, p.assets + (not p.unit_orders)), np.float32)
        actions = np.full((count, p.assets + 1), -1.0, np.float32)
        actions[:, -1] = 1.0
        return actions

    def shuffled(self, actions: Actions, random: np.random.Generator) -> Actions:
        """The agent's own decisions begun at a random place and dealt to other assets.

        Exposure, turnover and holding times stay; when, and in what, is left to chance.
        """
        count = self.params[0].assets
        order = np.concatenate([random.permutation(count), np.arange(count, actions.shape[1])])
        return np.roll(actions, int(random.integers(len(actions))), axis=0)[:, order]

    def pooled(self, returns: Floats) -> Floats:
        """Final equity over the start [D], of passes one after the other."""
        return np.asarray(np.prod(1.0 + returns, axis=1))

    def hold(self, weights: Sequence[Floats]) -> list[Track]:
        """Buys weights [A + 1], cash last, at the first fill of each pass and trades no more."""
        longest = max(last - first for first, last in map(self.window, range(len(self.params))))
        return self._weighted([w[None] for w in weights], decide_every=longest + 1)

    def follow(self, weights: Sequence[Floats], band: float) -> list[Track]:
        """Keeps weights [n, A + 1] of each pass within a band, decided on every bar."""
        return self._weighted(weights, band=band)

    def tradable(self, record: int) -> NDArray[np.bool_]:
        """Assets that can be bought at the first fill of a pass, [A]."""
        first, _ = self.window(record)
        n = self.params[record].assets
        return np.asarray(self.data.prices[first + 1, n : 2 * n] > 0.0)

    def _weighted(self, weights: Sequence[Floats], **rules: Any) -> list[Track]:
        """Replays target weights with the agent's costs and reserve, without its other rules."""
        plain = {
            "unit_orders": False,
            "action_map": SIMPLEX,
            "band": 0.0,
            "decide_every": 1,
            "min_holding": 0,
            "max_position": 1.0,
            "trailing_stop": 0.0,
        }
        params = tuple(p._replace(**{**plain, **rules}) for p in self.params)
        return self.replay([w.astype(np.float32) for w in weights], params)
