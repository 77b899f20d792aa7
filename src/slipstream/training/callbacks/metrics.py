"""Callbacks that write files during training: tables of metrics, and periodic policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.storage import checkpoint
from slipstream.core.storage.atomic_io import write_json
from slipstream.core.storage.csv_table import CsvTable
from slipstream.core.storage.resource_monitor import ResourceUsage
from slipstream.training.callbacks.events import Evaluated, Event, Finished, Started, Updated

METRICS, EVALUATIONS = "metrics.csv", "evaluations.csv"
_SECONDS = ("wall", "seconds_env", "seconds_policy", "seconds_update", "seconds_validate")


class TableWriter:
    """Writes `metrics.csv` (one row per member and iteration) and `evaluations.csv`.

    Columns of resource usage are filled only in rows with a new measurement.
    """

    def __init__(self, folder: Path, log: Callable[[str], None]) -> None:
        self.metrics = CsvTable(folder / METRICS, log)
        self.evaluations = CsvTable(folder / EVALUATIONS, log)
        self._seen: ResourceUsage | None = None

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        if isinstance(event, Started):
            # Rows after the checkpoint that training resumes from will be written again.
            self.metrics.truncate("steps", event.progress.steps)
            self.evaluations.truncate("steps", event.progress.steps)
        elif isinstance(event, Updated):
            fresh = event.machine if event.machine is not self._seen else None
            self._seen = event.machine
            self.metrics.append(_update_rows(event, fresh.columns() if fresh else {}))
        elif isinstance(event, Evaluated):
            self.evaluations.append(_evaluation_rows(event))
        elif isinstance(event, Finished):
            self.close()

    def sync(self) -> None:
        """Sync all rows to disk.

        Raises:
            ResourceError: the disk is full.
        """
        self.metrics.sync()
        self.evaluations.sync()

    def close(self) -> None:
        """Sync and close both files."""
        self.sync()
        self.metrics.close()
        self.evaluations.close()


def _update_rows(event: Updated, machine: Mapping[str, float]) -> list[dict[str, Any]]:
    progress = event.progress
    names = [name for name in event.metrics if name != "updates"]
    columns = {name: np.asarray(event.metrics[name], np.float64).tolist() for name in names}
    shared = {
        "steps": progress.steps,
        "iteration": progress.iterations,
        "updates": progress.updates,
        **{name: round(getattr(progress, name), 3) for name in _SECONDS},
        **machine,
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


class PeriodicPolicies:
    """Writes policies ``RUN_epNNNNNN`` beside a run, where NNNNNN is the number of episodes.

    A policy is written by the first iteration past each multiple of `every`, and by the last one.
    Each has a ``RUN_epNNNNNN_metadata.json`` with `episode`, `phase_index` (of the curriculum, from
    zero), `phase_episode` and `run`.

    Args:
        run: the run directory.
        every: episodes of member 0 between policies.
        phases: number of phases of the curriculum.
        metrics: returns the columns of `metrics.csv`, called when training starts or resumes.
    """

    def __init__(
        self,
        run: Path,
        every: int,
        phases: int,
        metrics: Callable[[], Mapping[str, Sequence[Any]]],
    ) -> None:
        self._run, self._every, self._last = run, every, max(phases - 1, 0)
        self._metrics = metrics
        self._episodes, self._phase, self._phase_start = (
            0,
            0,
            0,
        )  # episodes, phase, and episodes at its start

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        if isinstance(event, Started):
            self._restore(self._metrics())
        if not isinstance(event, Updated) or event.policy is None:
            return
        before, phase = self._episodes, event.metrics.get("phase")
        self._count(int(event.metrics["episodes"][0]), 0 if phase is None else int(phase[0]))
        if not event.progress.finished and self._episodes // self._every == before // self._every:
            return
        path = self._run.with_name(f"{self._run.name}_ep{self._episodes:06d}")
        tensors, manifest = event.policy(0)
        checkpoint.save(path, tensors, {"policy": manifest, "steps": event.progress.steps})
        metadata = {"phase_index": self._phase, "phase_episode": self._episodes - self._phase_start}
        metadata_path = path.with_name(f"{path.name}_metadata.json")
        write_json(metadata_path, {"episode": self._episodes, **metadata, "run": str(self._run)})

    def _restore(self, table: Mapping[str, Sequence[Any]]) -> None:
        """Count the iterations of earlier sessions."""
        for i, member in enumerate(table.get("member", ())):
            if member == 0:
                phase = table["phase"][i] if "phase" in table else 0
                self._count(int(float(table["episodes"][i] or 0)), int(float(phase or 0)))

    def _count(self, episodes: int, phase: int) -> None:
        phase = min(phase, self._last)  # exceeds the last index at the end
        if phase != self._phase:
            self._phase, self._phase_start = phase, episodes
        self._episodes = episodes
