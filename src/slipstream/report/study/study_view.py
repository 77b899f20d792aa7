"""StudyView: data of study.html, read from a study's folder or replayed.

When the page is written, two things are replayed on the hold-out (docs/explanation/statistics.md,
section 15): equal weight that is rebalanced (a study follows what is bought once), and matched
random traders: the deployable policy's own decisions at other places of the hold-out, under its own
costs and rules. Both affect the wording of the page only, no choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slipstream.core.errors import CheckpointError, SlipstreamError
from slipstream.core.storage import checkpoint
from slipstream.core.storage.csv_table import read_table
from slipstream.core.timeline import DAY, HOLDOUT
from slipstream.report.history import origin_lines, resource_columns
from slipstream.report.inputs import RANDOM_DRAWS, Backtest, SplitBacktest
from slipstream.report.statistics import Floats, Ints
from slipstream.rl.nets.policy_file import unpack
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger, Trial, best_trials
from slipstream.studies.search.study_plan import num_steps
from slipstream.studies.space import AGENT, NUM_ENVS, SearchSpace
from slipstream.studies.statistics.returns import FoldMap, backtest_paths
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.evaluator import Evaluator
from slipstream.training.episode_result import EpisodeResult
from slipstream.training.population.backtests import backtest_growth, join_backtests
from slipstream.training.population.environment_source import EnvironmentSource
from slipstream.training.population.member import DailyReturns
from slipstream.training.settings.config import resolve

_Passes = Mapping[tuple[int, int, int], DailyReturns]  # by (trial, repeat, fold)


@dataclass(frozen=True)
class SearchAxis:
    """A searched setting.

    Attributes:
        name: dotted path.
        log: True for a logarithmic scale.
        choices: categorical values; empty for numbers.
    """

    name: str
    log: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def short(self) -> str:
        """The last part of the path."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class ReturnCurves:
    """Daily returns of one configuration and its benchmarks on the same days.

    Attributes:
        time: UTC seconds of each day's end [n].
        curves: returns of each path or seed [k, n].
        benchmark: returns of equal weight [n]; None without this benchmark.
        rebalanced: returns of rebalanced equal weight on the hold-out [n]; None if unknown.
        missing: reason why `rebalanced` is unknown; empty if it does not apply.
        market: returns of the market on the hold-out, each symbol bought once [n]; None if they
            were not recorded.
        periods: trading days per year.
    """

    time: Ints
    curves: Floats
    benchmark: Floats | None
    rebalanced: Floats | None = None
    missing: str = ""
    periods: float = 365.0
    market: Floats | None = None


@dataclass(frozen=True)
class StudyView:
    """Contents of the page.

    Attributes:
        name: name of the study.
        result: `result.json`; see `slipstream.studies.outcome.result`.
        trials: all trials, by number.
        axes: the searched settings.
        importance: share of each setting, the largest first; empty with too few trials.
        shown: trial whose curves are drawn: the winner, else the best candidate, else the best.
        development: its backtest paths with the search's own seed.
        fresh: its mean over paths with each fresh seed of the confirmation.
        holdout: its seeds on the hold-out, the deployable one first.
        random_traders: rank of the deployable seed's return among matched random traders; None if
            unknown, for the reason `random_missing`.
        fold_dates: first and last day of each tested group.
        provenance: label and text.
        notes: notices about the data.
        accepted: data issues accepted by the config.
        resources: resource usage by column of `machine.csv`.
    """

    name: str
    result: Mapping[str, Any]
    trials: Sequence[Trial]
    axes: Sequence[SearchAxis] = ()
    importance: Mapping[str, float] = field(default_factory=dict)
    shown: int | None = None
    development: ReturnCurves | None = None
    fresh: ReturnCurves | None = None
    holdout: ReturnCurves | None = None
    random_traders: RandomTraderRank | None = None
    random_missing: str = ""
    fold_dates: Sequence[str] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    accepted: Sequence[str] = ()
    resources: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def has_prices(self) -> bool:
        """True if the study has prices, and so a hold-out."""
        return bool(self.result["market"])

    @property
    def has_benchmark(self) -> bool:
        """True if equal weight is traded on the same bars; otherwise the only baseline is cash."""
        return bool(self.result.get("benchmark", self.has_prices))

    @property
    def rival_name(self) -> str:
        """Name of the benchmark: "equal weight", or its replacement."""
        return "equal weight" if self.has_benchmark else "cash"

    @property
    def ranked_trials(self) -> list[Trial]:
        """Trials that finished all folds at full budget and traded, best first."""
        return best_trials(list(self.trials))

    def trial(self, number: int) -> Trial:
        """Return the trial of a number."""
        return next(trial for trial in self.trials if trial.number == number)


def read_view(folder: StudyFolder) -> StudyView:
    """Read the data of a complete study.

    Raises:
        CheckpointError: the study is not complete, or a file cannot be read.
    """
    result, known = folder.result, folder.provenance
    if result is None:
        raise CheckpointError(
            f"The study {folder.name} has no result yet; continue it with `slipstream resume "
            f"{folder.handle}`, or look at it with `slipstream study status {folder.handle}`."
        )
    with Ledger(folder.ledger, read_only=True) as ledger:
        trials = ledger.trials()
        space = SearchSpace.from_mapping(folder.study.space, folder.base)
        scored = [
            (trial.suggestion.params, trial.score) for trial in trials if trial.score is not None
        ]
        environment = known.get("environment") or {}
        facts = environment.get("folds")
        shown = (result.get("shown") or {}).get("trial")
        view = StudyView(
            name=folder.name,
            result=result,
            trials=trials,
            axes=[
                SearchAxis(
                    name, bool(getattr(one, "log", False)), tuple(getattr(one, "choices", ()))
                )
                for name, one in space.distributions.items()
            ],
            importance=space.importances(scored),
            shown=shown,
            fold_dates=_dates(facts),
            provenance=_provenance(folder),
            notes=tuple(known.get("notes") or ()),
            accepted=tuple(environment.get("accepted") or ()),
            resources=_machine(folder),
        )
        if not view.has_prices or facts is None or shown is None:
            return view
        return _with_lines(view, folder, ledger, FoldMap.from_metadata(facts), shown)


def _machine(folder: StudyFolder) -> dict[str, Floats]:
    """Return the columns of machine.csv; empty if it is damaged, as only a picture uses them."""
    try:
        return resource_columns(read_table(folder.machine))
    except CheckpointError:
        return {}


def _with_lines(
    view: StudyView, folder: StudyFolder, ledger: Ledger, layout: FoldMap, shown: int
) -> StudyView:
    folds = range(len(layout.groups))
    search, confirm, final = (ledger.backtests(phase) for phase in ("search", "confirm", "final"))

    def whole(backtests: _Passes, repeat: int) -> list[DailyReturns]:
        fold_backtests = [backtests.get((shown, repeat, fold)) for fold in folds]
        return [backtest for backtest in fold_backtests if backtest is not None]

    development = whole(search, 0)
    if len(development) == len(folds):
        paths = backtest_paths(development, layout)
        view = replace(view, development=_lines(view, paths.days, paths.returns, paths.benchmark))
    repeats = sorted({repeat for trial, repeat, _ in confirm if trial == shown})
    curves = [whole(confirm, repeat) for repeat in repeats]
    fresh = [backtest_paths(seed, layout) for seed in curves if len(seed) == len(folds)]
    fresh = [curve for curve in fresh if np.array_equal(curve.days, fresh[0].days)]
    if fresh:
        means = np.array([curve.mean for curve in fresh])
        view = replace(view, fresh=_lines(view, fresh[0].days, means, fresh[0].benchmark))
    held = [final[key] for key in sorted(final) if key[0] == shown]
    held = [curve for curve in held if np.array_equal(curve.days, held[0].days)]
    if held:
        returns = np.array([curve.returns for curve in held])
        lines = _lines(view, held[0].days, returns, held[0].benchmark)
        lines = replace(lines, market=held[0].market)
        view = _with_replays(replace(view, holdout=lines), folder, held[0])
    return view


def _with_replays(view: StudyView, folder: StudyFolder, deployed: DailyReturns) -> StudyView:
    """Return the view with the benchmarks replayed on the hold-out."""
    assert view.holdout is not None and view.shown is not None
    environment, why = study_environment(folder, view.trial(view.shown).suggestion.overrides)
    if environment is None or environment.spec.market is None:
        why = why or "this environment has no prices"
        lines = replace(view.holdout, missing=why) if view.has_benchmark else view.holdout
        return replace(view, holdout=lines, random_missing=why)
    lines = view.holdout
    if view.has_benchmark:
        more, missing = rebalanced_returns(environment, deployed.days)
        lines = replace(lines, rebalanced=more, missing=missing)
    random, why = rank_among_random_traders(folder, environment, deployed.days, deployed.returns)
    return replace(view, holdout=lines, random_traders=random, random_missing=why)


def _lines(view: StudyView, days: Ints, each: Floats, benchmark: Floats) -> ReturnCurves:
    beside = benchmark if view.has_benchmark else None
    return ReturnCurves((days + 1) * DAY, each, beside, periods=view.result["days_per_year"])


def _dates(facts: Mapping[str, Any] | None) -> list[str]:
    if facts is None:
        return []
    return [f"{_day(low)} to {_day(high - 1)}" for low, high in facts["groups"]]


def _day(seconds: int) -> str:
    return str(np.datetime64(int(seconds), "s").astype("datetime64[D]"))


def _provenance(folder: StudyFolder) -> dict[str, str]:
    facts, study = folder.provenance, folder.study
    work = (
        f"seed {study.seed}, sampler {study.sampler}, "
        f"{study.max_concurrent_trials} concurrent trials, {_steps(folder)} steps a member"
    )
    digest = (facts.get("environment") or {}).get("market_sha256")
    return origin_lines(facts, {"Study": work}, facts.get("config_hash"), digest)


def _steps(folder: StudyFolder) -> str:
    """Return the requested steps, and the trained steps if whole rollouts exceed them."""
    config = folder.base
    requested, trained = config.training.total_timesteps, num_steps(config)
    agent = config.agent
    sizes = {"training.total_timesteps", NUM_ENVS}
    sizes |= {AGENT + name for name in (*agent.LENGTHS, *agent.FITTED)}
    if requested == trained or sizes & set(folder.study.space or ()):
        return f"{requested:,}"
    return f"{trained:,} (whole iterations; {requested:,} requested)"


_SAME = 1e-6  # tolerance of a daily return: weights are float32


@dataclass(frozen=True)
class RandomTraderRank:
    """Rank of the deployable policy among traders that differ from it only in timing.

    Attributes:
        percentile: percentage of traders that did worse; ties count half.
        draws: number of random traders.
    """

    percentile: float
    draws: int


def study_environment(
    folder: StudyFolder, overrides: Mapping[str, Any]
) -> tuple[Environment | None, str]:
    """Return the environment of a trial with the prices of the study.

    Args:
        folder: folder of the study.
        overrides: overrides of the trial.

    Returns:
        The environment; or None and the reason.
    """
    study, facts = folder.study, folder.provenance.get("environment") or {}
    try:
        source = EnvironmentSource(study.folds, study.fold_seeds)
        environment = source.environment(resolve(folder.base, overrides))
    except (SlipstreamError, OSError):
        return None, "the prices are no longer where the study read them"
    if environment.provenance.get("market_sha256") != facts.get("market_sha256"):
        return None, "the prices have changed since the study read them"
    return environment, ""


def rebalanced_returns(
    environment: Environment, days: Ints, backend: str = "compiled"
) -> tuple[Floats | None, str]:
    """Compute daily returns of equal weight, rebalanced on every bar, with a trial's costs.

    Args:
        environment: environment of the trial, with the prices of the study.
        days: int64 [n], the expected days.
        backend: of the sub-environments.

    Returns:
        Returns [n], or None and the reason; the reason is empty if there is no such benchmark.
    """
    backtest = environment.part(Backtest)
    split = None if backtest is None else backtest.for_split(HOLDOUT, backend)
    tracks = None if split is None else split.rebalanced_tracks()
    if split is None or tracks is None:
        return None, ""
    split_days, returns = daily_returns(split, tracks)
    if not np.array_equal(split_days, days):
        return None, "the bars are cut into other days than the study's"
    return returns, ""


def rank_among_random_traders(
    folder: StudyFolder,
    environment: Environment,
    days: Ints,
    returns: Floats,
    *,
    draws: int = RANDOM_DRAWS,
    backend: str = "compiled",
) -> tuple[RandomTraderRank | None, str]:
    """Rank the deployable policy among matched random traders.

    Args:
        folder: folder of the study, with the deployable `policy`.
        environment: environment of the deployed trial, with the prices of the study.
        days, returns: [n], recorded returns of that policy on the hold-out.
        draws: number of random traders.
        backend: of the sub-environments.

    Returns:
        The rank; or None and the reason.
    """
    backtest = environment.part(Backtest)
    if backtest is None:
        return None, "this environment does not declare tradable prices of its passes"
    split = backtest.for_split(HOLDOUT, backend)
    if not split.is_comparable:
        return None, "this environment's decisions cannot be moved to other bars"
    try:
        tensors, manifest = checkpoint.load(folder.policy)
    except (SlipstreamError, OSError):
        return None, "the deployed policy is no longer in the study's folder"
    policy = unpack(tensors, manifest.get("policy"))
    tracks = Evaluator(environment, HOLDOUT, backend=backend).run(policy, record=True)[0]
    split_days, again = daily_returns(split, tracks)
    if not (np.array_equal(split_days, days) and np.allclose(again, returns, atol=_SAME)):
        return None, "the deployed policy does not repeat what the study saw of it"
    return RandomTraderRank(split.random_percentile(tracks, draws), draws), ""


def daily_returns(split: SplitBacktest, tracks: Sequence[EpisodeResult]) -> tuple[Ints, Floats]:
    """Return days [n] and joint daily returns [n] of all backtests, computed as in a study."""
    accounts, kernel = [], split.kernel
    assert kernel.timeline is not None
    for record, track in zip(split.params, tracks, strict=True):
        market = kernel.spec(record, split.data).market
        assert market is not None
        equity = {"equity": track.trace["equity"].ravel()}
        time = kernel.timeline(record, split.data)
        accounts.append(backtest_growth(time, equity, market, {}, track.length))
    joined = join_backtests(accounts, [0] * len(accounts), {})
    return joined.days, joined.returns
