"""The planted market of known optimum, as the environment sees it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.vector_env import StepBuffers, member_indices
from slipstream.markets.forex.forex_state import CLOSE, OPEN
from slipstream.markets.synthetic import SyntheticForex


def test_the_optimal_policy_earns_what_the_chain_says(tmp_path: Path) -> None:
    """2 bp per unit of exposure change is a commission of 200 per million of notional."""
    SyntheticForex().write(tmp_path, bars=6000, seed=3)
    kernel = load_kernel("forex")
    signals = ["signal", *(f"noise_{k}" for k in range(14))]
    config = kernel.configure(
        {"data": {"folder": str(tmp_path)}, "features": signals, "commission_per_million": 200.0}
    )
    loaded = kernel.load(config)
    seeds, indices = member_indices([0], 1)
    env = KernelVectorEnv(kernel, loaded, seeds, indices, split="train_window")
    obs = np.zeros((1, *env.spec.observation_shape), np.float32)
    assert obs.shape == (1, 15 + 4 + 3 + 2)
    env.reset(obs)
    d = loaded.data
    low, high = (int(row) for row in d.segments[loaded.params["train_window"][0].first_segment])
    assert d.bars[low + 1, OPEN] == pytest.approx(d.bars[low, CLOSE], rel=1e-12)
    wanted = SyntheticForex().optimal_positions(d.features[low : high - 1, 0].astype(np.float64))
    assert len(set(wanted)) >= 2
    out = StepBuffers(obs, np.zeros(1, np.float32), *(np.zeros(1, np.bool_) for _ in range(3)))
    reward = 0.0
    for position in wanted:
        env.step(np.array([[int(position) + 1]]), out)
        reward += float(out.reward[0])
    moves = np.diff(np.log(d.bars[low:high, CLOSE]))
    turnover = np.abs(np.diff(wanted, prepend=0.0, append=0.0)).sum()
    expected = wanted @ moves - 2e-4 * turnover
    assert out.truncated[0]
    # Not rebalanced, and short the log return of equity lies r^2 below minus that of the price.
    assert reward == pytest.approx(expected, rel=0.02)
    (fills,) = env.drain_episodes().metrics["fills"]
    assert fills == pytest.approx(np.count_nonzero(np.diff(wanted, prepend=0.0, append=0.0)), abs=1)
