"""StudyReader: what a study's folder tells, for pages, exports and `study status`; never writes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from slipstream.files.files import plain
from slipstream.settings.config import RunConfig
from slipstream.studies.config import StudyConfig
from slipstream.studies.engine.member import DailyReturns
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger, Slot, Verdict
from slipstream.studies.record.study_file import read_section, read_study

FORMATS = ("csv", "json")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes a text for a formula by


@dataclass(frozen=True)
class Trial:
    """One trial as it stands.

    Attributes:
        number: 0, 1, ...
        state: ``running``, ``complete``, ``pruned`` or ``failed``.
        params: suggestions by searched name; `overrides`: what the config gets for them.
        score: at its end, or where it was pruned; None before the first stage and where it failed.
        folds: per fold score, sharpe, benchmark_sharpe, inactive (games: score); as of `score`.
        inactive: whether it hardly traded in some fold: such a trial never wins.
        stages: all verdicts on it, by stage; `steps` of a member are not in them, milestones are.
        reason: why it was pruned or failed.
        asked_at, ended_at: UTC seconds; None before the end.
        start: virtual time of its ask.
    """

    number: int
    state: str
    params: Mapping[str, Any]
    overrides: Mapping[str, Any]
    score: float | None = None
    folds: Sequence[Mapping[str, Any]] = ()
    stages: Sequence[Verdict] = field(default_factory=tuple)
    reason: str = ""
    asked_at: float = 0.0
    ended_at: float | None = None
    start: int = 0

    @property
    def inactive(self) -> bool:
        return any(fold.get("inactive") for fold in self.folds)


class StudyReader(Ledger):
    """The ledger of a study and the files beside it, also while another process runs it.

    Args:
        folder: the study's.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self.folder = folder
        super().__init__(folder.ledger, read_only=True)

    @cached_property
    def config(self) -> RunConfig:
        """What the trials vary; reading it imports what it names."""
        return read_study(self.folder.config, self.folder.trust)[0]

    @cached_property
    def study(self) -> StudyConfig:
        """The `study` section, which names no code."""
        return read_section(self.folder.config)

    @property
    def result(self) -> dict[str, Any] | None:
        """`result.json`; None before the end."""
        return self.folder.result

    @property
    def provenance(self) -> dict[str, Any]:
        """`provenance.json`; ``provenance["environment"]["folds"]`` has groups and paths."""
        return self.folder.provenance

    def trials(self) -> list[Trial]:
        """All trials asked so far, by number."""
        verdicts: dict[int, list[Verdict]] = {}
        for verdict in self.verdicts():
            verdicts.setdefault(verdict.trial, []).append(verdict)
        found = []
        for number, ask in self.asks().items():
            stages = verdicts.get(number, [])
            last = stages[-1] if stages else None
            ended = last is not None and last.kind != "continued"
            found.append(
                Trial(
                    number=number,
                    state=last.kind if last is not None and ended else "running",
                    params=ask.params,
                    overrides=ask.overrides,
                    score=last.score if last else None,
                    folds=last.folds if last else (),
                    stages=stages,
                    reason=last.reason if last and ended else "",
                    asked_at=ask.at,
                    ended_at=last.at if last and ended else None,
                    start=ask.time,
                )
            )
        return found

    def passes(self, phase: str) -> dict[tuple[int, int, int], DailyReturns]:
        """Test passes with final weights by (trial, repeat, fold).

        Phases: ``search`` (repeat 0; complete trials only), ``confirm`` (repeat = which fresh
        seed), ``final`` (fold 0: the hold-out). Pruned and failed members are not in it.
        """
        ends: dict[str, int] = {}
        complete = {
            t.number: t.stages[-1].milestone for t in self.trials() if t.state == "complete"
        }
        found: dict[tuple[int, int, int], DailyReturns] = {}
        outcomes = self.outcomes(phase)
        for name, milestone in outcomes:
            ends[name] = max(milestone, ends.get(name, 0))
        for (name, milestone), outcome in outcomes.items():
            slot = Slot.parse(name)
            if outcome.passes is None or milestone != ends[name]:
                continue
            if phase == "search" and complete.get(slot.trial) != milestone:
                continue
            found[slot.trial, slot.repeat, slot.fold] = outcome.passes
        return found


def counts_of(trials: Sequence[Trial]) -> dict[str, int]:
    """How many trials are complete, pruned and failed; and inactive, of the complete ones."""
    states = [trial.state for trial in trials]
    counts = {state: states.count(state) for state in ("complete", "pruned", "failed")}
    counts["inactive"] = sum(trial.state == "complete" and trial.inactive for trial in trials)
    return counts


def best_trials(trials: list[Trial]) -> list[Trial]:
    """Complete, active trials by score, the best first; ties by number."""
    fine = [t for t in trials if t.state == "complete" and t.score is not None and not t.inactive]
    return sorted(fine, key=lambda t: (-(t.score or 0.0), t.number))


def export_text(folder: StudyFolder, kind: str) -> str:
    """All trials by number.

    Args:
        folder: the study's.
        kind: ``csv`` (a column for each param and fold; a text that a spreadsheet would run as a
            formula has an apostrophe before it) or ``json`` (everything, as it is).
    """
    with StudyReader(folder) as reader:
        trials = reader.trials()
    if kind == "json":
        rows = {"study": folder.name, "trials": [_record(trial) for trial in trials]}
        return json.dumps(plain(rows), indent=2, allow_nan=False) + "\n"
    records = [_row(trial) for trial in trials]
    names = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_guarded(name) for name in names])
    writer.writerows([[_guarded(record.get(name)) for name in names] for record in records])
    return text.getvalue()


def _guarded(value: Any) -> Any:
    """Numbers as they are; text, such as a choice or a reason, never as a formula."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    told = str(value)
    return f"'{told}" if told.startswith(_FORMULA) else told


def _record(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state,
        "score": trial.score,
        "inactive": trial.inactive,
        "params": dict(trial.params),
        "overrides": dict(trial.overrides),
        "folds": [dict(fold) for fold in trial.folds],
        "rungs": [
            {"milestone": v.milestone, "kind": v.kind, "score": v.score, "reason": v.reason}
            for v in trial.stages
        ],
        "reason": trial.reason,
        "asked_at": trial.asked_at,
        "ended_at": trial.ended_at,
    }


def _row(trial: Trial) -> dict[str, Any]:
    row = {
        "number": trial.number,
        "state": trial.state,
        "score": trial.score,
        "inactive": trial.inactive,
        "reason": trial.reason,
    }
    row |= {f"params.{name}": value for name, value in trial.params.items()}
    row |= {f"folds.{k}": fold.get("score") for k, fold in enumerate(trial.folds)}
    return row
