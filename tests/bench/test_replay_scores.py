"""Races of agents that learn from a replay: what is asked of both sides, and how rows judge."""

from __future__ import annotations

import math
from typing import Any

import pytest

from slipstream.bench.moments import MOMENTS, next_moment
from slipstream.bench.suite import FULL, QUICK, cases_of
from slipstream.bench.suites import replay_scores


def test_moments_are_equal_parts_of_the_budget() -> None:
    curve: list[float] = []
    for steps in range(1, 1001):
        if next_moment(curve, steps, 500):
            curve.append(steps)
    assert curve == [50.0 * k for k in range(1, MOMENTS + 1)]


def test_an_interval_is_of_five_seeds() -> None:
    low, high = replay_scores.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    # 3 -+ 2.776 x sqrt(2.5 / 5), by a table of Student's distribution
    assert (low, high) == pytest.approx((1.037, 4.963), abs=1e-3)
    assert replay_scores.interval([1.0]) == (-math.inf, math.inf)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What workers are asked; ours needs a second and scores 10, the peer ten and 9."""
    found: list[tuple[str, dict[str, Any]]] = []

    def answer(module: str, settings: dict[str, Any], **_: object) -> dict[str, Any]:
        found.append((module, settings))
        ours = module.startswith("ours.")
        return {
            "seconds": 1.0 if ours else 10.0,
            "steps": 500.0,
            "reached": 1.0,
            "steps_per_second": 1.0,
            "curve": [10.0 if ours else 9.0] * MOMENTS,
        }

    monkeypatch.setattr(replay_scores, "run_worker", answer)
    return found


def test_a_quick_race_is_one_seed_and_a_full_one_five(
    asked: list[tuple[str, dict[str, Any]]],
) -> None:
    case = cases_of("agents")["dqn_time_to_score"]
    quick = list(case(QUICK))
    assert [row.case for row in quick] == ["dqn_time_to_score", "dqn_time_to_score 64x64"]
    assert {row.runs for row in quick} == {1}
    assert [row.holds for row in quick] == [True, True]
    assert quick[0].ratio is not None and quick[0].ratio.median == 10.0
    full = list(case(FULL)) + list(cases_of("agents")["dqn_lunar_lander"](FULL))
    assert full[-1].case == "dqn_time_to_score LunarLander" and full[-1].runs == 5
    seeds = [s["config"]["training"]["seed"] for m, s in asked if m.startswith("ours.")]
    assert seeds == [1, 1, *[1, 2, 3, 4, 5] * 3]


def test_scores_are_judged_where_there_is_an_interval(
    asked: list[tuple[str, dict[str, Any]]],
) -> None:
    case = cases_of("agents")["score_vs_steps"]
    assert [row.holds for row in case(QUICK)] == [None, None]
    assert [(row.ours, row.peer, row.holds) for row in case(FULL)] == [(10.0, 9.0, True)] * 2
