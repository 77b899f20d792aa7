"""Timelines: time zones with daylight saving, trading days, fold plans."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from slipstream.core.bounds import Count
from slipstream.core.config import Config
from slipstream.core.errors import ConfigError

DayRoll = Literal["17:00 America/New_York", "00:00 UTC"]
NEW_YORK_ROLL: DayRoll = "17:00 America/New_York"
UTC_ROLL: DayRoll = "00:00 UTC"

DAY = 86400  # seconds
NEW_YORK = "America/New_York"
ROLL_SECOND = 17 * 3600  # of the day, in New York


@dataclass(frozen=True, eq=False)
class Clock:
    """UTC offsets of a time zone over a range of time.

    Attributes:
        transitions: UTC seconds at which the offset changes, int64 [k].
        offsets: seconds east of UTC before, between and after them, int64 [k + 1].
    """

    transitions: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def local(self, time: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert UTC seconds to wall-clock seconds (as if they were UTC)."""
        return time + self.offsets[np.searchsorted(self.transitions, time, side="right")]

    def utc(self, local: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Convert wall-clock seconds to UTC; return also which of them are skipped in spring.

        In autumn one hour occurs twice. The first row with such a label belongs to the first pass,
        a repeated label to the second.
        """
        before, after = self.offsets[:-1], self.offsets[1:]
        side = np.searchsorted(self.transitions + before, local, side="right")
        skipped = np.zeros(len(local), dtype=np.bool_)
        inside = side > 0
        skipped[inside] = (
            local[inside] < (self.transitions + np.maximum(before, after))[side[inside] - 1]
        )
        second = np.searchsorted(self.transitions + np.minimum(before, after), local, side="right")
        twice = second > side
        if twice.any():
            rows = np.flatnonzero(twice)
            _, first = np.unique(local[rows], return_index=True)
            repeated = np.ones(len(rows), dtype=np.bool_)
            repeated[first] = False
            side[rows[repeated]] = second[rows[repeated]]
        return local - self.offsets[side], skipped


def day_number(time: NDArray[np.int64], roll: DayRoll = NEW_YORK_ROLL) -> NDArray[np.int64]:
    """Return the trading-day number of each bar, int64 [n].

    The number is that of the calendar date on which the trading day ends (days since 1970-01-01):
    with a roll at 17:00 New York, Sunday 17:00 already belongs to Monday.
    """
    if roll == UTC_ROLL:
        return time // DAY
    if roll == NEW_YORK_ROLL:
        return (local_time(time, NEW_YORK) + DAY - ROLL_SECOND) // DAY
    raise ConfigError(f"`day_roll` must be '{NEW_YORK_ROLL}' or '{UTC_ROLL}', got {roll!r}.")


def day_closes(day: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of the last bar of every trading day, int64 [days], from days of bars [n]."""
    return np.flatnonzero(np.diff(day, append=day[-1:] + 1))


def local_time(time: NDArray[np.int64], zone: str = NEW_YORK) -> NDArray[np.int64]:
    """Return wall-clock seconds in `zone`, as if they were UTC, int64 [n]."""
    return clock(zone, time).local(np.asarray(time, dtype=np.int64))


def clock(zone: str, time: NDArray[np.int64]) -> Clock:
    """Return the zone's clock over the range of `time` (seconds, UTC or local), plus two days."""
    if len(time) == 0:
        return _clock(zone, 0, 0)
    return _clock(zone, int(time.min()) // DAY - 2, int(time.max()) // DAY + 3)


def validate_zone(zone: str) -> str:
    """Return `zone`, or raise a ConfigError if it is not a time zone."""
    _split(zone)
    return zone


@lru_cache(maxsize=64)
def _clock(zone: str, first_day: int, last_day: int) -> Clock:
    info, shift = _split(zone)

    def offset(second: int) -> int:
        moment = datetime.fromtimestamp(second, UTC).astimezone(info)
        delta = moment.utcoffset()
        return (int(delta.total_seconds()) if delta is not None else 0) + shift

    transitions: list[int] = []
    low = first_day * DAY
    offsets = [offset(low)]
    for day in range(first_day + 1, last_day + 1):
        high = day * DAY
        local_offset = offset(high)
        if local_offset != offsets[-1]:
            left, right = low, high
            while right - left > 1:
                middle = (left + right) // 2
                left, right = (middle, right) if offset(middle) == offsets[-1] else (left, middle)
            transitions.append(right)
            offsets.append(local_offset)
        low = high
    return Clock(np.array(transitions, dtype=np.int64), np.array(offsets, dtype=np.int64))


@lru_cache(maxsize=64)
def _split(zone: str) -> tuple[ZoneInfo, int]:
    """Return a zone and an offset in seconds, for zones such as New York plus seven hours."""
    try:
        return ZoneInfo(zone), 0
    except (KeyError, ValueError, OSError):
        pass
    match = re.fullmatch(r"([A-Za-z_/]+)([+-])(\d{1,2})(?::(\d{2}))?", zone.strip())
    if match:
        base, sign, hours, minutes = match.groups()
        seconds = int(hours) * 3600 + int(minutes or 0) * 60
        try:
            return ZoneInfo(base), seconds if sign == "+" else -seconds
        except (KeyError, ValueError, OSError):
            pass
    raise ConfigError(
        f"`time_zone` must name a zone such as UTC, America/New_York, Etc/GMT+5 or "
        f"America/New_York+7 (a zone plus hours), got {zone!r}."
    )


# Parts of a study's timeline: the folds fold0, fold1, ... divide `development`, `holdout` follows
# it, `everything` is both. Splits are `PART/train` for training, `foldI/test` and `holdout` for
# tests.
FOLD, DEVELOPMENT, EVERYTHING, HOLDOUT = "fold", "development", "everything", "holdout"


def train_split(part: str) -> str:
    """Return the training split of a part: ``fold3/train``, ``development/train``."""
    return f"{part}/train"


def test_split(fold: str) -> str:
    """Return the test split of a fold: ``fold3/test``."""
    return f"{fold}/test"


class FoldPlan(Config):
    """Division of a timeline into folds.

    Attributes:
        method: `cpcv` tests every combination of `test_groups` groups and trains on the others;
            `kfold` tests each group once and trains on the others; `walk_forward` reserves one more
            group at the start for training only, tests each of the others once and trains on all
            data before it.
        groups: tested groups, of equal bar counts.
        test_groups: groups that a fold tests; 1 except for `cpcv`.
        holdout: fraction of the timeline, its last part, that no fold may use.
    """

    method: Literal["cpcv", "kfold", "walk_forward"] = "cpcv"
    groups: Annotated[int, Field(ge=2, le=64)] = 4
    test_groups: Count = 2
    holdout: Annotated[float, Field(gt=0.0, le=0.9)] = 0.2

    @model_validator(mode="before")
    @classmethod
    def _one_group_at_a_time(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("method", "cpcv") != "cpcv":
            return {"test_groups": 1, **values}
        return values

    @model_validator(mode="after")
    def _possible(self) -> FoldPlan:
        if self.method == "cpcv" and self.test_groups >= self.groups:
            raise ValueError(
                f"`test_groups` must be smaller than `groups` ({self.groups}), or nothing is left "
                f"to train on; it is {self.test_groups}"
            )
        if self.method != "cpcv" and self.test_groups != 1:
            raise ValueError(
                f"`test_groups` must be 1 with `method: {self.method}`, it is {self.test_groups}; "
                "`method: cpcv` tests several groups a fold"
            )
        return self
