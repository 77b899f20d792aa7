"""A policy takes along what it was trained under, and refuses data that differ by naming what."""

from __future__ import annotations

import json
import shutil

import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.kernels.spec import check_training_context, context_differences
from slipstream.markets.synthetic import SyntheticCrypto, SyntheticForex
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import pack, unpack
from slipstream.training.environments.factory import make_environment
from slipstream.training.runs import policies
from slipstream.training.runs.run import Run

HOUR = 3_600
FEATURES = ["log_return_1", "rsi_14", "range_rel"]
COINS = ("BTCUSD", "ETHUSD", "LTCUSD")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Prices by name: hourly, half-hourly, others of the same kind, coins."""
    root = tmp_path_factory.mktemp("prices")
    for name, seed, seconds in (("hours", 0, HOUR), ("shorter", 0, HOUR // 2), ("newer", 1, HOUR)):
        SyntheticForex().write(root / name, 3_000, seed, bar_seconds=seconds)
    shutil.copytree(root / "hours", root / "pounds")
    (root / "pounds/EURUSD.parquet").rename(root / "pounds/GBPUSD.parquet")
    SyntheticCrypto().write(root / "coins", 2_000, 0, symbols=COINS)
    SyntheticCrypto().write(root / "others", 2_000, 0, symbols=("ADAUSD", "DOTUSD", "XRPUSD"))
    return root


def forex(folders, name="hours", **settings):
    data = {"folder": str(folders / name), "spread_pips": 0.5}
    return make_environment("forex", {"data": data, "features": FEATURES, **settings})


def portfolio(folders, name="coins", **settings):
    data = {"folder": str(folders / name), **settings.pop("data", {})}
    return make_environment("portfolio", {"data": data, "features": FEATURES, **settings})


def trained_on(environment):
    """A policy that was written and read again."""
    tensors, manifest = pack(Policy([environment.spec], [0]), 0, environment.training_context)
    return unpack(tensors, json.loads(json.dumps(manifest)))


def test_what_a_forex_policy_takes_along(folders):
    environment = forex(folders, lookback=4, exposure=2.0)
    found = trained_on(environment).training_context
    hash_, settings = found.pop("data_sha256"), found.pop("settings")
    rsi = {"name": "rsi_14", "pattern": "rsi_{n}", "n": 14}
    (warm_up,) = {one.pop("warm_up_bars") for one in found["features"] if one["name"] == "rsi_14"}
    assert found.pop("features")[1] == rsi and 14 < warm_up <= found.pop("warm_up_bars")
    assert found == {
        "environment": "forex",
        "bar_seconds": HOUR,
        "symbols": ["EURUSD"],
        "symbols_at_once": 1,
        "lookback": 4,
        "fill": "next_open",
        "decide_every": 1,
    }
    assert hash_ == environment.provenance["market_sha256"]
    assert settings["exposure"] == 2.0 and not {"data", "split", "fill"} & set(settings)


def test_what_a_portfolio_takes_along(folders):
    found = trained_on(portfolio(folders, decide_every=6)).training_context
    assert found["symbols"] == list(COINS) and found["symbols_at_once"] == 3
    assert (found["decide_every"], found["fill"], found["bar_seconds"]) == (6, "next_open", 300)
    assert portfolio(folders, orders="units").training_context["fill"] == "next_close"


@pytest.mark.parametrize("name", ["cartpole", "gym:CartPole-v1"])
def test_games_have_no_market_keys(name):
    environment = make_environment(name, {})
    assert list(trained_on(environment).training_context) == ["environment"]
    policies.check_fit(trained_on(environment), environment)


@pytest.mark.parametrize(
    ("make", "before", "now", "words"),
    [
        (forex, {}, {"name": "shorter"}, "bar_seconds was 3600 and is 1800 here"),
        (forex, {}, {"features": FEATURES[:2]}, "features were .*range_rel and are .*rsi_14 here"),
        (forex, {}, {"features": FEATURES[::-1]}, "number 1 was log_return_1 and is range_rel"),
        (forex, {"lookback": 2}, {"lookback": 3}, "lookback was 2 and is 3 here"),
        (forex, {}, {"fill": "next_close"}, "fill was next_open and is next_close here"),
        (portfolio, {}, {"decide_every": 2}, "decide_every was 1 and is 2 here"),
        (portfolio, {}, {"orders": "units", "features": FEATURES}, "fill was next_open"),
        (
            portfolio,
            {},
            {"data": {"symbols": COINS[:2]}},
            "symbols_at_once was 3 and is 2 here",
        ),
    ],
)
def test_other_conditions_are_refused_by_name(folders, make, before, now, words):
    policy = trained_on(make(folders, **before))
    with pytest.raises(ConfigError, match=f"trained in another context.*{words}"):
        policies.check_fit(policy, make(folders, **now))


@pytest.mark.parametrize(
    ("make", "now"),
    [
        (forex, {"name": "newer"}),
        (forex, {"name": "pounds"}),
        (
            forex,
            {
                "exposure": 2.0,
                "slippage_pips": 1.0,
                "split": {"train": 0.5, "validation": 0.3, "test": 0.2},
            },
        ),
        (portfolio, {"name": "others"}),
        (portfolio, {"fee": 0.01}),
    ],
)
def test_what_may_differ_is_allowed(folders, make, now):
    policies.check_fit(trained_on(make(folders)), make(folders, **now))


def test_a_policy_that_knows_no_conditions_is_measured_by_its_shape(folders):
    policy = trained_on(forex(folders))
    policy.training_context = {}
    policies.check_fit(policy, forex(folders, fill="next_close"))
    with pytest.raises(ConfigError, match="observations of shape"):
        policies.check_fit(policy, forex(folders, lookback=2))


def test_actions_of_another_kind_are_refused(folders):
    policy = trained_on(forex(folders, action="continuous"))
    policy.observation_shape = forex(folders).spec.observation_shape
    with pytest.raises(ConfigError, match=r"actions .*box.*discrete"):
        policies.check_fit(policy, forex(folders))


def test_parameters_and_unknown_keys():
    feature = {"name": "rsi_14", "n": 14, "warm_up_bars": 200}
    trained = {"features": [feature], "own": 1}
    check_training_context(trained, {"features": [dict(feature)], "more": 2})
    with pytest.raises(ConfigError, match=r"feature rsi_14 was .*200.* and is .*300"):
        check_training_context(trained, {"features": [feature | {"warm_up_bars": 300}]})
    with pytest.raises(ConfigError, match="own was 1 and is 2 here"):
        check_training_context(trained, {"own": 2})


def test_what_is_told():
    trained = {"symbols": ["A", "B"], "symbols_at_once": 2, "data_sha256": "x"}
    here = {"symbols": ["B", "A"], "data_sha256": "y"}
    (told,) = context_differences(trained, here)
    assert "trained on A, B and acts on B, A here: it treats each symbol" in told
    assert context_differences(trained, trained, same_data=True) == []
    assert "have changed" in context_differences(trained, trained | {"data_sha256": "y"}, True)[0]
    assert context_differences({}, here, same_data=True) == []  # format 1 knows nothing


def test_a_run_on_other_prices(folders, tmp_path):
    env = {"name": "forex", "features": FEATURES, "max_steps": 50}
    env["data"] = {"folder": str(shutil.copytree(folders / "hours", tmp_path / "own"))}
    agent = {"n_steps": 16, "batch_size": 32, "n_epochs": 1, "net_arch": [8]}
    run = slipstream.train(
        {"env": env, "agent": agent},
        num_envs=4,
        total_timesteps=128,
        out=tmp_path / "run",
        report=False,
        log=lambda _: None,
    )
    said: list[str] = []
    opened = Run.open(run.path, said.append)
    with pytest.raises(ConfigError, match="bar_seconds was 3600 and is 1800 here"):
        slipstream.evaluate(opened, data=folders / "shorter")
    slipstream.evaluate(opened)
    slipstream.evaluate(opened, data=folders / "newer")
    assert said == []
    slipstream.evaluate(opened, data=folders / "pounds", symbols=["GBPUSD"])
    assert said == ["The policy was trained on EURUSD and acts on GBPUSD here."]
    shutil.copy(folders / "newer/EURUSD.parquet", tmp_path / "own")
    slipstream.evaluate(opened)
    assert said[1:] == [
        "The prices have changed since the policy was trained (their hash differs)."
    ]
    assert slipstream.load_policy(run).training_context["symbols"] == ["EURUSD"]
