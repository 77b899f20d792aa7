"""One split of a run as accounts: the shown member, the other members and the baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from slipstream.core.spec import MarketSpec
from slipstream.files.track import Track
from slipstream.report import inputs
from slipstream.report.inputs import Comparison, Prices, RunEvaluation
from slipstream.report.market.account import Account, Performance, account, chained, performance
from slipstream.report.market.baselines import percentile
from slipstream.report.statistics import Floats, correlation


@dataclass(frozen=True)
class SplitView:
    """Everything is marked on the clock of the full passes, also where an agent ended early."""

    name: str
    run: RunEvaluation

    @property
    def market(self) -> MarketSpec:
        """Annualisation and currency."""
        assert self.run.market is not None
        return self.run.market

    @property
    def prices(self) -> Prices:
        """Clock and closes."""
        assert self.run.prices is not None
        return self.run.prices

    @property
    def tracks(self) -> Sequence[Track]:
        """The shown member's passes."""
        return self.run.tracks[self.name][self.run.member]

    @property
    def comparison(self) -> Comparison | None:
        """The baselines, where there are any."""
        return self.run.comparisons.get(self.name)

    @property
    def draws(self) -> Floats:
        """Total returns of the matched random traders."""
        return self.comparison.random_returns if self.comparison else np.empty(0)

    @property
    def place(self) -> float | None:
        """Percentile of the agent's return among theirs; None without them."""
        return percentile(self.agent.total_return, self.draws)

    @cached_property
    def members(self) -> list[Account]:
        """One account per member."""
        return [self._account(tracks) for tracks in self.run.tracks[self.name]]

    @property
    def agent(self) -> Account:
        """The shown member's account."""
        return self.members[self.run.member]

    @cached_property
    def baselines(self) -> Mapping[str, Account]:
        """Accounts of all baselines by name."""
        if self.comparison is None:
            return {}
        return {name: self._account(tracks) for name, tracks in self.comparison.tracks.items()}

    @property
    def rivals(self) -> Mapping[str, Account]:
        """The baselines that a trader could have followed."""
        return {name: rival for name, rival in self.baselines.items() if name != inputs.ORACLE}

    @property
    def bound(self) -> Mapping[str, Account]:
        """What only hindsight could have followed."""
        return {name: one for name, one in self.baselines.items() if name == inputs.ORACLE}

    @property
    def lines(self) -> Mapping[str, Account]:
        """The rivals that are worth a line in a picture: doing nothing is the axis."""
        return {
            name: one for name, one in self.rivals.items() if name not in (inputs.FLAT, inputs.CASH)
        }

    @cached_property
    def assets(self) -> Mapping[str, Account]:
        """Buy and hold of each asset of a portfolio."""
        tracks = self.comparison.assets if self.comparison else {}
        return {name: self._account(held) for name, held in tracks.items()}

    @property
    def market_line(self) -> tuple[str, Account] | None:
        """The market's own move: buy and hold, or equal weight bought once."""
        for name in (inputs.BUY_AND_HOLD, inputs.EQUAL_WEIGHT):
            if name in self.baselines:
                return name, self.baselines[name]
        return None

    @cached_property
    def follows(self) -> list[float | None]:
        """Correlation of each member's daily returns with the market's own; None without one."""
        market = self.market_line
        if market is None:
            return [None] * len(self.members)
        return [correlation(one.daily_returns, market[1].daily_returns) for one in self.members]

    def net_exposure(self, member: int) -> float:
        """Mean over all bars, shorts below 0."""
        return float(np.mean(self.members[member].net_exposure))

    @cached_property
    def every(self) -> list[Performance]:
        """Figures of each member."""
        return [performance(member) for member in self.members]

    @property
    def found(self) -> Performance:
        """The shown member's figures."""
        return self.every[self.run.member]

    def _account(self, tracks: Sequence[Track]) -> Account:
        if self.run.holdings is not None:
            return chained(tracks, self.market, self.prices.time)
        full = self.comparison.tracks.get(inputs.FLAT) if self.comparison else None
        clock = account(full, self.market, self.prices.time).time if full else None
        return account(tracks, self.market, self.prices.time, clock)
