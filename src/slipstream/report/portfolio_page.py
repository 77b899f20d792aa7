"""The page of a portfolio's run: beside cash, equal weight and each asset.

See docs/rules.md, section 15.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.report import first_screen, market_sections, portfolio_sections, wording
from slipstream.report.confidence import sharpe_interval
from slipstream.report.inputs import RoundTrip, RunEvaluation
from slipstream.report.market_page import page_of, seed_band, views
from slipstream.report.page import Page
from slipstream.report.split_view import SplitView
from slipstream.report.stress import percentile
from slipstream.report.wording import number
from slipstream.studies.statistics.objective import LEAST_EXPOSURE, LEAST_FILLS


def portfolio_page(run: RunEvaluation) -> Page:
    """Builds the page; the hold-out comes first everywhere."""
    splits = views(run)
    held = splits[0]
    middle = [
        portfolio_sections.against(held),
        portfolio_sections.trades(held),
        portfolio_sections.assets(held),
        market_sections.calendar(held, symbols=False),
    ]
    return page_of(splits, _opening(held), middle)


def _opening(held: SplitView) -> list[str]:
    run, mine = held.run, held.agent
    proof = held.found.interval if run.unseen else None  # bars that were chosen on prove nothing
    yearly = held.market.days_per_year
    last = [*seed_band(held), *_costs(run.round_trips), f"Trials tried: {run.trials}."]
    if first_screen.never_traded(held):
        return [*first_screen.at_rest(held), *last]
    lines = [wording.verdict(held.name, mine.total_return, proof, run.unseen), *_idle(held)]
    lines += wording.comparisons(
        mine.total_return,
        {name: rival.total_return for name, rival in held.rivals.items()},
        proof,
        {
            name: sharpe_interval(mine.daily_returns - rival.daily_returns, yearly)
            for name, rival in held.rivals.items()
        },
        unseen=run.unseen,
    )
    better = [name for name, one in held.assets.items() if one.total_return < mine.total_return]
    lines.append(
        f"Of {len(held.assets)} assets bought and held, {len(better)} end below the agent and "
        f"{len(held.assets) - len(better)} do not."
    )
    place = percentile(mine.total_return, held.draws)
    if place is not None:
        text = (
            f"Its return is at percentile {number(place, 0)} of {len(held.draws)} draws of its own "
            "decisions begun at another time and dealt to other assets"
        )
        late = ": its choices are not shown to be better than theirs." if place < 95.0 else "."
        lines.append(text + late)
    return [*lines, *last]


def _idle(held: SplitView) -> list[str]:
    """Says when an agent has hardly traded: its figures are then those of cash."""
    fills = sum(track.metrics.get("fills", 0.0) for track in held.tracks)
    exposure = held.found.exposure
    if exposure >= LEAST_EXPOSURE and fills >= LEAST_FILLS:
        return []
    return [
        f"It hardly trades: mean exposure {wording.share(exposure, 1)} of equity, "
        f"{number(fills, 0)} fills. Its figures are about those of cash."
    ]


def _costs(trips: Sequence[RoundTrip]) -> list[str]:
    if not trips:
        return []
    costs = [number(trip.basis_points) for trip in trips]
    if len(trips) > 1 and len(set(costs)) == 1:
        return [f"Round trip: {costs[0]} bp in each of {len(trips)} assets."]
    each = zip(trips, costs, strict=True)
    return [f"Round trip: {', '.join(f'{trip.symbol} {cost} bp' for trip, cost in each)}."]
