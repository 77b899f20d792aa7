"""The published search spaces: every name is read, every trial gives a valid config."""

from __future__ import annotations

import itertools
import math

import optuna
import pytest

from slipstream.core.errors import ConfigError
from slipstream.settings.config import resolve
from slipstream.studies.space.space import SearchSpace, published
from slipstream.studies.start import prepare

ROLLOUT_ROWS = "agent.rollout_rows"
optuna.logging.set_verbosity(optuna.logging.WARNING)

ENV = {
    "finrl_crypto": {"orders": "units"},
    "cappuccino": {
        "orders": "units",
        "reward": "mixed",
        "fee": 0.0025,
        "units": {"action_scale": "value", "buy_share": 0.99},
    },
}


def base_of(name, num_envs=16):
    env = {"name": "portfolio", "data": {"folder": "."}, **ENV[name]}
    return resolve({"env": env, "training": {"num_envs": num_envs}})


def at(config, path):
    value = config.as_mapping()
    for part in path.split("."):
        value = value[part]
    return value


def test_the_files_are_found_by_name():
    assert published() == ["cappuccino", "finrl_crypto"]


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
            value = one.value(trial.params[path])
            values_of[path].add(str(value))
            if path != ROLLOUT_ROWS:
                assert at(config, path) == value
        rows = config.agent.horizon * 16
        asked = trial.params[ROLLOUT_ROWS]
        assert rows % config.agent.minibatch == 0
        assert asked <= rows < asked + math.lcm(16, config.agent.minibatch)
        assert bool(notes) == (rows != asked)
        study.tell(trial, 0.0)
    single = {path for path, seen in values_of.items() if len(seen) == 1}
    fixed = {p for p, one in space.ranges.items() if len(set(map(str, one.extremes))) == 1}
    assert single == fixed


def test_eighteen_of_cappuccinos_21_pairs_do_not_divide():
    base = base_of("cappuccino")
    space = SearchSpace.from_mapping("cappuccino", base)
    rows = range(3072, 12288 + 1, 1536)
    assert space.ranges[ROLLOUT_ROWS].extremes == (rows[0], rows[-1])
    minibatches = space.ranges["agent.minibatch"].choices
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    params = space.ask(study).params
    rounded = [
        bool(space.overrides({**params, ROLLOUT_ROWS: r, "agent.minibatch": b}, base).notes)
        for r, b in itertools.product(rows, minibatches)
    ]
    assert (len(rounded), sum(rounded)) == (21, 18)


def test_the_published_values():
    finrl = SearchSpace.from_mapping("finrl_crypto", base_of("finrl_crypto")).ranges
    assert finrl["env.units.norm_cash"].value(-12) == 2**-12
    assert finrl["agent.learning_rate"].choices == (3e-2, 2.3e-2, 1.5e-2, 7.5e-3, 5e-6)
    cappuccino = SearchSpace.from_mapping("cappuccino", base_of("cappuccino")).ranges
    assert cappuccino["env.units.norm_tech"].extremes == (2**-18, 2**-12)
    assert cappuccino["agent.minibatch"].choices == (2048, 4096, 8192)


def test_unit_orders_settings_are_refused_with_target_weights():
    base = resolve(base_of("finrl_crypto"), {"env.orders": "weights"})
    with pytest.raises(ConfigError, match=r"env\.units.*read only with `env\.orders: units`"):
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
    with pytest.raises(ConfigError, match="no range stands beside its default"):
        SearchSpace.from_mapping({"env.action_map": "default"}, base)


def test_a_game_without_opponents_gets_those_that_it_suggests():
    said = []
    base, _, _ = prepare("hockey", {}, {}, said.append)
    opponents = base.env_settings["opponents"]
    assert opponents["weak"] == 1.0 and opponents["strong"] == 3.0
    assert len(said) == 1 and "second seat" in said[0]
    base, _, _ = prepare("hockey", {"env.opponents": {"weak": 1}}, {}, said.append)
    assert base.env_settings["opponents"]["strong"] == 0.0 and len(said) == 1
