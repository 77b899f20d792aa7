"""What a user's kernel pays for being compiled with checks: `slipstream bench env --case checks`.

Built-in kernels are copied to files, and so compiled like anybody's, and run against themselves.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.bench.alternate import alternate
from slipstream.bench.forex_settings import ALL_RULES
from slipstream.bench.row import Row
from slipstream.bench.suite import Settings, with_runs
from slipstream.bench.worker import run_worker

_STEPPED: tuple[tuple[str, Mapping[str, Any], int], ...] = (
    ("cartpole", {}, 1024),
    ("pendulum", {}, 1024),
    ("forex", ALL_RULES, 4096),
)
_TRAINED: dict[str, Any] = {
    "agent": {"horizon": 128, "minibatch": 4096, "epochs": 4, "widths": [64, 64]},
    "training": {"num_envs": 512, "total_steps": 10**9},
    "evaluation": {"every": 1.0},
}


def checks(settings: Settings) -> Iterable[Row]:
    """Stepping on one thread, and training on all cores."""
    settings = with_runs(settings, 5)
    for name, env, copies in _STEPPED:
        unit = f"steps/s of {name} from a file, with checks ({copies:,} copies, one thread)"
        yield _row(name, unit, partial(_stepped, env, copies), settings)
    unit = "steps/s of training forex from a file, with checks (512 copies)"
    yield _row("forex", unit, _trained, settings)


def _row(name: str, unit: str, measure: Any, settings: Settings) -> Row:
    source = Path(str(importlib.import_module(f"slipstream.envs.{name}").__file__))
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        file = shutil.copy(source, folder)
        measured = alternate(
            lambda: measure(file, settings.seconds),
            lambda: measure(name, settings.seconds),
            runs=settings.runs,
            until=settings.until,
        )
    return Row(
        case="checks",
        unit=unit,
        ours=measured.ours,
        peer=measured.peer,
        peer_name="the same kernel built in, without",
        ratio=measured.ratio,
        runs=measured.runs,
        others_cpu=measured.others_cpu,
    )


def _stepped(env: Mapping[str, Any], copies: int, name: str, seconds: float) -> float:
    asked = {"name": name, "settings": dict(env), "num_envs": copies, "seconds": seconds}
    answer = run_worker("ours.vector_steps", {**asked, "threads": 1}, threads=1)
    return float(answer["steps_per_second"])


def _trained(name: str, seconds: float) -> float:
    config = {**_TRAINED, "env": {"name": name, **ALL_RULES}}
    answer = run_worker("ours.ppo", {"config": config, "seconds": seconds})
    return float(answer["steps_per_second"])
