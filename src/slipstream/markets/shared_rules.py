"""Code that the market environments share: params, episode starts, metrics, arrays and names."""

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
_INTEGER_LIMIT = 9007199254740992.0  # 2^53: every float64 from here on is an integer

# Fields of STATE that the functions below read and write. Every market environment has them.
EPISODE_FIELDS = [
    ("key", "u8"),
    ("counter", "u8"),
    ("bar", "i8"),  # row at whose close equity is marked
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
    ("return_sum", "f8"),  # sums of simple returns per bar and of their squares
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
    """Return the Params that all splits of a config share: the first segment and no starts.

    Args:
        params: the Params type of the environment. A field that a config section defines under the
            same name takes that value.
        sections: sections of the config.
        bar_seconds: length of a bar in seconds.
        calendar: trading calendar of the market.
        overrides: values of all other fields.
    """
    values: dict[str, Any] = {
        name: getattr(section, name)
        for section in sections
        for name in set(type(section).model_fields).intersection(params._fields)
    }
    values |= {
        "first_segment": 0,
        "num_segments": 1,
        "num_starts": 1,
        "min_remaining_bars": 0,
        "scaling": 0,
    }
    values |= {"from_start": False, "sells_at_end": False}
    values |= {"cost_multiple": 1.0, "bar_seconds": bar_seconds}
    values |= {"bars_per_year": calendar.bars_per_year, "days_per_year": calendar.days_per_year}
    values |= {"rolls_in_new_york": calendar.day_roll == NEW_YORK_ROLL} | overrides
    return params._make(values[name] for name in params._fields)


def is_training_split(split: str) -> bool:
    """Return True if a split is used for training: `train`, or a fold such as `fold3/train`."""
    return split == "train" or split.endswith("/train")


def continuous_passes(blank: P, rows: Sequence[int]) -> tuple[P, ...]:
    """Return one record per given row of `segments`, each a single continuous pass."""
    overrides = {"from_start": True, "sells_at_end": True}
    return tuple(blank._replace(first_segment=k, **overrides) for k in rows)


def with_first_fold(records: dict[str, tuple[P, ...]]) -> dict[str, tuple[P, ...]]:
    """Add a `train` split that is an alias of the first fold's training split."""
    first = train_split(f"{FOLD}0")
    return {"train": records[first], **records} if first in records else records


def scaling_index(split: str, num_scalings: int) -> int:
    """Return the row of `feature_mean` and `feature_std` that a split uses.

    The folds come first, then the development range, then the whole range.
    """
    name = split.partition("/")[0]
    if num_scalings == 1:
        return 0
    if name.startswith(FOLD):
        return int(name.removeprefix(FOLD))
    return num_scalings - 1 if name == EVERYTHING else num_scalings - 2


class Segment(NamedTuple):
    """Contiguous range of rows of the arrays.

    Attributes:
        rows: half-open range.
        scaling: index of the feature scaling that the policy uses there.
        is_training: True if the feature scaling is measured on this segment.
        symbol: index of the symbol that owns the rows, if symbols are stored one after another.
    """

    rows: tuple[int, int]
    scaling: int
    is_training: bool
    symbol: int = 0


class SegmentList(list[Segment]):
    """Segments of all splits, in the order of `Data.segments`."""

    def add(self, rows: tuple[int, int], scaling: int, *, training: bool, symbol: int = 0) -> int:
        """Append a segment and return its index."""
        self.append(Segment(rows, scaling, training, symbol))
        return len(self) - 1

    def training_segments(self, scaling: int) -> list[Segment]:
        """Return the segments on which a feature scaling is measured."""
        return [segment for segment in self if segment.is_training and segment.scaling == scaling]

    @property
    def num_scalings(self) -> int:
        """Number of feature scalings."""
        return 1 + max(segment.scaling for segment in self)


def start_episode(s: Any, p: Any, d: Any) -> None:
    """Start an episode at a random valid row of the record's segments.

    With `from_start`, start at the first row of a random segment.
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
        starts = max(d.segments[k, 1] - d.segments[k, 0] - p.min_remaining_bars, 0)
        if start < starts:
            break
        start -= starts
    start_episode_at(s, p, d, segment, start)


def start_episode_at(s: Any, p: Any, d: Any, segment: int, start: int) -> None:
    """Start an episode `start` rows into a segment, with all equity in cash.

    The loop passes a zeroed record, so only nonzero fields are set.
    """
    s.segment = segment
    s.bar = d.segments[segment, 0] + start
    s.last = d.segments[segment, 1] - 1
    s.cash = p.initial_equity
    s.equity = p.initial_equity
    s.peak = p.initial_equity


def update_metrics(s: Any, before: float, equity: float) -> None:
    """Update drawdown and the running sums of simple returns per bar.

    Args:
        before, equity: equity before and after the step, account currency.
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
    """Compute the metrics of the whole episode except its Sharpe ratio.

    Returns:
        Variance of the returns per bar (ddof 0), or 0 if it does not exceed rounding error.
    """
    s.total_return = s.equity / p.initial_equity - 1.0
    share = 1.0 / float(s.steps)
    s.mean_exposure = s.exposure_sum * share
    mean = s.return_sum * share
    variance = s.return_square_sum * share - mean * mean
    # The difference is significant only if it exceeds the rounding error of the mean square.
    return variance if variance > 1e-12 * s.return_square_sum * share else 0.0


def floor_to_step(quantity: float, step: float) -> float:
    """Return the largest multiple of `step` (0: any number) that is <= `quantity` (>= 0)."""
    if step <= 0.0:
        return quantity
    count = quantity / step
    if count >= _INTEGER_LIMIT:
        return quantity
    return float(math.floor(count)) * step


def clipped_growth(after: float, before: float, start: float) -> float:
    """Return the growth factor of equity.

    Both values are floored at a millionth of the starting equity, since equity can become negative.
    """
    floor = 1e-6 * start
    return max(after, floor) / max(before, floor)


def log_growth(after: float, before: float, start: float) -> float:
    """Return the logarithm of `clipped_growth`; exactly 0 if equity did not change."""
    ratio = clipped_growth(after, before, start)
    return math.log(ratio) if ratio != 1.0 else 0.0


def market_spec(
    p: Any, d: Any, symbols: tuple[str, ...], cost_fields: tuple[str, ...]
) -> MarketSpec:
    """Return the market metadata that reports and annualisation need.

    Args:
        p, d: params and data of the environment.
        symbols: names of the traded symbols.
        cost_fields: state fields that accumulate costs.
    """
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
    """Encode a name as character codes, since kernels hold numbers only."""
    codes = np.zeros(_NAME_LENGTH, dtype=np.int64)
    codes[: len(name)] = [ord(letter) for letter in name[:_NAME_LENGTH]]
    return codes


def decode_name(codes: Any) -> str:
    """Decode character codes to text."""
    return "".join(chr(code) for code in codes if code)


def decode_symbols(d: Any) -> tuple[str, ...]:
    """Decode all names in `d.symbols`."""
    return tuple(decode_name(codes) for codes in d.symbols)


def utc_text(second: Any) -> str:
    """Format UTC seconds, such as ``2017-01-02 03:04:05 UTC``."""
    return str(np.datetime64(int(second), "s")).replace("T", " ") + " UTC"


def stack_cache_aligned(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate tables into one that starts on a cache line, for read-only use.

    If a row nearly fills its cache lines, it is padded to whole ones, so that reading one row
    touches as few lines as possible. Padding columns are zero and unused.
    """
    line = LINE // parts[0].itemsize
    rows, columns = sum(len(part) for part in parts), parts[0].shape[1]
    whole = -(-columns // line) * line
    width = whole if 3 * whole <= 4 * columns else columns
    table = aligned_zeros((rows, width), parts[0].dtype)
    np.concatenate(parts, out=table[:, :columns])
    return table
