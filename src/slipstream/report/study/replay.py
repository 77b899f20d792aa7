"""What is replayed on a study's hold-out when its page is written (docs/rules.md, section 15).

Equal weight that is rebalanced (a study follows what is bought once) and matched random traders:
the deployable policy's own decisions at other places of the hold-out, under its own costs and
rules. Both are needed for what the page may say and for no choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.core.errors import SlipstreamError
from slipstream.core.fold_plan import HOLDOUT
from slipstream.core.storage import checkpoint
from slipstream.report.inputs import RANDOM_DRAWS, Backtest, SplitBacktest
from slipstream.report.statistics import Floats, Ints
from slipstream.rl.nets.policy_file import unpack
from slipstream.studies.record.folder import StudyFolder
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.evaluation import Evaluator
from slipstream.training.population.passes import join_passes, pass_growth
from slipstream.training.population.source import EnvironmentSource
from slipstream.training.settings.config import resolve
from slipstream.training.track import Track

_SAME = 1e-6  # of a day's return: weights are float32


@dataclass(frozen=True)
class RandomTraders:
    """Where the deployable policy stands among traders that differ from it in their timing only.

    Attributes:
        percentile: share of them that did worse, in percent; ties count half.
        draws: how many there are.
    """

    percentile: float
    draws: int


def study_environment(
    folder: StudyFolder, overrides: Mapping[str, Any]
) -> tuple[Environment | None, str]:
    """The environment of a trial with the very prices that the study read.

    Args:
        folder: of the study.
        overrides: of the trial.

    Returns:
        It; or None and why there is none.
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
    """Daily returns of equal weight, rebalanced on every bar, under the costs of a trial.

    Args:
        environment: of the trial, with the study's own prices.
        days: int64 [n], the days to tell.
        backend: how the copies are stepped.

    Returns:
        [n], or None and why there are none; no reason where the environment has no such line.
    """
    backtest = environment.part(Backtest)
    passes = None if backtest is None else backtest.of_split(HOLDOUT, backend)
    tracks = None if passes is None else passes.rebalanced()
    if passes is None or tracks is None:
        return None, ""
    found, returns = daily_returns(passes, tracks)
    if not np.array_equal(found, days):
        return None, "the bars are cut into other days than the study's"
    return returns, ""


def random_traders(
    folder: StudyFolder,
    environment: Environment,
    days: Ints,
    returns: Floats,
    *,
    draws: int = RANDOM_DRAWS,
    backend: str = "compiled",
) -> tuple[RandomTraders | None, str]:
    """Ranks the deployable policy among matched random traders.

    Args:
        folder: of the study; its `policy` is the deployable one.
        environment: of the deployed trial, with the study's own prices.
        days, returns: of that policy on the hold-out, as the study recorded them [n].
        draws: how many.
        backend: how the copies are stepped.

    Returns:
        The percentile; or None and why there is none.
    """
    backtest = environment.part(Backtest)
    if backtest is None:
        return None, "this environment does not say what its passes could trade at"
    passes = backtest.of_split(HOLDOUT, backend)
    if not passes.comparable:
        return None, "this environment's decisions cannot be moved to other bars"
    try:
        tensors, manifest = checkpoint.load(folder.policy)
    except (SlipstreamError, OSError):
        return None, "the deployed policy is no longer in the study's folder"
    policy = unpack(tensors, manifest.get("policy"))
    tracks = Evaluator(environment, HOLDOUT, backend=backend).run(policy, record=True)[0]
    found, again = daily_returns(passes, tracks)
    if not (np.array_equal(found, days) and np.allclose(again, returns, atol=_SAME)):
        return None, "the deployed policy does not repeat what the study saw of it"
    return RandomTraders(passes.place_of(tracks, draws), draws), ""


def daily_returns(passes: SplitBacktest, tracks: Sequence[Track]) -> tuple[Ints, Floats]:
    """Days [n] and what the tracks of all passes earned on each [n], as studies count them."""
    accounts, kernel = [], passes.kernel
    assert kernel.timeline is not None
    for record, track in zip(passes.params, tracks, strict=True):
        market = kernel.spec(record, passes.data).market
        assert market is not None
        equity = {"equity": track.trace["equity"].ravel()}
        time = kernel.timeline(record, passes.data)
        accounts.append(pass_growth(time, equity, market, {}, track.length))
    joined = join_passes(accounts, [0] * len(accounts), {})
    return joined.days, joined.returns
