"""Study suite: extrapolation of the full study from a slice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import suite
from benchmarks.machine import threads
from benchmarks.ours.study import Ran
from benchmarks.suite import cases_of, run_suite, specs_of
from benchmarks.suites import study
from benchmarks.suites.study import (
    FULL,
    SLICE,
    FoldCost,
    Setup,
    best_setup,
    figures,
    fold_cost,
    pruned_rows,
    study_config,
)
from slipstream.core.errors import ConfigError
from slipstream.core.timeline import FoldPlan
from slipstream.studies.config import StudyConfig
from slipstream.studies.space import SearchSpace
from slipstream.training.settings.config import RunConfig


def ran(**changes: float) -> Ran:
    """A slice on two workers: 40 s of wall time, 60 s of training, 15 of passes, 3 of the rest."""
    values = {
        "search": 40.0,
        "confirm": 9.0,
        "report": 2.0,
        "train": 60.0,
        "evaluate": 15.0,
        "rest": 3.0,
        "rungs": 0.0,
        "trials": 16,
        "steps": 96 * 10 * 12 * 256,
        "test_bars": 50_000,
        "peak_bytes": 10**9,
    }
    return Ran(**{**values, **changes})  # type: ignore[arg-type]


def test_the_full_study_is_3000_members_of_100000_steps() -> None:
    assert FULL.members == 3_000 and FULL.iterations == 33 and FULL.confirming == 305
    assert SLICE.members == 96 and SLICE.iterations == 10
    assert 2.9e6 < SLICE.members * SLICE.iterations * 12 * 256 < 3.0e6


def test_a_slice_is_extrapolated_part_by_part() -> None:
    found = figures(ran(), SLICE, workers=2)
    wall = 40.0 / 78.0  # seconds of wall time for a second of work
    train = wall * 60.0 * 3000 / 96 * 33 / 10
    passes = wall * 15.0 * 3000 / 96
    rest = wall * 3.0 * 500 / 16
    assert found.seconds == pytest.approx(train + passes + rest + 2.0)
    assert found.confirm == pytest.approx((train + passes) * 305 / 3000)
    assert found.overhead == pytest.approx(1.0 - 75.0 / 80.0)
    assert found.forecast and found.how == "forecast from 96 members x 10 iterations"


def test_a_study_says_what_it_trained_and_how_fast() -> None:
    steps = 190_000_000
    one = ran(trials=500, steps=steps, rungs=0.5, search=39.0)
    found = study._Study(one, figures(one, FULL, 2, rungs=True), 0.0)
    settings = replace(suite.FULL, case="study_pruned", spec=specs_of("study")["study_pruned"])
    rows = {row.case: row for row in pruned_rows(settings, found)}
    said = "x 100,000 steps, 64x64, with pruning, in 41 s with test passes"
    assert said in rows["study_pruned"].unit
    pruned, efficiency = rows["study_pruned"], rows["study_efficiency"]
    assert pruned.ratio is not None and efficiency.ratio is not None
    assert pruned.ratio.median == pytest.approx(steps / (3000 * 33 * 12 * 256)) and pruned.holds
    assert efficiency.ours == pytest.approx(steps / 39.0)
    assert efficiency.ratio.median == pytest.approx(60.0 / (threads() * 39.0))
    assert rows["study_memory"].holds


def test_the_full_study_is_measured_less_its_scores_at_rungs() -> None:
    whole = ran(trials=500, rungs=2 / 3, confirm=77.0)
    found = figures(whole, FULL, workers=2)
    assert found.seconds == pytest.approx(40.0 * (78.0 - 10.0) / 78.0 + 2.0)
    assert (found.confirm, found.forecast, found.how) == (77.0, False, "measured")
    pruned = figures(whole, FULL, workers=2, rungs=True)
    assert pruned.seconds == pytest.approx(42.0)


def test_a_study_cut_by_hours_is_a_forecast() -> None:
    found = figures(ran(trials=250), FULL, workers=2)
    assert found.forecast and found.how == "forecast from 1,500 members x 33 iterations"
    assert found.seconds == pytest.approx(2 * 40.0 + 2.0)


def test_the_configs_are_of_the_work_that_rows_name(tmp_path: Path) -> None:
    for size in (FULL, SLICE):
        values = study_config({"data": {"folder": str(tmp_path)}}, size, pruning=False)
        study = StudyConfig.model_validate(values.pop("study"))
        base = RunConfig.from_mapping(values)
        assert study.folds == FoldPlan() and study.n_trials == size.trials
        assert not study.pruning.enabled
        assert study.space is not None and not isinstance(study.space, str)
        space = SearchSpace.from_mapping(study.space, base)
        assert set(space.to_mapping()) == set(study.space)
        assert base.training.total_timesteps == size.steps and base.training.num_envs == 12
        assert (base.agent.n_steps, base.agent.batch_size, base.agent.n_epochs) == (256, 256, 4)


def test_what_needs_ray_runs_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = dict.fromkeys(cases_of("study"), lambda settings: ())
    monkeypatch.setattr(suite, "cases_of", lambda name: cases)
    said: list[str] = []
    run_suite("study", say=said.append)
    assert said and not any(name.startswith("cluster") for name in said)
    said.clear()
    run_suite("study", only=["cluster"], say=said.append)
    assert said == ["cluster"]


def test_prices_and_hours_are_for_studies_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--data-dir"):
        run_suite("env", data_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="hours"):
        run_suite("train", hours=1.0)
    assert next(iter(cases_of("study"))) == "portfolio_kernel"


def test_a_peer_is_measured_by_throughput_in_its_best_arrangement() -> None:
    """Two parallel folds, each half as fast, cost the same as one; start-up is separate."""
    slow = {"train_seconds_per_step": 2e-3, "test_seconds_per_step": 1e-3, "build_seconds": 9.0}
    fast = {"train_seconds_per_step": 1e-3, "test_seconds_per_step": 1e-3, "build_seconds": 1.0}
    asked: list[Mapping[str, Any]] = []

    def ask(settings: Mapping[str, Any]) -> Mapping[str, float]:
        asked.append(settings)
        return slow if settings["vector"] == "slow" else fast

    def cost(setup: Setup) -> FoldCost:
        return fold_cost(setup, 1000, 500, ask)

    one, two = Setup("fast", processes=1), Setup("slow", processes=2)
    assert cost(one) == FoldCost(1.5, 1.0)
    assert cost(two) == FoldCost(1.25, 9.0)
    asked.clear()
    chosen, folds = best_setup([one, two], 3, cost)
    assert chosen is two and folds == [FoldCost(1.25, 9.0)] * 3
    assert len(asked) == 1 + 3 * 2
    told = "Optuna and SB3 PPO on slow(12), 2 folds side by side, 1 thread each"
    assert str(two) == told
