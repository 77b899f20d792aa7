"""IntradayJules' usage example: all but the import line, the path and the prices is theirs.

python examples/older_systems/intraday.py [STEPS]

Where data/forex holds no prices, random walks are written there, on which nothing can be learned.
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

import slipstream
from slipstream.compat.intraday import TrainerAgent

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000


def write_walks(folder: Path, symbols: dict[str, float], bars: int = 4_000) -> None:
    folder.mkdir(parents=True)
    # The forex week, Sunday 17:00 to Friday 17:00 in New York.
    weeks = np.datetime64("2024-01-07T22:00") + 7 * np.arange(bars // 480 + 1, dtype="m8[D]")
    times = (weeks[:, None] + 15 * np.arange(480, dtype="m8[m]")).reshape(-1)[:bars]
    for seed, (symbol, price) in enumerate(symbols.items()):
        close = price * np.exp(np.cumsum(np.random.default_rng(seed).normal(0.0, 3e-4, bars)))
        opened = np.concatenate([[price], close[:-1]])
        prices = {"open": opened, "high": np.maximum(opened, close) * 1.0001}
        prices |= {"low": np.minimum(opened, close) * 0.9999, "close": close}
        stamps = pl.Series(times.astype("M8[us]")).dt.replace_time_zone("UTC")
        frame = pl.DataFrame({"timestamp": stamps, **prices, "volume": np.full(bars, 100.0)})
        frame.write_parquet(folder / f"{symbol}.parquet")


if not Path("data/forex").exists():
    levels = {"EURUSD": 1.09, "GBPUSD": 1.27, "USDJPY": 145.0, "USDCHF": 0.86}
    write_walks(Path("data/forex"), levels)

config = {
    "algorithm": "DQN",
    "environment": {
        "observation_feature_cols": ["rsi_14", "ema_10", "ema_20"],
        "initial_balance": 100000,
        "action_type": "discrete",
    },
    "training": {"total_timesteps": steps},
}
trainer = TrainerAgent(config)
vec_env = trainer.create_vectorized_env(
    symbols=["EURUSD", "GBPUSD", "USDJPY", "USDCHF"],
    data_dir=Path("data/forex"),
    n_envs=None,
    use_shared_memory=False,
)
trainer.set_env(vec_env)
model_path = trainer.train()
print("model:", model_path, slipstream.load_policy(model_path))
