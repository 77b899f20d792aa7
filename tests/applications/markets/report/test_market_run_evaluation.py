"""The report of a run on prices: tables, curves, and chosen bars."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from slipstream import api
from slipstream.core.errors import ConfigError, DataError
from slipstream.core.storage.csv_table import read_table
from slipstream.report.history import episode_curves, episode_sections
from slipstream.report.run_evaluation import evaluate_run
from slipstream.report.run_page import report_run
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.runs.run import Run


@pytest.fixture(scope="module")
def game(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "balance"
    target = {
        "env": {"name": "cartpole"},
        "agent": {"n_steps": 64, "batch_size": 256, "n_epochs": 1},
        "evaluation": {"episodes": 5},
    }
    return api.train(
        target, out=path, num_envs=8, members=2, total_timesteps=2_048, report=False
    ).path


@pytest.fixture(scope="module")
def trader(tmp_path_factory, market_folder):
    path = tmp_path_factory.mktemp("runs") / "trader"
    target = {
        "env": {
            "name": "forex",
            "data": {"folder": str(market_folder), "spread_pips": 0.8, "price_side": "mid"},
            "split": {"train": 0.3, "validation": 0.2, "test": 0.5},
            "max_steps": 100,
        },
        "agent": {"n_steps": 64, "batch_size": 256, "n_epochs": 1, "learning_rate": [1e-3, 1e-4]},
    }
    run = api.train(target, out=path, num_envs=8, members=2, total_timesteps=2_048, report=False)
    assert run.test_reads == 1  # the score that training printed
    return run.path


def test_each_evaluation_episode_of_a_report_is_a_row_of_a_table(game, trader, tmp_path):
    report_run(game, out=tmp_path)
    table, found = read_table(tmp_path / "episodes.csv"), evaluate_run(game)
    columns = ("member", "data", "episode", "return", "length")
    assert list(zip(*(table[name] for name in columns), strict=True)) == [
        (member, data, track.name, track.episode_return, track.length)
        for data, members in found.tracks.items()
        for member, tracks in zip(found.member_numbers, members, strict=True)
        for track in tracks
    ]
    report_run(trader, out=tmp_path, count=False)  # in place of the other
    table = read_table(tmp_path / "episodes.csv", numbers=("total_return", "sharpe"))
    assert {"train", "validation", "test"} == set(table["data"])


def test_training_episodes_are_drawn_over_steps(game, trader, monkeypatch):
    (length,) = episode_curves(Run.open(game), resolve_environment("cartpole", {}).spec)
    assert (length.name, length.unit) == ("length", "steps") and length.score.shape[1] == 2
    found = {curve.name: curve for curve in evaluate_run(trader, draws=2).episodes}
    assert found["max_drawdown"].unit == "fraction" and {"sharpe", "turnover"} <= set(found)
    table = Run.open(trader).metrics()
    last = found["trades"].score[-1]
    assert last.tolist() == table["episode/trades"][-2:]
    monkeypatch.undo()
    (section,) = episode_sections(tuple(found.values()))
    assert section.pictures[0].name == "episodes" and len(section.pictures[0].png) > 10_000


def test_market_run(trader):
    run = evaluate_run(trader, draws=3)
    assert list(run.tracks) == ["train", "validation", "test"]
    assert run.holdout == "test"
    assert not run.same_settings
    assert run.trials == 2
    assert run.provenance["Data"].startswith("sha256 ")
    assert [c.name for c in run.curves] == ["training", "validation"]
    assert len({c.unit for c in run.curves}) == 2


@pytest.mark.slow
def test_looks_at_the_test_split_are_counted(trader, tmp_path):
    run = shutil.copytree(trader, tmp_path / "run")
    Run.open(run).record(test_reads=1)  # as training leaves it
    said = []
    report_run(run, count=False, log=said.append)  # the report of that very score
    assert Run.open(run).test_reads == 1
    assert not any("has been evaluated" in sentence for sentence in said)
    api.evaluate(run)
    report_run(run, start=Run.open(run).provenance["environment"]["windows_utc_seconds"]["test"][0])
    assert Run.open(run).test_reads == 2  # a window of chosen bars is no look at the test split
    report_run(run, log=said.append)
    assert Run.open(run).test_reads == 3
    assert any("test split has been evaluated 3 times" in sentence for sentence in said)


def test_other_prices_of_other_symbols(trader, market_folder, tmp_path):
    names = sorted(path.stem for path in Path(market_folder).iterdir())
    folder = tmp_path / "later"
    folder.mkdir()
    for name in names:
        (source,) = Path(market_folder).glob(f"{name}.*")
        shutil.copy(source, folder)
    one = evaluate_run(trader, data=folder, symbols=names[:1], draws=2)
    assert [track.name for track in one.tracks["chosen window"][0]] == names[:1]
    both = evaluate_run(trader, data=folder, symbols=names, draws=2)
    assert [track.name for track in both.tracks["chosen window"][0]] == names
    with pytest.raises(DataError, match="NOSUCH"):
        evaluate_run(trader, data=folder, symbols=["NOSUCH"])
    with pytest.raises(ConfigError, match="at least one symbol"):
        evaluate_run(trader, symbols=[])


def test_prices_of_another_shape_are_refused(trader, monkeypatch):
    run, plain = Run.open(trader), Run.best_policy

    def other_shape(run, member):
        policy = plain(run, member)
        policy.observation_shape = (3,)
        return policy

    monkeypatch.setattr(Run, "best_policy", other_shape)
    with pytest.raises(ConfigError, match=r"trained on observations of shape \(3,\)"):
        evaluate_run(run)


@pytest.mark.slow
def test_chosen_bars(trader):
    run = Run.open(trader)
    windows = run.provenance["environment"]["windows_utc_seconds"]
    first, last = windows["test"]
    fresh = evaluate_run(trader, start=first, stop=last, draws=3)
    assert list(fresh.tracks) == ["chosen window"]
    assert fresh.unseen
    assert not any("not all new" in note for note in fresh.notes)
    seen = evaluate_run(trader, start=windows["train"][0], stop=last, draws=3)
    assert not seen.unseen
    assert any("not all new" in note for note in seen.notes)


def test_a_chosen_window_is_rewarded_and_seen_as_in_training(tmp_path, market_folder):
    """B0 of the differential Sharpe ratio belongs to the policy, not to the bars to be judged."""
    target = {
        "env": {
            "name": "forex",
            "data": {"folder": str(market_folder), "spread_pips": 0.8, "price_side": "mid"},
            "split": {"train": 0.5, "validation": 0.2, "test": 0.3},
            "reward": "differential_sharpe",
            "max_steps": 100,
        },
        "agent": {"n_steps": 64, "batch_size": 256, "n_epochs": 1},
    }
    run = api.train(target, out=tmp_path / "run", num_envs=8, total_timesteps=2_048, report=False)
    facts = run.provenance["environment"]
    first, last = facts["windows_utc_seconds"]["test"]
    own = evaluate_run(run.path, draws=2).tracks["test"][0]
    chosen = evaluate_run(run.path, start=first, stop=last, draws=2).tracks["chosen window"][0]
    assert [track.name for track in own] == [track.name for track in chosen]
    for mine, theirs in zip(own, chosen, strict=True):
        np.testing.assert_array_equal(mine.actions, theirs.actions)
        assert mine.episode_return == theirs.episode_return
    variances = facts["carried"]["return_variance"]
    assert sorted(variances) == sorted(facts["symbols"])
    (constants,) = {
        tuple(
            api.environment_from_run(run, start="2024-01-01").loaded.data.constants[:, 2].tolist()
        )
    }
    assert sorted(constants) == sorted(variances.values())
