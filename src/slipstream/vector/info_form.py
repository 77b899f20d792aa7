"""Infos that hold only numbers, as bytes in a place of fixed size: nothing of them is pickled."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_BYTES = 512
"""Of one info; 64 numbers."""

_CODES: Mapping[type, str] = {
    int: "q", float: "d", bool: "?", np.bool_: "?",
    np.int8: "b", np.int16: "h", np.int32: "i", np.int64: "q",
    np.uint8: "B", np.uint16: "H", np.uint32: "I", np.uint64: "Q",
    np.float16: "e", np.float32: "f", np.float64: "d",
}  # fmt: skip
_KINDS = "biufc"  # of arrays: bits, whole numbers, floats, complex ones


class Dense(NamedTuple):
    """An array within an info."""

    dtype: str
    shape: tuple[int, ...]


Signature = tuple[tuple[str, Any], ...]
"""Keys in their order, each with the type of its number, a `Dense`, or the signature of a dict."""


def signature_of(info: Any) -> Signature | None:
    """Of an info; None where it holds anything but numbers, arrays of them, and dicts of both."""
    if type(info) is not dict:
        return None
    nodes = []
    for key, value in info.items():
        node: Any = type(value)
        if node is dict:
            node = signature_of(value)
        elif node is np.ndarray:
            node = Dense(value.dtype.str, value.shape) if value.dtype.kind in _KINDS else None
        elif node not in _CODES:
            node = None
        # Gymnasium treats `final_obs` unlike any other key.
        if node is None or type(key) is not str or key == "final_obs":
            return None
        nodes.append((key, node))
    return tuple(nodes)


class InfoForm:
    """How infos of one signature lie in their place.

    Attributes:
        signature: keys and types.
        size: bytes.
        plain: keys and types where all are single numbers, side by side; else None.
        record: the same as a dtype without gaps.
    """

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        leaves = list(_leaves(signature))
        sizes = [_dtype(leaf).itemsize * int(np.prod(_shape(leaf))) for leaf in leaves]
        pairs = zip(leaves, sizes, strict=True)
        self._struct = struct.Struct(
            "=" + "".join(_CODES.get(leaf, f"{size}s") for leaf, size in pairs)
        )
        self.size = self._struct.size
        self.record = np.dtype([(f"f{i}", _dtype(x), _shape(x)) for i, x in enumerate(leaves)])
        self.plain: tuple[Any, Any] | None = None
        if all(node in _CODES for _, node in signature):
            self.plain = tuple(key for key, _ in signature), tuple(node for _, node in signature)

    def pack(self, info: Mapping[str, Any], memory: memoryview, offset: int) -> None:
        """Writes an info of this signature.

        Raises:
            struct.error: a number is too large for 64 bits.
        """
        if self.plain is not None:
            self._struct.pack_into(memory, offset, *info.values())
        else:
            self._struct.pack_into(memory, offset, *_values(info))

    def unpack(self, memory: Any, offset: int) -> dict[str, Any]:
        """An info as it was, a fresh one."""
        return _rebuilt(self.signature, iter(self._struct.unpack_from(memory, offset)))

    def add(
        self, batch: dict[str, Any], rows: NDArray[np.int64], places: NDArray[np.uint8]
    ) -> None:
        """Adds infos to a batch as `batch_infos` would, key by key instead of copy by copy.

        Args:
            batch: what other copies have said already.
            rows: [n] copies whose infos have this form, ascending.
            places: [E, MOST_BYTES] where all lie.
        """
        own = np.ascontiguousarray(places[rows, : self.size])
        records = own.view(self.record).reshape(len(rows))
        columns = (records[name] for name in self.record.names or ())
        _add(batch, self.signature, columns, rows, len(places))


def mask_of(batch: dict[str, Any], key: str, size: int) -> Any:
    """Which copies have a key, bool [E]."""
    name = f"_{key}"
    if name not in batch:
        batch[name] = np.zeros(size, np.bool_)
    return batch[name]


def _leaves(signature: Signature) -> Iterator[Any]:
    for _, node in signature:
        if _nested(node):
            yield from _leaves(node)
        else:
            yield node


def _nested(node: Any) -> bool:
    return type(node) is tuple


def _dtype(leaf: Any) -> np.dtype[Any]:
    return np.dtype(leaf.dtype if isinstance(leaf, Dense) else leaf)


def _shape(leaf: Any) -> tuple[int, ...]:
    return leaf.shape if isinstance(leaf, Dense) else ()


def _values(info: Mapping[str, Any]) -> Iterator[Any]:
    for value in info.values():
        kind = type(value)
        if kind is dict:
            yield from _values(value)
        else:
            yield value.tobytes() if kind is np.ndarray else value


def _rebuilt(signature: Signature, values: Iterator[Any]) -> dict[str, Any]:
    return {
        key: _rebuilt(node, values) if _nested(node) else _single(node, next(values))
        for key, node in signature
    }


def _single(leaf: Any, value: Any) -> Any:
    if isinstance(leaf, Dense):
        return np.frombuffer(value, leaf.dtype).reshape(leaf.shape).copy()
    return leaf(value)


def _add(
    batch: dict[str, Any],
    signature: Signature,
    columns: Iterator[NDArray[Any]],
    rows: NDArray[np.int64],
    size: int,
) -> None:
    for key, node in signature:
        if _nested(node):
            _add(batch.setdefault(key, {}), node, columns, rows, size)
        else:
            _put(batch, key, node, next(columns), rows, size)
        mask_of(batch, key, size)[rows] = True


def _put(
    batch: dict[str, Any],
    key: str,
    leaf: Any,
    column: NDArray[Any],
    rows: NDArray[np.int64],
    size: int,
) -> None:
    if key not in batch:
        if leaf is np.bool_:  # to Gymnasium an object like any other
            batch[key] = np.full(size, None, dtype=object)
        else:
            batch[key] = np.zeros((size, *column.shape[1:]), column.dtype)
    array = batch[key]
    if (
        isinstance(array, np.ndarray)
        and array.dtype == column.dtype
        and array.shape[1:] == column.shape[1:]
    ):
        array[rows] = column
        return
    for row, value in zip(rows.tolist(), column, strict=True):  # another copy decided about it
        array[row] = value if isinstance(leaf, Dense) else leaf(value)
