"""Command-line interface of slipstream.

Each command imports its dependencies when it runs, so that `slipstream --help` is fast.
"""

import sys
from pathlib import Path

from slipstream.core.child_process import exit_on_stop_signals
from slipstream.core.platform_check import unsupported_message

if (_problem := unsupported_message()) is not None:
    sys.stderr.write(f"{_problem}\n")
    raise SystemExit(2)
if Path(sys.argv[0]).parts[-2:] in (("bin", "slipstream"), ("slipstream", "__main__.py")):
    exit_on_stop_signals()  # running as a program; imports take a second

from slipstream.cli.main import main

__all__ = ["main"]
