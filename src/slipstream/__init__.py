"""slipstream: reinforcement learning on thousands of environments at once.

Names are looked up when they are first used, so that `import slipstream` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.api import (
        check,
        evaluate,
        evaluate_games,
        load_policy,
        make_face,
        make_vec,
        report_study,
        resume,
        resume_study,
        train,
        tune,
        write_report,
    )
    from slipstream.core.errors import SlipstreamError
    from slipstream.single_run import train_run, train_single_run
    from slipstream.studies.lookup import status, stop
    from slipstream.training.cluster import ClusterOptions
    from slipstream.training.config import RunConfig
    from slipstream.training.console import ConsoleListener
    from slipstream.training.interruption import Interrupted
    from slipstream.training.run import Run

_HOME = {
    "ClusterOptions": "slipstream.training.cluster",
    "ConsoleListener": "slipstream.training.console",
    "Interrupted": "slipstream.training.interruption",
    "Run": "slipstream.training.run",
    "RunConfig": "slipstream.training.config",
    "SlipstreamError": "slipstream.core.errors",
    "check": "slipstream.api",
    "evaluate": "slipstream.api",
    "evaluate_games": "slipstream.api",
    "load_policy": "slipstream.api",
    "make_face": "slipstream.api",
    "make_vec": "slipstream.api",
    "report_study": "slipstream.api",
    "resume": "slipstream.api",
    "resume_study": "slipstream.api",
    "status": "slipstream.studies.lookup",
    "stop": "slipstream.studies.lookup",
    "train": "slipstream.api",
    "train_run": "slipstream.single_run",
    "train_single_run": "slipstream.single_run",
    "tune": "slipstream.api",
    "write_report": "slipstream.api",
}

__version__ = "0.1.0"
__all__ = [
    "ClusterOptions",
    "ConsoleListener",
    "Interrupted",
    "Run",
    "RunConfig",
    "SlipstreamError",
    "__version__",
    "check",
    "evaluate",
    "evaluate_games",
    "load_policy",
    "make_face",
    "make_vec",
    "report_study",
    "resume",
    "resume_study",
    "status",
    "stop",
    "train",
    "train_run",
    "train_single_run",
    "tune",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'slipstream' has no attribute {name!r}")
    from slipstream.core.system import refusal

    if (problem := refusal()) is not None:
        raise ImportError(problem)
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
