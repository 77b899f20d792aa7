"""A study with 96 members in flight: the same bits in groups of 6, 48 and 96, on 1 and 2 shards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import slipstream
from slipstream.core.errors import CheckpointError
from slipstream.core.storage import yaml_file
from slipstream.markets.synthetic import SyntheticCrypto
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger, Slot
from slipstream.studies.search.study_plan import StudyPlan
from slipstream.studies.start import prepare_study
from slipstream.training.population.environment_source import EnvironmentSource
from slipstream.training.population.member_state import LiveStates, PolicyStore
from slipstream.training.population.training_segment import Task, run_training_segment

IN_FLIGHT, FOLDS, TRIALS = 16, 6, 20
CONFIG = {
    "env": {
        "name": "portfolio",
        "features": ["log_return_1", "log_return_5", "range_rel", "rsi_3", "volume_z_20"],
        "max_steps": 100,
    },
    # Sizes that fill no tile of a product and no vector.
    "agent": {"n_steps": 18, "batch_size": 30, "n_epochs": 2, "net_arch": [48, 33]},
    "training": {"num_envs": 5, "total_timesteps": 360},
    "study": {
        "n_trials": TRIALS,
        "max_concurrent_trials": IN_FLIGHT,
        "pruning": {"rungs": [0.5], "startup": 4, "min_correlation": -1.0},
        "confirmation": {"top": 1, "seeds": 2, "bootstrap": 50},
        "final_seeds": 2,
        "space": {
            "agent.learning_rate": {"low": 1e-4, "high": 3e-3, "log": True},
            "agent.gamma": {"low": 0.8, "high": 0.99},
            "env.rebalance_threshold": {"low": 0.02, "high": 0.2},
            "env.sharpness": {"low": 2.0, "high": 40.0},
        },
    },
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The config, on a small planted market."""
    data = tmp_path_factory.mktemp("market")
    SyntheticCrypto().write(data, 4_000, 3)
    return {**CONFIG, "env": {**CONFIG["env"], "data": {"folder": str(data)}}}


def study_of(config, path: Path, workers: int, group_size: int) -> StudyFolder:
    return slipstream.tune(
        config,
        study_name=str(path),
        workers=workers,
        group_size=group_size,
        force_deploy=True,
        report=False,
        log=lambda _: None,
    )


def contents(folder: StudyFolder):
    """All that is decided or learned: suggestions, scores, test passes, final weights, policy."""
    with Ledger(folder.ledger, read_only=True) as ledger:
        asks = [(a.trial, a.time, dict(a.params)) for a in ledger.suggestions().values()]
        verdicts = [(v.trial, v.stage, v.kind, v.score, v.folds) for v in ledger.decisions()]
        outcomes = {
            (phase, *key): everything(one.backtests)
            for phase in ("search", "confirm", "final")
            for key, one in ledger.outcomes(phase).items()
        }
    result = folder.result
    assert result is not None
    policy = (folder.policy / "state.safetensors").read_bytes()
    chosen = result["confirmation"], result["winner"], result["holdout"], policy
    return asks, verdicts, outcomes, weights_of(folder), chosen


def everything(backtests):
    arrays = (backtests.days, backtests.returns, backtests.benchmark, backtests.group)
    return *(array.tobytes() for array in arrays), repr(backtests.metrics)


def weights_of(folder: StudyFolder):
    kept = PolicyStore(folder.path / "weights")
    found = {}
    for trial in range(TRIALS):
        for fold in range(FOLDS):
            policy = kept.get(Slot("search", trial, 0, fold).name)
            if policy is not None:
                found[trial, fold] = {name: value.tobytes() for name, value in policy[0].items()}
    return found


def largest_group(folder: StudyFolder) -> int:
    """Members that were trained side by side: they have equal shares of their batch's seconds."""
    with Ledger(folder.ledger, read_only=True) as ledger:
        shares = [one.seconds["update"] for one in ledger.outcomes("search").values()]
    return max(Counter(share for share in shares if share > 0.0).values())


@pytest.fixture(scope="module")
def expected(config, tmp_path_factory):
    """The study in groups of 6 by one worker."""
    folder = study_of(config, tmp_path_factory.mktemp("six") / "study", 1, 6)
    assert largest_group(folder) == 6
    return folder, contents(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("workers", "group_size", "largest"), [(1, 48, 48), (1, 96, 96), (2, 6, 6), (2, 96, 48)]
)
def test_groups_and_shards_change_nothing(config, expected, tmp_path, workers, group_size, largest):
    folder = study_of(config, tmp_path / "study", workers, group_size)
    assert largest_group(folder) == largest
    asks, verdicts, outcomes, weights, _ = found = contents(folder)
    assert found == expected[1]
    assert len(asks) == TRIALS and {kind for _, _, kind, *_ in verdicts} >= {"complete"}
    assert len(outcomes) >= 2 * FOLDS * IN_FLIGHT
    assert len(weights) == FOLDS * sum(kind == "complete" for _, _, kind, *_ in verdicts)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_change_nothing(config, expected, tmp_path):
    """The whole study is killed in the middle of its batches, and goes on in others."""
    file = tmp_path / "c.yaml"
    file.write_text(yaml_file.dump(config))
    folder = StudyFolder(tmp_path / "study")
    words = ["tune", str(file), "--study-name", str(folder.path), "--no-report", "--force-deploy"]
    seen = 0
    for workers, group_size in ((2, 6), (1, 96), (2, 48)):
        program = [sys.executable, "-c", "from slipstream.cli import main; main()", *words]
        with subprocess.Popen(
            [*program, "--workers", str(workers), "--group-size", str(group_size)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as child:
            try:
                while (now := outcomes_from_evaluation(folder)) <= seen and child.poll() is None:
                    time.sleep(0.02)
                assert child.poll() is None and folder.result is None
            finally:
                os.killpg(child.pid, signal.SIGKILL)
        seen = now
    assert contents(study_of(config, folder.path, 1, 48)) == expected[1]


def outcomes_from_evaluation(folder: StudyFolder) -> int:
    """Return the number of finished members; 0 until the first process creates its ledger."""
    if not folder.exists or not folder.is_locked:
        return -1
    with suppress(CheckpointError), Ledger(folder.ledger, read_only=True) as ledger:
        return len(ledger.failed_by_outcome("search"))
    return -1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("trial", [0, TRIALS - 1])
def test_a_trial_alone_is_the_trial_of_the_study(config, expected, tmp_path, trial):
    """Each of its members, trained by itself: final weights and test passes."""
    folder, (_, _, outcomes, weights, _) = expected
    base, study, space = prepare_study(config, {}, {})
    source = EnvironmentSource(study.folds, study.fold_seeds)
    market = source.environment(base).spec.market
    plan = StudyPlan(base, study, space, source.folds(base), market)
    with Ledger(folder.ledger, read_only=True) as ledger:
        own = plan.config(ledger.suggestions()[trial].overrides)
    end = plan.stages(own).milestones[-1]
    slots = plan.trial_slots(trial)
    assert len(slots) == FOLDS
    for slot in slots:
        live = LiveStates(tmp_path / slot.name)
        (outcome,) = run_training_segment([Task(plan.member(slot, own), end)], source, live)
        found = live.policy(slot.name)
        assert (
            found is not None
            and everything(outcome.backtests) == outcomes["search", slot.name, end]
        )
        assert {k: v.tobytes() for k, v in found[0].items()} == weights[trial, slot.fold]
