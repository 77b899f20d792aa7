"""The report of a run directory: its policies evaluated, its curves read, its origin told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.agents.policy import Policy
from slipstream.agents.ppo_config import PER_MEMBER
from slipstream.core.errors import CheckpointError
from slipstream.report.gather import gather
from slipstream.report.inputs import Curve
from slipstream.report.page import Page, write
from slipstream.report.report import build_page
from slipstream.training.environment import Environment
from slipstream.training.evaluation import Evaluator
from slipstream.training.run import Run
from slipstream.training.track import Track

Tracks = Mapping[str, list[list[Track]]]
_ORDER = ("train_window", "train", "validation", "test", "window")


@dataclass(frozen=True)
class RunReport:
    """What was written.

    Attributes:
        page: its headline and sentences suit a terminal too.
        path: `report.html`.
        tracks: evaluation episodes by split, member and episode.
    """

    page: Page
    path: Path
    tracks: Tracks


def report_run(run: Run, environment: Environment, folder: Path | None = None) -> RunReport:
    """Evaluates the best policies of a run on every split and writes `report.html` and pictures.

    Args:
        run: has at least one best policy.
        environment: the run's own, or another one of the same kind (newer bars).
        folder: where to; the run's directory unless given.
    """
    tracks = evaluate_run(run, environment)
    splits = list(tracks)
    reads = _count_read(run) if "test" in splits else 1
    member, reason = best_member(run)
    config = run.config
    gathered = gather(
        environment,
        tracks,
        title=run.path.name,
        numbers=tuple(present_members(run)),
        member=present_members(run).index(member),
        member_reason=reason,
        same_settings=not any(
            isinstance(getattr(config.agent, name), tuple) for name in PER_MEMBER
        ),
        curves=curves(run, environment.spec.market is not None),
        notes=_notes(run, environment),
        trials=config.training.members,
        holdout_reads=reads,
        provenance=origin(run),
    )
    page = build_page(gathered)
    return RunReport(page, write(page, folder or run.path), tracks)


def evaluate_run(run: Run, environment: Environment, record: bool = True) -> Tracks:
    """Tracks of every member's best policy by split, in the order of time.

    Deterministic: equal however many copies evaluate.
    """
    available = environment.splits()
    wanted = [split for split in _ORDER if split in available]
    if "train_window" in wanted or "window" in wanted:
        wanted.remove("train")  # random starts: the whole window says more
    settings = run.config.evaluation
    policies = [best_policy(run, member) for member in present_members(run)]
    tracks: dict[str, list[list[Track]]] = {}
    for split in wanted:
        evaluator = Evaluator(
            environment,
            split,
            games=settings.episodes,
            seed=settings.seed,
            backend=run.config.training.backend,
        )
        tracks[split] = [evaluator.run(policy, record=record)[0] for policy in policies]
    return tracks


def best_policy(run: Run, member: int) -> Policy:
    """The policy that validation chose for a member."""
    tensors, manifest = run.load_best(member)
    return Policy.from_tensors(tensors, manifest["policy"])


def present_members(run: Run) -> list[int]:
    """Members that have a best policy; one that failed before its first validation has none."""
    members = [m for m in range(run.config.training.members) if run.best_folder(m).is_dir()]
    if not members:
        raise CheckpointError(
            f"{run.path} has no policy yet: it stopped before its first validation. Go on with "
            f"`slipstream resume {run.path}`."
        )
    return members


def best_member(run: Run) -> tuple[int, str]:
    """The member with the highest score where the best policies were chosen, and that in words."""
    members = present_members(run)
    scores = {m: float(run.load_best(m)[1]["score"]) for m in members}
    best = max(members, key=lambda m: scores[m])
    if len(members) == 1:
        return best, ""
    split = run.load_best(best)[1]["split"]
    where = "validation" if split == "validation" else "evaluation"
    return best, f"it has the highest {where} score of {len(members)}"


def curves(run: Run, market: bool, points: int = 400) -> tuple[Curve, ...]:
    """Learning curves from the run's tables, thinned."""
    members = run.config.training.members
    unit = "return of a\ntraining episode" if market else Curve.unit
    found = [_curve("training", run.metrics(), members, points, unit)]
    unit = "mean log return" if market else Curve.unit
    evaluations = run.evaluations()
    for split in dict.fromkeys(evaluations.get("split", [])):
        rows = [i for i, name in enumerate(evaluations["split"]) if name == split]
        part = {key: [column[i] for i in rows] for key, column in evaluations.items()}
        found.append(_curve(str(split), part, members, points, unit))
    return tuple(curve for curve in found if curve is not None)


def origin(run: Run) -> dict[str, str]:
    """Where the run came from, label and text."""
    facts: dict[str, Any] = run.provenance
    versions, machine = facts.get("versions") or {}, facts.get("machine") or {}
    git = (facts.get("git") or {}).get("folder") or {}
    shown = {
        "Command": facts.get("command"),
        "Started": facts.get("started"),
        "Commit": f"{git['commit']}{' with local changes' if git['dirty'] else ''}"
        if git
        else None,
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        "Machine": ", ".join(
            str(part)
            for part in (
                machine.get("processor"),
                f"{machine.get('cores')} cores",
                f"{machine.get('memory_gib')} GiB",
                *(card.get("name") for card in machine.get("gpus") or ()),
            )
            if part
        ),
        "Config": f"sha256 {run.config.hash[:16]}",
        "Data": _data(facts),
    }
    return {label: str(text) for label, text in shown.items() if text}


def _data(facts: Mapping[str, Any]) -> str:
    digest = (facts.get("environment") or {}).get("market_sha256")
    return f"sha256 {digest}" if digest else ""


def _curve(
    name: str, columns: Mapping[str, list[Any]], members: int, points: int, unit: str
) -> Curve | None:
    if not columns.get("steps") or "score" not in columns:
        return None
    steps = np.array(columns["steps"], np.float64)
    scores = np.array([np.nan if s is None else s for s in columns["score"]], np.float64)
    owner = np.array(columns["member"], np.int64)
    axis = np.unique(steps)
    table = np.full((len(axis), members), np.nan)
    table[np.searchsorted(axis, steps), owner] = scores
    kept = np.unique(np.linspace(0, len(axis) - 1, min(points, len(axis))).astype(np.int64))
    if np.isnan(table).all():
        return None
    return Curve(name, axis[kept], table[kept], unit)


def _notes(run: Run, environment: Environment) -> tuple[str, ...]:
    """Who is left out, and whether a chosen window is not new to the run."""
    left_out = sorted(set(range(run.config.training.members)) - set(present_members(run)))
    notes = [f"Member {member} has no validated policy and is left out." for member in left_out]
    windows = (run.provenance.get("environment") or {}).get("windows_utc_seconds") or {}
    seen = [int(windows[name][1]) for name in ("train", "validation") if name in windows]
    loaded = environment.loaded
    if loaded is not None and "window" in loaded.params and seen:
        first = loaded.data.segments[loaded.params["window"][0].first_segment, 0]
        if int(loaded.data.time[first]) < max(seen):
            notes.append("This window begins before the run's validation ends: it is not all new.")
    return tuple(notes)


def _count_read(run: Run) -> int:
    """How often the test split has been evaluated, this time included; the run remembers.

    The trainer's own reading and the report that follows it are one.
    """
    reads = int(run.provenance.get("test_reads", 0)) + 1
    run.record(test_reads=reads)
    return reads
