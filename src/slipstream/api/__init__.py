"""The Python API: what the command line does, in a few calls.

::

    run = slipstream.train("cartpole", members=4, total_steps=200_000)
    policy = slipstream.load_policy(run)
    tracks = slipstream.evaluate(run)
"""

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
