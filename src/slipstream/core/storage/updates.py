"""News: what is new of a run or a study since a place, as a page is told it.

A place is the text of one mark for each part of a page; it is an event's id. A part whose facts are
a whole file (status.json) is marked by their crc32: it is told again where they are others. What is
appended to a file is read in bounded pieces from a `Mark` on; nothing that lies is trusted. A mark
travels to the browser and comes back with the next question, so that nothing is kept here: a page
that lost the connection for an hour asks with its last mark, and gets what is missing, once.
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
from slipstream.core.safe_io import UnreadableError, is_there, regular_file
from slipstream.core.storage.atomic_io import plain
from slipstream.core.storage.status_file import (
    EVENTS,
    LOG,
    STATUS,
    event_line,
    folded,
    idle_line,
    progress_parts,
    read_status,
    still,
)

POINTS = 500  # of a curve
ROWS = 4_000  # of all curves of a table together
MOST_BYTES = 16 << 20  # of a small file, such as result.json
_TAIL = 1 << 16  # bytes of the log and of events, at the beginning
_EVENTS, _LINES = 200, 400  # that are shown of them
_LONGEST = 400  # characters of a line
_WIDTH = 110
_SEVERAL = ";"  # between the places of several runs
_PART = re.compile(r"([a-z]+):([-+.\w]*)")  # of a place; what else comes is none
_SEEN = "there"  # marks that a folder was there
MALFORMED = (
    *(SlipstreamError, UnreadableError, OSError, RecursionError, AttributeError),
    *(ValueError, TypeError, LookupError, ArithmeticError),
)
"""What reading the files of others may raise, whatever stands in them."""

Event = tuple[str, Any]
MOST_APPENDED = 1 << 20  # of one look; who is further behind begins anew
_WHOLE = 1 << 20  # bytes up to which a table is read whole
_WINDOW = 1 << 14  # bytes that are looked at in each place of a longer one
_CHECKED = 256  # bytes before a mark that must be what they were
_HEADER = 1 << 14  # bytes in which a header must end
_COLUMNS = 64
_CELL = 80  # characters of a word in a table
Cell = float | str | None


class News:
    """Collects what a page is told, and where each of its parts is now.

    Args:
        folder: of the run or study.
        place: that an event's id said; empty at the beginning.

    Attributes:
        events: name and JSON-able facts, in order.
    """

    def __init__(self, folder: Path, place: str) -> None:
        self.folder, self.events = folder, list[Event]()
        parts = map(_PART.fullmatch, place.split(","))
        self._before = {part[1]: part[2] for part in parts if part is not None}
        self._now: dict[str, str] = {}
        self._joined: str | None = None
        self.fresh = not self._before

    @classmethod
    def nothing(cls, place: str) -> News:
        """No news yet, and all parts where they were."""
        news = cls(Path(), place)
        news._now = dict(news._before)
        return news

    @classmethod
    def joined(cls, each: Sequence[News]) -> News:
        """News of several runs, told as those of each by its number."""
        news = cls(Path(), "")
        news._joined = _SEVERAL.join(one.place for one in each)
        told = [(k, one.events) for k, one in enumerate(each) if one.events]
        news.events = [("of", {"run": k, "events": events}) for k, events in told]
        return news

    @property
    def place(self) -> str:
        """Where all parts are now."""
        if self._joined is not None:
            return self._joined
        return ",".join(f"{name}:{mark}" for name, mark in self._now.items())

    def before(self, part: str) -> str:
        """Where a part was; empty at the beginning."""
        return self._before.get(part, "")

    def numbers(self, part: str) -> list[float]:
        """Where a part was that is marked by finite numbers; none where it is not."""
        with suppress(ValueError):
            found = [float(one) for one in self.before(part).split("_")]
            return found if all(map(math.isfinite, found)) else []
        return []

    def whole(self, part: str, facts: Any) -> None:
        """Tells facts that replace those before, where they are others."""
        told = plain(facts)
        mark = str(zlib.crc32(json.dumps(told, sort_keys=True, default=str).encode()))
        if mark != self.before(part):
            self.events.append((part, told))
        self._now[part] = mark

    def changed(self, part: str, *names: str) -> bool:
        """Whether files of the folder are others than they were; the part is marked by that."""
        facts = []
        for name in names:
            with suppress(OSError, ValueError):
                found = os.stat(self.folder / name)
                facts.append((name, found.st_ino, found.st_size, found.st_mtime_ns))
        mark = str(zlib.crc32(repr(facts).encode()))
        self._now[part] = mark
        return mark != self.before(part)

    def mark(self, part: str, mark: str) -> None:
        """Where a part is now that tells by itself."""
        self._now[part] = mark

    def rows(self, part: str, name: str) -> None:
        """Tells what was appended to a table."""
        mark = Mark.parse(self.before(part))
        try:
            found = table(self.folder, name, mark, POINTS, ROWS)
        except UnreadableError as error:
            self.whole(part, {"unreadable": f"{name} cannot be drawn: {error}."})
            return
        if found.anew and self.before(part):
            self.events.append(("reset", {"part": part}))
        if found.rows:
            self.events.append((part, {"columns": found.columns, "rows": found.rows}))
        self.mark(part, str(found.mark))

    def lines(self, part: str, name: str) -> Iterator[bytes]:
        """What was appended to a file of lines; tells that it began anew."""
        try:
            found = appended(self.folder, name, Mark.parse(self.before(part)), _TAIL)
        except UnreadableError as error:
            self.whole(part, [f"{name} cannot be read: {error}."])
            return
        if found.anew and self.before(part):
            self.events.append(("reset", {"part": part}))
        self.mark(part, str(found.mark))
        yield from found.lines

    def logbook(self, resume: str) -> None:
        """Tells status, events and log, which runs and studies have alike."""
        try:
            self.whole("status", status_facts(self.folder, resume))
        except MALFORMED as error:
            self.whole("status", {"state": "unreadable", "lines": [str(error)]})
        events = [one for line in self.lines("events", EVENTS) if (one := _event(line))]
        if events:
            self.events.append(("events", events[-_EVENTS:]))
        log = [one.decode(errors="replace")[:_LONGEST] for one in self.lines("log", LOG)]
        if log:
            self.events.append(("log", log[-_LINES:]))


FolderLook = Callable[[Path, str], News]
"""From a folder and a place to what is new since."""


def news_of(look: FolderLook, folder: Path, place: str) -> News:
    """What is new of a folder; of one that is gone, only that it is."""
    there, gone = folder.is_dir(), News.nothing(place)
    if there or not gone.before(_SEEN):
        news = look(folder, place)
        if not there:
            return news
        if folder.is_dir():  # else it went meanwhile: files that are missing begin nothing anew
            news.mark(_SEEN, "1")
            return news
    words = f"{folder} is gone: it was moved or deleted while this page was open."
    gone.whole("status", {"state": "unreadable", "lines": [words]})
    gone.mark(_SEEN, "1")
    return gone


def news_of_several(look: FolderLook, folders: Sequence[Path], place: str) -> News:
    """What is new of several folders."""
    each = zip_longest(folders, place.split(_SEVERAL)[: len(folders)], fillvalue="")
    return News.joined([news_of(look, Path(one), at) for one, at in each])


def status_facts(folder: Path, resume: str) -> dict[str, Any]:
    """What a status says, with its renderer's lines; who works there is looked up."""
    if is_there(folder / STATUS):
        inside(folder, STATUS)
    status = read_status(folder)
    if status is None:
        return {"state": "new", "lines": ["No process has begun it."]}
    state = status.judged()
    works = state in ("running", "silent")
    parts = progress_parts(status if works else still(status))
    complete = is_there(folder / "result.json")
    idle = [] if works else ["Complete." if complete else idle_line(status, resume)]
    facts = asdict(status) | {"state": state, "works": works, "complete": complete}
    del facts["updated"]  # it changes without anything being new
    return facts | {"lines": [*idle, *folded(parts, _WIDTH)], "host": status.host}


def _event(line: bytes) -> str | None:
    """The line of one event; None where it is none."""
    try:
        event = json.loads(line)
        if not isinstance(event, dict) or not isinstance(event["at"], int | float):
            return None
        return event_line(event)[:_LONGEST]
    except (ValueError, KeyError, RecursionError, TypeError):
        return None


def small(folder: Path, name: str) -> Path | None:
    """A small file of a folder; None where there is none that may be read."""
    try:
        return inside(folder, name, MOST_BYTES)
    except (OSError, UnreadableError):
        return None


class Mark(NamedTuple):
    """How far a file was read.

    Attributes:
        inode: of the file.
        offset: bytes, up to the end of a line.
        check: crc32 of the bytes before it, so that another file of the same inode is noticed.
    """

    inode: int = 0
    offset: int = 0
    check: int = 0

    @classmethod
    def parse(cls, text: str) -> Mark:
        """The inverse of `str`; of anything else, the beginning."""
        parts = text.split("-")
        fine = len(parts) == 3 and all(one.isascii() and one.isdigit() for one in parts)
        return cls(*map(int, parts)) if fine and len(text) < 60 else cls()

    def __str__(self) -> str:
        return f"{self.inode}-{self.offset}-{self.check}"


class Appended(NamedTuple):
    """What a look found.

    Attributes:
        lines: whole lines after the mark, without their ends; a half-written one waits.
        mark: of the next look.
        anew: the mark was none of this file, or too far back: `lines` are not what follows on it.
    """

    lines: list[bytes]
    mark: Mark
    anew: bool


def inside(folder: Path, name: str, limit: int | None = None) -> Path:
    """A file of a folder, once nothing on its way leads out of it.

    Args:
        folder: of a run or study.
        name: of the file, from us and not from a request.
        limit: bytes that it may have.

    Raises:
        FileNotFoundError: there is none.
        UnreadableError: a link leads out of the folder, it is no regular file, or too large.
    """
    try:
        path, home = (folder / name).resolve(), folder.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle
        raise UnreadableError(f"its place cannot be found ({error})") from error
    if not path.is_relative_to(home):
        raise UnreadableError("a link leads out of its folder")
    regular_file(path, limit)
    return path


def appended(folder: Path, name: str, mark: Mark, tail: int = MOST_APPENDED) -> Appended:
    """Lines since a mark.

    Args:
        folder, name: see `inside`.
        mark: of the look before.
        tail: bytes at the file's end that are read where the mark says nothing.

    Raises:
        UnreadableError: see `inside`. A file that is not there has no lines.
    """
    with _opened(folder, name) as file:
        if file is None:
            return Appended([], Mark(), mark != Mark())
        facts = os.fstat(file.fileno())
        size, inode = facts.st_size, facts.st_ino
        if mark == Mark(inode, size, mark.check):
            return Appended([], mark, False)  # the usual look: nothing is read
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
        return Appended(lines, Mark(inode, end, _check(file, end)), not known)


class TableRows(NamedTuple):
    """Rows of a CSV table.

    Attributes:
        columns: names; none before there is a header.
        rows: cells in their order.
        mark: of the next look.
        anew: all rows are other ones than before; else they follow on those.
    """

    columns: list[str]
    rows: list[list[Cell]]
    mark: Mark
    anew: bool


def table(folder: Path, name: str, mark: Mark, points: int, rows: int) -> TableRows:
    """Rows since a mark; where it says nothing, rows of the whole table, thinned.

    A table of any length takes the same time: one that is long is looked at in `points` places
    only, which lie equally far apart in the file.

    Args:
        folder, name: see `inside`.
        mark: of the look before.
        points: rows of each member at most, of the whole table.
        rows: of all members together at most.
    """
    with _opened(folder, name) as file:
        columns, begin = ([], 0) if file is None else _header(file)
        if file is None or not columns:
            return TableRows([], [], Mark(), mark != Mark())
        found = appended(folder, name, mark, tail=0)
        if not found.anew:
            more = _thinned(columns, found.lines, points, rows)
            return TableRows(columns[:_COLUMNS], more, found.mark, False)
        facts = os.fstat(file.fileno())
        size = facts.st_size
        if size <= max(_WHOLE, points * _WINDOW):
            file.seek(begin)
            content = file.read(size - begin)
            content = content[: content.rfind(b"\n") + 1]
            lines, end = content.split(b"\n"), begin + len(content)
        else:
            lines, end = _sampled(file, begin, size, points)
        mark = Mark(facts.st_ino, end, _check(file, end))
        return TableRows(columns[:_COLUMNS], _thinned(columns, lines, points, rows), mark, True)


def _sampled(file: BinaryIO, begin: int, size: int, points: int) -> tuple[list[bytes], int]:
    """Lines in so many places of a file, each member's first one there, and where the last ends."""
    lines, content, place = list[bytes](), b"", begin
    for k in range(points):
        place = begin + round((size - begin - _WINDOW) * k / max(1, points - 1))
        file.seek(place)
        content = file.read(_WINDOW)
        there = content.split(b"\n")[1 if k else 0 : -1]
        firsts = dict[bytes, bytes]()
        for line in there if k < points - 1 else there[::-1]:
            firsts.setdefault(line.partition(b",")[0], line)
        lines += firsts.values()
    return lines, place + content.rfind(b"\n") + 1


def _thinned(
    columns: list[str], lines: Sequence[bytes], points: int, rows: int
) -> list[list[Cell]]:
    """Rows of lines; of each member every k-th one and its last, at most `points` of it."""
    by_member = dict[bytes, list[bytes]]()
    for line in lines:
        if line:
            key = line.partition(b",")[0] if columns[0] == "member" else b""
            by_member.setdefault(key, []).append(line)
    each = max(2, min(points, rows // max(1, len(by_member))))
    found = []
    for own in list(by_member.values())[:rows]:
        stride = -(-len(own) // each)
        for line in own[(len(own) - 1) % stride :: stride]:
            cells = _cells(line)
            if len(cells) == len(columns):  # else it was torn
                found.append([_cell(cell) for cell in cells[:_COLUMNS]])
    return found


def _header(file: BinaryIO) -> tuple[list[str], int]:
    """Names of the columns and where the rows begin; none before the first line is whole."""
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
    """The file, open for reading; None where there is none. Opening a pipe would not wait."""
    try:
        path = inside(folder, name)
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
