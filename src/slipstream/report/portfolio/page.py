"""The page of a portfolio's run: beside cash, equal weight and each asset.

See docs/rules.md, section 15.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.report.inputs import RoundTrip, RunEvaluation
from slipstream.report.market import sections as market_sections
from slipstream.report.market import wording
from slipstream.report.market.page import opening, page_of, views
from slipstream.report.market.performance import total
from slipstream.report.market.stress import percentile
from slipstream.report.market.view import SplitView
from slipstream.report.market.wording import number
from slipstream.report.page import Page
from slipstream.report.portfolio import sections as portfolio_sections
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
    mine, draws = held.agent.total_return, held.draws
    better = sum(one.total_return < mine for one in held.assets.values())
    timing = [
        f"Of {len(held.assets)} assets bought and held, {better} end below the agent and "
        f"{len(held.assets) - better} do not."
    ]
    place = percentile(mine, draws)
    if place is not None:
        late = place < wording.BETTER_THAN_RANDOM
        timing.append(
            f"Its return is at percentile {number(place, 0)} of {len(draws)} draws of its own "
            "decisions begun at another time and dealt to other assets"
            + (": its choices are not shown to be better than theirs." if late else ".")
        )
    terms = [*_costs(held.run.round_trips), f"Trials tried: {held.run.trials}."]
    return opening(held, timing, terms, _idle(held))


def _idle(held: SplitView) -> list[str]:
    """Says when an agent has hardly traded, and what its figures are then those of."""
    fills, exposure = total(held.tracks, "fills"), held.found.exposure
    if exposure >= LEAST_EXPOSURE and fills >= LEAST_FILLS:
        return []
    like = "cash" if exposure < LEAST_EXPOSURE else "what it bought, held"
    return [
        f"It hardly trades: mean exposure {wording.share(exposure, 1)} of equity, "
        f"{number(fills, 0)} fills. Its figures are about those of {like}."
    ]


def _costs(trips: Sequence[RoundTrip]) -> list[str]:
    if not trips:
        return []
    costs = [number(trip.basis_points) for trip in trips]
    if len(trips) > 1 and len(set(costs)) == 1:
        return [f"Round trip: {costs[0]} bp in each of {len(trips)} assets."]
    each = zip(trips, costs, strict=True)
    return [f"Round trip: {', '.join(f'{trip.symbol} {cost} bp' for trip, cost in each)}."]
