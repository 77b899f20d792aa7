"""Model cards, and policies that are handed on with them."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import slipstream
from slipstream import portable
from slipstream.cli import main
from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.storage import checkpoint


def command(*words):
    """The exit code of `slipstream WORDS`."""
    try:
        return main([str(word) for word in words])
    except SystemExit as stop:
        return stop.code


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return slipstream.train(
        "cartpole",
        overrides={"agent.n_steps": 8, "agent.batch_size": 32, "agent.net_arch": [8]},
        members=2,
        num_envs=4,
        total_timesteps=256,
        out=tmp_path_factory.mktemp("runs") / "first",
        report=False,
        log=lambda _: None,
    )


def rows(text):
    """Cells of the card's tables by their first one."""
    return dict(re.findall(r"^\| ([^|]+?) \| (.*) \|$", text, re.MULTILINE))


def test_a_card_says_what_data_scores_and_limits(run):
    path = slipstream.write_model_card(run.path)
    assert path == run.path / "card.md"
    text = path.read_text()
    told = rows(text)
    assert told["agent"].startswith("ppo, seed") and "shape (4,)" in told["observation"]
    assert told["licence of the data"] == "none needed: the environment generates its data"
    returns = np.array([track.episode_return for track in slipstream.evaluate(run).best.episodes])
    mean, error = returns.mean(), returns.std(ddof=1) / math.sqrt(len(returns))
    half = {4: 3.1824}[len(returns)] * error  # of Student's t with 3 degrees of freedom
    low, high = map(float, re.findall(r"[\d.]+", told["95 % interval of the mean return"])[:2])
    assert low == pytest.approx(mean - half, abs=0.1)
    assert high == pytest.approx(mean + half, abs=0.1)
    limits = text.split("## Limitations")[1]
    assert "the best of 2 seeds" in limits and "other than `cartpole`" in limits


@pytest.mark.slow
def test_a_policy_is_handed_on_with_its_card(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command("model-card", run.path, "--out", "given", "--licence", "CC0 <b>|</b>") == 0
    assert "Model card: given/README.md" in capsys.readouterr().out
    card = (tmp_path / "given/README.md").read_text()
    assert "CC0 &lt;b>\\|&lt;/b>" in card
    assert sorted(path.name for path in (tmp_path / "given").iterdir()) == [
        "README.md",
        "manifest.json",
        "state.safetensors",
    ]
    own, here = slipstream.load_policy(run), slipstream.load_policy("given")
    seen = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    assert (own.act(seen) == here.act(seen)).all()
    assert (portable.load(tmp_path / "given").act(seen) == here.act(seen)).all()
    given = slipstream.evaluate("given")
    assert [track.episode_return for track in given.episodes] == [
        track.episode_return for track in slipstream.evaluate(run).best.episodes
    ]
    assert command("evaluate", "given", "--out", "page") == 0
    assert "given: cartpole" in (tmp_path / "page/report.html").read_text()
    capsys.readouterr()
    assert command("policy", "show", "given") == 0
    assert "on fresh episodes" in capsys.readouterr().out
    assert slipstream.write_model_card(run, out="given").is_file()  # a policy is replaced


def test_what_lies_there_is_not_replaced(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("kept")
    for place in (tmp_path / "mine", run.path):
        with pytest.raises(ConfigError, match="exists and is not a policy"):
            slipstream.write_model_card(run, out=place)
    assert (tmp_path / "mine/notes.txt").read_text() == "kept"


def test_a_handed_on_policy_that_was_changed_is_refused(run, tmp_path):
    slipstream.write_model_card(run, out=tmp_path / "given")
    path = tmp_path / "given" / checkpoint.MANIFEST
    path.write_text(path.read_text().replace('"score"', '"scores"'))
    with pytest.raises(CheckpointError, match="manifest"):
        slipstream.evaluate(tmp_path / "given")


def test_a_studys_policy_has_a_card_and_both_commands_take_its_name(
    smallest_study, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    asked = {"study_name": "first", "workers": 1, "report": False, "log": lambda _: None}
    study = slipstream.tune(smallest_study, force_deploy=True, **asked)
    assert (
        command("model-card", "first") == 0
        and command("model-card", "first", "--out", "given") == 0
    )
    text = (study.path / "card.md").read_text()
    assert text == (tmp_path / "given/README.md").read_text()
    told, (seed,) = rows(text), study.result["holdout"]["seeds"]
    assert told["agent"].startswith("ppo, seed") and "2 complete" in told["Trials"]
    assert float(told["Mean return"].split()[0]) == pytest.approx(seed["score"], abs=0.01)
    assert f"Study | seed {study.study.seed}" in text and "other than `cartpole`" in text
    capsys.readouterr()
    assert command("evaluate", "first") == 0
    assert "Report: " in capsys.readouterr().out
    before = slipstream.evaluate("first").members[0].episodes[0].episode_return
    assert slipstream.evaluate("given").episodes[0].episode_return == before
    assert command("model-card", "given") == 2
    assert "A model card requires a run or a study" in capsys.readouterr().err
