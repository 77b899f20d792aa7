"""What the market environments have in common: starts, the episode's score, arrays, names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.memory import LINE, zeros
from slipstream.core.random import integer
from slipstream.core.spec import MarketSpec

_NAME_LENGTH = 32


def begin_anywhere(s: Any, p: Any, d: Any) -> None:
    """Begins at a start drawn among the valid ones of the record's segments."""
    segment = p.first_segment
    start = integer(s, p.num_starts)
    for k in range(p.first_segment, p.first_segment + p.num_segments):
        segment = k
        starts = max(d.segments[k, 1] - d.segments[k, 0] - p.runway, 0)
        if start < starts:
            break
        start -= starts
    begin_at(s, p, d, segment, start)


def begin_at(s: Any, p: Any, d: Any, segment: int, start: int) -> None:
    """Begins `start` rows into a segment, with all equity in cash.

    The loop hands over a record of zeros, so only what starts otherwise is set.
    """
    s.segment = segment
    s.bar = d.segments[segment, 0] + start
    s.last = d.segments[segment, 1] - 1
    s.cash = p.initial_equity
    s.equity = p.initial_equity
    s.peak = p.initial_equity


def keep_score(s: Any, before: float, equity: float) -> None:
    """Running sums of the episode; simple returns per bar.

    Args:
        before, equity: account currency, before and after the step.
    """
    s.steps += 1
    if equity > s.peak:
        s.peak = equity
        s.drawdown = 0.0
    else:
        s.drawdown = 1.0 - equity / s.peak
        s.max_drawdown = max(s.max_drawdown, s.drawdown)
    if equity != before and before > 0.0:
        ret = equity / before - 1.0
        s.return_sum += ret
        s.return_square_sum += ret * ret


def conclude_score(s: Any, p: Any) -> float:
    """Sets the figures of the whole episode but its Sharpe ratio.

    Returns:
        Variance of its returns per bar with ddof 0; 0 where it is no more than rounding.
    """
    s.total_return = s.equity / p.initial_equity - 1.0
    share = 1.0 / float(s.steps)
    s.mean_exposure = s.exposure_sum * share
    mean = s.return_sum * share
    variance = s.return_square_sum * share - mean * mean
    # What is left of the mean square after cancellation must exceed its rounding error.
    return variance if variance > 1e-12 * s.return_square_sum * share else 0.0


def floored_ratio(after: float, before: float, start: float) -> float:
    """Growth of equity, each value at least a millionth of the start: it may end negative."""
    floor = 1e-6 * start
    return max(after, floor) / max(before, floor)


def log_growth(after: float, before: float, start: float) -> float:
    """Logarithm of `floored_ratio`; exactly 0 where nothing moved."""
    ratio = floored_ratio(after, before, start)
    return math.log(ratio) if ratio != 1.0 else 0.0


def market_spec(
    p: Any, d: Any, symbols: tuple[str, ...], cost_fields: tuple[str, ...]
) -> MarketSpec:
    """What reports and annualisation need, from the record's fields of those names."""
    return MarketSpec(
        symbols=symbols,
        account_currency=name_of(d.currency),
        initial_equity=p.initial_equity,
        bar_seconds=p.bar_seconds,
        bars_per_year=p.bars_per_year,
        days_per_year=p.days_per_year,
        day_roll="17:00 America/New_York" if p.rolls_in_new_york else "00:00 UTC",
        cost_fields=cost_fields,
    )


def codes_of(name: str) -> NDArray[np.int64]:
    """A name as character codes: kernels hold numbers only."""
    codes = np.zeros(_NAME_LENGTH, dtype=np.int64)
    codes[: len(name)] = [ord(letter) for letter in name[:_NAME_LENGTH]]
    return codes


def name_of(codes: Any) -> str:
    """The text of character codes."""
    return "".join(chr(code) for code in codes if code)


def names_of(d: Any) -> tuple[str, ...]:
    """The text of all names in `d.symbols`."""
    return tuple(name_of(codes) for codes in d.symbols)


def cache_lines(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """All parts in one table that starts on a cache line, read-only use.

    Rows that nearly fill their cache lines are widened to whole ones, so that reading one row
    touches as few as possible; the columns added are zero and stay unused.
    """
    line = LINE // parts[0].itemsize
    rows, columns = sum(len(part) for part in parts), parts[0].shape[1]
    whole = -(-columns // line) * line
    wide = whole if 3 * whole <= 4 * columns else columns
    table = zeros((rows, wide), parts[0].dtype)
    np.concatenate(parts, out=table[:, :columns])
    return table
