"""Train on synthetic prices with a known edge, and compare the policy with the optimum.

python examples/07_synthetic_forex.py [STEPS] [BARS]

Output:

    test split: 11,736 bars, 162 fills, return +68.7%
    expected profit after costs: 95% of the optimum
"""

import sys
import tempfile

import numpy as np

import slipstream
from slipstream.markets.synthetic import SyntheticForex

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
bars = int(sys.argv[2]) if len(sys.argv) > 2 else 60_000
seed, market = 7, SyntheticForex()

with tempfile.TemporaryDirectory() as folder:
    market.write(folder, bars, seed)  # 15-minute bars of EURUSD, as a Parquet file
    run = slipstream.train(
        {
            "env": {
                "name": "forex",
                "data": {"folder": folder, "spread_pips": 0.0},
                "features": ["signal", "noise_0", "noise_1"],  # columns of the file
                "commission_per_million": 200.0,  # 2 basis points a leg
            },
            "agent": {"n_steps": 256, "batch_size": 256, "gamma": 0.9, "gae_lambda": 0.9},
            "training": {"num_envs": 12, "total_timesteps": steps},
        },
        report=False,
    )
    # The test split: bars that neither trained nor selected the policy.
    (track,) = slipstream.evaluate(run).splits["test"].episodes

# The test split ends with the file. A position decided on bar t is held through bar t + 1.
signal = market.generate(bars, seed)[0].extra["signal"][-track.length - 1 : -1]
positions = np.sign(np.round(track.trace["exposure"], 3))
best = market.score(market.optimal_positions(signal), signal)
share = market.score(positions, signal) / best
fills, total = track.metrics["fills"], track.metrics["total_return"]
print(f"test split: {track.length:,} bars, {fills:.0f} fills, return {total:+.1%}")
print(f"expected profit after costs: {share:.0%} of the optimum")
