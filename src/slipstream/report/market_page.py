"""The page of a run on prices (trading-rules section 15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from slipstream.core.spec import MarketSpec
from slipstream.report import figures, market_tables, wording
from slipstream.report.account import Account, account
from slipstream.report.baselines import (
    BUY_AND_HOLD,
    EMA_CROSS,
    FLAT,
    ORACLE,
    SHORT,
    percentile,
)
from slipstream.report.confidence import sharpe_interval
from slipstream.report.inputs import Prices, RunEvaluation
from slipstream.report.market_tables import NamedAccount
from slipstream.report.page import Page, Picture, Section, Table, picture
from slipstream.report.performance import (
    Performance,
    by_hour,
    by_symbol,
    by_weekday,
    performance,
    trading,
)
from slipstream.report.statistics import alpha_beta, monthly_returns, worst_drawdowns

if TYPE_CHECKING:
    from slipstream.training.track import Track

_RIVALS = (FLAT, BUY_AND_HOLD, SHORT, EMA_CROSS)
_MOST_PICTURES = 8  # of positions; more symbols than that are in the tables only


@dataclass(frozen=True)
class _Split:
    """One split's accounts; everything on the clock of the full passes."""

    name: str
    run: RunEvaluation
    market: MarketSpec
    prices: Prices

    @property
    def tracks(self) -> Sequence[Track]:
        return self.run.tracks[self.name][self.run.member]

    @cached_property
    def members(self) -> list[Account]:
        return [self._account(tracks) for tracks in self.run.tracks[self.name]]

    @property
    def agent(self) -> Account:
        return self.members[self.run.member]

    @cached_property
    def others(self) -> Mapping[str, Account]:
        comparison = self.run.comparisons.get(self.name)
        return {n: self._account(t) for n, t in comparison.tracks.items()} if comparison else {}

    @cached_property
    def figures(self) -> Performance:
        return performance(self.agent)

    def _account(self, tracks: Sequence[Track]) -> Account:
        comparison = self.run.comparisons.get(self.name)
        full = comparison.tracks.get(FLAT) if comparison else None
        clock = account(full, self.market, self.prices.time).time if full else None
        return account(tracks, self.market, self.prices.time, clock)


def market_page(run: RunEvaluation) -> Page:
    """Builds the page; the hold-out comes first everywhere."""
    assert run.market is not None and run.prices is not None
    names = [run.holdout, *(n for n in reversed(list(run.tracks)) if n != run.holdout)]
    splits = [_Split(name, run, run.market, run.prices) for name in names]
    held = splits[0]
    found = held.figures
    warnings = []
    if run.holdout_reads > 1:
        warnings.append(
            f"The {run.holdout} split has been evaluated {run.holdout_reads} times: choices made between "
            "these looks make its figures too good."
        )
    return Page(
        title=run.title,
        warnings=warnings,
        headline=wording.headline(
            run.holdout, found.sharpe, found.interval, found.years, run.trials
        ),
        sentences=_opening(held),
        sections=[
            _results(splits),
            _against(held),
            _trades(held),
            _calendar(held),
            _positions(held),
            _training(run, splits[1:]),
            notes(run),
        ],
    )


def notes(run: RunEvaluation) -> Section:
    """What was done to the data, and where the run came from."""
    tables = [Table("Provenance", (), list(run.provenance.items()))] if run.provenance else []
    return Section("Notes and provenance", run.notes, tables)


def _opening(held: _Split) -> list[str]:
    run, mine = held.run, held.agent
    lines = [wording.verdict(held.name, mine.total_return, held.figures.interval)]
    rivals = {n: held.others[n] for n in _RIVALS if n in held.others}
    yearly = held.market.days_per_year
    lines += wording.comparisons(
        mine.total_return,
        {n: a.total_return for n, a in rivals.items()},
        held.figures.interval,
        {
            n: sharpe_interval(mine.daily_returns - a.daily_returns, yearly)
            for n, a in rivals.items()
        },
    )
    comparison = run.comparisons.get(held.name)
    if comparison is not None:
        draws = comparison.random_returns
        standing = wording.random_traders(percentile(mine.total_return, draws), len(draws))
        lines += [standing] if standing else []
    trips = wording.round_trips({t.symbol: (t.pips, t.basis_points) for t in run.round_trips})
    lines += [trips] if trips else []
    if not run.financing:
        lines.append("Swaps are 0: financing not modelled.")
    lines += _seed_band(held)
    lines.append(f"Trials tried: {run.trials}.")
    return lines


def _seed_band(held: _Split) -> list[str]:
    count = len(held.members)
    if count < 2:
        return []
    values = [p.sharpe for p in map(performance, held.members)]
    known = [v for v in values if v is not None]
    which = f"Shown is member {held.run.member}{held.run.member_reason and ', ' + held.run.member_reason}."
    if not known:
        return [f"None of the {count} members has a Sharpe ratio. {which}"]
    kind = "seeds" if held.run.same_settings else "members with different settings"
    low, middle, high = (wording.number(float(np.quantile(known, q))) for q in (0.0, 0.5, 1.0))
    return [
        f"Over {count} {kind} the {held.name} Sharpe is {low} to {high}, median {middle} "
        f"({len(known)} of {count} have one). {which}"
    ]


def _results(splits: Sequence[_Split]) -> Section:
    held = splits[0]
    tables = [market_tables.by_split({s.name: s.figures for s in splits}, held.market)]
    if len(held.members) > 1:
        tables.append(
            market_tables.members(
                [performance(m) for m in held.members], held.run.member, held.name
            )
        )
    shown = {n: held.others[n] for n in _RIVALS[1:] if n in held.others}
    band = [m for k, m in enumerate(held.members) if k != held.run.member]
    pictures = [
        picture(
            f"equity_{held.name}",
            f"Equity and drawdown of the agent and its baselines on the {held.name} split",
            figures.equity(held.name, held.agent, shown, band),
        )
    ]
    return Section("Result", (), tables, pictures)


def _against(held: _Split) -> Section:
    run, comparison = held.run, held.run.comparisons.get(held.name)
    if comparison is None:
        return Section("Against baselines", ("There are no baselines for this action space.",))
    rows = [NamedAccount("agent", held.agent, held.tracks)]
    rows += [
        NamedAccount(n, held.others[n], comparison.tracks[n]) for n in _RIVALS if n in held.others
    ]
    oracle = held.others.get(ORACLE)
    last = [NamedAccount(ORACLE, oracle, comparison.tracks[ORACLE])] if oracle else []
    draws = comparison.random_returns
    tables = [market_tables.baselines(rows, draws, last, held.market)]
    sentences = [
        "All baselines trade the same bars through the same rules and pay the same costs, at exposure 1 and "
        "without the agent's own stops and limits. The oracle knows all future prices: an upper bound, not a rival."
    ]
    hold = held.others.get(BUY_AND_HOLD)
    line = (
        alpha_beta(held.agent.daily_returns, hold.daily_returns, held.market.days_per_year)
        if hold
        else None
    )
    if line is not None:
        sentences.append(
            f"Against buy and hold: beta {wording.number(line[1], 2)}, alpha {wording.percent(line[0])} a year."
        )
    if oracle and comparison.oracle_growth is not None:
        promised, replayed = comparison.oracle_growth, oracle.total_return + 1.0
        if abs(np.log(replayed / promised)) > 1e-2:
            sentences.append(
                f"The oracle's programme promised {wording.percent(promised - 1.0)}: swaps, clock rules or "
                "rounding that it does not see made the difference to its replay in the table."
            )
    pictures: list[Picture] = []
    if len(draws):
        shown = {n: held.others[n].total_return for n in _RIVALS[1:] if n in held.others}
        pictures.append(
            picture(
                "random_timing",
                f"Total return of the agent among {len(draws)} random traders",
                figures.random_draws(held.name, held.agent.total_return, draws, shown),
            )
        )
    tables += [market_tables.stress(run.stress)] if run.stress else []
    if run.stress:
        sentences.append(wording.breaks_even(run.stress.break_even))
    return Section("Against baselines and other costs", sentences, tables, pictures)


def _trades(held: _Split) -> Section:
    done = trading(held.tracks, held.agent)
    bars = held.market.bar_seconds
    return Section(
        "Trades and costs",
        (),
        [
            market_tables.trades(done, held.figures, bars, held.market.account_currency),
            market_tables.costs(held.agent),
        ],
        [
            picture(
                "costs",
                f"Return before and after costs, and costs by kind, on the {held.name} split",
                figures.gross_and_net(held.name, held.agent),
            )
        ],
    )


def _calendar(held: _Split) -> Section:
    mine = held.agent
    months = monthly_returns(mine.equity, mine.time[1:])
    window = min(60, max(len(mine.daily_returns) // 3, 2))
    tables = [
        market_tables.months(months),
        market_tables.drawdowns(worst_drawdowns(mine.equity, mine.time)),
        market_tables.slices(
            "By symbol", "Sharpe", by_symbol(held.tracks, held.market, held.prices.time)
        ),
        market_tables.slices("By weekday", "t value", by_weekday(mine)),
        market_tables.slices("By hour (UTC)", "t value", by_hour(mine)),
    ]
    pictures = [
        picture("rolling_sharpe", "Rolling Sharpe ratio", figures.rolling(held.name, mine, window)),
        picture(
            "daily_returns",
            "Distribution of daily returns",
            figures.daily_distribution(held.name, mine),
        ),
        picture("monthly_returns", "Monthly returns", figures.monthly(months)),
    ]
    sentence = "Among this many rows some stand out by chance: a t value beyond 2 is expected in one of twenty."
    return Section("When it was earned", (sentence,), tables, pictures)


def _positions(held: _Split) -> Section:
    shown = held.tracks[:_MOST_PICTURES]
    pictures = [
        picture(
            f"positions_{''.join(c if c.isalnum() else '_' for c in track.name)}",
            f"Price and position of {track.name} on the {held.name} split",
            figures.positions(track, held.prices),
        )
        for track in shown
        if len(track.trace["bar"])
    ]
    left = len(held.tracks) - len(shown)
    return Section(
        "Positions", (f"{left} more symbols are not drawn.",) if left else (), (), pictures
    )


def _training(run: RunEvaluation, others: Sequence[_Split]) -> Section:
    pictures = []
    if run.curves:
        pictures.append(
            picture(
                "learning_curve",
                "Score over training",
                figures.learning(run.curves, run.score_name),
            )
        )
    for split in others:
        shown = {n: split.others[n] for n in _RIVALS[1:] if n in split.others}
        pictures.append(
            picture(
                f"equity_{split.name}",
                f"Equity and drawdown on the {split.name} split",
                figures.equity(split.name, split.agent, shown),
            )
        )
    sentence = (
        "The agent was trained on the training split and chosen on the validation split: what it shows there "
        "is no evidence."
    )
    return Section("Training and the splits it has seen", (sentence,), (), pictures)
