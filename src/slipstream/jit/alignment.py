"""Memory layout for compiled loops: alignment, prefetching, zero-copy matrices, garbage collection.

A part of a contiguous row is a matrix without a copy. Numba's `reshape` calls a library function
that checks this at every call, and blocks optimisation: 10 % of an evaluation's time.
"""

from __future__ import annotations

import gc
import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.jit.intrinsics import IntrinsicSet, llvm_modules

LINE = 64  # bytes
_READ, _NEAREST, _DATA = 0, 3, 1  # arguments of LLVM's `llvm.prefetch`


def aligned_zeros(shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """Return `numpy.zeros` aligned to a cache line; NumPy aligns large arrays to 16 bytes only.

    Vectors that cross a cache line take twice as long to load.
    """
    size = np.dtype(dtype).itemsize * math.prod(shape)
    block = np.zeros(size + LINE, np.uint8)
    first = -block.ctypes.data % LINE
    array: NDArray[Any] = block[first : first + size].view(dtype).reshape(shape)
    return array


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause cyclic garbage collection while many long-lived objects are created.

    Saves 0.15 s of importing Numba and loading code, and a tenth of compiling hockey, the largest
    module, for 160 MiB more memory meanwhile.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def prefetch_element(table: Any, row: int, column: int) -> None:
    """Prefetch the cache line of ``table[row, column]``; compiled code does not wait for it.

    No effect in the interpreter. The element need not exist.
    """


def prefetch_record(records: Any, row: int, byte: int) -> None:
    """Prefetch the cache line of a byte of ``records[row]``, an array of one axis."""


def matrix(numbers: Any, at: int, rows: int, columns: int) -> Any:
    """Return numbers[at : at + rows * columns] as a matrix [rows, columns] without a copy.

    Args:
        numbers: one axis, contiguous and long enough: compiled code does not check.
    """
    return numbers[at : at + rows * columns].reshape(rows, columns)


def _typed() -> tuple[Callable[..., Any], ...]:
    ir, types, cgutils = llvm_modules()
    arrays: Any = importlib.import_module("numba.np.arrayobj")
    pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)

    def ask(context: Any, builder: Any, place: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        flags = [ir.Constant(word, flag) for flag in (_READ, _NEAREST, _DATA)]
        builder.call(function, [builder.bitcast(place, pointer), *flags])
        return context.get_dummy_value()

    def element(context: Any, builder: Any, kind: Any, array: Any, indices: list[Any]) -> Any:
        array = context.make_array(kind)(context, builder, array)
        return cgutils.get_item_pointer(context, builder, kind, array, indices, wraparound=False)

    def prefetch_element(typing_context: Any, table: Any, row: Any, column: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = element(context, builder, signature.args[0], args[0], [args[1], args[2]])
            return ask(context, builder, place)

        return types.void(table, types.intp, types.intp), emit

    def prefetch_record(typing_context: Any, records: Any, row: Any, byte: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            record = element(context, builder, signature.args[0], args[0], [args[1]])
            place = builder.gep(builder.bitcast(record, pointer), [args[2]])
            return ask(context, builder, place)

        return types.void(records, types.intp, types.intp), emit

    def matrix(_: Any, numbers: Any, at: Any, rows: Any, columns: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source = context.make_array(signature.args[0])(context, builder, args[0])
            target = context.make_array(signature.return_type)(context, builder)
            stride = builder.mul(args[3], source.itemsize)
            arrays.populate_array(
                target,
                data=builder.gep(source.data, [args[1]]),
                shape=[args[2], args[3]],
                strides=[stride, source.itemsize],
                itemsize=source.itemsize,
                meminfo=None,
            )
            return target._getvalue()

        if not (isinstance(numbers, types.Array) and numbers.ndim == 1 and numbers.layout == "C"):
            return None
        return numbers.copy(ndim=2)(numbers, types.intp, types.intp, types.intp), emit

    return prefetch_element, prefetch_record, matrix


forms = IntrinsicSet(__name__, _typed)
