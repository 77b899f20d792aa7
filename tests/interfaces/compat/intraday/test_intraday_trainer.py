"""IntradayJules' calls, on small prices."""

import csv
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import slipstream
from slipstream.compat.intraday import EnvBuilder, TrainerAgent, TrainerCore
from slipstream.compat.intraday.trainer_agent import KEYWORDS
from slipstream.core.errors import ConfigError, DataError

EXAMPLES = Path(__file__).parents[4] / "examples/older_systems"
SYMBOLS = ["EURUSD", "USDJPY"]
CONFIG = {
    "algorithm": "DQN",
    "environment": {
        "observation_feature_cols": ["rsi_14", "ema_10", "ema_20"],
        "initial_balance": 100000,
        "action_type": "discrete",
        "max_steps": 200,
    },
    "training": {"total_timesteps": 4096},
}


def fallback(monkeypatch):
    """As where SB3 is not installed."""
    find = slipstream.compat.intraday.trainer_agent.importlib.util.find_spec
    monkeypatch.setattr(
        "slipstream.compat.intraday.trainer_agent.importlib.util.find_spec",
        lambda name: None if name == "stable_baselines3" else find(name),
    )


@pytest.mark.slow
def test_a_trainer_trains_what_it_made(prices, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fallback(monkeypatch)
    trainer = TrainerAgent(CONFIG)
    assert trainer.get_recommended_n_envs(SYMBOLS) == 2
    vec_env = trainer.create_vectorized_env(
        symbols=SYMBOLS, data_dir=prices, n_envs=None, use_shared_memory=False
    )
    assert isinstance(vec_env, gymnasium.vector.VectorEnv) and vec_env.num_envs == 2
    trainer.set_env(vec_env)
    before = trainer.trainer_core.get_training_performance_info()
    assert before["expected_speedup"] is None and before["steps_per_second"] is None
    path = trainer.train()
    run = slipstream.Run.open(path)
    assert run.config.env_name == "forex" and run.config.training.num_envs == 2
    assert run.result["members"][0]["best_score"] is not None
    assert trainer.model is not None
    info = trainer.trainer_core.get_training_performance_info(measure=True)
    assert info["steps_per_second"] > 0 and info["num_workers"] == 2
    assert info["expected_speedup"] > 0 and info["environment_type"] == "compiled"
    said = capsys.readouterr().err
    assert "Gymnasium's VectorEnv" in said and "close just seen" in said


def test_fallback_to_one_environment_is_announced(prices, monkeypatch, capsys):
    fallback(monkeypatch)
    config = {**CONFIG, "training": {"vectorized_training": {"enabled": False}}}
    env = TrainerCore(config).create_vectorized_environment(SYMBOLS, prices)
    assert env.num_envs == 1
    assert "a single environment" in capsys.readouterr().err


def test_single_environments(prices):
    config = {"environment": CONFIG["environment"]}
    env = EnvBuilder.build_single_env("EURUSD", prices, config)
    obs, _ = env.reset(seed=1)
    assert obs.shape == env.observation_space.shape and env.action_space.n == 3
    vectorized = {"symbols": SYMBOLS, "data_dir": str(prices)}
    whole = {**config, "training": {"vectorized_training": vectorized}}
    again = EnvBuilder.make_env(whole)
    assert np.array_equal(again.reset(seed=1)[0], obs)
    with pytest.raises(ConfigError, match="build_single_env"):
        EnvBuilder.make_env(config)


def test_a_missing_symbol_is_named_in_one_paragraph(prices):
    with pytest.raises(DataError) as caught:
        TrainerAgent(CONFIG).create_vectorized_env(["EURUSD", "GBPUSD"], prices)
    text = str(caught.value)
    assert "GBPUSD" in text and "\n" not in text


def test_a_trainer_without_an_environment_says_what_to_do():
    with pytest.raises(ConfigError, match="set_env"):
        TrainerAgent(CONFIG).train()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: TrainerAgent("theirs.yaml"), "mapping of sections"),
        (lambda: EnvBuilder.validate_environment_config(5), "mapping of sections"),
        (lambda: EnvBuilder.build_vec_env([], ".", CONFIG), "`symbols` is empty"),
        (lambda: TrainerAgent(CONFIG).get_recommended_n_envs([]), "`symbols` is empty"),
    ],
)
def test_what_is_no_config_and_no_symbol_is_refused_in_words(call, words):
    with pytest.raises(ConfigError, match=words):
        call()


def test_their_own_environments_are_trained_on(tmp_path):
    theirs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    trainer = TrainerAgent({"algorithm": "DQN", "training": {"total_timesteps": 2048}})
    trainer.set_env(theirs)
    run = slipstream.Run.open(trainer.train(out=tmp_path / "run"))
    assert run.config.env_name.startswith("object:") and run.config.training.num_envs == 2
    assert any("stepped in Python" in note for note in run.provenance["notes"])


@pytest.mark.peers
def test_monitors_write_what_is_stepped(prices, tmp_path):
    sb3 = pytest.importorskip("stable_baselines3", reason="requirements/peers.lock has SB3")
    vec = EnvBuilder.build_vec_env(SYMBOLS, prices, CONFIG, n_envs=4, monitor_path=tmp_path / "vec")
    assert isinstance(vec, sb3.common.vec_env.VecMonitor)
    vec.reset()
    for _ in range(401):
        peak = np.array(vec.get_attr("peak"))
        *_, dones, infos = vec.step(np.full(4, 2, np.int64))
        for e in np.flatnonzero(dones):
            equity = 1e5 * (1.0 + infos[e]["total_return"])
            assert infos[e]["drawdown"] == pytest.approx(1.0 - equity / max(peak[e], equity))
            assert 0.0 < infos[e]["drawdown"] <= infos[e]["max_drawdown"] + 1e-12
            per_bar = infos[e]["sharpe"]
            assert infos[e]["sharpe_ratio"] == pytest.approx(per_bar * 24_960**0.5, rel=0.02)
    vec.close()
    lines = (tmp_path / "vec.monitor.csv").read_text().splitlines()
    assert lines[1].split(",") == ["r", "l", "t", "drawdown", "turnover", "sharpe_ratio",
                                   "max_drawdown"]  # fmt: skip
    assert len(lines) == 2 + 8 and all("200" in line.split(",") for line in lines[2:])


@pytest.mark.peers
@pytest.mark.slow
def test_monitors_write_what_is_trained(prices, tmp_path, monkeypatch):
    """A row for each episode of training that the run counts, in the same file and columns."""
    pytest.importorskip("stable_baselines3", reason="requirements/peers.lock has SB3")
    path = tmp_path / "monitor" / "train"
    monitor = {"enabled": True, "log_path": str(path)}
    training = {**CONFIG["training"], "vectorized_training": {"monitor": monitor}}
    trainer = TrainerAgent({**CONFIG, "training": training})
    vec_env = trainer.create_vectorized_env(SYMBOLS, prices)
    trainer.set_env(vec_env)
    run = slipstream.Run.open(trainer.train(out=tmp_path / "run"))
    vec_env.close()
    with path.with_suffix(".monitor.csv").open() as file:
        assert file.readline().startswith("#")
        rows = list(csv.DictReader(file))
    metrics = run.metrics()
    assert len(rows) == metrics["episodes"][-1] > 10
    assert list(rows[0]) == ["r", "l", "t", *KEYWORDS]
    assert np.mean([float(row["r"]) for row in rows]) == pytest.approx(metrics["score"][-1])
    assert all(row["l"] == "200" and float(row["turnover"]) >= 0.0 for row in rows)
    worst = np.mean([float(row["max_drawdown"]) for row in rows])
    assert worst == pytest.approx(float(metrics["episode/max_drawdown"][-1]))
    times = [float(row["t"]) for row in rows]
    assert times == sorted(times)


@pytest.mark.parametrize("name", ["TrainerAgent", "VectorizedCryptoEnvAlpaca"])
def test_old_imports_say_the_line_to_write(name):
    with pytest.raises(ImportError, match=rf"from slipstream\.compat\.\w+ import {name}"):
        exec(f"from slipstream import {name}")


@pytest.mark.slow  # tests/test_examples.py trains the same through their calls
def test_their_yaml_is_trained_by_the_command(tmp_path):
    """On prices that the example beside it writes."""
    command = [sys.executable, str(EXAMPLES / "intraday.py"), "2048"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "model:" in done.stdout
    words = ["train", str(EXAMPLES / "intraday.yaml"), "--total-steps", "2048", "--no-report"]
    words += ["--set", "agent.learning_starts=500"]
    done = subprocess.run(
        [sys.executable, "-m", "slipstream", *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "`slipstream.compat.intraday` reads this config." in done.stdout + done.stderr
