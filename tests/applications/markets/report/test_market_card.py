"""The model card of a market names its bars and their licence."""

from __future__ import annotations

import json
import re

import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.markets.synthetic import SyntheticForex


def rows(text):
    """Cells of the card's tables by their first one."""
    return dict(re.findall(r"^\| ([^|]+?) \| (.*) \|$", text, re.MULTILINE))


@pytest.mark.slow  # of two evaluations with all their random traders
@pytest.mark.timeout(300)
def test_a_market_names_its_bars_and_the_licence_beside_them(tmp_path):
    SyntheticForex().write(tmp_path / "hours", 3_000, 0, bar_seconds=3_600)
    data = {"folder": str(tmp_path / "hours"), "spread_pips": 0.5}
    run = slipstream.train(
        {
            "env": {"name": "forex", "data": data, "features": ["log_return_1"], "max_steps": 50},
            "agent": {"net_arch": [8], "n_steps": 16},
        },
        num_envs=4,
        total_timesteps=128,
        out=tmp_path / "run",
        report=False,
        log=lambda _: None,
    )
    reads = run.test_reads
    told = rows(slipstream.write_model_card(run).read_text())
    assert told["licence of the data"].startswith("not stated")
    (tmp_path / "hours/LICENSE").write_text("\nMIT License\n\nCopyright (c) 2019 Somebody\nmore\n")
    text = slipstream.write_model_card(run, out=tmp_path / "given").read_text()
    told = rows(text)
    assert told["licence of the data"].startswith("MIT License, Copyright (c) 2019 Somebody")
    assert " to " in told["test bars"] and len(told["sha256"]) == 64
    assert told["Annual Sharpe ratio"] == "n/a (too few days for one)"
    assert "on bars after those above" in text
    assert slipstream.training.runs.run.Run.open(run.path).test_reads == reads  # no further look
    with pytest.raises(ConfigError, match="scored by its run"):
        slipstream.evaluate(tmp_path / "given")
    manifest = json.loads((tmp_path / "given/manifest.json").read_text())
    assert manifest["environment"]["windows_utc_seconds"]["test"]
