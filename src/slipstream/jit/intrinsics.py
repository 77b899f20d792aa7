"""Machine forms: what compiled code calls in the place of plain functions that say what they do.

They are intrinsics of Numba, written in LLVM's language, so no digest of plain functions covers
them: their file's source counts.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import time
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from types import FunctionType
from typing import Any, NamedTuple


class Tools(NamedTuple):
    """Modules that machine forms are written with: llvmlite's `ir`, Numba's `types`, `cgutils`."""

    ir: Any
    types: Any
    cgutils: Any


@cache
def llvm_modules() -> Tools:
    """Loaded when they are first asked for: commands that compile nothing need not wait."""
    names = ("llvmlite.ir", "numba.types", "numba.core.cgutils")
    return Tools(*(importlib.import_module(name) for name in names))


def type_layout(kind: Any) -> str:
    """Numba's name of a type, and the fields of NamedTuples in it, whose order that leaves out."""
    if not isinstance(kind, llvm_modules().types.BaseTuple):
        return str(kind)
    return f"{kind} {getattr(kind, 'fields', ())} [{', '.join(map(type_layout, kind))}]"


def make_intrinsic(typed: Callable[..., Any]) -> Any:
    """What compiled code calls, of a function from types to a signature and what emits code."""
    decorate: Any = importlib.import_module("numba.extending").intrinsic
    return decorate(typed)


def call_symbol(builder: Any, name: str, returned: Any, *arguments: Any) -> Any:
    """Emit the call of a function of C or LLVM by its name; return its value."""
    kind = llvm_modules().ir.FunctionType(returned, [one.type for one in arguments])
    function = llvm_modules().cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, arguments)


class IntrinsicSet:
    """The machine forms of some functions of one module.

    Args:
        module: of the plain functions, by name.
        typed: makes the intrinsics' typing functions, which bear the plain functions' names.
    """

    def __init__(self, module: str, typed: Callable[[], Iterable[Callable[..., Any]]]) -> None:
        self._module, self._typed = module, typed

    def get(self, function: FunctionType) -> Any | None:
        """What compiled code calls for a plain function; None for one that is compiled itself."""
        return self._made.get(function.__name__) if function.__module__ == self._module else None

    @cached_property
    def digest(self) -> str:
        """Of the file, which the code of the definitions does not cover."""
        return source_digest(self._module)

    @cached_property
    def _made(self) -> dict[str, Any]:
        return {one.__name__: make_intrinsic(one) for one in self._typed()}


def source_digest(*modules: str) -> str:
    """Hex SHA-256 of the source of modules that are imported, by their names."""
    source = "".join(inspect.getsource(sys.modules[module]) for module in modules)
    return hashlib.sha256(source.encode()).hexdigest()


_MONOTONIC = time.CLOCK_MONOTONIC


@cache
def compiled_clock() -> Any:
    """``seconds()`` for `compile_module`'s `linked`: C's `clock_gettime` of the monotonic clock."""
    ir, types, cgutils = llvm_modules()
    whole, word, real = ir.IntType(64), ir.IntType(32), ir.DoubleType()

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        moment = cgutils.alloca_once(builder, whole, size=2)  # seconds, nanoseconds
        call_symbol(builder, "clock_gettime", word, ir.Constant(word, _MONOTONIC), moment)
        full, rest = (
            builder.sitofp(builder.load(builder.gep(moment, [ir.Constant(word, i)])), real)
            for i in range(2)
        )
        return builder.fadd(full, builder.fmul(rest, ir.Constant(real, 1e-9)))

    def seconds(typing_context: Any) -> Any:
        return types.float64(), emit

    # The cache of what calls it goes by its name.
    seconds.__name__ += source_digest(__name__)[:12]
    return make_intrinsic(seconds)
