"""Members that a study submits to its pool, and their outcomes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.training.settings.config import RunConfig


@dataclass(frozen=True)
class Member:
    """One learner of a study.

    Attributes:
        name: unique in the study and safe as a file name: ``search-00012-3``.
        config: run config; `members` is 1 and `num_envs` a number.
        fold: training data: ``fold3``, ``development`` or ``everything``.
        test: split scored at milestones (``fold3/test``, ``holdout``); None for no scoring.
        seed: seed of all its random numbers.
        budget: total training steps; schedules depend on it.
    """

    name: str
    config: RunConfig
    fold: str
    test: str | None
    seed: int
    budget: int

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of everything that determines the weights."""
        config = self.config
        env = {"name": config.env_name, **config.env_settings}
        determining: list[object] = [env, config.agent_name, config.agent.model_dump(mode="json")]
        determining += [config.training.num_envs, self.fold, self.seed, self.budget]
        return hashlib.sha256(json.dumps(determining, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class DailyReturns:
    """Daily returns of a member's backtests, concatenated; no return spans two backtests.

    In games an episode is a day: `returns` are episode returns and `benchmark` is zero.

    Attributes:
        days: int64 [n], UTC day numbers (forex: days that roll at 17:00 New York).
        returns: float64 [n], compounded net return of the day.
        benchmark: float64 [n], return of the equal-weight portfolio on the same bars.
        group: int64 [n], tested group 0, 1, ... in the order of the fold.
        metrics: for each group the environment's metrics (mean_exposure, fills, turnover, ...),
            and `net_exposure` if `timing` is known.
        timing: float64 [n], return minus mean net exposure times market return, summed over the
            symbols; the exposure is the mean over all backtests. None if it was not recorded.
        market: float64 [n], market return: each symbol bought once with equal capital, free of
            costs. None if it was not recorded.
    """

    days: NDArray[np.int64]
    returns: NDArray[np.float64]
    benchmark: NDArray[np.float64]
    group: NDArray[np.int64]
    metrics: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    timing: NDArray[np.float64] | None = None
    market: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Outcome:
    """Outcome of a member at a milestone.

    Attributes:
        name: name of the member.
        milestone: completed iterations.
        backtests: daily returns on its `test` split at this milestone; None without a split.
        failed, reason: training or scoring failed, and the reason (weights or returns that are not
            finite, an environment that could not be created). Training stops there.
        steps: environment steps so far.
        seconds: seconds since the last milestone, by env, policy, update, evaluate, overhead; the
            member's share of its population's time.
        notes: notices about the computation of its population, stored with its first member.
    """

    name: str
    milestone: int
    backtests: DailyReturns | None
    failed: bool = False
    reason: str = ""
    steps: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
