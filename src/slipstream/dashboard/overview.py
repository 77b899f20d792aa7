"""The first page: where every run, study and job stands that can be shown, and the machine."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from slipstream.core.capacity import free_memory, total_memory
from slipstream.core.safe_io import UnreadableError, is_there
from slipstream.core.storage.resource_monitor import Cards
from slipstream.core.storage.status_file import LEDGER, MARKS
from slipstream.core.storage.updates import MALFORMED, Mark, inside, table
from slipstream.jobs.job_list import OVER, JobLine, overview
from slipstream.jobs.job_process import status_of
from slipstream.jobs.queue import JobQueue, own_queue
from slipstream.studies.record.ledger import Ledger, rank_eligible
from slipstream.training.callbacks.metrics import METRICS

LEDGER_BYTES = 4 << 30
_MOST_TRIALS, _MOST_STAGES = 20_000, 16  # stages of each, on average
_EVERY_SECONDS = 10.0  # between two looks at the machine
_MOMENT = 0.1  # s, over which the first look measures
_HOUR = 3_600.0
_DEEP = 3  # folders below one that was named
_MOST_FOLDERS = 5_000  # that are looked into there
_ENDED = 40  # rows of what has ended, the newest first, and all of named folders
_SPARKS = 60  # rows with a small curve
_POINTS = 40  # of it
_KEPT = 2_000  # small curves that are remembered while their files are the same


class Places:
    """The folders that may be shown: of the user's register and queue, and those that were named.

    Each has an id that says nothing of its path; no path ever comes from a request.

    Args:
        named: runs, studies, or folders with some of them below.
        queue: whose jobs; the user's own unless given.
    """

    def __init__(self, named: Sequence[Path] = (), queue: Path | None = None) -> None:
        self._named, self._queue = [one.expanduser().resolve() for one in named], queue
        self._known: dict[str, JobLine] = {}

    def open_queue(self) -> JobQueue:
        """The table of jobs."""
        return own_queue() if self._queue is None else JobQueue(self._queue)

    def lines(self, ended: bool = True) -> list[JobLine]:
        """All of them as `slipstream jobs` tells them."""
        with self.open_queue() as queue:
            found, _ = overview(queue, ended, self._below())
        if ended:
            self._known = {id_of(one.folder): one for one in found}
        return found

    def find(self, number: str) -> JobLine:
        """What has an id.

        Raises:
            KeyError: nothing has.
        """
        line = self._known.get(number)
        if line is None or not (line.job or is_there(Path(line.folder))):
            self.lines()
        return self._known[number]

    def named(self, folder: str) -> bool:
        """Whether a folder was named, or lies below one that was."""
        return any(Path(folder).is_relative_to(one) for one in self._named)

    def _below(self) -> list[Path]:
        """Runs and studies in the named folders."""
        found, left, looked = [], [(one, 0) for one in self._named], 0
        while left and looked < _MOST_FOLDERS:
            folder, depth = left.pop()
            looked += 1
            if any(is_there(folder / name) for name in MARKS.values()):
                found.append(folder)
                continue
            try:
                below = [one for one in folder.iterdir() if one.is_dir() and not one.is_symlink()]
            except OSError:
                continue
            if depth < _DEEP:
                left += [(one, depth + 1) for one in below]
        return found


def id_of(folder: str) -> str:
    """The id of a folder in addresses."""
    return hashlib.sha256(folder.encode(errors="surrogateescape")).hexdigest()[:16]


class Sparks:
    """Small curves of scores, remembered while the files that they are of stay the same."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, list[float]]] = {}

    def of(self, line: JobLine) -> list[float]:
        """A run's score over its steps, a study's best so far over its trials; up to 40 points."""
        folder = Path(line.folder)
        try:
            if line.kind == "study":
                path = inside(folder, LEDGER, LEDGER_BYTES)
                parts = [path, path.with_name(f"{LEDGER}-wal")]
            else:
                parts = [inside(folder, METRICS)]
            stats = [one.stat() for one in parts if one.exists()]
            now = [(one.st_ino, one.st_size, one.st_mtime_ns) for one in stats]
            before = self._known.pop(line.folder, None)
            if before is None or before[0] != now:
                before = now, _best(folder) if line.kind == "study" else _scores(folder)
            self._known[line.folder] = before
            if len(self._known) > _KEPT:
                del self._known[next(iter(self._known))]
            return before[1]
        except MALFORMED:
            return []


def _scores(folder: Path) -> list[float]:
    """The mean score of members, along the table."""
    found = table(folder, METRICS, Mark(), _POINTS, 8 * _POINTS)
    if not {"steps", "score"} <= set(found.columns):
        return []
    steps, score = found.columns.index("steps"), found.columns.index("score")
    by_step: dict[float, list[float]] = {}
    for row in found.rows:
        at, value = row[steps], row[score]
        if isinstance(at, float) and isinstance(value, float):
            by_step.setdefault(at, []).append(value)
    means = [sum(values) / len(values) for _, values in sorted(by_step.items())]
    return means[:: -(-len(means) // _POINTS) or 1]


@contextmanager
def ledger_of(folder: Path) -> Iterator[tuple[Ledger, tuple[int, int, int]]]:
    """A study's ledger, open for reading, and how much is written, see `Ledger.written`.

    Raises:
        FileNotFoundError: there is none.
        SlipstreamError, UnreadableError: it cannot be read, or is too long for a page.
    """
    with Ledger(inside(folder, LEDGER, LEDGER_BYTES), read_only=True) as ledger:
        asks, verdicts, openings = ledger.row_counts()
        if asks > _MOST_TRIALS or verdicts > _MOST_TRIALS * _MOST_STAGES:
            raise UnreadableError(f"it has {asks:,} trials, and {_MOST_TRIALS:,} are the most")
        yield ledger, (asks, verdicts, openings)


def _best(folder: Path) -> list[float]:
    with ledger_of(folder) as (ledger, _):
        verdicts = sorted(rank_eligible(ledger.decisions()), key=lambda one: one.at)
    best: list[float] = []
    for one in verdicts:
        best.append(max([one.score or 0.0, *best[-1:]]))
    return best[:: -(-len(best) // _POINTS) or 1]


def rows_of(places: Places, sparks: Sparks) -> tuple[list[dict[str, Any]], int]:
    """A row for each run, study and job: first what has not ended, then the newest that have.

    Returns:
        The rows, and how many older ones have none.
    """
    lines = places.lines()
    going = [one for one in lines if one.state not in OVER]
    over = sorted((one for one in lines if one.state in OVER), key=lambda one: one.since)[::-1]
    shown = [one for k, one in enumerate(over) if k < _ENDED or places.named(one.folder)]
    found = []
    for place, line in enumerate([*going, *shown]):
        status = status_of(Path(line.folder))
        share = status.done / status.of if status is not None and status.of > 0 else None
        found.append(
            {
                **asdict(line),
                "id": id_of(line.folder),
                "share": None if share is None else min(1.0, max(0.0, share)),
                "phase": status.phase if status is not None else "",
                "best": status.best.get("score") if status is not None else None,
                "spark": sparks.of(line) if place < _SPARKS else [],
                "ended": line.state in OVER,
            }
        )
    return found, len(over) - len(shown)


class MachineHistory:
    """What the whole machine did in the last hour, in memory; looked at every ten seconds."""

    def __init__(self) -> None:
        self._cards = Cards()
        self._rows = deque[dict[str, Any]](maxlen=round(_HOUR / _EVERY_SECONDS))
        self._idle = _idle()
        self.cores = psutil.cpu_count() or 1
        self.memory = total_memory()

    def look(self) -> None:
        """Adds a look where ten seconds have passed since the last one."""
        now = time.time()
        if self._rows and 0 <= now - self._rows[-1]["at"] < _EVERY_SECONDS - 0.5:
            return
        self._rows.append(
            {
                "at": round(now, 1),
                "cpu": self._percent(),
                "memory": total_memory() - free_memory(),
                "cards": self._cards.each(),
            }
        )

    def _percent(self) -> float:
        """Use of all cores since the look before; the first one takes a moment for it."""
        if not self._rows:
            self._idle = _idle()
            time.sleep(_MOMENT)
        (idle, at), self._idle = self._idle, _idle()
        share = (self._idle[0] - idle) / max(1e-9, (self._idle[1] - at) * self.cores)
        return round(100 * min(1.0, max(0.0, 1 - share)), 1)

    def since(self, at: float) -> Mapping[str, Any]:
        """Looks after a moment, and what the machine has."""
        rows = [one for one in self._rows if one["at"] > at]
        return {"cores": self.cores, "memory": self.memory, "rows": rows}


def _idle() -> tuple[float, float]:
    """Seconds that all cores together did nothing, and when: psutil's percent is a thread's own."""
    times = psutil.cpu_times()
    return times.idle + getattr(times, "iowait", 0.0), time.monotonic()


def machine_line(cards: Cards) -> str:
    """The machine in a line for terminals; processor since the line before."""
    total, each = total_memory(), cards.each()
    told = [
        f"CPU {psutil.cpu_percent():.0f} % of {psutil.cpu_count()} cores",
        f"memory {(total - free_memory()) / 2**30:.1f} of {total / 2**30:.1f} GiB",
    ]
    for one in each:
        facts = [one["name"]]
        facts += [f"{one['percent']:.0f} %"] if one["percent"] is not None else []
        facts += [f"{one['vram'] / 2**30:.1f} GiB"] if one["vram"] is not None else []
        facts += [f"{one['watts']:.0f} W"] if one["watts"] is not None else []
        told.append(" ".join(facts))
    return "  ".join(told if each else [*told, "no GPU"])
