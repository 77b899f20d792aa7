"""What measures a card: dry runs on a processor; without a card the suite says so and is done."""

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.ours.device import cappuccino, phases


def test_phases_of_the_torch_form() -> None:
    agent = {"horizon": 16, "minibatch": 32, "epochs": 1, "widths": [8]}
    training = {"num_envs": 4, "members": 2}
    config = {"env": {"name": "cartpole"}, "agent": agent, "training": training}
    answer = phases(config, 0.05, "cpu")
    assert answer["steps_per_second"] == pytest.approx(32 * answer["updates_per_second"])
    assert set(answer["phases"]) == {"act", "update"}
    assert 0.0 < sum(answer["phases"].values()) <= 1.0
    assert "a processor: of the time act " in answer["told"]


def test_phases_of_learning_from_a_replay() -> None:
    agent = {"name": "dqn", "widths": [8], "batch": 8, "iteration": 16, "learning_starts": 10}
    config = {"env": {"name": "cartpole"}, "agent": {**agent, "replay_size": 500}}
    answer = phases({**config, "training": {"num_envs": 1, "members": 2}}, 0.05, "cpu")
    assert set(answer["phases"]) == {"act", "learn", "update"}
    assert answer["updates_per_second"] > 0


def test_the_mean_trial() -> None:
    small = {"widths": [16], "minibatch": 64, "horizon": 16, "epochs": 1}
    answer = cappuccino(0.0, "cpu", **small)
    assert answer["width"] == 1024 and answer["days"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a card")
def test_without_a_card_it_says_so_and_is_done() -> None:
    ran = CliRunner().invoke(app, ["gpu"])
    assert ran.exit_code == 0
    assert ran.stdout.count("\n") == 1 and "Nothing was measured. cuda:0 was asked" in ran.stdout
