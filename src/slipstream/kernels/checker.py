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

from slipstream.core.config import Config
from slipstream.core.errors import KernelError
from slipstream.core.single import single
from slipstream.jit.reached import place
from slipstream.kernels.kernel import Kernel, params_dtype
from slipstream.kernels.rules import Fields, Problems, SourceRules

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
_ORDINARY = {"load": ("config",), "spec": ("p", "d")}  # Python functions, which are not compiled
_WRITES_STATE = frozenset({"reset", "step", "conclude"})
_STATE_KINDS = {"f8": "float64", "i8": "int64", "u8": "uint64", "b1": "bool"}


def check_kernel(kernel: Kernel) -> None:
    """Checks the contract and the numeric rules of docs/extending.md.

    Raises:
        KernelError: everything found, each with file, line and remedy.
    """
    _check_classes(kernel)
    problems = Problems()
    with problems.noted():
        check_state(kernel)
    if not isinstance(kernel.STATE, np.dtype):
        problems.refuse()
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
        given = tuple(inspect.signature(function).parameters)
        several = _OF_PLAYERS.get(name, arguments)
        with problems.noted():
            if len(given) not in (len(arguments), len(several)):
                raise _wrong_count(function, name, len(given), arguments)
            own = arguments if len(given) == len(arguments) else several
            _check_order(function, name, given, own)
        with problems.noted():
            _check_function(function, fields, seen, problems, name)
    for name, arguments in _ORDINARY.items():
        function = getattr(kernel, name)
        with problems.noted():
            if not callable(function):
                raise KernelError(f"{kernel.module.__file__}: `{name}` must be a function.")
            count = len(inspect.signature(function).parameters)
            if count != len(arguments):
                raise _wrong_count(function, name, count, arguments)
    with problems.noted():
        _check_settings(kernel)
    problems.refuse()


def _check_order(
    function: Any, name: str, given: tuple[str, ...], contract: tuple[str, ...]
) -> None:
    """Parameters may have names of the user's own, but not each other's."""
    if any(own in contract and own != theirs for own, theirs in zip(given, contract, strict=True)):
        raise KernelError(
            f"{place(function)}: `{name}({', '.join(given)})` has its parameters in another order "
            f"than they are handed over: the contract is {name}({', '.join(contract)})."
        )


def _wrong_count(function: Any, name: str, count: int, arguments: tuple[str, ...]) -> KernelError:
    takes = "1 argument" if count == 1 else f"{count} arguments"
    return KernelError(
        f"{place(function)}: `{name}` takes {takes}; the contract is "
        f"{name}({', '.join(arguments)})."
    )


def _check_classes(kernel: Kernel) -> None:
    where = kernel.module.__file__
    if not (isinstance(kernel.Config, type) and issubclass(kernel.Config, Config)):
        raise KernelError(
            f"{where}: `Config` must be a class Config(config.Config), from "
            "`from slipstream.core import config`."
        )
    for name in ("Params", "Data"):
        part = getattr(kernel, name)
        if not (isinstance(part, type) and issubclass(part, tuple) and hasattr(part, "_fields")):
            raise KernelError(
                f"{where}: `{name}` must be a class {name}(NamedTuple), from "
                "`from typing import NamedTuple`."
            )


def _check_settings(kernel: Kernel) -> None:
    settings = getattr(kernel.module, "SETTINGS", {})
    agents = list(settings.values()) if isinstance(settings, dict) else [None]
    if not all(
        isinstance(sections, dict)
        and sections.keys() <= {"agent", "training"}
        and all(isinstance(part, dict) for part in sections.values())
        for sections in agents
    ):
        raise KernelError(
            f"{kernel.module.__file__}: `SETTINGS` is {settings!r}; write "
            'SETTINGS = {"ppo": {"agent": {...}, "training": {...}}}.'
        )


def check_state(kernel: Kernel) -> None:
    """Checks the record's type.

    Raises:
        KernelError: a field that is missing, or of a type that no backend has.
    """
    where = f"{kernel.module.__file__}: STATE"
    if not isinstance(kernel.STATE, np.dtype) or kernel.STATE.names is None:
        raise KernelError(f"{where} must be a structured NumPy dtype: np.dtype([...], align=True).")
    for name in ("key", "counter"):
        if name not in kernel.STATE.names or kernel.STATE[name] != np.dtype("u8"):
            raise KernelError(
                f'{where} must contain ("{name}", "u8"): the loop keeps the random stream there.'
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


def _check_function(
    function: Any, fields: Fields, seen: set[FunctionType], problems: Problems, name: str = ""
) -> None:
    """Checks one function and all that it calls; `name` is its part in the contract, if any."""
    if not isinstance(function, FunctionType):
        raise KernelError(
            f"{function!r} is not a plain function: a kernel is made of undecorated module-level "
            "functions."
        )
    if function in seen or function.__module__ == single.__module__:
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
    pure = bool(name) and name not in _WRITES_STATE
    rules = SourceRules(function, first - 1, fields, problems, pure)
    for statement in body:
        rules.visit(statement)
    with problems.noted():
        if name == "step":
            rules.check_returns(tree)
        if name in ("observe", "mask"):
            row = function.__code__.co_varnames[function.__code__.co_argcount - 1]
            rules.check_written(tree, row)
    for helper in rules.helpers:
        with problems.noted():
            _check_function(helper, fields, seen, problems)
