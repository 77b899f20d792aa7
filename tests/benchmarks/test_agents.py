"""Races of agents to a score: workers' arguments, fastest arrangements, goals of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks import cases, race
from benchmarks.cases import Side, declared_row
from benchmarks.race import Race
from benchmarks.row import Ratio, Row, cells
from benchmarks.suite import FULL, QUICK, SuiteOptions, cases_of, specs_of
from benchmarks.suites import SUITES, agents


def of_case(suite: str, name: str, options: SuiteOptions) -> list[Row]:
    """Return the rows of a case as in `run_suite`."""
    return list(cases_of(suite)[name](replace(options, case=name, spec=specs_of(suite)[name])))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Return the arguments of workers; slipstream takes a second, the peer ten."""
    found: list[tuple[str, dict[str, Any]]] = []

    def answer(worker: str, settings: dict[str, Any], **_: object) -> dict[str, Any]:
        found.append((worker, settings))
        seconds = 1.0 if worker.startswith("ours.") else 10.0
        return {"seconds": seconds, "steps": 500.0, "reached": 1.0}

    monkeypatch.setattr(race, "run_worker", answer)
    monkeypatch.setattr(race, "rate", lambda worker, settings, threads: float(threads))
    return found


def test_a_quick_race_is_one_seed_and_a_full_one_five(
    asked: list[tuple[str, dict[str, Any]]],
) -> None:
    quick = of_case("agents", "dqn_time_to_score", QUICK)
    assert [row.case for row in quick] == ["dqn_time_to_score", "dqn_time_to_score 64x64"]
    assert {row.runs for row in quick} == {1}
    assert [row.holds for row in quick] == [True, True]
    assert quick[0].ratio is not None and quick[0].ratio.median == 10.0
    assert "CartPole, 256x256, 1 seed (after 500 and 500 steps" in quick[0].unit
    assert quick[0].peer_name is not None and "RL Zoo" in quick[0].peer_name
    assert of_case("agents", "dqn_time_to_score", FULL)[-1].runs == 5
    seeds = [s["config"]["training"]["seed"] for w, s in asked if w.startswith("ours.")]
    assert seeds == [1, 1, *[1, 2, 3, 4, 5] * 2]
    assert {(s["score"], s["tests"]) for _, s in asked} == {(475, 25)}  # on both sides


def test_a_seed_that_never_reaches_the_score_takes_for_ever() -> None:
    """Regression: it counted as a win at the budget's seconds, 27.5x with one failure."""

    def side(*seconds: float | None) -> list[dict[str, float]]:
        return [{"seconds": s or 2.0, "reached": float(s is not None)} for s in seconds]

    def row(mine: list[dict[str, float]], theirs: list[dict[str, float]]) -> Row:
        return Race(mine, theirs).row(QUICK, {"unit": "s to a score", "goal": ">= 2"})

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


def test_learning_in_bfloat16_is_judged_by_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = 20.0

    def answer(worker: str, asked: dict[str, Any], **_: object) -> dict[str, Any]:
        assert asked["config"]["training"]["total_timesteps"] == 150_000
        less = lost if asked["precision"] == "bfloat16_products" else 0.0
        return {"scores": [480.0 - less, 490.0, *[500.0] * 6], "steps": 150_000}

    monkeypatch.setattr(agents, "run_worker", answer)
    (row,) = of_case("agents", "bfloat16_cartpole", FULL)
    assert (row.ours, row.peer, row.runs, row.holds) == (493.75, 496.25, 8, True)
    assert "by seed: -8.41 to 3.41 (95 % interval) on a range of 0 to 500" in row.unit
    lost = 200.0
    (row,) = of_case("agents", "bfloat16_cartpole", FULL)
    assert row.holds is False


def test_a_race_without_a_peer_is_judged_by_its_seconds() -> None:
    answers = [{"seconds": s, "reached": r} for s, r in ((30.0, 1.0), (40.0, 1.0), (9.0, 0.0))]
    spec = {"unit": "s in {games} games", "goal": "<= 30"}
    row = Race(answers).row(QUICK, spec, games=7)
    assert (row.ours, row.ratio, row.holds) == (40, None, False)
    assert row.unit == "s in 7 games; never reached by 1 of our 3 seeds"
    assert Race(answers).row(QUICK, {**spec, "goal": "<= 50"}, games=7).holds is True
    assert Race(answers[1:]).row(QUICK, {**spec, "goal": "<= 50"}, games=7).holds is False


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the arguments of declared sides; more envs are faster, more threads slower."""
    found: list[dict[str, Any]] = []

    def answer(worker: str, asked: dict[str, Any], **how: object) -> dict[str, Any]:
        found.append({"worker": worker, **asked, **{f"how_{k}": v for k, v in how.items()}})
        return {"steps_per_second": asked.get("num_envs", 1) / asked.get("threads", 1)}

    monkeypatch.setattr(cases, "run_worker", answer)
    monkeypatch.setattr(cases, "threads", lambda: 2)
    return found


def test_a_peer_gets_its_fastest_arrangement(tried: list[dict[str, Any]]) -> None:
    for suite, name, updates in (("agents", "dqn_vs_sb3", 0.25), ("hockey", "hockey_sac", 1.0)):
        tried.clear()
        peer = Side(specs_of(suite)[name]["peer"], 1.5)
        assert len(tried) == peer.choices == (4 if suite == "agents" else 6)
        assert {one["seconds"] for one in tried} == {1.0}
        equal = {one["gradient_steps"] / (one["num_envs"] * one["train_freq"]) for one in tried}
        assert equal == {updates}, "as many updates for each step in every arrangement"
        assert (peer.chosen["num_envs"], peer.chosen["threads"]) == (8, 1)
        assert "called" not in tried[0]
        assert peer() == 8.0
        assert (tried[-1]["seconds"], tried[-1]["how_threads"]) == (1.5, 1)
        row = declared_row(replace(QUICK, case=name), specs_of(suite)[name])
        assert "8 envs, train_freq 1" in str(row.peer_name)
        assert "1 thread: its" in str(row.peer_name)


def test_one_core_leaves_nothing_to_choose(
    tried: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "threads", lambda: 1)
    side = Side({"worker": "peers.x", "best_of": {"threads": [1, "cores"]}}, 1.5)
    assert (side.choices, side.chosen, tried) == (1, {"threads": 1}, [])


@pytest.mark.slow
def test_every_declared_row_has_words_for_what_it_asks(
    tried: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown name in a template would otherwise fail only after the measurement."""
    answers = (
        "updates_per_second",
        "nanoseconds",
        "lost",
        "cpu",
        "real",
        "slowest",
        "p99",
        "load_ms",
        "act_us",
        "numbers",
        "told",
        *("width", "trial_hours", "days", "gflops", "own", "best", "fastest"),
    )
    figures = dict.fromkeys(("steps_per_second", "seconds", *answers), 1.0)
    more = {"observation_numbers": 25.0, "utd_ratio": 0.25}
    monkeypatch.setattr(cases, "run_worker", lambda *_, **__: {**figures, **more})
    rows = 0
    for suite in SUITES:
        for name, case in cases_of(suite).items():
            if case is cases.declared:
                for row in of_case(suite, name, QUICK):
                    rows += 1
                    assert row.unit and "{" not in row.unit + str(row.peer_name)
                    assert (row.peer is None) == (row.peer_name is None)
                    assert row.holds is not None or name in (
                        *("infos", "gpu_cappuccino", "gpu_sac_64", "train_peak", "study_widths"),
                        "hockey_dqn_large_peak",  # of torch
                    )
    assert rows > 25
