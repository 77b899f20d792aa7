"""The command line: `slipstream train|resume|evaluate|init|bench|data|list|doctor`.

Every command imports what it needs when it runs, so that `slipstream --help` is fast.
"""

from slipstream.cli.main import main

__all__ = ["main"]
