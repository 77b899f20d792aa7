"""Limits: what stops a deployment whatever its policy wants: the kill switch."""

from __future__ import annotations

from pathlib import Path

from slipstream.files.files import write_text

KILL = "KILL"
STOP, FLAT = "stop", "flat"


def kill(deployment: Path, flat: bool) -> None:
    """Throws the kill switch of a deployment: nothing is sent from now on but what closes it.

    Args:
        deployment: its folder.
        flat: sell what is held.
    """
    write_text(deployment / KILL, f"{FLAT if flat else STOP}\n")


def killed(deployment: Path) -> str | None:
    """`flat` or `stop` where the switch was thrown; an empty or strange file says `stop`."""
    try:
        text = (deployment / KILL).read_text(errors="replace").strip()
    except FileNotFoundError:
        return None
    return FLAT if text == FLAT else STOP
