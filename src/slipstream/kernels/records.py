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

    # Two underscores: no field of a kernel's has the name that Python makes of these.
    __slots__ = ("__columns", "__row")

    def __init__(self, columns: Mapping[str, NDArray[Any]], row: int) -> None:
        object.__setattr__(self, "_Record__columns", columns)
        object.__setattr__(self, "_Record__row", row)

    def __getattr__(self, name: str) -> Any:
        raise self.__without(name)

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            column = self.__columns[name]
        except KeyError:
            raise self.__without(name) from None
        column[self.__row] = value

    def __without(self, name: str) -> AttributeError:
        return AttributeError(f"there is no field `{name}` among {', '.join(self.__columns)}")

    @staticmethod
    def field(name: str) -> property:
        """What reads one field."""
        return property(lambda record: record.__columns[name][record.__row])


@functools.lru_cache(maxsize=256)
def _record_of(dtype: np.dtype[Any]) -> type[Record]:
    fields = {name: Record.field(name) for name in dtype.names or ()}
    return type("Record", (Record,), {"__slots__": (), **fields})


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
