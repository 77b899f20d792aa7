"""How large a setting may be: beyond these bounds a number is a slip of the keyboard.

Those of prices, money and games are far from anything useful, and near enough that sums of prices,
equity and steps stay exact or finite in float64 and int64.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from slipstream.core.capacity import free_memory
from slipstream.core.errors import ConfigError, ResourceError

Count = Annotated[int, Field(ge=1, le=10**15)]
Natural = Annotated[int, Field(ge=0, le=10**15)]  # 0 is one of them
Seed = Annotated[int, Field(ge=0, lt=2**63)]

Share = Annotated[float, Field(gt=0.0, le=1.0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
InnerShare = Annotated[float, Field(gt=0.0, lt=1.0)]

# Of choices that are drawn by weight.
Weight = Annotated[float, Field(ge=0.0, le=1e6)]

# Of learning: far beyond what learns, within what float32 weights and their squares can hold.
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

# Sums of account currency: below 1e15 a cent still counts in float64.
Equity = Annotated[float, Field(ge=1e-3, le=1e15)]
Money = Annotated[float, Field(ge=0.0, le=1e15)]

# Coins or units of a currency: 1e15 of the cheapest coin is more than there is.
Quantity = Annotated[float, Field(ge=0.0, le=1e15)]

# Factors of observations and rewards: float32 holds their products.
Factor = Annotated[float, Field(ge=1e-12, le=1e12)]

# Rewards are log returns, some 1e-3 a bar.
Penalty = Annotated[float, Field(ge=0.0, le=1_000.0)]

# Games: steps of a simulation beyond a second, or masses and forces beyond a lorry's, are no longer
# the task; at 1e150 their squares are infinite.
Gravity = Annotated[float, Field(ge=-1_000.0, le=1_000.0)]
Magnitude = Annotated[float, Field(ge=1e-6, le=1e6)]
TimeStep = Annotated[float, Field(gt=0.0, le=1.0)]


_COPY_BYTES = 256  # of an environment, whatever it is: its record, its rows, its accounts


def check_count(name: str, value: Any, least: int = 1) -> int:
    """A number of things that somebody gave in Python, of any integer class.

    Raises:
        ConfigError: it is none.
        ResourceError: copies of an environment, too many for this machine's memory.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ConfigError(f"`{name}` must be at least {least}, a whole number; it is {value!r}.")
    if name == "num_envs":
        check_copies(int(value))
    return int(value)


def check_copies(copies: int, each: int = _COPY_BYTES) -> None:
    """Refuses more copies of an environment than fit, before anything is allocated for them.

    Raises:
        ResourceError: with what they take, and what is free.
    """
    needed, free = copies * max(each, _COPY_BYTES), free_memory()
    if needed > free:
        raise ResourceError(
            f"{copies:,} copies take {needed // 2**30:,} GiB or more, and {free / 2**30:,.1f} GiB "
            "of memory are free: lower num_envs."
        )
