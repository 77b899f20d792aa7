"""The command line: `slipstream train|resume|evaluate|init|data|list|doctor`.

Every command imports what it needs when it runs, so that `slipstream --help` is fast.
"""

import sys

from slipstream.core.system import refusal

if (_problem := refusal()) is not None:
    sys.stderr.write(f"{_problem}\n")
    raise SystemExit(2)
try:
    from slipstream.cli.main import main
except KeyboardInterrupt:  # Ctrl-C before there was a command
    raise SystemExit(130) from None

__all__ = ["main"]
