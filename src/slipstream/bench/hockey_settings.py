"""What the hockey cases train, in one place."""

from __future__ import annotations

from typing import Any

BOTS = {"weak": 1.0, "strong": 3.0}


def against_bots(**training: Any) -> dict[str, Any]:
    """PPO from nothing with the kernel's own suggestions: 64 x 64 networks, both bots."""
    return {"env": {"name": "hockey", "opponents": BOTS}, "training": training}


def against_itself() -> dict[str, Any]:
    """The same, against a pool of 8 snapshots that is full from the eighth iteration on."""
    pool = {"slots": 8, "snapshot_iterations": 1, "evaluation": {"random": 1.0}}
    return {"env": {"name": "hockey", "self_play": pool}}
