"""The machine file: what `slipstream tune-machine` measured, which `backend: auto` goes by.

One file an environment, in `machine/` of the cache folder, with an entry for each machine that it
was measured on: a folder may be shared. It says how copies are stepped and never how many there
are, so no result depends on it. What is damaged, of another machine or of another state of the
environment is passed over, with a sentence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from slipstream.core.cores import usable_cores
from slipstream.core.errors import ResourceError
from slipstream.core.reader import read_json
from slipstream.training.files import write_sealed
from slipstream.training.provenance import processor
from slipstream.vector.cache import private_folder

_FORMAT = 1
_NEAR = 2.0  # times as many copies, or as few, that a measurement still speaks for
_SHAPE: dict[str, Any] = {
    "format": int,
    "environment": {},
    "machines": [
        {"machine": {}, "source": str, "version": str, "measured": str, "copies": {}},
    ],
}


class Way(NamedTuple):
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
class Measured:
    """What was found fastest.

    Attributes:
        date: when, ``2026-11-22``.
        ways: by number of copies.
    """

    date: str
    ways: Mapping[int, Way]

    def near(self, copies: int) -> Way | None:
        """For so many copies, or for the nearest number within a factor of 2; None beyond."""

        def apart(other: int) -> float:
            return max(copies, other) / min(copies, other)

        nearest = min(self.ways, key=apart, default=0)
        return self.ways[nearest] if nearest and apart(nearest) <= _NEAR else None


def recall(identity: Identity) -> tuple[Measured | None, str | None]:
    """What was measured of an environment on this machine, or a sentence why that is passed over.

    Both are None where it was never measured.
    """
    again = f"run `slipstream tune-machine {identity.name}`"
    try:
        path = _path(identity)
        found = read_json(path, ResourceError, f"Delete it, or {again}.", _SHAPE)
        if found is None:
            return None, None
        entries = found["machines"]
        mine = next((one for one in entries if one["machine"] == this_machine()), None)
        if mine is None:
            others = ", ".join(sorted({str(one["machine"].get("processor")) for one in entries}))
            return None, (
                f"{path} was measured on another machine ({others}) and is passed over; {again} "
                "to measure this one."
            )
        if mine["source"] != identity.source or mine["version"] != _version():
            return None, (
                f"{path} is of {mine['measured']}, and {identity.name} or slipstream has changed "
                f"since: it is passed over; {again} to measure anew."
            )
        return Measured(mine["measured"], _ways(mine["copies"], path, again)), None
    except ResourceError as error:
        return None, f"{error} Until then `auto` goes by the time that a step takes."


def remember(identity: Identity, measured: Measured) -> Path:
    """Writes down what was measured here, in place of what was; returns the file.

    Raises:
        ResourceError: it cannot be written.
    """
    path = _path(identity)
    try:
        before = read_json(path, ResourceError, "", _SHAPE) or {"machines": []}
    except ResourceError:  # damaged: written anew
        before = {"machines": []}
    machine = this_machine()
    entry = {
        "machine": machine,
        "source": identity.source,
        "version": _version(),
        "measured": measured.date,
        "copies": {str(copies): way._asdict() for copies, way in measured.ways.items()},
    }
    others = [one for one in before["machines"] if one["machine"] != machine]
    about = {"name": identity.name, "settings": identity.settings}
    write_sealed(
        path, {"format": _FORMAT, "environment": about, "machines": [*others, entry]}
    )  # fmt: skip
    return path


def this_machine() -> dict[str, Any]:
    """What a measurement speaks for: processor, cores that this process may use, memory."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
    }


def _path(identity: Identity) -> Path:
    about = json.dumps([identity.name, identity.settings], sort_keys=True, default=str)
    name = hashlib.sha256(about.encode()).hexdigest()[:20]
    return private_folder("machine") / f"{name}.json"


def _ways(copies: Mapping[str, Any], path: Path, again: str) -> dict[int, Way]:
    """By copies.

    Raises:
        ResourceError: what is written is no such thing.
    """
    try:
        ways = {int(n): Way(str(one["backend"]), int(one["workers"])) for n, one in copies.items()}
    except (ValueError, TypeError, KeyError) as error:
        raise ResourceError(f"{path} cannot be read: {error!r}. Delete it, or {again}.") from error
    if any(n < 1 or way.workers < 1 for n, way in ways.items()):
        raise ResourceError(f"{path} cannot be read: a number below 1. Delete it, or {again}.")
    return ways


def _version() -> str:
    return metadata.version("slipstream")
