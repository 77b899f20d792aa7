"""Bar store: all bars of an account, in one append-only file per symbol and in memory.

Inferred properties of vendor files (time zone, units, price side, bar length) are resolved before a
bar is stored: stamps are marked as UTC, prices are mid, spreads are in price units. The folder can
be read by `slipstream evaluate --data`.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import DataError
from slipstream.core.safe_io import UnreadableError, read_bytes
from slipstream.core.storage.atomic_io import AppendOnlyFile, make_folder, write_bytes
from slipstream.core.text import plural, stamp
from slipstream.markets.data.bars import NUMBERS, Bars, FloatArray, IntArray
from slipstream.markets.data.calendar import is_weekend
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.data_issue import ACCEPTABLE
from slipstream.markets.data.market import Market, load_market, market_from_bars
from slipstream.markets.data.symbols import MarketKind

# Limits as a multiple of the usual spread, and as a fraction of the price. Points read as a price
# in yen are at least 1,000 times and 0.7 %. The widest spread at night may be 500 times a usual
# spread of one point, but is below 0.5 %.
_MAX_SPREAD_RATIO, _MAX_SPREAD_SHARE = 500.0, 0.005
_MAX_BYTES, _MAX_LINE_BYTES = 1 << 29, 1 << 16  # of a file: ten years of one-minute bars


class BarSchema(NamedTuple):
    """Properties of the bars on which a policy was trained, stored with its deployment.

    Attributes:
        symbols: traded symbols, in the order of the observation.
        converting: pairs that are only used to convert profits.
        bar_seconds, kind: as in `Market`.
        extra: further columns that features read.
        market: `market` of the config's data section.
    """

    symbols: tuple[str, ...]
    converting: tuple[str, ...]
    bar_seconds: int
    kind: MarketKind
    extra: tuple[str, ...]
    market: str

    @classmethod
    def from_mapping(cls, fields: Mapping[str, Any]) -> BarSchema:
        """Create a schema from plain values."""
        lists = {name: tuple(fields[name]) for name in ("symbols", "converting", "extra")}
        return cls(**{**fields, **lists})

    @property
    def all_symbols(self) -> tuple[str, ...]:
        """All symbols whose bars are stored."""
        return (*self.symbols, *self.converting)

    @property
    def columns(self) -> tuple[str, ...]:
        """Numbers of a bar, in the order of the files."""
        return (*NUMBERS, *self.extra)

    def read(self, data: Mapping[str, Any]) -> list[Bars]:
        """Read the bars of all symbols with a `data` section, traded symbols first."""
        bars: list[Bars] = []
        for names in (self.symbols, self.converting):
            if names:
                section = DataConfig.model_validate({**data, "symbols": list(names)})
                bars += load_market(section).bars
        return bars

    def make_market(self, bars: Sequence[Bars]) -> Market:
        """Create a market from bars in the order of `all_symbols`."""
        traded = len(self.symbols)
        market = market_from_bars(tuple(bars[:traded]), self.bar_seconds, self.kind)
        return replace(market, converting=tuple(bars[traded:]))

    def make_market_ahead(self, bars: Sequence[Bars], last: int) -> Market:
        """Create a market with a flat bar at the next open after a time, to simulate orders in it.

        No rule allows trading an asset in it that was not listed before.
        """
        when = self.next_open(last)
        return self.make_market([append_flat_bar(bar, when) for bar in bars])

    def data_section(self, folder: Path) -> dict[str, Any]:
        """Return the `data` section that reads a store's folder without any inference."""
        return {
            "folder": str(folder),
            "symbols": list(self.symbols),
            "timeframe": f"{self.bar_seconds}s",
            "market": self.market,
            "allow_issues": list(ACCEPTABLE),  # settled when the policy was deployed
        }

    def count_missing(self, last: int, now: int) -> int:
        """Count the bars between two opens that are missing although the market was open."""
        between = np.arange(last + self.bar_seconds, now, self.bar_seconds, dtype=np.int64)
        closed = is_weekend(between) if self.kind == "fx" and len(between) else np.zeros(0, bool)
        return len(between) - int(np.count_nonzero(closed))

    def next_open(self, last: int) -> int:
        """Return the next bar's open by the calendar."""
        following = last + self.bar_seconds
        while self.kind == "fx" and is_weekend(np.array([following]))[0]:
            following += self.bar_seconds
        return following


class BarGroup(NamedTuple):
    """Bars of all symbols with the same open.

    Attributes:
        time: UTC seconds.
        bars: numbers in the order of `BarSchema.columns`, by symbol.
    """

    time: int
    bars: Mapping[str, tuple[float, ...]]


def group_bars(bars: Sequence[Bars], schema: BarSchema) -> list[BarGroup]:
    """Group the bars of all symbols by open, oldest first."""
    groups: dict[int, dict[str, tuple[float, ...]]] = {}
    for bar in bars:
        missing = [name for name in schema.extra if name not in bar.extra]
        if missing:
            raise DataError(
                f"{bar.symbol} must have the column {missing[0]}, which a feature of the policy "
                "reads. Add it to the file."
            )
        table = bar.columns()
        rows = np.stack([table[name] for name in schema.columns], axis=1).tolist()
        for time, row in zip(bar.time.tolist(), rows, strict=True):
            groups.setdefault(time, {})[bar.symbol] = tuple(row)
    return [BarGroup(time, groups[time]) for time in sorted(groups)]


def append_flat_bar(bars: Bars, when: int) -> Bars:
    """Append a flat bar without volume: the prices of an order if nothing moves."""
    last = {name: column[-1] for name, column in bars.columns().items()}
    last |= {**dict.fromkeys(("open", "high", "low"), last["close"])}
    last |= {"volume": np.float64(0.0), "time": np.int64(when)}
    table = {name: np.append(column, last[name]) for name, column in bars.columns().items()}
    extra = {name: table.pop(name) for name in bars.extra}
    return Bars(bars.symbol, **table, extra=extra)


class _GrowingArray:
    """Array with amortised appending of rows.

    Attributes:
        rows: the array so far.
    """

    def __init__(self, rows: NDArray[Any]) -> None:
        self._buffer = self.rows = rows

    def append(self, more: Sequence[Any]) -> None:
        """Append rows."""
        count = len(self.rows) + len(more)
        if count > len(self._buffer):
            spare = np.zeros((count, *self.rows.shape[1:]), self.rows.dtype)
            self._buffer = np.concatenate([self.rows, spare])
        self._buffer[len(self.rows) : count] = more
        self.rows = self._buffer[:count]


class BarStore:
    """Bars of all symbols, on disk and in memory, with a hash after each bar group.

    Attributes:
        folder: folder of the files.
        schema: symbols and columns of the bars.
        times: opens of the bar groups, ascending.
        digests: hex SHA-256 of the previous digest and the group's bars, one per group.
    """

    def __init__(self, folder: Path, schema: BarSchema) -> None:
        self.folder, self.schema = folder, schema
        make_folder(folder)
        self.times: list[int] = []
        self.digests: list[str] = []
        self._files: dict[str, AppendOnlyFile] = {}
        self._columns: dict[
            str, tuple[_GrowingArray, _GrowingArray]
        ] = {}  # opens and numbers [n, columns]
        for name in schema.all_symbols:
            opens, rows = self._read_file(name)
            self._columns[name] = _GrowingArray(opens), _GrowingArray(rows)
        self._update_digests(-1)

    def _arrays(self, name: str) -> tuple[IntArray, FloatArray]:
        """Return opens and numbers [n, columns] of a symbol."""
        opens, rows = self._columns[name]
        return opens.rows, rows.rows

    def _read_file(self, name: str) -> tuple[IntArray, FloatArray]:
        """Read a file and remove an incomplete last line that a kill left."""
        path, columns = self._path(name), self.schema.columns
        try:
            text = read_bytes(path, _MAX_BYTES)
            complete = text[: text.rfind(b"\n") + 1]
            if len(text) - len(complete) > _MAX_LINE_BYTES:
                raise ValueError("a line has no end")
            lines = [line.split(",") for line in complete.decode().splitlines()[1:]]
            if complete != text:
                write_bytes(path, complete)
            stamps = [line[0].removesuffix("Z") for line in lines]
            opens = np.array(stamps, dtype="datetime64[s]").astype(np.int64)
            rows = np.array([[float(cell) for cell in line[1:]] for line in lines])
            rows = rows.reshape(len(lines), len(columns))
        except FileNotFoundError:
            return np.zeros(0, np.int64), np.zeros((0, len(columns)))
        except (UnreadableError, ValueError) as error:
            raise DataError(
                f"{path} was modified ({error}). Restore the previous file, or deploy again, "
                "which starts a new account."
            ) from None
        return opens, rows

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.csv"

    def append(self, moments: Sequence[BarGroup]) -> None:
        """Store new bar groups. They are on disk when this returns.

        Groups that a kill left half-written are completed; existing bars are not repeated.
        """
        for name in self.schema.all_symbols:
            opens = self._arrays(name)[0]
            last = opens[-1] if len(opens) else -1
            new = [(m.time, m.bars[name]) for m in moments if name in m.bars and m.time > last]
            if not new:
                continue
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = AppendOnlyFile(self._path(name))
            lines = [
                f"{np.datetime64(time, 's')}Z,{','.join(map(repr, row))}\n" for time, row in new
            ]
            if self._path(name).stat().st_size == 0:
                lines.insert(0, f"time,{','.join(self.schema.columns)}\n")
            file.write("".join(lines).encode())
            file.sync()
            for column, more in zip(self._columns[name], zip(*new, strict=True), strict=True):
                column.append(more)
        self._update_digests(moments[0].time)

    def _update_digests(self, since: int) -> None:
        """Hash all bar groups from a time on."""
        index = bisect_left(self.times, since)
        del self.times[index:], self.digests[index:]
        rows: dict[int, bytes] = {}
        for name in self.schema.all_symbols:
            opens, numbers = self._arrays(name)
            first = int(np.searchsorted(opens, since))
            for time, row in zip(opens[first:], numbers[first:], strict=True):
                rows[int(time)] = rows.get(int(time), b"") + name.encode() + row.tobytes()
        for time in sorted(rows):
            previous = self.digests[-1] if self.digests else ""
            text = previous.encode() + time.to_bytes(8, "little") + rows[time]
            self.times.append(time)
            self.digests.append(hashlib.sha256(text).hexdigest())

    def check_revisions(self, bars: Sequence[Bars], decided: int) -> list[str]:
        """Compare the bars of a feed with the stored ones.

        Args:
            bars: bars of the feed.
            decided: open of the last bar that was decided on.

        Returns:
            Messages about bars that arrived too late to be stored.

        Raises:
            DataError: a stored bar was revised.
        """
        late = []
        for bar in bars:
            (opens, columns), table = self._arrays(bar.symbol), bar.columns()
            if len(opens) == 0:
                continue
            rows = np.minimum(np.searchsorted(opens, bar.time), len(opens) - 1)  # both ascend
            same = opens[rows] == bar.time
            stored, new = rows[same], np.flatnonzero(same)
            for k, name in enumerate(self.schema.columns):
                values = np.asarray(table[name], np.float64)[new]
                differs = np.flatnonzero(columns[stored, k] != values)
                if len(differs):
                    row = differs[0]
                    raise DataError(
                        f"{bar.symbol}: the bar of {stamp(int(opens[stored[row]]))} UTC was "
                        "revised: "
                        f"its {name} was {float(columns[stored[row], k])!r} when it was stored and "
                        f"is {float(values[row])!r} now. Stored bars are never overwritten. "
                        "Restore the "
                        "old bar in the feed, or deploy again."
                    )
            inside = (bar.time >= opens[0]) & (bar.time <= decided)
            unexpected = bar.time[inside & ~same]
            if len(unexpected):
                late.append(
                    f"{bar.symbol}: {plural(len(unexpected), 'bar')} arrived too late to be "
                    f"decided on, the first of {stamp(int(unexpected[0]))} UTC. They were dropped."
                )
        return late

    def check_spread_units(self, moments: Sequence[BarGroup]) -> None:
        """Compare spreads with the usual spread of the stored bars.

        Raises:
            DataError: a spread is so much wider that it must be in another unit.
        """
        spread_column, close = (self.schema.columns.index(name) for name in ("spread", "close"))
        for time, bars in moments:
            for name, bar in bars.items():
                spread = bar[spread_column]
                if spread <= _MAX_SPREAD_SHARE * bar[close]:
                    continue
                spreads = self._arrays(name)[1][:, spread_column]
                positive = spreads[spreads > 0.0]
                usual = float(np.median(positive)) if len(positive) else np.inf
                if spread > _MAX_SPREAD_RATIO * usual:
                    raise DataError(
                        f"{name}: the bar of {stamp(time)} UTC is in another unit: its spread is "
                        f"{spread:g}, and {usual:g} is usual. No decision was made. Fix the "
                        "feed, or remove the bar from it."
                    )

    def last_closes(self) -> dict[str, float]:
        """Return the last close of each traded symbol."""
        return {name: float(self.close_history(name)[1][-1]) for name in self.schema.symbols}

    def close_history(self, name: str) -> tuple[IntArray, FloatArray]:
        """Return opens and closes of all bars of a symbol."""
        opens, rows = self._arrays(name)
        return opens, rows[:, self.schema.columns.index("close")]

    def market(self) -> Market:
        """Return all bars in memory, with a flat bar appended.

        Raises:
            DataError: a symbol has no bar yet.
        """
        missing = [name for name in self.schema.all_symbols if not len(self._arrays(name)[0])]
        if missing:
            raise DataError(f"The feed has returned no bar of {', '.join(missing)} yet.")
        bars = [self._bars(name) for name in self.schema.all_symbols]
        return self.schema.make_market_ahead(bars, self.times[-1])

    def newest_market(self, traded: Sequence[str], rows: int) -> Market:
        """Return the last bars, at least `rows` per symbol, with a flat bar appended.

        The market starts at an open at which every symbol that has earlier and later bars has a
        bar, if there is one. Otherwise a symbol without a bar there would appear to be listed
        later.

        Args:
            traded: traded symbols of the market; the others are only used for conversion.
            rows: number of bars.
        """
        opens = {name: self._arrays(name)[0] for name in self.schema.all_symbols}

        def whole(moment: int) -> bool:
            places = [
                (symbol_opens, int(np.searchsorted(symbol_opens, moment)))
                for symbol_opens in opens.values()
            ]
            return all(
                symbol_opens[at] == moment
                for symbol_opens, at in places
                if 0 < at < len(symbol_opens)
            )

        first = max(len(self.times) - rows, 0)
        candidates = self.times[max(first - rows, 0) : first + 1][::-1]
        begin = next((bar for bar in candidates if whole(bar)), candidates[0])
        schema = self.schema._replace(
            symbols=tuple(traded), converting=tuple(bar for bar in opens if bar not in traded)
        )
        bars = []
        for name in schema.all_symbols:
            start = min(int(np.searchsorted(opens[name], begin)), len(opens[name]) - rows)
            bars.append(self._bars(name, max(start, 0)))
        return schema.make_market_ahead(bars, self.times[-1])

    def _bars(self, name: str, first: int = 0) -> Bars:
        opens, rows = self._arrays(name)
        table = dict(zip(self.schema.columns, rows[first:].T, strict=True))
        extra = {key: table.pop(key) for key in self.schema.extra}
        return Bars(name, opens[first:], **table, extra=extra)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
