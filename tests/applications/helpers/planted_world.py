"""Planted markets as the portfolio environment, and what a pass on one is worth."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.panel import load_panel
from slipstream.markets.features.feature_registry import FEATURE_SETS
from slipstream.markets.synthetic import (
    BASIS_POINT,
    SyntheticCrypto,
    SyntheticMarket,
    SyntheticReversion,
)
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.episode_result import EpisodeResult

# A planted bar opens at the last close: another column takes the place of the one that says so.
FEATURES = ["log_return_5" if name == "log_open" else name for name in FEATURE_SETS["portfolio"]]


STANDARD = SyntheticCrypto()
MARKETS: dict[str, SyntheticMarket] = {
    "regimes, 20 bp": SyntheticCrypto(strength=20.0 * BASIS_POINT),
    "reversion, fee 1 bp": SyntheticReversion(fee=1.0 * BASIS_POINT),
    "reversion, fee 10 bp": SyntheticReversion(fee=10.0 * BASIS_POINT),
}


def settings_of(
    folder: Path, bars: int, seed: int, market: SyntheticCrypto = STANDARD
) -> dict[str, object]:
    """Writes a path and returns the environment's settings for it."""
    market.write(folder, bars, seed)
    return {"data": {"folder": str(folder)}, "features": FEATURES}


def environment_of(
    folder: Path,
    bars: int,
    seed: int,
    split: tuple[float, float, float],
    market: SyntheticMarket = STANDARD,
) -> Environment:
    """A fresh path, cut into train, validation and test."""
    market.write(folder, bars, seed)
    return resolve_environment(
        "portfolio",
        {
            "data": {"folder": str(folder)},
            "features": FEATURES,
            "fee": market.fee,
            "split": dict(zip(("train", "validation", "test"), split, strict=True)),
        },
    )


def share_of_optimum(
    track: EpisodeResult,
    environment: Environment,
    folder: Path,
    market: SyntheticMarket = STANDARD,
) -> float:
    """Conditional drift of what a pass on a folder's path held, after fees, over the optimum's."""
    drift = market.drift(market.state(load_panel(DataConfig(folder=str(folder)))))
    assert isinstance(environment, KernelEnvironment)
    bars = len(track.trace["bar"]) - 1  # the last one sells everything
    bar = track.trace["bar"][:bars].astype(int)
    start = environment.loaded.params["train"][0].initial_equity
    before = np.concatenate([[start], track.trace["equity"][: bars - 1]])
    assets = drift.shape[1]
    opens = environment.loaded.data.prices[bar, assets : 2 * assets]
    weights = track.trace["units"][:bars] * opens / before[:, None]
    fees = np.diff(track.trace["cost_fee"][:bars], prepend=0.0) / before
    return float(((weights * drift[bar - 1]).sum() - fees.sum()) / bars / market.optimal_gain)
