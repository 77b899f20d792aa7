"""Run configs of markets."""

from __future__ import annotations

import pytest

from slipstream.markets.synthetic import SyntheticForex
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import resolve
from slipstream.training.settings.sizing import choose_num_envs, resolve_num_envs


def test_changing_a_config_leaves_it_as_it_was():
    """Also below a section: trials of a study are all made from one config."""
    base = resolve({"env": {"name": "portfolio", "data": {"folder": "."}, "orders": "units"}})
    before = base.hash
    changed = resolve(base, {"env.units.norm_action": 5.0, "env.data.symbols": ["BTCUSD"]})
    assert changed.env_settings["units"]["norm_action"] == 5.0
    assert base.hash == before


def test_relative_data_folders_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = {"env": {"name": "forex", "data": {"folder": "prices"}}}
    assert resolve(values).env_settings["data"]["folder"] == str(tmp_path / "prices")
    values["env"]["data"]["folder"] = "package:some/data"
    assert resolve(values).env_settings["data"]["folder"] == "package:some/data"


@pytest.mark.parametrize(("symbols", "copies"), [(1, 1), (3, 4)])
def test_every_symbol_is_traded_by_an_agent_that_needs_one_copy(tmp_path, symbols, copies):
    for k in range(symbols):
        SyntheticForex().write(tmp_path, 3000, k, symbols=(f"{['AUD', 'EUR', 'GBP'][k]}USD",))
    env = {"name": "forex", "data": {"folder": str(tmp_path), "spread_pips": 0.0}}
    values = {"env": env, "training": {"num_envs": "auto"}}
    config = resolve({**values, "agent": {"name": "dqn"}})
    environment = resolve_environment(config.env_name, config.env_settings)
    assert choose_num_envs(config, environment).num_envs == copies
    _, said = resolve_num_envs(resolve(config, {"training.num_envs": 1}), environment)
    assert (said is None) == (symbols == 1)
    if said is not None:
        assert "1 of 3 training records" in said and "at least 3" in said
    sized, said = resolve_num_envs(resolve(values, {"training.total_timesteps": 100}), environment)
    assert sized.training.num_envs == 1 and said.startswith("num_envs: auto chose 1 environment")
    assert ("1 of 3 training records" in said) == (symbols == 3)


@pytest.mark.parametrize("name", ["dqn", "sac", "ppo"])
@pytest.mark.parametrize("env", ["forex", "portfolio"])
def test_the_agent_of_a_whole_config_is_switched(env, name, tmp_path):
    """`init` writes PPO's settings: another agent uses its own, and a message reports it."""
    settings = {"data": {"folder": str(tmp_path)}}
    written = resolve({"env": {"name": env, **settings}, "training": {"members": 3}}).as_mapping()
    changes = {"agent.name": name, "agent.gamma": 0.5}
    switched = resolve(written, changes)
    plain = resolve({"env": written["env"], "training": {"members": 3}}, changes)
    assert switched == plain and switched.agent.gamma == 0.5
    if name == "ppo":
        assert switched.note is None
    else:
        assert f"`agent.name` is {name} now" in switched.note
        assert "agent.clip_range=0.2" in switched.note
    assert ("training.num_envs=12" in (switched.note or "")) == (
        env == "portfolio" and name != "ppo"
    )
