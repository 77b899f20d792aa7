"""Matrix products inside compiled loops: their definitions, and what compiled code calls for them.

The definitions below are what an interpreter runs. Compiled code gets the same chains of fused
multiply-adds for a tile of elements at once, which stays in registers (`gemm_code.py`). An
element's chain does not depend on the tile, on the rows beside it or on the processor, so neither
do its bits. Measured on one core with AVX-512, 256 x 112 times 112 x 64: 250 GFLOP/s, a BLAS called
for the same product 100.

Copied into every module that multiplies, and optimised with each, the functions would take most of
the time of a first start. They are a library of their own instead, kept beside the modules of the
cache.
"""

from __future__ import annotations

import hashlib
import importlib
import pickle
from collections.abc import Callable
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slipstream.jit import gemm_code
from slipstream.jit.cache import cache_folder, discard, filling, is_whole, only_maker
from slipstream.jit.fast.together import Module, helps, stand_in
from slipstream.jit.gemm_code import KINDS, define, type_of
from slipstream.jit.machine_form import MachineForms, source_digest, tools

COLUMNS = 8  # products are of matrices whose width is a multiple of this
_FILE = "library.pickle"


def fused(a: Any, b: Any, c: Any) -> Any:
    """a b + c of float32 numbers, rounded once."""
    return np.float32(float(a) * float(b) + float(c))


def add_product(a: Any, b: Any, c: Any) -> None:
    """c += a b, each element by one fused multiply-add after another in the order of b's rows.

    Args:
        a: float32 [R, >= K], rows may lie apart; b: [K, C], c: [R, C], C a multiple of COLUMNS.
    """
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            for k in range(b.shape[0]):
                c[i, j] = fused(a[i, k], b[k, j], c[i, j])


def add_transposed_product(a: Any, b: Any, c: Any) -> None:
    """c += a^T b, each element by one fused multiply-add after another in the order of the rows.

    Args:
        a: float32 [K, >= R], rows may lie apart; b: [K, C], c: [R, C], C a multiple of COLUMNS.
    """
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            for k in range(b.shape[0]):
                c[i, j] = fused(a[k, i], b[k, j], c[i, j])


def layer_product(a: Any, b: Any, start: Any, floor: Any, c: Any) -> None:
    """c = max(floor, start + a b), the sum in the order of b's rows; NaN stays NaN.

    Args:
        a, b, c: as for `add_product`, K at least 1.
        start: float32 [>= C], of every row; or [0] for zeros.
        floor: float32.
    """
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = start[j] if len(start) > 0 else np.float32(0.0)
    add_product(a, b, c)
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = floor if c[i, j] < floor else c[i, j]


def gated_product(a: Any, b: Any, gate: Any, c: Any) -> None:
    """c = a b where gate [R, C] is above 0, and 0 elsewhere; else as `layer_product`."""
    layer_product(a, b, gate[0, :0], np.float32(-np.inf), c)
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = c[i, j] if gate[i, j] > 0.0 else np.float32(0.0)


def head_product(a: Any, b: Any, start: Any, c: Any) -> None:
    """c = start + a b, as `layer_product`, of one or two columns; the others become 0.

    Args:
        a, b, c: as for `add_product`, C = COLUMNS and K a multiple of it.
        start: float32 [1 or 2], of the columns that count.
    """
    n = len(start)
    c[:, :n], c[:, n:] = start, 0.0
    add_product(a, b[:, :n], c[:, :n])


def transpose(a: Any, b: Any) -> None:
    """b = a^T; a: float32 [R, C], b: [C, R], both sizes multiples of COLUMNS."""
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            b[j, i] = a[i, j]


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
    source = source_digest(gemm_code.__name__, __name__)
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


class _Forms(MachineForms):
    """The machine forms of the products, of which all but `fused` call the library."""

    @cached_property
    def digest(self) -> str:
        return digest()


forms = _Forms(__name__, _typed)
