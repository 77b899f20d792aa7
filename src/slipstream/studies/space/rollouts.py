"""Sizes that a trial's suggestions must agree on: minibatches fill a rollout exactly."""

from __future__ import annotations

import math
from typing import Any

from slipstream.core.errors import ConfigError
from slipstream.studies.space.settings import ROLLOUT_ROWS
from slipstream.training.config import RunConfig

SIZES = (ROLLOUT_ROWS, "agent.horizon", "agent.minibatch", "training.num_envs")

_MUCH = 2  # times what was asked for, from which other sizes are recommended
_COPIES = range(16, 7, -1)  # 8 to 16 learn equally well (trading-rules 16); the most are fastest


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
    rows = _rows(asked, num_envs, minibatch)
    values["agent.horizon"] = rows // num_envs
    if rows == asked:
        return ()
    whole = f"{num_envs} environments"
    if minibatch is not None:
        whole += f" and minibatches of {minibatch:,} rows"
    note = f"Rollout of {asked:,} rows rounded up to {rows:,}: a multiple of {whole}"
    if rows > _MUCH * asked:
        better = min(_COPIES, key=lambda copies: _rows(asked, copies, minibatch))
        fewer = _rows(asked, better, minibatch)
        if fewer < rows:
            note += f"; with {better} environments it would be {fewer:,}"
    return (f"{note}.",)


def _rows(asked: int, num_envs: int, minibatch: int | None) -> int:
    """The smallest multiple of both sizes that is not below `asked`."""
    unit = num_envs if minibatch is None else math.lcm(num_envs, minibatch)
    return unit * math.ceil(asked / unit)
