"""Cappuccino's classes: the steps of `portfolio`, their words, arrays that nobody writes again."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest
from portfolio_world import random_panel
from unit_orders_oracle import NumpyUnitOrders

from slipstream import make_vec
from slipstream.compat.cappuccino import (
    CryptoEnvAlpaca,
    VectorizedCryptoEnvAlpaca,
    VectorizedCryptoEnvAlpacaOptimized,
    import_finrl,
    names_of,
)
from slipstream.core.errors import ConfigError, DataError
from slipstream.studies.config import space_settings

torch = pytest.importorskip("torch")

ROWS, COINS = 160, ("BTC", "ETH", "LTC")
LIMITS = np.array([0.0001, 0.001, 0.01])
PARAMS = {
    "lookback": 2,
    **{"norm_cash": 2**-12, "norm_stocks": 2**-8, "norm_tech": 2**-15},
    **{"norm_reward": 2**-10, "norm_action": 10_000},
}
VECTORIZED = (VectorizedCryptoEnvAlpaca, VectorizedCryptoEnvAlpacaOptimized)


def arrays(rows=ROWS, assets=3):
    """Closes of very different sizes, and two columns for each asset."""
    price = random_panel(rows, assets, seed=4).close
    tech = np.random.default_rng(5).normal(size=(rows, 2 * assets)).astype(np.float32)
    return {"price_array": price, "tech_array": tech.astype(np.float64), "if_train": True}


def made(kind=CryptoEnvAlpaca, config=None, params=PARAMS, **more):
    more = {"tickers": COINS, "backend": "serial", **more}
    return kind(arrays() if config is None else config, params, **more)


def actions_of(steps, copies=1, assets=3):
    """Mostly small, so that some orders stay below the smallest one."""
    draw = np.random.default_rng(6)
    return (draw.uniform(-1, 1, (steps, copies, assets)) ** 3).astype(np.float32)


@pytest.mark.parametrize("rules", ["cappuccino", "finrl_crypto"])
def test_steps_are_portfolios_under_their_settings(rules, tmp_path):
    """To the bit: the same arrays as files, stepped by `portfolio` with the settings of a space."""
    config = arrays()
    for name in ("price_array", "tech_array"):
        (tmp_path / name).write_bytes(pickle.dumps(config[name]))
    stamps = np.datetime64("2022-01-01") + np.timedelta64(300, "s") * np.arange(ROWS)
    (tmp_path / "time_array").write_bytes(pickle.dumps(stamps))
    import_finrl(tmp_path, tmp_path / "files", symbols=COINS)
    units = {
        name: PARAMS[name] for name in PARAMS if name.startswith("norm_") and "rew" not in name
    }
    units |= {"start": "first", "anchor": "first_row", "ending": "original"}
    settings = {"orders": "units", "norm_reward": PARAMS["norm_reward"], "lookback": 2}
    for path, value in space_settings(rules).items():
        _, *inner = path.split(".")
        (units if inner[0] == "units" else settings)[inner[-1]] = value
    settings |= {"units": units, "features": ["tech_0", "tech_1"]}
    settings["time_decay_floor"] = float(rules != "cappuccino")
    data = {"folder": str(tmp_path / "files"), "symbols": list(COINS)}
    theirs = make_vec("portfolio", 1, backend="serial", data=data, **settings)
    train = round(0.6 * (ROWS - 1)) + 1  # rows to decide at, and the one before the first
    own = made(config={k: v[:train] for k, v in config.items() if k != "if_train"}, rules=rules)
    assert np.array_equal(own.reset(), theirs.reset(seed=0)[0])
    for t, action in enumerate(actions_of(train - 4)[:, 0]):
        state, reward, done, _ = own.step(action)
        obs, rewards, terminated, _ = theirs.step(action[None])
        assert reward == rewards[0] and done == terminated[0] == (t == train - 5)
        if not done:
            assert np.array_equal(state, obs[0])
            assert own.total_asset == theirs.read(("equity",))["equity"][0]
    assert own.total_fees_paid > 0.0


def test_the_finrl_rules_are_the_originals():
    """Beside a second statement of the original's rules, in NumPy."""
    config = arrays()
    env = made(config=config, rules="finrl_crypto")
    twin = NumpyUnitOrders(config["price_array"], config["tech_array"], LIMITS, lookback=2)
    assert env.reset() == pytest.approx(twin.state(), rel=1e-6)
    assert (env.initial_cash, env.max_step) == (twin.initial_capital, twin.last)
    for action in actions_of(ROWS - 4)[:, 0]:
        state, reward, done, info = env.step(action)
        expected, rewarded, over = twin.step(action.astype(np.float64))
        assert state == pytest.approx(expected, rel=1e-6)
        assert reward == pytest.approx(rewarded, rel=1e-5, abs=1e-9) and done == over
        assert env.cash == pytest.approx(twin.cash) and env.time == twin.time
        assert env.total_asset_eqw == pytest.approx(twin.total_equal_weight)
    assert done and info["total_fees_paid"] == env.total_fees_paid > 0.0
    assert info["episode_return_gross"] > info["episode_return_net"]
    assert info["fee_impact_pct"] == pytest.approx(100 * env.total_fees_paid / 1e6)


@pytest.mark.parametrize("kind", VECTORIZED)
def test_copies_are_single_ones_in_arrays_and_in_tensors(kind):
    """`any` of the ends is one answer; nothing that was handed out is written again."""
    assert "n_envs" in inspect.signature(kind.__init__).parameters
    assert "n_envs" not in inspect.signature(CryptoEnvAlpaca.__init__).parameters
    config = arrays()
    before, params = copy.deepcopy(config), dict(PARAMS)
    env, tensors = made(kind, config, params, n_envs=3), made(kind, config, params, n_envs=3)
    alone = [made(config=config) for _ in range(3)]
    first = env.reset()
    assert isinstance(first, torch.Tensor) and first.shape == (3, env.state_dim)
    tensors.reset()
    kept, begun = [], np.stack([one.reset() for one in alone])
    assert np.array_equal(first.numpy(), begun)
    for rows in actions_of(ROWS - 4, 3):
        given = rows.copy()
        state, reward, done, infos = env.step(given)
        other = tensors.step(torch.from_numpy(given))
        assert np.array_equal(given, rows)  # the original scaled the caller's array
        assert all(isinstance(one, np.ndarray) for one in (state, reward, done))
        assert all(isinstance(one, torch.Tensor) for one in other[:3])
        for array, tensor in zip((state, reward, done), other[:3], strict=True):
            assert np.array_equal(array, tensor.numpy())
        assert done.dtype == np.bool_ and other[2].shape == (3,)
        assert any(other[2]) == bool(other[2].any()) == bool(done.any())
        steps = [one.step(row) for one, row in zip(alone, rows, strict=True)]
        assert reward.tolist() == [np.float32(step[1]) for step in steps]
        kept += [(one, one.copy()) for one in (state, reward, done)]
        kept += [(one, one.clone()) for one in other[:2]]
    assert done.all() and np.array_equal(state, begun)  # the next episode's first states
    finals = np.stack([info["final_state"] for info in infos])
    assert np.array_equal(finals, np.stack([step[0] for step in steps]))
    assert all((now == then).all() for now, then in kept)
    assert params == PARAMS and all(np.array_equal(config[k], before[k]) for k in before)
    assert env.stocks.shape == (3, 3) and (env.cash == 1e6).all()
    assert env.batch.env.loaded.data.prices.shape[0] == ROWS  # of all copies


def test_a_lone_vectorized_copy_answers_as_theirs():
    env = made(VectorizedCryptoEnvAlpaca, n_envs=1)
    state = env.reset()
    assert isinstance(state, np.ndarray) and state.shape == (env.state_dim,)
    for action in actions_of(ROWS - 4)[:, 0]:
        state, reward, done, info = env.step(action)
    assert done is True and isinstance(reward, float) and info["episode_return_net"] > 0
    assert env.step(action)[2] is False  # begun again by itself


def test_their_backtest_loop_runs():
    """Read an environment in the order of the original `DRL_prediction`."""
    env = made(if_log=True, use_sentiment=False, sentiment_service=None, data_interval="1h")
    env.env_num = 1
    assets = [env.initial_total_asset]
    assert np.asarray(env.reset(), np.float32).shape == (env.state_dim,)
    for action in actions_of(env.max_step)[:, 0]:
        _, _, done, _ = env.step(action)
        held = env.cash + (env.price_array[env.time] * env.stocks).sum()
        assets.append(held)
        assert held == pytest.approx(env.total_asset)
        if done:
            break
    assert len(assets) == ROWS - 3 and (env.if_discrete, env.target_return) == (False, 10**8)
    env.close()


@pytest.mark.peers
def test_elegantrl_trains_on_it(tmp_path):
    pytest.importorskip("elegantrl")
    from elegantrl.agents import AgentPPO
    from elegantrl.train.config import Config, build_env

    env_args = {
        **{"env_name": "crypto", "num_envs": 2, "max_step": ROWS, "state_dim": 16},
        **{"action_dim": 3, "if_discrete": False, "n_envs": 2},
        **{"config": arrays(), "env_params": PARAMS, "tickers": COINS},
    }
    args = Config(AgentPPO, VectorizedCryptoEnvAlpaca, env_args)
    env = build_env(args.env_class, args.env_args)
    agent = AgentPPO([8], args.state_dim, args.action_dim, gpu_id=-1, args=args)
    agent.last_state = env.reset()
    items = agent.explore_env(env, 8)
    assert items[0].shape == (8, 2, 16) and torch.isfinite(items[3]).all()


def test_random_starts_are_an_argument():
    env = made(VectorizedCryptoEnvAlpaca, n_envs=4, units={"start": "random"}, max_steps=20)
    env.reset()
    assert len(set(env.time.tolist())) > 1


def bad(**change):
    return {**PARAMS, **change}


@pytest.mark.parametrize(
    ("params", "more", "match"),
    [
        (bad(trailing_stop_pct=0.1), {}, r"trailing_stop_pct.*argument trailing_stop=0\.1"),
        (bad(max_drawdown_penalty=0.1), {}, r"no effect there.*argument drawdown_penalty=0\.1"),
        (bad(volatility_penalty=0.1), {}, r"no effect there.*argument volatility_penalty=0\.1"),
        (
            bad(min_cash_reserve=0.1),
            {"cash_reserve": 0.2},
            r"reserve: 0\.1.*cash_reserve: 0\.2.*Remove one",
        ),
        (PARAMS, {"gamma": 0.9, "units": {"gamma": 0.8}}, "gamma.*units.gamma.*are the same"),
        (PARAMS, {"initial_capital": 1e5, "initial_equity": 1e6}, "initial_capital.*are the same"),
        (PARAMS, {"buy_cost_pct": 0.001, "sell_cost_pct": 0.002}, "one fee for both sides"),
        (PARAMS, {"use_sentiment": True}, "use_sentiment.*tech_array"),
        (PARAMS, {"exchange_name": "binance"}, "exchange_name"),
        (PARAMS, {"rules": "other"}, "cappuccino or finrl_crypto"),
        (bad(norm_axion=1), {}, "norm_axion.*norm_action"),
        (PARAMS, {"initial_capital": 500}, r"norm_action.*minimum order.*Lower it"),
        (
            PARAMS,
            {"tickers": ("BTC", "ETH")},
            "3 columns, but there are 2 names.*a symbol is missing",
        ),
    ],
)
def test_what_means_something_else_or_nothing_is_said(params, more, match):
    with pytest.raises((ConfigError, DataError), match=match):
        made(params=params, **more)


def test_arrays_that_cannot_be_stepped_are_said():
    config = arrays()
    holed = config["price_array"].copy()
    holed[7, 1] = 0.0
    for change, match in (
        ({"price_array": holed}, "row 7, column 1.*import-finrl"),
        ({"tech_array": config["tech_array"][:, :5]}, "equally many columns.*same symbols"),
        ({"price_array": config["price_array"][:4], "tech_array": np.ones((4, 6))}, "at least 5"),
        ({"price_array": config["price_array"][0]}, "bars, columns"),
        ({"price_array": [["a", "b", "c"]] * 9}, "array of numbers `price_array`"),
    ):
        with pytest.raises(DataError, match=match):
            made(config={**config, **change})
    with pytest.raises(DataError, match="tech_array"):
        made(config={"price_array": config["price_array"]})
    env = made()
    env.reset()
    with pytest.raises(ConfigError, match="must be finite"):
        env.step(np.array([0.0, np.nan, 0.0]))
    with pytest.raises(ConfigError, match="of 1 environments got"):
        env.step(np.zeros(2, np.float32))


def test_columns_without_names_are_said_to_be_in_the_originals_order(capsys):
    names = names_of(None, 3)
    said = capsys.readouterr().err
    assert f"pass tickers={list(names)}" in said and "Assuming the original order" in said
    assert names_of(names, 3) == names and capsys.readouterr().err == ""
    with pytest.raises(DataError, match="has 12 columns"):
        names_of(None, 12)
    assert capsys.readouterr().err == ""
