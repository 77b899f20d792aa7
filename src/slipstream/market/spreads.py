"""Spreads: which unit a file's spread column is in, and spreads that are too wide."""

from __future__ import annotations

import numpy as np

from slipstream.market import symbols
from slipstream.market.bars import Bars, FloatArray
from slipstream.market.config import DataConfig
from slipstream.market.dialect import rename
from slipstream.market.finding import Finding, first_times, plural, stamp
from slipstream.market.remedy import Remedy
from slipstream.market.table import RawTable, Spread
from slipstream.market.units import resolution, whole_numbers

_WIDE_PIPS, _WIDE_SHARE = 50.0, 1e-3
# Of the price, in the median over bars. Retail spreads of exotic pairs stay below 0.5 %.
_NONSENSE = 0.01
# Whole numbers beside finer prices are points above this share; 5 rupiah of 16,000 are not.
_WHOLE = 5e-4
# Whole numbers from here on are points, not pips: nobody deals at four pips all day.
_POINTS = 4.0
_NOTHING = 1e-7  # of the price: a hundredth of a pip of EURUSD
_FRACTION = 0.1  # of a point, less than which spreads in points cannot be in the median
_FEWEST = 100  # bars that tell the last digit of a quote


def spread_findings(table: RawTable, config: DataConfig) -> list[Finding]:
    """Spread columns that cannot be in the unit that they are read in."""
    spread = table.spread
    if spread is None:
        return []
    close = table.columns["close"]
    if spread.column is None:
        share = _share(spread.width, close)
        return (
            [_beyond(table, f"`spread_pips: {config.spread_pips:g}` is", share)]
            if (share > _NONSENSE)
            else []
        )
    if spread.meaning == "spread_points":
        found = _coarser_point(table, spread, config)
        if found is not None:
            return [found]
    share = _share(spread.width, close)
    column = spread.column[np.isfinite(spread.column)]
    typical = _median(column[column > 0.0])
    whole = bool(len(column) > 0 and whole_numbers(column).all())
    finer = resolution(table.quoted) < 1.0
    if spread.meaning == "spread" and whole and finer and share > _WHOLE:
        what = f"whole numbers (median {typical:g}) beside finer prices: these are points"
        remedies = _readings(table, spread, config)
    elif spread.meaning == "spread_points" and 0.0 < typical < _FRACTION:
        what = f"{typical:g} in the median: no broker quotes a fraction of its last digit"
        remedies = _readings(table, spread, config)
    elif share > _NONSENSE:
        what = f"{100.0 * share:.3g} % of the price in the median ({typical:g})"
        remedies = _readings(table, spread, config)
    else:
        return []
    return [
        Finding(
            table.symbol,
            "spread_unit",
            "error",
            len(table),
            f"the column of spreads, read as {_meant(spread)}, holds {what}",
            "loading refuses",
            remedies=remedies,
        )
    ]


def _meant(spread: Spread) -> str:
    return {"spread": "price units", "spread_points": "points", "spread_pips": "pips"}[
        spread.meaning
    ]


def _beyond(table: RawTable, what: str, share: float) -> Finding:
    return Finding(
        table.symbol,
        "spread_unit",
        "error",
        len(table),
        f"{what} {100.0 * share:.3g} % of the price",
        "loading refuses: a pip is 0.01 where the quote is JPY, else 0.0001",
    )


def _share(width: FloatArray, close: FloatArray) -> float:
    known = (width > 0.0) & (close > 0.0)
    return _median(width[known] / close[known])


def _median(values: FloatArray) -> float:
    return float(np.median(values)) if len(values) else 0.0


def _readings(table: RawTable, spread: Spread, config: DataConfig) -> tuple[Remedy, ...]:
    """Other units in which the column would be a spread: one where its numbers leave one."""
    assert spread.column is not None
    column = spread.column[np.isfinite(spread.column)]
    header, point = spread_header(table, config), _point(table, config)
    units = {
        "spread": config.scale_of(table.symbol),
        "spread_points": point,
        "spread_pips": symbols.pip(table.symbol),
    }
    del units[spread.meaning]
    shares = {m: _share(spread.column * u, table.columns["close"]) for m, u in units.items()}
    found = [meaning for meaning, share in shares.items() if _NOTHING < share <= _NONSENSE]
    if whole_numbers(column).all() and _median(column[column > 0.0]) >= _POINTS:
        found = [m for m in found if m == "spread_points"] or found
    elif whole_numbers(10.0 * column).all() and not whole_numbers(column).all():
        found = [m for m in found if m == "spread_pips"] or found
    remedies: list[Remedy] = []
    for meaning in found or ["unused_spread"]:
        remedy: dict[str, object] = {"columns": {header: meaning}}
        if meaning == "spread_points" and point != config.point_of(table.symbol):
            remedy["point"] = {table.symbol: point}
        remedies.append(remedy)
    return tuple(remedies)


def spread_header(table: RawTable, config: DataConfig) -> str:
    """The file's own name of its spread column."""
    assert table.spread is not None
    names = rename(table.dialect, config.columns, table.symbol)
    return next(theirs for theirs, ours in names.items() if ours == table.spread.meaning)


def _point(table: RawTable, config: DataConfig) -> float:
    """The unit of the prices' last digit, where that is coarser than the config's point."""
    given = config.point_of(table.symbol)
    if len(table) < _FEWEST:
        return given
    own = max(resolution(table.columns[name]) for name in ("open", "close"))
    return own if own > 1.5 * given else given


def _coarser_point(table: RawTable, spread: Spread, config: DataConfig) -> Finding | None:
    """A point is the last digit of the quotes; a smaller one would make every spread too small."""
    given, own = config.point_of(table.symbol), _point(table, config)
    if own == given:
        return None
    typical = _median(spread.column[spread.column > 0.0]) if spread.column is not None else 0.0
    return Finding(
        table.symbol,
        "point_size",
        "error",
        len(table),
        f"spreads are in points of {given:g} (median {typical:g} points), and the prices' own last "
        f"digit is {own:g}",
        "loading refuses",
        remedies=({"point": {table.symbol: own}},),
    )


def wide_findings(bars: Bars) -> list[Finding]:
    """Single bars of a pair with a spread above 50 pips."""
    # Fifty pips of an ounce of gold are half a cent: wide in pips and in the price, too.
    limit = np.maximum(_WIDE_PIPS * symbols.pip(bars.symbol), _WIDE_SHARE * bars.close)
    wide = bars.spread > limit
    if symbols.market_kind(bars.symbol) != "fx" or not wide.any():
        return []
    times = first_times(bars.time, wide)
    widest = float(bars.spread.max()) / symbols.pip(bars.symbol)
    return [
        Finding(
            bars.symbol,
            "wide_spread",
            "warning",
            int(wide.sum()),
            f"{plural(int(wide.sum()), 'bar')} with a spread above 50 pips, the widest "
            f"{widest:.0f} pips, first {stamp(times[0])} UTC",
            "loading keeps them",
            times,
        )
    ]
