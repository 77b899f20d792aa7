"""Dry runs of GPU measurements on a CPU, and the suite's message if there is no GPU."""

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.ours.device import cappuccino, mean_trial, phases
from benchmarks.ours.hardware import operations, products
from slipstream.markets.synthetic import SyntheticCrypto


def test_phases_of_the_torch_form() -> None:
    agent = {"n_steps": 16, "batch_size": 32, "n_epochs": 1, "net_arch": [8]}
    training = {"num_envs": 4, "members": 2}
    config = {"env": {"name": "cartpole"}, "agent": agent, "training": training}
    answer = phases(config, 0.05, "cpu")
    assert answer["steps_per_second"] == pytest.approx(32 * answer["updates_per_second"])
    assert set(answer["phases"]) == {"act", "update"}
    assert 0.0 < sum(answer["phases"].values()) <= 1.0
    assert "CPU: of the time act " in answer["told"]


def test_phases_of_learning_from_a_replay() -> None:
    agent = {
        "name": "dqn",
        "net_arch": [8],
        "batch_size": 8,
        "iteration": 16,
        "learning_starts": 10,
    }
    config = {"env": {"name": "cartpole"}, "agent": {**agent, "buffer_size": 500}}
    answer = phases({**config, "training": {"num_envs": 1, "members": 2}}, 0.05, "cpu")
    assert set(answer["phases"]) == {"act", "learn", "update"}
    assert answer["updates_per_second"] > 0


@pytest.fixture
def three_assets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops are compiled per number of assets, and other tests use three."""
    write = SyntheticCrypto.write

    def fewer(self: SyntheticCrypto, folder: str, bars: int) -> None:
        write(self, folder, bars, symbols=("BTCUSD", "ETHUSD", "LTCUSD"))

    monkeypatch.setattr(SyntheticCrypto, "write", fewer)


@pytest.mark.usefixtures("three_assets")
def test_the_mean_trial() -> None:
    small = {"net_arch": [16], "batch_size": 64, "n_steps": 16, "n_epochs": 1}
    answer = cappuccino(0.0, "cpu", **small)
    assert answer["width"] == 16 and answer["days"] > 0


@pytest.mark.usefixtures("three_assets")
def test_the_mean_trial_as_the_processor_trains_it() -> None:
    small = {"net_arch": [8, 8, 8], "batch_size": 64, "n_steps": 4, "n_epochs": 1}
    answer = cappuccino(0.0, learner="compiled", members=1, **small)
    assert answer["steps_per_second"] > 0 and answer["gflops"] > 0
    with mean_trial(1) as (config, steps):
        assert steps == 540_000 and config["agent"]["n_epochs"] == 10
        assert (config["agent"]["net_arch"], config["agent"]["n_steps"]) == ([1024] * 3, 512)


def test_what_the_machine_reaches_is_of_the_fastest_library() -> None:
    found = products(1, [[16, 64], [64, 8]], 130)
    rates = {name: rate for name, rate in found.items() if isinstance(rate, float)}
    assert {"own", "numpy", "torch", "best"} == set(rates)
    assert found["best"] == max(rates.values()) == found[str(found["fastest"])]
    assert operations([[16, 64], [64, 8]]) == 2 * (2 * 16 * 64 + 3 * 64 * 8)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a card")
def test_without_a_card_it_says_so_and_is_done() -> None:
    ran = CliRunner().invoke(app, ["gpu"])
    assert ran.exit_code == 0
    assert (
        ran.stdout.count("\n") == 1
        and "Nothing was measured. cuda:0 is not available" in ran.stdout
    )
