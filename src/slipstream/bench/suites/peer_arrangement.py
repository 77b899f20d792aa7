"""How a peer that learns from a replay is set up: copies, rounds of updates, threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.bench.machine import threads
from slipstream.bench.suites.members import rate
from slipstream.bench.worker import run_worker
from slipstream.market.finding import plural

_COPIES = 8  # acted for in one call of the network: SB3's cost of a step is mostly that call's
_LOOK = 1.0  # seconds in which an arrangement is tried


@dataclass(frozen=True)
class Peer:
    """SB3's agent in one arrangement, the same updates for each step as any other.

    Attributes:
        module: of `run_worker`; asked: what it is told in every arrangement.
        copies: of the environment, in one process unless `processes`.
        train_freq, gradient_steps: rounds of updates, as SB3 names them.
        threads: of torch.
    """

    module: str
    asked: Mapping[str, Any]
    copies: int
    train_freq: int
    gradient_steps: int
    threads: int
    processes: bool = False

    def rate(self, seconds: float) -> float:
        """Training steps per second."""
        own: dict[str, Any] = {"copies": self.copies, "threads": self.threads}
        own |= {"processes": True} if self.processes else {}
        own |= {"train_freq": self.train_freq, "gradient_steps": self.gradient_steps}
        asked = {**self.asked, **own, "seconds": seconds}
        return rate(run_worker(self.module, asked, threads=self.threads))

    @property
    def name(self) -> str:
        """For a row: what was the fastest."""
        where = " in processes" if self.processes else ""
        copies = "1 copy" if self.copies == 1 else f"{self.copies} copies{where}"
        return (
            f"{copies}, train_freq {self.train_freq}, gradient_steps {self.gradient_steps}, "
            f"{plural(self.threads, 'thread')}: its fastest arrangement; its updates follow "
            "each round of steps, ours each step"
        )


def best_peer(
    module: str, asked: Mapping[str, Any], updates_per_step: float, processes: bool = False
) -> Peer:
    """The fastest arrangement of a peer: one copy or eight, on one thread or one a core.

    Args:
        module, asked: of `Peer`.
        updates_per_step: the same in each arrangement; its inverse or itself is a whole number.
        processes: whether eight copies in processes are tried, too: for environments that cost.
    """
    one = (1, max(1, round(1 / updates_per_step)), max(1, round(updates_per_step)), False)
    many = (_COPIES, 1, round(_COPIES * updates_per_step))
    shapes = [one, (*many, False), *([(*many, True)] if processes else [])]
    found = [
        Peer(module, asked, copies, freq, updates, n, apart)
        for copies, freq, updates, apart in shapes
        for n in sorted({1, threads()})
    ]
    return max(found, key=lambda peer: peer.rate(_LOOK))
