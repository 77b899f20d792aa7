"""Planted markets as the portfolio environment, and what a pass on one is worth."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.features.sets import FEATURE_SETS
from slipstream.market.config import DataConfig
from slipstream.market.panel import load_panel
from slipstream.market.planted import crypto, reversion
from slipstream.market.planted.prices import BASIS_POINT
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.record.track import Track

# A planted bar opens at the last close: another column takes the place of the one that says so.
FEATURES = ["log_return_5" if name == "log_open" else name for name in FEATURE_SETS["portfolio"]]


class Regimes(NamedTuple):
    """planted-crypto: one asset rises for 288 bars on average."""

    market: crypto.PlantedCrypto = crypto.STANDARD

    @property
    def optimum(self) -> float:
        """Log growth a bar of the best policy that sees the state."""
        return crypto.optimum(self.market)

    def write(self, folder: Path, bars: int, seed: int) -> None:
        """Writes a path."""
        crypto.write_planted_crypto(folder, bars, seed, self.market)

    def drift(self, folder: Path) -> NDArray[np.float64]:
        """Expected log growth of each asset in the bar after each row of a path, [T, A]."""
        panel = load_panel(DataConfig(folder=str(folder)))
        return crypto.drift_of(crypto.hot_assets(panel), len(panel.symbols), self.market)


class Reversion(NamedTuple):
    """planted-reversion: an edge of one bar."""

    market: reversion.PlantedReversion

    @property
    def optimum(self) -> float:
        """Log growth a bar of the best policy that sees the state."""
        return reversion.optimum(self.market).gain

    def write(self, folder: Path, bars: int, seed: int) -> None:
        """Writes a path."""
        reversion.write_planted_reversion(folder, bars, seed, self.market)

    def drift(self, folder: Path) -> NDArray[np.float64]:
        """Expected log growth of each asset in the bar after each row of a path, [T, A]."""
        panel = load_panel(DataConfig(folder=str(folder)))
        return reversion.drift_of(reversion.shocks(panel), self.market)


STANDARD = Regimes()
MARKETS: dict[str, Regimes | Reversion] = {
    "regimes, 20 bp": Regimes(crypto.PlantedCrypto(strength=20.0 * BASIS_POINT)),
    "reversion, fee 1 bp": Reversion(reversion.PlantedReversion(fee=1.0 * BASIS_POINT)),
    "reversion, fee 10 bp": Reversion(reversion.PlantedReversion(fee=10.0 * BASIS_POINT)),
}


def settings_of(
    folder: Path, bars: int, seed: int, market: crypto.PlantedCrypto = crypto.STANDARD
) -> dict[str, object]:
    """Writes a path and returns the environment's settings for it."""
    Regimes(market).write(folder, bars, seed)
    return {"data": {"folder": str(folder)}, "features": FEATURES}


def environment_of(
    folder: Path,
    bars: int,
    seed: int,
    split: tuple[float, float, float],
    market: Regimes | Reversion = STANDARD,
) -> Environment:
    """A fresh path, cut into train, validation and test."""
    market.write(folder, bars, seed)
    return resolve_environment(
        "portfolio",
        {
            "data": {"folder": str(folder)},
            "features": FEATURES,
            "fee": market.market.fee,
            "split": dict(zip(("train", "validation", "test"), split, strict=True)),
        },
    )


def share_of_optimum(
    track: Track,
    environment: Environment,
    folder: Path,
    market: Regimes | Reversion = STANDARD,
) -> float:
    """Conditional drift of what a pass on a folder's path held, after fees, over the optimum's."""
    drift = market.drift(folder)
    assert isinstance(environment, KernelEnvironment)
    bars = len(track.trace["bar"]) - 1  # the last one sells everything
    bar = track.trace["bar"][:bars].astype(int)
    start = environment.loaded.params["train"][0].initial_equity
    before = np.concatenate([[start], track.trace["equity"][: bars - 1]])
    assets = drift.shape[1]
    opens = environment.loaded.data.prices[bar, assets : 2 * assets]
    weights = track.trace["units"][:bars] * opens / before[:, None]
    fees = np.diff(track.trace["cost_fee"][:bars], prepend=0.0) / before
    return float(((weights * drift[bar - 1]).sum() - fees.sum()) / bars / market.optimum)
