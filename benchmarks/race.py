"""Races of slipstream's and SB3's agent to a score, seed by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks.machine import Neighbours, best_threads
from benchmarks.row import Ratio, Row
from benchmarks.suite import SuiteOptions
from benchmarks.worker import rate, run_worker
from slipstream.core.text import plural

_TIMEOUT = 3600.0
_PEER = "peers.sb3.learn"

Answers = Sequence[Mapping[str, Any]]


class Race(NamedTuple):
    """A finished race: answers by seed, with `seconds` and `reached`.

    Attributes:
        mine, theirs: answers of both sides. Without a peer `theirs` is empty, and the goal applies
            to slipstream's seconds.
        threads: threads of the peer.
        others_cpu: share of the machine that other processes used during the race.
    """

    mine: Answers
    theirs: Answers = ()
    threads: int = 1
    others_cpu: float = 0.0

    def row(
        self, settings: SuiteOptions, spec: Mapping[str, Any] | None = None, **values: Any
    ) -> Row:
        """Return the row of seconds; a seed that missed the score counts as infinite.

        The seconds of such a seed's budget are ignored. If the median of a side is infinite, the
        row has no figure for it and no ratio. The ratio of a pair in which slipstream missed is 0.
        The goal is missed if slipstream misses more seeds than the peer.
        """
        sides = [
            [float(answer["seconds"]) if answer["reached"] else math.inf for answer in side]
            for side in (self.mine, self.theirs)
        ]
        mine, theirs = sides
        missed = [side.count(math.inf) for side in sides]
        known = [statistics.median(side) if side else math.inf for side in sides]
        ours, peer = (value if math.isfinite(value) else None for value in known)
        ratios = [
            b / a if math.isfinite(a) else 0.0 for a, b in zip(mine, theirs, strict=bool(theirs))
        ]
        ratio = Ratio.of(ratios) if ours is not None and peer is not None else None
        row = Row(ours=ours, peer=peer, ratio=ratio, runs=len(mine), others_cpu=self.others_cpu)
        row = settings.told(row, spec, threads=plural(self.threads, "thread"), **values)
        unit, holds = row.unit, row.holds
        if any(missed):
            unit += f"; never reached by {missed[0]} of our {len(mine)} seeds"
            unit += f", {missed[1]} of the peer's" * bool(theirs)
        if ours is None or (theirs and missed[0] > missed[1]):
            holds = False
        elif theirs and peer is None:  # never reached: misses every goal
            holds = True
        return replace(row, unit=unit, holds=holds)


def race(
    config: Mapping[str, Any], peer: Mapping[str, Any], seeds: Sequence[int], **score: Any
) -> Race:
    """Train both sides up to a score, SB3 with the number of threads that makes it faster.

    Args:
        config: slipstream's config.
        peer: arguments of SB3's side.
        seeds: seeds of both sides.
        score: score to reach: see `seconds_to_score` of slipstream, and `learn` of SB3.
    """
    n = best_threads(lambda n: rate(_PEER, {**peer, "threads": n, "seconds": 1.0}, threads=n))
    mine, theirs = [], []
    with Neighbours() as neighbours:
        for seed in seeds:
            config_of_seed = {**config, "training": {**config["training"], "seed": seed}}
            asked = {"config": config_of_seed, **score}
            mine.append(run_worker("ours.training.seconds_to_score", asked, timeout=_TIMEOUT))
            asked = {**peer, "threads": n, "seed": seed, **score}
            theirs.append(run_worker(_PEER, asked, threads=n, timeout=_TIMEOUT))
    return Race(mine, theirs, n, neighbours.share)
