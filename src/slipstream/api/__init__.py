"""The Python API: what the command line does, in a few calls.

::

    run = slipstream.train("cartpole", members=4, total_steps=200_000)
    policy = slipstream.load_policy(run)
    tracks = slipstream.evaluate(run)

Names are looked up when they are first used: training needs no studies and no reports.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.api.environment import check, make_face, make_vec
    from slipstream.api.evaluation import (
        environment_of,
        evaluate,
        evaluate_games,
        exploit,
        export,
        load_policy,
        write_card,
        write_report,
    )
    from slipstream.api.study import report_study, resume_study, tune
    from slipstream.api.training import resume, train

__all__ = [
    "check",
    "environment_of",
    "evaluate",
    "evaluate_games",
    "exploit",
    "export",
    "load_policy",
    "make_face",
    "make_vec",
    "report_study",
    "resume",
    "resume_study",
    "train",
    "tune",
    "write_card",
    "write_report",
]

# Files of the names that are not in `evaluation`.
_HOME = {
    **dict.fromkeys(("check", "make_face", "make_vec"), "environment"),
    **dict.fromkeys(("report_study", "resume_study", "tune"), "study"),
    **dict.fromkeys(("resume", "train"), "training"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME.get(name, 'evaluation')}"), name)
