"""Records of a structured array with their fields as attributes, for the interpreted backend."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Record:
    """One record. Unlike `numpy.record` it has no methods that could hide a field named `size`.

    Its class is made for the array's type, with a property for each field: read in a fifth of the
    time that `numpy.void` takes, most of which interpreted kernels would spend there.
    """

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: Mapping[str, NDArray[Any]], row: int) -> None:
        object.__setattr__(self, "_columns", columns)
        object.__setattr__(self, "_row", row)

    def __getattr__(self, name: str) -> Any:
        raise self._without(name)

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            column = self._columns[name]
        except KeyError:
            raise self._without(name) from None
        column[self._row] = value

    def _without(self, name: str) -> AttributeError:
        return AttributeError(f"there is no field `{name}` among {', '.join(self._columns)}")


@functools.lru_cache(maxsize=256)
def _record_of(dtype: np.dtype[Any]) -> type[Record]:
    fields = {name: _field(name) for name in dtype.names or ()}
    return type("Record", (Record,), {"__slots__": (), **fields})


def _field(name: str) -> property:
    return property(lambda record: record._columns[name][record._row])


class Records:
    """The records of an array [n]; they share its memory."""

    __slots__ = ("_columns", "_made", "_record")

    def __init__(self, array: NDArray[Any]) -> None:
        self._record = _record_of(array.dtype)
        self._columns = {name: array[name] for name in array.dtype.names or ()}
        self._made: dict[int, Record] = {}

    def __getitem__(self, row: int) -> Record:
        made = self._made.get(row)
        if made is None:
            made = self._made[row] = self._record(self._columns, row)
        return made
