"""Info dicts of sub-environments: from a worker to its parent, and into Gymnasium's batch format.

`batch_infos` combines the infos of several sub-environments in Gymnasium's format. An `InfoSchema`
packs an info that contains only numbers into a slot of `MAX_INFO_BYTES`. A `SchemaTable` numbers
the schemas seen so far; the reader and each writer have one. `InfoReader` reads the infos of a
step.
"""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

_SCALARS = (int, float, bool)


def batch_infos(rows: Sequence[tuple[int, dict[str, Any]]], num_envs: int) -> dict[str, Any]:
    """Combine infos into one dict of arrays [E], each with a mask ``_key``, bool [E].

    Numbers become arrays of their type with zeros where absent. Arrays are stacked. Dicts are
    combined recursively. All other values, and ``final_obs``, become object arrays with None where
    absent.

    Args:
        rows: Pairs (row, info) in the order of processing. The first with a key sets its dtype.
        num_envs: Number of sub-environments, E.
    """
    batch: dict[str, Any] = {}
    for row, info in rows:
        add_info(batch, info, row, num_envs)
    return batch


def episode_metrics(info: Any, names: Sequence[str]) -> list[float]:
    """Return the numbers with these names in the final info of an episode; NaN for others.

    Names are looked up in ``info["episode"]``, which wrappers add, then in `info`.
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
    """Add the info of one more sub-environment to a batch; see `batch_infos`."""
    for key, value in info.items():
        if isinstance(value, dict) and key != "final_obs":
            unflatten = batch.setdefault(key, {})
            add_info(unflatten, value, row, num_envs)
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


MAX_INFO_BYTES = 512
"""Maximum size of an info in shared memory: 64 numbers."""

_CODES: Mapping[type, str] = {
    int: "q", float: "d", bool: "?", np.bool_: "?",
    np.int8: "b", np.int16: "h", np.int32: "i", np.int64: "q",
    np.uint8: "B", np.uint16: "H", np.uint32: "I", np.uint64: "Q",
    np.float16: "e", np.float32: "f", np.float64: "d",
}  # fmt: skip
_KINDS = "biufc"  # kinds of array dtypes: bool, integers, floats, complex


class ArrayType(NamedTuple):
    """Type of an array in an info."""

    dtype: str
    shape: tuple[int, ...]


Signature = tuple[tuple[str, Any], ...]
"""Keys in order, each with a number type, an `ArrayType`, or the signature of a nested dict."""


def get_signature(info: Any) -> Signature | None:
    """Return the signature of an info; None if a value is not a number, numeric array or dict."""
    if type(info) is not dict:
        return None
    nodes = []
    for key, value in info.items():
        node: Any = type(value)
        if node is dict:
            node = get_signature(value)
        elif node is np.ndarray:
            node = ArrayType(value.dtype.str, value.shape) if value.dtype.kind in _KINDS else None
        elif node not in _CODES:
            node = None
        # Gymnasium treats `final_obs` unlike any other key.
        if node is None or type(key) is not str or key == "final_obs":
            return None
        nodes.append((key, node))
    return tuple(nodes)


class InfoSchema:
    """Binary layout of infos with one signature.

    Attributes:
        signature: Keys and types.
        size: Size in bytes.
        plain: Tuples of keys and types if all values are single numbers, else None.
        record: Packed structured dtype of the values.
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
        """Write an info of this signature.

        Raises:
            struct.error: A number does not fit into 64 bits.
        """
        if self.plain is not None:
            self._struct.pack_into(memory, offset, *info.values())
        else:
            self._struct.pack_into(memory, offset, *_flatten_values(info))

    def unpack(self, memory: Any, offset: int) -> dict[str, Any]:
        """Return the info that was packed, as a new dict."""
        return _rebuild(self.signature, iter(self._struct.unpack_from(memory, offset)))

    def add(
        self, batch: dict[str, Any], rows: NDArray[np.int64], places: NDArray[np.uint8]
    ) -> None:
        """Add infos to a batch like `batch_infos`, by key instead of by row.

        Args:
            batch: Batch that the infos are added to.
            rows: Rows whose infos have this schema, [n], ascending.
            places: Packed infos of all rows, [E, MAX_INFO_BYTES].
        """
        packed = np.ascontiguousarray(places[rows, : self.size])
        records = packed.view(self.record).reshape(len(rows))
        columns = (records[name] for name in self.record.names or ())
        _add(batch, self.signature, columns, rows, len(places))


def get_key_mask(batch: dict[str, Any], key: str, size: int) -> Any:
    """Return the mask of the rows that have a key, bool [E]; created if absent."""
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
    return np.dtype(leaf.dtype if isinstance(leaf, ArrayType) else leaf)


def _shape(leaf: Any) -> tuple[int, ...]:
    return leaf.shape if isinstance(leaf, ArrayType) else ()


def _flatten_values(info: Mapping[str, Any]) -> Iterator[Any]:
    for value in info.values():
        kind = type(value)
        if kind is dict:
            yield from _flatten_values(value)
        else:
            yield value.tobytes() if kind is np.ndarray else value


def _rebuild(signature: Signature, values: Iterator[Any]) -> dict[str, Any]:
    return {
        key: _rebuild(node, values) if _nested(node) else _decode(node, next(values))
        for key, node in signature
    }


def _decode(leaf: Any, value: Any) -> Any:
    if isinstance(leaf, ArrayType):
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
            _write_column(batch, key, node, next(columns), rows, size)
        get_key_mask(batch, key, size)[rows] = True


def _write_column(
    batch: dict[str, Any],
    key: str,
    leaf: Any,
    column: NDArray[Any],
    rows: NDArray[np.int64],
    size: int,
) -> None:
    if key not in batch:
        if leaf is np.bool_:  # Gymnasium treats it as an object
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
    for row, value in zip(rows.tolist(), column, strict=True):  # another row set the dtype
        array[row] = value if isinstance(leaf, ArrayType) else leaf(value)


NO_INFO, ON_REQUEST, FIRST_SCHEMA = range(3)
"""Values of `info_code`: the info is empty, is sent on request, or is stored with schema 0.

Larger values stand for the schemas that follow.
"""

InfoBatch = tuple[NDArray[np.int64], Callable[[dict[str, Any]], None]]
"""Rows, and a function that adds their infos to a batch."""

_MAX_SCHEMAS = 64


class SchemaTable:
    """Schemas in the order of their first use.

    The reader numbers the schemas. A writer marks an info of unknown schema `ON_REQUEST`. The
    reader requests that info, passes its schemas with the request, and adds the new schema. From
    the second time on, infos of that schema are stored in shared memory.
    """

    def __init__(self) -> None:
        self.schemas: list[InfoSchema] = []
        self._codes: dict[Signature, int] = {}
        self._plain: dict[Any, int] = {}

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """Signatures of all schemas, in order."""
        return tuple(form.signature for form in self.schemas)

    def extend(self, signatures: Sequence[Signature]) -> None:
        """Add the schemas that the reader has numbered meanwhile."""
        for signature in signatures[len(self.schemas) :]:
            form = InfoSchema(signature)
            self._codes[signature] = FIRST_SCHEMA + len(self.schemas)
            if form.plain is not None:
                self._plain[form.plain] = FIRST_SCHEMA + len(self.schemas)
            self.schemas.append(form)

    def add_schema(self, info: Any) -> None:
        """Add the schema of a received info, for later infos of the same schema (reader only)."""
        if not info or len(self.schemas) == _MAX_SCHEMAS:
            return
        signature = get_signature(info)
        if signature is None or signature in self._codes:
            return
        if 0 < InfoSchema(signature).size <= MAX_INFO_BYTES:
            self.extend((*self.signatures, signature))

    def write(self, info: Any, memory: memoryview, row: int) -> int:
        """Write an info to its slot if its schema is known and return its `info_code`.

        Args:
            info: Info, not empty.
            memory: Slots of all rows.
            row: Row of the sub-environment.
        """
        if not self.schemas or type(info) is not dict:
            return ON_REQUEST
        code = self._plain.get((tuple(info), tuple(map(type, info.values()))))
        if code is None:
            signature = get_signature(info)
            code = None if signature is None else self._codes.get(signature)
            if code is None:
                return ON_REQUEST
        try:
            self.schemas[code - FIRST_SCHEMA].pack(info, memory, row * MAX_INFO_BYTES)
        except struct.error:  # beyond 64 bits
            return ON_REQUEST
        return code

    def read(self, places: NDArray[np.uint8], row: int, code: int) -> dict[str, Any]:
        """Return the info in the slot of a row as a new dict."""
        return self.schemas[code - FIRST_SCHEMA].unpack(places[row].data, 0)

    def iter_batches(
        self,
        rows: NDArray[np.int64],
        info_code: NDArray[np.uint8],
        slots: NDArray[np.uint8],
        messages: Mapping[int, dict[str, Any]],
    ) -> Iterator[InfoBatch]:
        """Yield the infos of rows, grouped by schema, for `InfoReader.batch`.

        Args:
            rows: Rows of the sub-environments, ascending.
            info_code: NO_INFO, ON_REQUEST or a schema for each row, [E].
            slots: Packed infos, [E, MAX_INFO_BYTES].
            messages: Infos that were received on request, by row.
        """
        size, codes = len(info_code), info_code[rows]
        for code in np.unique(codes).tolist():
            group = rows[codes == code]
            if code == NO_INFO:
                yield group, _add_empty
            elif code == ON_REQUEST:
                for row in group.tolist():
                    info = messages[row]
                    yield np.array([row]), partial(_add_one, info=info, row=row, size=size)
            else:
                form = self.schemas[code - FIRST_SCHEMA]
                yield group, partial(form.add, rows=group, places=slots)


def _add_empty(batch: dict[str, Any]) -> None:
    """Add an empty info: nothing."""


def _add_one(batch: dict[str, Any], info: dict[str, Any], row: int, size: int) -> None:
    add_info(batch, info, row, size)


FinalInfo = tuple[Any, dict[str, Any]]
"""Final observation of an episode, None if it is in shared memory, and final info."""
InfoMessage = tuple[int, dict[str, Any] | None, FinalInfo | None]
"""Row, info and end of the episode; None for what is stored in shared memory."""


class InfoSource(Protocol):
    """A driver of sub-environments that write infos: `SerialDriver` or `ProcessDriver`."""

    num_envs: int
    backend: str

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]: ...

    @property
    def in_flight(self) -> NDArray[np.bool_]: ...

    @property
    def dirty(self) -> NDArray[np.bool_]: ...

    def call(
        self,
        method: str,
        arguments: Callable[[list[int]], tuple[Any, ...]],
        selected: NDArray[np.bool_] | None = None,
        *,
        allow_lost: bool = False,
    ) -> list[tuple[NDArray[np.int64], Any]]: ...


class InfoReader:
    """Reads the infos of one step, from shared memory or on request.

    Sub-environments with a step in flight have no info until the next step.

    Args:
        driver: Driver of the sub-environments.
        final_of: Returns the final observation of a sub-environment whose episode ended at this
            step. None for agents, whose infos are written on request only, without final infos.
    """

    def __init__(self, driver: InfoSource, final_of: Callable[[int], Any] | None = None) -> None:
        self._driver, self._get_final_observation, self._table = driver, final_of, SchemaTable()
        self.clear()

    def clear(self) -> None:
        """Forget the infos of the last step."""
        self._messages: dict[int, tuple[dict[str, Any] | None, FinalInfo | None]] | None = None
        self._hidden = np.zeros(self._driver.num_envs, np.bool_)

    def final_info(self, row: int) -> FinalInfo | None:
        """Return final observation and info of a row, or None if they are in shared memory."""
        handed = self._get_messages().get(row)
        return None if handed is None else handed[1]

    def info_list(self) -> list[dict[str, Any]]:
        """Return the newest info of each sub-environment, [E], as new dicts."""
        infos: list[dict[str, Any]] = [{} for _ in range(self._driver.num_envs)]
        self._get_messages()  # first: a worker may be lost during the request
        info_code = self._visible("info_code")
        for row in np.flatnonzero(info_code).tolist():
            infos[row] = self._read("info", row, int(info_code[row]))
        return infos

    def final_info_list(self) -> list[dict[str, Any] | None]:
        """Return the final infos of episodes that ended at this step, [E]; None elsewhere."""
        infos: list[dict[str, Any] | None] = [None] * self._driver.num_envs
        self._get_messages()
        info_code = self._driver.arrays["last_info_code"]
        for row in np.flatnonzero(self._visible("has_final")).tolist():
            infos[row] = self._read("last_info", row, int(info_code[row]))
        return infos

    def _read(self, name: str, row: int, code: int) -> dict[str, Any]:
        if code == NO_INFO:
            return {}
        if code == ON_REQUEST:
            info, final_info = self._get_messages()[row]
            return dict((info if name == "info" else final_info and final_info[1]) or {})
        return self._table.read(self._driver.arrays[name], row, code)

    def batch(self) -> dict[str, Any]:
        """Return all infos in Gymnasium's format, see `batch_infos`."""
        batch: dict[str, Any] = {}
        arrays, table, has_finals = (
            self._driver.arrays,
            self._table,
            self._get_final_observation is not None,
        )
        if has_finals and not (arrays["info_code"].any() or arrays["has_final"].any()):
            return batch
        messages = self._get_messages()
        info_code = self._visible("info_code")
        infos = {row: info for row, (info, _) in messages.items() if info is not None}
        batches = [
            (int(rows[0]), 1, add)
            for rows, add in table.iter_batches(
                np.flatnonzero(info_code), info_code, arrays["info"], infos
            )
        ]
        if has_finals:
            has_final, last = np.flatnonzero(self._visible("has_final")), arrays["last_info_code"]
            infos = {
                row: final_info[1]
                for row, (_, final_info) in messages.items()
                if final_info is not None
            }
            for rows, add in table.iter_batches(has_final, last, arrays["last_info"], infos):
                batches.append((int(rows[0]), 0, partial(self._add_finals, rows=rows, add=add)))
        for _, _, add in sorted(batches, key=lambda part: part[:2]):
            add(batch)
        return batch

    def _add_finals(
        self, batch: dict[str, Any], rows: NDArray[np.int64], add: Callable[[dict[str, Any]], None]
    ) -> None:
        """Add the final observations and infos of rows, before the infos of their resets."""
        assert self._get_final_observation is not None
        size = self._driver.num_envs
        final_obs = batch.setdefault("final_obs", np.full(size, None, dtype=object))
        for row in rows.tolist():
            final_obs[row] = self._get_final_observation(row)
        get_key_mask(batch, "final_obs", size)[rows] = True
        add(batch.setdefault("final_info", {}))
        get_key_mask(batch, "final_info", size)[rows] = True

    def _visible(self, name: str) -> NDArray[Any]:
        """Return a shared array, with zeros for sub-environments that may be writing to it."""
        array = self._driver.arrays[name]
        self._hidden |= self._driver.dirty
        if self._get_final_observation is not None:
            self._hidden |= self._driver.in_flight
        return np.where(self._hidden, array.dtype.type(0), array)

    def _get_messages(self) -> dict[int, tuple[dict[str, Any] | None, FinalInfo | None]]:
        """Return the infos that are not in shared memory, by row; requested once per step."""
        if self._messages is None:
            self._messages = {}
            requested = np.ones(self._driver.num_envs, np.bool_)
            if self._get_final_observation is not None:
                requested = self._visible("info_code") == ON_REQUEST
                last = self._driver.arrays["last_info_code"] == ON_REQUEST
                requested |= (self._visible("has_final") != 0) & last
            if requested.any():
                for row, info, final_info in self._request(requested):
                    self._messages[row] = info, final_info
                    self._table.add_schema(info)
                    self._table.add_schema(final_info and final_info[1])
                self._visible("info_code")  # hide workers lost during the request
        return self._messages

    def _request(self, requested: NDArray[np.bool_]) -> list[InfoMessage]:
        """Request the infos that are not in shared memory, and pass the known schemas."""
        messages, known, arrays = list[InfoMessage](), self._table.signatures, self._driver.arrays
        for rows, part in self._driver.call(
            "collect_infos", lambda _: (known,), requested, allow_lost=True
        ):
            if part is None:  # the worker was lost
                for name in arrays.keys() & {"info_code", "last_info_code"}:
                    arrays[name][rows] = NO_INFO
            messages += part or []
        # Environments in this process may reuse their dicts.
        return copy.deepcopy(messages) if self._driver.backend == "serial" else messages
