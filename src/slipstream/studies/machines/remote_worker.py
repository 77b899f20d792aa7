"""A worker of another machine, as the pool of a study sees it."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from slipstream.core.errors import SlipstreamError
from slipstream.studies.engine.member import Outcome
from slipstream.studies.engine.seats import Lost
from slipstream.studies.engine.stretch import Task

Answer: TypeAlias = list[Outcome] | Lost | SlipstreamError


class RemoteWorker:
    """Has the face of `slipstream.studies.engine.worker.Worker`; a relay does what it is asked.

    Args:
        machine: unique name of the machine; `host`: as people call it.
        seat: which of the machine's workers it is.
        hand_over: takes a stretch to the machine, at once or later.
        call_back: asks the machine to give back what it does.

    Attributes:
        pipe: readable when an answer has come.
        generation: of the source; a machine loads what it lacks.
        gone: it takes no more work.
        work: id of the stretch that it does; the relay's.
        tasks: of that stretch; the relay's.
    """

    generation = sys.maxsize

    def __init__(
        self,
        machine: str,
        host: str,
        seat: int,
        hand_over: Callable[[RemoteWorker], None],
        call_back: Callable[[RemoteWorker], None],
    ) -> None:
        self.machine, self.host, self.seat = machine, host, seat
        self._hand_over, self._call_back = hand_over, call_back
        self.pipe, self._bell = multiprocessing.Pipe(duplex=False)
        self._answer: Answer | None = None
        self._busy = False
        self.gone = False
        self.work = ""
        self.tasks: Sequence[Task] = ()

    def send(self, tasks: Sequence[Task]) -> bool:
        """Hands it a stretch; False where its machine is gone."""
        if self.gone:
            return False
        self.tasks, self._busy = list(tasks), True
        self._hand_over(self)
        return True

    def receive(self) -> Answer | None:
        """What came of its stretch; states are in the study's folder by then."""
        self.pipe.recv_bytes()
        self._busy = False
        return self._answer

    def deliver(self, answer: Answer) -> None:
        """The relay has an answer; exactly one for every stretch."""
        self.work, self.tasks, self._answer = "", (), answer
        with suppress(OSError):  # nobody waits for it any more
            self._bell.send_bytes(b".")

    def ask_to_leave(self) -> None:
        """Its machine saves the members under way after their iteration, and gives them back."""
        if self._busy:
            self._call_back(self)

    def end(self, patience: float) -> str:
        """Waits for what it still does; says how it ended."""
        how = "left"
        if self._busy and self.pipe.poll(patience):
            answer = self.receive()
            how = answer.how if isinstance(answer, Lost) else how
        self.gone = True
        self.pipe.close()
        return how
