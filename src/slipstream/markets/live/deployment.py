"""Deployment: a named policy with numbered versions, one of them current, and its audit log.

::

    deployments/NAME/versions/N/   the policy; its manifest contains config, data schema and gates
    deployments/NAME/current       number of the current version, replaced atomically
    deployments/NAME/accounts/N/   paper account of that version
    deployments/NAME/audit.jsonl   log of changes; each line contains the hash of the previous one
    deployments/NAME/status.json   status of the paper account's process; events.jsonl, log.txt
"""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.safe_io import UnreadableError, path_exists, read_bytes
from slipstream.core.storage import checkpoint, folder_registry
from slipstream.core.storage.atomic_io import AppendOnlyFile, to_jsonable, write_bytes, write_text
from slipstream.core.storage.status_file import (
    AUDIT,
    CURRENT,
    DEPLOYMENT,
    DEPLOYMENTS,
    current_version,
)
from slipstream.core.text import printable
from slipstream.markets.live.journal import Journal
from slipstream.markets.live.paper_account import BARS, JOURNAL
from slipstream.studies.record.inspection import VERSIONS
from slipstream.training.runs.policies import DeployedPolicy

ACCOUNTS = "accounts"
KILL = "KILL"
STOP, FLAT = "stop", "flat"
NOT_SWITCHED = "not switched"  # audit event: the switch of the previous line did not happen
_MAX_NAME_LENGTH = 100
_MAX_SWITCH_BYTES = 64


@dataclass(frozen=True)
class Deployment:
    """Folder of a deployment.

    Attributes:
        path: absolute path.
    """

    path: Path

    @classmethod
    def from_name(cls, name: str | Path) -> Deployment:
        """Return ``deployments/NAME``, or the folder itself if a path is given.

        Raises:
            ConfigError: the name cannot be a folder name.
        """
        path, text = Path(name), str(name)
        is_invalid = not path.name.isprintable() or len(path.name) > _MAX_NAME_LENGTH
        if not path.name or path.name.startswith((".", "-")) or is_invalid:
            raise ConfigError(
                f"{printable(text[:40])!r} cannot be the name of a deployment. Use letters, "
                "digits, dots, dashes and underscores."
            )
        if len(path.parts) == 1:
            path = Path(DEPLOYMENTS) / path
        return cls(path.expanduser().absolute())

    @classmethod
    def open(cls, name: str | Path) -> Deployment:
        """Open an existing deployment, in ``./deployments`` or found by name in the registry.

        Raises:
            CheckpointError: there is none, or several have that name.
        """
        deployment = cls.from_name(name)
        if not deployment.exists:
            deployment = cls(folder_registry.find_folder(name, DEPLOYMENT) or deployment.path)
        if not deployment.exists:
            names = sorted(
                current.parent.name for current in deployment.path.parent.glob(f"*/{CURRENT}")
            )
            listed = f"it contains {', '.join(names)}" if names else "it contains none"
            raise CheckpointError(
                f"There is no deployment {deployment.path.name} in {deployment.path.parent}; "
                f"{listed}. Create one with `slipstream deploy STUDY --name "
                f"{shlex.quote(deployment.path.name)}`."
            )
        return deployment

    @property
    def exists(self) -> bool:
        """True if a version was deployed."""
        return path_exists(self.path / CURRENT)

    @property
    def current(self) -> int:
        """Number of the current version; 0 before the first."""
        return current_version(self.path)

    @property
    def versions(self) -> list[int]:
        """Numbers of complete versions, ascending."""
        manifests = (self.path / VERSIONS).glob(f"*/{checkpoint.MANIFEST}")
        return sorted(
            int(manifest.parent.name) for manifest in manifests if manifest.parent.name.isdigit()
        )

    def version(self, number: int) -> Path:
        """Return the policy folder of a version, which `slipstream evaluate` also accepts."""
        return self.path / VERSIONS / str(number)

    def account(self, number: int) -> Path:
        """Return the folder of a version's paper account."""
        return self.path / ACCOUNTS / str(number)

    def policy(self, trust: bool = False) -> DeployedPolicy:
        """Open the policy of the current version."""
        return DeployedPolicy.open(self.version(self.current), trust)

    def stored_bars(self) -> tuple[Path, int]:
        """Return the bar folder of the current account, and the first time decided on.

        Raises:
            CheckpointError: there is no decision yet.
        """
        folder, first = self.account(self.current), None
        if (folder / JOURNAL).is_file():
            with closing(Journal(folder / JOURNAL)) as journal:
                first = journal.first_time()
        if first is None:
            raise CheckpointError(
                f"The account of {self.path.name} has no decision yet. Run it with `slipstream "
                f"paper start {shlex.quote(self.path.name)} --feed replay:DIR`, or tail:FILE."
            )
        return folder / BARS, first

    @property
    def previous(self) -> int:
        """Number of the previously current version, by the audit log; 0 if there was none."""
        active = list[int]()
        for line in self.audit():
            if line["event"] == NOT_SWITCHED:
                active.pop()
            active.append(line["to"])
        if active and active[-1] != self.current:  # killed between the audit line and the switch
            active.pop()
        return next((number for number in reversed(active) if number != self.current), 0)

    def switch(self, number: int, event: str, **details: Any) -> None:
        """Make a version current, after writing a line to the audit log.

        Raises:
            ConfigError: there is no such version.
        """
        if number not in self.versions:
            listed = ", ".join(map(str, self.versions)) or "none"
            which = number or "before its first"
            raise ConfigError(
                f"{self.path.name} has no version {which}, only {listed}. Choose one with --to."
            )
        done = self.audit()
        if done and done[-1]["to"] != self.current:  # killed between the audit line and the switch
            self.append_audit(NOT_SWITCHED, self.current, {})
        self.append_audit(event, number, details)
        write_text(self.path / CURRENT, f"{number}\n")

    def audit(self) -> list[dict[str, Any]]:
        """Return all lines of the audit log, oldest first.

        Raises:
            CheckpointError: a line was changed or removed.
        """
        lines, before = [], ""
        for number, line in enumerate(self._audit_lines(), 1):
            try:
                entry = json.loads(line)
                broken = entry["previous"] != before
            except (ValueError, KeyError, TypeError):
                broken = True
            if broken:
                raise CheckpointError(
                    f"{self.path / AUDIT} was modified: line {number} does not continue the "
                    "previous one. Restore the previous file."
                )
            before = hashlib.sha256(line).hexdigest()
            lines.append(entry)
        return lines

    def _audit_lines(self) -> list[bytes]:
        path = self.path / AUDIT
        try:
            return read_bytes(path).split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except UnreadableError as error:
            raise CheckpointError(
                f"{path} cannot be read: {error}. Restore the previous file."
            ) from error

    def append_audit(self, event: str, to: int, details: Mapping[str, Any]) -> None:
        """Append a line to the audit log after removing an incomplete line that a kill left."""
        path, lines = self.path / AUDIT, self._audit_lines()
        complete = b"".join(line + b"\n" for line in lines)
        if path.is_file() and path.stat().st_size != len(complete):
            write_bytes(path, complete)
        before = hashlib.sha256(lines[-1]).hexdigest() if lines else ""
        entry = {"time": time.time(), "event": event, "to": to, **details, "previous": before}
        with closing(AppendOnlyFile(path)) as file:
            file.write(json.dumps(to_jsonable(entry)).encode() + b"\n")
            file.sync()


def set_kill_switch(deployment: Path, flat: bool) -> None:
    """Set the kill switch of a deployment: only orders that close positions are sent from then on.

    Args:
        deployment: folder of the deployment.
        flat: sell all positions.
    """
    write_text(deployment / KILL, f"{FLAT if flat else STOP}\n")


def read_kill_switch(deployment: Path) -> str | None:
    """Return `flat` or `stop` if the switch is set; an empty or unknown file means `stop`."""
    path = deployment / KILL
    if not path_exists(path):
        return None
    try:
        return FLAT if read_bytes(path, _MAX_SWITCH_BYTES).strip() == FLAT.encode() else STOP
    except FileNotFoundError:  # a dangling link, or removed meanwhile
        return STOP if path_exists(path) else None
    except UnreadableError:
        return STOP
