"""Session: one process at work on a study; what it trains, tells, and leaves behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from slipstream.studies.engine.member import Outcome
from slipstream.studies.phases import train_all
from slipstream.studies.progress import Meter
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger, Slot
from slipstream.studies.search.plan import Plan
from slipstream.studies.search.search import Trainer
from slipstream.studies.standing import Standing
from slipstream.training.config import RunConfig
from slipstream.training.interruption import Interrupted, Interruption

_STATUS_SECONDS = 5.0


class PolicyTrainer(Trainer, Protocol):
    """A pool that also hands out what was trained."""

    def policy(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Tensors and manifest of a finished member's policy."""


class Session:
    """Begins when a study's forecast is told.

    Args:
        folder, plan, ledger, pool: of the study.
        asked: whether to leave.
        say: told in sentences.
        show: told where the study stands, often.

    Attributes:
        meter: steps and seconds of this session.
    """

    def __init__(
        self,
        folder: StudyFolder,
        plan: Plan,
        ledger: Ledger,
        pool: PolicyTrainer,
        asked: Interruption,
        say: Callable[[str], None],
        show: Callable[[Standing], None],
    ) -> None:
        self.folder, self.plan, self.ledger, self.pool = folder, plan, ledger, pool
        self.say, self.meter = say, Meter()
        self._asked, self._show = asked, show
        self._told_at = -1e9
        self._began = time.monotonic()

    def begin(self) -> None:
        """A phase begins: its seconds count from here."""
        self._began = time.monotonic()

    def train(self, jobs: Mapping[Slot, RunConfig], phase: str) -> dict[Slot, Outcome]:
        """Outcomes of members that need nobody's verdict."""
        self.begin()

        def tick(done: int, total: int) -> None:
            self.leave(phase)

            def look() -> Standing:
                cpu, memory = self.meter.use()
                return replace(
                    self._blank(phase), members=total, members_done=done, cpu=cpu, memory=memory
                )

            self.tell(look)

        outcomes = train_all(self.plan, self.ledger, self.pool, jobs, tick)
        self.spent(phase)
        return outcomes

    def tell(self, look: Callable[[], Standing]) -> None:
        """Shows where things stand, and writes it down for other shells now and then."""
        now = replace(look(), at=time.time(), process=os.getpid())
        self._show(now)
        if time.monotonic() - self._told_at >= _STATUS_SECONDS:
            self._told_at = time.monotonic()
            self.ledger.record(status=now.as_dict())

    def leave(self, phase: str) -> None:
        """Ends the session where a signal or `study stop --now` asks for it.

        Raises:
            Interrupted: with the command that goes on.
        """
        request = self.folder.stop_request()
        if self._asked.requested or (request and request.get("now")):
            if request:
                self.folder.forget_stop()
            self.spent(phase)
            raise Interrupted(self.folder.path, f"slipstream study resume {self.folder.handle}")

    def spent(self, phase: str) -> None:
        """Adds this session's seconds of a phase to those of earlier ones."""
        seconds = self.ledger.fact("seconds", {})
        seconds[phase] = seconds.get(phase, 0.0) + time.monotonic() - self._began
        self.begin()
        self.ledger.record(seconds=seconds)

    def done(self) -> None:
        """Writes down that nothing is left to do."""
        self.ledger.record(status=replace(self._blank("done"), at=time.time()).as_dict())

    def _blank(self, phase: str) -> Standing:
        return Standing(phase, trials=self.plan.study.n_trials, elapsed=self.meter.elapsed)
