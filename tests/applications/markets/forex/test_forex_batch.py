"""The forex kernel in the batch loop: backends agree, every setting matters, episodes are apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forex_folder import write_symbol

from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.vector_env import StepBuffers, member_indices
from slipstream.markets.forex import kernel as forex

KERNEL = load_kernel("forex")
ALL_RULES: dict[str, Any] = {
    "lookback": 2,
    "slippage_pips": 0.2,
    "commission_per_million": 30.0,
    "exposure": 20.0,
    "max_exposure": 20.0,
    "stop_loss": 12.0,
    "take_profit": 9.0,
    "cooldown": 1,
    "max_daily_drawdown": 0.05,
    "flatten_at": "16:00",
    "flat_on_friday": "12:00",
    "swap_long": -3.0,
    "swap_short": 1.0,
    "turnover_penalty": 0.001,
    "holding_penalty": 1e-5,
    "drawdown_penalty": 1e-3,
    "max_steps": 150,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prices")
    for seed, (symbol, price) in enumerate((("EURUSD", 1.1), ("USDJPY", 150.0), ("EURJPY", 165.0))):
        write_symbol(path, symbol, bars=2500, seed=seed, price=price)
    return path


class Batch:
    """Some copies stepped with a fixed stream of random actions; keeps all that came out."""

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any],
        split: str = "train",
        backend: str = "compiled",
    ) -> None:
        data = {"folder": str(folder), "spread_pips": 0.8, **settings.get("data", {})}
        config = KERNEL.configure({**settings, "data": data})
        self.loaded = KERNEL.load(config)
        seeds, indices = member_indices([7], 6)
        self.env = KernelVectorEnv(
            KERNEL, self.loaded, seeds, indices, split=split, backend=backend
        )

    def run(self, steps: int, seed: int = 0) -> dict[str, np.ndarray]:
        e, draw = self.env.num_envs, np.random.default_rng(seed)
        obs = np.zeros((steps + 1, e, *self.env.spec.observation_shape), np.float32)
        reward = np.zeros((steps, e), np.float32)
        ends = np.zeros((2, steps, e), np.bool_)
        valid = np.ones(e, np.bool_)
        self.env.reset(obs[0])
        actions = np.zeros((e, 1), self.env.spec.action_dtype)
        for t in range(steps):
            fresh = draw.uniform(-1.0, 1.0, (e, 1))
            change = draw.random((e, 1)) < 0.3
            wish = np.floor(1.5 * fresh + 1.5) if actions.dtype == np.int64 else fresh
            actions = np.where(change, wish, actions).astype(actions.dtype)
            self.env.step(
                actions, StepBuffers(obs[t + 1], reward[t], ends[0, t], ends[1, t], valid), t
            )
        episodes = self.env.drain_episodes()
        metrics = np.array(list(episodes.metrics.values()))
        return {
            "obs": obs,
            "reward": reward,
            "ends": ends,
            "metrics": metrics,
            "ret": episodes.returns,
        }


def same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("action", ["discrete", "continuous"])
@pytest.mark.parametrize(
    ("fill", "reward"),
    [
        ("next_open", "differential_sharpe"),
        ("next_close", "log_return"),
        ("compat_same_close", "differential_sharpe"),
        pytest.param("next_open", "log_return", marks=pytest.mark.slow),
        pytest.param("next_close", "differential_sharpe", marks=pytest.mark.slow),
        pytest.param("compat_same_close", "log_return", marks=pytest.mark.slow),
    ],
)
def test_interpreted_and_compiled_agree_bit_for_bit(
    folder: Path, action: str, fill: str, reward: str
) -> None:
    settings = {**ALL_RULES, "action": action, "fill": fill, "reward": reward}
    compiled = Batch(folder, settings).run(150)
    serial = Batch(folder, settings, backend="serial").run(150)
    assert same(compiled, serial)
    assert np.isfinite(compiled["obs"]).all() and compiled["ends"].any()


BASE: dict[str, Any] = {"stop_loss": 15.0, "take_profit": 15.0, "max_steps": 200}
# Key -> (what else must be set for it to matter, two values that must differ).
CHANGES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "data": ({}, {"spread_pips": 0.8}, {"spread_pips": 1.6}),
    "features": ({}, ["log_return_1"], ["signal"]),
    "split": (
        {},
        {"train": 0.5, "validation": 0.25, "test": 0.25},
        {"train": 0.4, "validation": 0.3, "test": 0.3},
    ),
    "lookback": ({}, 1, 2),
    "action": ({}, "discrete", "continuous"),
    "exposure": ({}, 1.0, 2.0),
    "max_exposure": ({"action": "continuous"}, 1.0, 2.0),
    "rebalance_threshold": ({"action": "continuous"}, 0.1, 0.4),
    "unit_step": ({}, 1.0, 1000.0),
    "initial_equity": ({}, 1e5, 1.5e5),
    "account_currency": ({"data": {"symbols": ["EURJPY"]}}, "USD", "JPY"),
    "leverage": ({"exposure": 10.0, "data": {"spread_pips": 5.0}}, 10.0, 30.0),
    "fill": ({}, "next_open", "next_close"),
    "slippage_pips": ({}, 0.0, 0.3),
    "commission_per_million": ({}, 0.0, 20.0),
    "stop_loss": ({}, 15.0, None),
    "take_profit": ({}, 15.0, 10.0),
    "stop_unit": ({}, "pips", "atr"),
    "intrabar_fill": ({"stop_loss": 3.0, "take_profit": 3.0}, "adverse_first", "favourable_first"),
    "stop_cooldown": ({}, 1, 4),
    "cooldown": ({}, 0, 3),
    "max_daily_drawdown": ({"exposure": 20.0}, None, 0.01),
    "on_breach": ({"exposure": 20.0, "max_daily_drawdown": 0.01}, "block", "terminate"),
    "flatten_at": ({}, None, "12:00"),
    "flat_on_friday": ({}, None, "01:00"),
    "swap_long": ({"swap_short": -1.0}, 0.0, -5.0),
    "swap_short": ({}, 0.0, -5.0),
    "reward": ({}, "log_return", "pnl"),
    "return_variance": ({"reward": "differential_sharpe"}, 1e-8, 1e-6),
    "turnover_penalty": ({}, 0.0, 0.01),
    "holding_penalty": ({}, 0.0, 0.01),
    "drawdown_penalty": ({}, 0.0, 0.01),
    "max_steps": ({}, 200, 100),
    "symbol_assignment": ({}, "round_robin", "random"),
}


def test_the_list_of_settings_is_complete() -> None:
    assert set(CHANGES) == set(forex.Config.model_fields)


@pytest.mark.parametrize("key", sorted(CHANGES))
def test_every_setting_matters(folder: Path, key: str) -> None:
    others, one, other = CHANGES[key]
    runs = []
    for value in (one, other):
        settings = {**BASE, **others, key: value}
        if key != "data":
            settings["data"] = others.get("data", {})
        runs.append(Batch(folder, settings).run(600))
    if runs[0]["obs"].shape == runs[1]["obs"].shape:
        assert not same(*runs)


def test_random_starts_lie_in_the_training_windows_of_all_symbols(folder: Path) -> None:
    batch = Batch(folder, {"symbol_assignment": "random"})
    bars, symbols = [], []
    for _ in range(60):
        batch.run(0)
        state = batch.env.read(("bar", "segment"))
        bars.append(state["bar"])
        symbols.append(state["segment"])
        batch.env.episode_state["episode"] += np.uint64(1)
    segments = batch.loaded.data.segments
    rows, which = np.concatenate(bars), np.concatenate(symbols)
    assert np.all(rows >= segments[which, 0]) and np.all(rows + 200 < segments[which, 1])
    assert np.bincount(which, minlength=3).min() > 60
    spread = [np.ptp(rows[which == k]) / np.ptp(segments[k]) for k in range(3)]
    assert min(spread) > 0.6


def test_round_robin_gives_every_symbol_its_copies(folder: Path) -> None:
    batch = Batch(folder, {})
    batch.run(0)
    assert batch.env.read(("segment",))["segment"].tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("split", ["train_window", "validation", "test"])
def test_evaluation_is_one_pass_from_the_windows_first_bar_to_its_last(
    folder: Path, split: str
) -> None:
    batch = Batch(folder, {}, split=split)
    p, d = batch.loaded.params[split][0], batch.loaded.data
    assert forex.spec(p, d).max_episode_steps is None and not forex.spec(p, d).stagger_episodes
    low, high = d.segments[p.first_segment]
    obs = np.zeros((6, *batch.env.spec.observation_shape), np.float32)
    batch.env.reset(obs)
    assert batch.env.read(("bar",))["bar"][0] == low
    batch.run(int(high - low) - 1)
    length = batch.env.get_state()["episode_state.length"]
    assert length[0] == 0  # the pass has just ended and the copy was reset


def test_evaluation_ends_flat_and_paid(folder: Path) -> None:
    batch = Batch(folder, {"data": {"symbols": ["EURUSD"]}}, split="test")
    p, d = batch.loaded.params["test"][0], batch.loaded.data
    low, high = d.segments[p.first_segment]
    e, steps = batch.env.num_envs, int(high - low) - 1
    obs = np.zeros((e, *batch.env.spec.observation_shape), np.float32)
    batch.env.reset(obs)
    flags = [np.zeros(e, np.bool_) for _ in range(3)]
    out = StepBuffers(obs, np.zeros(e, np.float32), flags[0], flags[1], flags[2])
    long = np.full((e, 1), 2)
    for _ in range(steps):
        batch.env.step(long, out)
    assert out.truncated.all()
    episodes = batch.env.drain_episodes()
    assert np.all(episodes.length == steps)
    assert np.all(episodes.metrics["trades"] == 1) and np.all(episodes.metrics["fills"] == 2)
    growth = np.exp(episodes.returns) - 1.0
    assert growth == pytest.approx(episodes.metrics["total_return"], rel=1e-9)


def test_an_episode_is_the_same_whatever_came_before(folder: Path) -> None:
    batch = Batch(folder, {**ALL_RULES, "reward": "differential_sharpe"})
    e = batch.env.num_envs
    obs = np.zeros((e, *batch.env.spec.observation_shape), np.float32)
    out = StepBuffers(obs, np.zeros(e, np.float32), *(np.zeros(e, np.bool_) for _ in range(3)))
    trails = []
    for warm in (0, 77):
        batch.run(warm, seed=warm)
        batch.env.begin(np.arange(e), np.arange(e), 5, obs)
        trail = [obs.copy()]
        for t in range(60):
            batch.env.step(np.full((e, 1), t % 3), out)
            trail += [obs.copy(), out.reward.copy()]
        trails.append(trail)
    assert all(np.array_equal(a, b) for a, b in zip(*trails, strict=True))


def test_costs_and_profits_of_an_episode_add_up(folder: Path) -> None:
    batch = Batch(folder, {"max_steps": 120, "slippage_pips": 0.5, "reward": "pnl"})
    batch.env.episode_state["limit"] = 120
    result = batch.run(120)
    env = batch.env
    assert len(result["ret"]) >= 1
    names = [metric.name for metric in env.spec.metrics]
    for column in result["metrics"].T:
        metrics = dict(zip(names, column, strict=True))
        kinds = [metrics[f"cost_{kind}"] for kind in ("spread", "slippage", "commission", "swap")]
        assert metrics["costs"] == pytest.approx(sum(kinds))
        net = metrics["gross_profit"] - metrics["gross_loss"]
        assert net == pytest.approx(1e5 * metrics["total_return"], abs=2000.0)


def test_each_symbol_reads_its_own_file(tmp_path: Path) -> None:
    seen = []
    for seed in (1, 9):
        write_symbol(tmp_path, "EURUSD", bars=2500, seed=4)
        write_symbol(tmp_path, "GBPUSD", bars=2500, seed=seed, price=1.3)
        seen.append(Batch(tmp_path, {}).run(20)["obs"])
    assert np.array_equal(seen[0][:, 0::2, :6], seen[1][:, 0::2, :6])  # EURUSD: the same prices
    assert not np.array_equal(seen[0][:, 1::2, :6], seen[1][:, 1::2, :6])
