"""Folders of runs and studies, written by the trainer's own writers without any training."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.storage.atomic_io import write_hashed, write_json, write_text
from slipstream.core.storage.csv_table import CsvTable
from slipstream.core.storage.status_file import EVENTS, LOG, STATUS, Status
from slipstream.studies.config import StudyConfig
from slipstream.studies.record.folder import write_study
from slipstream.studies.record.ledger import Ledger, Slot, Suggestion, TrialDecision
from slipstream.studies.space import SearchSpace
from slipstream.training.population.member_state import PROGRESS_FILE, MemberProgress, append
from slipstream.training.settings.config import resolve

SPACE = {
    "agent.learning_rate": {"low": 1e-4, "high": 3e-3, "log": True},
    "agent.gamma": {"low": 0.85, "high": 0.999},
    "agent.ent_coef": {"low": 1e-5, "high": 1e-2, "log": True},
}
STEPS = 100_000  # of a member


def write_status(folder: Path, status: Status) -> None:
    """Write a status file as a run's logger does, by default for this process."""
    now = time.time()
    mine = {"pid": os.getpid(), "host": platform.node(), "started": now, "updated": now}
    facts = {name: value for name, value in status.as_dict().items() if value or name not in mine}
    write_json(folder / STATUS, {**mine, **facts}, durable=False)


def rows_of(members: int, first: int, last: int) -> list[dict[str, Any]]:
    """Return rows of `metrics.csv` for iterations of a training whose score rises."""
    draws = np.random.default_rng(first)
    rows: list[dict[str, Any]] = []
    for iteration in range(first, last):
        shared: dict[str, Any] = {
            "steps": 2_048 * iteration,
            "iteration": iteration,
            "updates": 4 * iteration,
        }
        shared["wall"] = round(0.05 * iteration, 3)
        for member in range(members):
            learned = 500 * (1 - math.exp(-iteration / (60 + 12 * member)))
            row = {"member": member, **shared, "score": learned + float(draws.normal(0, 12))}
            row["policy_loss"] = float(draws.normal(0, 0.01))
            row["value_loss"] = 40 * math.exp(-iteration / 90) + float(draws.uniform(0, 2))
            row["length"] = row["score"]
            looked = iteration % 20 == 0
            row["cpu_percent"] = 180 + float(draws.normal(0, 8)) if looked else None
            row["memory_gib"] = 0.61 if looked else None
            rows.append(row)
    return rows


def add_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Append rows to `metrics.csv`."""
    table = CsvTable(folder / "metrics.csv", lambda words: None)
    table.append(rows)
    table.close()


def write_run(folder: Path, members: int = 4, iterations: int = 400, **status: Any) -> Path:
    """Write the folder of a running training; `status` overrides fields of its `Status`."""
    folder.mkdir(parents=True)
    config = resolve("cartpole", {"training.members": members, "agent.n_epochs": 8})
    write_text(folder / "config.yaml", config.to_yaml())
    command = f"slipstream train cartpole --members {members}"
    write_hashed(folder / "provenance.json", {"command": command})
    add_rows(folder, rows_of(members, 1, iterations + 1))
    evaluations = CsvTable(folder / "evaluations.csv", lambda words: None)
    rows = rows_of(members, 1, iterations + 1)
    evaluations.append(
        [
            {"member": row["member"], "steps": row["steps"], "split": "train", "best": 1}
            | {"score": row["score"]}
            for row in rows
            if row["iteration"] % 40 == 0
        ]
    )
    evaluations.close()
    write_text(folder / EVENTS, '{"at": 1.0, "event": "begun", "pid": 1}\n')
    write_text(folder / LOG, "1970-01-01 00:00:01 UTC  begun\n")
    done, of = 2_048 * iterations * members, 2_048 * 1_000 * members
    facts: dict[str, Any] = {
        **{"phase": "training", "completed": done, "total": of, "rate": 163_840.0, "eta": 30.0},
        **{"best": {"score": 470.0}, "phases": {"env": 4.0, "policy": 9.0, "update": 15.0}},
        "machine": {"cpu": 180.0, "memory": 2**29},
    }
    write_status(folder, Status("run", **{**facts, **status}))
    return folder


def write_study_folder(
    folder: Path, trials: int = 60, folds: int = 6, under_way: int = 3, **status: Any
) -> Path:
    """Write the folder of a running study: finished trials, and some with folds in training."""
    folder.mkdir(parents=True)
    base = resolve("cartpole", {"training.total_timesteps": STEPS})
    space = SearchSpace.from_mapping(SPACE, base)
    study = StudyConfig.model_validate({"n_trials": 2 * trials, "space": SPACE})
    write_text(folder / "study.yaml", write_study(base, study, space))
    draws, began = np.random.default_rng(7), time.time() - 40.0 * trials - 90.0
    counts = dict.fromkeys(("complete", "pruned", "failed", "inactive"), 0)
    with Ledger(folder / "ledger.db") as ledger, ledger.transaction():
        for number in range(trials + under_way):
            params = {
                "agent.learning_rate": float(10 ** draws.uniform(-4, -2.5)),
                "agent.gamma": float(draws.uniform(0.85, 0.999)),
                "agent.ent_coef": float(10 ** draws.uniform(-5, -2)),
            }
            at = began + 40.0 * number
            _ask(ledger, Suggestion(number, 1_000 * number, params, params, (), at))
            if number >= trials:
                continue
            decision = _verdict(number, params, folds, draws, at + 90.0)
            counts[decision.kind] += 1
            _judge(ledger, decision)
    append_members(folder, trials, under_way, folds, points=60)
    running = [{"trial": trials + k, "fold": f} for k in range(under_way) for f in range(folds)]
    facts: dict[str, Any] = {
        **{
            "phase": "search",
            "completed": trials,
            "total": 2 * trials,
            "unit": "trials",
            "rate": 2.1e6,
        },
        **{"trials_per_hour": 90.0, "eta": 2_400.0 + trials, "counts": counts, "running": running},
        **{"best": {"score": 1.32, "trial": 5, "low": 0.2, "high": 2.3}},
        "phases": {"env": 30.0, "policy": 60.0, "update": 99.0, "test": 8.0},
    }
    write_status(folder, Status("study", **{**facts, **status}))
    return folder


def append_members(folder: Path, first: int, count: int, folds: int, points: int) -> None:
    """Append the workers' progress of running members, a row a poll, two seconds apart."""
    (folder / "live").mkdir(exist_ok=True)
    draws, now = np.random.default_rng(1), time.time()
    for point in range(points):
        rows = [
            MemberProgress(
                Slot("search", first + k, 0, fold).name,
                round(STEPS * (point + 1) / (points + 12 + 7 * k)),
                0.4 * (1 + k) * (1 - math.exp(-point / 20)) + float(draws.normal(0, 0.06)),
                now - 2.0 * (points - point),
            )
            for k in range(count)
            for fold in range(folds)
        ]
        append(folder / "live" / PROGRESS_FILE, rows)


def add_trial(folder: Path, number: int, kind: str = "complete", reason: str = "") -> None:
    """Append a trial that starts and ends now."""
    params = dict.fromkeys(SPACE, 1e-3) | {"agent.gamma": 0.97}
    with Ledger(folder / "ledger.db") as ledger:
        ledger.add_suggestion(Suggestion(number, 1_000 * number, params, params))
        score = None if kind == "failed" else 1.0
        ledger.add_decision(TrialDecision(number, 2, 60, STEPS, kind, score, [], None, reason))


def _verdict(
    number: int, params: Mapping[str, float], folds: int, draws: np.random.Generator, at: float
) -> TrialDecision:
    skill = 1.5 - 2 * abs(math.log10(params["agent.learning_rate"]) + 3.2)
    fold_scores = [skill + float(draws.normal(0, 0.5)) for _ in range(folds)]
    kind = "failed" if number % 23 == 22 else "complete" if number % 5 < 2 else "pruned"
    reason = "a weight of member 3 is NaN after 12 updates" if kind == "failed" else ""
    folds_record = [{"score": score_of_fold, "inactive": False} for score_of_fold in fold_scores]
    score = None if kind == "failed" else sum(fold_scores) / folds
    stage = 2 if kind == "complete" else 0
    return TrialDecision(number, stage, 30, STEPS, kind, score, folds_record, None, reason, at)


def _ask(ledger: Ledger, ask: Suggestion) -> None:
    ledger.add_suggestion(ask)
    ledger._db.execute("UPDATE suggestions SET at = ? WHERE trial = ?", (ask.at, ask.trial))


def _judge(ledger: Ledger, decision: TrialDecision) -> None:
    ledger.add_decision(decision)
    ledger._db.execute("UPDATE decisions SET at = ? WHERE trial = ?", (decision.at, decision.trial))
