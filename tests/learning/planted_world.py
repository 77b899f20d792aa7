"""The planted-crypto market as the portfolio environment, and what a pass on it is worth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipstream.bench import planted
from slipstream.market.config import DataConfig
from slipstream.market.panel import load_panel
from slipstream.market.planted_crypto import (
    STANDARD,
    PlantedCrypto,
    drift_of,
    hot_assets,
    write_planted_crypto,
)
from slipstream.training.environments.environment import Environment
from slipstream.training.record.track import Track

ASSETS = 7
MARKET = planted.Regimes(STANDARD)


def settings_of(
    folder: Path, bars: int, seed: int, market: PlantedCrypto = STANDARD
) -> dict[str, object]:
    """Writes a path and returns the environment's settings for it."""
    write_planted_crypto(folder, bars, seed, market)
    return {"data": {"folder": str(folder)}, "features": planted.FEATURES}


def environment_of(
    folder: Path, bars: int, seed: int, split: tuple[float, float, float]
) -> Environment:
    """A fresh path, cut into train, validation and test."""
    return planted.environment_of(MARKET, folder, bars, seed, split)


def hot_of(folder: Path) -> NDArray[np.int64]:
    """Which asset is hot at each row."""
    return hot_assets(load_panel(DataConfig(folder=str(folder))))


def share_of_optimum(track: Track, environment: Environment, hot: NDArray[np.int64]) -> float:
    """Conditional drift of what a pass held, after its fees, over the optimum's."""
    return planted.share_of_optimum(track, environment, MARKET, drift_of(hot, ASSETS))
