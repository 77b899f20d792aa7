"""EvaluationResult: episodes of evaluated policies by split and member, and their mean returns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ResourceError
from slipstream.core.extras import pip_install_command
from slipstream.core.text import NOTHING, SummaryRepr, format_columns, format_significant
from slipstream.training.episode_result import EpisodeResult, finite_values, standard_error

ConfidenceInterval = tuple[float, float]
"""Lower and upper end of a confidence interval."""


@dataclass(frozen=True, repr=False, eq=False)
class MemberResult(SummaryRepr):
    """Episodes of one member's policy on one split.

    Attributes:
        member: number of the member; 0 for a policy without a run.
        episodes: results of the episodes, in order.
        independent: False for backtests, whose episodes are symbols on the same days.
    """

    member: int
    episodes: tuple[EpisodeResult, ...]
    independent: bool = True

    @property
    def mean_return(self) -> float:
        """Mean return of the episodes; episodes that a fault ended are left out."""
        return _mean_return(self.episodes)

    @property
    def interval(self) -> ConfidenceInterval | None:
        """95 % t interval of `mean_return` over the episodes.

        None for a single episode, and for backtests: symbols on the same days are not independent.
        """
        return mean_interval(_returns(self.episodes)) if self.independent else None

    @property
    def mean_length(self) -> float:
        """Mean number of steps of an episode."""
        return float(np.mean([episode.length for episode in self.episodes]))

    @property
    def metrics(self) -> dict[str, float]:
        """Mean of each metric over the episodes, by name."""
        return _mean_metrics(self.episodes)

    def summary(self) -> dict[str, object]:
        """Return member, number of episodes and mean return with its interval."""
        return {
            "member": self.member,
            "episodes": len(self.episodes),
            "mean return": format_significant(self.mean_return),
            "95 % interval": _interval_text(self.interval),
        }


@dataclass(frozen=True, repr=False, eq=False)
class SplitResult(SummaryRepr):
    """Episodes of all members' policies on one split.

    Attributes:
        name: name of the split: test, validation, train_window, or window.
        members: results by number of the member.
    """

    name: str
    members: Mapping[int, MemberResult]

    @property
    def episodes(self) -> tuple[EpisodeResult, ...]:
        """Episodes of all members, one member after the other."""
        return tuple(episode for member in self.members.values() for episode in member.episodes)

    @property
    def mean_return(self) -> float:
        """Mean over members of their mean returns."""
        return float(np.mean([member.mean_return for member in self.members.values()]))

    @property
    def interval(self) -> ConfidenceInterval | None:
        """95 % t interval of `mean_return`: over members; over episodes if there is one member."""
        if len(self.members) > 1:
            return mean_interval(np.array([member.mean_return for member in self.members.values()]))
        return next(iter(self.members.values())).interval

    @property
    def interval_over(self) -> Literal["members", "episodes"] | None:
        """The sample of `interval`: members or episodes; None if there is no interval."""
        if self.interval is None:
            return None
        return "members" if len(self.members) > 1 else "episodes"

    @property
    def metrics(self) -> dict[str, float]:
        """Mean of each metric over the episodes of all members, by name."""
        return _mean_metrics(self.episodes)

    def summary(self) -> dict[str, object]:
        """Return name, numbers of members and episodes, and mean return with its interval."""
        return {
            "split": self.name,
            "members": len(self.members),
            "episodes": len(self.episodes),
            "mean return": format_significant(self.mean_return),
            "95 % interval": _interval_text(self.interval),
            "over": self.interval_over,
        }


@dataclass(frozen=True, repr=False, eq=False)
class EvaluationResult(SummaryRepr):
    """Result of an evaluation: episodes by split and member.

    `print` shows it as a table. Figures without a split are those of the split named by `split`.

    ::

        result = slipstream.evaluate(run)
        result.mean_return, result.interval
        result.splits["test"].episodes[0].episode_return
        result.splits["test"].members[2].mean_return

    Attributes:
        splits: results by name of the split, in the order of time. Environments without prices have
            only "test": new episodes, which selected no policy.
        best_member: member whose policy validation selected; `load_policy` returns it.
    """

    splits: Mapping[str, SplitResult]
    best_member: int = 0

    @classmethod
    def from_episodes(
        cls,
        episodes: Mapping[str, Sequence[Sequence[EpisodeResult]]],
        members: Sequence[int] = (0,),
        best_member: int = 0,
        *,
        independent: bool = True,
    ) -> EvaluationResult:
        """Build it from episodes by split, then by member.

        Args:
            episodes: episodes by split, then in the order of `members`.
            members: numbers of the members.
            best_member, independent: see the classes.
        """
        splits = {
            name: SplitResult(
                name,
                {
                    member: MemberResult(member, tuple(member_episodes), independent)
                    for member, member_episodes in zip(members, by_member, strict=True)
                },
            )
            for name, by_member in episodes.items()
        }
        return cls(splits, best_member)

    @property
    def split(self) -> str:
        """Name of the split of the figures below: "test", or the last one if there is no test."""
        return "test" if "test" in self.splits else list(self.splits)[-1]

    @property
    def mean_return(self) -> float:
        """Mean over members of their mean returns on `split`."""
        return self.splits[self.split].mean_return

    @property
    def interval(self) -> ConfidenceInterval | None:
        """95 % t interval of `mean_return`: over members; over episodes if there is one member.

        None for a single value, and for backtests of one member: symbols on the same days are not
        independent. The report has an interval over days.
        """
        return self.splits[self.split].interval

    @property
    def interval_over(self) -> Literal["members", "episodes"] | None:
        """The sample of `interval`: members or episodes; None if there is no interval."""
        return self.splits[self.split].interval_over

    @property
    def episodes(self) -> tuple[EpisodeResult, ...]:
        """Episodes of all members on `split`."""
        return self.splits[self.split].episodes

    @property
    def members(self) -> Mapping[int, MemberResult]:
        """Results on `split` by number of the member."""
        return self.splits[self.split].members

    @property
    def best(self) -> MemberResult:
        """Result of `best_member` on `split`."""
        return self.members[self.best_member]

    def by_split(self) -> dict[str, list[list[EpisodeResult]]]:
        """Return lists of episodes by split, then by member in order."""
        return {
            name: [list(member.episodes) for member in split.members.values()]
            for name, split in self.splits.items()
        }

    def to_frame(self) -> Any:
        """Return a polars DataFrame with one row per episode.

        Its columns are split, member, episode, name, episode_return, length, and the metrics.

        Raises:
            ResourceError: polars is not installed.
        """
        try:
            import polars
        except ImportError as error:
            raise ResourceError(
                f"`to_frame` requires polars, which cannot be imported ({error}). Install it: "
                f"{pip_install_command('polars')}"
            ) from error
        return polars.DataFrame(
            [
                {
                    "split": split.name,
                    "member": member.member,
                    "episode": episode.number,
                    "name": episode.name,
                    "episode_return": float(episode.episode_return),
                    "length": int(episode.length),
                    **{name: float(value) for name, value in episode.metrics.items()},
                }
                for split in self.splits.values()
                for member in split.members.values()
                for episode in member.episodes
            ],
            infer_schema_length=None,
        )

    def summary(self) -> dict[str, object]:
        """Return the figures of `split`."""
        return self.splits[self.split].summary()

    def __str__(self) -> str:
        """Return a table: a row per split and member, and one over members if there are several."""
        columns = ["split", "member", "episodes", "mean return", "95 % interval", "mean length"]
        backtests = all("total_return" in member.metrics for member in self.members.values())
        columns += ["total return"] * backtests
        rows: list[list[str]] = []
        for split in self.splits.values():
            for one in split.members.values():
                rows.append(
                    [
                        *(split.name, str(one.member), f"{len(one.episodes):,}"),
                        format_significant(one.mean_return),
                        _interval_text(one.interval) or NOTHING,
                        format_significant(one.mean_length),
                    ]
                )
                if backtests:
                    rows[-1].append(f"{100 * one.metrics['total_return']:.1f} %")
            if len(split.members) > 1:
                rows.append(
                    [
                        *(split.name, "all", f"{len(split.episodes):,}"),
                        format_significant(split.mean_return),
                        _interval_text(split.interval) or NOTHING,
                        *[""] * (2 if backtests else 1),
                    ]
                )
        lines = format_columns(columns, rows, left=2)
        if len(self.members) > 1:
            lines.append(
                f"Best member by validation: {self.best_member}. Intervals: per member over its "
                'episodes, for "all" over members.'
            )
        return "\n".join(lines)


def _returns(episodes: Sequence[EpisodeResult]) -> NDArray[np.float64]:
    return finite_values(np.array([episode.episode_return for episode in episodes], np.float64))


def _mean_return(episodes: Sequence[EpisodeResult]) -> float:
    return float(np.mean(_returns(episodes)))


def _mean_metrics(episodes: Sequence[EpisodeResult]) -> dict[str, float]:
    names = episodes[0].metrics if episodes else ()
    return {name: float(np.mean([episode.metrics[name] for episode in episodes])) for name in names}


def _interval_text(interval: ConfidenceInterval | None) -> str | None:
    if interval is None:
        return None
    return f"{format_significant(interval[0])} to {format_significant(interval[1])}"


def student_quantile(share: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution for a share from 0.5 to 1.

    With t = sqrt(freedom) tan a, the distribution is a finite sum of powers of cos a (Abramowitz
    and Stegun 26.7.3 and 26.7.4), which bisection over a inverts.
    """
    odd = freedom % 2
    j = np.arange(1 + odd, freedom - 1, 2)
    factors = np.cumprod(np.concatenate([[1.0], j / (j + 1.0)]))
    low, high = 0.0, math.pi / 2
    for _ in range(64):
        a = (low + high) / 2
        powers = math.cos(a) ** (odd + 2 * np.arange(len(factors)))
        within = math.sin(a) * float(factors @ powers)
        if odd:
            within = 2 / math.pi * (a + (within if freedom > 1 else 0.0))
        low, high = (a, high) if within < 2 * share - 1 else (low, a)
    return math.sqrt(freedom) * math.tan(low)


def mean_interval(sample: NDArray[np.float64]) -> tuple[float, float] | None:
    """Return the 95 % t interval of the mean of [n] independent values; None for fewer than two."""
    error = standard_error(sample)
    if error is None:
        return None
    mean, half = float(sample.mean()), student_quantile(0.975, len(sample) - 1) * error
    return mean - half, mean + half
