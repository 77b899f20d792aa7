"""Overview page: all visible runs, studies and jobs, and the machine."""

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
from slipstream.core.safe_io import UnreadableError, path_exists
from slipstream.core.storage.resource_monitor import Gpus
from slipstream.core.storage.status_file import LEDGER, MARKER_FILES
from slipstream.core.storage.updates import MALFORMED, Cursor, read_table_tail, resolve_inside
from slipstream.jobs.job_list import ENDED_STATES, JobRow, list_jobs
from slipstream.jobs.job_process import get_status
from slipstream.jobs.queue import JobQueue, user_queue
from slipstream.studies.record.ledger import Ledger, rank_eligible
from slipstream.training.callbacks.metrics import METRICS

LEDGER_BYTES = 4 << 30
_MAX_TRIALS, _MAX_STAGES = 20_000, 16  # mean number of stages per trial
_EVERY_SECONDS = 10.0  # interval of resource samples
_FIRST_SAMPLE_SECONDS = 0.1  # duration of the first sample in seconds
_HOUR = 3_600.0
_MAX_DEPTH = 3  # maximum number of folders below a given one
_MAX_FOLDERS = 5_000  # maximum number of folders searched there
_MAX_ENDED = 40  # rows of ended jobs, newest first, besides those in given folders
_MAX_SPARKLINES = 60  # rows with a sparkline
_SPARKLINE_POINTS = 40  # points of a sparkline
_CACHE_SIZE = 2_000  # cached sparklines


class VisibleFolders:
    """Folders that may be shown: those of the user's register and queue, and those given.

    Each has an id that reveals nothing of its path; no path ever comes from a request.

    Args:
        named: runs, studies, or folders that contain some.
        queue: folder of the queue; None: the user's queue.
    """

    def __init__(self, named: Sequence[Path] = (), queue: Path | None = None) -> None:
        self._named, self._queue = [path.expanduser().resolve() for path in named], queue
        self._rows: dict[str, JobRow] = {}

    def open_queue(self) -> JobQueue:
        """Open the queue."""
        return user_queue() if self._queue is None else JobQueue(self._queue)

    def list_rows(self, include_ended: bool = True) -> list[JobRow]:
        """Return all folders as in `slipstream jobs`."""
        with self.open_queue() as queue:
            rows, _ = list_jobs(queue, include_ended, self._find_folders())
        if include_ended:
            self._rows = {folder_id(row.folder): row for row in rows}
        return rows

    def find_row(self, number: str) -> JobRow:
        """Return the row of an id.

        Raises:
            KeyError: there is no such id.
        """
        line = self._rows.get(number)
        if line is None or not (line.job or path_exists(Path(line.folder))):
            self.list_rows()
        return self._rows[number]

    def is_named(self, folder: str) -> bool:
        """Return whether a folder was given, or is inside one that was."""
        return any(Path(folder).is_relative_to(path) for path in self._named)

    def _find_folders(self) -> list[Path]:
        """Return runs and studies inside the given folders."""
        folders, left, looked = [], [(path, 0) for path in self._named], 0
        while left and looked < _MAX_FOLDERS:
            folder, depth = left.pop()
            looked += 1
            if any(path_exists(folder / name) for name in MARKER_FILES.values()):
                folders.append(folder)
                continue
            try:
                below = [
                    path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()
                ]
            except OSError:
                continue
            if depth < _MAX_DEPTH:
                left += [(path, depth + 1) for path in below]
        return folders


def folder_id(folder: str) -> str:
    """Return the id of a folder in addresses."""
    return hashlib.sha256(folder.encode(errors="surrogateescape")).hexdigest()[:16]


class Sparklines:
    """Sparklines of scores, cached while their files are unchanged."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, list[float]]] = {}

    def get_points(self, line: JobRow) -> list[float]:
        """Return a run's score over steps, or a study's best score over trials; up to 40 points."""
        folder = Path(line.folder)
        try:
            if line.kind == "study":
                path = resolve_inside(folder, LEDGER, LEDGER_BYTES)
                parts = [path, path.with_name(f"{LEDGER}-wal")]
            else:
                parts = [resolve_inside(folder, METRICS)]
            stats = [row.stat() for row in parts if row.exists()]
            now = [(row.st_ino, row.st_size, row.st_mtime_ns) for row in stats]
            before = self._known.pop(line.folder, None)
            if before is None or before[0] != now:
                before = now, _study_scores(folder) if line.kind == "study" else _run_scores(folder)
            self._known[line.folder] = before
            if len(self._known) > _CACHE_SIZE:
                del self._known[next(iter(self._known))]
            return before[1]
        except MALFORMED:
            return []


def _run_scores(folder: Path) -> list[float]:
    """Return the mean score of members over the metrics table."""
    table = read_table_tail(folder, METRICS, Cursor(), _SPARKLINE_POINTS, 8 * _SPARKLINE_POINTS)
    if not {"steps", "score"} <= set(table.columns):
        return []
    steps, score = table.columns.index("steps"), table.columns.index("score")
    by_step: dict[float, list[float]] = {}
    for row in table.rows:
        at, value = row[steps], row[score]
        if isinstance(at, float) and isinstance(value, float):
            by_step.setdefault(at, []).append(value)
    means = [sum(values) / len(values) for _, values in sorted(by_step.items())]
    return means[:: -(-len(means) // _SPARKLINE_POINTS) or 1]


@contextmanager
def open_ledger(folder: Path) -> Iterator[tuple[Ledger, tuple[int, int, int]]]:
    """Open a study's ledger for reading, and return its `Ledger.row_counts`.

    Raises:
        FileNotFoundError: there is none.
        SlipstreamError, UnreadableError: it cannot be read, or is too long for a page.
    """
    with Ledger(resolve_inside(folder, LEDGER, LEDGER_BYTES), read_only=True) as ledger:
        num_suggestions, decisions, openings = ledger.row_counts()
        if num_suggestions > _MAX_TRIALS or decisions > _MAX_TRIALS * _MAX_STAGES:
            raise UnreadableError(
                f"it has {num_suggestions:,} trials, and at most {_MAX_TRIALS:,} are shown"
            )
        yield ledger, (num_suggestions, decisions, openings)


def _study_scores(folder: Path) -> list[float]:
    with open_ledger(folder) as (ledger, _):
        decisions = sorted(rank_eligible(ledger.decisions()), key=lambda decision: decision.at)
    best: list[float] = []
    for decision in decisions:
        best.append(max([decision.score or 0.0, *best[-1:]]))
    return best[:: -(-len(best) // _SPARKLINE_POINTS) or 1]


def build_rows(folders: VisibleFolders, sparks: Sparklines) -> tuple[list[dict[str, Any]], int]:
    """Return a row for each run, study and job: first running ones, then the newest ended ones.

    Returns:
        The rows, and the number of older ones without a row.
    """
    lines = folders.list_rows()
    running = [row for row in lines if row.state not in ENDED_STATES]
    ended = sorted((row for row in lines if row.state in ENDED_STATES), key=lambda row: row.since)[
        ::-1
    ]
    displayed = [
        row for k, row in enumerate(ended) if k < _MAX_ENDED or folders.is_named(row.folder)
    ]
    rows = []
    for index, line in enumerate([*running, *displayed]):
        status = get_status(Path(line.folder))
        share = status.completed / status.total if status is not None and status.total > 0 else None
        rows.append(
            {
                **asdict(line),
                "id": folder_id(line.folder),
                "share": None if share is None else min(1.0, max(0.0, share)),
                "phase": status.phase if status is not None else "",
                "best": status.best.get("score") if status is not None else None,
                "spark": sparks.get_points(line) if index < _MAX_SPARKLINES else [],
                "ended": line.state in ENDED_STATES,
            }
        )
    return rows, len(ended) - len(displayed)


class MachineHistory:
    """Resource usage of the machine in the last hour, sampled every ten seconds, in memory."""

    def __init__(self) -> None:
        self._cards = Gpus()
        self._rows = deque[dict[str, Any]](maxlen=round(_HOUR / _EVERY_SECONDS))
        self._idle = _idle_seconds()
        self.cores = psutil.cpu_count() or 1
        self.memory = total_memory()

    def sample(self) -> None:
        """Add a sample if ten seconds have passed since the last one."""
        now = time.time()
        if self._rows and 0 <= now - self._rows[-1]["at"] < _EVERY_SECONDS - 0.5:
            return
        self._rows.append(
            {
                "at": round(now, 1),
                "cpu": self._cpu_percent(),
                "memory": total_memory() - free_memory(),
                "cards": self._cards.query(),
            }
        )

    def _cpu_percent(self) -> float:
        """Return the CPU usage since the last sample; the first one measures a moment."""
        if not self._rows:
            self._idle = _idle_seconds()
            time.sleep(_FIRST_SAMPLE_SECONDS)
        (idle, at), self._idle = self._idle, _idle_seconds()
        share = (self._idle[0] - idle) / max(1e-9, (self._idle[1] - at) * self.cores)
        return round(100 * min(1.0, max(0.0, 1 - share)), 1)

    def since(self, at: float) -> Mapping[str, Any]:
        """Return samples after a time, and the machine's cores and memory."""
        rows = [sample for sample in self._rows if sample["at"] > at]
        return {"cores": self.cores, "memory": self.memory, "rows": rows}


def _idle_seconds() -> tuple[float, float]:
    """Return idle seconds of all cores, and the time; psutil's percent is per thread."""
    times = psutil.cpu_times()
    return times.idle + getattr(times, "iowait", 0.0), time.monotonic()


def describe_machine(cards: Gpus) -> str:
    """Describe the machine in a line for terminals; CPU usage is since the last line."""
    total, gpus = total_memory(), cards.query()
    parts = [
        f"CPU {psutil.cpu_percent():.0f} % of {psutil.cpu_count()} cores",
        f"memory {(total - free_memory()) / 2**30:.1f} of {total / 2**30:.1f} GiB",
    ]
    for gpu in gpus:
        texts = [gpu["name"]]
        texts += [f"{gpu['percent']:.0f} %"] if gpu["percent"] is not None else []
        texts += [f"{gpu['vram'] / 2**30:.1f} GiB"] if gpu["vram"] is not None else []
        texts += [f"{gpu['watts']:.0f} W"] if gpu["watts"] is not None else []
        parts.append(" ".join(texts))
    return "  ".join(parts if gpus else [*parts, "no GPU"])
