"""The compiled forms of `core.memory`: one instruction of the processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slipstream.core import memory
from slipstream.jit.machine_form import MachineForms, tools

_READ, _NEAREST, _DATA = 0, 3, 1  # arguments of LLVM's intrinsic


def _typed() -> tuple[Callable[..., Any], ...]:
    """Functions that Numba replaces by LLVM's `llvm.prefetch`."""
    ir, types, cgutils = tools()
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

    def prefetch(typing_context: Any, table: Any, row: Any, column: Any) -> Any:
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

    return prefetch, prefetch_record


forms = MachineForms(memory.__name__, _typed, __name__)
