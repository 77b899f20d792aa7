"""Python API: the commands of the command line as functions.

::

    run = slipstream.train("cartpole", members=4, total_timesteps=200_000)
    policy = slipstream.load_policy(run)
    result = slipstream.evaluate(run)
    print(result.mean_return, result.interval)

Names are imported on first use, so that training does not import studies or reports.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.api.envs import check, make_adapter, make_vec
    from slipstream.api.trained_runs import (
        environment_from_run,
        evaluate,
        evaluate_games,
        export,
        load_policy,
        write_model_card,
        write_report,
    )
    from slipstream.api.training import resume, train
    from slipstream.api.tuning import report_study, resume_study, tune

__all__ = [
    "best_response",
    "check",
    "environment_from_run",
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
    "write_model_card",
    "write_report",
]

# Modules of the names that are not in `trained_runs`.
_HOME = {
    **dict.fromkeys(("check", "make_adapter", "make_vec"), "envs"),
    **dict.fromkeys(("report_study", "resume_study", "tune"), "tuning"),
    **dict.fromkeys(("resume", "train"), "training"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'trained_runs')}"), name)
