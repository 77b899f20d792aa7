"""Records of a structured array with their fields as attributes, for the interpreted backend."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray


class Record:
    """One record. Unlike `numpy.record` it has no methods that could hide a field named `size`."""

    __slots__ = ("_record",)

    def __init__(self, record: Any) -> None:
        object.__setattr__(self, "_record", record)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._record[name]
        except ValueError:
            raise AttributeError(
                f"there is no field `{name}` among {', '.join(self._record.dtype.names)}"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            self._record[name] = value
        except ValueError:
            raise AttributeError(
                f"there is no field `{name}` among {', '.join(self._record.dtype.names)}"
            ) from None


class Records:
    """The records of an array [n]; they share its memory."""

    __slots__ = ("_array",)

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def __getitem__(self, row: int) -> Record:
        return Record(self._array[row])
