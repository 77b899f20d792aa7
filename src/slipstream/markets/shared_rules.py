"""What the market environments have in common: records, starts, score, arrays, names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipstream.core.config import Config
from slipstream.core.random import integer
from slipstream.core.timeline import EVERYTHING, FOLD, NEW_YORK_ROLL, train_split
from slipstream.jit.alignment import LINE, aligned_zeros
from slipstream.kernels.spec import MarketSpec
from slipstream.markets.data.calendar import Calendar

_NAME_LENGTH = 32
_INTEGER_LIMIT = 9007199254740992.0  # 2^53: from here on every float64 is a whole number

# Fields of STATE that the functions below read and write: every market's record has them.
EPISODE_FIELDS = [
    ("key", "u8"),
    ("counter", "u8"),
    ("bar", "i8"),  # row whose close marks equity
    ("last", "i8"),  # last row that the episode can reach
    ("segment", "i8"),
    ("steps", "i8"),
]
DRAWDOWN_FIELDS = [
    ("peak", "f8"),  # of equity, account currency
    ("drawdown", "f8"),  # fraction below the peak
    ("max_drawdown", "f8"),
    ("total_return", "f8"),
]
RETURN_FIELDS = [
    ("return_sum", "f8"),  # of simple returns per bar, with the sum of their squares
    ("return_square_sum", "f8"),
    ("sharpe", "f8"),  # per bar, not annualised
]

P = TypeVar("P", bound=NamedTuple)


def base_params(
    params: type[P],
    sections: Sequence[Config],
    bar_seconds: int,
    calendar: Calendar,
    **overrides: Any,
) -> P:
    """The Params that all records of a config have in common: the first segment and no starts.

    Args:
        params: the environment's Params; a field that a section has under the same name is taken
            as it is.
        sections: of the config.
        bar_seconds: length of a bar.
        days: the market's calendar.
        own: the fields that are not taken as they are.
    """
    values: dict[str, Any] = {
        name: getattr(section, name)
        for section in sections
        for name in set(type(section).model_fields).intersection(params._fields)
    }
    values |= {"first_segment": 0, "num_segments": 1, "num_starts": 1, "runway": 0, "scale": 0}
    values |= {"from_start": False, "sells_at_end": False}
    values |= {"cost_multiple": 1.0, "bar_seconds": bar_seconds}
    values |= {"bars_per_year": calendar.bars_per_year, "days_per_year": calendar.days_per_year}
    values |= {"rolls_in_new_york": calendar.day_roll == NEW_YORK_ROLL} | overrides
    return params._make(values[name] for name in params._fields)


def is_training_split(split: str) -> bool:
    """Whether a split is trained on: `train` of one window, or a fold's, such as `fold3/train`."""
    return split == "train" or split.endswith("/train")


def continuous_passes(blank: P, rows: Sequence[int]) -> tuple[P, ...]:
    """Records of one continuous pass for each of the given rows of `segments`."""
    overrides = {"from_start": True, "sells_at_end": True}
    return tuple(blank._replace(first_segment=k, **overrides) for k in rows)


def with_first_fold(records: dict[str, tuple[P, ...]]) -> dict[str, tuple[P, ...]]:
    """Records by split; of folds the first one's are those to train on unless others are named."""
    first = train_split(f"{FOLD}0")
    return {"train": records[first], **records} if first in records else records


def scale_index(split: str, scales: int) -> int:
    """The folds' scales come first, then the development range's, last everything's."""
    name = split.partition("/")[0]
    if scales == 1:
        return 0
    if name.startswith(FOLD):
        return int(name.removeprefix(FOLD))
    return scales - 1 if name == EVERYTHING else scales - 2


class Segment(NamedTuple):
    """Rows of the arrays that lie in one piece.

    Attributes:
        rows: half-open range.
        scale: of the features that its policy is fed with.
        training: whether the scale is measured on it.
        symbol: whose rows they are, of symbols that lie end to end.
    """

    rows: tuple[int, int]
    scale: int
    is_training: bool
    symbol: int = 0


class Segments(list[Segment]):
    """What records are made of, in the order of `Data.segments`."""

    def add(self, rows: tuple[int, int], scale: int, *, training: bool, symbol: int = 0) -> int:
        """Appends a segment and returns its index."""
        self.append(Segment(rows, scale, training, symbol))
        return len(self) - 1

    def training_segments(self, scale: int) -> list[Segment]:
        """The segments that a scale is measured on."""
        return [segment for segment in self if segment.is_training and segment.scale == scale]

    @property
    def num_scales(self) -> int:
        """Number of scales."""
        return 1 + max(segment.scale for segment in self)


def start_episode(s: Any, p: Any, d: Any) -> None:
    """Begins at a start drawn among the valid ones of the record's segments.

    With `from_start` it is the first row of one of them.
    """
    segment = p.first_segment
    if p.from_start:
        if p.num_segments > 1:
            segment += integer(s, p.num_segments)
        start_episode_at(s, p, d, segment, 0)
        return
    start = integer(s, p.num_starts)
    for k in range(p.first_segment, p.first_segment + p.num_segments):
        segment = k
        starts = max(d.segments[k, 1] - d.segments[k, 0] - p.runway, 0)
        if start < starts:
            break
        start -= starts
    start_episode_at(s, p, d, segment, start)


def start_episode_at(s: Any, p: Any, d: Any, segment: int, start: int) -> None:
    """Begins `start` rows into a segment, with all equity in cash.

    The loop hands over a record of zeros, so only what starts otherwise is set.
    """
    s.segment = segment
    s.bar = d.segments[segment, 0] + start
    s.last = d.segments[segment, 1] - 1
    s.cash = p.initial_equity
    s.equity = p.initial_equity
    s.peak = p.initial_equity


def update_metrics(s: Any, before: float, equity: float) -> None:
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


def finalize_metrics(s: Any, p: Any) -> float:
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


def floor_to_step(quantity: float, step: float) -> float:
    """Largest multiple of `step` (0: any number) that is <= `quantity` (>= 0)."""
    if step <= 0.0:
        return quantity
    count = quantity / step
    if count >= _INTEGER_LIMIT:
        return quantity
    return float(math.floor(count)) * step


def clipped_growth(after: float, before: float, start: float) -> float:
    """Growth of equity, each value at least a millionth of the start: it may end negative."""
    floor = 1e-6 * start
    return max(after, floor) / max(before, floor)


def log_growth(after: float, before: float, start: float) -> float:
    """Logarithm of `floored_ratio`; exactly 0 where nothing moved."""
    ratio = clipped_growth(after, before, start)
    return math.log(ratio) if ratio != 1.0 else 0.0


def market_spec(
    p: Any, d: Any, symbols: tuple[str, ...], cost_fields: tuple[str, ...]
) -> MarketSpec:
    """What reports and annualisation need, from the record's fields of those names."""
    return MarketSpec(
        symbols=symbols,
        account_currency=decode_name(d.currency),
        initial_equity=p.initial_equity,
        bar_seconds=p.bar_seconds,
        bars_per_year=p.bars_per_year,
        days_per_year=p.days_per_year,
        day_roll="17:00 America/New_York" if p.rolls_in_new_york else "00:00 UTC",
        cost_fields=cost_fields,
    )


def encode_name(name: str) -> NDArray[np.int64]:
    """A name as character codes: kernels hold numbers only."""
    codes = np.zeros(_NAME_LENGTH, dtype=np.int64)
    codes[: len(name)] = [ord(letter) for letter in name[:_NAME_LENGTH]]
    return codes


def decode_name(codes: Any) -> str:
    """The text of character codes."""
    return "".join(chr(code) for code in codes if code)


def decode_symbols(d: Any) -> tuple[str, ...]:
    """The text of all names in `d.symbols`."""
    return tuple(decode_name(codes) for codes in d.symbols)


def utc_text(second: Any) -> str:
    """UTC seconds as text: ``2017-01-02 03:04:05 UTC``."""
    return str(np.datetime64(int(second), "s")).replace("T", " ") + " UTC"


def stack_cache_aligned(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """All parts in one table that starts on a cache line, read-only use.

    Rows that nearly fill their cache lines are widened to whole ones, so that reading one row
    touches as few as possible; the columns added are zero and stay unused.
    """
    line = LINE // parts[0].itemsize
    rows, columns = sum(len(part) for part in parts), parts[0].shape[1]
    whole = -(-columns // line) * line
    width = whole if 3 * whole <= 4 * columns else columns
    table = aligned_zeros((rows, width), parts[0].dtype)
    np.concatenate(parts, out=table[:, :columns])
    return table
