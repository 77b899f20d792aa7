"""News: what is new of a run or a study since a place, as a page is told it.

A place is the text of one mark for each part of a page; it is an event's id. A part whose facts are
a whole file (status.json) is marked by their crc32: it is told again where they are others.
"""

from __future__ import annotations

import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from slipstream.core.errors import SlipstreamError
from slipstream.core.reader import UnreadableError, is_there
from slipstream.core.storage.appended import Mark, appended, inside, table
from slipstream.core.storage.files import plain
from slipstream.core.storage.lines import event_line, folded, idle_line, progress_parts, still
from slipstream.core.storage.status import EVENTS, LOG, STATUS, read_status

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
