"""slipstream: reinforcement learning on thousands of environments at once.

Names are imported lazily, on first use, so that `import slipstream` is fast.
"""

from __future__ import annotations

import importlib
from types import FunctionType
from typing import TYPE_CHECKING, Any

from slipstream.core.version import __version__

if TYPE_CHECKING:
    from slipstream.api import (
        best_response,
        check,
        evaluate,
        evaluate_games,
        export,
        load_policy,
        make_adapter,
        make_vec,
        report_study,
        resume,
        resume_study,
        train,
        tune,
        write_model_card,
        write_report,
    )
    from slipstream.core.errors import SlipstreamError
    from slipstream.core.storage.signals import Interrupted
    from slipstream.gym.object_environment import register
    from slipstream.studies.record.inspection import status, stop
    from slipstream.training.callbacks.console import ConsoleCallback
    from slipstream.training.cluster.cluster import ClusterOptions
    from slipstream.training.runs.run import Run
    from slipstream.training.settings.config import RunConfig

# Modules of names outside `slipstream.api`. Names of older systems have no static types: only
# `compat` imports those systems.
_HOME = {
    "AgentTrainingService": "slipstream.compat.service",
    "ClusterOptions": "slipstream.training.cluster.cluster",
    "ConsoleCallback": "slipstream.training.callbacks.console",
    "Interrupted": "slipstream.core.storage.signals",
    "Run": "slipstream.training.runs.run",
    "RunConfig": "slipstream.training.settings.config",
    "SlipstreamError": "slipstream.core.errors",
    "VectorizedEnvConfig": "slipstream.compat.service",
    "register": "slipstream.gym.object_environment",
    "status": "slipstream.studies.record.inspection",
    "stop": "slipstream.studies.record.inspection",
}

# Names of older systems, and the module of `compat` that defines each.
_OLDER = {
    **dict.fromkeys(("TrainerAgent", "TrainerCore", "EnvBuilder"), "intraday"),
    **dict.fromkeys(
        ("CryptoEnvAlpaca", "VectorizedCryptoEnvAlpaca", "VectorizedCryptoEnvAlpacaOptimized"),
        "cappuccino",
    ),
    **dict.fromkeys(
        ("VectorizedHockeyEnv", "VectorizedHockeyEnvOptimized"), "hockey_project.vectorized_env"
    ),
}

# Functions of older systems, and the module of `compat` that defines each.
_OLDER_FUNCTIONS = dict.fromkeys(("train_run", "train_single_run"), "hockey_project.single_run")

# Classes of other libraries without a counterpart, and the call to use instead.
_DQN = "'agent.name': 'dqn', 'agent.double': True, 'agent.dueling': True"
_SB3 = "slipstream.make_adapter('sb3', 'gym:CartPole-v1', 8)"
_INSTEAD = {
    **{
        name: f"slipstream.train(ENV, overrides={{'agent.name': '{name.lower()}'}})"
        for name in ("PPO", "DQN", "SAC", "TD3")
    },
    **dict.fromkeys(("DDDQN", "DDQN", "DDQN_PER"), f"slipstream.train(ENV, overrides={{{_DQN}}})"),
    "HockeyEnv": "slipstream.make_vec('hockey', 1)",
    "BasicOpponent": "slipstream.make_vec('hockey', 1, opponents={'weak': 1, 'strong': 1})",
    **dict.fromkeys(
        ("SubprocVecEnv", "DummyVecEnv", "VecMonitor", "VecNormalize", "make_vec_env"), _SB3
    ),
}

__all__ = [
    "AgentTrainingService",
    "ClusterOptions",
    "ConsoleCallback",
    "Interrupted",
    "Run",
    "RunConfig",
    "SlipstreamError",
    "VectorizedEnvConfig",
    "__version__",
    "best_response",
    "check",
    "evaluate",
    "evaluate_games",
    "export",
    "load_policy",
    "make_adapter",
    "make_vec",
    "register",
    "report_study",
    "resume",
    "resume_study",
    "status",
    "stop",
    "train",
    "tune",
    "write_model_card",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _OLDER:
        raise ImportError(
            f"slipstream provides {name} for an older system. Write: from "
            f"slipstream.compat.{_OLDER[name]} import {name} (docs/guides/older-systems.md)."
        )
    if name in _INSTEAD:
        raise ImportError(f"slipstream has no class {name}. Write: {_INSTEAD[name]}")
    if name in _OLDER_FUNCTIONS:
        raise AttributeError(
            f"module 'slipstream' has no attribute {name!r}: it belongs to an older system. Write: "
            f"from slipstream.compat.{_OLDER_FUNCTIONS[name]} import {name} "
            "(docs/guides/older-systems.md)."
        )
    if name not in __all__:
        raise AttributeError(f"module 'slipstream' has no attribute {name!r}")
    from slipstream.core.platform_check import unsupported_message

    if (problem := unsupported_message()) is not None:
        raise ImportError(problem)
    value = getattr(importlib.import_module(_HOME.get(name, "slipstream.api")), name)
    if isinstance(value, FunctionType):
        from slipstream.core.argument_validation import validate_arguments

        value = validate_arguments(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
