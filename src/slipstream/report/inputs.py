"""Inputs of a report: everything is computed before a page is written."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypedDict

import numpy as np

from slipstream.kernels.kernel import Kernel
from slipstream.kernels.spec import MarketSpec
from slipstream.report.statistics import Floats, Ints
from slipstream.training.environments.environment import Environment, Part
from slipstream.training.episode_result import EpisodeResult
from slipstream.training.runs.policies import DeployedPolicy
from slipstream.training.runs.run import Run

RANDOM_DRAWS = 200  # matched random traders


class EvaluationWindow(TypedDict, total=False):
    """Bars that are scored instead of a run's own splits.

    Attributes:
        data: folder of other prices.
        symbols: their symbols; by default those of the run.
        start, stop: half-open range of bars, UTC seconds.
    """

    data: str | Path | None
    symbols: Sequence[str] | None
    start: int | None
    stop: int | None


@dataclass(frozen=True)
class Prices:
    """The clock and the closes of all symbols, as in the kernel's `Data`.

    Attributes:
        time: UTC seconds of each bar's open, int64 [rows], of all symbols end to end.
        close: mids that equity is marked at, float64 [rows], of a portfolio [rows, A].
        assets: names of a portfolio's assets; empty for single positions.
        fill: mids that a portfolio's orders fill at, float64 [rows, A].
    """

    time: Ints
    close: Floats
    assets: tuple[str, ...] = ()
    fill: Floats = field(default_factory=lambda: np.empty((0, 0)))


@dataclass(frozen=True)
class RoundTripCost:
    """Mean cost of opening and closing one position over a split's bars."""

    symbol: str
    pips: float
    basis_points: float


# Names of baselines on a page.
FLAT, BUY_AND_HOLD, SHORT = "flat", "buy and hold", "always short"
CASH, EQUAL_WEIGHT, REBALANCED = "cash", "equal weight", "equal weight, rebalanced"
EMA_CROSS, MATCHED_RANDOM, ORACLE = "EMA 20/50 cross", "matched random", "oracle"


@dataclass(frozen=True)
class Baselines:
    """Baselines on the bars of one split.

    Attributes:
        tracks: by baseline, in the order in which they are shown.
        random_returns: total return of each matched random draw, fractions.
        oracle_growth: final equity over the start that the dynamic programme promised, all symbols
            together; the replayed oracle track is what is shown.
        assets: buy and hold of each asset of a portfolio.
    """

    tracks: Mapping[str, Sequence[EpisodeResult]]
    random_returns: Floats = field(default_factory=lambda: np.empty(0))
    oracle_growth: float | None = None
    assets: Mapping[str, Sequence[EpisodeResult]] = field(default_factory=dict)


@dataclass(frozen=True)
class StressTest:
    """The agent's own decisions under other costs and one bar late: total returns, fractions.

    Attributes:
        multiples: cost multiple and the return under it, ascending.
        break_even: cost multiple at which nothing is left; infinity when none up to 100 does it,
            None when the decisions lose without any costs.
        delayed: return with every decision carried out one bar later.
    """

    multiples: tuple[tuple[float, float], ...]
    break_even: float | None
    delayed: float


@dataclass(frozen=True)
class Curve:
    """One line of the learning curve: a score per member over steps per member.

    Attributes:
        name: "training" or a split's name.
        steps: [k].
        score: [k, M]; NaN where a member has none.
        unit: what a score is; curves of one unit share a panel.
    """

    name: str
    steps: Floats
    score: Floats
    unit: str = "mean episode return"


@dataclass(frozen=True)
class PolicyChoice:
    """Choice of one member's policy, and the score of its last policy.

    Attributes:
        steps: step at which the policy was chosen.
        score: validation score that chose it.
        last, last_error: score of the last policy on the fresh episodes, and its standard error;
            None if it was not measured.
        settings: this member's values of the settings that differ between members.
    """

    steps: int
    score: float
    last: float | None = None
    last_error: float | None = None
    settings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class GameEvaluation:
    """Additional inputs for reports of environments without prices.

    Attributes:
        chosen: of each member, in the order of `RunEvaluation.tracks`.
        steps: training steps per member.
        budget: planned training steps per member.
        validations: number of validations.
        sampled: returns of the shown member's policy with sampled actions; empty if the policy is
            deterministic.
        longest: step limit of the evaluation; None if there is none.
    """

    chosen: tuple[PolicyChoice, ...]
    steps: int
    validations: int
    budget: int = 0
    sampled: Floats = field(default_factory=lambda: np.empty(0))
    longest: int | None = None


@dataclass(frozen=True)
class RunEvaluation:
    """Everything that a report shows.

    Attributes:
        title: headline of the page, such as the run's name.
        tracks: episodes by split and member; the order of the splits is the order of the page.
        source: the run or policy; None for tracks alone.
        environment: that its tracks are from; None for tracks alone.
        market: None for environments without prices.
        prices: needed with `market`.
        holdout: the split whose figures are the headline.
        unseen: nothing was learned from that split or chosen on it.
        numbers: the members' numbers in the run, where some are left out.
        member: index of the member whose decisions are shown; the others form the seed band.
        member_reason: why this member, in words.
        same_settings: the members differ by their seed alone, so that they form a seed band.
        comparisons: baselines by split (market only).
        stress: of the hold-out (market only).
        random_policy: returns of a uniformly random policy's episodes (without prices).
        game: how policies were chosen (without prices); None where there was no training.
        curves: learning curves.
        episodes: length and metrics of training episodes over steps.
        machine: what looks at the machine found, by column of `metrics.csv`.
        round_trips: cost of a round trip by symbol on the hold-out.
        financing: swaps are charged.
        trials: configurations tried before this one was shown, this one included.
        before: earlier runs and studies that showed some of these days; their trials come on top.
        holdout_reads: how often the hold-out has been evaluated, this time included.
        notes: sentences about the data or the run that the reader must see.
        provenance: command, versions, machine, data hash: label and text.
        accepted: findings of the data check that the config let in: they come first on the page.
    """

    title: str
    tracks: Mapping[str, Sequence[Sequence[EpisodeResult]]]
    source: Run | DeployedPolicy | None = None
    environment: Environment | None = None
    market: MarketSpec | None = None
    prices: Prices | None = None
    holdout: str = "test"
    unseen: bool = True
    member_numbers: tuple[int, ...] = ()
    member: int = 0
    member_reason: str = ""
    same_settings: bool = True
    baselines: Mapping[str, Baselines] = field(default_factory=dict)
    stress: StressTest | None = None
    random_policy: Floats = field(default_factory=lambda: np.empty(0))
    game: GameEvaluation | None = None
    curves: tuple[Curve, ...] = ()
    episodes: tuple[Curve, ...] = ()
    resources: Mapping[str, Floats] = field(default_factory=dict)
    round_trips: tuple[RoundTripCost, ...] = ()
    financing: bool = False
    trials: int = 1
    earlier_uses: tuple[str, ...] = ()
    holdout_reads: int = 1
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    accepted: tuple[str, ...] = ()

    def number(self, index: int) -> int:
        """Return a member's number in the run."""
        return self.member_numbers[index] if self.member_numbers else index

    @property
    def is_portfolio(self) -> bool:
        """True if passes are sequential and hold all assets at once."""
        return self.prices is not None and bool(self.prices.assets)

    @property
    def member_noun(self) -> str:
        """Noun for the members."""
        return "seeds" if self.same_settings else "members with different settings"

    @property
    def member_note(self) -> str:
        """Sentence that names the shown member and the reason."""
        reason = f", {self.member_reason}" if self.member_reason else ""
        return f"The report shows member {self.number(self.member)}{reason}."


class SplitBacktest(Protocol):
    """Passes of one split, with the baselines replayed on the same bars."""

    @property
    def kernel(self) -> Kernel:
        """The rules."""

    @property
    def params(self) -> tuple[Any, ...]:
        """Params records of the split, one for each pass."""

    @property
    def data(self) -> Any:
        """Arrays of the kernel."""

    @property
    def market(self) -> MarketSpec:
        """The market of all passes together."""

    @property
    def prices(self) -> Prices:
        """Clock and closes of all symbols."""

    @property
    def start_time(self) -> int:
        """UTC second at which the first bar opens."""

    @property
    def is_comparable(self) -> bool:
        """True if the agent's actions can be replayed under other costs and at other bars."""

    @property
    def has_financing(self) -> bool:
        """True if positions pay overnight financing."""

    def round_trips(self) -> list[RoundTripCost]:
        """Mean cost of opening and closing in each symbol."""

    def name_tracks(self, tracks: Sequence[EpisodeResult]) -> list[EpisodeResult]:
        """Tracks by symbol."""

    def rule_baselines(self) -> Baselines:
        """Fixed rules that a trader could have followed."""

    def compare(self, agent: Sequence[EpisodeResult], draws: int = ...) -> Baselines:
        """Return all baselines, with the oracle and matched random traders."""

    def stress_test(self, agent: Sequence[EpisodeResult]) -> StressTest:
        """Return the agent's decisions with scaled costs and one bar late."""

    def rebalanced_tracks(self) -> list[EpisodeResult] | None:
        """Equal weight, restored on every bar; None if there are no weights."""

    def random_percentile(self, agent: Sequence[EpisodeResult], draws: int) -> float:
        """Percentile of the agent among matched random traders."""


class Backtest(Part):
    """Part of an environment that declares tradable prices and costs of its passes."""

    @abstractmethod
    def for_split(self, split: str, backend: str = "compiled") -> SplitBacktest:
        """Return the passes of one split.

        Args:
            split: of the data.
            backend: of the sub-environments.
        """
