"""Folders of deployments for the CLI, the dashboard and the job queue.

See `FolderKind` in `core/plugins.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.safe_io import read_json
from slipstream.core.storage import checkpoint
from slipstream.core.storage.database import ConcurrentWriteError
from slipstream.core.storage.status_file import AUDIT, CURRENT, DEPLOYMENT
from slipstream.core.storage.updates import (
    MALFORMED,
    MOST_BYTES,
    POINTS,
    Updates,
    find_small_file,
    resolve_inside,
)
from slipstream.markets.live.account_comparison import RERUN
from slipstream.markets.live.account_runner import run_account
from slipstream.markets.live.auto_promotion import watch_folder
from slipstream.markets.live.deployment import (
    ACCOUNTS,
    KILL,
    Deployment,
    read_kill_switch,
    set_kill_switch,
)
from slipstream.markets.live.journal import Decision, Journal
from slipstream.markets.live.paper_account import JOURNAL
from slipstream.training.runs.policies import forced_gate_warnings

NAME = DEPLOYMENT
JOBS = ("paper start", "deploy --watch")
_MAX_TEXT_LENGTH = 400  # characters
_MAX_LINES = 200  # newest lines of the audit log and newest fills
_MAX_PASSES = 32
_MAX_JOURNAL_BYTES = 4 << 30
_NUMBER = (int, float)
_PASS = {"name": str, "num_equal": int, "num_compared": int, "fills": int, "costs": _NUMBER}
_PASS |= {"curve": [[_NUMBER]], "position_changes": [list]}
_RERUN = {"at": _NUMBER, "passes": [_PASS]}


def scored(
    folder: Path, data: str | Path | None, start: str | None
) -> tuple[Path, str | Path | None, str | None]:
    """Return the folder of the current policy, and by default the bars of its account."""
    deployment = Deployment.from_name(folder)
    if data is None:
        data, first = deployment.stored_bars()
        start = start or datetime.fromtimestamp(first, UTC).isoformat()
    return deployment.version(deployment.current), data, start


def policy(folder: Path, acts: bool) -> Path:
    """Return the folder of the current policy.

    Raises:
        CheckpointError: the policy must act on the account's bars, and there are none.
    """
    deployment = Deployment.open(folder)
    if acts:
        deployment.stored_bars()
    return deployment.version(deployment.current)


def resume(folder: Path, log: Callable[[str], None], trust: bool) -> None:
    """Continue the paper account with its feed."""
    run_account(folder, notify=log, trust=trust)


def job(command: str, options: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Return the folder that a command of `JOBS` works on, and its fixed options.

    Raises:
        ConfigError: the command cannot be a job with these options.
    """
    if command == "paper start":
        folder = Deployment.open(options["name"]).path.resolve()
        return folder, {"name": folder}
    if command == "deploy" and options["watch"] is not None:
        deployment = Deployment.from_name(options["name"])
        return watch_folder(deployment).resolve(), {"name": deployment.path.resolve()}
    raise ConfigError(
        "A job of a deployment must run its account or watch studies. Use `slipstream jobs add -- "
        "paper start NAME`, or `slipstream jobs add -- deploy --watch 'PATTERN*' --name NAME`."
    )


def act(folder: Path, action: str) -> str | None:
    """Set the kill switch if the action is `kill`; return a message."""
    if action != "kill":
        return None
    set_kill_switch(folder, flat=False)
    return f"The account makes no decisions and sends no orders until {KILL} is removed."


def updates(folder: Path, cursor: str) -> Updates:
    """Return the changes of a deployment since a cursor."""
    updates, deployment = Updates(folder, cursor), Deployment(folder)
    try:
        account = f"{ACCOUNTS}/{deployment.current}"
    except MALFORMED:
        account = ACCOUNTS
    if updates.has_changed("facts", CURRENT, AUDIT, KILL, "versions"):
        updates.events.append(("facts", _metadata(deployment)))
    updates.add_logbook(f"slipstream paper start {shlex.quote(str(folder))}")
    parts = [f"{account}/{name}" for name in (JOURNAL, f"{JOURNAL}-wal", RERUN)]
    if updates.has_changed("account", CURRENT, *parts):
        with suppress(ConcurrentWriteError):  # the next call reads the changed files
            updates.events.append(("account", _account_update(folder, *parts[::2])))
    return updates


def _metadata(deployment: Deployment) -> dict[str, Any]:
    """Return the current version with its gates, all versions, and the newest audit lines."""
    folder = deployment.path
    metadata: dict[str, Any] = {"name": folder.name, "killed": read_kill_switch(folder)}
    try:
        versions, number = deployment.versions, deployment.current
        manifests = f"versions/{number}/{checkpoint.MANIFEST}"
        resolve_inside(folder, manifests, MOST_BYTES)
        manifest = checkpoint.read_manifest(deployment.version(number))
        gates = [
            {key: gate[key] for key in ("name", "passed", "figure", "forced")}
            for gate in manifest.get("gates", ())
        ]
        metadata |= {"version": number, "versions": versions[-_MAX_LINES:], "gates": gates}
        metadata["label"] = str(manifest.get("label", ""))[:_MAX_TEXT_LENGTH]
        metadata["study"] = str(manifest.get("study") or "")[:_MAX_TEXT_LENGTH]
        metadata["forced"] = forced_gate_warnings(manifest)
        if find_small_file(folder, AUDIT):
            keys = ("time", "event", "to", "source", "why")
            lines = [{key: line.get(key) for key in keys} for line in deployment.audit()]
            metadata["audit"] = lines[-_MAX_LINES:]
    except MALFORMED as error:
        metadata["unreadable"] = str(error)
    return metadata


def _account_update(folder: Path, journal: str, rerun: str) -> dict[str, Any]:
    """Return the thinned equity and last action of each pass, and the stored comparison."""
    updates: dict[str, Any] = {"passes": [], "rerun": None}
    try:
        if (folder / journal).exists():
            path = resolve_inside(folder, journal, _MAX_JOURNAL_BYTES)
            with closing(Journal(path, read_only=True)) as account_journal:
                updates["passes"] = [
                    _curve(name, account_journal.decisions(name))
                    for name in account_journal.pass_names()[:_MAX_PASSES]
                ]
        if find_small_file(folder, rerun):
            updates["rerun"] = read_json(folder / rerun, CheckpointError, "", _RERUN)
    except ConcurrentWriteError:
        raise
    except MALFORMED as error:
        updates["unreadable"] = str(error)
    return updates


def _curve(name: str, rows: Sequence[Decision]) -> dict[str, Any]:
    last, stride = rows[-1], -(-len(rows) // POINTS)
    points = rows[(len(rows) - 1) % stride :: stride]
    metadata = {"name": name, "time": last.time, "equity": last.equity, "count": len(rows)}
    metadata |= {"action": last.action, "target_units": last.target_units}
    return metadata | {
        "curve": [(float(decision.time), float(decision.equity)) for decision in points]
    }
