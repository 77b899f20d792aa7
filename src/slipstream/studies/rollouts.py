"""Sizes that a trial's suggestions must agree on: minibatches fill a rollout exactly."""

from __future__ import annotations

import math
from typing import Any

from slipstream.core.errors import ConfigError
from slipstream.studies.settings import ROLLOUT_ROWS
from slipstream.training.config import RunConfig

SIZES = (ROLLOUT_ROWS, "agent.horizon", "agent.minibatch", "training.num_envs")


def fit_rollout(values: dict[str, Any], base: RunConfig) -> tuple[str, ...]:
    """Rounds the rollout up until minibatches fill it, in place.

        rows = horizon x num_envs, the smallest multiple of both num_envs and the minibatch that is
        not below what was asked for

    Args:
        values: dotted path -> value; `agent.rollout_rows` leaves, `agent.horizon` comes.
        base: has what `values` does not say.

    Returns:
        A sentence if anything was rounded.

    Raises:
        ConfigError: the number of copies is not settled.
    """
    if not any(name in values for name in SIZES):
        return ()
    num_envs = values.get("training.num_envs", base.training.num_envs)
    if not isinstance(num_envs, int):
        raise ConfigError(
            "A study that searches sizes needs a number of environments per member: set "
            "`training.num_envs` (or --num-envs) to a number, such as 12."
        )
    minibatch = values.get("agent.minibatch", base.agent.minibatch)
    horizon = int(values.get("agent.horizon", base.agent.horizon))
    asked = int(values.pop(ROLLOUT_ROWS, horizon * num_envs))
    unit = 1 if minibatch is None else minibatch // math.gcd(minibatch, num_envs)
    values["agent.horizon"] = unit * math.ceil(asked / (num_envs * unit))
    rows = values["agent.horizon"] * num_envs
    if rows == asked:
        return ()
    whole = f"{num_envs} environments"
    if minibatch is not None:
        whole += f" and minibatches of {minibatch:,} rows"
    return (f"Rollout of {asked:,} rows rounded up to {rows:,}: a multiple of {whole}.",)
