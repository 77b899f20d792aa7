"""Runs on Gymnasium environments that break the interface."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from malformed import Case

HERE = Path(__file__).parent


def names() -> list[str]:
    """The keys of `BROKEN`, without importing the module here."""
    for node in ast.parse((HERE / "broken_envs.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "BROKEN":
            assert isinstance(node.value, ast.Dict)
            return [ast.literal_eval(key) for key in node.value.keys if key is not None]
    raise AssertionError("broken_envs.py has no BROKEN")


def environments() -> Iterator[Case]:
    for name in names():
        argv = ("train", f"gym:broken_envs:{name}-v0", "--no-report", "--total-timesteps", "2048")
        more = ("--set", "training.hang_seconds=0.5") if "Hangs" in name else ()
        yield Case(f"environment: {name}", (*argv, *more))
    for name in ("InitRaises", "ResetRaises", "StepRaises", "HugeSpace", "LateNan", "InitExits"):
        argv = (
            "tune",
            f"gym:broken_envs:{name}-v0",
            "--n-trials",
            "1",
            "--total-timesteps",
            "2048",
        )
        more = ("--workers", "1", "--set", "study.max_concurrent_trials=1")
        yield Case(f"environment of a study: {name}", (*argv, *more))
    yield Case("a module that is missing", ("train", "gym:no_such_module:X-v0", "--no-report"))
    for given in _WRAPPERS:
        argv = ("train", "gym:CartPole-v1", "--no-report", "--set", f"env.wrappers={given}")
        yield Case(f"wrappers: {given}", argv)
    for given in ("text", "[os:system]", "[gymnasium.wrappers:FlattenObservation]"):
        argv = ("train", "vec:math:prod", "--no-report", "--set", f"env.training_wrappers={given}")
        yield Case(f"training wrappers of a vector environment: {given}", argv)
    for given in ("3", "[os:system]", "[gymnasium.wrappers:AtariPreprocessing]"):
        own = f"env.training_wrappers={given}"
        argv = ("train", "gym:CartPole-v1", "--no-report", "--set", own)
        yield Case(f"training wrappers: {given}", argv)


_WRAPPERS = (
    "text",
    "3",
    "{}",
    "[3]",
    "[[]]",
    "['']",
    "['a b:c']",
    "[no_such_module:X]",
    "[gymnasium.wrappers:Nobody]",
    "[os:system]",
    "[gymnasium.wrappers:TimeLimit]",
    "[{name: gymnasium.wrappers:TimeLimit, kwargs: {max_episode_steps: -1}}]",
    "[{name: gymnasium.wrappers:TimeLimit, kwargs: 3}]",
    "[{name: gymnasium.wrappers:TimeLimit, nobody_reads_this: 1}]",
    "[gymnasium.wrappers:AtariPreprocessing]",
)
