"""Atomic operations on shared numbers in compiled loops: definitions and intrinsics.

The definitions are single-threaded, for the interpreter. In compiled code operations are atomic and
sequentially consistent: a thread that reads a number sees all earlier writes of the thread that
stored it. All operate on one element of an int64 array.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import Any

from slipstream.jit.intrinsics import IntrinsicSet, call_symbol, llvm_modules


def load(numbers: Any, i: int) -> int:
    """numbers[i]."""
    return int(numbers[i])


def store(numbers: Any, i: int, value: int) -> None:
    """numbers[i] = value."""
    numbers[i] = value


def add(numbers: Any, i: int, value: int) -> None:
    """numbers[i] += value."""
    numbers[i] += value


def replace(numbers: Any, i: int, expected: int, value: int) -> bool:
    """Compare and exchange: set numbers[i] if it equals `expected`; return whether it did."""
    same = bool(numbers[i] == expected)
    if same:
        numbers[i] = value
    return same


def pause() -> None:
    """Spin-wait hint for the CPU."""


def yield_cpu() -> None:
    """Yield this core to another ready thread."""


def sleep() -> None:
    """Sleep for about 50 microseconds, so that a thread that waits for long frees its core."""


def core() -> int:
    """Return the index of the current core, or -1 if unknown."""
    return -1


# Intrinsics of the operations above.
def _typed() -> tuple[Callable[..., Any], ...]:
    ir, types, cgutils = llvm_modules()
    order, integer = "seq_cst", types.int64

    def place(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        array = context.make_array(kind)(context, builder, args[0])
        return cgutils.get_item_pointer(context, builder, kind, array, [args[1]], wraparound=False)

    def load(_: Any, numbers: Any, i: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load_atomic(place(context, builder, signature, args), order, 8)

        return integer(numbers, types.intp), emit

    def store(_: Any, numbers: Any, i: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store_atomic(args[2], place(context, builder, signature, args), order, 8)
            return context.get_dummy_value()

        return types.void(numbers, types.intp, integer), emit

    def add(_: Any, numbers: Any, i: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.atomic_rmw("add", place(context, builder, signature, args), args[2], order)
            return context.get_dummy_value()

        return types.void(numbers, types.intp, integer), emit

    def replace(_: Any, numbers: Any, i: Any, expected: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            at = place(context, builder, signature, args)
            both = builder.cmpxchg(at, args[2], args[3], order, order)
            return builder.extract_value(both, 1)

        return types.boolean(numbers, types.intp, integer, integer), emit

    def pause(_: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            if platform.machine() in ("x86_64", "AMD64"):
                call_symbol(builder, "llvm.x86.sse2.pause", ir.VoidType())
            return context.get_dummy_value()

        return types.void(), emit

    def yield_cpu(_: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            call_symbol(builder, "sched_yield", ir.IntType(32))
            return context.get_dummy_value()

        return types.void(), emit

    def sleep(_: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = ir.IntType(32)
            call_symbol(builder, "usleep", word, ir.Constant(word, 50))
            return context.get_dummy_value()

        return types.void(), emit

    def core(_: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            if sys.platform != "linux":
                return ir.Constant(ir.IntType(64), -1)
            number = call_symbol(builder, "sched_getcpu", ir.IntType(32))
            return builder.sext(number, ir.IntType(64))

        return integer(), emit

    return load, store, add, replace, pause, yield_cpu, sleep, core


forms = IntrinsicSet(__name__, _typed)
