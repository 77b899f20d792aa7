"""What the ledger holds, and its rows: suggestions, outcomes of members, decisions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.files.files import plain
from slipstream.studies.engine.member import DailyReturns, Outcome


class Slot(NamedTuple):
    """Which member an outcome belongs to.

    Attributes:
        phase: ``search``, ``confirm``, ``final`` or ``refit``.
        trial: number of the trial whose params it has.
        repeat: which fresh seed; 0 in the search.
        fold: number of the fold; 0 where there is none.
    """

    phase: str
    trial: int
    repeat: int
    fold: int

    @property
    def name(self) -> str:
        """Unique and safe as a file's name: ``search-00012-3``, ``confirm-00012-1-3``."""
        repeat = "" if self.phase == "search" else f"-{self.repeat}"
        return f"{self.phase}-{self.trial:05d}{repeat}-{self.fold}"

    @classmethod
    def parse(cls, name: str) -> Slot:
        """The slot of a name."""
        phase, trial, *rest = name.split("-")
        numbers = [int(one) for one in rest]
        return cls(phase, int(trial), numbers[0] if len(numbers) == 2 else 0, numbers[-1])


@dataclass(frozen=True)
class Ask:
    """A suggestion: `params` by searched name, `overrides` for `resolve`, `notes` on roundings."""

    trial: int
    time: int
    params: Mapping[str, Any]
    overrides: Mapping[str, Any]
    notes: Sequence[str] = ()
    at: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What was decided at a trial's stage.

    Attributes:
        trial, stage, milestone: where; a milestone is a number of iterations.
        time: virtual time.
        kind: ``continued``, ``pruned``, ``complete`` or ``failed``.
        score: the trial's score there, None where it failed.
        folds: per fold score, sharpe, benchmark_sharpe, inactive.
        rho: rank correlation of this rung's scores with final ones, None where it is not known.
        reason: why it was pruned or failed, or why the rung stops nothing.
        at: UTC seconds of the wall clock; decides nothing.
    """

    trial: int
    stage: int
    milestone: int
    time: int
    kind: str
    score: float | None
    folds: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    rho: float | None = None
    reason: str = ""
    at: float = 0.0

    @property
    def inactive(self) -> bool:
        """Whether a fold hardly traded, so that the score is not one of a strategy."""
        return any(fold.get("inactive") for fold in self.folds)


def ranked(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Complete trials that are active in every fold, the best first: only such a one can win."""
    able = [one for one in verdicts if one.kind == "complete" and not one.inactive]
    return sorted(able, key=lambda one: (-(one.score or 0.0), one.trial))


def ask_row(ask: Ask) -> tuple[Any, ...]:
    """Of the table `asks`, written now."""
    texts = (plain(ask.params), plain(ask.overrides), list(ask.notes))
    return (ask.trial, ask.time, *(json.dumps(text) for text in texts), time.time())


def ask_of(row: Sequence[Any]) -> Ask:
    """What `ask_row` gave."""
    trial, moment, params, overrides, notes, at = row
    read = json.loads
    return Ask(trial, moment, read(params), read(overrides), read(notes), at)


def verdict_row(verdict: Verdict) -> tuple[Any, ...]:
    """Of the table `verdicts`, written now."""
    where = (verdict.trial, verdict.stage, verdict.milestone, verdict.time)
    folds = json.dumps(plain(list(verdict.folds)))
    return (*where, verdict.kind, verdict.score, folds, verdict.rho, verdict.reason, time.time())


def verdict_of(row: Sequence[Any]) -> Verdict:
    """What `verdict_row` gave."""
    trial, stage, milestone, moment, kind, score, folds, rho, reason, at = row
    return Verdict(trial, stage, milestone, moment, kind, score, json.loads(folds), rho, reason, at)


def outcome_row(outcome: Outcome) -> tuple[Any, ...]:
    """Of the table `outcomes`, written now."""
    slot, passes = Slot.parse(outcome.name), outcome.passes
    head = (outcome.name, outcome.milestone, *slot, int(outcome.failed), outcome.reason)
    seconds = json.dumps(plain(dict(outcome.seconds)))
    blobs: tuple[Any, ...] = (None,) * 5
    if passes is not None:
        blobs = (
            json.dumps(plain(list(passes.metrics))),
            _bytes(passes.days, np.int64),
            _bytes(passes.returns, np.float64),
            _bytes(passes.benchmark, np.float64),
            _bytes(passes.group, np.int64),
        )
    return (*head, outcome.steps, seconds, *blobs, time.time())


def outcome_of(row: Sequence[Any]) -> Outcome:
    """What `outcome_row` gave."""
    name, milestone, _, _, _, _, failed, reason, steps, seconds, metrics, *blobs, _ = row
    passes = None
    if metrics is not None:
        days, returns, benchmark, groups = blobs
        passes = DailyReturns(
            days=_array(days, np.int64),
            returns=_array(returns, np.float64),
            benchmark=_array(benchmark, np.float64),
            group=_array(groups, np.int64),
            metrics=json.loads(metrics),
        )
    return Outcome(name, milestone, passes, bool(failed), reason, steps, json.loads(seconds))


def _bytes(values: Any, dtype: type) -> bytes:
    return np.ascontiguousarray(values, np.dtype(dtype).newbyteorder("<")).tobytes()


def _array(content: bytes, dtype: type) -> NDArray[Any]:
    return np.frombuffer(content, np.dtype(dtype).newbyteorder("<")).astype(dtype)
