"""Session: one process at work on a study; what it trains, tells, and leaves behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from slipstream.studies.engine.member import Outcome
from slipstream.studies.phases import train_all
from slipstream.studies.progress import Meter
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger
from slipstream.studies.record.rows import Slot
from slipstream.studies.search.plan import StudyPlan
from slipstream.studies.search.search import MemberPool
from slipstream.studies.standing import Standing
from slipstream.training.record.interruption import Interrupted, Interruption
from slipstream.training.record.logbook import Logbook
from slipstream.training.record.machine import MachineTable
from slipstream.training.settings.config import RunConfig


class PolicyPool(MemberPool, Protocol):
    """A pool that also hands out what was trained, and says where."""

    @property
    def nodes(self) -> Sequence[Mapping[str, Any]]:
        """See `slipstream.training.processes.cluster.Cluster.standing`; empty on one machine."""

    def policy(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Tensors and manifest of a finished member's policy."""


class Session:
    """Begins when a study's forecast is told.

    Args:
        folder, plan, ledger, pool: of the study.
        asked: whether to leave.
        logbook: what other processes are told.
        say: told in sentences.
        show: told where the study stands, often.

    Attributes:
        meter: steps and seconds of this session.
    """

    def __init__(
        self,
        folder: StudyFolder,
        plan: StudyPlan,
        ledger: Ledger,
        pool: PolicyPool,
        asked: Interruption,
        logbook: Logbook,
        say: Callable[[str], None],
        show: Callable[[Standing], None],
    ) -> None:
        self.folder, self.plan, self.ledger, self.pool = folder, plan, ledger, pool
        self.say, self.meter = say, Meter()
        self._machine = MachineTable(folder.machine, say)
        self.logbook, self._asked, self._show = logbook, asked, show
        self.begin()

    def begin(self) -> None:
        """A phase begins: its seconds count from here."""
        self._began, self._untold = self._counters(), True

    def train(self, jobs: Mapping[Slot, RunConfig], phase: str) -> dict[Slot, Outcome]:
        """Outcomes of members that need nobody's verdict."""
        self.begin()
        self.logbook.note("phase", phase=phase, members=len(jobs))

        def tick(done: int, total: int) -> None:
            self.leave(phase)

            def look() -> Standing:
                blank = self._blank(phase)
                machine = asdict(self.meter.machine)
                return replace(blank, members=total, members_done=done, machine=machine)

            self.tell(look)

        outcomes = train_all(self.plan, self.ledger, self.pool, jobs, tick)
        self.spent(phase)
        return outcomes

    def tell(self, look: Callable[[], Standing]) -> None:
        """Shows where things stand, also to other processes: at once, then once a second."""
        if not (self._untold or self.logbook.due):
            return
        self._untold = False
        now = replace(look(), nodes=tuple(self.pool.nodes))
        self._machine.add(self.meter.machine, self.meter.elapsed, phase=now.phase)
        self._show(now)
        searching = now.phase == "search"
        self.logbook.show(
            phase=now.phase,
            done=now.complete + now.pruned + now.failed if searching else now.members_done,
            total=now.trials if searching else now.members,
            unit="trials" if searching else "members",
            rate=now.steps_per_second,
            score=now.best,
            eta=now.eta,
            details=now.as_dict(),
        )

    def leave(self, phase: str) -> None:
        """Ends the session where a signal or `slipstream stop` asks for it.

        Raises:
            Interrupted: with the command that goes on.
        """
        if self._asked.requested:
            self.spent(phase)
            raise Interrupted(self.folder.path, f"slipstream study resume {self.folder.handle}")

    def spent(self, phase: str) -> None:
        """Adds what this session spent on a phase to what earlier ones did."""
        spent = {name: now - self._began.get(name, 0.0) for name, now in self._counters().items()}
        self.begin()
        known = {name: self.ledger.fact(name, {}) for name in spent}
        for name, value in spent.items():
            known[name][phase] = known[name].get(phase, 0.0) + value
        self.ledger.record(**known)

    def _counters(self) -> dict[str, float]:
        """On the clock, of this process's processor; of a cluster, how much was carried."""
        nodes = self.pool.nodes
        carried = {name: float(sum(node[name] for node in nodes)) for name in ("answers", "bytes")}
        return {
            "seconds": time.monotonic(),
            "cpu": time.process_time(),
            **(carried if nodes else {}),
        }

    def _blank(self, phase: str) -> Standing:
        return Standing(phase, trials=self.plan.study.n_trials, elapsed=self.meter.elapsed)
