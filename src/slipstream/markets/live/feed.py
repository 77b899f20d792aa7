"""Feeds: where closed bars come from. `replay:DIR`, `tail:FILE`, `ccxt:EXCHANGE`, by one word.

The first two read price files as training did, with the deployment's own `data` section: zone,
units, side and length are those that were frozen there. The third asks an exchange. A bar is told
once it has closed, open + length + grace <= the feed's clock, and every look tells bars of the past
again, so that a revision is seen.
"""

from __future__ import annotations

import os
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from slipstream.core.errors import ConfigError, DataError, SlipstreamError
from slipstream.core.safe_io import UnreadableError, read_bytes
from slipstream.core.timeline import validate_zone
from slipstream.markets.data.bars import Bars, timeframe_name
from slipstream.markets.data.data_issue import ACCEPTABLE
from slipstream.markets.data.symbols import pip_size
from slipstream.markets.live.bar_store import BarGroup, BarSchema, group_bars
from slipstream.markets.live.exchange import Exchange
from slipstream.training.runs.policies import DeployedPolicy

REPLAY, TAIL, CCXT = "replay", "tail", "ccxt"
_POLL_SECONDS = 1.0
_HEAD_LINES, _TAIL_LINES = (
    4,
    200,
)  # lines of a file that are read again with those that were appended
_MIN_REPEATED_BARS = 20  # bars that these lines must give again
_MAX_BYTES = 1 << 29  # of a file whose bytes are compared
_OVERLAP_BARS = 12  # bars before the last one that an exchange is asked for again
_LATE_SECONDS = 30.0  # that the bar of one symbol may come after those of the others
# What judges how a file is read: settled at the first look, whatever a growing file then shows.
_SETTLED_ISSUES = tuple(
    one for one in ACCEPTABLE if one not in ("scale_jump", "overlap", "spacing")
)


class FeedUpdate(NamedTuple):
    """What a look at the feed gave.

    Attributes:
        moments: new ones, closed, oldest first.
        bars: of every symbol, the past too.
        clock: the feed's, UTC seconds.
    """

    groups: list[BarGroup]
    bars: Sequence[Bars]
    clock: float


def parse_feed(feed: str) -> tuple[str, str]:
    """A feed's word in two: its kind, and where it is.

    Raises:
        ConfigError: no such feed.
    """
    kind, colon, place = feed.partition(":")
    if kind not in (REPLAY, TAIL, CCXT) or not colon or not place:
        raise ConfigError(
            f"--feed {feed!r} is no feed: write replay:DIR for a folder of prices that are "
            "told bar by bar, tail:FILE for a file, or a folder of files, that grows, or "
            "ccxt:EXCHANGE for the bars of an exchange."
        )
    return kind, place


class PriceFeed:
    """Price files that are replayed moment by moment, or watched while they grow.

    Args:
        word: ``replay:DIR`` or ``tail:FILE``; both may be a file or a folder.
        data: the config's `data` section, without the folder.
        shape: what must come of it.
        grace: seconds after a bar's end at which it counts as closed.
        known: its readings were judged before.
        history: bars that features need before the first decision.

    Raises:
        ConfigError: no such feed.
    """

    def __init__(
        self,
        feed: str,
        data: Mapping[str, Any],
        schema: BarSchema,
        grace: float,
        known: bool,
        history: int,
    ) -> None:
        kind, place = parse_feed(feed)
        self.is_replay, self.path = kind == REPLAY, Path(place).expanduser().absolute()
        self._data = {**data, "folder": str(self.path)}
        self._data["timeframe"] = timeframe_name(schema.bar_seconds)
        self._schema, self._grace, self._known, self._history = schema, grace, known, history
        self._last_file_stamps: tuple[tuple[int, int], ...] = ()
        self._last_contents: dict[Path, bytes] = {}  # of the files, as they were read last
        self._last_bars: Sequence[Bars] = ()
        self._groups: list[BarGroup] = []
        self._times: list[int] = []
        self._position = 0  # in a replay, of the next moment to tell

    def poll_interval(self) -> float:
        """Files are looked at every second."""
        return _POLL_SECONDS

    def poll(self, after: int, begin: int | None = None) -> FeedUpdate:
        """What closed after a moment; of a replay all up to `begin`, or up to where features are
        there, then one moment at a time.
        """
        now = time.time()
        file_stamps = () if self.is_replay else self._file_stamps()
        if not self._last_bars or file_stamps != self._last_file_stamps:
            self._last_file_stamps = file_stamps
            self._last_bars = self._read_appended(after) or self._read_bars()
            self._groups = group_bars(self._last_bars, self._schema)
            self._times = [one.time for one in self._groups]
            if (
                not self.is_replay and self._file_stamps() != file_stamps
            ):  # written meanwhile: read again
                self._last_file_stamps = ((0, 0),)
                return FeedUpdate([], (), now)
        first = bisect_right(self._times, after)
        if self.is_replay:
            first = max(
                first, self._position
            )  # on what was told, there may be nothing to decide yet
            ready = self._history if begin is None else bisect_right(self._times, begin)
            moments = self._groups[first : max(ready, first + 1)]
            self._position = first + len(moments)
            last = moments[-1].time if moments else after
            return FeedUpdate(
                moments, self._last_bars, last + self._schema.bar_seconds + self._grace
            )
        # What was written before a bar's end may be the bar as it stood then.
        written = max(mark[0] for mark in file_stamps) / 1e9
        closed = int(min(now - self._grace, written)) - self._schema.bar_seconds
        return FeedUpdate(
            self._groups[first : bisect_right(self._times, closed)], self._last_bars, now
        )

    def _files(self) -> list[Path]:
        files = sorted(self.path.iterdir()) if self.path.is_dir() else [self.path]
        return [one for one in files if one.is_file()]

    def _file_stamps(self) -> tuple[tuple[int, int], ...]:
        """Time and size of every file: what tells that one has changed."""
        file_stamps = map(os.stat, self._files())
        return tuple((mark.st_mtime_ns, mark.st_size) for mark in file_stamps)

    def _read_appended(self, after: int) -> Sequence[Bars]:
        """Return the bars of the last lines if the files have only grown, else nothing.

        All bytes are compared with those of the last look, except a last line, whose bar may have
        been open. The last lines are read as files of their own. The bars that the last look gave
        too must be equal.
        """
        before, self._last_contents = self._last_contents, {}
        if self.is_replay:
            return ()
        try:
            self._last_contents = {one: read_bytes(one, _MAX_BYTES) for one in self._files()}
            if before.keys() != self._last_contents.keys():
                return ()
            with tempfile.TemporaryDirectory() as folder:
                for path, text in self._last_contents.items():
                    part = _last_lines(before[path], text)
                    if not part:
                        return ()
                    (Path(folder) / path.name).write_bytes(part)
                place = folder if self.path.is_dir() else str(Path(folder) / self.path.name)
                found = self._schema.read(
                    {**self._data, "folder": place, "allow_issues": self._accepted_issues}
                )
        except (OSError, UnreadableError, SlipstreamError):
            return ()  # reading everything names what is wrong
        return found if all(map(partial(_is_continuation, after), self._last_bars, found)) else ()

    @property
    def _accepted_issues(self) -> tuple[str, ...]:
        accept = tuple(self._data.get("allow_issues") or ())
        return tuple(dict.fromkeys((*accept, *_SETTLED_ISSUES))) if self._known else accept

    def _read_bars(self) -> list[Bars]:
        try:
            found = self._schema.read({**self._data, "allow_issues": self._accepted_issues})
        except DataError as error:
            zone = ""
            if "`time_zone" in str(error):
                zone = " For a feed, give the zone as `--time-zone UTC`, or that of its files."
            raise DataError(
                f"--feed {self.path} must hold {', '.join(self._schema.all_symbols)} in files as "
                "those of "
                f"training were: name another one, or mend this. {error}{zone}"
            ) from None
        self._known = True
        return found


def _last_lines(before: bytes, now: bytes) -> bytes:
    """Return the first and last lines of a text that has only grown; nothing for another one."""
    end = before.rfind(b"\n", 0, max(len(before) - 1, 0)) + 1
    if not now.startswith(before[:end]):
        return b""
    head, tail = 0, end
    for _ in range(_HEAD_LINES):  # a header, and what may stand before it
        head = before.find(b"\n", head, end) + 1 or end
    for _ in range(_TAIL_LINES):
        tail = before.rfind(b"\n", 0, max(tail - 1, 0)) + 1
    return now[:head] + now[max(head, tail) :]


def _is_continuation(after: int, before: Bars, now: Bars) -> bool:
    """Return whether last lines have all bars after a moment, and repeat those before it.

    The last one of the bars before may have been open.
    """
    old = int(np.searchsorted(now.time, before.time[-1])) if len(before) else 0
    place = np.searchsorted(before.time, now.time[:old])
    return int(np.count_nonzero(now.time <= after)) >= _MIN_REPEATED_BARS and all(
        np.array_equal(theirs[place], now.columns()[name][:old], equal_nan=True)
        for name, theirs in before.columns().items()
    )


class ExchangeFeed:
    """Candles of an exchange, by its own clock; what was missed is fetched.

    Where the exchange's clock is ahead of this machine's, a bar counts as closed when both say so:
    of one that is still open an exchange tells what it has by then.

    Args:
        exchange: which is asked.
        data: the config's `data` section; `spread_pips` is the spread of these bars, for an
            exchange tells none.
        shape: what must come of it.
        grace: seconds after a bar's end at which it counts as closed.
        history: bars that features need before the first decision.

    Raises:
        ConfigError: features read columns that no exchange has.
    """

    is_replay = False

    def __init__(
        self,
        exchange: Exchange,
        data: Mapping[str, Any],
        schema: BarSchema,
        grace: float,
        history: int,
    ) -> None:
        if schema.extra:
            raise ConfigError(
                f"The policy reads the column {schema.extra[0]}, which an exchange's bars do not "
                "have: use tail:FILE, with files that have it."
            )
        self.exchange, self._schema, self._grace = exchange, schema, grace
        self._history = history + _OVERLAP_BARS
        pips = data.get("spread_pips") or 0.0
        self._spread = {name: float(pips) * pip_size(name) for name in schema.all_symbols}
        self._next_close, self._late_wait, self._clock = 0.0, _POLL_SECONDS, 0.0

    def poll_interval(self) -> float:
        """Until the next bar closes; where it should have, a second, then longer and longer."""
        wait = self._next_close - self._clock
        if wait > 0.0:
            self._late_wait = _POLL_SECONDS
            return wait
        self._late_wait = min(2.0 * self._late_wait, _LATE_SECONDS)
        return self._late_wait

    def poll(self, after: int, begin: int | None = None) -> FeedUpdate:
        """What closed after a moment; before the first decision with what features need."""
        size = self._schema.bar_seconds
        self._clock = clock = self.exchange.clock()
        closed = min(clock, time.time()) - self._grace - size
        last = int(closed) // size * size
        since = (after - _OVERLAP_BARS * size) if after >= 0 else last - self._history * size
        if begin is not None:
            since = min(since, begin - self._history * size) if after < 0 else since
        bars = [self._read_bars(name, since, last) for name in self._schema.all_symbols]
        moments = [one for one in group_bars(bars, self._schema) if one.time > after]
        whole = len(self._schema.all_symbols)
        while (
            moments and len(moments[-1].bars) < whole and moments[-1].time > closed - _LATE_SECONDS
        ):
            moments.pop()  # a symbol's bar is on its way
        seen = moments[-1].time if moments else after
        self._next_close = max(seen, last) + 2 * size + self._grace
        if seen < last:  # it should be there, and is not yet
            self._next_close = clock
        return FeedUpdate(moments, bars, clock)

    def _read_bars(self, name: str, since: int, last: int) -> Bars:
        rows = self.exchange.candles(name, self._schema.bar_seconds, since, last)
        table = np.array(rows, np.float64).reshape(len(rows), 6)
        bad = ~(np.isfinite(table).all(axis=1) & (table[:, 1:5] > 0.0).all(axis=1))
        if bad.any():
            raise DataError(
                f"{self.exchange.name} tells a bar of {name} without prices: "
                f"{rows[int(np.argmax(bad))]}. Nothing is decided on it; begin again later."
            )
        spread = np.full(len(rows), self._spread[name])
        opens, opened, high, low, close, volume = table.T
        return Bars(name, opens.astype(np.int64), opened, high, low, close, volume, spread)


BarFeed: TypeAlias = PriceFeed | ExchangeFeed
"""Where closed bars come from; one that `replays` ends, and its clock is that of its bars."""


def make_feed(
    feed: str,
    policy: DeployedPolicy,
    schema: BarSchema,
    grace: float,
    known: bool,
    notify: Callable[[str], None],
    time_zone: str | None = None,
) -> BarFeed:
    """The feed of a word, for a policy; an exchange is asked for what its features need, too.

    Args:
        word: as `--feed` takes it.
        policy: whose bars they are.
        shape, grace, known: see `PriceFeed`.
        say: told how an exchange answers.
        time_zone: zone of stamps that carry none, instead of the deployment's.

    Raises:
        ConfigError: no such feed or zone, or an exchange, whose stamps are in UTC.
    """
    kind, place = parse_feed(feed)
    data, needs = policy.metadata["feed"], policy.policy.training_context
    if time_zone is not None:
        if kind == CCXT:
            raise ConfigError(
                f"--time-zone {time_zone} is for files, and the bars of an exchange are in UTC: "
                "leave it out."
            )
        validate_zone(time_zone)
        data = {**data, "time_zone": time_zone}
    history = int(needs["warm_up_bars"]) + int(needs["lookback"])
    if kind != CCXT:
        return PriceFeed(feed, data, schema, grace, known, history)
    return ExchangeFeed(Exchange(place, notify), data, schema, grace, history + 2)
