"""Races of agents that learn from a replay: what is asked of both sides, and how rows judge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks import worker
from benchmarks.row import Goal, Ratio, Row, cells, race_row
from benchmarks.suite import FULL, QUICK, cases_of
from benchmarks.suites import agents


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What workers are asked; ours needs a second, the peer ten."""
    found: list[tuple[str, dict[str, Any]]] = []

    def answer(module: str, settings: dict[str, Any], **_: object) -> dict[str, Any]:
        found.append((module, settings))
        ours = module.startswith("ours.")
        return {
            "seconds": 1.0 if ours else 10.0,
            "steps": 500.0,
            "reached": 1.0,
            "steps_per_second": 1.0,
        }

    monkeypatch.setattr(agents, "run_worker", answer)
    return found


def test_a_quick_race_is_one_seed_and_a_full_one_five(
    asked: list[tuple[str, dict[str, Any]]],
) -> None:
    case, name = cases_of("agents")["dqn_time_to_score"], "dqn_time_to_score"
    quick = list(case(replace(QUICK, case=name)))
    assert [row.case for row in quick] == ["dqn_time_to_score", "dqn_time_to_score 64x64"]
    assert {row.runs for row in quick} == {1}
    assert [row.holds for row in quick] == [True, True]
    assert quick[0].ratio is not None and quick[0].ratio.median == 10.0
    assert list(case(FULL))[-1].runs == 5
    seeds = [s["config"]["training"]["seed"] for m, s in asked if m.startswith("ours.")]
    assert seeds == [1, 1, *[1, 2, 3, 4, 5] * 2]


def test_a_seed_that_never_reaches_the_score_takes_for_ever() -> None:
    """It counted as a win at the budget's seconds: 27.5x with one failure of ours."""

    def side(*seconds: float | None) -> list[dict[str, float]]:
        return [{"seconds": s or 2.0, "reached": float(s is not None)} for s in seconds]

    def row(mine: list[dict[str, float]], theirs: list[dict[str, float]]) -> Row:
        return race_row("race", "s to a score", Goal(">=", 2), mine, theirs)

    clean = row(side(1, 1, 1), side(4, 6, 8))
    assert (clean.ours, clean.peer, clean.holds) == (1, 6, True)
    assert clean.ratio == Ratio(6, 4, 8)

    one = row(side(1, 1, None), side(4, 6, 8))
    assert one.ratio == Ratio(4, 0, 6) and one.ours == 1
    assert one.holds is False, "it misses more seeds than the peer"
    assert "never reached by 1 of our 3 seeds, 0 of the peer's" in one.unit

    most = row(side(1, None, None), side(4, 6, 8))
    assert (most.ours, most.ratio, most.holds) == (None, None, False)

    theirs = row(side(1, 1, 1), side(4, None, None))
    assert (theirs.peer, theirs.ratio, theirs.holds) == (None, None, True)

    both = row(side(1, 1, None), side(4, 6, None))
    assert both.holds is True and both.ratio == Ratio(4, 0, 6)
    far = row(side(1, 1, 1), side(4, 6, None)).as_json()
    assert far["ratio"] == {"median": 6, "min": 4, "max": None}
    assert cells(far)[3] == "6 (4 to -)"


def test_a_race_without_a_peer_is_judged_by_its_seconds() -> None:
    answers = [{"seconds": s, "reached": r} for s, r in ((30.0, 1.0), (40.0, 1.0), (9.0, 0.0))]
    row = race_row("race", "s", Goal("<=", 50), answers)
    assert (row.ours, row.ratio, row.holds) == (40, None, True)
    assert race_row("race", "s", Goal("<=", 50), answers[1:]).holds is False


def test_a_peer_with_a_replay_gets_its_fastest_arrangement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[dict[str, Any]] = []

    def answer(module: str, asked: dict[str, Any], **_: object) -> dict[str, Any]:
        tried.append(asked)
        return {"steps_per_second": asked["copies"] / asked["threads"]}

    monkeypatch.setattr(worker, "run_worker", answer)
    monkeypatch.setattr(agents, "threads", lambda: 2)
    for updates in (0.25, 1.0):
        best = agents.best_peer({"settings": {"batch_size": 9}}, updates, processes=True)
        assert (best.copies, best.threads, best.processes) == (8, 1, False)
        assert best.gradient_steps == 8 * updates and best.train_freq == 1
    rounds = [(one["copies"], one["settings"]) for one in tried]
    assert all(settings["batch_size"] == 9 for _, settings in rounds)
    equal = {own["gradient_steps"] / (copies * own["train_freq"]) for copies, own in rounds}
    assert equal == {0.25, 1.0} and len(tried) == 12
