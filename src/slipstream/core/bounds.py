"""Bounds of settings: values beyond them are typing errors.

The bounds of prices, money and games are far beyond useful values, but small enough that sums of
prices, equity and steps stay exact or finite in float64 and int64.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from slipstream.core.capacity import free_memory
from slipstream.core.errors import ConfigError, ResourceError

Count = Annotated[int, Field(ge=1, le=10**15)]
Natural = Annotated[int, Field(ge=0, le=10**15)]  # includes 0
Seed = Annotated[int, Field(ge=0, lt=2**63)]

Share = Annotated[float, Field(gt=0.0, le=1.0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
InnerShare = Annotated[float, Field(gt=0.0, lt=1.0)]

# Weights of a categorical distribution.
Weight = Annotated[float, Field(ge=0.0, le=1e6)]

# Learning rates and similar: within the range of squared float32 weights.
StepSize = Annotated[float, Field(gt=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=1e6)]
NotNegative = Annotated[float, Field(ge=0.0, le=1e6)]
Epsilon = Annotated[float, Field(ge=1e-12, le=1.0)]

# Times and counts of bars: a million 1-minute bars are two years, 1e9 are more than any file has.
BarCount = Annotated[int, Field(ge=0, le=1_000_000_000)]
SomeBars = Annotated[int, Field(ge=1, le=1_000_000_000)]

# 100 pips are 1 % of EURUSD; news widens spreads to some 50. 10,000 pips are a price of 1.0.
SpreadPips = Annotated[float, Field(ge=0.0, le=10_000.0)]
SlippagePips = Annotated[float, Field(ge=0.0, le=1_000.0)]

# Brokers offer up to 1:3000.
Leverage = Annotated[float, Field(ge=1.0, le=10_000.0)]
Exposure = Annotated[float, Field(gt=0.0, le=10_000.0)]

# Sums of account currency: below 1e15, float64 resolves a cent.
Equity = Annotated[float, Field(ge=1e-3, le=1e15)]
Money = Annotated[float, Field(ge=0.0, le=1e15)]

# Coins or units of a currency: 1e15 exceeds the supply of the cheapest coin.
Quantity = Annotated[float, Field(ge=0.0, le=1e15)]

# Factors of observations and rewards: float32 holds their products.
Factor = Annotated[float, Field(ge=1e-12, le=1e12)]

# Rewards are log returns, some 1e-3 a bar.
Penalty = Annotated[float, Field(ge=0.0, le=1_000.0)]

# Games: time steps up to a second, masses and forces up to a truck's; squares stay finite.
Gravity = Annotated[float, Field(ge=-1_000.0, le=1_000.0)]
Magnitude = Annotated[float, Field(ge=1e-6, le=1e6)]
TimeStep = Annotated[float, Field(gt=0.0, le=1.0)]


_ENV_BYTES = 256  # minimum per environment: its state, rows and statistics


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Validate a count given in Python, of any integer class.

    Raises:
        ConfigError: it is not an integer of at least `least`.
        ResourceError: it is `num_envs`, and the environments exceed the memory.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ConfigError(f"`{name}` must be at least {least}, a whole number; it is {value!r}.")
    if name == "num_envs":
        check_env_memory(int(value))
    return int(value)


def check_env_memory(num_envs: int, env_bytes: int = _ENV_BYTES) -> None:
    """Raise an error if environments do not fit into memory, before anything is allocated.

    Raises:
        ResourceError: has the memory that they need and the free memory.
    """
    needed, free = num_envs * max(env_bytes, _ENV_BYTES), free_memory()
    if needed > free:
        raise ResourceError(
            f"{num_envs:,} environments need {needed // 2**30:,} GiB or more, "
            f"{free / 2**30:,.1f} GiB of memory are free: lower num_envs."
        )
