"""Feeds: sources of closed bars, `replay:DIR`, `tail:FILE` or `ccxt:EXCHANGE`.

The first two read price files as training did, with the deployment's `data` section: time zone,
units, price side and bar length are those stored there. The third requests bars from an exchange. A
bar is returned after it has closed: open + length + grace <= the feed's clock. Each poll returns
earlier bars as well, so that revisions are detected.
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
)  # lines of a file that are read again with the appended ones
_MIN_REPEATED_BARS = 20  # bars of these lines that must be unchanged
_MAX_BYTES = 1 << 29  # size limit of a file whose bytes are compared
_OVERLAP_BARS = 12  # bars before the last one that are requested again
_LATE_SECONDS = 30.0  # maximum delay of one symbol's bar after the others
# Issues about how a file is read. They are settled at the first poll of a growing file.
_SETTLED_ISSUES = tuple(
    kind for kind in ACCEPTABLE if kind not in ("scale_jump", "overlap", "spacing")
)


class FeedUpdate(NamedTuple):
    """Result of polling a feed.

    Attributes:
        groups: newly closed bars, oldest first.
        bars: bars of every symbol, including earlier ones.
        clock: the feed's clock, UTC seconds.
    """

    groups: list[BarGroup]
    bars: Sequence[Bars]
    clock: float


def parse_feed(feed: str) -> tuple[str, str]:
    """Split a feed specification into its kind and location.

    Raises:
        ConfigError: the specification is invalid.
    """
    kind, colon, path = feed.partition(":")
    if kind not in (REPLAY, TAIL, CCXT) or not colon or not path:
        raise ConfigError(
            f"--feed {feed!r} is not a feed. Use replay:DIR for a folder of prices that is "
            "replayed bar by bar, tail:FILE for a growing file or folder of files, or "
            "ccxt:EXCHANGE for bars of an exchange."
        )
    return kind, path


class PriceFeed:
    """Price files that are replayed bar by bar, or watched while they grow.

    Args:
        feed: ``replay:DIR`` or ``tail:FILE``; both accept a file or a folder.
        data: the config's `data` section, without the folder.
        schema: symbols and columns of the bars.
        grace: seconds after a bar's end at which it counts as closed.
        has_account: the account exists, so that issues about reading the files were settled before.
        history: bars that features need before the first decision.

    Raises:
        ConfigError: the feed is invalid.
    """

    def __init__(
        self,
        feed: str,
        data: Mapping[str, Any],
        schema: BarSchema,
        grace: float,
        has_account: bool,
        history: int,
    ) -> None:
        kind, path = parse_feed(feed)
        self.is_replay, self.path = kind == REPLAY, Path(path).expanduser().absolute()
        self._data = {**data, "folder": str(self.path)}
        self._data["timeframe"] = timeframe_name(schema.bar_seconds)
        self._schema, self._grace, self._known, self._history = schema, grace, has_account, history
        self._last_file_stamps: tuple[tuple[int, int], ...] = ()
        self._last_contents: dict[Path, bytes] = {}  # contents at the last read
        self._last_bars: Sequence[Bars] = ()
        self._groups: list[BarGroup] = []
        self._times: list[int] = []
        self._position = 0  # index of the next bar group of a replay

    def poll_interval(self) -> float:
        """Return the seconds until the next poll: files are polled once per second."""
        return _POLL_SECONDS

    def poll(self, after: int, begin: int | None = None) -> FeedUpdate:
        """Return the bars that closed after a time.

        A replay returns all bars up to `begin`, or until features are available, then one group per
        poll.
        """
        now = time.time()
        file_stamps = () if self.is_replay else self._file_stamps()
        if not self._last_bars or file_stamps != self._last_file_stamps:
            self._last_file_stamps = file_stamps
            self._last_bars = self._read_appended(after) or self._read_bars()
            self._groups = group_bars(self._last_bars, self._schema)
            self._times = [group.time for group in self._groups]
            if (
                not self.is_replay and self._file_stamps() != file_stamps
            ):  # modified while reading: read again
                self._last_file_stamps = ((0, 0),)
                return FeedUpdate([], (), now)
        first = bisect_right(self._times, after)
        if self.is_replay:
            first = max(first, self._position)  # earlier groups may not have allowed a decision
            ready = self._history if begin is None else bisect_right(self._times, begin)
            moments = self._groups[first : max(ready, first + 1)]
            self._position = first + len(moments)
            last = moments[-1].time if moments else after
            return FeedUpdate(
                moments, self._last_bars, last + self._schema.bar_seconds + self._grace
            )
        # A file written before a bar's end may contain the unfinished bar.
        written = max(mark[0] for mark in file_stamps) / 1e9
        closed = int(min(now - self._grace, written)) - self._schema.bar_seconds
        return FeedUpdate(
            self._groups[first : bisect_right(self._times, closed)], self._last_bars, now
        )

    def _files(self) -> list[Path]:
        files = sorted(self.path.iterdir()) if self.path.is_dir() else [self.path]
        return [path for path in files if path.is_file()]

    def _file_stamps(self) -> tuple[tuple[int, int], ...]:
        """Return modification time and size of each file, to detect changes."""
        file_stamps = map(os.stat, self._files())
        return tuple((mark.st_mtime_ns, mark.st_size) for mark in file_stamps)

    def _read_appended(self, after: int) -> Sequence[Bars]:
        """Return the bars of the last lines if the files have only grown, otherwise nothing.

        All bytes are compared with those of the last poll, except the last line, whose bar may have
        been open. The last lines are read as separate files. Bars that the last poll returned must
        be equal.
        """
        before, self._last_contents = self._last_contents, {}
        if self.is_replay:
            return ()
        try:
            self._last_contents = {file: read_bytes(file, _MAX_BYTES) for file in self._files()}
            if before.keys() != self._last_contents.keys():
                return ()
            with tempfile.TemporaryDirectory() as folder:
                for path, text in self._last_contents.items():
                    part = _last_lines(before[path], text)
                    if not part:
                        return ()
                    (Path(folder) / path.name).write_bytes(part)
                target = folder if self.path.is_dir() else str(Path(folder) / self.path.name)
                bars = self._schema.read(
                    {**self._data, "folder": target, "allow_issues": self._accepted_issues}
                )
        except (OSError, UnreadableError, SlipstreamError):
            return ()  # a full read raises the exact error
        return bars if all(map(partial(_is_continuation, after), self._last_bars, bars)) else ()

    @property
    def _accepted_issues(self) -> tuple[str, ...]:
        accept = tuple(self._data.get("allow_issues") or ())
        return tuple(dict.fromkeys((*accept, *_SETTLED_ISSUES))) if self._known else accept

    def _read_bars(self) -> list[Bars]:
        try:
            bars = self._schema.read({**self._data, "allow_issues": self._accepted_issues})
        except DataError as error:
            zone = ""
            if "`time_zone" in str(error):
                zone = " For a feed, set the time zone of its files, such as `--time-zone UTC`."
            raise DataError(
                f"--feed {self.path} must hold {', '.join(self._schema.all_symbols)} in files as "
                "those of "
                f"training were. Use another feed, or fix this one. {error}{zone}"
            ) from None
        self._known = True
        return bars


def _last_lines(before: bytes, now: bytes) -> bytes:
    """Return the first and last lines of a text that has only grown, otherwise nothing."""
    end = before.rfind(b"\n", 0, max(len(before) - 1, 0)) + 1
    if not now.startswith(before[:end]):
        return b""
    head, tail = 0, end
    for _ in range(_HEAD_LINES):  # the header and lines before it
        head = before.find(b"\n", head, end) + 1 or end
    for _ in range(_TAIL_LINES):
        tail = before.rfind(b"\n", 0, max(tail - 1, 0)) + 1
    return now[:head] + now[max(head, tail) :]


def _is_continuation(after: int, before: Bars, now: Bars) -> bool:
    """Return True if the last lines contain all bars after a time and repeat those before it.

    The last of the earlier bars may have been open.
    """
    old = int(np.searchsorted(now.time, before.time[-1])) if len(before) else 0
    rows = np.searchsorted(before.time, now.time[:old])
    return int(np.count_nonzero(now.time <= after)) >= _MIN_REPEATED_BARS and all(
        np.array_equal(old_values[rows], now.columns()[name][:old], equal_nan=True)
        for name, old_values in before.columns().items()
    )


class ExchangeFeed:
    """Candles of an exchange, by the exchange's clock; missed bars are fetched.

    If the exchange's clock is ahead of this machine's, a bar counts as closed when it is closed by
    both clocks, since exchanges return unfinished bars.

    Args:
        exchange: connection to the exchange.
        data: the config's `data` section; `spread_pips` is the spread of these bars, since
            exchanges return none.
        schema: symbols and columns of the bars.
        grace: seconds after a bar's end at which it counts as closed.
        history: bars that features need before the first decision.

    Raises:
        ConfigError: a feature reads a column that exchanges do not provide.
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
                f"The policy reads the column {schema.extra[0]}, which bars of an exchange do not "
                "have. Use tail:FILE with files that have it."
            )
        self.exchange, self._schema, self._grace = exchange, schema, grace
        self._history = history + _OVERLAP_BARS
        pips = data.get("spread_pips") or 0.0
        self._spread = {name: float(pips) * pip_size(name) for name in schema.all_symbols}
        self._next_close, self._late_wait, self._clock = 0.0, _POLL_SECONDS, 0.0

    def poll_interval(self) -> float:
        """Return the seconds until the next bar closes, or an increasing wait if it is late."""
        wait = self._next_close - self._clock
        if wait > 0.0:
            self._late_wait = _POLL_SECONDS
            return wait
        self._late_wait = min(2.0 * self._late_wait, _LATE_SECONDS)
        return self._late_wait

    def poll(self, after: int, begin: int | None = None) -> FeedUpdate:
        """Return the bars closed after a time, with feature history before the first decision."""
        size = self._schema.bar_seconds
        self._clock = clock = self.exchange.clock()
        closed = min(clock, time.time()) - self._grace - size
        last = int(closed) // size * size
        since = (after - _OVERLAP_BARS * size) if after >= 0 else last - self._history * size
        if begin is not None:
            since = min(since, begin - self._history * size) if after < 0 else since
        bars = [self._read_bars(name, since, last) for name in self._schema.all_symbols]
        groups = [group for group in group_bars(bars, self._schema) if group.time > after]
        num_symbols = len(self._schema.all_symbols)
        while (
            groups
            and len(groups[-1].bars) < num_symbols
            and groups[-1].time > closed - _LATE_SECONDS
        ):
            groups.pop()  # the bar of a symbol is still to come
        last_time = groups[-1].time if groups else after
        self._next_close = max(last_time, last) + 2 * size + self._grace
        if last_time < last:  # the bar is late
            self._next_close = clock
        return FeedUpdate(groups, bars, clock)

    def _read_bars(self, name: str, since: int, last: int) -> Bars:
        rows = self.exchange.candles(name, self._schema.bar_seconds, since, last)
        table = np.array(rows, np.float64).reshape(len(rows), 6)
        bad = ~(np.isfinite(table).all(axis=1) & (table[:, 1:5] > 0.0).all(axis=1))
        if bad.any():
            raise DataError(
                f"{self.exchange.name} returned a bar of {name} without prices: "
                f"{rows[int(np.argmax(bad))]}. No decision was made. Restart later."
            )
        spread = np.full(len(rows), self._spread[name])
        opens, opened, high, low, close, volume = table.T
        return Bars(name, opens.astype(np.int64), opened, high, low, close, volume, spread)


BarFeed: TypeAlias = PriceFeed | ExchangeFeed
"""Source of closed bars. If `is_replay`, it ends, and its clock is that of its bars."""


def make_feed(
    feed: str,
    policy: DeployedPolicy,
    schema: BarSchema,
    grace: float,
    has_account: bool,
    notify: Callable[[str], None],
    time_zone: str | None = None,
) -> BarFeed:
    """Create the feed of a specification for a policy, including the history its features need.

    Args:
        feed: specification, as for `--feed`.
        policy: the deployed policy.
        schema, grace, has_account: see `PriceFeed`.
        notify: called with messages about the exchange.
        time_zone: time zone of stamps without one, instead of the deployment's.

    Raises:
        ConfigError: the feed or time zone is invalid, or a time zone was set for an exchange.
    """
    kind, path = parse_feed(feed)
    data, needs = policy.metadata["feed"], policy.policy.training_context
    if time_zone is not None:
        if kind == CCXT:
            raise ConfigError(
                f"--time-zone {time_zone} applies to files; bars of an exchange are in UTC. "
                "Remove it."
            )
        validate_zone(time_zone)
        data = {**data, "time_zone": time_zone}
    history = int(needs["warm_up_bars"]) + int(needs["lookback"])
    if kind != CCXT:
        return PriceFeed(feed, data, schema, grace, has_account, history)
    return ExchangeFeed(Exchange(path, notify), data, schema, grace, history + 2)
