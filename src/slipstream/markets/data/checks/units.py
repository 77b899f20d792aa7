"""Units: prices in points, pips or cents, jumps of scale, spreads in another unit."""

from __future__ import annotations

import numpy as np

from slipstream.core.text import plural, stamp
from slipstream.markets.data import symbols
from slipstream.markets.data.bars import FloatArray, IntArray
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.finding import Finding, Remedy, first_times
from slipstream.markets.data.reading.dialect import rename
from slipstream.markets.data.reading.table import RawTable, Spread

_JUMP_TOLERANCE = 0.15  # in log10: ratios within 10**(1 +- 0.15) of a power of ten
# How far beyond the range of three decades a price may lie. A wrong unit is off by ten or more;
# the majors' ranges are less than a factor of 2.5 wide, so that nothing passes in between.
_BEYOND = 2.0
_NOISE = 1e-7  # relative: 103428.00000000001 and float32 points are whole numbers
_CHECKED = 5000  # rows that tell how fine prices are
_MOST_DIGITS = 9
# Of the price, in the median over bars. Retail spreads of exotic pairs stay below 0.5 %.
_NONSENSE = 0.01
# Whole numbers beside finer prices are points above this share; 5 rupiah of 16,000 are not.
_WHOLE = 5e-4
# Whole numbers from here on are points, not pips: nobody deals at four pips all day.
_POINTS = 4.0
_NOTHING = 1e-7  # of the price: a hundredth of a pip of EURUSD
_FRACTION = 0.1  # of a point, less than which spreads in points cannot be in the median
_FEWEST = 100  # bars that tell the last digit of a quote


def unit_findings(table: RawTable, close: FloatArray, config: DataConfig) -> list[Finding]:
    """Prices beyond any that the pair has had: they are in another unit.

    Args:
        table: the file.
        close: mid closes of its usable bars, float64 [n].
        config: for the scale that the remedy replaces.
    """
    usual = symbols.usual_range(table.symbol)
    if usual is None or len(close) == 0 or config.market == "24/7":
        return []
    low, high = usual
    median = float(np.median(close))
    if low / _BEYOND <= median <= high * _BEYOND:
        return []
    whole = bool(whole_numbers(table.quoted).all())
    message = (
        f"prices near {median:g} where {low:.3g} to {high:.3g} is usual"
        + (", all of them whole numbers: these are points" if whole else ": another unit")
        + ", and pips and costs would be off by as much"
    )
    kind, ways = "integer_prices" if whole else "units", _scales(table, median, usual, config)
    return [Finding.of(table.symbol, kind, message, len(close), remedies=ways)]


def _scales(
    table: RawTable, median: float, usual: tuple[float, float], config: DataConfig
) -> tuple[Remedy, ...]:
    """The power of ten that brings prices into their range; or the pair the other way round."""
    low, high = usual
    centre = 0.5 * (np.log10(low) + np.log10(high))
    power = round(centre - np.log10(median))
    pair = symbols.pair_in(table.symbol)
    if pair is not None and low <= 1.0 / median <= high and not low <= median * 10.0**power <= high:
        turned = pair.quote + pair.base
        return ({"files": {turned: table.path.name}},)
    if not low / _BEYOND <= median * 10.0**power <= high * _BEYOND:
        return ()
    scale = float(f"{config.scale_of(table.symbol) * 10.0**power:.12g}")
    return ({"price_scale": {table.symbol: scale}},)


def jump_findings(symbol: str, close: FloatArray, time: IntArray) -> list[Finding]:
    """Closes that jump by a power of ten."""
    if len(close) < 2:
        return []
    step = np.log10(close[1:] / close[:-1])
    jump = np.append(False, (np.abs(step) > 0.7) & (np.abs(step - np.rint(step)) < _JUMP_TOLERANCE))
    count, times = int(jump.sum()), first_times(time, jump)
    if not count:
        return []
    ratio = 10.0 ** float(step[np.flatnonzero(jump)[0] - 1])
    message = (
        f"the close jumps by a power of ten {plural(count, 'time')}, first x{ratio:.4g} at "
        f"{stamp(times[0])}: the unit of the prices changes inside the file"
    )
    return [Finding.of(symbol, "scale_jump", message, count, times=times)]


def whole_numbers(values: FloatArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which values are whole but for the noise of floats, bool [n]."""
    return np.abs(values - np.rint(values)) <= _NOISE * np.maximum(np.abs(values), 1.0)


def resolution(prices: FloatArray) -> float:
    """The power of ten that all prices are multiples of, price units: 1.10342 -> 0.00001.

    1e-9 where they are finer than that, as computed prices are.
    """
    some = prices[:: max(len(prices) // _CHECKED, 1)]
    some = some[np.isfinite(some)]
    for digits in range(_MOST_DIGITS):
        scaled = some * 10.0**digits
        if (np.abs(scaled - np.rint(scaled)) <= 1e-9 * np.abs(scaled) + 1e-6).all():
            return float(10.0**-digits)
    return float(10.0**-_MOST_DIGITS)


def spread_findings(table: RawTable, config: DataConfig) -> list[Finding]:
    """Spread columns that cannot be in the unit that they are read in."""
    spread = table.spread
    if spread is None:
        return []
    share = _share(spread.width, table.columns["close"])
    if spread.column is None:
        if share <= _NONSENSE:
            return []
        message = f"`spread_pips: {config.spread_pips:g}` is {100.0 * share:.3g} % of the price"
        action = "loading refuses: a pip is 0.01 where the quote is JPY, else 0.0001"
        return [Finding.of(table.symbol, "spread_unit", message, len(table), action)]
    if spread.meaning == "spread_points":
        found = _coarser_point(table, spread, config)
        if found is not None:
            return [found]
    column = spread.column[np.isfinite(spread.column)]
    typical = _median(column[column > 0.0])
    whole = bool(len(column) > 0 and whole_numbers(column).all())
    finer = resolution(table.quoted) < 1.0
    if spread.meaning == "spread" and whole and finer and share > _WHOLE:
        what = f"whole numbers (median {typical:g}) beside finer prices: these are points"
    elif spread.meaning == "spread_points" and 0.0 < typical < _FRACTION:
        what = f"{typical:g} in the median: no broker quotes a fraction of its last digit"
    elif share > _NONSENSE:
        what = f"{100.0 * share:.3g} % of the price in the median ({typical:g})"
    else:
        return []
    meant = "price units" if spread.meaning == "spread" else spread.meaning.removeprefix("spread_")
    message = f"the column of spreads, read as {meant}, holds {what}"
    ways = _readings(table, spread, config)
    return [Finding.of(table.symbol, "spread_unit", message, len(table), remedies=ways)]


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
    message = (
        f"spreads are in points of {given:g} (median {typical:g} points), and the prices' own last "
        f"digit is {own:g}"
    )
    ways = ({"point": {table.symbol: own}},)
    return Finding.of(table.symbol, "point_size", message, len(table), remedies=ways)
