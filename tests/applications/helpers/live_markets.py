"""Deployed policies that nobody trained, and price files of generated markets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import slipstream
from slipstream.core.storage import checkpoint, yaml_file
from slipstream.core.storage.atomic_io import write_json, write_text
from slipstream.markets.data.calendar import is_weekend
from slipstream.markets.live import deployment_gates as deploying
from slipstream.markets.live.account_comparison import compare
from slipstream.markets.live.deployment import Deployment
from slipstream.markets.live.deployment_gates import deploy_policy
from slipstream.markets.live.feed import FeedUpdate, PriceFeed
from slipstream.markets.live.journal import Journal
from slipstream.markets.live.paper_account import JOURNAL
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import _weights, pack
from slipstream.training.environments.factory import make_environment
from slipstream.training.settings.config import RunConfig

SUNDAY = 1_740_348_000  # 2025-02-23 22:00 UTC: the forex week opens; clocks change soon
GATES = ("confirmed", "holdout", "pbo", "dsr", "costs", "cuts")


def week(bars: int, size: int = 900) -> np.ndarray:
    """Opens of the forex week."""
    times = SUNDAY + size * np.arange(2 * bars + 400)
    return times[~is_weekend(times)][:bars]


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


def momentum(time: np.ndarray) -> pl.DataFrame:
    """Prices, each of whose moves tends to follow the one before."""
    draw, moves = np.random.default_rng(0), np.zeros(len(time))
    for k in range(1, len(time)):
        moves[k] = 0.8 * moves[k - 1] + 5e-4 * draw.standard_normal()
    close = 1.1 * np.exp(np.cumsum(moves))
    opened = np.append(1.1, close[:-1])
    high, low = np.maximum(opened, close), np.minimum(opened, close)
    columns = {"open": opened, "close": close, "high": high, "low": low}
    found = table(time, 1.1, 0)
    return found.with_columns(**{name: pl.Series(one) for name, one in columns.items()})


def write(folder: Path, tables: Mapping[str, pl.DataFrame], rows: slice = slice(None)) -> Path:
    """Files of rows of the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, one in tables.items():
        one[rows].write_csv(folder / f"{name}.csv")
    return folder


Make = Callable[..., Deployment]


def save_study(
    folder: Path,
    env: str,
    data: Path | Mapping[str, Any],
    backend: str = "serial",
    *,
    follows: float = 0.0,
    until: int | None = None,
    **settings: Any,
) -> Path:
    """A study's folder with a policy that nobody trained, whose actions follow its observations.

    Args:
        folder: of the study.
        env, data, settings: of its environment.
        backend: of its copies.
        follows: 1 buys what its first feature shows rising, -1 what falls; 0: drawn weights.
        until: end of the bars that the study has used, UTC seconds.
    """
    section = {"folder": str(data)} if isinstance(data, Path) else dict(data)
    whole = {"split": {"train": 1.0, "validation": 0.0, "test": 0.0}}
    values = {"name": env, "data": section, **whole, **settings}
    config = RunConfig.from_mapping({"env": values, "training": {"backend": backend}})
    environment = make_environment(env, config.env_settings)
    policy = Policy([environment.spec], [3])
    draw = np.random.default_rng(5)  # as it begins, it almost always does the same
    for _, weight in _weights(policy, 0, places=True):
        if not follows:
            weight += 0.3 * draw.standard_normal(weight.shape).astype(np.float32)
            continue
        weight[...] = 0.0
        if weight.ndim == 2:  # [in, out]: the first unit of each layer carries the first feature
            weight[0, 0] = 10.0
        if weight.shape[-1] == 3 and weight.ndim == 2:
            weight[0] = np.array([-follows, 0.0, follows], np.float32)
    tensors, manifest = pack(policy, 0, environment.training_context)
    carried = environment.provenance.get("carried") or {}
    windows = {} if until is None else {"windows_utc_seconds": {"holdout": [until - 900, until]}}
    facts = {"study": folder.name, "id": folder.name, "label": "first seed"}
    facts |= {"environment": {"carried": carried, **windows}}
    known = {"policy": dict(manifest), "run": config.as_mapping(), **facts}
    checkpoint.save(folder / "policy", tensors, known)
    write_json(folder / "provenance.json", {"id": folder.name})
    write_text(folder / "study.yaml", yaml_file.dump({**config.as_mapping(), "study": {}}))
    (folder / "ledger.db").touch()
    return folder


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Deploys the policy of `save_study`, all gates forced but the cuts."""

    def made(
        env: str, data: Path | Mapping[str, Any], name: str = "demo", **settings: Any
    ) -> Deployment:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.setattr(deploying, "NUM_CUTS", 10)
        study = save_study(tmp_path / "studies" / "first", env, data, **settings)
        return deploy_policy(study, name, dict.fromkeys(GATES[:5], "a test"))

    return made


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Opens after which a poll ends; all other bars are returned by the week."""
    ends: set[int] = set()

    class Blocks(PriceFeed):
        def poll(self, after: int, begin: int | None = None) -> FeedUpdate:
            update = super().poll(after, begin)
            groups, week = list(update.groups), 7 * 86_400 // self._schema.bar_seconds
            while groups and groups[-1].time not in ends and len(groups) < week:
                update = super().poll(groups[-1].time, begin)
                if not update.groups:
                    break
                groups += update.groups
            return update._replace(groups=groups)

    monkeypatch.setattr("slipstream.markets.live.feed.PriceFeed", Blocks)
    return ends


def decisions(found: Deployment) -> dict[str, list[Any]]:
    journal = Journal(found.account(found.current) / JOURNAL)
    rows = {name: journal.decisions(name) for name in journal.pass_names()}
    journal.close()
    return rows


def check_equal(name: str, least: int) -> None:
    """Every decision and equity as `evaluate` has them, over both ways to it."""
    for one in compare(name).passes:
        assert one.num_compared >= least and one.num_equal == one.num_compared
        assert len(one.rows) == one.num_compared + 1  # the last one waits for its bar
    tracks = slipstream.evaluate(name).episodes
    rows = decisions(Deployment.open(name))
    for track in tracks:
        own = rows[track.name]
        assert [list(row.action) for row in own[:-1]] == track.actions.tolist()
        equity = [float(one) for one in track.trace["equity"]]
        assert [row.equity for row in own[1:-1]] == equity[:-1]
        assert len({row.action for row in own}) > 1  # it does something
        assert any(row.target_units != own[0].target_units for row in own)
