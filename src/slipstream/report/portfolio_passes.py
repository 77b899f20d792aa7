"""The continuous passes of a portfolio's split, and any target weights replayed through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.kernel import Loaded
from slipstream.envs.portfolio.record import CHANGE, SIMPLEX
from slipstream.envs.portfolio.spec import names_of
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

    def buy(self, chosen: Sequence[NDArray[np.bool_]]) -> list[Track]:
        """Buys equal shares of the chosen assets [A] of each pass once and trades no more.

        Each asset is bought at its own first tradable fill, as the environment's benchmark is
        (docs/rules.md, section 10); until then its share is cash.
        """
        plans = [self._bought(record, yes) for record, yes in enumerate(chosen)]
        longest = max(len(plan) for plan in plans)
        return self._weighted(plans, min_holding=longest + 1, reserve=0.0)

    def follow(self, weights: Sequence[Floats], band: float) -> list[Track]:
        """Keeps weights [n, A + 1] of each pass within a band, decided on every bar."""
        return self._weighted(weights, band=band)

    def listed(self, record: int) -> NDArray[np.bool_]:
        """Assets that are listed when a pass begins, [A]."""
        first, _ = self.window(record)
        return np.asarray(self.data.prices[first, : self.params[record].assets] > 0.0)

    def _bought(self, record: int, chosen: NDArray[np.bool_]) -> Floats:
        """Target weights [n, A + 1] that buy each chosen asset with its share, costs included."""
        first, last = self.window(record)
        p, n = self.params[record], self.params[record].assets
        rows = self.data.prices[first + 1 : last + 1]
        close, opened, half = rows[:, :n], rows[:, n : 2 * n], rows[:, 2 * n : 3 * n]
        weights = np.zeros((last - first, n + 1))
        weights[:, n] = 1.0
        share = p.initial_equity * (1.0 - p.reserve) / max(int(chosen.sum()), 1)
        waiting, cash, units = chosen.copy(), p.initial_equity, np.zeros(n)
        for t in range(len(rows)):
            gone = (close[t] <= 0.0) & (waiting | (units > 0.0))
            if gone.any():  # delisted: sold at the last close
                price, spread = close[t - 1, gone], half[t - 1, gone]
                cash += float(units[gone] @ (price - self._cost(record, price, spread)))
                units[gone], waiting[gone] = 0.0, False
            buys = waiting & (opened[t] > 0.0)
            if buys.any():
                price = opened[t, buys]
                units[buys] = share / (price + self._cost(record, price, half[t, buys]))
                cash -= share * int(buys.sum())
                waiting[buys] = False
                mid = np.where(opened[t] > 0.0, opened[t], close[t])
                value = units * mid
                weights[t] = np.append(value, cash) / (value.sum() + cash)
            if not waiting.any():
                break
        return weights

    def _cost(self, record: int, price: Floats, half_spread: Floats) -> Floats:
        """What a coin's purchase or sale costs at these prices, account currency, [k]."""
        p = self.params[record]
        fee = self.data.fee_tiers[0, 1] if p.tiered else p.fee
        return np.asarray(((fee + p.slippage) * price + half_spread) * p.cost_multiple)

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
