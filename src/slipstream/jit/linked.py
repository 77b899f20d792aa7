"""Calls from one compiled module into another: by symbol, as a linker does it.

Numba would take the callee's code into the caller to optimise both together. With loops as large as
an environment's that is most of the caller's time to compile, and gains nothing: they are called
once for many rows.
"""

from __future__ import annotations

import importlib
import inspect
from functools import cache
from typing import Any

from slipstream.core.errors import KernelError
from slipstream.jit.fast.together import Later, helps, now, stand_in
from slipstream.jit.machine_form import intrinsic, source_digest, tools


@cache
def digest() -> str:
    """Of this file, which no caller's own code covers."""
    return source_digest(__name__)


def announce(function: Any) -> None:
    """Tells the linker where a compiled function is, for modules that call it by its symbol.

    A helper of `together` compiles and calls nothing: it need not have what is called.
    """
    if isinstance(function, Later) and helps():
        stand_in(_symbol(function))
        return
    compiled = now(function)
    if not hasattr(compiled, "overloads"):  # an intrinsic is nowhere
        return
    kind = _kind(compiled)
    if kind.return_type != _kind(function).return_type:
        raise KernelError(
            f"{function.__module__}.{function.__name__} was said to return "
            f"{function.kind.return_type}, for which its callers are compiled, and it returns "
            f"{kind.return_type}: mend what its annotation says."
        )
    llvm: Any = importlib.import_module("llvmlite.binding")
    made = compiled.overloads[kind.args]
    place = made.library.get_pointer_to_function(made.fndesc.llvm_func_name)
    llvm.add_symbol(_symbol(compiled), place)


def _symbol(function: Any) -> str:
    return f"{function.__module__}_{function.__name__}"


def _kind(function: Any) -> Any:
    """Numba's signature of a compiled function, there or to come; None of anything else."""
    if isinstance(function, Later):
        return function.kind
    return function.nopython_signatures[0] if hasattr(function, "overloads") else None


def fact(function: Any) -> str:
    """What a caller's code depends on: the symbol, and what it takes the function to return."""
    kind = _kind(function)
    return f"{_symbol(function)}: {None if kind is None else kind.return_type}"


def by_symbol(function: Any) -> Any:
    """What compiled code calls in order to call a compiled function of another module.

    A caller that lies in the cache finds its callee by the symbol, too: the name of its module says
    all that it reaches. `announce` comes before the caller is compiled or loaded.

    Args:
        function: compiled for one signature, and never unloaded, or to come later; anything else,
            an intrinsic, is returned as it is.
    """
    kind = _kind(function)
    if kind is None:
        return function
    cgutils = tools().cgutils

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        convention, returned = context.call_conv, signature.return_type
        shape = convention.get_function_type(returned, signature.args)
        callee = cgutils.get_or_insert_function(builder.module, shape, _symbol(function))
        status, result = convention.call_function(builder, callee, returned, signature.args, args)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return result

    def call(typing_context: Any, *args: Any) -> Any:
        return kind, emit

    # Numba hands a function with `*args` one tuple; this one has as many arguments as the callee.
    names = ("typing_context", *(f"a{i}" for i in range(len(kind.args))))
    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return intrinsic(call)
