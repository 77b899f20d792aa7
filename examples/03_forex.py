"""Train on real prices, hourly EURUSD of 2017, and read the test split once.

The price file is part of slipstream. It comes from gym-anytrading (MIT licence).

python examples/03_forex.py [STEPS]

Output:

    EURUSD: 974 bars, return +3.15%
    report: /tmp/runs/forex-20261128-230639/report.html
"""

import sys

import slipstream

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000

run = slipstream.train(
    {
        "env": {
            "name": "forex",
            "data": {
                "folder": "package:slipstream/cli/demo/prices",
                "files": {"EURUSD": "FOREX_EURUSD_1H_ASK.csv"},
                "time_zone": "UTC",  # the file's timestamps name no zone
                "price_side": "ask",
                "spread_pips": 0.8,
            },
        },
        "training": {"members": 2, "num_envs": 16, "total_timesteps": steps},
    }
)
result = slipstream.evaluate(run)
for episode in result.best.episodes:  # one per symbol, on the test split
    total = episode.metrics["total_return"]
    print(f"{episode.name}: {episode.length:,} bars, return {total:+.2%}")
print("report:", run.path / "report.html")
