"""Cache of the measurements of `slipstream autotune`, which `backend: auto` uses.

Each environment has one file in `machine/` of the cache folder, with an entry per machine, because
the folder may be shared. An entry states how environments are stepped and never their number, so no
result depends on it. Damaged entries, and those of another machine or another version of the
environment, are ignored with a notice.
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

_FORMAT = 2
_MAX_RATIO = 2.0  # factor of num_envs within which a measurement applies
_SHAPE: dict[str, Any] = {
    "format": int,
    "environment": {},
    "machines": [
        {"machine": {}, "source": str, "version": str, "measured": str, "num_envs": {}},
    ],
}


class StepConfig(NamedTuple):
    """Backend, and number of its worker processes or compiled threads."""

    backend: str
    workers: int


@dataclass(frozen=True)
class Identity:
    """Identity of a measured environment.

    Attributes:
        name: name as in a config.
        settings: settings as plain values.
        source: hash of its source files; empty if they cannot be determined.
    """

    name: str
    settings: Mapping[str, Any]
    source: str


@dataclass(frozen=True)
class AutotuneEntry:
    """Fastest step configs of an environment on one machine.

    Attributes:
        date: date of the measurement, ``2026-11-22``.
        configs: step configs by num_envs.
    """

    date: str
    configs: Mapping[int, StepConfig]

    def near(self, num_envs: int) -> StepConfig | None:
        """Return the config of the nearest measured num_envs within a factor of 2, or None."""

        def ratio(other: int) -> float:
            return max(num_envs, other) / min(num_envs, other)

        nearest = min(self.configs, key=ratio, default=0)
        return self.configs[nearest] if nearest and ratio(nearest) <= _MAX_RATIO else None


@dataclass(frozen=True)
class Tunable(Environment, Part):
    """Environment that can be stepped in several ways with identical results.

    Attributes:
        measured: measured step configs of this machine for a single member, or None.
        step_seconds: measured seconds of a step of one foreign environment, used by
            `backend: auto`; None before its first steps.
    """

    measured: AutotuneEntry | None = field(default=None, kw_only=True)
    step_seconds: float | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def identity(self) -> Identity | None:
        """Key of the cache entry; None if there is only one way to step it."""

    def step_config(self, num_envs: int) -> StepConfig | None:
        """Return the measured config for this number of sub-environments of a single member, or
        None.
        """
        config = None if self.measured is None else self.measured.near(num_envs)
        return config if config is not None and config.backend in self.kind.backends else None

    def probed(self, stepping: SteppingConfig | None = None) -> Self:
        """Return this environment after the first steps of foreign code were taken.

        Failing environments are handled by the fault policy of `stepping`.

        Args:
            stepping: stepping config; None for its own.

        Raises:
            KernelError: the first steps fail.
        """
        return self

    def may_crash(self, num_envs: int) -> bool:
        """Return whether `backend: auto` would step unchecked code in this process."""
        return False


def load_entry(identity: Identity) -> tuple[AutotuneEntry | None, str | None]:
    """Return this machine's entry of an environment, or a notice why it is ignored.

    Both are None if it was never measured.
    """
    again = f"run `slipstream autotune {shlex.quote(identity.name)}`"
    try:
        path = _path(identity)
        content = read_json(path, ResourceError, f"Delete it, or {again}.", _SHAPE)
        if content is None:
            return None, None
        if content["format"] != _FORMAT:
            return None, (
                f"{path} has format {content['format']}, but this version of slipstream reads "
                f"{_FORMAT}, so it is ignored: {again} to replace it."
            )
        entries, machine = content["machines"], this_machine()
        entry = next((item for item in entries if item["machine"] == machine), None)
        if entry is None:
            others = "; ".join(sorted({_format_machine(item["machine"]) for item in entries}))
            return None, (
                f"{path} was measured on another machine, or with other cores or memory "
                f"({others}), than this one ({_format_machine(machine)}), so it is ignored: "
                f"{again} to measure this machine."
            )
        if entry["source"] != identity.source or entry["version"] != __version__:
            return None, (
                f"{path} was measured on {entry['measured']}, and {identity.name} or slipstream "
                f"has changed since, so it is ignored: {again} to update it."
            )
        return AutotuneEntry(
            entry["measured"], _parse_configs(entry["num_envs"], path, again)
        ), None
    except ResourceError as error:
        return None, f"{error} Until then `auto` uses the measured time of a step."


def save_entry(identity: Identity, measured: AutotuneEntry) -> Path:
    """Write this machine's measurement, replacing an earlier one; return the file.

    Raises:
        ResourceError: the file cannot be written.
        ConfigError: another process keeps its folder locked.
    """
    path, machine = _path(identity), this_machine()
    entry = {
        "machine": machine,
        "source": identity.source,
        "version": __version__,
        "measured": measured.date,
        "num_envs": {
            str(num_envs): config._asdict() for num_envs, config in measured.configs.items()
        },
    }
    about = {"name": identity.name, "settings": identity.settings}
    refusal = (
        f"Another process is writing into {path.parent}, and {path.name} was not written. Run "
        f"`slipstream autotune {shlex.quote(identity.name)}` again when it has ended."
    )
    with acquire_lock(path.parent, refusal):  # another process may add an entry at the same time
        others = [item for item in _entries(path) if item["machine"] != machine]
        write_hashed(
            path, {"format": _FORMAT, "environment": about, "machines": [*others, entry]}
        )  # fmt: skip
    return path


def _entries(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a file; empty if it is damaged or has another format."""
    try:
        content = read_json(path, ResourceError, "", _SHAPE)
    except ResourceError:
        return []
    return list(content["machines"]) if content is not None and content["format"] == _FORMAT else []


def this_machine() -> dict[str, Any]:
    """Describe this machine: CPU, usable cores, memory."""
    return {
        "processor": cpu_model(),
        "cores": usable_cores(),
        "memory_gib": round(total_memory() / 2**30),
    }


def _format_machine(machine: Mapping[str, Any]) -> str:
    """Format a machine as ``AMD EPYC, 2 cores, 24 GiB``."""
    processor, cores, memory = (machine.get(key) for key in ("processor", "cores", "memory_gib"))
    return f"{processor}, {cores} {'core' if cores == 1 else 'cores'}, {memory} GiB"


def _path(identity: Identity) -> Path:
    """Return the file in `$SLIPSTREAM_MACHINE`, else in `machine` of the cache folder.

    Raises:
        ResourceError: the folder cannot be created.
    """
    about = json.dumps([identity.name, identity.settings], sort_keys=True, default=str)
    name = f"{hashlib.sha256(about.encode()).hexdigest()[:20]}.json"
    given = os.environ.get("SLIPSTREAM_MACHINE")
    if not given:
        return private_folder("machine") / name
    with disk_errors(Path(given)):
        Path(given).mkdir(parents=True, exist_ok=True)
    return Path(given) / name


def _parse_configs(num_envs: Mapping[str, Any], path: Path, again: str) -> dict[int, StepConfig]:
    """Parse step configs by num_envs.

    Raises:
        ResourceError: the file has invalid content.
    """
    try:
        configs = {
            int(n): StepConfig(str(row["backend"]), int(row["workers"]))
            for n, row in num_envs.items()
        }
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ResourceError(f"{path} cannot be read: {error!r}. Delete it, or {again}.") from error
    if any(n < 1 or config.workers < 1 for n, config in configs.items()):
        raise ResourceError(f"{path} cannot be read: a number below 1. Delete it, or {again}.")
    return configs
