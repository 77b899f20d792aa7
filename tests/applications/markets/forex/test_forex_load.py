"""From files to arrays and records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forex_folder import write_symbol

from slipstream.core.errors import ConfigError, DataError
from slipstream.kernels.kernel import KernelData
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.markets.features.feature_registry import warm_up_rows
from slipstream.markets.forex import kernel as forex
from slipstream.markets.forex.forex_loader import load_window
from slipstream.markets.forex.forex_state import (
    CLOSE,
    INVERSE,
    OPEN,
    PIP,
    RATE_CLOSE,
    RATE_OPEN,
    SPREAD,
    VARIANCE,
)

KERNEL = load_kernel("forex")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prices")
    write_symbol(path, "EURUSD", seed=1)
    write_symbol(path, "USDJPY", seed=2, price=150.0)
    write_symbol(path, "EURJPY", seed=3, price=165.0)
    return path


def load(folder: Path, **settings: Any) -> KernelData:
    data = {"folder": str(folder), **settings.pop("data", {})}
    return KERNEL.load(KERNEL.configure({"data": data, **settings}))


def test_symbols_lie_end_to_end_and_each_record_names_its_own(folder: Path) -> None:
    loaded = load(folder, data={"spread_pips": 1.0})
    assert {split: len(records) for split, records in loaded.params.items()} == {
        "train": 3,
        "train_window": 3,
        "validation": 3,
        "test": 3,
    }
    names = [forex.spec(p, loaded.data).market.symbols for p in loaded.params["train"]]
    assert names == [("EURJPY",), ("EURUSD",), ("USDJPY",)]
    assert len(loaded.data.bars) == sum(loaded.provenance["bars"].values())
    assert list(loaded.data.constants[:3, PIP]) == [0.01, 0.0001, 0.01]
    assert loaded.data.bars[0, SPREAD] == pytest.approx(0.01)
    assert len(loaded.provenance["market_sha256"]) == 64


def test_rows_start_on_cache_lines_and_nothing_can_be_written(folder: Path) -> None:
    data = load(folder).data
    for array in (data.bars, data.features):
        assert array.ctypes.data % 64 == 0 and array.strides[0] % 64 == 0
    assert not any(array.flags.writeable for array in data)


def test_windows_are_apart_by_lookback_and_warm_up(folder: Path) -> None:
    loaded = load(folder, lookback=5)
    warm_up = warm_up_rows((*forex.Config.model_fields["features"].default, "atr_14"))
    times = loaded.provenance["windows_utc_seconds"]
    for earlier, later in (("train", "validation"), ("validation", "test")):
        bars = loaded.data.time[: loaded.provenance["bars"]["EURJPY"]]
        between = np.count_nonzero((bars >= times[earlier][1]) & (bars < times[later][0]))
        assert between >= 5 + warm_up
    for split, (start, stop) in times.items():
        for p in loaded.params["train_window" if split == "train" else split]:
            low, high = loaded.data.segments[p.first_segment]
            assert loaded.data.time[low] >= start and loaded.data.time[high - 1] < stop


def test_rates_of_the_three_kinds_of_pair(folder: Path) -> None:
    data = load(folder).data
    rows = [slice(*data.segments[k]) for k in range(3)]
    cross, direct, inverse = (data.bars[r] for r in rows)
    assert np.all(direct[:, RATE_OPEN] == 1.0) and np.all(direct[:, RATE_CLOSE] == 1.0)
    assert np.array_equal(inverse[:, RATE_CLOSE], 1.0 / inverse[:, CLOSE])
    assert np.array_equal(inverse[:, RATE_OPEN], 1.0 / inverse[:, OPEN])
    assert list(data.constants[:3, INVERSE]) == [0.0, 0.0, 1.0]
    # EURJPY earns yen: the last close of USDJPY that is complete at that moment.
    assert np.array_equal(cross[:, RATE_CLOSE], 1.0 / inverse[:, CLOSE])
    assert np.array_equal(cross[1:, RATE_OPEN], 1.0 / inverse[:-1, CLOSE])


def test_the_converting_pair_may_lie_in_the_folder_unchosen(folder: Path) -> None:
    both = load(folder).data
    alone = load(folder, data={"symbols": ["EURJPY"]})
    low, high = alone.data.segments[0]
    assert alone.provenance["converted_by"] == {"EURJPY": "USDJPY"}
    first = both.segments[0, 0]
    assert np.array_equal(
        alone.data.bars[low:high, RATE_CLOSE], both.bars[first : first + high - low, RATE_CLOSE]
    )


def test_a_missing_converting_pair_is_named(tmp_path: Path) -> None:
    write_symbol(tmp_path, "EURJPY", price=165.0)
    with pytest.raises(DataError, match="JPYUSD or USDJPY"):
        load(tmp_path)
    assert load(tmp_path, account_currency="JPY").data.bars[0, RATE_CLOSE] == 1.0


def test_bars_without_a_fresh_rate_are_left_out_and_said_so(tmp_path: Path) -> None:
    write_symbol(tmp_path, "EURJPY", seed=3, price=165.0)
    write_symbol(tmp_path, "USDJPY", seed=2, price=150.0, drop=slice(700, 720))
    loaded = load(tmp_path, data={"symbols": ["EURJPY"]})
    complete = load(tmp_path, data={"symbols": ["USDJPY"]}, account_currency="JPY")
    note = next(note for note in loaded.warnings if "were dropped" in note)
    # The first bar, the hole but its first four bars, and the bar that opens right after it.
    assert "18 bars" in note and "USDJPY" in note
    assert loaded.provenance["bars"]["EURJPY"] == complete.provenance["bars"]["USDJPY"] + 20 - 17


def test_features_are_the_files_columns_with_their_training_moments(folder: Path) -> None:
    loaded = load(folder, features=["signal", "rsi_14"], lookback=3)
    spec = forex.spec(loaded.params["train"][0], loaded.data)
    assert spec.observation_shape == (3 * 2 + 4 + 3 + 2,)
    seen = np.concatenate(
        [loaded.data.features[slice(*loaded.data.segments[k]), :2] for k in range(3)]
    )
    assert spec.fixed_mean is not None and spec.fixed_std is not None
    assert spec.fixed_mean[:6] == pytest.approx(np.tile(seen.mean(axis=0), 3), rel=1e-5)
    assert spec.fixed_std[:6] == pytest.approx(np.tile(seen.std(axis=0), 3), rel=1e-4)
    assert np.all(spec.fixed_mean[6:13] == 0.0) and np.all(spec.fixed_std[6:13] == 1.0)
    assert np.all(np.isnan(spec.fixed_mean[13:])) and np.all(np.isnan(spec.fixed_std[13:]))


def test_a_window_of_other_bars_can_be_scored(folder: Path) -> None:
    config = KERNEL.configure({"data": {"folder": str(folder)}})
    everything = load_window(config)
    assert set(everything.params) == {"train", "window"}
    assert all(p.from_start and p.sells_at_end for p in everything.params["window"])
    middle = int(everything.data.time[600])
    late = load_window(config, start=middle)
    low, high = late.data.segments[0]
    assert late.data.time[low] == middle and high - low > 600
    for start, stop in ((middle, middle), (int(everything.data.time[-1]) + 86_400, None)):
        with pytest.raises(DataError, match=r"at least 2 usable bars of .*, got \d{4}-"):
            load_window(config, start=start, stop=stop)


def test_notes_say_what_is_not_modelled(folder: Path) -> None:
    free = " ".join(load(folder).warnings)
    assert "Financing is not modelled" in free and "Trading is free" in free
    paid = load(folder, data={"spread_pips": 1.0}, swap_long=-2.0, fill="compat_same_close")
    assert "compat_same_close" in " ".join(paid.warnings)
    assert "Financing" not in " ".join(paid.warnings) and "free" not in " ".join(paid.warnings)
    trip = paid.provenance["round_trip"]["EURUSD"]
    assert trip["pips"] == pytest.approx(1.0) and trip["basis_points"] == pytest.approx(
        0.9, abs=0.05
    )


def test_what_a_bar_moves_is_measured_on_training_bars(folder: Path) -> None:
    loaded = load(folder)
    facts = loaded.provenance
    assert set(facts["bar_move"]) == {"EURJPY", "EURUSD", "USDJPY"}
    low, high = facts["windows_utc_seconds"]["train"]
    first = slice(0, facts["bars"]["EURJPY"])
    time, close = loaded.data.time[first], loaded.data.bars[first, 3]
    mine = (time >= low) & (time < high)
    ratios = np.diff(np.log(close[mine]))[np.diff(time[mine]) == 900]
    assert facts["bar_move"]["EURJPY"] == pytest.approx(1e4 * ratios.std(ddof=1), rel=1e-12)


def test_market_spec_carries_the_calendar(folder: Path) -> None:
    loaded = load(folder, symbol_assignment="random")
    (p,) = loaded.params["train"]
    market = forex.spec(p, loaded.data).market
    assert market.symbols == ("EURJPY", "EURUSD", "USDJPY")
    assert (market.bar_seconds, market.bars_per_year, market.days_per_year) == (
        900,
        24_960.0,
        260.0,
    )
    assert market.day_roll == "17:00 America/New_York" and market.account_currency == "USD"
    assert set(market.cost_fields) < set(forex.STATE.names)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slippage_pips": -0.1}, "slippage_pips"),
        ({"commission_per_million": -1.0}, "commission_per_million"),
        ({"data": {"spread_pips": -1.0}}, "spread_pips"),
        ({"turnover_penalty": -1.0}, "turnover_penalty"),
        ({"initial_equity": 0.0}, "initial_equity"),
        ({"unit_step": 0.0}, "unit_step"),
        ({"stop_loss": 0.0}, "stop_loss"),
        ({"stop_loss": 1.5, "stop_unit": "fraction"}, "below 1"),
        ({"exposure": 50.0}, "leverage"),
        ({"action": "continuous", "rebalance_threshold": 2.0}, "rebalance_threshold"),
        ({"flatten_at": "25:00"}, "flatten_at"),
        ({"max_daily_drawdown": 1.0}, "max_daily_drawdown"),
        ({"lookback": 0}, "lookback"),
        ({"features": ["rsi_14", "rsi_14"]}, "duplicates"),
        ({"initial_balance": 1.0}, "initial_equity|not a known key"),
        ({"stop_los": 1.0}, "stop_loss"),
        ({"fill": "same_close"}, "fill"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    values = {**settings, "data": {"folder": "-", **settings.get("data", {})}}
    with pytest.raises(ConfigError, match=message):
        KERNEL.configure(values)


def test_bad_folders_and_features_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises((DataError, ConfigError), match="nowhere"):
        load(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="rsi_14"):
        load(folder, features=["rsi14"])
    with pytest.raises(ConfigError, match="roll"):
        load(folder, flatten_at="17:00")
    write_symbol(tmp_path, "EURUSD", bars=200)
    with pytest.raises(DataError, match="EURUSD"):
        load(tmp_path)


def test_a_known_variance_replaces_the_windows_own(folder: Path) -> None:
    own = load(folder, reward="differential_sharpe")
    carried = own.provenance["carried"]["return_variance"]
    assert list(carried) == ["EURJPY", "EURUSD", "USDJPY"]
    assert list(carried.values()) == own.data.constants[:3, VARIANCE].tolist()
    few = {name: carried[name] for name in ("EURJPY", "EURUSD")}
    config = KERNEL.configure({"data": {"folder": str(folder)}, "return_variance": few})
    late = load_window(config, start=int(own.data.time[600])).data.constants[:, VARIANCE]
    assert late.tolist()[:2] == list(few.values())
    assert late[2] == pytest.approx(np.mean(list(few.values())))  # not its own: that is the future
    with pytest.raises(ConfigError, match="return_variance"):
        load(folder, return_variance=0.0)
