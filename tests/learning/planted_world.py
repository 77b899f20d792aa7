"""The planted-crypto market as the portfolio environment, and what a pass on it is worth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.features.sets import FEATURE_SETS
from slipstream.market.config import DataConfig
from slipstream.market.panel import load_panel
from slipstream.market.planted_crypto import (
    STANDARD,
    PlantedCrypto,
    hot_assets,
    optimum,
    score,
    write_planted_crypto,
)
from slipstream.training.environment import Environment, resolve_environment
from slipstream.training.track import Track

# A planted bar opens at the last close: another column takes the place of the one that says so.
FEATURES = ["log_return_5" if name == "log_open" else name for name in FEATURE_SETS["portfolio"]]
ASSETS = 7


def settings_of(
    folder: Path, bars: int, seed: int, market: PlantedCrypto = STANDARD
) -> dict[str, object]:
    """Writes a path and returns the environment's settings for it."""
    write_planted_crypto(folder, bars, seed, market)
    return {"data": {"folder": str(folder)}, "features": FEATURES}


def environment_of(
    folder: Path, bars: int, seed: int, split: tuple[float, float, float]
) -> Environment:
    """A fresh path, cut into train, validation and test."""
    shares = dict(zip(("train", "validation", "test"), split, strict=True))
    return resolve_environment("portfolio", {**settings_of(folder, bars, seed), "split": shares})


def hot_of(folder: Path) -> NDArray[np.int64]:
    """Which asset is hot at each row."""
    return hot_assets(load_panel(DataConfig(folder=str(folder))))


def share_of_optimum(track: Track, environment: Environment, hot: NDArray[np.int64]) -> float:
    """Conditional drift of what a pass held, after its fees, over the optimum's."""
    assert environment.loaded is not None
    bars = len(track.trace["bar"]) - 1  # the last one sells everything
    bar = track.trace["bar"][:bars].astype(int)
    before = np.concatenate([[1e5], track.trace["equity"][: bars - 1]])[:, None]
    prices = environment.loaded.data.prices
    weights = track.trace["units"][:bars] * prices[bar, ASSETS : 2 * ASSETS] / before
    fees = np.diff(track.trace["cost_fee"][:bars], prepend=0.0)
    traded = fees / 0.001 / before[:, 0]
    return score(weights, hot[bar - 1], traded) / bars / optimum()
