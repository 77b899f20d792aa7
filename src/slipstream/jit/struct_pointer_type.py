"""Numba type of NamedTuples that are passed as one pointer.

Numba passes a NamedTuple of arrays as all of their numbers. With hundreds of them, unpacked by
every caller and packed by every helper, that dominated the compile time of a first start. A pointer
refers to the words of the tuple, and fields are read on access; nested NamedTuples are pointers
into it. The memory must not change while it is read.

Every field occupies whole words, as written by `struct_pointer.py`: an array in Numba's own layout,
a number in one. This file imports Numba, so only code that compiles imports it.
"""

from __future__ import annotations

import hashlib
import importlib
import operator
from itertools import accumulate
from typing import Any

from slipstream.jit.intrinsics import llvm_modules, type_layout

_, types, cgutils = llvm_modules()
_templates: Any = importlib.import_module("numba.core.typing.templates")
_extending: Any = importlib.import_module("numba.extending")

WORD = 8  # bytes


class StructPointerType(types.Type):  # type: ignore[misc, name-defined]
    """Pointer to a tuple of type `of`."""

    def __init__(self, of: Any) -> None:
        self.of = of
        # A short name, because it is part of the names of all functions with this argument.
        super().__init__(f"Reference_{hashlib.sha256(type_layout(of).encode()).hexdigest()[:16]}")

    @property
    def key(self) -> Any:
        return self.of.key


def as_pointer_type(kind: Any) -> Any:
    """Return the type under which a helper receives an argument."""
    return StructPointerType(kind) if isinstance(kind, types.BaseNamedTuple) else kind


def words(kind: Any) -> int:
    """Return the size of a type in words."""
    if isinstance(kind, types.BaseTuple):
        return sum(map(words, kind))
    return 5 + 2 * kind.ndim if isinstance(kind, types.Array) else 1


def _offsets(kind: Any) -> list[int]:
    """Return the offsets of the parts of a tuple in bytes."""
    return [WORD * at for at in accumulate(map(words, kind), initial=0)]


def _part(kind: Any) -> Any:
    return StructPointerType(kind) if isinstance(kind, types.BaseTuple) else kind


class _Fields(_templates.AttributeTemplate):  # type: ignore[misc]
    key = StructPointerType

    def generic_resolve(self, reference: Any, name: str) -> Any:
        fields = getattr(reference.of, "fields", ())
        return _part(reference.of[fields.index(name)]) if name in fields else None


class _Items(_templates.AbstractTemplate):  # type: ignore[misc]
    key = operator.getitem

    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], StructPointerType) and isinstance(args[0].of, types.UniTuple):
            return _part(args[0].of.dtype)(args[0], types.intp)
        return None


def _field(context: Any, builder: Any, reference: Any, place: Any, name: str) -> Any:
    i = reference.of.fields.index(name)
    at = cgutils.intp_t(_offsets(reference.of)[i])
    return _read(context, builder, _part(reference.of[i]), builder.gep(place, [at]))


def _item(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    place, i = args
    length = i.type(len(signature.args[0].of))
    i = builder.select(builder.icmp_signed("<", i, i.type(0)), builder.add(i, length), i)
    at = builder.mul(i, i.type(WORD * words(signature.args[0].of.dtype)))
    return _read(context, builder, signature.return_type, builder.gep(place, [at]))


def _read(context: Any, builder: Any, kind: Any, place: Any) -> Any:
    """Read a value: tuples are loaded, pointers are the address itself."""
    if isinstance(kind, StructPointerType):
        return place
    if isinstance(kind, types.BaseTuple):
        places = [builder.gep(place, [cgutils.intp_t(at)]) for at in _offsets(kind)]
        parts = [_read(context, builder, *field) for field in zip(kind, places, strict=False)]
        return context.make_tuple(builder, kind, parts)
    data = context.get_data_type(kind)
    place = builder.bitcast(place, data.as_pointer())
    if data == context.get_value_type(kind):  # an array, loaded in one piece
        return builder.load(place)
    return context.data_model_manager[kind].load_from_data_pointer(builder, place)


def _write(context: Any, builder: Any, kind: Any, place: Any, value: Any) -> None:
    if isinstance(kind, types.BaseTuple):
        for i, (part, at) in enumerate(zip(kind, _offsets(kind), strict=False)):
            there = builder.gep(place, [cgutils.intp_t(at)])
            _write(context, builder, part, there, builder.extract_value(value, i))
        return
    data = context.data_model_manager[kind].as_data(builder, value)
    builder.store(data, builder.bitcast(place, data.type.as_pointer()))


def _refer(context: Any, builder: Any, kind: Any, reference: Any, value: Any) -> Any:
    """Store a tuple in the stack frame of the current function and return its address."""
    place = cgutils.alloca_once(builder, cgutils.intp_t, size=words(kind))
    place = builder.bitcast(place, context.get_value_type(reference))
    _write(context, builder, kind, place, value)
    return place


def _value(context: Any, builder: Any, reference: Any, kind: Any, place: Any) -> Any:
    return _read(context, builder, kind, place)


def _unbox(reference: Any, packed: Any, c: Any) -> Any:
    """Unbox a `StructPointer`."""
    address = c.pyapi.object_getattr_string(packed, "address")
    place = c.pyapi.long_as_voidptr(address)
    c.pyapi.decref(address)
    return _extending.NativeValue(
        place, is_error=cgutils.is_not_null(c.builder, c.pyapi.err_occurred())
    )


_extending.register_model(StructPointerType)(_extending.models.OpaqueModel)
_extending.infer_getattr(_Fields)
_templates.infer_global(operator.getitem)(_Items)
_extending.lower_getattr_generic(StructPointerType)(_field)
_extending.lower_builtin(operator.getitem, StructPointerType, types.intp)(_item)
_extending.lower_cast(types.BaseNamedTuple, StructPointerType)(_refer)
_extending.lower_cast(StructPointerType, types.BaseNamedTuple)(_value)
_extending.unbox(StructPointerType)(_unbox)
