"""Deployed policies that nobody trained, and price files of generated markets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from slipstream.environments.factory import make_environment
from slipstream.files import checkpoint
from slipstream.live import gates
from slipstream.live.deployment import Deployment, deploy
from slipstream.market.calendar import in_weekend
from slipstream.nets.policy import Policy
from slipstream.nets.policy_file import _weights, pack
from slipstream.settings.config import RunConfig

SUNDAY = 1_740_348_000  # 2025-02-23 22:00 UTC: the forex week opens; clocks change soon
GATES = ("confirmed", "holdout", "pbo", "dsr", "costs", "cuts")


def week(bars: int, size: int = 900) -> np.ndarray:
    """Opens of the forex week."""
    times = SUNDAY + size * np.arange(2 * bars + 400)
    return times[~in_weekend(times)][:bars]


def table(time: np.ndarray, price: float, seed: int, step: float = 3e-4) -> pl.DataFrame:
    """A random walk as a file of prices has it."""
    draw, n = np.random.default_rng(seed), len(time)
    close = price * np.exp(np.cumsum(step * draw.standard_normal(n)))
    opened = np.append(price, close[:-1])
    reach = step * price * draw.random((2, n))
    return pl.DataFrame(
        {
            "time": [f"{np.datetime64(int(t), 's')}Z" for t in time],
            "open": opened,
            "high": np.maximum(opened, close) + reach[0],
            "low": np.minimum(opened, close) - reach[1],
            "close": close,
            "volume": np.exp(draw.standard_normal(n)),
            "spread": 1e-4 * price * draw.random(n),
        }
    )


def write(folder: Path, tables: Mapping[str, pl.DataFrame], rows: slice = slice(None)) -> Path:
    """Files of rows of the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, one in tables.items():
        one[rows].write_csv(folder / f"{name}.csv")
    return folder


Make = Callable[..., Deployment]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Deploys an untrained policy, whose actions follow its observations, as a study's."""

    def made(
        env: str, data: Path | Mapping[str, Any], name: str = "demo", **settings: Any
    ) -> Deployment:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(gates, "CUTS", 10)
        section = {"folder": str(data)} if isinstance(data, Path) else dict(data)
        whole = {"split": {"train": 1.0, "validation": 0.0, "test": 0.0}}
        values = {"name": env, "data": section, **whole, **settings}
        config = RunConfig.from_mapping({"env": values, "training": {"backend": "serial"}})
        environment = make_environment(env, config.env_settings)
        policy = Policy([environment.spec], [3])
        draw = np.random.default_rng(5)  # as it begins, it almost always does the same
        for _, weight in _weights(policy, 0, places=True):
            weight += 0.3 * draw.standard_normal(weight.shape).astype(np.float32)
        tensors, manifest = pack(policy, 0, environment.conditions)
        carried = environment.provenance.get("carried") or {}
        facts = {"study": "first", "label": "first seed", "environment": {"carried": carried}}
        known = {"policy": dict(manifest), "run": config.as_mapping(), **facts}
        study = tmp_path / "studies" / "first"
        checkpoint.save(study / "policy", tensors, known)
        (study / "ledger.db").touch()
        return deploy(study, name, dict.fromkeys(GATES[:5], "a test"))

    return made
