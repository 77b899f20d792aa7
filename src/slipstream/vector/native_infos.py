"""Infos of single copies as arrays, in the form of Gymnasium's vector environments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_SCALARS = (int, float, bool)


def batch_infos(rows: Sequence[tuple[int, dict[str, Any]]], num_envs: int) -> dict[str, Any]:
    """Infos of some copies as one dict of arrays [E], each with a mask bool [E] called ``_key``.

    Numbers become arrays of their own type, zero where absent; arrays are stacked; dicts are
    treated alike; all else, and ``final_obs``, becomes an array of objects with None where absent.

    Args:
        rows: (copy, its info), in the order in which they are to be seen; the first with a key
            decides about its dtype.
        num_envs: E.
    """
    batch: dict[str, Any] = {}
    for row, info in rows:
        add_info(batch, info, row, num_envs)
    return batch


def episode_numbers(info: Any, names: Sequence[str]) -> list[float]:
    """Numbers that the last info of an episode has under these names; NaN for what is none.

    They are looked for in ``info["episode"]``, where wrappers put them, then in `info` itself.
    """
    outer = info if isinstance(info, Mapping) else {}
    inner = outer.get("episode")
    inner = inner if isinstance(inner, Mapping) else {}
    return [_number(inner[name] if name in inner else outer.get(name)) for name in names]


def _number(value: Any) -> float:
    if isinstance(value, (int, float, np.number, np.bool_, np.ndarray)) and np.size(value) == 1:
        try:
            return float(np.asarray(value).item())
        except (TypeError, ValueError, OverflowError):
            pass
    return math.nan


def add_info(batch: dict[str, Any], info: dict[str, Any], row: int, num_envs: int) -> None:
    """Adds the info of one more copy; see `batch_infos`."""
    for key, value in info.items():
        if isinstance(value, dict) and key != "final_obs":
            nested = batch.setdefault(key, {})
            add_info(nested, value, row, num_envs)
        else:
            if key not in batch:
                batch[key] = _empty(None if key == "final_obs" else value, num_envs)
            batch[key][row] = value
        batch.setdefault(f"_{key}", np.zeros(num_envs, np.bool_))[row] = True


def _empty(value: Any, num_envs: int) -> Any:
    if type(value) in _SCALARS or isinstance(value, np.number):
        return np.zeros(num_envs, dtype=type(value))
    if isinstance(value, np.ndarray):
        return np.zeros((num_envs, *value.shape), dtype=value.dtype)
    return np.full(num_envs, None, dtype=object)
