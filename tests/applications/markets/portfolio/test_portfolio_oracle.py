"""Unit orders against a second statement of FinRL_Crypto's rules, step for step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from portfolio_world import COINS, World, random_panel
from unit_orders_oracle import NumpyUnitOrders

from slipstream.markets.portfolio.portfolio_loader import ALPACA_LIMITS

ORIGINAL = {
    "orders": "units",
    "units": {"start": "first", "anchor": "first_row", "ending": "original"},
}


def limits(assets: int) -> np.ndarray:
    return np.array([ALPACA_LIMITS[name] for name in COINS[:assets]])


def pair(
    rows: int, assets: int, seed: int, lookback: int = 1, **oracle: float
) -> tuple[World, NumpyUnitOrders]:
    """The kernel and the oracle on the same market, with the same settings."""
    units = {name: oracle[name] for name in oracle if name in UNIT_KEYS}
    settings: dict[str, Any] = {
        "orders": "units",
        "units": {**ORIGINAL["units"], **units},
        "lookback": lookback,
    }
    for name, key in (("buy_cost", "fee"), ("initial_capital", "initial_equity")):
        if name in oracle:
            settings[key] = oracle[name]
    if "gamma" in oracle:
        settings["units"]["gamma"] = oracle.pop("gamma")
        oracle["gamma"] = settings["units"]["gamma"]
    if "norm_reward" in oracle:
        settings["norm_reward"] = oracle["norm_reward"]
    if "buy_cost" in oracle:
        oracle["sell_cost"] = oracle["buy_cost"]
    world = World(random_panel(rows, assets, seed), split="train", seed=seed, **settings)
    features = world.d.features[:, : 2 * assets].astype(np.float64)
    prices = world.d.prices[:, :assets]
    return world, NumpyUnitOrders(prices, features, limits(assets), lookback, **oracle)


UNIT_KEYS = (
    *("norm_cash", "norm_stocks", "norm_tech", "norm_action", "buy_share"),
    *("forced_sale_bars", "forced_sale_share", "min_factor"),
)
CCXT = {"buy_cost": 0.001, "buy_share": 0.95, "forced_sale_bars": 24}
OTHER = {
    "initial_capital": 5e4,
    "gamma": 0.9,
    "norm_cash": 0.01,
    "norm_stocks": 0.3,
    "norm_tech": 0.7,
    "norm_action": 2e4,
    "norm_reward": 0.01,
    "min_factor": 1.5,
    "forced_sale_share": 0.5,
}


@pytest.mark.parametrize(
    ("assets", "lookback", "oracle"),
    [(7, 1, {}), (1, 1, {}), (4, 3, {}), (7, 1, CCXT), (3, 2, OTHER)],
    ids=["default", "one_asset", "lookback", "ccxt", "other_constants"],
)
def test_the_first_episode_is_the_originals(assets: int, lookback: int, oracle: dict) -> None:
    """State, reward, cash, coins, cooldowns and the discounted return at the end, rel 1e-6."""
    world, twin = pair(400, assets, 3, lookback, **oracle)
    draw = np.random.default_rng(1)
    assert world.observe() == pytest.approx(twin.state(), rel=1e-6)
    ended, steps, still = False, 0, np.zeros(assets)
    while not ended:
        if draw.random() < 0.3:  # holds for a while, so that forced sales happen
            still = np.where(draw.random(assets) < 0.7, 0.0, draw.uniform(-1, 1, assets))
        action = still.astype(np.float32)
        state, expected, done = twin.step(action.astype(np.float64))
        reward, terminated, truncated = world.step(action)
        ended = terminated or truncated
        assert reward == pytest.approx(expected, rel=1e-6, abs=1e-9)
        assert world.observe() == pytest.approx(state, rel=1e-6)
        assert world.s.cash == pytest.approx(twin.cash, rel=1e-9)
        assert list(world.s.units) == pytest.approx(list(twin.stocks), rel=1e-9)
        assert list(world.s.held) == list(twin.cooldown)
        assert ended == done
        steps += 1
        if steps == 200:
            still = np.zeros(assets)
    assert terminated and steps == 400 - 2 * lookback
    assert world.s.discounted == pytest.approx(twin.gamma_return, rel=1e-6)
    assert world.s.fills > 50


def test_forced_sales_happen_in_the_comparison() -> None:
    world, twin = pair(200, 2, 5)
    world.step([1.0, 1.0])
    twin.step(np.ones(2))
    first = world.s.units[0]
    for _ in range(48):
        world.step([0.0, 0.0])
        twin.step(np.zeros(2))
    assert world.s.units[0] == pytest.approx(0.95 * first)
    assert list(world.s.units) == pytest.approx(list(twin.stocks))


def test_a_second_episode_begins_like_the_first() -> None:
    """FC-2: the original keeps benchmark and discounted return of the episode before."""
    first, _ = pair(60, 2, 8)
    again, _ = pair(60, 2, 8)
    rewards = [first.step([0.5, -0.5])[0] for _ in range(58)]
    assert again.step([0.5, -0.5])[0] == rewards[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [("anchor", "start"), ("ending", "last"), ("final_reward", "plain")],
)
def test_each_switch_is_one_deviation(key: str, value: str) -> None:
    panel = random_panel(80, 2, 2)
    base = dict(ORIGINAL["units"])
    runs = []
    for units in (base, {**base, key: value}):
        world = World(panel, split="train", orders="units", units=units, lookback=3)
        rewards, flags = [], (0.0, False, False)
        while not (flags[1] or flags[2]):
            flags = world.step([0.4, 0.2])
            rewards.append(flags[0])
        runs.append((rewards, flags[1:]))
    (original, ends), (other, other_ends) = runs
    if key == "anchor":
        assert original[:-1] != other[:-1] and len(original) == len(other)
    elif key == "ending":
        assert len(other) == len(original) + 3
        assert other[: len(original) - 1] == original[:-1]
    else:
        assert original[:-1] == other[:-1] and original[-1] != other[-1]
        assert ends == (True, False) and other_ends == (False, True)
