"""What compiled code calls for the products of `products.py`: functions made once for all of it.

Copied into every module that multiplies, and optimised with each, they would take most of the time
of a first start. They are a library of their own instead, kept beside the modules of the cache.
"""

from __future__ import annotations

import hashlib
import importlib
import pickle
from collections.abc import Callable
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.jit.cache import cache_folder, discard, filling, is_whole, only_maker
from slipstream.jit.fast.together import Module, helps, stand_in
from slipstream.jit.gemm import product_code
from slipstream.jit.gemm.product_code import KINDS, define, type_of
from slipstream.jit.machine_form import MachineForms, source_digest, tools

_FILE = "library.pickle"


class ProductForms(MachineForms):
    """The machine forms of `products.py`, of which all but one call the library.

    Args:
        module: `products.py`, by name.
    """

    def __init__(self, module: str) -> None:
        super().__init__(module, _typed)

    @cached_property
    def digest(self) -> str:
        return source_digest(self._module) + digest()


def _typed() -> list[Callable[..., Any]]:
    types = tools().types

    def product_typed(kind: str) -> Callable[..., Any]:
        def typed(_: Any, a: Any, b: Any, c: Any) -> Any:
            return types.void(a, b, c), partial(_emit_product, kind)

        return typed

    def layer_typed(_: Any, a: Any, b: Any, start: Any, floor: Any, c: Any) -> Any:
        return types.void(a, b, start, types.float32, c), _emit_layer

    def head_typed(_: Any, a: Any, b: Any, start: Any, c: Any) -> Any:
        return types.void(a, b, start, c), _emit_head

    def gated_typed(_: Any, a: Any, b: Any, gate: Any, c: Any) -> Any:
        return types.void(a, b, gate, c), _emit_gated

    def fused_typed(_: Any, a: Any, b: Any, c: Any) -> Any:
        return types.float32(*[types.float32] * 3), _emit_fused

    def transpose_typed(_: Any, a: Any, b: Any) -> Any:
        return types.void(a, b), _emit_transpose

    typed: dict[str, Any] = {
        "fused": fused_typed,
        "add_product": product_typed("add_product"),
        "add_transposed_product": product_typed("add_transposed_product"),
        "layer_product": layer_typed,
        "gated_product": gated_typed,
        "head_product": head_typed,
        "transpose": transpose_typed,
    }
    for name, form in typed.items():
        form.__name__ = name
    return list(typed.values())


@cache
def digest() -> str:
    """Of all that the library's code follows from, and of how it is called."""
    numba: Any = importlib.import_module("numba")
    target = _codegen().magic_tuple()
    source = source_digest(product_code.__name__, __name__)
    return hashlib.sha256(repr((source, numba.__version__, target)).encode()).hexdigest()[:20]


def symbol(kind: str) -> str:
    """The name under which all compiled code finds a function."""
    return f"slipstream_{kind}_{digest()}"


def library() -> Module:
    """The functions as a module that may be made with others."""
    return Module(cache_folder() / f"products_{digest()}", 0, (), load_library, own=True)


def load_library(*, waits: bool = True) -> dict[str, Any]:
    """Tells LLVM where the functions are; they are made, or come from the cache.

    A helper of `together` calls nothing, and so need not have them.

    Args:
        waits: see `Make`; it does, all the same.
    """
    if helps():
        for kind in KINDS:
            stand_in(symbol(kind))
    else:
        _load_library()
    return {}


@cache
def _load_library() -> None:
    binding: Any = importlib.import_module("llvmlite.binding")
    folder = cache_folder() / f"products_{digest()}"
    lock: Any = importlib.import_module("numba.core.compiler_lock").global_compiler_lock
    with lock:
        if folder.exists() and not is_whole(folder):
            discard(folder)
        with only_maker(folder):
            library = _read(folder) if folder.exists() else _make(folder)
    for kind in KINDS:
        binding.add_symbol(symbol(kind), library.get_pointer_to_function(symbol(kind)))


def _read(folder: Path) -> Any:
    return _codegen().unserialize_library(pickle.loads((folder / _FILE).read_bytes()))


def _make(folder: Path) -> Any:
    ir = tools().ir
    library = _codegen().create_library(folder.name)
    library.enable_object_caching()
    module = ir.Module(folder.name)
    for kind in KINDS:
        define(module, kind, symbol(kind))
    library.add_ir_module(module)
    library.finalize()
    with filling(folder) as unfinished:
        state = library.serialize_using_object_code()
        (unfinished / _FILE).write_bytes(pickle.dumps(state))
    return library


def _codegen() -> Any:
    registry: Any = importlib.import_module("numba.core.registry")
    return registry.cpu_target.target_context.codegen()


def _emit_fused(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.fma(*args)


def _emit_product(kind: str, context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """c += a b, or a^T b."""
    a, b, c = _arrays(context, builder, signature.args, args)
    return _call(context, builder, kind, a, b, c)


def _emit_layer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    kinds = signature.args
    a, b, start, c = _arrays(context, builder, (*kinds[:3], kinds[4]), (*args[:3], args[4]))
    return _call(context, builder, "layer_product", a, b, c, start.data, start.rows, args[3])


def _emit_gated(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    a, b, gate, c = _arrays(context, builder, signature.args, args)
    return _call(context, builder, "gated_product", a, b, c, gate.data, gate.stride)


def _emit_head(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    a, b, start, c = _arrays(context, builder, signature.args, args)
    return _call(context, builder, "head_product", a, b, c, start.data, start.rows)


def _emit_transpose(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    a, b = _arrays(context, builder, signature.args, args)
    given = [a.data, b.data, a.stride, b.stride, a.rows, a.columns]
    return _call_function(context, builder, "transpose", given)


class _Array(NamedTuple):
    """An array's memory, shape, and the numbers from one row to the next."""

    data: Any
    rows: Any
    columns: Any
    stride: Any


def _arrays(context: Any, builder: Any, kinds: Any, values: Any) -> list[_Array]:
    cgutils = tools().cgutils
    result = []
    for kind, value in zip(kinds, values, strict=True):
        array = context.make_array(kind)(context, builder, value)
        shape = cgutils.unpack_tuple(builder, array.shape)
        stride = cgutils.unpack_tuple(builder, array.strides)[0]
        stride = builder.sdiv(stride, stride.type(4))
        result.append(_Array(array.data, shape[0], shape[-1], stride))
    return result


def _call(context: Any, builder: Any, kind: str, a: Any, b: Any, c: Any, *more: Any) -> Any:
    sizes = [a.stride, b.stride, c.stride, c.rows, b.rows, c.columns]
    return _call_function(context, builder, kind, [a.data, b.data, c.data, *sizes, *more])


def _call_function(context: Any, builder: Any, kind: str, given: list[Any]) -> Any:
    cgutils = tools().cgutils
    function = cgutils.get_or_insert_function(builder.module, type_of(kind), symbol(kind))
    builder.call(function, given)
    return context.get_dummy_value()
