"""Stepping environments without learning: `python -m benchmarks env`."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.machine import Neighbours, threads
from benchmarks.row import Row
from benchmarks.suite import SuiteOptions, specs_of
from benchmarks.worker import run_worker

ALL_RULES = specs_of("env")["_all_rules"]


def forex_bandwidth(settings: SuiteOptions) -> Iterable[Row]:
    """Compare the bytes that steps move per second with the copy bandwidth."""
    most = {"threads": threads(), "seconds": settings.seconds}
    asked = {"name": "forex", "settings": ALL_RULES, "num_envs": 65_536, **most}
    answers = []

    def share() -> float:
        answer = run_worker("ours.kernels.step", asked, threads=1)
        copied = run_worker("ours.hardware.bandwidth", most, threads=1)["bytes_per_second"]
        answers.append(float(copied))
        return 100.0 * _bytes(answer) * float(answer["steps_per_second"]) / answers[-1]

    row = settings.measure(share, None, settings.spec)
    yield settings.told(row, bandwidth=statistics.median_high(answers) / 1e9)


def _bytes(answer: Mapping[str, Any]) -> float:
    """Return the bytes of one step: records twice, a row of bars and features, results once."""
    record = answer["record_bytes"]
    market = 64 + 8  # the new bar's cache line and its calendar word; the old one is in cache
    seen = 4 * answer["observation_numbers"]  # features read, observation written
    return float(2 * record + market + 2 * seen + 8 + 4 + 2)  # action, reward, two flags


def memory(settings: SuiteOptions) -> Iterable[Row]:
    """Measure the resident memory of 16,384 forex envs on a million bars of 16 features."""
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        run_worker("ours.kernels.write_walks", {"folder": folder, "bars": 1_000_000})
        with Neighbours() as neighbours:
            asked = {"num_envs": 16_384, "steps": 100, "folder": folder}
            megabytes = float(run_worker("ours.kernels.memory", asked, threads=1)["megabytes"])
    yield settings.told(Row(ours=megabytes, others_cpu=neighbours.share))
