"""What was appended to a file since a look before, in bounded pieces; nothing that lies is trusted.

A `Mark` says how far a look came. It travels to the browser as the id of an event and comes back
with the next question, so that nothing is kept here: who lost the connection for an hour asks with
its last mark, and gets what is missing, once.
"""

from __future__ import annotations

import csv
import io
import math
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from slipstream.core.reader import UnreadableError, regular_file

MOST_BYTES = 1 << 20  # of one look; who is further behind begins anew
_WHOLE = 1 << 20  # bytes up to which a table is read whole
_WINDOW = 1 << 14  # bytes that are looked at in each place of a longer one
_CHECKED = 256  # bytes before a mark that must be what they were
_HEADER = 1 << 14  # bytes in which a header must end
_COLUMNS = 64
_CELL = 80  # characters of a word in a table

Cell = float | str | None


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


def appended(folder: Path, name: str, mark: Mark, tail: int = MOST_BYTES) -> Appended:
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
        known = mark.inode == inode and mark.offset <= size <= mark.offset + MOST_BYTES
        known = known and _check(file, mark.offset) == mark.check
        begin = mark.offset if known else max(0, size - tail)
        file.seek(begin)
        content = file.read(min(size - begin, MOST_BYTES))
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
