"""Command-line interface of slipstream.

Each command imports its dependencies when it runs, so that `slipstream --help` is fast.
"""

import sys
from pathlib import Path

from slipstream.core.child_process import leave_in_words
from slipstream.core.platform_check import refusal

if (_problem := refusal()) is not None:
    sys.stderr.write(f"{_problem}\n")
    raise SystemExit(2)
if Path(sys.argv[0]).parts[-2:] in (("bin", "slipstream"), ("slipstream", "__main__.py")):
    leave_in_words()  # running as a program; imports take a second

from slipstream.cli.main import main

__all__ = ["main"]
