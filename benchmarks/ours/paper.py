"""Paper account that decides on one more bar."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import load_market
from slipstream.markets.live.bar_store import BarSchema, group_bars
from slipstream.markets.live.feed import FeedUpdate
from slipstream.markets.live.paper_account import PaperAccount
from slipstream.markets.synthetic import SyntheticForex
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import pack, unpack
from slipstream.training.environments.factory import make_environment
from slipstream.training.runs.policies import DeployedPolicy
from slipstream.training.settings.config import RunConfig

_TIMES = 20


def decision(bars: int, seconds: float) -> dict[str, float]:
    """Measure the median seconds of storing a bar, deciding on it and storing the decision.

    Args:
        bars: number of bars stored before.
        seconds: unused; the number of timed decisions is fixed.
    """
    with tempfile.TemporaryDirectory() as place:
        prices = Path(place) / "prices"
        SyntheticForex().write(prices, bars + _TIMES, 0, bar_seconds=900)
        data = {"folder": str(prices), "spread_pips": 0.5}
        config = RunConfig.from_mapping({"env": {"name": "forex", "data": data}})
        environment = make_environment("forex", config.env_settings)
        tensors, manifest = pack(Policy([environment.spec], [0]), 0, environment.training_context)
        policy = DeployedPolicy(Path(place), unpack(tensors, manifest), config, {})
        market = load_market(DataConfig.model_validate(data))
        shape = BarSchema(market.symbols, (), market.bar_seconds, market.kind, (), "auto")
        moments = group_bars(market.bars, shape)
        account = PaperAccount(Path(place) / "account", policy, shape, None, max_gap=bars)
        account.process(FeedUpdate(moments[:bars], market.bars, moments[bars - 1].time))
        spent = []
        for moment in moments[bars : bars + _TIMES]:
            begun = time.perf_counter()
            account.process(FeedUpdate([moment], market.bars, moment.time))
            spent.append(time.perf_counter() - begun)
        account.close()
    return {"seconds": float(np.median(spent)), "bars": float(bars)}
