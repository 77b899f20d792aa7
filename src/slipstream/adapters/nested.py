"""Batches of nested observations: arrays, or Dicts and Tuples of them, the batch axis first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def each(batch: Any) -> Sequence[Any]:
    """Single observations of a batch of them; views."""
    if isinstance(batch, Mapping):
        parts = [each(part) for part in batch.values()]
        return [dict(zip(batch, one, strict=True)) for one in zip(*parts, strict=True)]
    if isinstance(batch, tuple):
        return list(zip(*[each(part) for part in batch], strict=True))
    return list(batch)


def at(batch: Any, index: slice | NDArray[Any]) -> Any:
    """Some rows of a batch."""
    return _over(lambda parts: parts[0][index], [batch])


def joined(batches: Sequence[Any]) -> Any:
    """Batches one after the other."""
    return batches[0] if len(batches) == 1 else _over(np.concatenate, batches)


def _over(function: Callable[[Sequence[NDArray[Any]]], Any], batches: Sequence[Any]) -> Any:
    """Calls it with the arrays that have the same place in all batches."""
    first = batches[0]
    if isinstance(first, Mapping):
        return {key: _over(function, [batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple):
        return tuple(_over(function, parts) for parts in zip(*batches, strict=True))
    return function(batches)
