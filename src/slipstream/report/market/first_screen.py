"""The first screen of a page of prices: a short verdict, a row of figures, what warns of them.

A run's page never calls a result "profitable" (docs/rules.md, section 15): its test bars may be
read again.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.percent import NOTHING, percent
from slipstream.market.calendar import span
from slipstream.report.inputs import RunEvaluation
from slipstream.report.market.performance import total
from slipstream.report.market.stress import percentile
from slipstream.report.market.view import SplitView
from slipstream.report.market.wording import (
    BETTER_THAN_RANDOM,
    against,
    excludes_zero,
    few_days,
    number,
    share,
)
from slipstream.report.page import KeyFigure
from slipstream.report.statistics import sharpe
from slipstream.studies.statistics.deflated import smallest_confirmable

RUINED = -0.9  # total return from which on an account is called ruined
FOLLOWS = 0.5  # correlation of daily returns from which on a member goes with the market
MOST_NAMED = 8  # members


def verdict(held: SplitView) -> str:
    """Whether the agent gained, and whether that can be told from luck, in one short sentence."""
    found, run = held.found, held.run
    bars, gain = f"on the {held.name} bars", percent(found.total_return)
    if never_traded(held):
        return f"It never traded {bars}: there is nothing to judge."
    market = held.market_line
    beside = ""
    if market is not None:
        name, account = market
        mine, other = against(found.total_return, account.total_return).split(" against ")
        gain, beside = mine, f"; {name} made {other}"
    if found.total_return <= RUINED:
        return f"The account is ruined: {gain} {bars}{beside}."
    if not run.unseen:
        return f"No proof: {gain} on {held.name} bars that are not known to be new to it."
    if found.interval is None:
        return f"Too few days to judge: {gain} {bars}{beside}."
    if found.interval[1] < 0.0:
        return f"A loss beyond what luck explains: {gain} {bars}{beside}."
    if found.total_return <= 0.0:
        return f"A loss, within what luck explains: {gain} {bars}{beside}."
    return f"A gain{_doubt(held)}: {gain} {bars}{beside}."


def _doubt(held: SplitView) -> str:
    """The first reason not to call a gain skill; a run's page never goes beyond luck."""
    found = held.found
    if not excludes_zero(found.interval):
        return ", within what luck explains"
    smallest = smallest_confirmable(found.days, held.market.days_per_year)
    place = percentile(found.total_return, held.draws)
    if found.sharpe is None or smallest is None or found.sharpe <= smallest:
        return f" too small for {span(found.days, held.market.days_per_year)} to confirm"
    if place is not None and place < BETTER_THAN_RANDOM:
        return ", but random timing does as well"
    return " beyond what luck easily explains"


def figures(held: SplitView) -> list[KeyFigure]:
    """Return, Sharpe ratio, what could be confirmed, the rank among random traders, costs."""
    found, market = held.found, held.market
    days = span(found.days, market.days_per_year)
    looked = f", read {held.run.holdout_reads} times" if held.run.holdout_reads > 1 else ""
    shown = [
        KeyFigure(
            "Return after costs", percent(found.total_return), f"{held.name}, {days}{looked}"
        ),
        KeyFigure("Annual Sharpe ratio", *annual_sharpe(found.sharpe, found.interval)),
        KeyFigure(
            "Smallest Sharpe that could be confirmed",
            number(smallest_confirmable(found.days, market.days_per_year)),
            f"by {days}",
        ),
    ]
    place = percentile(found.total_return, held.draws)
    if place is not None:
        idle = never_traded(held)
        shown.append(
            KeyFigure(
                "Random traders that did worse",
                NOTHING if idle else share(place / 100.0),
                "it never traded" if idle else f"of {len(held.draws)} with {_alike(held)}",
            )
        )
    start = float(held.agent.equity[0])
    shown.append(KeyFigure("Costs", share(found.costs / start, 1), f"of the start{_trip(held)}"))
    return shown


def annual_sharpe(ratio: float | None, interval: tuple[float, float] | None) -> tuple[str, str]:
    """Its value and its interval; from days that are too few for an interval there is neither."""
    if ratio is None:
        return NOTHING, "equity never moved"
    if interval is None:
        return NOTHING, "too few days for one"
    return number(ratio), "95 % interval {} to {}".format(*(number(v) for v in interval))


def _alike(held: SplitView) -> str:
    """What matched random traders have in common with the agent."""
    return "the same holding times" if held.run.holdings is None else "its decisions, shuffled"


def _trip(held: SplitView) -> str:
    """The cheapest and the dearest symbol."""
    points = [trip.basis_points for trip in held.run.round_trips]
    if not points:
        return ""
    low, high = number(min(points)), number(max(points))
    return f"; round trip {low if low == high else f'{low} to {high}'} bp"


def caveats(held: SplitView) -> list[str]:
    """What must be known before the figures are believed."""
    lines = looks(held.run)
    found, market = held.found, held.market
    lines += few_days(found.days, market.days_per_year)
    if found.total_return <= RUINED:
        lines.append(
            f"The account lost {share(-found.total_return, 1)}. Its Sharpe ratio, made of daily "
            "percentages of an account that shrinks, does not show that."
        )
    return lines


def looks(run: RunEvaluation) -> list[str]:
    """What was wrong with the data and let in, and whether the hold-out was looked at before."""
    if run.holdout_reads <= 1:
        return [*run.accepted]
    return [
        *run.accepted,
        f"The {run.holdout} split has been evaluated {run.holdout_reads} times: choices made "
        "between these looks make its figures too good.",
    ]


def never_traded(held: SplitView) -> bool:
    """No order was filled and nothing was ever held."""
    return not total(held.tracks, "fills") and not held.found.exposure


def at_rest(held: SplitView) -> list[str]:
    """What is said of an agent that never traded, instead of comparing nothing with something."""
    made = [f"{name} {percent(rival.total_return)}" for name, rival in held.rivals.items()]
    beside = f"; on the same bars: {', '.join(made)}" if made else ""
    return [f"The agent never traded: its account stands where it began{beside}."]


def members_and_the_market(held: SplitView) -> list[str]:
    """Whose figures are the market's own move rather than timing: it explains a wide seed band."""
    market = held.market_line
    if market is None or len(held.members) < 2:
        return []
    name, account = market
    ratio = sharpe(account.daily_returns, held.market.days_per_year)
    text = (
        f"The market itself on these bars: {name} {percent(account.total_return)}, Sharpe "
        f"{number(ratio)}."
    )
    for sign, words in ((1.0, "with"), (-1.0, "against")):
        mine = [k for k, v in enumerate(held.follows) if v is not None and sign * v >= FOLLOWS]
        if mine:
            follows = band([held.follows[k] or 0.0 for k in mine])
            nets = band([held.net_exposure(k) for k in mine])
            text += (
                f" {_members(held, mine)} {words} it (correlation of daily returns {follows}, mean "
                f"net exposure {nets}): such ups and downs are in good part the market's, not "
                "timing."
            )
    return [text]


def band(values: Sequence[float]) -> str:
    """ "0.70 to 0.76", or the one value."""
    low, high = number(min(values), 2), number(max(values), 2)
    return low if low == high else f"{low} to {high}"


def _members(held: SplitView, mine: Sequence[int]) -> str:
    """ "Members 1, 2 and 5 move"."""
    numbers = [str(held.run.number(index)) for index in mine]
    if len(mine) == len(held.members):
        return "All members move"
    if len(mine) > MOST_NAMED:
        return f"{len(mine)} of {len(held.members)} members move"
    if len(mine) == 1:
        return f"Member {numbers[0]} moves"
    return f"Members {', '.join(numbers[:-1])} and {numbers[-1]} move"
