"""What the page of a deployment is told: gates, versions, audit; equity, positions and fills."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from slipstream.core.errors import CheckpointError
from slipstream.core.reader import read_json
from slipstream.dashboard.appended import inside
from slipstream.dashboard.news import MALFORMED, MOST_BYTES, POINTS, News, small
from slipstream.files import checkpoint
from slipstream.files.database import ChangedError
from slipstream.files.status import CURRENT
from slipstream.live.account import JOURNAL
from slipstream.live.comparison import RERUN
from slipstream.live.deployment import ACCOUNTS, AUDIT, Deployment
from slipstream.live.journal import Decision, Journal
from slipstream.live.limits import KILL, killed
from slipstream.runs.policies import forced_sentences

_MOST = 200  # lines of the audit, and fills, the newest
_LONGEST = 400  # characters of a text
_PASSES = 32
_JOURNAL_BYTES = 4 << 30
_NUMBER = (int, float)
_CURVE = {"name": str, "equal": int, "both": int, "fills": int, "costs": _NUMBER}
_RERUN = {"at": _NUMBER, "passes": [{**_CURVE, "curve": [[_NUMBER]], "moved": [list]}]}


def deployment_news(folder: Path, place: str) -> News:
    """What is new of a deployment since a place."""
    news, found = News(folder, place), Deployment(folder)
    try:
        account = f"{ACCOUNTS}/{found.current}"
    except MALFORMED:
        account = ACCOUNTS
    if news.changed("facts", CURRENT, AUDIT, KILL, "versions"):
        news.events.append(("facts", _facts(found)))
    news.logbook(f"slipstream paper {shlex.quote(str(folder))}")
    parts = [f"{account}/{name}" for name in (JOURNAL, f"{JOURNAL}-wal", RERUN)]
    if news.changed("account", CURRENT, *parts):
        with suppress(ChangedError):  # then the next look finds other files, and tells them
            news.events.append(("account", _account(folder, *parts[::2])))
    return news


def _facts(found: Deployment) -> dict[str, Any]:
    """The version in force with its gates, all versions, and the newest lines of the audit."""
    folder = found.path
    facts: dict[str, Any] = {"name": folder.name, "killed": killed(folder)}
    try:
        versions, number = found.versions, found.current
        manifests = f"versions/{number}/{checkpoint.MANIFEST}"
        inside(folder, manifests, MOST_BYTES)
        manifest = checkpoint.read_manifest(found.version(number))
        gates = [
            {key: gate[key] for key in ("name", "passed", "figure", "forced")}
            for gate in manifest.get("gates", ())
        ]
        facts |= {"version": number, "versions": versions[-_MOST:], "gates": gates}
        facts["label"] = str(manifest.get("label", ""))[:_LONGEST]
        facts["study"] = str(manifest.get("study") or "")[:_LONGEST]
        facts["forced"] = forced_sentences(manifest)
        if small(folder, AUDIT):
            told = ("time", "event", "to", "source", "why")
            lines = [{key: one.get(key) for key in told} for one in found.audit()]
            facts["audit"] = lines[-_MOST:]
    except MALFORMED as error:
        facts["unreadable"] = str(error)
    return facts


def _account(folder: Path, journal: str, rerun: str) -> dict[str, Any]:
    """Equity of every pass, thinned; what it holds; and the rerun that `paper report` kept."""
    told: dict[str, Any] = {"passes": [], "rerun": None}
    try:
        if (folder / journal).exists():
            path = inside(folder, journal, _JOURNAL_BYTES)
            with closing(Journal(path, read_only=True)) as kept:
                told["passes"] = [_pass(name, kept.rows(name)) for name in kept.names()[:_PASSES]]
        if small(folder, rerun):
            told["rerun"] = read_json(folder / rerun, CheckpointError, "", _RERUN)
    except ChangedError:
        raise
    except MALFORMED as error:
        told["unreadable"] = str(error)
    return told


def _pass(name: str, rows: Sequence[Decision]) -> dict[str, Any]:
    last, stride = rows[-1], -(-len(rows) // POINTS)
    kept = rows[(len(rows) - 1) % stride :: stride]
    facts = {"name": name, "time": last.time, "equity": last.equity, "count": len(rows)}
    facts |= {"action": last.action, "wanted": last.wanted}
    return facts | {"curve": [(float(one.time), float(one.equity)) for one in kept]}
