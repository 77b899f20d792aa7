"""Intrinsics: LLVM implementations that compiled code calls in place of plain functions.

Digests of plain functions do not cover them, so the source of their file is hashed.
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
    """Modules for writing intrinsics: llvmlite's `ir`, Numba's `types` and `cgutils`."""

    ir: Any
    types: Any
    cgutils: Any


@cache
def llvm_modules() -> Tools:
    """Return the modules, loaded on first use: commands that compile nothing do not need them."""
    names = ("llvmlite.ir", "numba.types", "numba.core.cgutils")
    return Tools(*(importlib.import_module(name) for name in names))


def type_layout(kind: Any) -> str:
    """Return Numba's name of a type, plus the field names of NamedTuples in it."""
    if not isinstance(kind, llvm_modules().types.BaseTuple):
        return str(kind)
    return f"{kind} {getattr(kind, 'fields', ())} [{', '.join(map(type_layout, kind))}]"


def make_intrinsic(typed: Callable[..., Any]) -> Any:
    """Return a Numba intrinsic from a function of types to a signature and a code emitter."""
    decorate: Any = importlib.import_module("numba.extending").intrinsic
    return decorate(typed)


def call_symbol(builder: Any, name: str, returned: Any, *arguments: Any) -> Any:
    """Emit a call of a C or LLVM function by name; return its value."""
    kind = llvm_modules().ir.FunctionType(returned, [argument.type for argument in arguments])
    function = llvm_modules().cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, arguments)


class IntrinsicSet:
    """Intrinsics of the functions of one module.

    Args:
        module: name of the module of the plain functions.
        typed: returns the typing functions, named like the plain functions.
    """

    def __init__(self, module: str, typed: Callable[[], Iterable[Callable[..., Any]]]) -> None:
        self._module, self._typed = module, typed

    def get(self, function: FunctionType) -> Any | None:
        """Return the intrinsic of a plain function, or None."""
        return self._made.get(function.__name__) if function.__module__ == self._module else None

    @cached_property
    def digest(self) -> str:
        """Digest of the module's file."""
        return source_digest(self._module)

    @cached_property
    def _made(self) -> dict[str, Any]:
        return {function.__name__: make_intrinsic(function) for function in self._typed()}


def source_digest(*modules: str) -> str:
    """Return the hex SHA-256 of the source of imported modules."""
    source = "".join(inspect.getsource(sys.modules[module]) for module in modules)
    return hashlib.sha256(source.encode()).hexdigest()


_MONOTONIC = time.CLOCK_MONOTONIC


@cache
def compiled_clock() -> Any:
    """Return ``seconds()`` for compiled code: `clock_gettime` of the monotonic clock."""
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

    # The cache of its callers depends on its name.
    seconds.__name__ += source_digest(__name__)[:12]
    return make_intrinsic(seconds)
