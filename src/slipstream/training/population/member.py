"""What a study hands to its pool, and what comes back."""

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
        name: unique in the study and safe as a file's name: ``search-00012-3``.
        config: its run; `members` is 1 and `num_envs` a number.
        fold: what it trains on: ``fold3``, ``development`` or ``everything``.
        test: split that is scored at milestones (``fold3/test``, ``holdout``); None: nothing is.
        seed: of everything random in it.
        budget: steps it is trained for in the end; schedules follow it.
    """

    name: str
    config: RunConfig
    fold: str
    test: str | None
    seed: int
    budget: int

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of everything that decides its weights."""
        config = self.config
        env = {"name": config.env_name, **config.env_settings}
        facts: list[object] = [env, config.agent_name, config.agent.model_dump(mode="json")]
        facts += [config.training.num_envs, self.fold, self.seed, self.budget]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class DailyReturns:
    """A member's test passes, one after the other; no return is taken between two of them.

    In games an episode is a day: `returns` are episode returns and `benchmark` is zero.

    Attributes:
        days: int64 [n], UTC day numbers (forex: days that roll at 17:00 New York).
        returns: float64 [n], the day's compounded net return.
        benchmark: float64 [n], equal weight's on the same bars.
        group: int64 [n], which tested group, 0, 1, ... in the order of the fold.
        metrics: for each group the environment's metrics (mean_exposure, fills, turnover, ...),
            and `net_exposure` if `timing` is known.
        timing: float64 [n], return minus mean net exposure times the market's return, summed over
            the symbols; the exposure is the mean over all passes. None if it was not recorded.
        market: float64 [n], the market's return: each symbol bought once with equal capital, free
            of costs. None if it was not recorded.
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
    """What became of a member at a milestone.

    Attributes:
        name: the member's.
        milestone: iterations done.
        passes: of its `test` split with the weights at this milestone; None where there is none.
        failed, reason: it could not be trained or scored, and why (weights or returns that are not
            finite, an environment that could not be made); it was not trained further.
        steps: environment steps done so far.
        seconds: since its last milestone, by env, policy, update, evaluate, overhead; shares of its
            population's.
        notes: sentences about how its population was calculated, with its first member.
    """

    name: str
    milestone: int
    passes: DailyReturns | None
    failed: bool = False
    reason: str = ""
    steps: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
