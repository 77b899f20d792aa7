"""A listener that writes numbers down: one table of updates, one of evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.storage.machine import Machine
from slipstream.core.storage.table import CsvTable
from slipstream.training.callbacks.events import Evaluated, Event, Finished, Started, Updated

METRICS, EVALUATIONS = "metrics.csv", "evaluations.csv"


class TableWriter:
    """Writes `metrics.csv` (one row per member and iteration) and `evaluations.csv`.

    Columns of the machine hold something where there was a new look at it.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.metrics = CsvTable(folder / METRICS, say)
        self.evaluations = CsvTable(folder / EVALUATIONS, say)
        self._seen: Machine | None = None

    def __call__(self, event: Event) -> None:
        """Listens."""
        if isinstance(event, Started):
            # Rows written after the checkpoint that training goes on from will come again.
            self.metrics.cut("steps", event.progress.steps)
            self.evaluations.cut("steps", event.progress.steps)
        elif isinstance(event, Updated):
            fresh = event.machine if event.machine is not self._seen else None
            self._seen = event.machine
            self.metrics.append(_update_rows(event, fresh.columns() if fresh else {}))
        elif isinstance(event, Evaluated):
            self.evaluations.append(_evaluation_rows(event))
        elif isinstance(event, Finished):
            self.close()

    def sync(self) -> None:
        """Waits until all rows are on the disk.

        Raises:
            ResourceError: the disk is full.
        """
        self.metrics.sync()
        self.evaluations.sync()

    def close(self) -> None:
        """Closes both files, on the disk."""
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
        "wall": round(progress.wall, 3),
        "seconds_env": round(progress.seconds_env, 3),
        "seconds_policy": round(progress.seconds_policy, 3),
        "seconds_update": round(progress.seconds_update, 3),
        "seconds_validate": round(progress.seconds_validate, 3),
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
