"""Matched random traders on a study's hold-out (docs/rules.md, section 15).

They are needed for what the page may say and for no choice, so they are drawn when the page is
written: the deployable policy's own decisions at other places of the hold-out, under its own costs
and rules.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.core.errors import SlipstreamError
from slipstream.nets.policy_file import unpack
from slipstream.report.market.passes import comparable, padded
from slipstream.report.market.stress import RANDOM_DRAWS, percentile, random_returns
from slipstream.report.portfolio.passes import PortfolioPasses, passes_of
from slipstream.report.statistics import Floats, Ints
from slipstream.report.study.environment import daily_returns
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.search.plan import HOLDOUT
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.evaluation import Evaluator
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.record import checkpoint

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


def random_traders(
    folder: StudyFolder,
    environment: Environment,
    days: Ints,
    returns: Floats,
    *,
    draws: int = RANDOM_DRAWS,
    backend: str = "compiled",
) -> tuple[RandomTraders | None, str]:
    """Draws them.

    Args:
        folder: of the study; its `policy` is the deployable one.
        environment: of the deployed trial, with the study's own prices.
        days, returns: of that policy on the hold-out, as the study recorded them [n].
        draws: how many.
        backend: how the copies are stepped.

    Returns:
        The percentile; or None and why there is none.
    """
    assert isinstance(environment, KernelEnvironment)  # no other kind has prices
    kernel, loaded = environment.kernel, environment.loaded
    if kernel.market_pass is None:
        return None, "this environment does not say what its passes could trade at"
    passes = passes_of(kernel, loaded, HOLDOUT, backend)
    if not isinstance(passes, PortfolioPasses) and not comparable(passes):
        return None, "this environment's decisions cannot be moved to other bars"
    try:
        tensors, manifest = checkpoint.load(folder.policy)
    except (SlipstreamError, OSError):
        return None, "the deployed policy is no longer in the study's folder"
    policy = unpack(tensors, manifest.get("policy"))
    tracks = Evaluator(environment, HOLDOUT, backend=backend).run(policy, record=True)[0]
    found, again = daily_returns(kernel, loaded, passes.params, tracks)
    if not (np.array_equal(found, days) and np.allclose(again, returns, atol=_SAME)):
        return None, "the deployed policy does not repeat what the study saw of it"
    mine = float(passes.growth(padded(passes, tracks))[0]) - 1.0
    place = percentile(mine, random_returns(passes, tracks, draws))
    assert place is not None
    return RandomTraders(float(place), draws), ""
