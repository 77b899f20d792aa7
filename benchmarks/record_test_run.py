"""Record that a command passed: ``python -m benchmarks.record_test_run FILE COMMAND``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks import machine
from slipstream.core.storage.atomic_io import write_json


def record_test_run(path: Path, command: str) -> None:
    """Write the time, the machine and the commit of the last successful run of `command`."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    write_json(path, {"command": command, "passed": when, **machine.stamp()})


if __name__ == "__main__":
    record_test_run(Path(sys.argv[1]), sys.argv[2])
