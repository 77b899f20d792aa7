"""Writes down that a command passed: ``python -m slipstream.bench.passed FILE COMMAND``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from slipstream.bench import machine
from slipstream.bench.suite import write_result


def passed(path: Path, command: str) -> None:
    """When, on which machine and at which commit `command` last passed."""
    write_result(
        path,
        {
            "command": command,
            "passed": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "commit": machine.commit(),
            "machine": machine.describe(),
            "versions": machine.versions(),
        },
    )


if __name__ == "__main__":
    passed(Path(sys.argv[1]), sys.argv[2])
