"""The compiled form of `core.memory.prefetch`: one instruction of the processor."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

_READ, _NEAREST, _DATA = 0, 3, 1  # arguments of LLVM's intrinsic


@cache
def compiled_prefetch() -> Any:
    """A function that Numba replaces by LLVM's `llvm.prefetch`."""
    ir: Any = importlib.import_module("llvmlite.ir")
    types: Any = importlib.import_module("numba.types")
    cgutils: Any = importlib.import_module("numba.core.cgutils")
    intrinsic: Any = importlib.import_module("numba.extending").intrinsic

    def prefetch(typing_context: Any, table: Any, row: Any, column: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = signature.args[0]
            array = context.make_array(kind)(context, builder, args[0])
            place = cgutils.get_item_pointer(
                context, builder, kind, array, [args[1], args[2]], wraparound=False
            )
            byte = ir.IntType(8).as_pointer()
            word = ir.IntType(32)
            function = builder.module.declare_intrinsic(
                "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, word, word, word])
            )
            flags = [ir.Constant(word, flag) for flag in (_READ, _NEAREST, _DATA)]
            builder.call(function, [builder.bitcast(place, byte), *flags])
            return context.get_dummy_value()

        return types.void(table, types.intp, types.intp), emit

    return intrinsic(prefetch)
