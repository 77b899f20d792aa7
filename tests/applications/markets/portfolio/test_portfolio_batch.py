"""The portfolio kernel with files: backends agree, every setting matters, folds, other settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from portfolio_world import KERNEL

from slipstream.core.errors import ConfigError, DataError
from slipstream.core.timeline import FoldPlan
from slipstream.kernels.env_checker import (
    allocate_buffers,
    check_environment,
    compare_envs,
    random_actions,
)
from slipstream.kernels.interpreter import Records
from slipstream.kernels.kernel import KernelData
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.vector_env import member_indices
from slipstream.markets.portfolio import kernel as portfolio
from slipstream.markets.portfolio.config import UnitOrders
from slipstream.markets.synthetic import SyntheticCrypto

BARS, START = 5000, 1_640_995_200 + 86_400 - 1500
COINS = {"BTCUSD": 40_000.0, "LINKUSD": 15.0, "UNIUSD": 7.0}
OHLC = ("open", "high", "low", "close", "spread")
FEATURES = ["log_return_1", "cci_14"]
SPLIT = {"train": 0.9, "validation": 0.0, "test": 0.1}


def write_coins(folder: Path, bars: int = BARS, seed: int = 0) -> Path:
    """Five-minute walks; LINK begins late and ends early, UNI has holes, all miss 20 bars."""
    draw = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for index, (symbol, price) in enumerate(COINS.items()):
        close = price * np.exp(np.cumsum(3e-3 * draw.standard_normal(bars)))
        opened = np.concatenate([[price], close[:-1]]) * np.exp(4e-4 * draw.standard_normal(bars))
        reach = 1e-3 * price * draw.random((2, bars))
        frame = pl.DataFrame(
            {
                "timestamp": pl.from_epoch(
                    pl.Series(START + 300 * np.arange(bars)), "s"
                ).dt.replace_time_zone("UTC"),
                "open": opened,
                "high": np.maximum(opened, close) + reach[0],
                "low": np.minimum(opened, close) - reach[1],
                "close": close,
                "volume": np.exp(draw.standard_normal(bars)),
                "spread": 2e-4 * price * draw.random(bars),
            }
        )
        keep = np.ones(bars, dtype=bool)
        keep[2100:2120] = False
        if index == 1:
            keep[:300], keep[-200:] = False, False
        if index == 2:
            keep[draw.random(bars) < 0.03] = False
        frame.filter(pl.Series(keep)).write_parquet(folder / f"{symbol}.parquet")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_coins(tmp_path_factory.mktemp("coins"))


def settings_of(folder: Path, **settings: Any) -> dict[str, Any]:
    data = {"folder": str(folder), **settings.pop("data", {})}
    return {"data": data, "features": FEATURES, "max_steps": 150, **settings}


def configure(folder: Path, **settings: Any) -> Any:
    return KERNEL.configure(settings_of(folder, **settings))


LARGE = {"norm_action": 3e5, "forced_sale_bars": 5, "min_factor": 1.0}
OPTION_SETS: dict[str, dict[str, Any]] = {
    "default": {},
    "all": {
        "universe": "union",
        "lookback": 2,
        "action_map": "simplex",
        "decide_every": 2,
        "min_holding": 3,
        "cash_reserve": 0.1,
        "max_position": 0.5,
        "trailing_stop": 0.02,
        "quantity_step": 0.001,
        "fee_tiers": [[0.0, 0.002], [1e5, 0.001], [1e6, 0.0005]],
        "start_volume": 5e4,
        "slippage_bp": 2.0,
        "reward": "mixed",
        "time_decay_floor": 0.3,
        "concentration_penalty": 0.01,
        "drawdown_penalty": 0.01,
        "volatility_penalty": 0.01,
    },
    "softmax": {"action_map": "softmax", "rebalance_threshold": 0.0, "reward": "log_return"},
    "units": {"orders": "units", "units": LARGE, "features": FEATURES},
    "all units": {
        "orders": "units",
        "units": {**LARGE, "action_scale": "value", "norm_action": 3.0, "start": "first"},
        "features": FEATURES,
        "universe": "union",
        "lookback": 3,
        "cash_reserve": 0.1,
        "max_position": 0.5,
        "trailing_stop": 0.02,
        "benchmark_costs": True,
        "reward": "mixed",
        "concentration_penalty": 0.01,
    },
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("default", "all units") else pytest.mark.slow)
        for name in OPTION_SETS
    ],
)
def test_interpreted_equals_compiled(folder: Path, name: str) -> None:
    loaded = KERNEL.load(configure(folder, **OPTION_SETS[name]))
    assert loaded.state is not None and loaded.state["units"].shape == (3,)
    rows = member_indices([2**63 + 5], 3)
    envs = [
        KernelVectorEnv(KERNEL, loaded, *rows, backend=backend)
        for backend in ("serial", "compiled")
    ]
    compare_envs(*envs, 400, 5, "interpreted and compiled")
    assert envs[0].get_state()["state.fills"].min() > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", "all units"])
def test_the_contract_suite_passes(folder: Path, name: str) -> None:
    check_environment(KERNEL, settings_of(folder, **OPTION_SETS[name]), steps=120)


class Batch:
    """Some copies stepped with a fixed stream of random actions; keeps all that came out."""

    def __init__(self, loaded: KernelData, split: str = "train", copies: int = 6) -> None:
        self.loaded = loaded
        self.env = KernelVectorEnv(KERNEL, loaded, *member_indices([7], copies), split=split)

    def run(self, steps: int, seed: int = 0) -> dict[str, np.ndarray]:
        env, draw = self.env, np.random.default_rng(seed)
        out = allocate_buffers(env)
        env.reset(out.obs)
        kept: dict[str, list[np.ndarray]] = {"obs": [out.obs.copy()], "reward": [], "ends": []}
        actions = random_actions(env.spec, env.num_envs, draw)
        for t in range(steps):
            fresh = random_actions(env.spec, env.num_envs, draw)
            change = draw.random((env.num_envs, 1)) < 0.3
            actions = np.where(change, fresh, actions)
            env.step(actions, out, t)
            kept["obs"].append(out.obs.copy())
            kept["reward"].append(out.reward.copy())
            kept["ends"].append(np.stack([out.terminated, out.truncated]))
        episodes = env.drain_episodes()
        env.drain_final_obs()
        metrics = np.array(list(episodes.metrics.values()))
        return {**{k: np.array(v) for k, v in kept.items()}, "metrics": metrics}


def same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in first)


UNITS: dict[str, Any] = {"orders": "units", "units": LARGE, "features": FEATURES}
TIERS = [[0.0, 0.002], [3e4, 0.0005]]
# Key -> (what else must be set for it to matter, two values that must differ).
CHANGES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "data": ({}, {}, {"symbols": ["BTCUSD", "UNIUSD"]}),
    "universe": ({}, "common", "union"),
    "features": ({}, FEATURES, ["log_return_1", "log_high"]),
    "split": (
        {},
        {"train": 0.5, "validation": 0.25, "test": 0.25},
        {"train": 0.4, "validation": 0.3, "test": 0.3},
    ),
    "lookback": ({}, 1, 2),
    "orders": ({}, "weights", "units"),
    "units": (UNITS, LARGE, {**LARGE, "buy_share": 0.5}),
    "action_map": ({}, "softmax", "simplex"),
    "sharpness": ({"action_map": "softmax"}, 5.0, 2.0),
    "max_change": ({"action_map": "change"}, 0.25, 0.5),
    "rebalance_threshold": ({}, 0.05, 0.3),
    "decide_every": ({}, 2, 3),
    "min_holding": ({}, 0, 5),
    "cash_reserve": ({}, 0.0, 0.2),
    "max_position": ({}, 1.0, 0.5),
    "trailing_stop": ({}, None, 0.005),
    "quantity_step": ({}, 1e-8, {"BTCUSD": 0.1}),
    "min_quantity": ({}, None, {"BTCUSD": 0.1}),
    "min_notional": ({}, 10.0, 20_000.0),
    "initial_equity": ({}, 1e5, 2e4),
    "fee": ({}, 0.001, 0.002),
    "fee_tiers": ({"fee_tiers": TIERS}, [[0.0, 0.002]], TIERS),
    "start_volume": ({"fee_tiers": TIERS}, 0.0, 1e6),
    "slippage_bp": ({}, 0.0, 2.0),
    "benchmark_costs": ({}, True, False),
    "reward": ({}, "excess_log_return", "log_return"),
    "norm_reward": ({"reward": "excess_value"}, 1.0, 0.5),
    "time_decay_floor": ({}, 1.0, 0.2),
    "concentration_penalty": ({}, 0.0, 0.01),
    "drawdown_penalty": ({}, 0.0, 0.01),
    "volatility_penalty": ({}, 0.0, 0.01),
    "max_steps": ({}, 150, 100),
}
UNIT_CHANGES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "action_scale": ({"norm_action": 900.0}, "magnitude", "value"),
    "norm_action": ({}, 3e5, 1e5),
    "norm_cash": ({}, 2.0**-12, 2.0**-10),
    "norm_stocks": ({}, 2.0**-8, 2.0**-6),
    "norm_tech": ({}, 2.0**-15, 2.0**-12),
    "buy_share": ({}, 0.9, 0.95),
    "forced_sale_bars": ({}, 5, 0),
    "forced_sale_share": ({}, 0.05, 0.5),
    "min_factor": ({}, 1.0, 200.0),
    "gamma": ({"start": "first"}, 0.99, 0.9),
    "start": ({}, "random", "first"),
    "anchor": ({}, "start", "first_row"),
    "ending": ({"start": "first"}, "last", "original"),
    "final_reward": ({"start": "first"}, "discounted", "plain"),
}


def test_the_list_of_settings_is_complete() -> None:
    """`account_currency` names what prices are quoted in: it is told, and changes no number."""
    assert set(CHANGES) | {"account_currency"} == set(portfolio.Config.model_fields)
    assert set(UNIT_CHANGES) == set(UnitOrders.model_fields)


# What unit orders do not read: the value that is refused, beside the default.
REFUSED: dict[str, Any] = {
    "action_map": "change",
    "sharpness": 2.0,
    "max_change": 0.1,
    "rebalance_threshold": 0.3,
    "quantity_step": 1.0,
    "min_notional": 20_000.0,
}
OTHER_KEYS = [key for key in sorted(CHANGES) if key not in (*REFUSED, "orders", "units")]


def differs(folder: Path, settings: tuple[dict[str, Any], dict[str, Any]], steps: int) -> bool:
    runs = [Batch(KERNEL.load(configure(folder, **one))).run(steps) for one in settings]
    return runs[0]["obs"].shape != runs[1]["obs"].shape or not same(*runs)


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(CHANGES))
def test_every_setting_matters(folder: Path, key: str) -> None:
    others, first, second = CHANGES[key]
    assert differs(folder, ({**others, key: first}, {**others, key: second}), 400)


@pytest.mark.parametrize("key", sorted(UNIT_CHANGES))
def test_every_rule_of_unit_orders_matters(folder: Path, key: str) -> None:
    others, *values = UNIT_CHANGES[key]
    fixed = {**UNITS, "lookback": 2, "min_quantity": {"BTCUSD": 0.01}}
    first, second = ({**fixed, "units": {**LARGE, **others, key: value}} for value in values)
    assert differs(folder, (first, second), 1400)


@pytest.mark.slow
@pytest.mark.parametrize("key", OTHER_KEYS)
def test_every_other_setting_matters_with_unit_orders_too(folder: Path, key: str) -> None:
    others, *values = CHANGES[key]
    if key == "reward":
        values = ["excess_value", "mixed"]
    if key == "min_quantity":
        values = [None, {"BTCUSD": 20.0}]
    first, second = ({**UNITS, **others, key: value} for value in values)
    assert differs(folder, (first, second), 400)


@pytest.mark.parametrize("key", REFUSED)
def test_what_unit_orders_do_not_read_is_refused(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KERNEL.configure({"data": {"folder": "-"}, "orders": "units", key: REFUSED[key]})
    words = f"`{key}: {REFUSED[key]}` has no effect with `orders: units`, it is used only with"
    assert words in str(caught.value)


@pytest.mark.parametrize("key", UNIT_CHANGES)
def test_rules_of_unit_orders_are_refused_with_target_weights(key: str) -> None:
    default = UnitOrders.model_fields[key].default
    value = next(v for v in UNIT_CHANGES[key][1:] if v != default)
    with pytest.raises(ConfigError, match=rf"`units\.{key}: .*` has no effect with `orders: wei"):
        KERNEL.configure({"data": {"folder": "-"}, "units": {key: value}})


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({"action_map": "change", "sharpness": 2.0}, "action_map: softmax"),
        ({"action_map": "simplex", "max_change": 0.1}, "action_map: change"),
        ({"norm_reward": 0.5}, "reward: excess_value or mixed"),
        ({"start_volume": 1e6}, "fee_tiers"),
    ],
)
def test_what_another_key_leaves_unread_is_refused(settings: dict[str, Any], needed: str) -> None:
    with pytest.raises(ConfigError, match=f"has no effect with.*`{needed}`"):
        KERNEL.configure({"data": {"folder": "-"}, **settings})


@pytest.mark.parametrize("orders", ["weights", "units"])
def test_a_complete_file_may_name_the_other_orders(orders: str) -> None:
    """`slipstream init` prints every key; printed defaults do not count as set."""
    complete = KERNEL.configure({"data": {"folder": "-"}}).model_dump(mode="json")
    assert KERNEL.configure({**complete, "orders": orders}).orders == orders


def test_the_currency_is_told(folder: Path) -> None:
    loaded = KERNEL.load(configure(folder, account_currency="EUR"))
    market = KERNEL.spec(loaded.params["train"][0], loaded.data).market
    assert market is not None and market.account_currency == "EUR"
    assert market.symbols == tuple(COINS) and market.days_per_year == 365.0
    assert set(market.cost_fields) < set(portfolio.STATE.names or ())


@pytest.fixture(scope="module")
def folds(folder: Path) -> KernelData:
    assert KERNEL.load_folds is not None
    return KERNEL.load_folds(configure(folder), FoldPlan())


def test_folds_are_records_over_one_copy_of_the_data(folds: KernelData) -> None:
    names = {f"fold{k}/{part}" for k in range(6) for part in ("train", "test")}
    names |= {"train", "development/train", "holdout", "everything/train"}
    assert set(folds.params) == names
    assert folds.params["train"] == folds.params["fold0/train"]
    facts, data = folds.provenance["folds"], folds.data
    edges = {tuple(group) for group in facts["groups"]}
    for k, fold in enumerate(facts["folds"]):
        tests = [data.segments[p.first_segment] for p in folds.params[f"fold{k}/test"]]
        p = folds.params[f"fold{k}/train"][0]
        trains = data.segments[p.first_segment : p.first_segment + p.num_segments]
        assert {tuple(group) for group in fold["test"]} <= edges
        covered = sum(int(high - low) for low, high in tests)
        assert covered == sum(facts["group_bars"][g] for g in fold["groups"])
        for low, high in tests:
            assert all(stop <= low or first >= high for first, stop in trains)
            hole = np.diff(data.time[low:high])
            assert (hole == 300).all()
        assert p.scaling == k
    held = data.segments[folds.params["holdout"][0].first_segment]
    developed = [
        data.segments[p.first_segment + j]
        for p in folds.params["development/train"]
        for j in range(p.num_segments)
    ]
    assert max(high for _, high in developed) + facts["embargo_bars"] <= held[0]


def test_no_check_reads_the_holdout(folder: Path, tmp_path: Path) -> None:
    """A price times 20 and a dead volume, both in the last tenth only, and in an earlier one."""
    value = {"action_scale": "value", "norm_action": 5_000.0}
    more = {"orders": "units", "units": value, "features": ["volume"], "min_quantity": 0.001}

    def load(low: int, high: int, **settings: Any) -> KernelData:
        for symbol in COINS:
            frame = pl.read_parquet(folder / f"{symbol}.parquet").with_row_index()
            there = pl.col("index").is_between(low, high)
            columns = [pl.col(name) * pl.when(there).then(20.0).otherwise(1.0) for name in OHLC]
            volume = pl.when(there).then(3.0).otherwise(pl.col("volume")).alias("volume")
            frame.with_columns(*columns, volume).drop("index").write_parquet(
                tmp_path / f"{symbol}.parquet"
            )
        assert KERNEL.load_folds is not None
        return KERNEL.load_folds(configure(tmp_path, **{**more, **settings}), FoldPlan(holdout=0.1))

    assert load(4600, 5000).provenance["folds"]["holdout_bars"] < 500
    with pytest.raises(ConfigError, match=r"norm_action.*of BTCUSD"):
        load(0, 4400, features=["cci_14"])
    with pytest.raises(DataError, match="feature volume must change"):
        load(0, 4400, min_quantity=0.0)


def test_scales_are_those_of_the_folds_own_training_rows(folds: KernelData) -> None:
    p = folds.params["fold2/train"][0]
    data = folds.data
    parts = data.segments[p.first_segment : p.first_segment + p.num_segments]
    rows = np.concatenate([data.features[low:high, :6] for low, high in parts])
    spec = KERNEL.spec(p, data)
    assert spec.fixed_mean is not None and spec.fixed_std is not None
    assert spec.fixed_mean[:6] == pytest.approx(rows.mean(axis=0), rel=1e-4, abs=1e-7)
    assert spec.fixed_std[:6] == pytest.approx(rows.std(axis=0), rel=1e-4)
    other = KERNEL.spec(folds.params["fold3/train"][0], data).fixed_mean
    assert other is not None and not np.array_equal(other, spec.fixed_mean)
    tested = KERNEL.spec(folds.params["fold2/test"][0], data).fixed_mean
    assert tested is not None and np.array_equal(tested, spec.fixed_mean)


VARIED = {
    "fee": 0.002,
    "rebalance_threshold": 0.2,
    "reward": "mixed",
    "max_steps": 90,
    "decide_every": 2,
}


def test_other_settings_without_reading_again_equal_a_fresh_load(
    folder: Path, folds: KernelData
) -> None:
    config = configure(folder, **VARIED)
    plan = FoldPlan()
    assert KERNEL.with_params is not None and KERNEL.load_folds is not None
    varied, fresh = KERNEL.with_params(folds, config), KERNEL.load_folds(config, plan)
    assert varied is not None and varied.data is folds.data
    assert varied.params == fresh.params and varied.warnings == fresh.warnings
    assert varied.provenance == fresh.provenance and varied.state == fresh.state
    plain = KERNEL.with_params(KERNEL.load(configure(folder)), config)
    assert plain is not None and plain.params == KERNEL.load(config).params


@pytest.mark.parametrize(
    "settings",
    [
        {"lookback": 2},
        {"features": ["cci_14"]},
        {"universe": "union"},
        {"data": {"symbols": ["BTCUSD", "UNIUSD"]}},
        {"quantity_step": 0.5},
        {"fee_tiers": TIERS},
        {"account_currency": "EUR"},
        {**UNITS, "min_quantity": 0.01},
    ],
)
def test_settings_that_need_other_arrays_are_not_varied(
    folder: Path, folds: KernelData, settings: dict[str, Any]
) -> None:
    assert KERNEL.with_params is not None
    assert KERNEL.with_params(folds, configure(folder, **settings)) is None


def test_a_round_trip_costs_fee_tier_slippage_and_mean_spread(
    folder: Path, folds: KernelData
) -> None:
    data, p = folds.data, folds.params["development/train"][0]
    rows = np.concatenate(
        [np.arange(*data.segments[p.first_segment + k]) for k in range(p.num_segments)]
    )
    spread = 2e4 * (data.prices[rows, 6] / data.prices[rows, 0]).mean()
    assert spread > 0.5
    found = folds.provenance["round_trip"]
    assert list(found) == list(COINS)
    assert found["BTCUSD"]["basis_points"] == pytest.approx(2 * 10.0 + spread)
    assert KERNEL.with_params is not None
    more = {"fee_tiers": TIERS, "start_volume": 4e4, "slippage_bp": 3.0}
    tiered = KERNEL.load(configure(folder, **more)).provenance["round_trip"]["BTCUSD"]
    assert tiered["basis_points"] == pytest.approx(2 * (5.0 + 3.0) + tiered["spread_bp"])
    dearer = KERNEL.with_params(folds, configure(folder, fee=0.006))
    assert dearer is not None
    cost = dearer.provenance["round_trip"]["BTCUSD"]["basis_points"]
    assert cost == pytest.approx(2 * 60.0 + spread)


def test_an_evaluation_pass_is_its_windows_timeline(folds: KernelData) -> None:
    assert KERNEL.timeline is not None
    for split in ("holdout", "fold1/test"):
        for k, p in enumerate(folds.params[split]):
            moments = KERNEL.timeline(p, folds.data)
            env = Batch(folds, split, copies=len(folds.params[split])).env
            out = allocate_buffers(env)
            env.reset(out.obs)
            steps = 0
            while not out.truncated[k]:
                env.step(np.zeros((env.num_envs, 4), np.float32), out)
                steps += 1
            assert steps == len(moments)
            first = folds.data.segments[p.first_segment, 0]
            assert moments[0] == folds.data.time[first] + 600


def test_a_window_of_choice(folder: Path) -> None:
    start, stop = START + 300 * 700, START + 300 * 900
    loaded = portfolio.load_window(configure(folder), start, stop)
    low, high = loaded.data.segments[loaded.params["window"][0].first_segment]
    assert (loaded.data.time[low], high - low) == (start, 200)
    with pytest.raises(DataError, match="at least 2 usable bars"):
        portfolio.load_window(configure(folder), stop, stop + 300)


def test_notes_say_what_cannot_be_seen(folder: Path) -> None:
    notes = " ".join(KERNEL.load(configure(folder, **UNITS)).warnings)
    assert "5 bars are 0.416667 hours" in notes and "benchmark trades without costs" in notes
    assert "Common period of 3 assets" in notes
    free = " ".join(KERNEL.load(configure(folder, fee=0.0)).warnings)
    assert "Trading costs only the spread" in free


def test_too_little_data_is_named(folder: Path, tmp_path: Path) -> None:
    write_coins(tmp_path, bars=518)
    with pytest.raises(DataError, match="load more"):
        KERNEL.load(configure(tmp_path))
    with pytest.raises(DataError, match="groups"):
        assert KERNEL.load_folds is not None
        KERNEL.load_folds(configure(folder), FoldPlan(groups=40))


def test_what_remembers_longest_is_named(folder: Path, tmp_path: Path) -> None:
    words = r"volume_z_720 has the longest, 719 bars"
    more = {"features": ["portfolio"]}
    assert KERNEL.load_folds is not None
    with pytest.raises(DataError, match=words):
        KERNEL.load_folds(configure(folder, **more), FoldPlan(groups=12))
    with pytest.raises(DataError, match=words):
        KERNEL.load_folds(configure(folder, **more), FoldPlan(holdout=0.9))
    with pytest.raises(DataError, match=words):
        KERNEL.load(configure(write_coins(tmp_path, bars=1600), **more))


@pytest.mark.parametrize("bars", [8_760, 10_000])
def test_folds_fit_a_year_of_hours_or_a_month_of_five_minutes(tmp_path: Path, bars: int) -> None:
    SyntheticCrypto().write(tmp_path, bars, 1)
    config = KERNEL.configure({"data": {"folder": str(tmp_path)}})
    assert KERNEL.load_folds is not None
    facts = KERNEL.load_folds(config, FoldPlan()).provenance["folds"]
    assert facts["embargo_bars"] == 720 and min(facts["group_bars"]) > 1_000


def test_misspelt_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean `trailing_stop`"):
        KERNEL.configure({"data": {"folder": "-"}, "traling_stop": 0.1})


def test_a_feature_that_never_forgets_cannot_be_studied(folder: Path) -> None:
    settings = configure(folder, orders="units", features=["finrl_crypto"])
    assert KERNEL.load_folds is not None
    with pytest.raises(ConfigError, match=r"'obv' .* never forgets.*`features: \[close, volume, "):
        KERNEL.load_folds(settings, FoldPlan())


def test_an_observation_does_not_know_whether_a_missing_asset_returns(tmp_path: Path) -> None:
    """LINK lacks 60 bars and comes back, or never does: who holds cash sees the same until then."""
    seen = []
    for name, returns in (("late", True), ("gone", False)):
        folder = write_coins(tmp_path / name)
        table = pl.read_parquet(folder / "LINKUSD.parquet")
        keep = np.arange(len(table)) < 900
        if returns:
            keep |= np.arange(len(table)) >= 960
        table.filter(pl.Series(keep)).write_parquet(folder / "LINKUSD.parquet")
        loaded = KERNEL.load(configure(folder, universe="union", split=SPLIT))
        kernel = KERNEL.specialize(loaded)
        state = np.zeros(1, kernel.STATE)
        s, p = Records(state)[0], loaded.params["train_window"][0]
        portfolio.reset(s, p, loaded.data)
        rows = []
        for _ in range(1_400):
            out = np.zeros(kernel.spec(p, loaded.data).observation_shape, np.float32)
            portfolio.observe(s, p, loaded.data, out)
            rows.append(out)
            portfolio.step(s, np.array([-1, -1, -1, 1], np.float32), p, loaded.data)
        seen.append((loaded, np.stack(rows)))
    (late, with_return), (gone, without) = seen
    assert late.data.segments[0, 0] == gone.data.segments[0, 0]
    flag = with_return[:, list(COINS).index("LINKUSD") - len(COINS)]
    back = int(np.flatnonzero(np.diff(flag) > 0)[-1]) + 1  # the row at which it has a bar again
    assert flag[back - 60 : back].sum() == 0.0
    np.testing.assert_array_equal(with_return[:back], without[:back])
    assert (with_return[back:] != without[back:]).any()
