"""Memory of arrays as a processor reads it, and as Python looks through its objects.

A cache line is read at a time, and better asked for early. A part of a contiguous row is a matrix
without a copy: Numba's own `reshape` asks a function of its library whether one is needed, at every
call, and hides from the optimiser what comes of it: a tenth of a test pass.
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
    """As `numpy.zeros`, but beginning on a cache line; its own begin 16 bytes behind a page.

    Vectors that are read across two lines take twice as long.
    """
    size = np.dtype(dtype).itemsize * math.prod(shape)
    block = np.zeros(size + LINE, np.uint8)
    first = -block.ctypes.data % LINE
    array: NDArray[Any] = block[first : first + size].view(dtype).reshape(shape)
    return array


@contextmanager
def gc_paused() -> Iterator[None]:
    """Leaves cycles of objects for later, where most of what is made is kept.

    Importing Numba and loading code with it takes 0.15 s less, compiling hockey, the largest
    module, a tenth less and 160 MiB more meanwhile.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def prefetch_element(table: Any, row: int, column: int) -> None:
    """Asks for the cache line of ``table[row, column]``; compiled code does not wait for it.

    Interpreted it does nothing. The place need not exist.
    """


def prefetch_record(records: Any, row: int, byte: int) -> None:
    """Asks for the cache line of a byte of ``records[row]``, an array of one axis, likewise."""


def matrix(numbers: Any, at: int, rows: int, columns: int) -> Any:
    """numbers[at : at + rows * columns] as [rows, columns], not copied.

    Args:
        numbers: one axis, contiguous, and long enough: compiled code does not compare.
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
