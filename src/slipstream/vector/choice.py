"""Whether threads pay, by measurement while running."""

from __future__ import annotations

TRIALS = 8  # steps measured each way before choosing
HOLD = 2_000  # steps until the choice is measured again
LEAST_SECONDS = 1e-4  # handing work to a thread and back costs some 50 microseconds
GAIN = 1.15  # threads must win by this much: they take a core from somebody


class Choice:
    """Alone or with threads: some steps are timed each way, then the faster way is kept a while.

    Attributes:
        threads: whether the next step uses threads.
    """

    def __init__(self) -> None:
        self.threads = False
        self._left = TRIALS  # steps of this trial, or of the choice that follows it
        self._chosen = False
        self._alone = self._sum = 0.0

    def note(self, seconds: float) -> None:
        """Hears how long the last step took, and decides about the next one."""
        self._sum += seconds
        self._left -= 1
        if self._left:
            return
        spent, self._sum = self._sum, 0.0
        if self._chosen:
            self._chosen, self.threads, self._left = False, False, TRIALS
        elif not self.threads and spent >= TRIALS * LEAST_SECONDS:
            self._alone, self.threads, self._left = spent, True, TRIALS
        else:
            self.threads = self.threads and spent * GAIN < self._alone
            self._chosen, self._left = True, HOLD
