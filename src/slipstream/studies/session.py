"""Session: one process at work on a study; what it trains, tells, and leaves behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from slipstream.files.interruption import Interrupted, Interruption
from slipstream.files.logbook import Logbook
from slipstream.files.machine import MachineTable
from slipstream.files.status import Status
from slipstream.settings.config import RunConfig
from slipstream.studies.engine.member import Outcome
from slipstream.studies.engine.under_way import UNDER_WAY
from slipstream.studies.phases import train_all
from slipstream.studies.progress import Meter, Watcher
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger
from slipstream.studies.record.rows import Slot
from slipstream.studies.search.plan import StudyPlan, steps_of
from slipstream.studies.search.search import MemberPool


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
        notes: sentences that the user must see.

    Attributes:
        meter: steps and seconds of this session.
        watcher: knows how far members are.
        found: where the search ended: its counts and its best are told to the study's end.
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
        show: Callable[[Status], None],
        notes: Sequence[str] = (),
    ) -> None:
        self.folder, self.plan, self.ledger, self.pool = folder, plan, ledger, pool
        self._machine = MachineTable(folder.machine, say)
        self.watcher = Watcher(folder.path / "live" / UNDER_WAY)
        searched = ledger.fact("seconds", {}).get("search")
        before = ledger.totals("search")["steps"] / searched if searched else None
        self.say, self.meter = say, Meter(before=before)
        self.logbook, self._asked, self._show = logbook, asked, show
        self.found = Status("study", notes=notes)
        self.begin()

    def begin(self) -> None:
        """A phase begins: its seconds count from here."""
        self._began, self._untold = self._counters(), True

    def train(
        self, jobs: Mapping[Slot, RunConfig], phase: str, later: int = 0
    ) -> dict[Slot, Outcome]:
        """Outcomes of members that need nobody's verdict.

        Args:
            jobs: config of each.
            phase: what they are trained for.
            later: members of the phases after this one.
        """
        self.begin()
        self.logbook.note("phase", f"{phase}: {len(jobs)} members", phase=phase, members=len(jobs))
        before = self.ledger.steps(next(iter(jobs)).phase) if jobs else {}  # all are of one phase

        def look(left: Sequence[Slot]) -> Status:
            steps = sum(steps_of(jobs[slot]) for slot in left) + later * self.plan.mean_steps
            return replace(
                self.found,
                phase=phase,
                done=len(jobs) - len(left),
                of=len(jobs),
                unit="members",
                rate=self.meter.speed,
                eta=self.meter.eta(steps),
                running=self.watcher.of(left),
                phases=dict(self.meter.seconds),
            )

        def tick(left: Sequence[Slot]) -> None:
            self.leave(phase)
            self.tell(lambda: look(left))

        def take(one: Outcome) -> None:
            self.meter.add(one.name, one.steps, before.get(one.name, 0), one.seconds)

        outcomes = train_all(self.plan, self.ledger, self.pool, jobs, tick, take)
        self.spent(phase)
        return outcomes

    def tell(self, look: Callable[[], Status]) -> None:
        """Shows where things stand, also to other processes: at once, then once a second."""
        if not (self._untold or self.logbook.due):
            return
        machine, notes = self.meter.machine, self.found.notes
        nodes = tuple(self.pool.nodes)
        now = replace(look(), nodes=nodes, machine=asdict(machine), notes=notes)
        self._machine.add(machine, self.meter.elapsed, phase=now.phase)
        self._show(now)
        self.logbook.show(now, at_once=self._untold)
        self._untold = False

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
