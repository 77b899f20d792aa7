"""Quality: odd prices and volumes that loading keeps."""

from __future__ import annotations

import numpy as np

from slipstream.market import symbols
from slipstream.market.bars import Bars, BoolArray, FloatArray, IntArray, timeframe_name
from slipstream.market.calendar import calendar, calendar_warning
from slipstream.market.checks.holes import find_holes, silent
from slipstream.market.finding import Finding, Severity, first_times, pasted, plural, stamp
from slipstream.market.symbols import MarketKind

_STRETCH = 60  # steps of another length that are no accident
_STALE_RUN = 5  # bars with one and the same price
_LARGE_MOVE = 0.10
_COARSE_TICK = 5e-4
_BOUNCE = -0.02
_NOISE = 3.0  # deviations, 1 / sqrt(n) each, that chance may show
_WIDE_PIPS, _WIDE_SHARE = 50.0, 1e-3


def quality_findings(
    bars: Bars, bar_seconds: int, kind: MarketKind, ignore: BoolArray, file: str
) -> list[Finding]:
    """Everything about one symbol's numbers that its user should know.

    Args:
        bars: the cleaned bars.
        bar_seconds: length of a bar.
        kind: trading hours.
        ignore: bars already reported as part of an outage, bool [n].
        file: name of its file.
    """
    findings = _silence(bars)
    findings += _stale(bars, ignore)
    findings += _moves(bars, bar_seconds)
    findings += _bounce(bars)
    findings += wide_findings(bars)
    findings += _alignment(bars, bar_seconds)
    findings += _spacing(bars, bar_seconds)
    findings += _name(bars.symbol, kind, file)
    warning = calendar_warning(bars.symbol, bars.time, bar_seconds, calendar(kind, bar_seconds))
    if warning is not None:
        message = warning.removeprefix(f"{bars.symbol} ").rstrip(".")
        findings.append(
            Finding(
                bars.symbol, "calendar", "warning", 1, message, "loading takes the bars as they are"
            )
        )
    return findings


def _name(symbol: str, kind: MarketKind, file: str) -> list[Finding]:
    if symbols.parse(symbol) is not None:
        return []
    guess = symbols.find_pair(symbol)
    named = pasted({"files": {guess: file}})
    advice = f", though it contains {guess}: {named} names it" if guess else ""
    severity: Severity = "warning" if guess or kind == "fx" else "info"
    return [
        Finding(
            symbol,
            "symbol_name",
            severity,
            1,
            f"the name does not parse into two currencies{advice}",
            f"loading takes it as a {kind} market; a forex account cannot convert its profit",
        )
    ]


def outage_bars(bars: Bars, bar_seconds: int, kind: MarketKind) -> BoolArray:
    """Silent bars that lead into a hole, bool [n]."""
    holes = find_holes(bars.time, bar_seconds, kind)
    quiet = silent(bars)
    run_id = _runs(quiet)
    return quiet & np.isin(run_id, run_id[holes.row[quiet[holes.row]]])


def _runs(mask: BoolArray) -> IntArray:
    """A number for each stretch of equal values, int64 [n]."""
    return np.cumsum(np.append(True, mask[1:] != mask[:-1]))


def _silence(bars: Bars) -> list[Finding]:
    findings = []
    has_volume = bool((bars.volume > 0.0).any())
    empty = bars.volume == 0.0
    if not has_volume:
        findings.append(
            Finding(
                bars.symbol,
                "no_volume",
                "info",
                len(bars),
                "there is no volume",
                "loading sets it to 0; leave volume features out",
            )
        )
    elif empty.any():
        share = float(empty.mean())
        findings.append(
            _share(
                bars,
                "zero_volume",
                empty,
                share,
                "zero-volume bar",
                "warning" if share >= 1e-3 else "info",
            )
        )
    flat = bars.high == bars.low
    if flat.any():
        share = float(flat.mean())
        findings.append(
            _share(bars, "flat", flat, share, "flat bar", "warning" if share >= 0.01 else "info")
        )
    return findings


def _share(
    bars: Bars, kind: str, mask: BoolArray, share: float, noun: str, severity: Severity
) -> Finding:
    times = first_times(bars.time, mask)
    count = int(mask.sum())
    return Finding(
        bars.symbol,
        kind,
        severity,
        count,
        f"{plural(count, noun)} ({100 * share:.2g} %), first {stamp(times[0])} UTC",
        "loading keeps them",
        times,
    )


def _stale(bars: Bars, ignore: BoolArray) -> list[Finding]:
    """Runs of bars that repeat one price exactly."""
    same = (bars.high == bars.low) & ~ignore
    same[1:] &= bars.close[1:] == bars.close[:-1]
    run = _runs(same)
    lengths = np.bincount(run)[run]
    stale = same & (lengths >= _STALE_RUN)
    if not stale.any():
        return []
    times = first_times(bars.time, stale & np.append(True, run[1:] != run[:-1]))
    longest = int(lengths[stale].max())
    runs = len(np.unique(run[stale]))
    return [
        Finding(
            bars.symbol,
            "stale",
            "warning",
            int(stale.sum()),
            f"{plural(int(stale.sum()), 'stale bar')} repeating the price before them, in "
            f"{plural(runs, 'run')} of up to {longest}, first {stamp(times[0])} UTC",
            "loading keeps them",
            times,
        )
    ]


def _moves(bars: Bars, bar_seconds: int) -> list[Finding]:
    limit = _LARGE_MOVE * max(1.0, (bar_seconds / 3600.0) ** 0.5)
    move = np.append(0.0, bars.close[1:] / bars.close[:-1] - 1.0)
    large = np.abs(move) > limit
    if not large.any():
        return []
    times = first_times(bars.time, large)
    largest = float(move[np.argmax(np.abs(move))])
    return [
        Finding(
            bars.symbol,
            "large_move",
            "warning",
            int(large.sum()),
            f"{plural(int(large.sum()), 'close')} more than {100 * limit:.0f} % away from the "
            f"close before, the largest {100 * largest:+.1f} %, first {stamp(times[0])} UTC",
            "loading keeps them",
            times,
        )
    ]


def _bounce(bars: Bars) -> list[Finding]:
    """Signs that a fill at the close that was just seen would earn the bid-ask bounce."""
    findings = []
    median = float(np.median(bars.close))
    tick = smallest_step(bars.close)
    if tick / median > _COARSE_TICK:
        findings.append(
            Finding(
                bars.symbol,
                "coarse_tick",
                "warning",
                1,
                f"the tick of {tick:g} is {1e4 * tick / median:.1f} bp of the price: fills at "
                "the same close would earn the bounce",
                "loading keeps the prices; fill at the next open",
            )
        )
    correlation = lag_one(np.diff(np.log(bars.close)))
    if correlation < min(_BOUNCE, -_NOISE / max(len(bars) - 1, 1) ** 0.5):
        findings.append(
            Finding(
                bars.symbol,
                "bounce",
                "warning",
                1,
                f"lag-1 autocorrelation of returns is {correlation:.3f}: fills at the same close "
                "would earn the bounce",
                "loading keeps the prices; fill at the next open",
            )
        )
    return findings


def smallest_step(close: FloatArray) -> float:
    """The smallest change between closes that is not rounding, price units; 0 if none."""
    steps = np.abs(np.diff(close))
    steps = steps[steps > 1e-8 * float(np.median(close))]
    return float(steps.min()) if len(steps) else 0.0


def lag_one(returns: FloatArray) -> float:
    """Lag-1 autocorrelation; 0 where it has no meaning."""
    if len(returns) < 100 or np.ptp(returns[1:]) == 0.0 or np.ptp(returns[:-1]) == 0.0:
        return 0.0
    return float(np.corrcoef(returns[1:], returns[:-1])[0, 1])


def _spacing(bars: Bars, bar_seconds: int) -> list[Finding]:
    """Long stretches in which no two bars are a bar apart, and most are one other length apart."""
    steps = np.diff(bars.time)
    other = steps != bar_seconds
    seams = np.flatnonzero(np.diff(other, prepend=~other[:1], append=~other[-1:]))
    findings = []
    for start, stop in zip(seams[:-1].tolist(), seams[1:].tolist(), strict=True):
        if not other[start] or stop - start < _STRETCH:
            continue
        sizes, counts = np.unique(steps[start:stop], return_counts=True)
        if 2 * counts.max() < stop - start:
            continue
        length = timeframe_name(int(sizes[np.argmax(counts)]))
        findings.append(
            Finding(
                bars.symbol,
                "spacing",
                "error",
                stop - start,
                f"{plural(stop - start, 'bar')} of {length} from {stamp(int(bars.time[start]))} to "
                f"{stamp(int(bars.time[stop]))} UTC among bars of {timeframe_name(bar_seconds)}",
                "loading refuses: take them out of the file",
                (int(bars.time[start]),),
            )
        )
    return findings


def _alignment(bars: Bars, bar_seconds: int) -> list[Finding]:
    """Stamps off the grid that most stamps share (on days and longer, off whole hours)."""
    grid = min(bar_seconds, 3600)
    phase = bars.time % grid
    phases, counts = np.unique(phase, return_counts=True)
    off = phase != phases[np.argmax(counts)]
    if not off.any():
        return []
    times = first_times(bars.time, off)
    return [
        Finding(
            bars.symbol,
            "misaligned",
            "warning",
            int(off.sum()),
            f"{plural(int(off.sum()), 'stamp')} off the {grid}-second grid of the others, first "
            f"{stamp(times[0])} UTC",
            "loading keeps them",
            times,
        )
    ]


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
