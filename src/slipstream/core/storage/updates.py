"""Incremental updates of a run or a study for dashboard pages.

A position is a text with one cursor per part of a page; it is the id of a server-sent event. A part
with the content of a whole file (status.json) has its crc32 as cursor, and is sent again when that
changes. Appended files are read in bounded pieces from a `Cursor` on; file contents are never
trusted. The browser returns its position with the next request, so the server is stateless: a page
that was disconnected for an hour receives what it missed, once.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from slipstream.core.errors import SlipstreamError
from slipstream.core.safe_io import UnreadableError, path_exists, regular_file
from slipstream.core.storage.atomic_io import to_jsonable
from slipstream.core.storage.status_file import (
    EVENTS,
    LOG,
    STATUS,
    event_line,
    idle_line,
    idle_status,
    progress_parts,
    read_status,
    wrap_parts,
)

POINTS = 500  # of a curve
ROWS = 4_000  # of all curves of a table together
MOST_BYTES = 16 << 20  # of a small file, such as result.json
_TAIL = 1 << 16  # bytes of the log and of events, at the beginning
_EVENTS, _LINES = 200, 400  # maximum sent
_LONGEST = 400  # characters of a line
_WIDTH = 110
_SEVERAL = ";"  # separates the positions of several runs
_PART = re.compile(r"([a-z]+):([-+.\w]*)")  # part of a position
_SEEN = "there"  # part that is set once a folder exists
MALFORMED = (
    *(SlipstreamError, UnreadableError, OSError, RecursionError, AttributeError),
    *(ValueError, TypeError, LookupError, ArithmeticError),
)
"""Exceptions of reading untrusted files."""

Event = tuple[str, Any]
MOST_APPENDED = 1 << 20  # per read; cursors further behind restart
_WHOLE = 1 << 20  # tables up to this size are read completely, bytes
_WINDOW = 1 << 14  # bytes read at each position of longer tables
_CHECKED = 256  # bytes before a cursor that are verified
_HEADER = 1 << 14  # bytes in which a header must end
_COLUMNS = 64
_CELL = 80  # characters of a word in a table
Cell = float | str | None


class Updates:
    """Events for a page, and the new position of each of its parts.

    Args:
        folder: of the run or study.
        cursor: position of the last event; empty at first.

    Attributes:
        events: name and JSON-compatible values, in order.
    """

    def __init__(self, folder: Path, cursor: str) -> None:
        self.folder, self.events = folder, list[Event]()
        parts = map(_PART.fullmatch, cursor.split(","))
        self._before = {part[1]: part[2] for part in parts if part is not None}
        self._now: dict[str, str] = {}
        self._joined: str | None = None
        self.is_first = not self._before

    @classmethod
    def unchanged(cls, cursor: str) -> Updates:
        """Return an object without events and with unchanged positions."""
        updates = cls(Path(), cursor)
        updates._now = dict(updates._before)
        return updates

    @classmethod
    def merge(cls, each: Sequence[Updates]) -> Updates:
        """Merge the updates of several runs; each event has the index of its run."""
        updates = cls(Path(), "")
        updates._joined = _SEVERAL.join(updates_part.cursor for updates_part in each)
        told = [(k, one.events) for k, one in enumerate(each) if one.events]
        updates.events = [("of", {"run": k, "events": events}) for k, events in told]
        return updates

    @property
    def cursor(self) -> str:
        """Current position of all parts."""
        if self._joined is not None:
            return self._joined
        return ",".join(f"{name}:{mark}" for name, mark in self._now.items())

    def previous(self, part: str) -> str:
        """Return the previous cursor of a part; empty at first."""
        return self._before.get(part, "")

    def numbers(self, part: str) -> list[float]:
        """Return the previous cursor of a part as finite numbers; empty if it has another form."""
        with suppress(ValueError):
            positions = [float(number) for number in self.previous(part).split("_")]
            return positions if all(map(math.isfinite, positions)) else []
        return []

    def add_snapshot(self, part: str, facts: Any) -> None:
        """Add an event that replaces earlier values, if they have changed."""
        snapshot = to_jsonable(facts)
        mark = str(zlib.crc32(json.dumps(snapshot, sort_keys=True, default=str).encode()))
        if mark != self.previous(part):
            self.events.append((part, snapshot))
        self._now[part] = mark

    def has_changed(self, part: str, *names: str) -> bool:
        """Return true if files of the folder have changed, and store their state as the cursor."""
        facts = []
        for name in names:
            with suppress(OSError, ValueError):
                stat = os.stat(self.folder / name)
                facts.append((name, stat.st_ino, stat.st_size, stat.st_mtime_ns))
        mark = str(zlib.crc32(repr(facts).encode()))
        self._now[part] = mark
        return mark != self.previous(part)

    def set_cursor(self, part: str, mark: str) -> None:
        """Set the cursor of a part that adds its own events."""
        self._now[part] = mark

    def add_rows(self, part: str, name: str) -> None:
        """Add an event with new rows of a table."""
        mark = Cursor.parse(self.previous(part))
        try:
            tail = read_table_tail(self.folder, name, mark, POINTS, ROWS)
        except UnreadableError as error:
            self.add_snapshot(part, {"unreadable": f"{name} cannot be drawn: {error}."})
            return
        if tail.restarted and self.previous(part):
            self.events.append(("reset", {"part": part}))
        if tail.rows:
            self.events.append((part, {"columns": tail.columns, "rows": tail.rows}))
        self.set_cursor(part, str(tail.cursor))

    def read_lines(self, part: str, name: str) -> Iterator[bytes]:
        """Yield new lines of a file; add a reset event if the file was replaced."""
        try:
            tail = read_tail(self.folder, name, Cursor.parse(self.previous(part)), _TAIL)
        except UnreadableError as error:
            self.add_snapshot(part, [f"{name} cannot be read: {error}."])
            return
        if tail.restarted and self.previous(part):
            self.events.append(("reset", {"part": part}))
        self.set_cursor(part, str(tail.cursor))
        yield from tail.lines

    def add_logbook(self, resume: str) -> None:
        """Add status, events and log, which runs and studies share."""
        try:
            self.add_snapshot("status", status_facts(self.folder, resume))
        except MALFORMED as error:
            self.add_snapshot("status", {"state": "unreadable", "lines": [str(error)]})
        events = [one for line in self.read_lines("events", EVENTS) if (one := _event(line))]
        if events:
            self.events.append(("events", events[-_EVENTS:]))
        log = [line.decode(errors="replace")[:_LONGEST] for line in self.read_lines("log", LOG)]
        if log:
            self.events.append(("log", log[-_LINES:]))


FolderLook = Callable[[Path, str], Updates]
"""(folder, position) -> updates since that position."""


def deltas(look: FolderLook, folder: Path, cursor: str) -> Updates:
    """Return the updates of a folder; for a deleted folder, a status that it is gone."""
    exists, unchanged = folder.is_dir(), Updates.unchanged(cursor)
    if exists or not unchanged.previous(_SEEN):
        updates = look(folder, cursor)
        if not exists:
            return updates
        if folder.is_dir():  # otherwise it was deleted meanwhile, and missing files mean nothing
            updates.set_cursor(_SEEN, "1")
            return updates
    words = f"{folder} is gone: it was moved or deleted while this page was open."
    unchanged.add_snapshot("status", {"state": "unreadable", "lines": [words]})
    unchanged.set_cursor(_SEEN, "1")
    return unchanged


def deltas_of_folders(look: FolderLook, folders: Sequence[Path], cursor: str) -> Updates:
    """Return the merged updates of several folders."""
    each = zip_longest(folders, cursor.split(_SEVERAL)[: len(folders)], fillvalue="")
    return Updates.merge([deltas(look, Path(one), at) for one, at in each])


def status_facts(folder: Path, resume: str) -> dict[str, Any]:
    """Return a status with its rendered lines and the liveness of its process."""
    if path_exists(folder / STATUS):
        resolve_inside(folder, STATUS)
    status = read_status(folder)
    if status is None:
        return {"state": "new", "lines": ["No process has begun it."]}
    state = status.liveness()
    works = state in ("running", "silent")
    parts = progress_parts(status if works else idle_status(status))
    complete = path_exists(folder / "result.json")
    idle = [] if works else ["Complete." if complete else idle_line(status, resume)]
    facts = asdict(status) | {"state": state, "works": works, "complete": complete}
    del facts["updated"]  # changes at every write
    return facts | {"lines": [*idle, *wrap_parts(parts, _WIDTH)], "host": status.host}


def _event(line: bytes) -> str | None:
    """Return the line of one event; None if it is invalid."""
    try:
        event = json.loads(line)
        if not isinstance(event, dict) or not isinstance(event["at"], int | float):
            return None
        return event_line(event)[:_LONGEST]
    except (ValueError, KeyError, RecursionError, TypeError):
        return None


def find_small_file(folder: Path, name: str) -> Path | None:
    """Return a small file of a folder; None if there is none that may be read."""
    try:
        return resolve_inside(folder, name, MOST_BYTES)
    except (OSError, UnreadableError):
        return None


class Cursor(NamedTuple):
    """Read position in a file.

    Attributes:
        inode: of the file.
        offset: bytes, up to the end of a line.
        check: crc32 of the bytes before it, which detects another file with the same inode.
    """

    inode: int = 0
    offset: int = 0
    check: int = 0

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Invert `str`; anything else gives the start of the file."""
        parts = text.split("-")
        fine = len(parts) == 3 and all(part.isascii() and part.isdigit() for part in parts)
        return cls(*map(int, parts)) if fine and len(text) < 60 else cls()

    def __str__(self) -> str:
        return f"{self.inode}-{self.offset}-{self.check}"


class FileTail(NamedTuple):
    """New lines of a file.

    Attributes:
        lines: complete lines after the cursor, without line ends.
        cursor: of the next read.
        restarted: the cursor was of another file or too far back: `lines` do not continue from it.
    """

    lines: list[bytes]
    cursor: Cursor
    restarted: bool


def resolve_inside(folder: Path, name: str, limit: int | None = None) -> Path:
    """Return a file of a folder after checking that no link leads out of the folder.

    Args:
        folder: of a run or study.
        name: of the file, from our code and never from a request.
        limit: maximum size in bytes.

    Raises:
        FileNotFoundError: there is no file.
        UnreadableError: a link leads out of the folder, not a regular file, or too large.
    """
    try:
        path, home = (folder / name).resolve(), folder.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle
        raise UnreadableError(f"it cannot be resolved ({error})") from error
    if not path.is_relative_to(home):
        raise UnreadableError("a link leads out of its folder")
    regular_file(path, limit)
    return path


def read_tail(folder: Path, name: str, mark: Cursor, tail: int = MOST_APPENDED) -> FileTail:
    """Return the lines after a cursor.

    Args:
        folder, name: see `resolve_inside`.
        mark: cursor of the previous read.
        tail: bytes at the file's end to read if the cursor is invalid.

    Raises:
        UnreadableError: see `resolve_inside`. A missing file has no lines.
    """
    with _opened(folder, name) as file:
        if file is None:
            return FileTail([], Cursor(), mark != Cursor())
        facts = os.fstat(file.fileno())
        size, inode = facts.st_size, facts.st_ino
        if mark == Cursor(inode, size, mark.check):
            return FileTail([], mark, False)  # the usual case: nothing is read
        known = mark.inode == inode and mark.offset <= size <= mark.offset + MOST_APPENDED
        known = known and _check(file, mark.offset) == mark.check
        begin = mark.offset if known else max(0, size - tail)
        file.seek(begin)
        content = file.read(min(size - begin, MOST_APPENDED))
        whole = content[: content.rfind(b"\n") + 1]
        end = begin + len(whole)
        if begin and not known:  # the first line was cut
            whole = whole[whole.find(b"\n") + 1 :]
        lines = [line for line in whole.split(b"\n") if line]
        return FileTail(lines, Cursor(inode, end, _check(file, end)), not known)


class TableRows(NamedTuple):
    """Rows of a CSV table.

    Attributes:
        columns: names; empty before there is a header.
        rows: cells in the order of the columns.
        cursor: of the next read.
        restarted: the rows replace earlier ones instead of following them.
    """

    columns: list[str]
    rows: list[list[Cell]]
    cursor: Cursor
    restarted: bool


def read_table_tail(folder: Path, name: str, mark: Cursor, points: int, rows: int) -> TableRows:
    """Return the rows after a cursor; if it is invalid, a subsample of the whole table.

    The time does not depend on the table's length: a long table is read at `points` equidistant
    places of the file only.

    Args:
        folder, name: see `resolve_inside`.
        mark: cursor of the previous read.
        points: maximum rows per member of the whole table.
        rows: maximum rows of all members together.
    """
    with _opened(folder, name) as file:
        columns, begin = ([], 0) if file is None else _header(file)
        if file is None or not columns:
            return TableRows([], [], Cursor(), mark != Cursor())
        file_tail = read_tail(folder, name, mark, tail=0)
        if not file_tail.restarted:
            more = _thinned(columns, file_tail.lines, points, rows)
            return TableRows(columns[:_COLUMNS], more, file_tail.cursor, False)
        facts = os.fstat(file.fileno())
        size = facts.st_size
        if size <= max(_WHOLE, points * _WINDOW):
            file.seek(begin)
            content = file.read(size - begin)
            content = content[: content.rfind(b"\n") + 1]
            lines, end = content.split(b"\n"), begin + len(content)
        else:
            lines, end = _sampled(file, begin, size, points)
        mark = Cursor(facts.st_ino, end, _check(file, end))
        return TableRows(columns[:_COLUMNS], _thinned(columns, lines, points, rows), mark, True)


def _sampled(file: BinaryIO, begin: int, size: int, points: int) -> tuple[list[bytes], int]:
    """Return the first line of each member at equidistant positions, and the last line's end."""
    lines, content, offset = list[bytes](), b"", begin
    for k in range(points):
        offset = begin + round((size - begin - _WINDOW) * k / max(1, points - 1))
        file.seek(offset)
        content = file.read(_WINDOW)
        whole_lines = content.split(b"\n")[1 if k else 0 : -1]
        firsts = dict[bytes, bytes]()
        for line in whole_lines if k < points - 1 else whole_lines[::-1]:
            firsts.setdefault(line.partition(b",")[0], line)
        lines += firsts.values()
    return lines, offset + content.rfind(b"\n") + 1


def _thinned(
    columns: list[str], lines: Sequence[bytes], points: int, rows: int
) -> list[list[Cell]]:
    """Return every k-th row of each member and its last row, at most `points` per member."""
    by_member = dict[bytes, list[bytes]]()
    for line in lines:
        if line:
            key = line.partition(b",")[0] if columns[0] == "member" else b""
            by_member.setdefault(key, []).append(line)
    points_per_member = max(2, min(points, rows // max(1, len(by_member))))
    thinned = []
    for member_rows in list(by_member.values())[:rows]:
        stride = -(-len(member_rows) // points_per_member)
        for line in member_rows[(len(member_rows) - 1) % stride :: stride]:
            cells = _cells(line)
            if len(cells) == len(columns):  # else it was torn
                thinned.append([_cell(cell) for cell in cells[:_COLUMNS]])
    return thinned


def _header(file: BinaryIO) -> tuple[list[str], int]:
    """Return column names and the offset of the first row; no names if the header is incomplete."""
    file.seek(0)
    line, end, _ = file.read(_HEADER).partition(b"\n")
    names = _cells(line) if end else []
    return [name[:_CELL] for name in names], len(line) + 1


def _cells(line: bytes) -> list[str]:
    text = line.decode("utf-8", errors="replace")
    if '"' not in text:
        return text.split(",")
    with suppress(csv.Error, StopIteration):
        return next(csv.reader(io.StringIO(text)))
    return []


def _cell(text: str) -> Cell:
    if text == "":
        return None
    try:
        value = float(text)
    except ValueError:
        return text[:_CELL]
    return value if math.isfinite(value) else None


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[BinaryIO | None]:
    """Open a file for reading without blocking; None if there is none."""
    try:
        path = resolve_inside(folder, name)
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise UnreadableError((error.strerror or str(error)).lower()) from error
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):  # exchanged meanwhile
            raise UnreadableError("it is no file any more")
        yield file


def _check(file: BinaryIO, offset: int) -> int:
    begin = max(0, offset - _CHECKED)
    file.seek(begin)
    return zlib.crc32(file.read(offset - begin))
