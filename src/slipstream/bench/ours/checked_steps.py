"""Steps of a built-in kernel, and of a copy of it that is compiled with checks, as a user's is."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from slipstream.bench.ours.vector_steps import StepRows
from slipstream.bench.worker import serve
from slipstream.core.discover import load_kernel
from slipstream.training.environments.factory import resolve_environment
from slipstream.vector.vector_env import member_indices

_ROWS = 64  # steps of a block


def measure(
    name: str, settings: Mapping[str, Any], num_envs: int, seconds: float
) -> dict[str, float]:
    """Nanoseconds of a step on one thread, and the ratio of neighbouring blocks: medians.

    Both take turns block by block, by the thread's own CPU time: strangers who compute beside them
    lengthen no block, and warm or cold caches are shared by both.
    """
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        source = str(load_kernel(name).module.__file__)
        targets = (shutil.copy(source, folder), name)
        blocks = []
        for target in targets:
            environment = resolve_environment(target, settings)
            blocks.append(StepRows(environment.copies(*member_indices([1], num_envs)), _ROWS))
        for block in blocks:
            block.run()
        spent: list[list[float]] = []
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            spent.append([_time(block) for block in blocks])
    checked, plain = (
        1e9 / (_ROWS * num_envs) * statistics.median(s) for s in zip(*spent, strict=True)
    )
    ratios = sorted(a / b for a, b in spent)
    return {
        "checked": checked,
        "plain": plain,
        "ratio": statistics.median(ratios),
        "least": ratios[len(ratios) // 10],
        "most": ratios[-1 - len(ratios) // 10],
    }


def _time(block: StepRows) -> float:
    began = time.thread_time()
    block.run()
    return time.thread_time() - began


if __name__ == "__main__":
    serve(measure)
