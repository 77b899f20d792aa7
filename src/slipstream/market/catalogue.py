"""The names of everything that the data check can find; docs/data.md holds the same table.

A name never changes its meaning: configs name findings in `accept`, runs record them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Effect = Literal["stops", "mends", "warns", "tells"]


class Entry(NamedTuple):
    """One name.

    Attributes:
        effect: what loading does: it refuses, changes the bars, or keeps them and says so; what
            ``tells`` stands in the data check only.
        means: what was found.
        remedy: what a user can do.
        acceptable: `accept` lets such data in.
    """

    effect: Effect
    means: str
    remedy: str
    acceptable: bool = False


_SCALE = "`price_scale`, by symbol"
_DROP = "`bad_bars: drop`"

CATALOGUE: dict[str, Entry] = {
    # The numbers mean something else than they seem to.
    "units": Entry(
        "stops", "prices more than twice beyond any that the pair has had since 1995", _SCALE, True
    ),
    "integer_prices": Entry(
        "stops", "such prices, all of them whole numbers: points", _SCALE, True
    ),
    "scale_jump": Entry(
        "stops", "the close jumps by a power of ten from one bar to the next", "mend the file", True
    ),
    "overlap": Entry(
        "stops",
        "a symbol's files hold different bars of one stamp; equal ones are taken once",
        "take the wrong file away",
        True,
    ),
    "no_common_period": Entry(
        "stops",
        "symbols that never have bars at the same time",
        "`symbols` that do; a portfolio of `universe: union` may do without",
        True,
    ),
    "spacing": Entry(
        "stops",
        "a long stretch of bars of another length, such as days before hours",
        "take the stretch out of the file",
        True,
    ),
    "spread_unit": Entry(
        "stops",
        "a spread that is no spread in price units: whole numbers beside finer prices, or above "
        "1 % of the price in the median",
        "`columns: {spread: spread_points}` or `{spread: spread_pips}`, or `spread_pips`",
        True,
    ),
    "point_size": Entry(
        "stops",
        "spreads in points of which the prices themselves have coarser ones",
        "`point`, by symbol",
        True,
    ),
    "local_time": Entry(
        "stops",
        "bars stand in the closed weekend, and under another zone none would; only a warning "
        "where stamps state their zone and are off by one hour in a single season",
        "`time_zone`; files that state a wrong zone must be written anew",
        True,
    ),
    "weekend_bars": Entry(
        "stops",
        "bars that move in the closed weekend, and no known zone explains them; only a warning "
        "where fewer than half of the weekends have such bars",
        "`time_zone`, or take the bars out of the file",
        True,
    ),
    "close_labelled": Entry(
        "stops",
        "the week's stamps begin one bar after the opening and end at the closing: they mark the "
        "bars' closes",
        "`time_is: close`",
        True,
    ),
    "open_labelled": Entry(
        "stops",
        "the config says `time_is: close`, and the week's stamps mark the bars' opens",
        "`time_is: open`",
        True,
    ),
    # What must be known before anything can be loaded.
    "file": Entry("stops", "a symbol with two files, or with none", "`files`, `symbols`"),
    "unreadable": Entry("stops", "a file that cannot be read", "`symbols` without it"),
    "columns": Entry("stops", "a price column or the time is missing", "`columns`"),
    "time_format": Entry("stops", "stamps in an unknown or ambiguous spelling", "`time_format`"),
    "several_symbols": Entry(
        "stops", "one table with several symbols, or without the one asked for", "`files`"
    ),
    "naive_time": Entry("stops", "stamps without a zone, all or some of them", "`time_zone`"),
    "no_spread": Entry("stops", "bid or ask prices without a spread", "`spread_pips`"),
    "timeframe": Entry("stops", "bars of different lengths", "`symbols` of one length"),
    "too_few": Entry("stops", "fewer than two usable bars", "`symbols` without it"),
    # Single bars that are impossible.
    "bad_time": Entry("stops", "unreadable stamps", _DROP),
    "nonexistent_time": Entry("stops", "an hour that the clocks skipped in spring", _DROP),
    "nan": Entry("stops", "no number where one must be", _DROP),
    "non_positive": Entry("stops", "a price that is not positive", _DROP),
    "high_below_low": Entry("stops", "high below low", _DROP),
    "outside_range": Entry("stops", "open or close outside low to high", _DROP),
    "negative_volume": Entry("stops", "negative volume", _DROP),
    "negative_spread": Entry("stops", "negative spread", _DROP),
    # What loading puts right.
    "unsorted": Entry("mends", "time runs backwards: bars are sorted", ""),
    "duplicate": Entry("mends", "two bars of one stamp: the last of the file stays", ""),
    "weekend_flat": Entry("mends", "flat candles in the closed weekend are dropped", ""),
    # What loading keeps.
    "broker_time": Entry(
        "warns",
        "MetaTrader's epochs count the broker's clock, and too few weekends show which",
        "`time_zone`",
    ),
    "bid_only": Entry("warns", "bid prices taken as mid", "`price_side: bid`, `spread_pips`"),
    "ask_only": Entry("warns", "ask prices taken as mid", "`price_side: ask`, `spread_pips`"),
    "gap": Entry("warns", "bars missing while the market is open: nothing is filled", ""),
    "outage": Entry("warns", "a hole after bars without trading", ""),
    "zero_volume": Entry("warns", "bars without volume", ""),
    "flat": Entry("warns", "bars that do not move", ""),
    "stale": Entry("warns", "five bars or more with one price", ""),
    "large_move": Entry("warns", "a close more than 10 % from the one before", ""),
    "coarse_tick": Entry("warns", "a tick above 5 basis points of the price", "fill at next open"),
    "bounce": Entry("warns", "neighbouring returns undo each other", "fill at next open"),
    "wide_spread": Entry("warns", "some spreads above 50 pips", ""),
    "misaligned": Entry("warns", "stamps off the grid of the others", ""),
    "symbol_name": Entry("warns", "a name that is no pair of currencies", "`files`"),
    "calendar": Entry("warns", "bars per year differ from the calendar's", ""),
    "weekend": Entry("tells", "weekends, counted", ""),
    "holiday": Entry("tells", "Christmas and New Year", ""),
    "no_volume": Entry("tells", "there is no volume at all", ""),
    "unequal_ends": Entry("tells", "symbols begin or end at different times", ""),
}
ACCEPTABLE = tuple(name for name, entry in CATALOGUE.items() if entry.acceptable)
