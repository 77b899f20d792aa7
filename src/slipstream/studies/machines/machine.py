"""Machines that lend their cores to a study, and the file that tells other shells of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipstream.studies.engine.member import Outcome
from slipstream.studies.machines.remote_worker import RemoteWorker

_FILE = "machines.json"
_EVERY_SECONDS = 5.0


@dataclass
class Machine:
    """A machine that has joined.

    Attributes:
        id: unique; another one each time it joins.
        host: as people call it.
        workers: as the pool sees them.
        stretches, members: done so far: answers, and milestones of members in them.
    """

    id: str
    host: str
    workers: Sequence[RemoteWorker]
    stretches: int = 0
    members: int = 0
    joined: float = field(default_factory=time.time)

    def done(self, outcomes: Sequence[Outcome]) -> None:
        """An answer came."""
        self.stretches += 1
        self.members += len(outcomes)

    def as_dict(self) -> dict[str, Any]:
        """For the file."""
        busy = sum(bool(worker.work) for worker in self.workers)
        facts = {"host": self.host, "workers": len(self.workers), "busy": busy}
        return {**facts, "members": self.members, "joined": self.joined}


class MachineFile:
    """`machines.json` in a study's folder, there while an owner with machines runs.

    Args:
        folder: of the study.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._written, self._content = 0.0, "[]"

    def write(self, machines: Iterable[Machine]) -> None:
        """Tells who is there; not more often than people look."""
        content = json.dumps([machine.as_dict() for machine in machines])
        now = time.monotonic()
        if content == self._content or now - self._written < _EVERY_SECONDS:
            return
        with suppress(OSError):  # it decides nothing
            temporary = self._path.with_name(f".{_FILE}")
            temporary.write_text(content, encoding="utf-8")
            temporary.replace(self._path)
            self._written, self._content = now, content

    def remove(self) -> None:
        """Nobody is there any more."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def machine_lines(folder: Path) -> list[str]:
    """A line for each machine that lends its cores to a study now."""
    try:
        machines: list[Mapping[str, Any]] = json.loads((folder / _FILE).read_text("utf-8"))
        return [
            f"  {one['host']} lends {one['workers']} workers ({one['busy']} busy), "
            f"{one['members']:,} milestones of members reached"
            for one in machines
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
