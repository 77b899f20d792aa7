"""Searchable settings, configs of suggestions, and rejected spaces."""

from __future__ import annotations

import math

import optuna
import pytest

from slipstream.core.errors import ConfigError
from slipstream.studies.config import published_spaces
from slipstream.studies.space import Range, SearchSpace
from slipstream.studies.start import prepare_study
from slipstream.training.settings.config import resolve

ROLLOUT_ROWS = "agent.rollout_rows"
optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture(scope="module")
def base():
    return resolve("cartpole")  # 16 environments, n_steps 32, minibatch 256


def trials(space, n, seed=0):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    for _ in range(n):
        trial = space.ask(study)
        yield trial.params
        study.tell(trial, 0.0)


def test_ranges_beside_the_defaults_give_valid_configs(base):
    space = SearchSpace.from_mapping(None, base)
    assert {"agent.learning_rate", "agent.clip_range", "agent.gamma"} <= set(space.ranges)
    assert not any(name.startswith("env.") for name in space.ranges)  # physics are given
    assert not {"agent.net_arch", "agent.n_steps", "agent.batch_size"} & set(space.ranges)
    seen = set()
    for params in trials(space, 200):
        values, notes = space.overrides(params, base)
        config = resolve(base, values)
        assert notes == () and values == params
        assert 1e-4 <= config.agent.learning_rate <= 3e-3
        seen.add(config.agent.gamma)
    assert seen == {0.8, 0.9, 0.95, 0.98, 0.99, 0.995}


def test_every_searched_value_reaches_the_config(base):
    space = SearchSpace.from_mapping(
        {
            "agent.learning_rate": {"low": 1e-4, "high": 3e-3, "log": True},
            "agent.net_arch": {"choices": [[64, 64], [128, 128]]},
            "agent.n_epochs": {"low": 2, "high": 10, "step": 4},
            "agent.batch_size": {"low": 5, "high": 7, "power_of": 2},
            "agent.activation": "default",
            "training.total_timesteps": {"choices": [30000, 60000]},
        },
        base,
    )
    found = []
    for params in trials(space, 60):
        config = resolve(base, space.overrides(params, base).values)
        agent = config.agent
        assert agent.learning_rate == params["agent.learning_rate"]
        found.append((agent.net_arch, agent.n_epochs, agent.batch_size, agent.activation))
        assert config.training.total_timesteps in (30000, 60000)
    widths, epochs, minibatches, activations = (set(column) for column in zip(*found, strict=True))
    assert widths == {(64, 64), (128, 128)}
    assert epochs == {2, 6, 10}
    assert minibatches == {32, 64, 128}
    assert activations == {"tanh", "relu"}


def test_lists_are_kept_by_storages_as_text(base, tmp_path):
    space = SearchSpace.from_mapping({"agent.net_arch": {"choices": [[64, 64], [8]]}}, base)
    url = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(storage=url, study_name="s")
    study.tell(space.ask(study), 1.0)
    again = optuna.load_study(storage=url, study_name="s").trials[0]
    assert again.distributions == space.distributions
    assert space.overrides(again.params, base).values["agent.net_arch"] in ([64, 64], [8])


@pytest.mark.parametrize(
    ("num_envs", "batch_size", "asked", "rows"),
    [
        (16, 256, 512, 512),
        (12, 256, 3072, 3072),  # 12 x 256
        (12, 2048, 3072, 6144),  # lcm(12, 2048) = 6144
        (12, 3080, 25000, 27720),  # lcm(12, 3080) = 9240
        (16, 8192, 3072, 8192),  # a minibatch larger than the rollout asked for
        (7, None, 100, 105),
    ],
)
def test_rollouts_are_rounded_up_and_say_so(base, num_envs, batch_size, asked, rows):
    values = {"training.num_envs": num_envs, "agent.batch_size": None}
    start = resolve(base, values)
    ranges = {ROLLOUT_ROWS: {"choices": [asked]}}
    if batch_size is not None:
        ranges["agent.batch_size"] = {"choices": [batch_size]}
    space = SearchSpace.from_mapping(ranges, start)
    params = {name: one.choices[0] for name, one in space.ranges.items()}
    changed, notes = space.overrides(params, start)
    config = resolve(start, changed)
    assert config.agent.n_steps * num_envs == rows
    assert config.agent.rows(num_envs) == (batch_size or 35)
    assert len(notes) == (rows != asked)
    if notes:
        assert f"{asked:,} rows rounded up to {rows:,}" in notes[0]
        assert "with 16 environments it would be" not in notes[0]


def test_a_rollout_that_more_than_doubles_names_a_better_number_of_copies(base):
    start = resolve(base, {"training.num_envs": 12, "agent.batch_size": None})
    ranges = {ROLLOUT_ROWS: {"choices": [3072]}, "agent.batch_size": {"choices": [8192]}}
    space = SearchSpace.from_mapping(ranges, start)
    params = {name: one.choices[0] for name, one in space.ranges.items()}
    (note,) = space.overrides(params, start).notes
    assert note == (
        "Rollout of 3,072 rows rounded up to 24,576: a multiple of 12 environments and "
        "minibatches of 8,192 rows; with 16 environments it would be 8,192."
    )


def test_a_tuned_minibatch_rounds_the_horizon_of_the_config(base):
    space = SearchSpace.from_mapping({"agent.batch_size": {"choices": [96]}}, base)
    changed, notes = space.overrides({"agent.batch_size": 96}, base)  # 512 rows are asked for
    assert changed["agent.n_steps"] * 16 == 576 and len(notes) == 1


def test_the_same_space_whatever_the_order(base):
    one = {"agent.n_epochs": {"low": 1, "high": 4}, "agent.clip_range": {"low": 0.1, "high": 0.3}}
    other = dict(reversed(one.items()))
    spaces = [SearchSpace.from_mapping(values, base) for values in (one, other)]
    assert list(spaces[0].ranges) == list(spaces[1].ranges)
    assert list(trials(spaces[0], 5)) == list(trials(spaces[1], 5))
    assert spaces[0] == spaces[1]
    assert SearchSpace.from_mapping(spaces[0].to_mapping(), base) == spaces[0]


def test_extends_adds_replaces_and_takes_out(base, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: default\nagent.n_epochs: default\nagent.clip_range: null\n")
    space = SearchSpace.from_mapping(str(file), base)
    defaults = SearchSpace.from_mapping(None, base)
    assert set(space.ranges) == set(defaults.ranges) - {"agent.clip_range"} | {"agent.n_epochs"}
    file.write_text(f"extends: {file}\n")
    with pytest.raises(ConfigError, match="extends itself"):
        SearchSpace.from_mapping(str(file), base)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"agent.lerning_rate": {"low": 1, "high": 2}}, "did you mean `agent.learning_rate`"),
        ({"learning_rate": {"low": 1, "high": 2}}, "did you mean `agent.learning_rate`"),
        ({"agent.worker_num": {"low": 2, "high": 3}}, "which is not a setting of"),
        ({"env.gravity": {"low": 1, "high": 20}}, "easiest task"),
        ({"training.seed": {"low": 0, "high": 9}}, "cannot be searched"),
        ({"evaluation.episodes": {"low": 1, "high": 9}}, "cannot be searched"),
        ({"agent.gamma": {"low": 0.5, "high": 1.5}}, "contains 1.5.*less than or equal to 1"),
        ({"agent.n_epochs": {"low": 0, "high": 4}}, "contains 0"),
        ({"agent.n_epochs": {"low": 1.5, "high": 4}}, "must be integers"),
        ({"agent.n_epochs": {"low": 4, "high": 1}}, "above `high`"),
        ({"agent.n_epochs": {"low": 1, "high": 4, "step": 2}}, "does not lead"),
        ({"agent.batch_size": {"low": -3, "high": 4, "power_of": 2}}, "at least 0"),
        ({"agent.net_arch": {"low": 1, "high": 4}}, "list its values"),
        ({"agent.activation": {"choices": ["tanh", "gelu"]}}, "contains 'gelu'"),
        ({"agent.clip_range": {"lo": 0.1, "high": 0.2}}, "did you mean `low`"),
        ({"agent.clip_range": {"low": 0.0, "high": 0.2, "log": True}}, "positive `low`"),
        ({"agent.clip_range": {"choices": [0.1], "low": 0.1}}, "must be the only key"),
        ({"agent.clip_range": {"choices": []}}, "empty"),
        ({"agent.net_arch": {"choices": [[8], [8]]}}, "twice"),
        ({"agent.clip_range": 0.2}, "must be a range"),
        ({"agent.rollout_rows": {"low": 8, "high": 9}, "agent.n_steps": "default"}, "keep one"),
        ({"agent.init_std": "default"}, "has no default range"),
        ({}, "empty"),
        ("finrl", "There is no search space `finrl`"),
        ("none.yaml", "cannot be read"),
    ],
)
def test_refusals(base, values, said):
    with pytest.raises(ConfigError, match=said):
        SearchSpace.from_mapping(values, base)


def test_a_batch_larger_than_the_replay_is_refused(base):
    small = resolve("cartpole", {"agent.name": "dqn", "agent.buffer_size": 1000})
    with pytest.raises(ConfigError, match="invalid combinations"):
        SearchSpace.from_mapping({"agent.batch_size": {"choices": [4096]}}, small)


def test_sizes_need_a_number_of_environments(base):
    auto = resolve(base, {"training.num_envs": "auto"})
    with pytest.raises(ConfigError, match="number of environments"):
        SearchSpace.from_mapping({"agent.batch_size": "default"}, auto)


def test_parameters_of_another_space_are_refused(base):
    space = SearchSpace.from_mapping({"agent.n_epochs": {"low": 1, "high": 4}}, base)
    for params in ({}, {"agent.n_epochs": 2, "agent.clip_range": 0.2}, {"agent.n_epochs": 9}):
        with pytest.raises(ConfigError, match="agent\\."):
            space.overrides(params, base)


def test_gymnasium_arguments_may_be_searched():
    base = resolve("gym:Acrobot-v1", {"training.num_envs": 4})
    space = SearchSpace.from_mapping({"env.kwargs.torque": {"low": 0.5, "high": 1.5}}, base)
    (params,) = trials(space, 1)
    config = resolve(base, space.overrides(params, base).values)
    assert config.env_settings["kwargs"] == {"torque": params["env.kwargs.torque"]}


def test_powers_and_words():
    powers = Range(low=-16, high=-10, power_of=2)
    assert powers.to_value(-12) == 2**-12 and powers.bounds == (2**-16, 2**-10)
    assert powers.description == "2^-16 to 2^-10"
    assert Range(low=1e-4, high=1e-2, log=True).description == "0.0001 to 0.01 (log)"
    assert Range(choices=[True, 1, None]).to_value(1) == 1
    assert Range(choices=[True, 1, None]).to_value(True) is True


optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"agent.learnign_rate": 1e-3}, "did you mean `agent.learning_rate`"),
        ({"agent.learning_rate": 1.0}, "`agent.learning_rate`: 1.0 is outside"),
        ({"agent.learning_rate": "fast"}, "'fast' is not a number"),
        ({"agent.batch_size": 48}, "48 is outside 2\\^5 to 2\\^7"),
        ({"agent.n_epochs": 2.5}, "2.5 is outside 1 to 4"),
        ({"agent.n_epochs": math.inf}, "inf is outside"),
        ({"agent.net_arch": [9]}, "not one of the choices"),
    ],
)
def test_settings_to_start_with_are_of_the_space(base, given, said):
    space = SearchSpace.from_mapping(
        {
            "agent.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
            "agent.batch_size": {"low": 5, "high": 7, "power_of": 2},
            "agent.n_epochs": {"low": 1, "high": 4},
            "agent.net_arch": {"choices": [[64, 64], [8]]},
        },
        base,
    )
    fine = {"agent.batch_size": 64, "agent.net_arch": (8,), "agent.n_epochs": 3.0}
    assert space.start_params([{}, fine])[1] == {
        "agent.batch_size": 6,
        "agent.net_arch": "[8]",
        "agent.n_epochs": 3,
    }
    space.check_starts([fine], base)
    with pytest.raises(ConfigError, match=f"`study.start_with`, trial 1 .*{said}"):
        space.check_starts([fine, given], base)


def test_the_files_are_found_by_name():
    assert published_spaces() == ["cappuccino", "finrl_crypto"]


def test_settings_to_start_with_that_no_trial_tries_are_said():
    said: list[str] = []
    given = {"n_trials": 1, "start_with": [{"agent.learning_rate": 3e-4}] * 2}
    prepare_study("cartpole", {}, given, said.append)
    assert "`study.start_with` has 2 settings; n_trials: 1 tries no more." in said
