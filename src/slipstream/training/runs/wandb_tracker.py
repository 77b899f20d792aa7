"""A run at Weights & Biases: curves as they come, then report, episodes and policies."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.extras import import_optional
from slipstream.core.safe_io import path_exists, read_json
from slipstream.core.storage.atomic_io import write_json
from slipstream.training.callbacks.events import Callback, Event, Started
from slipstream.training.callbacks.tensorboard import TensorBoardWriter, get_hyperparams
from slipstream.training.runs.run import EPISODES, REPORT, Run

WANDB, TRACKED = "wandb", "wandb.json"  # what tracks, and what a run keeps of it


def check_tracker(name: str | None) -> None:
    """Refuses a tracker that there is not, before anything takes time.

    Raises:
        ConfigError: slipstream knows no such tracker.
        ResourceError: it is not installed.
    """
    if name is not None and name != WANDB:
        raise ConfigError(
            f"--track {name!r}: `{WANDB}` is known; others are callbacks of your own."
        )
    if name is not None:
        import_optional(WANDB, "Tracking by Weights & Biases", WANDB)


@contextmanager
def start_tracking(run: Run, name: str | None) -> Iterator[Sequence[Callback]]:
    """The listener that tracks a run, where one is named or tracked it before.

    What the run has at the end, a report with its episodes, and policies, goes along; also after
    an interruption.
    """
    if name is None and not path_exists(run.path / TRACKED):
        yield ()
        return
    tracker = WandbTracker(run)
    try:
        yield (tracker,)
    finally:
        tracker.end()


class WandbTracker(TensorBoardWriter):
    """Sends what TensorBoard gets, under the same names; several members stand side by side.

    Offline unless WANDB_MODE says otherwise: then files lie in the run's folder `wandb`, and
    `wandb sync` sends them. A resumed run goes on under the id that the run's directory keeps.
    Whatever fails here is said once, and training goes on.

    Args:
        run: the directory.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run.path, get_hyperparams(run.config))
        self._run, self._failed = run, False
        self._there: Any = None  # wandb's run: its own types are no part of this package

    def __call__(self, event: Event) -> None:
        """Listens. Workers are forked before the first event, and know nothing of it."""
        if isinstance(event, Started):
            self._safely(self._begin)
        if self._there is not None:
            self._safely(partial(super().__call__, event))

    def close(self) -> None:
        """What the last event closes elsewhere: here a report is to come."""

    def sync(self) -> None:
        """It sends by itself."""

    def end(self) -> None:
        """Adds the report, its episodes and the policies, and ends the session."""
        if self._there is not None:
            self._safely(self._finish)

    def _begin(self) -> None:
        wandb: Any = import_module(WANDB)
        place = self._run.path / TRACKED
        known = read_json(place, CheckpointError, f"Remove {place} to begin another one.") or {}
        number = str(known.get("id") or secrets.token_hex(4))
        write_json(place, {"id": number})
        self._there = wandb.init(
            id=number,
            name=self._run.path.name,
            project=os.environ.get("WANDB_PROJECT", "slipstream"),
            dir=str(self._run.path),
            config=self._run.config.as_mapping(),
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._there.define_metric("*", step_metric="steps")  # they go back where a run is resumed

    def _add(self, member: int, steps: int, values: Mapping[str, float]) -> None:
        several = len(self._parameters) > 1
        found = {
            f"member-{member:03d}/{name}" if several else name: value
            for name, value in values.items()
            if math.isfinite(value)
        }
        self._there.log({"steps": steps, **found})

    def _finish(self) -> None:
        wandb: Any = import_module(WANDB)
        best = self._run.best.folder
        policies = [one for k in self._run.members for one in self._run.best.folder_of(k).iterdir()]
        kinds = {"report": [self._run.path / REPORT], "episodes": [self._run.path / EPISODES]}
        for kind, paths in (kinds | {"policy": policies}).items():
            artefact = wandb.Artifact(f"{self._there.id}-{kind}", type=kind)
            for path in filter(path_exists, paths):
                inside = path.relative_to(best) if path.is_relative_to(best) else path.name
                artefact.add_file(str(path), name=str(inside))
            if artefact.manifest.entries:
                self._there.log_artifact(artefact)
        self._there.finish()

    def _safely(self, do: Callable[[], None]) -> None:
        """Does it, unless something failed before."""
        if self._failed:
            return
        try:
            do()
        except Exception as error:  # somebody else's program, network and disk
            self._failed = True
            self._run.notify(
                f"Weights & Biases failed ({type(error).__name__}: {error}); the run goes on "
                "without it."
            )
