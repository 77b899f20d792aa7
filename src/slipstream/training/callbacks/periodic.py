"""A listener that writes member 0's policy down as it was after so many episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.core.storage import checkpoint
from slipstream.core.storage.files import write_json
from slipstream.training.callbacks.events import Event, Started, Updated


class PeriodicPolicies:
    """Writes ``RUN_epNNNNNN`` beside a run, NNNNNN being the episodes that had ended.

    One is written by the first iteration past each multiple of `every`, and one by the last; each
    has a ``RUN_epNNNNNN_metadata.json`` with `episode`, `phase_index` (of the curriculum, from
    zero), `phase_episode` and `run`.

    Args:
        run: its directory.
        every: episodes of member 0.
        phases: of the curriculum.
        metrics: gives the columns of `metrics.csv`, asked when training begins or goes on.
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
        self._episodes, self._phase, self._begun = 0, 0, 0  # the last two: and when it began

    def __call__(self, event: Event) -> None:
        """Looks at every iteration."""
        if isinstance(event, Started):
            self._recall(self._metrics())
        if not isinstance(event, Updated) or event.policy is None:
            return
        before, phase = self._episodes, event.metrics.get("phase")
        self._count(int(event.metrics["episodes"][0]), 0 if phase is None else int(phase[0]))
        if not event.progress.finished and self._episodes // self._every == before // self._every:
            return
        path = self._run.with_name(f"{self._run.name}_ep{self._episodes:06d}")
        tensors, manifest = event.policy(0)
        checkpoint.save(path, tensors, {"policy": manifest, "steps": event.progress.steps})
        facts = {"phase_index": self._phase, "phase_episode": self._episodes - self._begun}
        where = path.with_name(f"{path.name}_metadata.json")
        write_json(where, {"episode": self._episodes, **facts, "run": str(self._run)})

    def _recall(self, table: Mapping[str, Sequence[Any]]) -> None:
        """Counts the iterations of the sessions before."""
        for i, member in enumerate(table.get("member", ())):
            if member == 0:
                phase = table["phase"][i] if "phase" in table else 0
                self._count(int(float(table["episodes"][i] or 0)), int(float(phase or 0)))

    def _count(self, episodes: int, phase: int) -> None:
        phase = min(phase, self._last)  # one more when the last is over
        if phase != self._phase:
            self._phase, self._begun = phase, episodes
        self._episodes = episodes
