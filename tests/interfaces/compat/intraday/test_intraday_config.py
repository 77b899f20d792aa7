"""Configs of IntradayJules: what becomes of each key, and what is refused."""

import copy
from pathlib import Path

import pytest

from slipstream.compat.intraday import EnvBuilder
from slipstream.compat.intraday.config import differences, recognizes, to_sections
from slipstream.core.errors import ConfigError
from slipstream.core.storage import yaml_file
from slipstream.training.settings.config import ignored_keys, read_config, resolve

EXAMPLE = Path(__file__).parents[4] / "examples/older_systems/intraday.yaml"
THEIRS = yaml_file.parse(EXAMPLE.read_text(), str(EXAMPLE))


def changed(path, value):
    values = copy.deepcopy(THEIRS)
    *sections, key = path.split(".")
    inner = values
    for name in sections:
        inner = inner.setdefault(name, {})
    inner[key] = value
    return values


def test_each_key_has_its_place():
    config = resolve(THEIRS)
    env, agent, training = config.env_settings, config.agent, config.training
    assert env["data"]["folder"].endswith("/data/forex")  # absolute in a run
    assert list(env["data"]["symbols"]) == ["EURUSD", "GBPUSD", "USDJPY", "USDCHF"]
    assert env["features"][:2] == ["rsi_14", "ema_10"]
    assert (env["initial_equity"], env["lookback"], env["max_steps"]) == (100_000.0, 3, 1000)
    assert (env["reward"], env["action"]) == ("pnl", "discrete")
    assert env["commission_per_million"] == pytest.approx(20.0)  # 2e-5 of a million
    assert config.agent_name == "dqn"
    assert (agent.learning_rate, agent.buffer_size, agent.batch_size) == (1e-4, 100_000, 32)
    assert (agent.learning_starts, agent.tau, agent.gamma) == (10_000, 1.0, 0.99)
    assert agent.utd_ratio == 0.25  # one after every fourth step
    assert agent.target_update_interval == 250  # updates, of 1,000 steps
    assert agent.exploration_steps == 50_000  # a tenth of the budget
    assert (agent.exploration_initial_eps, agent.exploration_final_eps) == (1.0, 0.05)
    assert (training.total_timesteps, training.num_envs) == (500_000, 4)


def test_a_file_is_recognised_and_its_adapter_named():
    assert recognizes(THEIRS) and not recognizes({"env": {"name": "cartpole"}})
    assert read_config(EXAMPLE)["env"]["name"] == "forex"
    said = ignored_keys(EXAMPLE)
    assert said.startswith("`slipstream.compat.intraday` reads this config.")
    assert "the last close" in said


def test_what_is_passed_over_is_said():
    values = changed("environment.risk_penalty", 0.1) | {"hardware": {"cpu": {}}, "risk": {}}
    values["training"]["log_interval"] = 1000
    said = ignored_keys(values)
    for word in ("risk_penalty (env.drawdown_penalty)", "hardware", "risk", "log_interval"):
        assert word in said
    assert resolve(values).env_settings["drawdown_penalty"] == 0.0


@pytest.mark.parametrize("path", ["algo_params", "training.algo_params"])
def test_files_that_they_would_write_and_a_training_here_does_not_are_named(path):
    values = changed(f"{path}.tensorboard_log", "logs/tb")
    values["training"]["vectorized_training"]["monitor"] = {"enabled": True}
    said = ignored_keys(values)
    assert "`monitor.enabled` is ignored" in said and "import TrainerAgent" in said
    assert "`tensorboard_log: logs/tb` is ignored" in said and "`tensorboard`" in said
    assert "monitor" not in differences(values, monitored=True)
    assert "monitor" not in ignored_keys(changed("training.vectorized_training.monitor", {}))


@pytest.mark.parametrize(
    ("algorithm", "params", "name", "found"),
    [
        ("PPO", {"n_steps": 128, "ent_coef": 0.01}, "ppo", {"n_steps": 128, "ent_coef": 0.01}),
        ("DQN", {"policy_kwargs": {"net_arch": [32, 32]}}, "dqn", {"net_arch": (32, 32)}),
        ("DQN", {"train_freq": [8, "step"]}, "dqn", {"utd_ratio": 0.125}),
        ("DQN", {"gradient_steps": -1}, "dqn", {"utd_ratio": 1.0}),
        ("dqn", {"n_step": 3}, "dqn", {"n_step": 3}),  # our own key among theirs
    ],
)
def test_algorithms(algorithm, params, name, found):
    values = changed("training.algorithm", algorithm)
    values["training"]["algo_params"] = params
    config = resolve(values)
    assert config.agent_name == name
    assert {key: getattr(config.agent, key) for key in found} == found


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("environment.reward_scaling", 0.5, ("reward_scaling", "agent.reward_scaling")),
        ("environment.holding_penalty", 0.1, ("holding_penalty", "env.holding_penalty")),
        ("environment.initial_equity", 1e5, ("initial_equity", "Remove one")),
        ("env", {"name": "forex"}, ("environment", "env", "Remove one")),
        ("agent", {"name": "ppo"}, ("agent",)),
        ("training.num_envs", 4, ("total_timesteps",)),
        ("environment.transaction_cost", -0.1, ("transaction_cost", "-0.1")),
        ("environment.color", "red", ("color", "not a known key")),
        ("training.algorithm", "A2C", ("A2C", "DQN")),
        ("training.algo_params.train_freq", "often", ("train_freq", "often")),
        ("training.algo_params.policy", "CnnPolicy", ("CnnPolicy",)),
        ("training.vectorized_training.envs", 4, ("vectorized_training.envs", "n_envs")),
        ("training.vectorized_training.data_dir", None, ("data_dir", "missing")),
        ("training.vectorized_training.max_envs", 0, ("max_envs",)),
        ("broker", {}, ("broker", "not a known section")),
        ("environment", 3, ("environment", "section")),
    ],
)
def test_bad_input_is_one_paragraph(path, value, words):
    values = changed(path, value)
    if path == "agent":  # beside their `algorithm`, at the top as in their usage example
        values["algorithm"] = "DQN"
    if path == "training.num_envs":
        values["training"]["total_timesteps"] = 5
    with pytest.raises(ConfigError) as caught:
        resolve(to_sections(values))
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


def test_copies_by_both_names_are_refused():
    values = changed("training.num_envs", 4)
    values["training"]["vectorized_training"]["n_envs"] = 8
    with pytest.raises(ConfigError, match="Remove one"):
        to_sections(values)


def test_a_section_environment_alone_is_judged():
    assert EnvBuilder.validate_environment_config(THEIRS["environment"])
    with pytest.raises(ConfigError, match="action"):
        EnvBuilder.validate_environment_config({**THEIRS["environment"], "action_type": "both"})
