"""Parcels: what processes of one cluster send each other, as JSON and arrays under a hash.

A parcel holds nested plain values, bytes and arrays of numbers, to the bit. Reading one runs no
code, and a damaged one is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CheckpointError

_MAGIC = b"slipstream parcel 2\n"
_HASH = 32  # bytes
_BLOB = "\0blob"  # key of what stands for bytes or an array
_KINDS = "biuf"


def pack(value: Any) -> bytes:
    """One parcel of None, numbers, text, bytes, arrays, and lists and mappings of them.

    Tuples arrive as lists, NumPy's scalars as Python's.

    Raises:
        TypeError: there is something else in it.
    """
    blobs: list[bytes] = []
    head = json.dumps(_flat(value, blobs)).encode()
    sizes = json.dumps([len(blob) for blob in blobs]).encode()
    lengths = len(head).to_bytes(8, "big") + len(sizes).to_bytes(8, "big")
    body = b"".join((lengths, head, sizes, *blobs))
    return _MAGIC + hashlib.sha256(body).digest() + body


def unpack(content: bytes) -> Any:
    """What was packed; arrays are read-only.

    Raises:
        CheckpointError: it is no parcel, or not a whole one.
    """
    start = len(_MAGIC) + _HASH
    body = memoryview(content)[start:]
    if content[: len(_MAGIC)] != _MAGIC:
        raise CheckpointError(
            f"A parcel of {len(content)} bytes is not slipstream's, or another version's: use one "
            "version on all nodes of the cluster."
        )
    if hashlib.sha256(body).digest() != content[len(_MAGIC) : start]:
        raise CheckpointError(
            f"A parcel of {len(content)} bytes is damaged: its hash is not that of its content."
        )
    head, sizes = (int.from_bytes(body[at : at + 8], "big") for at in (0, 8))
    at = 16 + head + sizes
    blobs = []
    for size in json.loads(bytes(body[16 + head : at])):
        blobs.append(body[at : at + size])
        at += size
    return _restored(json.loads(bytes(body[16 : 16 + head])), blobs)


def digest_of(arrays: Sequence[NDArray[Any]]) -> str:
    """sha256 of arrays: their types, shapes and bytes."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.dtype.str} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _flat(value: Any, blobs: list[bytes]) -> Any:
    """JSON-able, with what is not put into `blobs`."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        blobs.append(value.tobytes())
        return {_BLOB: [len(blobs) - 1, value.dtype.str, list(value.shape)]}
    if isinstance(value, bytes):
        blobs.append(value)
        return {_BLOB: [len(blobs) - 1, None, None]}
    if isinstance(value, Mapping):
        return {_text(key): _flat(one, blobs) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [_flat(one, blobs) for one in value]
    raise TypeError(f"a parcel holds plain values and arrays, not {type(value).__name__}")


def _text(key: Any) -> str:
    if not isinstance(key, str) or key == _BLOB:
        raise TypeError(f"a parcel's mappings have names as keys, not {key!r}")
    return key


def _restored(value: Any, blobs: Sequence[memoryview]) -> Any:
    if isinstance(value, list):
        return [_restored(one, blobs) for one in value]
    if not isinstance(value, dict):
        return value
    if _BLOB not in value:
        return {key: _restored(one, blobs) for key, one in value.items()}
    number, dtype, shape = value[_BLOB]
    if dtype is None:
        return bytes(blobs[number])
    return np.frombuffer(blobs[number], np.dtype(dtype)).reshape(shape)
