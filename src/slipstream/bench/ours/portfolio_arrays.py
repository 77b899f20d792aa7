"""Writes the arrays of a study's first fold, for peers that do not read prices themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from slipstream.bench.peers.portfolio_env import PeerPrices
from slipstream.bench.worker import serve
from slipstream.core.discover import load_kernel
from slipstream.market.folds import FoldPlan


def measure(env: Mapping[str, Any], folder: str) -> dict[str, float]:
    """Loads what a study with these settings of its portfolio would and fills `folder`."""
    kernel = load_kernel("portfolio")
    assert kernel.load_folds is not None
    loaded = kernel.load_folds(kernel.configure(env), FoldPlan())
    arrays, params = loaded.data, loaded.params
    first = params["fold0/train"][0]
    assets, columns = first.assets, first.num_features
    mean, deviation = arrays.feature_mean[first.scale], arrays.feature_std[first.scale]
    scaled = (arrays.features[:, :columns] - mean) / deviation
    rows = range(first.first_segment, first.first_segment + first.num_segments)
    PeerPrices(
        open=np.ascontiguousarray(arrays.prices[:, assets : 2 * assets]),
        close=np.ascontiguousarray(arrays.prices[:, :assets]),
        features=scaled.astype(np.float32),
        train=arrays.segments[list(rows)],
        test=arrays.segments[[record.first_segment for record in params["fold0/test"]]],
    ).write(folder)
    return {"bars": float(len(scaled)), "numbers": float(columns)}


if __name__ == "__main__":
    serve(measure)
