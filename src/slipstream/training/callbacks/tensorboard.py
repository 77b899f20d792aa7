"""Callback that writes TensorBoard curves under the names of Stable-Baselines3."""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slipstream.core.storage.atomic_io import AppendOnlyFile, disk_errors
from slipstream.core.text import as_utf8
from slipstream.training.callbacks.events import (
    PREFIX,
    Evaluated,
    Event,
    Finished,
    Progress,
    Started,
    Updated,
)

if TYPE_CHECKING:
    from slipstream.training.settings.config import RunConfig

_POINTS = 500  # maximum points of a curve
_EVENTS = 5_000  # maximum events of all members: writing one takes about 0.1 ms
_FLUSH_SECONDS = 5.0
_LOADING = threading.Lock()

# Metric of an update -> SB3's tag; metrics without one are written as train/NAME.
_TAGS = {
    "score": "rollout/ep_rew_mean",
    "length": "rollout/ep_len_mean",
    "episodes": "rollout/episodes",
    "policy_loss": "train/policy_gradient_loss",
    "updates": "",  # written as train/n_updates
}
_REWARD, _EVALUATED = "rollout/ep_rew_mean", "eval/mean_reward"


def get_hyperparams(config: RunConfig) -> list[dict[str, float | str | bool]]:
    """Return the hyperparameters of each member by name: agent settings, num_envs and seed."""
    training, members = config.training, range(config.training.members)
    shared = {
        "env": config.env_name,
        "agent": config.agent_name,
        "num_envs": training.num_envs,
        "total_timesteps": training.total_timesteps,
    }
    hyperparams = []
    for member in members:
        settings = config.agent.select([member], len(members)).model_dump(mode="json")
        for name in config.agent.PER_MEMBER:
            if isinstance(settings[name], list):
                (settings[name],) = settings[name]
        values = {**shared, "seed": training.seed + member, **settings}
        known = {name: value for name, value in values.items() if value is not None}
        hyperparams.append({name: _plain(value) for name, value in known.items()})
    return hyperparams


def _plain(value: Any) -> float | str | bool:
    return value if isinstance(value, bool | int | float | str) else str(value)


class TensorBoardWriter:
    """Writes event files, one folder per member; long runs are thinned to a few hundred points.

    ``rollout/ep_rew_mean``, ``ep_len_mean`` and an environment's own metrics (``rollout/NAME``) are
    means of the last training episodes. ``time/fps`` is the member's steps per second. ``eval/``
    has scores on the validation split, ``test/`` those on the test split. ``machine/`` is the
    resource usage of all processes. The tab HPARAMS shows members by their settings. tensorboardX
    is imported with the first point, so it does not delay the first update.

    Args:
        folder: folder of the files.
        parameters: hyperparameters of each member, see `get_hyperparams`.
    """

    def __init__(
        self, folder: Path, parameters: Sequence[Mapping[str, float | str | bool]] = ()
    ) -> None:
        self._folder = folder
        self._parameters = parameters
        self._files: dict[int, _EventFile] = {}
        self._session_start = 0  # steps at the start of this session
        self._next = 0.0  # steps of the next point
        self._flushed = time.monotonic()

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        if isinstance(event, Started):
            self._session_start = event.progress.steps
        elif isinstance(event, Updated) and event.progress.steps >= self._next:
            points = max(50, min(_POINTS, _EVENTS // len(event.members)))
            self._next = event.progress.steps + event.progress.budget / points
            machine = event.machine.columns() if event.machine else {}
            shared = _time(event.progress) | {f"machine/{name}": machine[name] for name in machine}
            for column, member in enumerate(event.members):
                values = {name: float(metric[column]) for name, metric in event.metrics.items()}
                self._add(member, event.progress.steps, {**_tagged(values), **shared})
            self._flush_sometimes()
        elif isinstance(event, Evaluated):
            for column, member in enumerate(event.members):
                values = {"mean_reward": float(event.scores[column])}
                values |= {name: float(metric[column]) for name, metric in event.metrics.items()}
                place = "test" if event.split == "test" else "eval"
                tagged = {f"{place}/{name}": value for name, value in values.items()}
                self._add(member, event.progress.steps, tagged)
        elif isinstance(event, Finished):
            self.close()

    def sync(self) -> None:
        """Write the buffer without fsync: a power failure loses a few points."""
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Write the buffer and close the files."""
        files = list(self._files.values())
        self._files.clear()
        for file in files:
            file.close()

    def _add(self, member: int, steps: int, values: Mapping[str, float]) -> None:
        """Add finite values of one member."""
        _load_without_torch()
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
            # Makes TensorBoard discard the later points of a killed session.
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            file.add(
                event_pb2.Event(wall_time=now, step=self._session_start + 1, session_log=start)
            )
            if member < len(self._parameters):
                for summary in _session(self._parameters[member]):
                    file.add(event_pb2.Event(wall_time=now, summary=summary))
            self._files[member] = file
        return self._files[member]

    def _flush_sometimes(self) -> None:
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.sync()
            self._flushed = time.monotonic()


def _tagged(values: Mapping[str, float]) -> dict[str, float]:
    """Return metrics of an update under SB3's names."""
    tagged = {_TAGS.get(name, _own_tag(name)): value for name, value in values.items()}
    tagged.pop("", None)
    if "train/entropy" in tagged:  # SB3 minimizes its negative
        tagged["train/entropy_loss"] = -tagged.pop("train/entropy")
    return tagged


def _own_tag(name: str) -> str:
    """Return the tag of a metric unknown to SB3; metrics of episodes are under rollout/."""
    if name.startswith(PREFIX):
        return f"rollout/{name.removeprefix(PREFIX)}"
    return f"train/{name}"


def _time(progress: Progress) -> dict[str, float]:
    return {
        "time/total_timesteps": float(progress.steps),
        "time/iterations": float(progress.iterations),
        "time/time_elapsed": progress.wall,
        "time/fps": progress.steps / progress.wall if progress.wall > 0.0 else float("nan"),
        "train/n_updates": float(progress.updates),
    }


def _load_without_torch() -> None:
    """Import tensorboardX without torch, which it would import if installed and which takes
    seconds.
    """
    with _LOADING:  # several threads may train
        if not {"tensorboardX", "torch"} & sys.modules.keys():
            sys.modules["torch"] = None  # type: ignore[assignment]  # makes the import fail
            try:
                import tensorboardX  # noqa: F401
            finally:
                del sys.modules["torch"]


def _session(parameters: Mapping[str, float | str | bool]) -> Sequence[Any]:
    """Return the summaries for the tab HPARAMS: the settings and their result curves."""
    from tensorboardX.summary import hparams

    # A path that this locale cannot decode has surrogates, which protobuf rejects.
    written = {
        key: as_utf8(value) if isinstance(value, str) else value
        for key, value in parameters.items()
    }
    experiment, start, _ = hparams(written, {_REWARD: 0.0, _EVALUATED: 0.0})
    return experiment, start


class _EventFile:
    """TensorBoard event file: records of length, its checksum, event, its checksum."""

    def __init__(self, path: Path) -> None:
        self._file = AppendOnlyFile(path)
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
