"""NamedTuples passed to compiled functions as one pointer, see `struct_pointer_type.py`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np


class StructPointer:
    """Memory image of a NamedTuple of C-contiguous arrays, numbers and NamedTuples.

    Numba would unpack the tuple at every call; here only changed parts are written again.

    Args:
        value: the tuple.

    Attributes:
        value: the current tuple; address: address of its words.
    """

    def __init__(self, value: Any) -> None:
        pointer_types: Any = importlib.import_module("slipstream.jit.struct_pointer_type")
        kind = importlib.import_module("numba").typeof(value)
        self._numba_type_ = pointer_types.StructPointerType(kind)
        self._words = np.zeros(pointer_types.words(kind), np.uint64)
        self.address = self._words.ctypes.data
        self.value, self._parts = value, list[Any]()
        at = 0
        for part in _parts(value):
            self._parts.append((part, at))
            at += self._write(part, at)

    def __reduce__(self) -> tuple[Any, ...]:
        return StructPointer, (self.value,)  # a copy has its own memory

    def update(self, value: Any) -> StructPointer:
        """Replace the tuple by another one of the same types; return self."""
        self.value = value
        for i, part in enumerate(_parts(value)):
            before, at = self._parts[i]
            if part is not before:
                assert _form(part) == _form(before)
                self._parts[i] = part, at
                self._write(part, at)
        return self

    def _write(self, part: Any, at: int) -> int:
        """Write a part and return its number of words."""
        if isinstance(part, np.ndarray):
            address, _ = part.__array_interface__["data"]
            numbers = (0, 0, part.size, part.itemsize, address, *part.shape, *part.strides)
            self._words[at : at + len(numbers)] = numbers
            return len(numbers)
        self._words[at : at + 1].view(np.asarray(part).dtype)[0] = part
        return 1


def _parts(value: Any) -> Iterator[Any]:
    """Yield the arrays and numbers of a tuple in order."""
    for part in value:
        if isinstance(part, tuple):
            yield from _parts(part)
        else:
            yield part


def _form(part: Any) -> Any:
    """Return what determines the part's compiled type."""
    if isinstance(part, np.ndarray):
        return part.dtype, part.ndim, part.flags.c_contiguous, part.flags.writeable
    return np.asarray(part).dtype
