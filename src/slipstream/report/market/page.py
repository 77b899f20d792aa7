"""The page of a run on prices: what is said first (docs/rules.md, section 15)."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.report.confidence import sharpe_interval
from slipstream.report.episode_section import episode_sections
from slipstream.report.inputs import RunEvaluation
from slipstream.report.market import first_screen, wording
from slipstream.report.market import sections as market_sections
from slipstream.report.market.stress import percentile
from slipstream.report.market.view import SplitView
from slipstream.report.page import Page, Section, Table
from slipstream.report.provenance import machine_pictures


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
    return Section("Notes and provenance", run.notes, tables, machine_pictures(run.machine))


def _opening(held: SplitView) -> list[str]:
    place = percentile(held.agent.total_return, held.draws)
    timing = wording.random_traders(place, len(held.draws))
    return opening(held, timing, _terms(held))


def opening(
    held: SplitView, timing: Sequence[str], terms: Sequence[str], trading: Sequence[str] = ()
) -> list[str]:
    """What the result is worth, in full.

    Args:
        held: the hold-out.
        timing: the agent among its own decisions at other places.
        terms: what was paid, and how many were tried.
        trading: what must be said of how it trades before it is compared.
    """
    run, mine = held.run, held.agent
    if first_screen.never_traded(held):
        return [*first_screen.at_rest(held), *seed_band(held), *terms]
    # Proof on bars that were trained or chosen on is none.
    interval = held.found.interval if run.unseen else None
    yearly = held.market.days_per_year
    compared = wording.comparisons(
        mine.total_return,
        {name: rival.total_return for name, rival in held.rivals.items()},
        interval,
        {
            name: sharpe_interval(mine.daily_returns - rival.daily_returns, yearly)
            for name, rival in held.rivals.items()
        },
        unseen=run.unseen,
    )
    verdict = wording.verdict(held.name, mine.total_return, interval, run.unseen)
    return [verdict, *trading, *compared, *timing, *seed_band(held), *terms]


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
    if not known:
        return [f"None of the {count} members has a Sharpe ratio. {run.shown_is}"]
    kind = "seeds" if run.same_settings else "members with different settings"
    if len(known) == 1:
        return [
            f"Of {count} {kind} one has a Sharpe ratio, {wording.number(known[0])}. {run.shown_is}"
        ]
    some = "" if len(known) == count else f" ({len(known)} of {count} have one)"
    return [
        f"Over {count} {kind} the {held.name} Sharpe is {wording.spread(known)}{some}. "
        f"{run.shown_is}",
        *first_screen.members_and_the_market(held),
    ]
