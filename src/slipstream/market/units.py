"""Units: prices in points, jumps of scale, symbols that disagree about the length of a bar."""

from __future__ import annotations

import numpy as np

from slipstream.market import symbols, timeframe
from slipstream.market.bars import FloatArray, IntArray
from slipstream.market.finding import ALL, Finding, first_times, plural, stamp

_JUMP_TOLERANCE = 0.15  # in log10: ratios within 10**(1 +- 0.15) of a power of ten


def unit_findings(symbol: str, close: FloatArray, time: IntArray) -> list[Finding]:
    """Prices in points, and jumps by a power of ten."""
    findings: list[Finding] = []
    if len(close) == 0:
        return findings
    typical = symbols.typical_price(symbol)
    median = float(np.median(close))
    power = 0 if typical is None else round(np.log10(median / typical))
    if power != 0 and abs(np.log10(median / (typical or 1.0))) > 0.7:
        integers = bool((close == np.rint(close)).all())
        scale = f"`price_scale: {10.0**-power:g}`"
        findings.append(
            Finding(
                symbol,
                "integer_prices" if integers else "units",
                "error" if integers else "warning",
                len(close),
                f"prices near {median:g} where about {typical:.3g} is usual"
                + (", all of them whole numbers: these are points" if integers else "")
                + f", so that pips and costs would be off by 1e{abs(power)}: set {scale} if so",
                "loading refuses" if integers else "loading takes them as they are",
            )
        )
    step = np.log10(close[1:] / close[:-1])
    jump = np.append(False, (np.abs(step) > 0.7) & (np.abs(step - np.rint(step)) < _JUMP_TOLERANCE))
    if jump.any():
        times = first_times(time, jump)
        ratio = 10.0 ** float(step[np.flatnonzero(jump)[0] - 1])
        findings.append(
            Finding(
                symbol,
                "scale_jump",
                "error",
                int(jump.sum()),
                f"the close jumps by a power of ten {plural(int(jump.sum()), 'time')}, first "
                f"x{ratio:.4g} at {stamp(times[0])}: the unit of the prices changes inside the "
                "file",
                "loading refuses",
                times,
            )
        )
    return findings


def agreed_length(lengths: dict[str, int], wanted: str | None) -> Finding | None:
    """A finding when symbols disagree about the bar length, or with the config's `timeframe`."""
    names = {symbol: timeframe.name(length) for symbol, length in lengths.items() if length > 0}
    if wanted is not None:
        expected = timeframe.seconds(wanted)
        wrong = [symbol for symbol in names if lengths[symbol] != expected]
        if wrong:
            return Finding(
                wrong[0],
                "timeframe",
                "error",
                len(wrong),
                f"bars of {names[wrong[0]]} where `timeframe: {wanted}` asks for "
                f"{timeframe.name(expected)}",
                "loading refuses: bars are never resampled",
            )
    if len(set(names.values())) > 1:
        listed = ", ".join(f"{symbol} {name}" for symbol, name in names.items())
        return Finding(
            ALL,
            "timeframe",
            "error",
            len(names),
            f"bars of different lengths ({listed})",
            "loading refuses: name symbols of one length in `symbols`",
        )
    return None
