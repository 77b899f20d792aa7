"""Published search spaces of markets, and settings that they need."""

from __future__ import annotations

import itertools
import math

import optuna
import pytest

from slipstream.core.errors import ConfigError
from slipstream.studies.config import space_settings
from slipstream.studies.space import SearchSpace
from slipstream.studies.start import _comparison_spaces, prepare_study
from slipstream.training.settings.config import resolve

optuna.logging.set_verbosity(optuna.logging.WARNING)


ROLLOUT_ROWS = "agent.rollout_rows"


@pytest.fixture(scope="module")
def base():
    return resolve("cartpole")  # 16 environments, n_steps 32, minibatch 256


def test_a_field_read_only_with_another_value():
    forex = {"env": {"name": "forex", "data": {"folder": "."}}, "training": {"num_envs": 8}}
    discrete = resolve(forex)
    assert "env.rebalance_threshold" not in SearchSpace.from_mapping(None, discrete).ranges
    with pytest.raises(ConfigError, match=r"used only with `env\.action: continuous`"):
        SearchSpace.from_mapping({"env.rebalance_threshold": "default"}, discrete)
    both = {
        "env.rebalance_threshold": "default",
        "env.action": {"choices": ["discrete", "continuous"]},
    }
    assert set(SearchSpace.from_mapping(both, discrete).ranges) == set(both)
    continuous = resolve(forex, {"env.action": "continuous"})
    assert "env.rebalance_threshold" in SearchSpace.from_mapping(None, continuous).ranges
    with pytest.raises(ConfigError, match="easiest task"):
        SearchSpace.from_mapping({"env.slippage_pips": {"low": 0, "high": 1}}, discrete)


def base_of(name, num_envs=16):
    """Config of `portfolio` with the settings that the space's file requires."""
    env = {"name": "portfolio", "data": {"folder": "."}}
    return resolve({"env": env, "training": {"num_envs": num_envs}}, space_settings(name))


def at(config, path):
    value = config.as_mapping()
    for part in path.split("."):
        value = value[part]
    return value


@pytest.mark.parametrize("name", ["finrl_crypto", "cappuccino"])
def test_every_trial_gives_a_valid_config_that_holds_what_was_suggested(name):
    base = base_of(name)
    space = SearchSpace.from_mapping(name, base)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    values_of = {path: set() for path in space.ranges}
    for _ in range(200):
        trial = space.ask(study)
        values, notes = space.overrides(trial.params, base)
        config = resolve(base, values)
        for path, one in space.ranges.items():
            value = one.to_value(trial.params[path])
            values_of[path].add(str(value))
            if path != ROLLOUT_ROWS:
                assert at(config, path) == value
        rows = config.agent.n_steps * 16
        asked = trial.params[ROLLOUT_ROWS]
        assert rows % config.agent.batch_size == 0
        assert asked <= rows < asked + math.lcm(16, config.agent.batch_size)
        assert bool(notes) == (rows != asked)
        study.tell(trial, 0.0)
    single = {path for path, seen in values_of.items() if len(seen) == 1}
    fixed = {p for p, one in space.ranges.items() if len(set(map(str, one.bounds))) == 1}
    assert single == fixed


def test_eighteen_of_cappuccinos_21_pairs_do_not_divide():
    base = base_of("cappuccino")
    space = SearchSpace.from_mapping("cappuccino", base)
    rows = range(3072, 12288 + 1, 1536)
    assert space.ranges[ROLLOUT_ROWS].bounds == (rows[0], rows[-1])
    minibatches = space.ranges["agent.batch_size"].choices
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    params = space.ask(study).params
    rounded = [
        bool(space.overrides({**params, ROLLOUT_ROWS: r, "agent.batch_size": b}, base).notes)
        for r, b in itertools.product(rows, minibatches)
    ]
    assert (len(rounded), sum(rounded)) == (21, 18)


def test_the_published_values():
    finrl = SearchSpace.from_mapping("finrl_crypto", base_of("finrl_crypto")).ranges
    assert finrl["env.units.norm_cash"].to_value(-12) == 2**-12
    assert finrl["agent.learning_rate"].choices == (3e-2, 2.3e-2, 1.5e-2, 7.5e-3, 5e-6)
    cappuccino = SearchSpace.from_mapping("cappuccino", base_of("cappuccino")).ranges
    assert cappuccino["env.units.norm_tech"].bounds == (2**-18, 2**-12)
    assert cappuccino["agent.batch_size"].choices == (2048, 4096, 8192)


def test_a_published_space_brings_the_settings_that_it_needs():
    target, said = {"env": {"name": "portfolio", "data": {"folder": "."}}}, []
    overrides = {"env.fee": 0.001}  # what is said otherwise stays
    base, _, space = prepare_study(target, overrides, {"space": "cappuccino"}, said.append)
    env = base.env_settings
    assert (env["orders"], env["reward"], env["fee"]) == ("units", "mixed", 0.001)
    assert env["units"]["action_scale"] == "value" and "env.units.norm_action" in space.ranges
    assert [text for text in said if "comes with env.orders=units, env.reward=mixed" in text]
    base, _, space = prepare_study("cartpole", {}, {})
    assert (
        not space_settings("default")
        and not space_settings(None)
        and not space_settings("mine.yaml")
    )


def test_crypto_is_a_portfolio_and_its_rival_is_cappuccinos_space():
    data = {"env.data": {"folder": "."}}
    base, _, space = prepare_study("crypto", data, {})
    assert base.env_name == "portfolio" and base.agent.net_arch == (64, 64)
    assert "agent.net_arch" not in space.ranges
    ((name, (rival, theirs)),) = _comparison_spaces("crypto", data, {}, None).items()
    assert name == "cappuccino" and rival.env_settings["orders"] == "units"
    assert theirs.ranges["agent.net_arch"].bounds[0] == [512, 512, 512]
    ((name, (ours, own)),) = _comparison_spaces("portfolio", data, {"space": name}, name).items()
    assert name == "default" and own == space and ours == base
    assert not _comparison_spaces("portfolio", data, {}, None)
    sac = {**data, "agent.name": "sac"}  # theirs searches PPO's settings
    assert not _comparison_spaces("crypto", sac, {}, None)


def test_unit_orders_settings_are_refused_with_target_weights():
    base = resolve(base_of("finrl_crypto"), {"env.orders": "weights"})
    with pytest.raises(ConfigError, match=r"env\.units.*used only with `env\.orders: units`"):
        SearchSpace.from_mapping({"env.units.norm_cash": {"low": 2e-5, "high": 1e-3}}, base)


@pytest.mark.parametrize("orders", ["weights", "units"])
def test_ranges_beside_the_portfolios_defaults(orders):
    base = resolve(base_of("finrl_crypto"), {"env.orders": orders})
    space = SearchSpace.from_mapping(None, base)
    assert any(name.startswith("env.") for name in space.ranges)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for _ in range(200):
        trial = space.ask(study)
        resolve(base, space.overrides(trial.params, base).values)
        study.tell(trial, 0.0)
    for fees in ("env.fee", "env.slippage_bp", "env.initial_equity", "env.data.folder"):
        with pytest.raises(ConfigError, match="easiest task"):
            SearchSpace.from_mapping({fees: {"low": 0.0, "high": 0.01}}, base)


def test_a_trial_leaves_out_what_its_own_choices_leave_unread():
    base = resolve(base_of("finrl_crypto"), {"env.orders": "weights"})
    ranges = {
        "env.orders": {"choices": ["weights", "units"]},
        "env.action_map": {"choices": ["softmax", "change"]},
        "env.sharpness": {"low": 2.0, "high": 4.0},
        "env.max_change": {"low": 0.1, "high": 0.4},
        "env.units.forced_sale_bars": {"low": 10, "high": 20},
    }
    space = SearchSpace.from_mapping(ranges, base)
    params = {"env.sharpness": 3.0, "env.max_change": 0.2, "env.units.forced_sale_bars": 12}

    def kept(orders, action_map):
        chosen = {**params, "env.orders": orders, "env.action_map": action_map}
        values = space.overrides(chosen, base).values
        resolve(base, values)
        return set(values) - {"env.orders"}

    assert kept("weights", "softmax") == {"env.action_map", "env.sharpness"}
    assert kept("weights", "change") == {"env.action_map", "env.max_change"}
    assert kept("units", "softmax") == {"env.units.forced_sale_bars"}
    with pytest.raises(ConfigError, match="has no default range"):
        SearchSpace.from_mapping({"env.action_map": "default"}, base)
