"""Which version wrote a state: one of another meaning is read by evaluation and report only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.core.errors import VersionError
from slipstream.core.version import __version__
from slipstream.rl.agents.discover import agent_class
from slipstream.training.settings.config import RunConfig

# Goes up when what shards and the trainer keep beside the agent's state changes its meaning; an
# agent has a number of its own.
STATE_VERSION = 1

SHAPE = {"slipstream": str, "training": int, "agent": int}


def state_version(config: RunConfig) -> dict[str, Any]:
    """JSON-able numbers of what this version writes, and its name."""
    agent = agent_class(config.agent).state_version
    return {"slipstream": __version__, "training": STATE_VERSION, "agent": agent}


def check_state_version(
    written: Mapping[str, Any], config: RunConfig, what: str, read: str, again: str
) -> None:
    """Refuses to go on from a state of another meaning.

    Args:
        written: JSON that may hold a `state_version` as ``state``.
        config: of the run or study.
        what: its name for the user.
        read: a command that still reads it; again: one that begins anew.

    Raises:
        VersionError: with the version that wrote it.
    """
    now = state_version(config)
    before = written.get("state", now)
    numbers = ("training", "agent")
    if all(before[name] == now[name] for name in numbers):
        return
    old, new = (" and ".join(f"{n} {v[n]}" for n in numbers) for v in (before, now))
    raise VersionError(
        f"{what} was written by slipstream {before['slipstream']}, whose states (of {old}) mean "
        f"something else than those of this one ({now['slipstream']}: {new}): it cannot be gone on "
        f"with here. Use the version that wrote it, or begin anew with `{again}`. What is there "
        f"can still be read: `{read}`."
    )
