"""Steps per second of FinRL_Crypto's unit-order rules in NumPy, one environment at a time."""

from __future__ import annotations

import time

import numpy as np

from slipstream.bench.peers.numpy_unit_orders import NumpyUnitOrders
from slipstream.bench.peers.portfolio_env import PeerPrices
from slipstream.bench.worker import serve

_ACTIONS = 4_096  # drawn beforehand


def measure(folder: str, seconds: float) -> dict[str, float]:
    """Random actions over the prices of a folder that `Prices.write` filled."""
    prices = PeerPrices.read(folder)
    close, features = np.array(prices.close), np.array(prices.features, np.float64)
    assets = close.shape[1]
    env = NumpyUnitOrders(close, features, np.full(assets, 0.01))
    actions = np.random.default_rng(0).uniform(-1.0, 1.0, (_ACTIONS, assets))
    steps = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for action in actions:
            done = env.step(action)[2]
            if done:
                env.reset()
        steps += _ACTIONS
    return {"steps_per_second": steps / (time.perf_counter() - began)}


if __name__ == "__main__":
    serve(measure)
