"""Folds of currency pairs: cut at moments, scaled by their own training, varied without reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from forex_folder import BAR, write_symbol

from slipstream.core.errors import ConfigError, DataError
from slipstream.core.timeline import FoldPlan
from slipstream.kernels.kernel import KernelData
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.vector_env import StepBuffers
from slipstream.markets.evaluation.market_backtest import replay
from slipstream.markets.forex import kernel as forex
from slipstream.training.environments.kernel_environment import KernelEnvironment, KernelKind

KERNEL = load_kernel("forex")
BARS = 6000
PARTS = ("train", "test")
SYMBOLS = ("EURJPY", "EURUSD", "USDJPY")  # in the order of the data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prices")
    write_symbol(path, "EURUSD", bars=BARS, seed=1)
    write_symbol(path, "USDJPY", bars=BARS, seed=2, price=150.0, drop=slice(2500, 2530))
    write_symbol(path, "EURJPY", bars=BARS, seed=3, price=165.0)
    return path


def configured(folder: Path, **settings: Any) -> Any:
    data = {"folder": str(folder), "spread_pips": 1.0, **settings.pop("data", {})}
    return KERNEL.configure({"data": data, **settings})


def folds(folder: Path, plan: FoldPlan | None = None, **settings: Any) -> KernelData:
    return forex.load_folds(configured(folder, **settings), plan or FoldPlan())


def segments(loaded: KernelData, split: str) -> list[tuple[str, int, int]]:
    """Symbol and rows of every segment of a split's records."""
    data, found = loaded.data, []
    for p in loaded.params[split]:
        for k in range(p.first_segment, p.first_segment + p.num_segments):
            low, high = (int(row) for row in data.segments[k])
            found.append((SYMBOLS[data.segment_symbol[k]], low, high))
    return found


def test_names_and_order_of_the_records(folder: Path) -> None:
    loaded = folds(folder)
    counts = {split: len(records) for split, records in loaded.params.items()}
    assert counts == {
        "train": 3,
        **{f"fold{k}/{part}": 3 if part == "train" else 6 for k in range(6) for part in PARTS},
        "development/train": 3,
        "holdout": 3,
        "everything/train": 3,
    }
    assert loaded.params["train"] == loaded.params["fold0/train"]
    facts = loaded.provenance["folds"]
    for k, fold in enumerate(facts["folds"]):
        found = segments(loaded, f"fold{k}/test")
        assert [symbol for symbol, _, _ in found] == [*SYMBOLS, *SYMBOLS]
        for place, (_, low, high) in enumerate(found):
            start, stop = fold["test"][place // 3]
            assert start <= loaded.data.time[low] and loaded.data.time[high - 1] + BAR <= stop
            assert loaded.data.time[low - 1] < start or low == 0 or place < 3
    for split, records in loaded.params.items():
        assert all(p.from_start == p.sells_at_end == (not split.endswith("train")) for p in records)
        for p in records:
            assert forex.spec(p, loaded.data).market.symbols in [(name,) for name in SYMBOLS]


@pytest.mark.parametrize("method", ["cpcv", "kfold", "walk_forward"])
def test_no_symbol_trains_near_what_any_symbol_is_tested_on(folder: Path, method: str) -> None:
    loaded = folds(folder, FoldPlan.model_validate({"method": method}), lookback=5)
    time, facts = loaded.data.time, loaded.provenance["folds"]
    embargo = facts["embargo_bars"]
    assert embargo > 5
    for k, fold in enumerate(facts["folds"]):
        trained = segments(loaded, f"fold{k}/train")
        assert {symbol for symbol, _, _ in trained} == set(SYMBOLS)
        for start, stop in fold["test"]:
            for _, low, high in trained:
                before = time[high - 1] + BAR < start  # a bar is left out between the two
                # What the first observation remembers begins after the tested bars.
                after = time[low] >= stop and time[low - embargo + 1] >= stop
                assert before or after
        assert max(time[high - 1] for _, _, high in trained) < facts["holdout"][0]
    for _, low, high in segments(loaded, "development/train"):
        own = time[low:high]
        assert own[-1] + BAR <= facts["development"][1] < facts["holdout"][0]
        between = (time[: loaded.provenance["bars"]["EURJPY"]] >= facts["development"][1]) & (
            time[: loaded.provenance["bars"]["EURJPY"]] < facts["holdout"][0]
        )
        assert np.count_nonzero(between) >= embargo - 30  # the hole in USDJPY may lie there
    assert [time[low] for _, low, _ in segments(loaded, "holdout")] == 3 * [facts["holdout"][0]]


def test_each_fold_is_scaled_by_its_own_training(folder: Path) -> None:
    loaded = folds(folder, features=["signal", "rsi_14"])
    names = [*(f"fold{k}/" for k in range(6)), "development/", "everything/"]
    assert loaded.data.feature_mean.shape == (8, 2)
    for scale, name in enumerate(names):
        seen = [
            loaded.data.features[low:high, :2] for _, low, high in segments(loaded, name + "train")
        ]
        mean = np.concatenate(seen).astype(np.float64).mean(axis=0)
        assert loaded.data.feature_mean[scale] == pytest.approx(mean, abs=1e-12)
        own = [*loaded.params[name + "train"], *loaded.params.get(name + "test", ())]
        for p in own:
            spec = forex.spec(p, loaded.data)
            assert spec.fixed_mean is not None
            assert spec.fixed_mean[:2] == pytest.approx(mean, rel=1e-6)
    held_out = forex.spec(loaded.params["holdout"][0], loaded.data)
    assert held_out.fixed_mean is not None
    assert held_out.fixed_mean[:2] == pytest.approx(loaded.data.feature_mean[6], rel=1e-6)
    assert len(np.unique(loaded.data.feature_mean[:, 0])) == 8


def test_the_hold_out_changes_nothing_before_it(folder: Path, tmp_path: Path) -> None:
    ours = folds(folder)
    moment = ours.provenance["folds"]["holdout"][0]
    for symbol in SYMBOLS:
        frame = pl.read_parquet(folder / f"{symbol}.parquet")
        late = pl.col("timestamp").dt.epoch("s") >= moment
        prices = ("open", "high", "low", "close", "signal")
        frame = frame.with_columns(
            pl.when(late).then(pl.col(c) * 1.5).otherwise(c).alias(c) for c in prices
        )
        frame.write_parquet(tmp_path / f"{symbol}.parquet")
    theirs = folds(tmp_path)
    early = ours.data.time < moment
    assert ours.params == theirs.params and not early.all()
    for name in ("bars", "features", "calendar"):
        assert np.array_equal(getattr(ours.data, name)[early], getattr(theirs.data, name)[early])
    assert not np.array_equal(ours.data.bars, theirs.data.bars)
    for name in ("feature_mean", "feature_std"):  # all but everything's
        assert np.array_equal(getattr(ours.data, name)[:7], getattr(theirs.data, name)[:7])
    used = [k for split in ours.params if split != "everything/train" for k in _rows(ours, split)]
    assert np.array_equal(ours.data.constants[used], theirs.data.constants[used])


def _rows(loaded: KernelData, split: str) -> list[int]:
    return [
        k
        for p in loaded.params[split]
        for k in range(p.first_segment, p.first_segment + p.num_segments)
    ]


@pytest.mark.parametrize("symbol_assignment", ["round_robin", "random"])
def test_episodes_stay_within_training_segments(folder: Path, symbol_assignment: str) -> None:
    loaded = folds(folder, symbol_assignment=symbol_assignment, max_steps=300)
    one = KernelData(loaded.data, {"train": loaded.params["fold1/train"]})
    copies = 60
    indices = np.arange(copies, dtype=np.uint64)
    env = KernelVectorEnv(KERNEL, one, np.full(copies, 3, np.uint64), indices)
    obs = np.zeros((copies, *env.spec.observation_shape), np.float32)
    env.reset(obs)
    allowed = np.zeros(len(loaded.data.time), bool)
    for _, low, high in segments(loaded, "fold1/train"):
        allowed[low:high] = True
    ended = np.zeros((3, copies), np.bool_)
    out = StepBuffers(obs, np.zeros(copies, np.float32), *ended)
    seen: set[int] = set()
    draw = np.random.default_rng(0)
    for t in range(600):
        seen.update(env.read(("bar",))["bar"].tolist())
        env.step(draw.integers(0, 3, (copies, 1)), out, t)
    assert allowed[sorted(seen)].all() and len(seen) > 0.6 * allowed.sum()


def test_moments_of_equity(folder: Path) -> None:
    loaded = folds(folder)
    p = loaded.params["fold2/test"][4]
    low, high = loaded.data.segments[p.first_segment]
    actions = np.ones((high - low - 1, 1), np.int64)
    (track,) = replay(
        KernelEnvironment.from_loaded(KernelKind("forex"), KERNEL, loaded),
        "fold2/test",
        [actions],
        params=(p,),
        backend="serial",
    )
    assert track.trace is not None
    marked = loaded.data.time[track.trace["bar"].astype(int)] + BAR
    assert np.array_equal(forex.timeline(p, loaded.data), marked)


@pytest.mark.parametrize(
    "settings",
    [
        {"slippage_pips": 0.4, "commission_per_million": 25.0, "swap_long": -2.0},
        {"reward": "pnl", "turnover_penalty": 1e-4, "max_daily_drawdown": 0.02},
        {"symbol_assignment": "random", "max_steps": 120},
        {"max_steps": 4_000, "stop_loss": 20.0, "cooldown": 3},
        {"flatten_at": "16:30", "flat_on_friday": "12:00"},
        {"action": "continuous", "max_exposure": 2.0, "rebalance_threshold": 0.2},
        {"fill": "compat_same_close", "leverage": 5.0},
    ],
)
@pytest.mark.parametrize(
    "before",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"symbol_assignment": "random", "flatten_at": "15:00", "slippage_pips": 1},
    ],
)
def test_varied_is_as_loaded(
    folder: Path, settings: dict[str, Any], before: dict[str, Any]
) -> None:
    first = folds(folder, **before)
    fresh = folds(folder, **settings)
    varied = forex.with_params(first, configured(folder, **settings))
    assert varied is not None
    assert varied.params == fresh.params and list(varied.params) == list(fresh.params)
    assert varied.warnings == fresh.warnings and varied.provenance == fresh.provenance
    for name, ours, theirs in zip(fresh.data._fields, varied.data, fresh.data, strict=True):
        assert np.array_equal(ours, theirs), name
        assert name == "calendar" or ours is getattr(first.data, name)


@pytest.mark.parametrize(
    "settings",
    [
        {"features": ["signal"]},
        {"lookback": 2},
        {"account_currency": "JPY"},
        {"data": {"spread_pips": 2.0}},
        {"data": {"symbols": ["EURUSD"]}},
    ],
)
def test_other_arrays_are_not_a_variation(folder: Path, settings: dict[str, Any]) -> None:
    loaded = folds(folder)
    assert forex.with_params(loaded, configured(folder, **settings)) is None
    one_window = KERNEL.load(configured(folder))
    assert forex.with_params(one_window, configured(folder, slippage_pips=1.0)) is None


def test_too_few_bars_for_folds(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"at least 201 bars .* use fewer `groups`"):
        folds(folder, FoldPlan(groups=16))
    write_symbol(tmp_path, "EURJPY", bars=BARS, seed=1, price=165.0)
    write_symbol(tmp_path, "EURUSD", bars=BARS, seed=1)
    write_symbol(tmp_path, "USDJPY", bars=BARS, seed=2, price=150.0)
    write_symbol(tmp_path, "GBPUSD", bars=BARS, seed=2, price=1.3, drop=slice(0, 2000))
    with pytest.raises(DataError, match=r"GBPUSD must have bars to evaluate .*`data.symbols`"):
        folds(tmp_path)


def test_a_feature_that_never_forgets_cannot_be_studied(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"'obv' .* never forgets.*`features: \[rsi_14\]`"):
        folds(folder, features=["rsi_14", "obv"])


def test_the_hold_out_is_not_read_for_costs_or_dead_features(tmp_path: Path) -> None:
    """Two folders that differ in the hold-out's bars only say the same, also after `with_params`.

    Spreads stay below 50 pips: the data check is of all bars, and warns of wider ones.
    """
    told = []
    for name, last in (("calm", 1e-4), ("wild", 4e-3)):
        place = tmp_path / name
        place.mkdir()
        write_symbol(place, "EURUSD", bars=BARS, seed=1)
        file = place / "EURUSD.parquet"
        table = pl.read_parquet(file)
        late = np.arange(len(table)) >= int(0.9 * len(table))
        table = table.with_columns(
            spread=pl.Series(np.where(late, last, 1e-4)),
            quiet=pl.Series(np.where(late & (name == "wild"), 1.0, 0.0)),
        )
        table.write_parquet(file)
        more = {"features": ["log_return_1", "quiet"], "data": {"spread_pips": None}}
        loaded = folds(place, **more)
        varied = forex.with_params(loaded, configured(place, slippage_pips=0.5, **more))
        told.append([loaded, varied])
    for calm, wild in zip(*told, strict=True):
        assert wild.provenance["round_trip"] == calm.provenance["round_trip"]
        assert wild.warnings == calm.warnings
        assert any("feature quiet never changes" in note for note in wild.warnings)
    assert told[1][0].provenance["round_trip"]["EURUSD"]["pips"] == pytest.approx(1.0)
    assert told[1][1].provenance["round_trip"]["EURUSD"]["pips"] == pytest.approx(2.0)
