"""Check of the platform. Any Python version can import this file, to print the message."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

OLDEST, NEWEST = (3, 11), (3, 13)  # as in pyproject.toml


def unsupported_message(
    version: tuple[int, ...] = sys.version_info[:2],
    system: str = sys.platform,
    variables: Mapping[str, str] = os.environ,
) -> str | None:
    """Return why this interpreter, system or environment is not supported, or None."""
    if not OLDEST <= tuple(version[:2]) <= NEWEST:
        current, oldest, newest = (
            ".".join(map(str, version_info[:2])) for version_info in (version, OLDEST, NEWEST)
        )
        return (
            f"slipstream needs Python {oldest} to {newest}, and this is Python {current}. Make an "
            f"environment with a supported one: python{oldest} -m venv .venv && .venv/bin/pip "
            "install slipstream"
        )
    if system not in ("linux", "darwin"):
        return (
            f"slipstream runs on Linux and macOS, and this is {system}, which lacks the forks and "
            "locks that its workers need. On Windows, install it inside WSL 2 (`wsl --install`)."
        )
    threads = variables.get("NUMBA_NUM_THREADS", "").strip()
    if threads.lstrip("+-").isdigit() and int(threads) < 1:  # Numba would refuse to be imported
        return (
            f"NUMBA_NUM_THREADS must be a number of threads from 1 on, got {threads}. Unset it "
            "(`unset NUMBA_NUM_THREADS`): slipstream chooses its threads itself, see --cores."
        )
    return None
