"""Weights & Biases tracker: live curves, and the report, episodes and policies at the end."""

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

WANDB, TRACKED = "wandb", "wandb.json"  # tracker name, and the run's file with its id


def check_tracker(name: str | None) -> None:
    """Validate the tracker's name before a long run.

    Raises:
        ConfigError: the tracker is unknown.
        ResourceError: it is not installed.
    """
    if name is not None and name != WANDB:
        raise ConfigError(
            f"--track {name!r} is unknown. Use `{WANDB}`, or write a callback for another tracker."
        )
    if name is not None:
        import_optional(WANDB, "Tracking by Weights & Biases", WANDB)


@contextmanager
def start_tracking(run: Run, name: str | None) -> Iterator[Sequence[Callback]]:
    """Yield the tracker of a run as a callback, if one is given or tracked the run before.

    The report with its episodes and the policies are uploaded at the end, and after an
    interruption.
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
    """Sends the TensorBoard metrics to Weights & Biases; several members appear side by side.

    Offline unless WANDB_MODE is set: files are then in the run's folder `wandb`, and `wandb sync`
    uploads them. A resumed run continues under the id stored in its directory. The first failure is
    reported, and training continues without the tracker.

    Args:
        run: the run directory.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run.path, get_hyperparams(run.config))
        self._run, self._failed = run, False
        self._there: Any = None  # wandb's run, untyped because wandb is optional

    def __call__(self, event: Event) -> None:
        """Handle an event. Workers are forked before the first event."""
        if isinstance(event, Started):
            self._safely(self._begin)
        if self._there is not None:
            self._safely(partial(super().__call__, event))

    def close(self) -> None:
        """Do nothing: the session ends in `end`, after the report."""

    def sync(self) -> None:
        """Do nothing: wandb uploads by itself."""

    def end(self) -> None:
        """Upload the report, its episodes and the policies, and end the session."""
        if self._there is not None:
            self._safely(self._finish)

    def _begin(self) -> None:
        wandb: Any = import_module(WANDB)
        place = self._run.path / TRACKED
        known = read_json(place, CheckpointError, f"Remove {place} to start a new one.") or {}
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
        self._there.define_metric("*", step_metric="steps")  # steps decrease when a run is resumed

    def _add(self, member: int, steps: int, values: Mapping[str, float]) -> None:
        several = len(self._parameters) > 1
        logged = {
            f"member-{member:03d}/{name}" if several else name: value
            for name, value in values.items()
            if math.isfinite(value)
        }
        self._there.log({"steps": steps, **logged})

    def _finish(self) -> None:
        wandb: Any = import_module(WANDB)
        best = self._run.best.folder
        policies = [
            path for k in self._run.members for path in self._run.best.folder_of(k).iterdir()
        ]
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
        """Call a function unless an earlier call failed."""
        if self._failed:
            return
        try:
            do()
        except Exception as error:  # third-party code, network and disk
            self._failed = True
            self._run.notify(
                f"Weights & Biases failed ({type(error).__name__}: {error}); the run continues "
                "without it."
            )
