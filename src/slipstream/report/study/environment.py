"""A study's environment, found again when its page is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.core.errors import SlipstreamError
from slipstream.core.kernel import Kernel, Loaded
from slipstream.report.statistics import Floats, Ints
from slipstream.studies.engine.accounts import join_passes, pass_growth
from slipstream.studies.engine.source import EnvironmentSource
from slipstream.studies.record.reader import StudyReader
from slipstream.training.environments.environment import Environment
from slipstream.training.record.track import Track
from slipstream.training.settings.config import resolve


def study_environment(
    reader: StudyReader, overrides: Mapping[str, Any]
) -> tuple[Environment | None, str]:
    """The environment of a trial with the very prices that the study read.

    Args:
        reader: of the study.
        overrides: of the trial.

    Returns:
        It; or None and why there is none.
    """
    study, facts = reader.study, reader.provenance.get("environment") or {}
    try:
        source = EnvironmentSource(study.folds, study.fold_seeds)
        environment = source.environment(resolve(reader.config, overrides))
    except (SlipstreamError, OSError):
        return None, "the prices are no longer where the study read them"
    if environment.provenance.get("market_sha256") != facts.get("market_sha256"):
        return None, "the prices have changed since the study read them"
    return environment, ""


def daily_returns(
    kernel: Kernel, loaded: Loaded, params: Sequence[Any], tracks: Sequence[Track]
) -> tuple[Ints, Floats]:
    """Days [n] and what was earned on each [n], as studies count them.

    Args:
        kernel, loaded: rules and data.
        params: the record of each pass.
        tracks: of each pass, with its equity.
    """
    accounts = []
    assert kernel.timeline is not None
    for record, track in zip(params, tracks, strict=True):
        market = kernel.spec(record, loaded.data).market
        assert market is not None
        time = kernel.timeline(record, loaded.data)
        values = {"equity": track.trace["equity"].ravel()}
        accounts.append(pass_growth(time, values, market, {}, track.length))
    joined = join_passes(accounts, [0] * len(accounts), {})
    return joined.days, joined.returns
