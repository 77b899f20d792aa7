"""NamedTuples as compiled functions take them by reference, see `struct_pointer_type.py`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np


class StructPointer:
    """A NamedTuple of C-contiguous arrays, numbers and NamedTuples, written down in words.

    Numba would take it apart at every call; here only what is new is looked at again.

    Args:
        value: the tuple.

    Attributes:
        value: the present one; address: where its words begin.
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
        return StructPointer, (self.value,)  # a copy has words of its own

    def update(self, value: Any) -> StructPointer:
        """Itself, with another tuple of the same types in place of the present one."""
        self.value = value
        for i, part in enumerate(_parts(value)):
            before, at = self._parts[i]
            if part is not before:
                assert _form(part) == _form(before)
                self._parts[i] = part, at
                self._write(part, at)
        return self

    def _write(self, part: Any, at: int) -> int:
        """Returns how many words it takes."""
        if isinstance(part, np.ndarray):
            address, _ = part.__array_interface__["data"]
            numbers = (0, 0, part.size, part.itemsize, address, *part.shape, *part.strides)
            self._words[at : at + len(numbers)] = numbers
            return len(numbers)
        self._words[at : at + 1].view(np.asarray(part).dtype)[0] = part
        return 1


def _parts(value: Any) -> Iterator[Any]:
    """Arrays and numbers of a tuple, in their order."""
    for part in value:
        if isinstance(part, tuple):
            yield from _parts(part)
        else:
            yield part


def _form(part: Any) -> Any:
    """What its type for compiled code follows from."""
    if isinstance(part, np.ndarray):
        return part.dtype, part.ndim, part.flags.c_contiguous, part.flags.writeable
    return np.asarray(part).dtype
