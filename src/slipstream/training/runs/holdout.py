"""Register of the days that studies searched on and opened, and of outcomes that were shown.

A hold-out proves something once, and only on days that nobody searched on. An application that can
identify its data offers the part `HoldoutRegister`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.training.environments.environment import Environment, Part

FEWEST_SHARED = 60  # common days without which data are not compared


@dataclass(frozen=True)
class Opening:
    """What is known of one opening of a hold-out.

    Attributes:
        number: which opening of these days it is; 0 where there is nothing to open.
        before: the studies that opened some of them before.
        opened: days that were opened or searched: none of them is fresh.
        looks: runs and evaluations that showed an outcome of some of them.
        unknown: why it is not known whether others opened them; empty where it is.
        searched: the studies that used some of them for development.
        compared_days: days by which prices were identified, if they are fewer than needed.
    """

    number: int = 0
    before: tuple[str, ...] = ()
    opened: frozenset[int] = frozenset()
    looks: tuple[str, ...] = ()
    unknown: str = ""
    searched: tuple[str, ...] = ()
    compared_days: int = 0

    def facts(self) -> dict[str, Any]:
        """As in `result.json`; `opening` alone where there is nothing more."""
        names = ("before", "searched", "looks", "unknown", "compared_days")
        told = {name: getattr(self, name) for name in names}
        return {"opening": self.number, **{k: v for k, v in told.items() if v}}


class HoldoutRegister(Part):
    """Register of an environment's data. This base registers nothing."""

    def record_access(self, what: str) -> tuple[str, ...]:
        """Record that an outcome of a test split or of a chosen window was shown.

        Args:
            what: who showed it: ``run PATH``.

        Returns:
            The runs and studies that showed or opened some of these days before.
        """
        return ()

    def begin_search(
        self, window: Sequence[float] | None, study: str, name: str, beside: Path, trials: int
    ) -> Mapping[str, Any]:
        """Record a study's development days, on disk when this returns; once per study.

        Args:
            window: the development days, UTC seconds, half open; None: all of the hold-out split.
            study: its id; name: of the study, for others.
            beside: the folder that its studies lie in.
            trials: number of trials that it plans; `end_search` replaces it.

        Returns:
            Earlier searches on some of these days: their `studies`, their number of `trials`, and
            of how many studies that is `unknown`; nothing without any.
        """
        return {}

    def end_search(self, study: str, trials: int, beside: Path) -> None:
        """Record the number of trials of a search that has stopped."""

    def searched_days(self, study: str, beside: Path) -> frozenset[int] | None:
        """Return the days of the hold-out that a study of this id searched on.

        None if no register contains the study.
        """
        return frozenset()

    def open(self, key: str, name: str, beside: Path, own: int) -> Opening:
        """Record an opening of the hold-out, on disk when this returns.

        Args:
            key: the same for the same opening: a resumed study opens once.
            name, beside: as for `begin_search`.
            own: which opening of its hold-out the study itself counts.
        """
        return Opening(own)


def register_of(environment: Environment) -> HoldoutRegister:
    """Return an application's register of the data, or one that registers nothing."""
    return environment.part(HoldoutRegister) or HoldoutRegister()
