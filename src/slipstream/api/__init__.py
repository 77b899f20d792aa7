"""The Python API: what the command line does, in a few calls.

::

    run = slipstream.train("cartpole", members=4, total_timesteps=200_000)
    policy = slipstream.load_policy(run)
    tracks = slipstream.evaluate(run)

Names are looked up when they are first used: training needs no studies and no reports.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.api.envs import check, make_adapter, make_vec
    from slipstream.api.trained_runs import (
        best_response,
        environment_of,
        evaluate,
        evaluate_games,
        export,
        load_policy,
        write_card,
        write_report,
    )
    from slipstream.api.training import resume, train
    from slipstream.api.tuning import report_study, resume_study, tune

__all__ = [
    "best_response",
    "check",
    "environment_of",
    "evaluate",
    "evaluate_games",
    "export",
    "load_policy",
    "make_adapter",
    "make_vec",
    "report_study",
    "resume",
    "resume_study",
    "train",
    "tune",
    "write_card",
    "write_report",
]

# Files of the names that are not in `trained_runs`.
_HOME = {
    **dict.fromkeys(("check", "make_adapter", "make_vec"), "envs"),
    **dict.fromkeys(("report_study", "resume_study", "tune"), "tuning"),
    **dict.fromkeys(("resume", "train"), "training"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'trained_runs')}"), name)
