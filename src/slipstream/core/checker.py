"""Reads a kernel's source and refuses what interpreted and compiled code would do differently.

Every message names file and line and says what to write instead. What the checker cannot see (an index
out of range, a NaN) is found by the interpreted backend and by the batch loop.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from types import FunctionType
from typing import Any, get_type_hints

import numpy as np

from slipstream.core.errors import KernelError
from slipstream.core.kernel import Kernel, params_dtype

_ARGUMENTS = {
    "reset": ("s", "p", "d"),
    "step": ("s", "action", "p", "d"),
    "observe": ("s", "p", "d", "out"),
    "mask": ("s", "p", "d", "out"),
}
_BUILTINS = frozenset({"abs", "bool", "float", "int", "len", "max", "min", "range", "round"})
_NUMPY = frozenset({"uint64", "int64", "float64", "bool_"})
_STATE_KINDS = {"f8": "float64", "i8": "int64", "u8": "uint64", "b1": "bool"}

_FORBIDDEN: dict[type[ast.AST], str] = {
    ast.Pow: "`**` calls the C library's pow, whose last bit differs from a product: write `x * x`, or `math.exp(y * math.log(x))`",
    ast.List: "a list is allocated on every step: use a fixed array field of STATE",
    ast.Dict: "a dict is allocated on every step: use STATE fields",
    ast.Set: "a set is allocated on every step: use STATE fields",
    ast.ListComp: "a comprehension allocates: write a `for` loop over `range`",
    ast.SetComp: "a comprehension allocates: write a `for` loop over `range`",
    ast.DictComp: "a comprehension allocates: write a `for` loop over `range`",
    ast.GeneratorExp: "a generator allocates: write a `for` loop over `range`",
    ast.Lambda: "a lambda is a new function on every call: define it at module level",
    ast.FunctionDef: "a nested function closes over its surroundings: define it at module level",
    ast.ClassDef: "a class cannot be compiled: use STATE fields and module-level functions",
    ast.Try: "exceptions cannot be caught in compiled code: guard the value with `if`",
    ast.Raise: "a kernel cannot raise: guard the value with `if`, and check settings in `Config` or `load`",
    ast.Assert: "a kernel cannot assert: check settings in `Config` or `load`",
    ast.With: "a context manager cannot be compiled: do input and output in `load`",
    ast.JoinedStr: "text cannot be made on a GPU: do it in `load`",
    ast.Import: "import at the top of the file",
    ast.ImportFrom: "import at the top of the file",
    ast.Global: "a kernel's state is its record `s`: make it a STATE field",
    ast.Nonlocal: "a kernel's state is its record `s`: make it a STATE field",
    ast.Yield: "a kernel function returns once",
    ast.YieldFrom: "a kernel function returns once",
    ast.Await: "a kernel function does no input or output",
    ast.Starred: "pass arguments one by one",
}


def check_kernel(kernel: Kernel) -> None:
    """Checks the contract and the numeric rules of DESIGN.md section 3.

    Raises:
        KernelError: the first thing found, with file, line and remedy.
    """
    _check_state(kernel)
    params_dtype(kernel.Params)
    narrow = _narrow_fields(kernel.Data)
    seen: set[FunctionType] = set()
    for name, arguments in _ARGUMENTS.items():
        function = getattr(kernel, name)
        if function is None and name == "mask":
            continue
        count = len(inspect.signature(function).parameters)
        if count != len(arguments) and not (name == "observe" and count == len(arguments) + 1):
            raise KernelError(
                f"{_place(function)}: `{name}` takes {count} arguments; the contract is "
                f"{name}({', '.join(arguments)})."
            )
        _check_function(function, narrow, seen)


def _check_state(kernel: Kernel) -> None:
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
                f"{where} field `{name}` is {base}: narrow numbers behave differently interpreted and compiled; "
                f"use {', '.join(_STATE_KINDS.values())}, or a fixed array of one of them."
            )


def _narrow_fields(data: Any) -> frozenset[str]:
    """Data fields annotated as float32: their elements must be read through `float()`."""
    try:
        hints = get_type_hints(data)
    except Exception:  # an annotation that only a type checker can resolve
        hints = dict(getattr(data, "__annotations__", {}))
    return frozenset(name for name, hint in hints.items() if "float32" in str(hint))


def _check_function(function: Any, narrow: frozenset[str], seen: set[FunctionType]) -> None:
    if not isinstance(function, FunctionType):
        raise KernelError(
            f"{function!r} is not a plain function: a kernel is made of undecorated module-level functions."
        )
    if function in seen:
        return
    seen.add(function)
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    if not isinstance(tree, ast.FunctionDef) or tree.decorator_list:
        raise KernelError(
            f"{_place(function)}: remove the decorator; the renderer compiles plain functions."
        )
    body = tree.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]  # the docstring
    visitor = _Rules(function, first - 1, narrow)
    for statement in body:
        visitor.visit(statement)
    for helper in visitor.helpers:
        _check_function(helper, narrow, seen)


def _place(function: Any, line: int | None = None) -> str:
    code = getattr(function, "__code__", None)
    if code is None:
        return repr(function)
    return f"{code.co_filename}:{line or code.co_firstlineno}"


class _Rules(ast.NodeVisitor):
    """Visits the body of one function; collects the helper functions that it calls."""

    def __init__(self, function: FunctionType, offset: int, narrow: frozenset[str]) -> None:
        self.function, self.offset, self.narrow = function, offset, narrow
        self.helpers: list[FunctionType] = []
        self._local = set(function.__code__.co_varnames)

    def fail(self, node: ast.AST, message: str) -> None:
        line = self.offset + getattr(node, "lineno", 1)
        raise KernelError(
            f"{_place(self.function, line)} (in `{self.function.__name__}`): {message}."
        )

    def generic_visit(self, node: ast.AST) -> None:
        for kind, message in _FORBIDDEN.items():
            if isinstance(node, kind):
                self.fail(node, message)
        super().generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Pow):
            self.fail(node, _FORBIDDEN[ast.Pow])
        for side in (node.left, node.right):
            self._refuse_narrow(side)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.op, ast.Pow):
            self.fail(node, _FORBIDDEN[ast.Pow])
        self._refuse_narrow(node.value)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for side in (node.left, *node.comparators):
            self._refuse_narrow(side, actions=False)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self._refuse_narrow(node.operand)
        self.generic_visit(node)

    def _refuse_narrow(self, node: ast.AST, actions: bool = True) -> None:
        if not isinstance(node, ast.Subscript):
            return
        base = node.value
        if isinstance(base, ast.Attribute) and base.attr in self.narrow:
            text = ast.unparse(node)
            self.fail(
                node,
                f"`{text}` is float32, and arithmetic on it differs compiled: write `float({text})`",
            )
        if actions and isinstance(base, ast.Name) and base.id == "action":
            text = ast.unparse(node)
            self.fail(
                node,
                f"`{text}` may be float32: write `float({text})` or `int({text})` before calculating",
            )

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str | bytes | complex):
            self.fail(
                node,
                f"{node.value!r}: kernels know numbers only; use a module-level int constant as a code",
            )

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = node.value
        if isinstance(owner, ast.Name) and owner.id not in self._local:
            module = self.function.__globals__.get(owner.id)
            if module is math and node.attr == "pow":
                self.fail(node, _FORBIDDEN[ast.Pow].replace("`**`", "`math.pow`"))
            if module is np and node.attr not in _NUMPY:
                self.fail(
                    node,
                    f"`np.{node.attr}`: of NumPy a kernel may use {', '.join(sorted(_NUMPY))}; use `math`",
                )
            if inspect.ismodule(module) and module not in (math, np):
                self.fail(
                    node,
                    f"`{owner.id}.{node.attr}`: import helpers by name, `from {module.__name__} import {node.attr}`",
                )
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self._local:
            return
        if node.id not in self.function.__globals__:
            if node.id not in _BUILTINS:
                self.fail(
                    node,
                    f"`{node.id}` is not among the built-ins of a kernel ({', '.join(sorted(_BUILTINS))})",
                )
            return
        value = self.function.__globals__[node.id]
        if isinstance(value, FunctionType):
            self.helpers.append(value)
        elif not (
            inspect.ismodule(value)
            or isinstance(value, bool | int | float | np.generic | type | tuple)
        ):
            self.fail(
                node,
                f"`{node.id}` is a global {type(value).__name__}: put arrays into Data and settings into Params",
            )
