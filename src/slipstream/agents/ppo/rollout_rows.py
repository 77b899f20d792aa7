"""Sizes that a trial's suggestions must agree on: minibatches fill a rollout exactly."""

from __future__ import annotations

import math
from typing import Any

from slipstream.core.errors import ConfigError

ROLLOUT_ROWS = "rollout_rows"  # what a search may vary in place of the horizon

_MUCH = 2  # times what was asked for, from which other sizes are recommended
_COPIES = range(16, 7, -1)  # all learn equally well, the most are fastest (docs/rules.md, 16)


def fit_rollout(
    sizes: dict[str, Any], num_envs: int, horizon: int, minibatch: int | None
) -> tuple[str, ...]:
    """Rounds the rollout up until minibatches fill it, in place.

        rows = horizon x num_envs, the smallest multiple of both num_envs and the minibatch that is
        not below what was asked for

    Args:
        sizes: by name; `rollout_rows` leaves, `horizon` comes.
        num_envs: N.
        horizon, minibatch: where `sizes` does not say.

    Returns:
        A sentence if anything was rounded.

    Raises:
        ConfigError: both `rollout_rows` and `horizon` are given.
    """
    if ROLLOUT_ROWS in sizes and "horizon" in sizes:
        raise ConfigError(
            f"The search space names `agent.{ROLLOUT_ROWS}` and `agent.horizon`; the horizon "
            "follows from the rows of a rollout: keep one of them."
        )
    minibatch = sizes.get("minibatch", minibatch)
    asked = int(sizes.pop(ROLLOUT_ROWS, int(sizes.get("horizon", horizon)) * num_envs))
    rows = _rows(asked, num_envs, minibatch)
    sizes["horizon"] = rows // num_envs
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
