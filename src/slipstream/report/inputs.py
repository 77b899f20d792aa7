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

RANDOM_DRAWS = 200  # number of matched random traders


class EvaluationWindow(TypedDict, total=False):
    """Selection of bars to score instead of the run's splits.

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
    """Times and closes of all symbols, as in the kernel's `Data`.

    Attributes:
        time: int64 [rows], UTC seconds of each bar's open, all symbols concatenated.
        close: float64 [rows], mid prices for marking equity; [rows, A] for a portfolio.
        assets: names of a portfolio's assets; empty for single positions.
        fill: float64 [rows, A], mid prices at which a portfolio's orders are filled.
    """

    time: Ints
    close: Floats
    assets: tuple[str, ...] = ()
    fill: Floats = field(default_factory=lambda: np.empty((0, 0)))


@dataclass(frozen=True)
class RoundTripCost:
    """Mean cost of a round trip (opening and closing a position) over a split's bars."""

    symbol: str
    pips: float
    basis_points: float


# Display names of baselines.
FLAT, BUY_AND_HOLD, SHORT = "flat", "buy and hold", "always short"
CASH, EQUAL_WEIGHT, REBALANCED = "cash", "equal weight", "equal weight, rebalanced"
EMA_CROSS, MATCHED_RANDOM, ORACLE = "EMA 20/50 cross", "matched random", "oracle"


@dataclass(frozen=True)
class Baselines:
    """Baselines on the bars of one split.

    Attributes:
        tracks: episode results by baseline, in display order.
        random_returns: total return of each matched random trader, as fractions.
        oracle_growth: final / initial equity computed by the dynamic programme, all symbols
            together; reports show the replayed oracle track.
        assets: buy and hold of each asset of a portfolio.
    """

    tracks: Mapping[str, Sequence[EpisodeResult]]
    random_returns: Floats = field(default_factory=lambda: np.empty(0))
    oracle_growth: float | None = None
    assets: Mapping[str, Sequence[EpisodeResult]] = field(default_factory=dict)


@dataclass(frozen=True)
class StressTest:
    """Total returns of the agent's decisions under other costs and with one bar of delay.

    Attributes:
        multiples: cost multiples, ascending, and the return under each.
        break_even: cost multiple with zero return; infinity if it is above 100,
            None if the decisions lose money without costs.
        delayed: return if every decision is executed one bar later.
    """

    multiples: tuple[tuple[float, float], ...]
    break_even: float | None
    delayed: float


@dataclass(frozen=True)
class Curve:
    """A learning curve: scores of the members over steps.

    Attributes:
        name: "training" or a split's name.
        steps: [k].
        score: [k, M]; NaN where a member has none.
        unit: unit of the score; curves of the same unit share a panel.
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
        chosen: choice of each member's policy, in the order of `RunEvaluation.tracks`.
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
    """Data of a report.

    Attributes:
        title: headline of the page, such as the run's name.
        tracks: episodes by split and member; the order of the splits is the order of the page.
        source: the run or policy; None for tracks alone.
        environment: environment of the tracks; None for tracks alone.
        market: market of the environment; None without prices.
        prices: prices; required with `market`.
        holdout: split of the headline figures.
        unseen: nothing was learned from that split or chosen on it.
        member_numbers: numbers of the members in the run, if some are omitted.
        member: index of the displayed member; the others form the seed band.
        member_reason: reason for displaying this member.
        same_settings: True if members differ only in their seeds and form a seed band.
        baselines: baselines by split (market only).
        stress: stress test of the hold-out (market only).
        random_policy: episode returns of a uniformly random policy (without prices).
        game: choice of the policies (without prices); None without training.
        curves: learning curves.
        episodes: length and metrics of training episodes over steps.
        resources: resource usage by column of `metrics.csv`.
        round_trips: cost of a round trip by symbol on the hold-out.
        financing: True if swaps are charged.
        trials: number of configurations tried, including this one.
        earlier_uses: earlier runs and studies that used some of these days; their trials are added.
        holdout_reads: number of evaluations of the hold-out, including this one.
        notes: notices about the data or the run.
        provenance: command, versions, machine, data hash: label and text.
        accepted: data issues accepted by the config; displayed first.
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
        """True if the backtests hold all assets at the same time (a portfolio)."""
        return self.prices is not None and bool(self.prices.assets)

    @property
    def member_noun(self) -> str:
        """Noun for the members."""
        return "seeds" if self.same_settings else "members with different settings"

    @property
    def member_note(self) -> str:
        """Sentence with the displayed member and the reason."""
        reason = f", {self.member_reason}" if self.member_reason else ""
        return f"The report shows member {self.number(self.member)}{reason}."


class SplitBacktest(Protocol):
    """Backtests of one split, with baselines replayed on the same bars."""

    @property
    def kernel(self) -> Kernel:
        """Kernel of the environment."""

    @property
    def params(self) -> tuple[Any, ...]:
        """Params records of the split, one per backtest."""

    @property
    def data(self) -> Any:
        """Data arrays of the kernel."""

    @property
    def market(self) -> MarketSpec:
        """Market of all backtests together."""

    @property
    def prices(self) -> Prices:
        """Times and closes of all symbols."""

    @property
    def start_time(self) -> int:
        """UTC seconds of the first bar's open."""

    @property
    def is_comparable(self) -> bool:
        """True if the agent's actions can be replayed under other costs and at other bars."""

    @property
    def has_financing(self) -> bool:
        """True if positions pay overnight financing."""

    def round_trips(self) -> list[RoundTripCost]:
        """Mean cost of a round trip in each symbol."""

    def name_tracks(self, tracks: Sequence[EpisodeResult]) -> list[EpisodeResult]:
        """Return the tracks by symbol."""

    def rule_baselines(self) -> Baselines:
        """Return baselines that follow fixed trading rules."""

    def compare(self, agent: Sequence[EpisodeResult], draws: int = ...) -> Baselines:
        """Return all baselines, with the oracle and matched random traders."""

    def stress_test(self, agent: Sequence[EpisodeResult]) -> StressTest:
        """Return the agent's decisions with scaled costs and one bar late."""

    def rebalanced_tracks(self) -> list[EpisodeResult] | None:
        """Return equal weight, rebalanced on every bar; None without weights."""

    def random_percentile(self, agent: Sequence[EpisodeResult], draws: int) -> float:
        """Return the percentile of the agent among matched random traders."""


class Backtest(Part):
    """Part of an environment with tradable prices and costs of its backtests."""

    @abstractmethod
    def for_split(self, split: str, backend: str = "compiled") -> SplitBacktest:
        """Return the backtests of one split.

        Args:
            split: name of the split.
            backend: backend of the sub-environments.
        """
