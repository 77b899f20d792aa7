"""Agents with a replay buffer beside their peers: `python -m benchmarks agents`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace

from benchmarks.cases import declared_row
from benchmarks.machine import threads
from benchmarks.race import race
from benchmarks.row import Row
from benchmarks.suite import SuiteOptions
from benchmarks.suites.gym_defaults import MARGIN, interval
from benchmarks.worker import run_worker
from slipstream.core.text import plural

_TESTS = 25  # limit of a training that stops at a score
_TIMEOUT = 3600.0


def sac_vs_sb3(settings: SuiteOptions) -> Iterable[Row]:
    """Measure SAC on Pendulum, 256x256, beside SB3's and beside the limit of this CPU."""
    row = declared_row(settings, settings.spec)
    asked = {"threads": threads(), "layers": [[256, 256]], "rows": 256}
    loops = run_worker("ours.hardware.products", asked, threads=1)["own"]
    most = 1e9 * loops / _operations()
    assert row.ours is not None and row.peer is not None
    bound = (
        f"; if an update were its hidden layers' products alone, at the speed of our own on "
        f"all cores, {most:.0f} steps/s or {most / row.peer:.2f} times the peer: "
        f"{row.ours / most:.0%} reached"
    )
    yield replace(row, unit=f"{row.unit[:-1]}{bound})")


sac_population_8 = sac_vs_sb3


def _operations() -> float:
    """Return the operations of one update's hidden products, without the narrow layers.

    A multiplication and its addition count as 2. Passes of the batch of 256 rows through a network
    of 256x256: one of the actor and two of targets for the next value, two critics forward and
    each twice back; one of the actor, two critics forward and the smaller one of each row once
    back, the actor twice back.
    """
    passes = 3 + 6 + 6
    return 2.0 * passes * 256 * 256 * 256


def dqn_time_to_score(settings: SuiteOptions) -> Iterable[Row]:
    """Race to the first of 25 tests with the score: one seed, five with --full.

    Tests are deterministic fresh episodes at equal steps on both sides; their seconds are not
    counted.
    """
    seeds = range(1, 6) if settings.full else (1,)
    for spec in settings.spec["rows"]:
        agent = {**spec["ours"]["agent"], "net_arch": spec["net_arch"]}
        tests = {"every": 1 / _TESTS, "episodes": 20}
        config = {**spec["ours"], "agent": agent, "evaluation": tests}
        peer = {**spec["peer"], "net_arch": spec["net_arch"]}
        ran = race(config, peer, seeds, score=spec["score"], tests=_TESTS)
        sides = (ran.mine, ran.theirs)
        after = " and ".join(f"{statistics.median(a['steps'] for a in s):,.0f}" for s in sides)
        size = "x".join(map(str, spec["net_arch"]))
        yield ran.row(settings, spec, after=after, size=size, seeds=plural(len(seeds), "seed"))


sac_time_to_score = dqn_time_to_score


def bfloat16_cartpole(settings: SuiteOptions) -> Iterable[Row]:
    """Compare the scores of eight members with hidden products in bfloat16 and in float32."""
    spec = settings.spec
    bfloat16, float32 = (
        run_worker(
            "ours.precision.scores",
            {"config": spec["config"], "precision": precision},
            threads=1,
            timeout=_TIMEOUT,
        )
        for precision in ("bfloat16_products", "float32")
    )
    ours, peer = bfloat16["scores"], float32["scores"]
    low, high = interval([a - b for a, b in zip(ours, peer, strict=True)])
    row = Row(
        ours=statistics.mean(ours),
        peer=statistics.mean(peer),
        runs=len(ours),
        goal="interval above -5 % of the range",
        holds=MARGIN.holds(100.0 * low / (spec["high"] - spec["low"])),
        cells=({"seeds": "0 to 7", "bfloat16_products": ours, "float32": peer},),
    )
    yield settings.told(row, below=low, above=high, steps=bfloat16["steps"], **spec)


bfloat16_pendulum = bfloat16_forex = bfloat16_cartpole
