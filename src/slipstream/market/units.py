"""Units: prices in points, pips or cents, jumps of scale, bars of different lengths."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from slipstream.market import symbols, timeframe
from slipstream.market.bars import FloatArray, IntArray
from slipstream.market.config import DataConfig
from slipstream.market.finding import ALL, Finding, first_times, plural, stamp
from slipstream.market.remedy import Remedy
from slipstream.market.table import RawTable

_JUMP_TOLERANCE = 0.15  # in log10: ratios within 10**(1 +- 0.15) of a power of ten
# How far beyond the range of three decades a price may lie. A wrong unit is off by ten or more;
# the majors' ranges are less than a factor of 2.5 wide, so that nothing passes in between.
_BEYOND = 2.0
_NOISE = 1e-7  # relative: 103428.00000000001 and float32 points are whole numbers
_CHECKED = 5000  # rows that tell how fine prices are
_MOST_DIGITS = 9


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
    return [
        Finding(
            table.symbol,
            "integer_prices" if whole else "units",
            "error",
            len(close),
            f"prices near {median:g} where {_usual(low, high)} is usual"
            + (", all of them whole numbers: these are points" if whole else ": another unit")
            + ", and pips and costs would be off by as much",
            "loading refuses",
            remedies=_scales(table, median, usual, config),
        )
    ]


def _usual(low: float, high: float) -> str:
    return f"{low:.3g} to {high:.3g}"


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
    if not jump.any():
        return []
    times = first_times(time, jump)
    ratio = 10.0 ** float(step[np.flatnonzero(jump)[0] - 1])
    return [
        Finding(
            symbol,
            "scale_jump",
            "error",
            int(jump.sum()),
            f"the close jumps by a power of ten {plural(int(jump.sum()), 'time')}, first "
            f"x{ratio:.4g} at {stamp(times[0])}: the unit of the prices changes inside the file",
            "loading refuses",
            times,
        )
    ]


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


def agreed_length(
    lengths: dict[str, int], wanted: str | None, bars: Mapping[str, int]
) -> Finding | None:
    """A finding when symbols disagree about the bar length, or with the config's `timeframe`.

    The remedy is the length of most symbols; of as many, of most bars.
    """
    names = {symbol: timeframe.name(length) for symbol, length in lengths.items() if length > 0}
    if wanted is not None:
        expected = timeframe.seconds(wanted)
        wrong = [symbol for symbol in names if lengths[symbol] != expected]
        if wrong:
            right = [symbol for symbol in names if lengths[symbol] == expected]
            alike = len(set(names.values())) == 1
            remedy: Remedy = {"timeframe": names[wrong[0]]} if alike else {"symbols": right}
            return Finding(
                wrong[0],
                "timeframe",
                "error",
                len(wrong),
                f"bars of {names[wrong[0]]} where `timeframe: {wanted}` asks for "
                f"{timeframe.name(expected)}",
                "loading refuses: bars are never resampled",
                remedies=(remedy,) if alike or right else (),
            )
    if len(set(names.values())) > 1:
        listed = ", ".join(f"{symbol} {name}" for symbol, name in names.items())
        lists = [[s for s in names if names[s] == one] for one in dict.fromkeys(names.values())]
        lists.sort(key=lambda some: (len(some), sum(bars[s] for s in some)), reverse=True)
        return Finding(
            ALL,
            "timeframe",
            "error",
            len(names),
            f"bars of different lengths ({listed})",
            "loading refuses: name symbols of one length",
            remedies=tuple({"symbols": one} for one in lists),
        )
    return None
