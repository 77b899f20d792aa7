"""Account status: one row of text per deployment, for `slipstream paper status`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from slipstream.core.errors import CheckpointError
from slipstream.core.storage import folder_registry
from slipstream.core.storage.status_file import (
    CURRENT,
    DEPLOYMENT,
    DEPLOYMENTS,
    progress_text,
    read_status,
)
from slipstream.core.text import format_significant
from slipstream.markets.live.account_runner import AccountConfig
from slipstream.markets.live.deployment import Deployment, read_kill_switch


class AccountRow(NamedTuple):
    """State of a deployment's paper account; all fields are text.

    Attributes:
        name: name of the deployment.
        version: current version.
        state: ``running``, ``stopped``, ``complete`` (its feed has ended), ``failed``, ``gone``
            (its process was killed), ``silent`` (on another machine), ``new`` (no account yet) or
            ``unreadable``.
        progress: feed and number of decisions.
        equity: equity by pass, account currency.
        reason: why it failed, cannot be read, or makes no decisions.
        folder: absolute path of the deployment.
    """

    name: str
    version: str
    state: str
    progress: str
    equity: str
    reason: str
    folder: str


def list_accounts() -> list[AccountRow]:
    """Return the accounts of deployments below `./deployments` and of registered deployments."""
    local = sorted(path.parent for path in Path(DEPLOYMENTS).absolute().glob(f"*/{CURRENT}"))
    registered = [
        Path(entry.path)
        for entry in folder_registry.list_entries()
        if entry.kind == DEPLOYMENT and entry.is_present
    ]
    folders = {path.resolve(): path for path in [*registered, *local]}
    return [_account_row(Deployment(path)) for path in sorted(folders.values())]


def _account_row(deployment: Deployment) -> AccountRow:
    folder = deployment.path
    version, state, progress, equity, reason = "", "new", "", "", ""
    try:
        version = str(deployment.current)
        status = read_status(folder)
        if status is not None and AccountConfig.load(deployment.account(deployment.current)):
            state, progress, reason = status.liveness(), progress_text(status), status.reason
            equity = ", ".join(
                f"{name.removeprefix('equity ')} {format_significant(values[0])}"
                for name, values in status.scores.items()
            )
        if switch := read_kill_switch(folder):
            reason = f"the kill switch is set ({switch})"
    except CheckpointError as error:
        state, reason = "unreadable", str(error)
    return AccountRow(folder.name, version, state, progress, equity, reason, str(folder))
