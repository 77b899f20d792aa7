"""Feeds: where closed bars come from. `replay:DIR` and `tail:FILE`, told by one word.

Both read price files as training did, with the deployment's own `data` section: zone, units, side
and length are those that were frozen there. A bar is told once it has closed, open + length + grace
<= the feed's clock, and every look tells all bars of the past again, so that a revision is seen.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.core.errors import ConfigError
from slipstream.live.store import Moment, Shape, moments_of
from slipstream.market.bars import Bars, timeframe_name
from slipstream.market.config import DataConfig
from slipstream.market.finding import ACCEPTABLE
from slipstream.market.market import load_market

REPLAY, TAIL = "replay", "tail"
# What judges how a file is read: settled at the first look, whatever a growing file then shows.
_READINGS = tuple(one for one in ACCEPTABLE if one not in ("scale_jump", "overlap", "spacing"))


class Told(NamedTuple):
    """What a look at the feed gave.

    Attributes:
        moments: new ones, closed, oldest first.
        bars: of every symbol, the past too.
        clock: the feed's, UTC seconds.
    """

    moments: list[Moment]
    bars: Sequence[Bars]
    clock: float


class PriceFeed:
    """Price files that are replayed moment by moment, or watched while they grow.

    Args:
        word: ``replay:DIR`` or ``tail:FILE``; both may be a file or a folder.
        data: the config's `data` section, without the folder.
        shape: what must come of it.
        grace: seconds after a bar's end at which it counts as closed.
        known: its readings were judged before.

    Raises:
        ConfigError: no such feed.
    """

    def __init__(
        self, word: str, data: Mapping[str, Any], shape: Shape, grace: float, known: bool
    ) -> None:
        kind, colon, place = word.partition(":")
        if kind not in (REPLAY, TAIL) or not colon or not place:
            raise ConfigError(
                f"--feed {word!r} is no feed: write replay:DIR for a folder of prices that are "
                "told bar by bar, or tail:FILE for a file, or a folder of files, that grows."
            )
        self.replays, self.path = kind == REPLAY, Path(place).expanduser().absolute()
        self._data = {**data, "folder": str(self.path)}
        self._data["timeframe"] = timeframe_name(shape.bar_seconds)
        self._shape, self._grace, self._known = shape, grace, known
        self._seen: tuple[tuple[int, int], ...] = ()
        self._read: Sequence[Bars] = ()
        self._moments: list[Moment] = []
        self._times: list[int] = []
        self.name = word

    def look(self, after: int, begin: int | None = None) -> Told:
        """What closed after a moment; of a replay all up to `begin`, then one moment at a time."""
        now = time.time()
        marks = () if self.replays else self._marks()
        if not self._read or marks != self._seen:
            self._seen = marks
            self._read = self._bars()
            self._moments = moments_of(self._read, self._shape)
            self._times = [one.time for one in self._moments]
            if not self.replays and self._marks() != marks:  # written meanwhile: read again
                self._seen = ((0, 0),)
                return Told([], (), now)
        first = bisect_right(self._times, after)
        if self.replays:
            history = 0 if begin is None else bisect_right(self._times, begin)
            moments = self._moments[first : max(history, first + 1)]
            last = moments[-1].time if moments else after
            return Told(moments, self._read, last + self._shape.bar_seconds + self._grace)
        # What was written before a bar's end may be the bar as it stood then.
        written = max(mark[0] for mark in marks) / 1e9
        closed = int(min(now - self._grace, written)) - self._shape.bar_seconds
        return Told(self._moments[first : bisect_right(self._times, closed)], self._read, now)

    def _marks(self) -> tuple[tuple[int, int], ...]:
        """Time and size of every file: what tells that one has changed."""
        folder = self.path.is_dir()
        files = sorted(one for one in self.path.iterdir()) if folder else [self.path]
        marks = [os.stat(one) for one in files if one.is_file()]
        return tuple((mark.st_mtime_ns, mark.st_size) for mark in marks)

    def _bars(self) -> list[Bars]:
        found: list[Bars] = []
        accept = self._data.get("accept") or ()
        accept = tuple(dict.fromkeys((*accept, *_READINGS))) if self._known else accept
        for names in (self._shape.symbols, self._shape.converting):
            if names:
                section = {**self._data, "symbols": list(names), "accept": accept}
                found += load_market(DataConfig.model_validate(section)).bars
        self._known = True
        return found
