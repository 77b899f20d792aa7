"""What portfolio agents learn on planted markets, by remedy against fees: `slipstream bench learn`.

Shares of the optimum (conditional drift after fees on a path never seen, last policies), medians
over seeds that train on one path. The defaults train 400,000 steps with 8 seeds; every remedy, and
the defaults beside them, 100,000 with 3.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

from slipstream.bench.machine import Neighbours
from slipstream.bench.planted import FEATURES, MARKETS
from slipstream.bench.row import Goal, Row, judged
from slipstream.bench.suite import Case, SuiteOptions
from slipstream.bench.worker import run_worker

REQUIRED = ("regimes, 20 bp", "reversion, fee 1 bp", "reversion, fee 10 bp")
_TIMEOUT = 3_600.0


class Remedy(NamedTuple):
    """What differs from the defaults.

    Attributes:
        case: its name for ``--case``.
        name: as the table has it.
        env, agent: settings.
        steps, seeds: how much is trained.
        goal: share of the optimum to be reached on the required markets.
    """

    case: str
    name: str
    env: dict[str, Any]
    agent: dict[str, Any]
    steps: int = 100_000
    seeds: int = 3
    goal: float | None = None


_CHANGE = {"action_map": "change"}


def _volume(window: int) -> dict[str, Any]:
    """The default features with the volume's score over another window."""
    return {"features": [name.replace("volume_z_720", f"volume_z_{window}") for name in FEATURES]}


REMEDIES = (
    Remedy("defaults_400k", "the defaults, 400,000 steps, 8 seeds", {}, {}, 400_000, 8, goal=0.8),
    Remedy("defaults", "the defaults", {}, {}),
    Remedy("change", "`action_map: change`, up to 0.5", _CHANGE, {}),
    Remedy("change_1", "`change`, `max_change: 1.0`", {**_CHANGE, "max_change": 1.0}, {}),
    Remedy("simplex", "`action_map: simplex`", {"action_map": "simplex"}, {}),
    Remedy("sharpness_5", "a flatter map, `sharpness: 5`", {"sharpness": 5.0}, {}),
    Remedy(
        "long_sight",
        "longer sight, `discount` and `gae_lambda` 0.9",
        {},
        {"discount": 0.9, "gae_lambda": 0.9},
    ),
    Remedy("discount_99", "`agent.discount: 0.99`", {}, {"discount": 0.99}),
    Remedy("band", "a wider band, `band: 0.15`", {"band": 0.15}, {}),
    Remedy("fee_ramp", "fee annealing, `fee_ramp_bars: 6000`", {"fee_ramp_bars": 6_000}, {}),
    Remedy("volume_1440", "a longer memory, `volume_z_1440`", _volume(1_440), {}),
    Remedy("volume_288", "a shorter one, `volume_z_288`", _volume(288), {}),
    Remedy("decide_every", "rarer decisions, `decide_every: 6`", {"decide_every": 6}, {}),
)


def _rows(remedy: Remedy, settings: SuiteOptions) -> Iterable[Row]:
    for market in MARKETS:
        with Neighbours() as neighbours:
            answer = run_worker(
                "ours.planted_portfolio",
                {
                    "market": market,
                    "steps": remedy.steps,
                    "seeds": remedy.seeds,
                    "env": remedy.env,
                    "agent": remedy.agent,
                },
                threads=1,
                timeout=_TIMEOUT,
            )
        share = statistics.median(answer["shares"])
        goal = Goal(">=", remedy.goal) if remedy.goal and market in REQUIRED else None
        yield Row(
            case=remedy.name,
            unit=f"{market}: share of the optimum, median of {remedy.seeds} seeds",
            ours=share,
            runs=remedy.seeds,
            others_cpu=neighbours.share,
            **judged(goal, share),
        )


CASES: dict[str, Case] = {remedy.case: functools.partial(_rows, remedy) for remedy in REMEDIES}
