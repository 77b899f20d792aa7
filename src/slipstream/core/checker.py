"""Refuses a kernel that breaks the contract, or that would differ interpreted and compiled.

Every message names file and line and says what to write instead. What a reader of the source
cannot see (an index out of range, a NaN) is found by the interpreted backend and the batch loop.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import FunctionType
from typing import Any, get_type_hints

import numpy as np

from slipstream.core.errors import KernelError
from slipstream.core.kernel import Kernel, params_dtype
from slipstream.core.rules import Fields, SourceRules, place

_ARGUMENTS = {
    "reset": ("s", "p", "d"),
    "step": ("s", "action", "p", "d"),
    "observe": ("s", "p", "d", "out"),
    "mask": ("s", "p", "d", "out"),
    "ahead": ("s", "p", "d"),
    "conclude": ("s", "p", "d"),
}
_OF_PLAYERS = {  # where more than one player acts
    "observe": ("s", "p", "d", "player", "out"),
    "mask": ("s", "p", "d", "player", "out"),
}
_STATE_KINDS = {"f8": "float64", "i8": "int64", "u8": "uint64", "b1": "bool"}


def check_kernel(kernel: Kernel) -> None:
    """Checks the contract and the numeric rules of DESIGN.md section 3.

    Raises:
        KernelError: the first thing found, with file, line and remedy.
    """
    _check_state(kernel)
    params_dtype(kernel.Params)
    state = kernel.STATE.names or ()
    unsigned = {name for name in state if kernel.STATE[name].base.kind == "u"}
    records = {
        "s": ("STATE", tuple(state)),
        "p": ("Params", tuple(kernel.Params._fields)),
        "d": ("Data", tuple(kernel.Data._fields)),
    }
    fields = Fields(_narrow_fields(kernel.Data), frozenset(unsigned), records)
    seen: set[FunctionType] = set()
    for name, arguments in _ARGUMENTS.items():
        function = getattr(kernel, name)
        if function is None and name in ("mask", "ahead", "conclude"):
            continue
        count = len(inspect.signature(function).parameters)
        if count not in (len(arguments), len(_OF_PLAYERS.get(name, arguments))):
            raise KernelError(
                f"{place(function)}: `{name}` takes {count} arguments; the contract is "
                f"{name}({', '.join(arguments)})."
            )
        _check_function(function, fields, seen)


def _check_state(kernel: Kernel) -> None:
    where = f"{kernel.module.__file__}: STATE"
    if not isinstance(kernel.STATE, np.dtype) or kernel.STATE.names is None:
        raise KernelError(f"{where} must be a structured NumPy dtype: np.dtype([...], align=True).")
    for name in ("key", "counter"):
        if name not in kernel.STATE.names or kernel.STATE[name] != np.dtype("u8"):
            raise KernelError(
                f'{where} must contain ("{name}", "u8"): the loop keeps the random stream there.'
            )
    if "age" in kernel.STATE.names and kernel.STATE["age"] != np.dtype("i8"):
        raise KernelError(
            f'{where} field `age` must be "i8": the loop writes there how many steps the copy did '
            "in earlier episodes."
        )
    if not kernel.STATE.isalignedstruct:
        raise KernelError(f"{where} must be aligned: np.dtype([...], align=True).")
    for name in kernel.STATE.names:
        base = kernel.STATE[name].base
        if base.str.lstrip("<|=") not in _STATE_KINDS:
            raise KernelError(
                f"{where} field `{name}` is {base}: narrow numbers behave differently interpreted "
                f"and compiled; use {', '.join(_STATE_KINDS.values())}, or a fixed array of one "
                "of them."
            )


def _narrow_fields(data: Any) -> frozenset[str]:
    """Data fields annotated as float32: their elements must be read through `float()`."""
    try:
        hints = get_type_hints(data)
    except Exception:  # an annotation that only a type checker can resolve
        hints = dict(getattr(data, "__annotations__", {}))
    return frozenset(name for name, hint in hints.items() if "float32" in str(hint))


def _check_function(function: Any, fields: Fields, seen: set[FunctionType]) -> None:
    if not isinstance(function, FunctionType):
        raise KernelError(
            f"{function!r} is not a plain function: a kernel is made of undecorated module-level "
            "functions."
        )
    if function in seen:
        return
    seen.add(function)
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    if not isinstance(tree, ast.FunctionDef) or tree.decorator_list:
        raise KernelError(
            f"{place(function)}: remove the decorator; the renderer compiles plain functions."
        )
    body = tree.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]  # the docstring
    rules = SourceRules(function, first - 1, fields)
    for statement in body:
        rules.visit(statement)
    for helper in rules.helpers:
        _check_function(helper, fields, seen)
