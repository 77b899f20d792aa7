"""Splits of the time range into train, validation and test (docs/rules.md, section 9)."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
from pydantic import model_validator

from slipstream.core.bounds import Fraction, Share
from slipstream.core.config import Config
from slipstream.core.errors import DataError
from slipstream.market.market import Market

_LEAST = 2  # bars that at least one symbol must have in every split


class SplitConfig(Config):
    """Fractions of the time range, oldest first. They sum to 1; validation and test may be 0."""

    train: Share = 0.6
    validation: Fraction = 0.2
    test: Fraction = 0.2

    @model_validator(mode="after")
    def _sums_to_one(self) -> SplitConfig:
        total = self.train + self.validation + self.test
        if abs(total - 1.0) > 1e-9:
            raise ValueError(
                f"train + validation + test must be 1, they sum to {total:g} "
                f"({self.train:g} + {self.validation:g} + {self.test:g})"
            )
        return self


def split_times(
    market: Market, split: SplitConfig, embargo_bars: int, remembers: str = ""
) -> dict[str, tuple[int, int]]:
    """Half-open UTC second ranges of the splits, the same for all symbols.

    Boundaries are moments of the whole market's time range, so one symbol's training never overlaps
    another's test. After a boundary, `embargo_bars` bars of every symbol are left out.

    Args:
        market: the market to split.
        split: the fractions; a split of fraction 0 is absent from the result.
        embargo_bars: bars between two splits: lookback plus the features' warm-up.
        remembers: what makes the embargo as long as it is, for messages.

    Raises:
        DataError: when a split is left with too few bars.
    """
    start = min(int(bars.time[0]) for bars in market.bars)
    stop = max(int(bars.time[-1]) for bars in market.bars) + market.bar_seconds
    wanted = {"train": split.train, "validation": split.validation, "test": split.test}
    wanted = {name: fraction for name, fraction in wanted.items() if fraction > 0.0}
    edges = start + np.rint(np.cumsum([0.0, *wanted.values()]) * (stop - start)).astype(np.int64)
    times: dict[str, tuple[int, int]] = {}
    for index, name in enumerate(wanted):
        first, last = int(edges[index]), int(edges[index + 1])
        if index > 0:
            first = _after_embargo(market, first, embargo_bars)
        times[name] = (first, last)
        most = max(_count(bars.time, first, last) for bars in market.bars)
        if most < _LEAST:
            own = max(_count(bars.time, int(edges[index]), last) for bars in market.bars)
            raise DataError(
                f"Split `{name}` ({_date(int(edges[index]))} to {_date(last)}) must hold at "
                f"least {_LEAST} bars of a symbol after an embargo of {embargo_bars:,} bars; "
                f"all its bars are {own:,}: give it a larger share, load more data, or shorten the "
                f"lookback and the features' warm-up{remembers and f' ({remembers})'}."
            )
    return times


def _after_embargo(market: Market, boundary: int, embargo_bars: int) -> int:
    """The first moment that lies `embargo_bars` bars of every symbol after `boundary`."""
    moment = boundary
    for bars in market.bars:
        row = int(np.searchsorted(bars.time, boundary))
        if row == 0 or row == len(bars.time):
            continue  # this symbol starts later or has ended: nothing of it lies on both sides
        row += embargo_bars
        beyond = row >= len(bars.time)
        moment = max(moment, int(bars.time[-1]) + 1 if beyond else int(bars.time[row]))
    return moment


def _count(time: np.ndarray, first: int, last: int) -> int:
    low, high = np.searchsorted(time, [first, last])
    return max(int(high - low), 0)


def _date(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d")
