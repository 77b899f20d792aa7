"""Does it learn to trade? On prices with a planted edge the best possible result is known.

python examples/07_planted_forex.py [STEPS] [BARS]
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
    # The test split: bars that neither training nor the choice of the best policy saw.
    (track,) = slipstream.evaluate(run).splits["test"].episodes

# The test split ends with the file, and a position decided on bar t is held through bar t + 1.
signal = market.generate(bars, seed)[0].extra["signal"][-track.length - 1 : -1]
positions = np.sign(np.round(track.trace["exposure"], 3))
best = market.score(market.optimal_positions(signal), signal)
share = market.score(positions, signal) / best
fills, total = track.metrics["fills"], track.metrics["total_return"]
print(f"{track.length:,} bars of test, {fills:.0f} fills, return {total:+.1%}")
print(f"expected earnings after costs: {share:.0%} of the optimum")
