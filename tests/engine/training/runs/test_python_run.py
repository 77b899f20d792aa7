"""A run as somebody sees it who trains from Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import slipstream
from slipstream.core.errors import ConfigError

SMALL = {"num_envs": 8, "total_timesteps": 2048, "report": False}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(**more):
    overrides = {"agent.n_steps": 32, "evaluation.episodes": 4}
    return slipstream.train("cartpole", out="mine", overrides=overrides, **SMALL, **more)


def test_a_run_says_what_it_is_and_what_it_scores(folder):
    run = train(members=2)
    best = max(run.result["members"], key=lambda one: one["best_score"])
    assert run.score == best["test_score"]
    assert run.best_member == best["member"]
    score = run.scores[run.best_member]
    assert (score.seed, score.test_score) == (best["seed"], best["test_score"])
    assert score.best_steps == best["best_steps"] and not score.failed
    assert [one.member for one in run.scores] == [0, 1]
    assert repr(run).startswith(f"<Run: folder {folder / 'mine'}, state complete, members 2, score")
    assert "<td" in run._repr_html_()
    assert "Discrete(2)" in repr(slipstream.load_policy(run))
    env = slipstream.make_vec("cartpole", num_envs=3)
    assert "num_envs 3, backend compiled" in repr(env)
    env.close()


def test_a_run_is_a_path(folder):
    run = train()
    assert os.fspath(run) == str(folder / "mine") and (Path(run) / "config.yaml").is_file()
    assert slipstream.Run.open(run).score == run.score
    status = slipstream.status(run)
    assert status.state == "complete" and status.completed == status.total == 2_048
    assert repr(status).startswith("<Status: kind run, state complete, progress ")
    assert "2,048 of 2,048 steps" in repr(status) and len(repr(status)) < 200
    with pytest.raises(ConfigError, match="not a game for two"):
        slipstream.evaluate_games(run)


def test_a_run_is_overwritten_only_where_that_is_asked_for(folder):
    first = train()
    with pytest.raises(ConfigError, match=r"is not overwritten.*with out="):
        train()
    with pytest.raises(ConfigError):  # what does not fit costs nothing that is there
        train(overwrite=True, num_envs_=3)
    assert first.result is not None
    again = train(overwrite=True, seed=5)
    assert again.result is not None and again.config.training.seed == 5
    (folder / "other").mkdir()
    (folder / "other" / "thesis.txt").write_text("not a run")
    with pytest.raises(ConfigError, match="not empty"):
        slipstream.train("cartpole", out="other", overwrite=True, **SMALL)


@pytest.mark.slow
def test_a_run_that_is_trained_is_not_overwritten(folder):
    run = train()
    run.lock()
    try:
        with pytest.raises(ConfigError, match="Another process is training"):
            train(overwrite=True)
    finally:
        run.close()


@pytest.mark.parametrize(("prompt", "shown"), [(True, True), (False, False)])
def test_progress_is_shown_where_somebody_sees_it(folder, monkeypatch, capsys, prompt, shown):
    monkeypatch.delattr(sys, "ps1", raising=False)
    if prompt:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    train()
    assert ("Training" in capsys.readouterr().out) == shown
