"""Outcomes of long measurements, kept so that an interrupted bench goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.bench.suite import write_result
from slipstream.bench.worker import run_worker
from slipstream.vector.cache import cache_folder

_TIMEOUT = 6 * 3600.0


@dataclass(frozen=True)
class Measurement:
    """One measurement in a process of its own, whose outcome does not depend on how busy it is.

    Attributes:
        module: of `run_worker`.
        asked: its settings.
        depends: what else decides the outcome, such as versions: another value, another cell.
    """

    module: str
    asked: Mapping[str, Any]
    depends: Mapping[str, Any]

    @property
    def key(self) -> dict[str, Any]:
        """What its outcome is kept under."""
        return {"module": self.module, "asked": dict(self.asked), "depends": dict(self.depends)}

    @property
    def digest(self) -> str:
        """Of its key; another value, another cell."""
        return hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def path(self) -> Path:
        """The file of its outcome, in the user's cache."""
        return cache_folder() / "bench" / f"{self.module}.{self.digest}.json"

    def kept(self) -> dict[str, Any] | None:
        """Its outcome if it ran before."""
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return dict(values["outcome"]) if values.get("key") == self.key else None

    def run(self) -> dict[str, Any]:
        """Its outcome, measured unless it is kept; one thread, so that several may run at once."""
        outcome = self.kept()
        if outcome is None:
            outcome = run_worker(self.module, self.asked, threads=1, timeout=_TIMEOUT)
            write_result(self.path, {"key": self.key, "outcome": outcome})
        return outcome
