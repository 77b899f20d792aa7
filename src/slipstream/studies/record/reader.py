"""StudyReader: what a study's folder tells, for pages, exports and `study status`; never writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from slipstream.settings.config import RunConfig
from slipstream.studies.config import StudyConfig
from slipstream.studies.engine.member import DailyReturns
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger
from slipstream.studies.record.rows import Slot, Verdict
from slipstream.studies.record.study_file import read_section, read_study


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


class StudyReader:
    """Reads a study, also while another process runs it.

    Args:
        folder: the study's.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self.folder = folder
        self._ledger = Ledger(folder.ledger, read_only=True)

    @cached_property
    def config(self) -> RunConfig:
        """What the trials vary; reading it imports what it names."""
        return read_study(self.folder.config, self.folder.trust)[0]

    @cached_property
    def study(self) -> StudyConfig:
        """The `study` section, which names no code."""
        return read_section(self.folder.config)

    def close(self) -> None:
        """Closes the ledger."""
        self._ledger.close()

    def __enter__(self) -> StudyReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def result(self) -> dict[str, Any] | None:
        """`result.json`; None before the end."""
        return self.folder.result

    @property
    def provenance(self) -> dict[str, Any]:
        """`provenance.json`; ``provenance["environment"]["folds"]`` has groups and paths."""
        return self.folder.provenance

    def fact(self, name: str, default: Any = None) -> Any:
        """A fact of the ledger: ``status``, ``cut``, ``seconds``, ``forecast``."""
        return self._ledger.fact(name, default)

    def totals(self, phase: str) -> dict[str, float]:
        """Steps, and the workers' seconds by kind, of ``search``, ``confirm`` or ``final``."""
        return self._ledger.totals(phase)

    def openings(self) -> int:
        """How often the hold-out was opened."""
        return self._ledger.openings()

    def trials(self) -> list[Trial]:
        """All trials asked so far, by number."""
        verdicts: dict[int, list[Verdict]] = {}
        for verdict in self._ledger.verdicts():
            verdicts.setdefault(verdict.trial, []).append(verdict)
        found = []
        for number, ask in self._ledger.asks().items():
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
        outcomes = self._ledger.outcomes(phase)
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
