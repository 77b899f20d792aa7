"""The machine file: what `slipstream tune-machine` measured, which `backend: auto` goes by.

One file an environment, in `machine/` of the cache folder, with an entry for each machine that it
was measured on: a folder may be shared. It says how copies are stepped and never how many there
are, so no result depends on it. What is damaged, of another machine or of another state of the
environment is passed over, with a sentence.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from slipstream.core.capacity import total_memory, usable_cores
from slipstream.core.errors import ResourceError
from slipstream.core.safe_io import read_json
from slipstream.core.storage.atomic_io import acquire_lock, disk_errors, write_hashed
from slipstream.core.storage.provenance import cpu_model
from slipstream.core.version import __version__
from slipstream.jit.cache import private_folder
from slipstream.training.environments.environment import Environment, Part, SteppingConfig

_FORMAT = 1
_NEAR = 2.0  # times as many copies, or as few, that a measurement still speaks for
_SHAPE: dict[str, Any] = {
    "format": int,
    "environment": {},
    "machines": [
        {"machine": {}, "source": str, "version": str, "measured": str, "copies": {}},
    ],
}


class StepConfig(NamedTuple):
    """How copies are stepped: a backend, and its worker processes, or threads where compiled."""

    backend: str
    workers: int


@dataclass(frozen=True)
class Identity:
    """Which environment was measured.

    Attributes:
        name: as in a config.
        settings: what it was made with, plain values.
        source: hash of its rules, as far as they can be found; empty where not.
    """

    name: str
    settings: Mapping[str, Any]
    source: str


@dataclass(frozen=True)
class AutotuneEntry:
    """What was found fastest.

    Attributes:
        date: when, ``2026-11-22``.
        ways: by number of copies.
    """

    date: str
    configs: Mapping[int, StepConfig]

    def near(self, num_envs: int) -> StepConfig | None:
        """For so many copies, or for the nearest number within a factor of 2; None beyond."""

        def apart(other: int) -> float:
            return max(num_envs, other) / min(num_envs, other)

        nearest = min(self.configs, key=apart, default=0)
        return self.configs[nearest] if nearest and apart(nearest) <= _NEAR else None


@dataclass(frozen=True)
class Tunable(Environment, Part):
    """An environment whose copies can be stepped in several ways, with equal results.

    Attributes:
        measured: how copies of a lone member are stepped fastest here, where the machine file says.
        step_seconds: of one copy of foreign rules, as measured here; `backend: auto` goes by it.
            None: its first steps are still to be taken.
    """

    measured: AutotuneEntry | None = field(default=None, kw_only=True)
    step_seconds: float | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def identity(self) -> Identity | None:
        """What a machine file is kept under; None if stepping leaves no choice."""

    def step_config(self, num_envs: int) -> StepConfig | None:
        """How so many copies of a lone member are stepped, if that was measured."""
        found = None if self.measured is None else self.measured.near(num_envs)
        return found if found is not None and found.backend in self.kind.backends else None

    def probed(self, stepping: SteppingConfig | None = None) -> Self:
        """This environment, once rules of somebody else's have taken their first steps.

        Copies that fail are dealt with as the fault policy of `stepping` says.

        Args:
            stepping: its own unless given.

        Raises:
            KernelError: they break at once.
        """
        return self

    def may_crash(self, num_envs: int) -> bool:
        """Whether rules that nobody checked would be stepped by this process itself: `auto`."""
        return False


def load_entry(identity: Identity) -> tuple[AutotuneEntry | None, str | None]:
    """What was measured of an environment on this machine, or a sentence why that is passed over.

    Both are None where it was never measured.
    """
    again = f"run `slipstream tune-machine {shlex.quote(identity.name)}`"
    try:
        path = _path(identity)
        found = read_json(path, ResourceError, f"Delete it, or {again}.", _SHAPE)
        if found is None:
            return None, None
        if found["format"] != _FORMAT:
            return None, (
                f"{path} has format {found['format']}, and this version of slipstream reads "
                f"{_FORMAT}: it is passed over; {again} to write it anew."
            )
        entries, here = found["machines"], this_machine()
        mine = next((one for one in entries if one["machine"] == here), None)
        if mine is None:
            others = "; ".join(sorted({_described(one["machine"]) for one in entries}))
            return None, (
                f"{path} was measured on another machine, or with other cores or memory "
                f"({others}), than there are here ({_described(here)}), and is passed over; "
                f"{again} to measure these."
            )
        if mine["source"] != identity.source or mine["version"] != __version__:
            return None, (
                f"{path} is of {mine['measured']}, and {identity.name} or slipstream has changed "
                f"since: it is passed over; {again} to measure anew."
            )
        return AutotuneEntry(mine["measured"], _ways(mine["copies"], path, again)), None
    except ResourceError as error:
        return None, f"{error} Until then `auto` goes by the time that a step takes."


def save_entry(identity: Identity, measured: AutotuneEntry) -> Path:
    """Writes down what was measured here, in place of what was; returns the file.

    Raises:
        ResourceError: it cannot be written.
        ConfigError: another process keeps its folder locked.
    """
    path, machine = _path(identity), this_machine()
    entry = {
        "machine": machine,
        "source": identity.source,
        "version": __version__,
        "measured": measured.date,
        "copies": {str(num_envs): way._asdict() for num_envs, way in measured.configs.items()},
    }
    about = {"name": identity.name, "settings": identity.settings}
    refusal = (
        f"Another process is writing into {path.parent}, and {path.name} was not written. Run "
        f"`slipstream tune-machine {shlex.quote(identity.name)}` again when it has ended."
    )
    with acquire_lock(
        path.parent, refusal
    ):  # a process beside this one may add its machine's entry
        others = [one for one in _entries(path) if one["machine"] != machine]
        write_hashed(
            path, {"format": _FORMAT, "environment": about, "machines": [*others, entry]}
        )  # fmt: skip
    return path


def _entries(path: Path) -> list[dict[str, Any]]:
    """What is written; none of a file that is damaged or of another format: it is written anew."""
    try:
        found = read_json(path, ResourceError, "", _SHAPE)
    except ResourceError:
        return []
    return list(found["machines"]) if found is not None and found["format"] == _FORMAT else []


def this_machine() -> dict[str, Any]:
    """What a measurement speaks for: processor, cores that this process may use, memory."""
    return {
        "processor": cpu_model(),
        "cores": usable_cores(),
        "memory_gib": round(total_memory() / 2**30),
    }


def _described(machine: Mapping[str, Any]) -> str:
    """``AMD EPYC, 2 cores, 24 GiB``."""
    processor, cores, memory = (machine.get(key) for key in ("processor", "cores", "memory_gib"))
    return f"{processor}, {cores} {'core' if cores == 1 else 'cores'}, {memory} GiB"


def _path(identity: Identity) -> Path:
    """A file in `$SLIPSTREAM_MACHINE`, else in `machine` of the cache folder.

    Raises:
        ResourceError: the folder cannot be made.
    """
    about = json.dumps([identity.name, identity.settings], sort_keys=True, default=str)
    name = f"{hashlib.sha256(about.encode()).hexdigest()[:20]}.json"
    given = os.environ.get("SLIPSTREAM_MACHINE")
    if not given:
        return private_folder("machine") / name
    with disk_errors(Path(given)):
        Path(given).mkdir(parents=True, exist_ok=True)
    return Path(given) / name


def _ways(num_envs: Mapping[str, Any], path: Path, again: str) -> dict[int, StepConfig]:
    """By copies.

    Raises:
        ResourceError: what is written is no such thing.
    """
    try:
        ways = {
            int(n): StepConfig(str(one["backend"]), int(one["workers"]))
            for n, one in num_envs.items()
        }
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ResourceError(f"{path} cannot be read: {error!r}. Delete it, or {again}.") from error
    if any(n < 1 or way.workers < 1 for n, way in ways.items()):
        raise ResourceError(f"{path} cannot be read: a number below 1. Delete it, or {again}.")
    return ways
