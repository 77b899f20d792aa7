"""Listeners that write numbers down: a table file, and curves for TensorBoard."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.training.events import Evaluated, Event, Finished, Started, Updated
from slipstream.training.files import AppendedFile, disk_errors
from slipstream.training.table import Table

METRICS, EVALUATIONS = "metrics.csv", "evaluations.csv"
_POINTS = 500  # of a curve at most
_EVENTS = 5_000  # of all members together: writing one costs about 0.1 ms
_FLUSH_SECONDS = 5.0


class TableWriter:
    """Writes `metrics.csv` (one row per member and iteration) and `evaluations.csv`."""

    def __init__(self, folder: Path) -> None:
        self.metrics = Table(folder / METRICS)
        self.evaluations = Table(folder / EVALUATIONS)

    def __call__(self, event: Event) -> None:
        """Listens."""
        if isinstance(event, Started):
            # Rows written after the checkpoint that training goes on from will come again.
            self.metrics.cut("steps", event.progress.steps)
            self.evaluations.cut("steps", event.progress.steps)
        elif isinstance(event, Updated):
            self.metrics.append(_update_rows(event))
        elif isinstance(event, Evaluated):
            self.evaluations.append(_evaluation_rows(event))
        elif isinstance(event, Finished):
            self.close()

    def close(self) -> None:
        """Closes both files."""
        self.metrics.close()
        self.evaluations.close()


class TensorBoardWriter:
    """Writes event files, one folder a member; long runs are thinned to some hundred points.

    tensorboardX is imported with the first point, off the way to the first update.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, _EventFile] = {}
        self._begun = 0  # steps at which this session began
        self._next = 0.0  # steps from which the next point is written
        self._flushed = time.monotonic()

    def __call__(self, event: Event) -> None:
        """Listens."""
        if isinstance(event, Started):
            self._begun = event.progress.steps
        elif isinstance(event, Updated) and event.progress.steps >= self._next:
            points = max(50, min(_POINTS, _EVENTS // len(event.members)))
            self._next = event.progress.steps + event.progress.budget / points
            for column, member in enumerate(event.members):
                values = {name: float(metric[column]) for name, metric in event.metrics.items()}
                self._add(
                    member, event.progress.steps, {f"training/{k}": v for k, v in values.items()}
                )
            self._flush_sometimes()
        elif isinstance(event, Evaluated):
            for column, member in enumerate(event.members):
                values = {"score": float(event.scores[column])}
                values |= {name: float(metric[column]) for name, metric in event.metrics.items()}
                tagged = {f"{event.split}/{name}": value for name, value in values.items()}
                self._add(member, event.progress.steps, tagged)
        elif isinstance(event, Finished):
            self.close()

    def close(self) -> None:
        """Writes what is buffered and closes the files."""
        files = list(self._files.values())
        self._files.clear()
        for file in files:
            file.close()

    def _add(self, member: int, steps: int, values: Mapping[str, float]) -> None:
        from tensorboardX.proto import event_pb2, summary_pb2

        scalars = [
            summary_pb2.Summary.Value(tag=tag, simple_value=value)
            for tag, value in values.items()
            if np.isfinite(value)
        ]
        summary = summary_pb2.Summary(value=scalars)
        self._file(member).add(event_pb2.Event(wall_time=time.time(), step=steps, summary=summary))

    def _file(self, member: int) -> _EventFile:
        if member not in self._files:
            from tensorboardX.proto import event_pb2

            folder = self._folder / f"member-{member:03d}"
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            now = time.time()
            file = _EventFile(folder / f"events.out.tfevents.{now:.0f}.{os.getpid()}")
            file.add(event_pb2.Event(wall_time=now, file_version="brain.Event:2"))
            # Tells TensorBoard to forget the points of a session that was killed.
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            file.add(event_pb2.Event(wall_time=now, step=self._begun + 1, session_log=start))
            self._files[member] = file
        return self._files[member]

    def _flush_sometimes(self) -> None:
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            for file in self._files.values():
                file.flush()
            self._flushed = time.monotonic()


class _EventFile:
    """Records as TensorBoard reads them: length, its checksum, the event, its checksum."""

    def __init__(self, path: Path) -> None:
        self._file = AppendedFile(path)
        self._pending: list[bytes] = []

    def add(self, event: Any) -> None:
        from tensorboardX.record_writer import masked_crc32c

        content = event.SerializeToString()
        length = struct.pack("<Q", len(content))
        self._pending += [length, struct.pack("<I", masked_crc32c(length))]
        self._pending += [content, struct.pack("<I", masked_crc32c(content))]

    def flush(self) -> None:
        pending, self._pending = self._pending, []
        self._file.write(b"".join(pending))

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._file.close()


def _update_rows(event: Updated) -> list[dict[str, Any]]:
    progress = event.progress
    names = [name for name in event.metrics if name != "updates"]
    columns = {name: np.asarray(event.metrics[name], np.float64).tolist() for name in names}
    shared = {
        "steps": progress.steps,
        "iteration": progress.iterations,
        "updates": progress.updates,
        "wall": round(progress.wall, 3),
        "seconds_env": round(progress.seconds_env, 3),
        "seconds_policy": round(progress.seconds_policy, 3),
        "seconds_update": round(progress.seconds_update, 3),
    }
    return [
        {"member": member, **shared, **{name: columns[name][row] for name in names}}
        for row, member in enumerate(event.members)
    ]


def _evaluation_rows(event: Evaluated) -> list[dict[str, Any]]:
    best = event.best or (False,) * len(event.members)
    return [
        {
            "member": member,
            "steps": event.progress.steps,
            "split": event.split,
            "score": float(event.scores[row]),
            "best": int(best[row]),
            **{name: float(metric[row]) for name, metric in event.metrics.items()},
        }
        for row, member in enumerate(event.members)
    ]
