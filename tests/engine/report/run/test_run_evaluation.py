"""From a run directory to its report."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from slipstream import api
from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.kernels.spec import Metric
from slipstream.report.history import episode_curves, episode_sections, learning_curves
from slipstream.report.inputs import Curve
from slipstream.report.run_evaluation import evaluate_run
from slipstream.report.run_page import report_run
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


@pytest.mark.slow
def test_report_of_a_game(game):
    said = []
    path = report_run(game, log=said.append)
    assert path == game / "report.html"
    assert said[0].endswith(" for the report ...")
    assert said[1].startswith("Mean return ")
    text = path.read_text(encoding="utf-8")
    assert said[1] in text
    assert "Over 2 seeds" in text
    assert "Versions" in text
    assert (game / "figures" / "learning_curve.png").exists()


def test_report_of_a_run_whose_power_failed_before_its_first_rows(game, tmp_path):
    run = shutil.copytree(game, tmp_path / "run")
    for name in ("metrics.csv", "evaluations.csv"):
        heading, _, _ = (run / name).read_text().partition("\n")
        (run / name).write_text(f"{heading}\n")
    assert learning_curves(Run.open(run), market=False) == ()
    assert report_run(run, log=lambda _: None).is_file()


def test_curves_follow_the_tables(game):
    run = Run.open(game)
    training, evaluation = learning_curves(run, market=False)
    assert training.score.shape == (len(training.steps), 2)
    assert training.steps[-1] == 2_048
    assert evaluation.name == "evaluation"
    assert training.unit == evaluation.unit
    table = run.evaluations()
    assert np.nanmax(evaluation.score) == max(table["score"])


@pytest.mark.slow
def test_episodes_that_never_change_are_not_drawn():
    steps, same = np.array([1.0, 2.0]), np.array([[5.0], [5.0]])
    still = Curve("length", steps, same, "steps")
    assert episode_sections((still,)) == []
    moving = [Curve(f"m{k}", steps, same + np.array([[0.0], [k + 1.0]]), "") for k in range(18)]
    (section,) = episode_sections((still, *moving))
    text = " ".join(section.sentences)
    assert "Constant: length 5." in text and "metrics.csv and TensorBoard: m16, m17." in text


def test_metrics_are_told_apart_from_the_length_and_from_numbers_of_players():
    columns = {"length": [3.0, 4.0], "episode/length": [5.0, 5.0], "episode/opponent": [0.0, 1.0]}
    table = {"steps": [1.0, 2.0], "member": [0.0, 0.0], **columns}
    config = SimpleNamespace(training=SimpleNamespace(members=1))
    spec = SimpleNamespace(metrics=(Metric("length", "m"), Metric("opponent", "number")))
    run = SimpleNamespace(metrics=lambda: table, config=config)
    found = episode_curves(run, spec, ("player", "opponent"))
    assert [(c.name, c.unit) for c in found] == [("length", "steps"), ("episode/length", "m")]
    assert [c.name for c in episode_curves(run, spec)][2:] == ["opponent"]


def test_a_sentence_lists_no_more_names_than_can_be_read():
    """And curves of one name are no trouble."""
    steps, same = np.array([1.0, 2.0]), np.array([[5.0], [5.0]])
    still = [Curve("length", steps, same + k, "") for k in range(25)]
    (section,) = episode_sections((*still, Curve("length", steps, same * [[1.0], [2.0]], "")))
    assert section.sentences[1].endswith("length 24 and 5 more.")


def test_chosen_bars_need_prices(game):
    with pytest.raises(ConfigError, match="no prices to select from"):
        evaluate_run(game, start=0)


def test_no_policy_no_report(game, tmp_path):
    fresh = Run.create(Run.open(game).config, tmp_path / "fresh")
    with pytest.raises(CheckpointError, match="no policy yet"):
        report_run(fresh.path)


def test_members_of_one_config_are_trials_too(game):
    assert evaluate_run(game).trials == 2  # the better of two is shown


@pytest.mark.slow
def test_a_gymnasium_environment_has_its_report(tmp_path):
    run = api.train(
        "gym:CartPole-v1",
        out=tmp_path / "run",
        overrides={"agent.n_steps": 32, "agent.net_arch": [8], "evaluation.episodes": 2},
        num_envs=2,
        total_timesteps=128,
        log=lambda sentence: None,
    )
    assert "random policy" in (run.path / "report.html").read_text().lower()
