"""The forex environment as the benchmarks set it up: every rule on, the peers' own prices."""

from __future__ import annotations

from typing import Any

# Hourly EURUSD of 2017, the file that gym-anytrading's forex-v0 trades.
HOURLY_EURUSD: dict[str, Any] = {
    "folder": "package:gym_anytrading/datasets/data",
    "files": {"EURUSD": "FOREX_EURUSD_1H_ASK.csv"},
    "symbols": ["EURUSD"],
    "time_zone": "UTC",
    "price_side": "ask",
    "spread_pips": 0.8,
}

ALL_RULES: dict[str, Any] = {
    "data": HOURLY_EURUSD,
    "lookback": 2,
    "slippage_pips": 0.1,
    "commission_per_million": 30.0,
    "stop_loss": 20.0,
    "take_profit": 40.0,
    "max_daily_drawdown": 0.05,
    "flat_on_friday": "16:45",
    "cooldown": 1,
    "swap_long": -2.0,
    "swap_short": 0.5,
    "turnover_penalty": 1e-5,
    "holding_penalty": 1e-7,
    "drawdown_penalty": 1e-6,
}
