"""Writes down that a command passed: ``python -m benchmarks.passed FILE COMMAND``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks import machine
from slipstream.core.storage.atomic_io import write_json


def passed(path: Path, command: str) -> None:
    """When, on which machine and at which commit `command` last passed."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    write_json(path, {"command": command, "passed": when, **machine.stamp()})


if __name__ == "__main__":
    passed(Path(sys.argv[1]), sys.argv[2])
