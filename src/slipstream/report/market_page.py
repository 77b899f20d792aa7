"""The page of a run on prices: what is said first (docs/rules.md, section 15)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.report import first_screen, market_sections, wording
from slipstream.report.confidence import sharpe_interval
from slipstream.report.episode_section import episode_sections
from slipstream.report.inputs import RunEvaluation
from slipstream.report.page import Page, Section, Table
from slipstream.report.split_view import SplitView
from slipstream.report.stress import percentile


def market_page(run: RunEvaluation) -> Page:
    """Builds the page; the hold-out comes first everywhere."""
    splits = views(run)
    held = splits[0]
    middle = [
        market_sections.against(held),
        market_sections.trades(held),
        market_sections.calendar(held),
        market_sections.positions(held),
    ]
    return page_of(splits, _opening(held), middle)


def views(run: RunEvaluation) -> list[SplitView]:
    """All splits, the hold-out first."""
    names = [run.holdout, *(n for n in reversed(list(run.tracks)) if n != run.holdout)]
    return [SplitView(name, run) for name in names]


def page_of(splits: Sequence[SplitView], opening: list[str], middle: Sequence[Section]) -> Page:
    """What every page of prices has in common, around its own sentences and sections."""
    held = splits[0]
    run, found, yearly = held.run, held.found, held.market.days_per_year
    in_full = wording.headline(
        run.holdout, found.sharpe, found.interval, found.days, yearly, run.trials
    )
    return Page(
        title=run.title,
        headline=first_screen.verdict(held),
        figures=first_screen.figures(held),
        picture=market_sections.equity(held),
        warnings=first_screen.caveats(held),
        sentences=[in_full, *opening],
        sections=[
            market_sections.results(splits),
            *middle,
            market_sections.training(run, splits[1:]),
            *episode_sections(run.episodes),
            notes(run),
        ],
    )


def notes(run: RunEvaluation) -> Section:
    """What was done to the data, and where the run came from."""
    tables = [Table("Provenance", (), list(run.provenance.items()))] if run.provenance else []
    return Section("Notes and provenance", run.notes, tables)


def _opening(held: SplitView) -> list[str]:
    run, mine = held.run, held.agent
    interval, yearly = held.found.interval, held.market.days_per_year
    if not run.unseen:
        interval = None  # proof on bars that were trained or chosen on is none
    if first_screen.never_traded(held):
        return [*first_screen.at_rest(held), *seed_band(held), *_terms(held)]
    lines = [wording.verdict(held.name, mine.total_return, interval, run.unseen)]
    lines += wording.comparisons(
        mine.total_return,
        {name: rival.total_return for name, rival in held.rivals.items()},
        interval,
        {
            name: sharpe_interval(mine.daily_returns - rival.daily_returns, yearly)
            for name, rival in held.rivals.items()
        },
        unseen=run.unseen,
    )
    lines += wording.random_traders(percentile(mine.total_return, held.draws), len(held.draws))
    return [*lines, *seed_band(held), *_terms(held)]


def _terms(held: SplitView) -> list[str]:
    """Costs, financing and how many were tried."""
    run = held.run
    lines = wording.round_trips({t.symbol: (t.pips, t.basis_points) for t in run.round_trips})
    if not run.financing:
        lines.append("Swaps are 0: financing not modelled.")
    lines.append(f"Trials tried: {run.trials}.")
    return lines


def seed_band(held: SplitView) -> list[str]:
    """Sharpe ratios over the members."""
    count = len(held.members)
    if count < 2:
        return []
    run = held.run
    values = [found.sharpe for found in held.every]
    known = [value for value in values if value is not None]
    shown = (
        f"Shown is member {run.number(run.member)}{run.member_reason and ', ' + run.member_reason}."
    )
    if not known:
        return [f"None of the {count} members has a Sharpe ratio. {shown}"]
    kind = "seeds" if run.same_settings else "members with different settings"
    if len(known) == 1:
        return [f"Of {count} {kind} one has a Sharpe ratio, {wording.number(known[0])}. {shown}"]
    low, middle, high = (wording.number(float(np.quantile(known, q))) for q in (0.0, 0.5, 1.0))
    some = "" if len(known) == count else f" ({len(known)} of {count} have one)"
    return [
        f"Over {count} {kind} the {held.name} Sharpe is {low} to {high}, median {middle}{some}. "
        f"{shown}",
        *first_screen.members_and_the_market(held),
    ]
