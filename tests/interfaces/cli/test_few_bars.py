"""`slipstream init` of short histories: what it writes, `train` accepts."""

import numpy as np
import polars as pl
import pytest

from slipstream.cli.commands.config_template import config_template
from slipstream.core.storage import yaml_file
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.markets.starter_config import build_config
from slipstream.training.settings.config import resolve

LENGTHS = {"5m": (300, 1500), "1h": (3600, 3000), "days": (86_400, 1200), "weeks": (604_800, 1400)}


def written(folder, environment):
    """Return the config's head of comments and its section `env`."""
    values, head = build_config(environment, str(folder))
    text = config_template(resolve(values), head)
    comments = [line for line in text.splitlines() if line.startswith("#")]
    return "\n".join(comments), yaml_file.parse(text, "my.yaml")["env"]


def bars(folder, symbols, length, count, seed=0):
    draw = np.random.default_rng(seed)
    first = 1_388_534_400 - (900 * 604_800 if length == 604_800 else 0)  # 2014, or 1996
    time = first + length * np.arange(count)
    if "USDT" not in symbols[0]:
        time = time[(time // 86_400 + 3) % 7 < 5]
    for symbol in symbols:
        close = (1.2 if "USDT" not in symbol else 100.0) * np.exp(
            np.cumsum(2e-3 * draw.standard_normal(len(time)))
        )
        opened = np.append(close[0], close[:-1])
        high, low = np.maximum(opened, close) * 1.001, np.minimum(opened, close) * 0.999
        columns = {"open": opened, "high": high, "low": low, "close": close}
        pl.DataFrame({"time": time, **columns, "volume": 10.0 + draw.random(len(time))}).write_csv(
            folder / f"{symbol}.csv"
        )


@pytest.mark.parametrize("environment", ["portfolio", "forex"])
@pytest.mark.parametrize("length", LENGTHS)
def test_what_init_writes_loads(tmp_path, length, environment):
    bars(tmp_path, ("AAAUSDT", "BBBUSDT"), *LENGTHS[length])
    head, env = written(tmp_path, environment)
    assert "STILL OPEN" not in head
    name = env.pop("name")
    loaded = load_kernel(name).load(load_kernel(name).configure(env))
    assert {"train", "validation", "test"} <= set(loaded.params)
    assert ("Of 1,200 bars" in head) == (length == "days")


def test_daily_forex_needs_a_zone_alone(tmp_path):
    bars(tmp_path, ("EURUSD",), 86_400, 3000)
    head, env = written(tmp_path, "forex")
    assert "STILL OPEN" not in head
    loaded = load_kernel("forex").load(
        load_kernel("forex").configure({k: v for k, v in env.items() if k != "name"})
    )
    assert {"train", "validation", "test"} <= set(loaded.params)
    assert not any("gap" in note for note in loaded.warnings)


def test_too_few_bars_for_anything_are_named(tmp_path):
    bars(tmp_path, ("EURUSD",), 86_400, 150)
    head, _ = written(tmp_path, "forex")
    assert "108 bars are too few for any choice of features and splits" in head
