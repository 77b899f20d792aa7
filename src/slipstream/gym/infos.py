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
    """Infos of some envs as one dict of arrays [E], each with a mask bool [E] called ``_key``.

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


def episode_metrics(info: Any, names: Sequence[str]) -> list[float]:
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
"""The most bytes of one info: 64 numbers."""

_CODES: Mapping[type, str] = {
    int: "q", float: "d", bool: "?", np.bool_: "?",
    np.int8: "b", np.int16: "h", np.int32: "i", np.int64: "q",
    np.uint8: "B", np.uint16: "H", np.uint32: "I", np.uint64: "Q",
    np.float16: "e", np.float32: "f", np.float64: "d",
}  # fmt: skip
_KINDS = "biufc"  # of arrays: bits, whole numbers, floats, complex ones


class ArrayType(NamedTuple):
    """An array within an info."""

    dtype: str
    shape: tuple[int, ...]


Signature = tuple[tuple[str, Any], ...]
"""Keys in their order, each with the type of its number, a `Dense`, or the signature of a dict."""


def get_signature(info: Any) -> Signature | None:
    """Signature of an info; None where something is no number, array of numbers or dict of both."""
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
    """Layout of infos of one signature in their place.

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
            self._struct.pack_into(memory, offset, *_flatten_values(info))

    def unpack(self, memory: Any, offset: int) -> dict[str, Any]:
        """An info as it was, a fresh one."""
        return _rebuild(self.signature, iter(self._struct.unpack_from(memory, offset)))

    def add(
        self, batch: dict[str, Any], rows: NDArray[np.int64], places: NDArray[np.uint8]
    ) -> None:
        """Adds infos to a batch as `batch_infos` would, key by key instead of copy by copy.

        Args:
            batch: what other sub-environments have said already.
            rows: [n] sub-environments whose infos have this form, ascending.
            places: [E, MAX_INFO_BYTES] where all lie.
        """
        own = np.ascontiguousarray(places[rows, : self.size])
        records = own.view(self.record).reshape(len(rows))
        columns = (records[name] for name in self.record.names or ())
        _add(batch, self.signature, columns, rows, len(places))


def mask_of(batch: dict[str, Any], key: str, size: int) -> Any:
    """Mask of the sub-environments that have a key, bool [E]."""
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
        mask_of(batch, key, size)[rows] = True


def _write_column(
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
        array[row] = value if isinstance(leaf, ArrayType) else leaf(value)


NO_INFO, ON_REQUEST, FIRST_SCHEMA = range(3)
"""Values of `info_code`: the info is empty, is sent on request, or is stored with schema 0.

Larger values stand for the schemas that follow.
"""

Part = tuple[NDArray[np.int64], Callable[[dict[str, Any]], None]]
"""Rows of sub-environments, and what adds their infos to a batch."""

_MAX_SCHEMAS = 64


class SchemaTable:
    """Forms in the order in which they were first seen.

    The reader of infos decides what they are: a writer that meets an info of another form says
    `APART`, the reader asks for it, hands its own forms over with the question, and takes note of
    the form. From the second time on the info lies in the block.
    """

    def __init__(self) -> None:
        self.forms: list[InfoSchema] = []
        self._codes: dict[Signature, int] = {}
        self._plain: dict[Any, int] = {}

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """Signatures of all forms, in their order."""
        return tuple(form.signature for form in self.forms)

    def extend(self, signatures: Sequence[Signature]) -> None:
        """A writer's: the forms that the reader knows."""
        for signature in signatures[len(self.forms) :]:
            form = InfoSchema(signature)
            self._codes[signature] = FIRST_SCHEMA + len(self.forms)
            if form.plain is not None:
                self._plain[form.plain] = FIRST_SCHEMA + len(self.forms)
            self.forms.append(form)

    def learn(self, info: Any) -> None:
        """The reader's: an info that was handed over, whose form may be written from now on."""
        if not info or len(self.forms) == _MAX_SCHEMAS:
            return
        signature = get_signature(info)
        if signature is None or signature in self._codes:
            return
        if 0 < InfoSchema(signature).size <= MAX_INFO_BYTES:
            self.extend((*self.signatures, signature))

    def write(self, info: Any, memory: memoryview, row: int) -> int:
        """Writes a sub-environment's info into its place; what `info_code` is to say of it.

        Args:
            info: not empty.
            memory: bytes of the places of all sub-environments.
            row: of the copy.
        """
        if not self.forms or type(info) is not dict:
            return ON_REQUEST
        code = self._plain.get((tuple(info), tuple(map(type, info.values()))))
        if code is None:
            signature = get_signature(info)
            code = None if signature is None else self._codes.get(signature)
            if code is None:
                return ON_REQUEST
        try:
            self.forms[code - FIRST_SCHEMA].pack(info, memory, row * MAX_INFO_BYTES)
        except struct.error:  # beyond 64 bits
            return ON_REQUEST
        return code

    def read(self, places: NDArray[np.uint8], row: int, code: int) -> dict[str, Any]:
        """A copy's info, a fresh dict."""
        return self.forms[code - FIRST_SCHEMA].unpack(places[row].data, 0)

    def batches(
        self,
        rows: NDArray[np.int64],
        info_code: NDArray[np.uint8],
        places: NDArray[np.uint8],
        apart: Mapping[int, dict[str, Any]],
    ) -> Iterator[Part]:
        """Infos of some environments, those of one form together, to be added in the order of rows.

        Args:
            rows: of the sub-environments, ascending.
            told: [E] NOTHING, APART, or where the info lies.
            places: [E, MAX_INFO_BYTES].
            apart: infos that were handed over, by row.
        """
        size, codes = len(info_code), info_code[rows]
        for code in np.unique(codes).tolist():
            own = rows[codes == code]
            if code == NO_INFO:
                yield own, _nothing
            elif code == ON_REQUEST:
                for row in own.tolist():
                    info = apart[row]
                    yield np.array([row]), partial(_add_one, info=info, row=row, size=size)
            else:
                form = self.forms[code - FIRST_SCHEMA]
                yield own, partial(form.add, rows=own, places=places)


def _nothing(batch: dict[str, Any]) -> None:
    """An empty info."""


def _add_one(batch: dict[str, Any], info: dict[str, Any], row: int, size: int) -> None:
    add_info(batch, info, row, size)


FinalInfo = tuple[Any, dict[str, Any]]
"""The last observation of an episode, None where it lies in the block, and its info."""
InfoMessage = tuple[int, dict[str, Any] | None, FinalInfo | None]
"""A row, what its copy said, and how its episode ended, where that does not lie in the block."""


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
    """Reads the infos of one step: those of numbers from the block, others by asking for them.

    Sub-environments that may be writing at this moment have no info until the next step.

    Args:
        driver: Driver of the sub-environments.
        final_of: returns the last observation of a env whose episode ended at this step. None for
            agents: infos are written on request only, and none is of an episode that ended.
    """

    def __init__(self, copies: InfoSource, final_of: Callable[[int], Any] | None = None) -> None:
        self._driver, self._final_of, self._table = copies, final_of, SchemaTable()
        self.clear()

    def clear(self) -> None:
        """Another step has been, or will be."""
        self._received: dict[int, tuple[dict[str, Any] | None, FinalInfo | None]] | None = None
        self._hidden = np.zeros(self._driver.num_envs, np.bool_)

    def final_info(self, row: int) -> FinalInfo | None:
        """End of a sub-environment's episode, if that does not lie in the block."""
        handed = self._requested().get(row)
        return None if handed is None else handed[1]

    def info_list(self) -> list[dict[str, Any]]:
        """The newest info of each sub-environment, [E], fresh dicts."""
        infos: list[dict[str, Any]] = [{} for _ in range(self._driver.num_envs)]
        self._requested()  # first: what a worker has to say is lost if it dies over the question
        info_code = self._visible("info_code")
        for row in np.flatnonzero(info_code).tolist():
            infos[row] = self._read("info", row, int(info_code[row]))
        return infos

    def final_info_list(self) -> list[dict[str, Any] | None]:
        """The last info of episodes that ended at this step, [E], fresh dicts; None elsewhere."""
        infos: list[dict[str, Any] | None] = [None] * self._driver.num_envs
        self._requested()
        info_code = self._driver.arrays["last_info_code"]
        for row in np.flatnonzero(self._visible("has_final")).tolist():
            infos[row] = self._read("last_info", row, int(info_code[row]))
        return infos

    def _read(self, name: str, row: int, code: int) -> dict[str, Any]:
        if code == NO_INFO:
            return {}
        if code == ON_REQUEST:
            info, final_info = self._requested()[row]
            return dict((info if name == "info" else final_info and final_info[1]) or {})
        return self._table.read(self._driver.arrays[name], row, code)

    def batch(self) -> dict[str, Any]:
        """All of it in Gymnasium's form, see `batch_infos`."""
        batch: dict[str, Any] = {}
        arrays, table, final_info_list = (
            self._driver.arrays,
            self._table,
            self._final_of is not None,
        )
        if final_info_list and not (arrays["info_code"].any() or arrays["has_final"].any()):
            return batch
        handed = self._requested()
        info_code = self._visible("info_code")
        infos = {row: info for row, (info, _) in handed.items() if info is not None}
        batches = [
            (int(own[0]), 1, add)
            for own, add in table.batches(
                np.flatnonzero(info_code), info_code, arrays["info"], infos
            )
        ]
        if final_info_list:
            has_final, last = np.flatnonzero(self._visible("has_final")), arrays["last_info_code"]
            infos = {
                row: final_info[1]
                for row, (_, final_info) in handed.items()
                if final_info is not None
            }
            for own, add in table.batches(has_final, last, arrays["last_info"], infos):
                batches.append((int(own[0]), 0, partial(self._add_finals, rows=own, add=add)))
        for _, _, add in sorted(batches, key=lambda part: part[:2]):
            add(batch)
        return batch

    def _add_finals(
        self, batch: dict[str, Any], rows: NDArray[np.int64], add: Callable[[dict[str, Any]], None]
    ) -> None:
        """Adds how the episodes of some envs ended, before what their next ones begin with."""
        assert self._final_of is not None
        size = self._driver.num_envs
        final_info_list = batch.setdefault("final_obs", np.full(size, None, dtype=object))
        for row in rows.tolist():
            final_info_list[row] = self._final_of(row)
        mask_of(batch, "final_obs", size)[rows] = True
        add(batch.setdefault("final_info", {}))
        mask_of(batch, "final_info", size)[rows] = True

    def _visible(self, name: str) -> NDArray[Any]:
        """An array of the block, zero for sub-environments that may be writing there."""
        copies, array = self._driver, self._driver.arrays[name]
        self._hidden |= copies.dirty
        if self._final_of is not None:
            self._hidden |= copies.in_flight
        return np.where(self._hidden, array.dtype.type(0), array)

    def _requested(self) -> dict[int, tuple[dict[str, Any] | None, FinalInfo | None]]:
        """Infos that sub-environments could not write down, by row; asked for once a step."""
        if self._received is None:
            self._received = {}
            requested = np.ones(self._driver.num_envs, np.bool_)
            if self._final_of is not None:
                requested = self._visible("info_code") == ON_REQUEST
                last = self._driver.arrays["last_info_code"] == ON_REQUEST
                requested |= (self._visible("has_final") != 0) & last
            if requested.any():
                for row, info, final_info in self._request(requested):
                    self._received[row] = info, final_info
                    self._table.learn(info)
                    self._table.learn(final_info and final_info[1])
                self._visible("info_code")  # workers that were lost over it
        return self._received

    def _request(self, requested: NDArray[np.bool_]) -> list[InfoMessage]:
        """Asks environments for what does not lie in the block, and hands the known forms over."""
        info_code, known, arrays = list[InfoMessage](), self._table.signatures, self._driver.arrays
        for rows, part in self._driver.call(
            "collect_infos", lambda _: (known,), requested, allow_lost=True
        ):
            if part is None:  # what it said is lost with the worker
                for name in arrays.keys() & {"info_code", "last_info_code"}:
                    arrays[name][rows] = NO_INFO
            info_code += part or []
        # Environments in this process may fill the same dicts again.
        return copy.deepcopy(info_code) if self._driver.backend == "serial" else info_code
