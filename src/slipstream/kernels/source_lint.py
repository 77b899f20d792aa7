"""Lint kernel sources: reject what breaks the contract or would differ interpreted and compiled.

`check_kernel` compares classes and parameters with the contract. `KernelLinter` reads the source of
every function, statement by statement. Every message has file, line and a fix. Errors that the
source does not show (an index out of range, a NaN) are found by the interpreted backend and the
batch loop.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any, NamedTuple, NoReturn, get_type_hints

import numpy as np

from slipstream.core.config import Config
from slipstream.core.errors import KernelError
from slipstream.core.text import closest_match
from slipstream.jit.dependencies import BUILTINS, source_location
from slipstream.jit.float32 import single
from slipstream.kernels.kernel import Kernel, params_dtype

NUMPY = frozenset({"uint64", "int64", "float64", "bool_"})
MATH = frozenset(
    {"acos", "asin", "atan", "atan2", "ceil", "copysign", "cos", "cosh", "exp", "expm1", "fabs"}
    | {"floor", "isfinite", "isinf", "isnan", "log", "log1p", "sin", "sinh", "sqrt", "tan", "tanh"}
    | {"e", "inf", "nan", "pi", "tau"}
)
POWER_ADVICE = (
    "calls the C library's pow, whose last bit differs from a product: write `x * x`, or "
    "`math.exp(y * math.log(x))`"
)
_ALLOCATES = "is allocated on every step: use a fixed array field of STATE"
_LOOP = "a comprehension allocates: write a `for` loop over `range`"
RANDOM_ADVICE = (
    "an environment draws from its own stream, so that runs are reproducible: `uniform(s)`, "
    "`normal(s)` or `integer(s, n)`, from `from slipstream.core.random import uniform`"
)
_INSTEAD = {
    "abs": "use `abs(x)`",
    "clip": "use `min(max(x, low), high)`",
    "maximum": "use `max(a, b)`",
    "minimum": "use `min(a, b)`",
    "where": "use `a if condition else b`",
    "power": "write `x * x`",
    "zeros": "use a fixed array field of STATE",
    "array": "use a fixed array field of STATE, or put it into Data",
    "sum": "add in a `for` loop over `range`",
    "dot": "add in a `for` loop over `range`",
    "mean": "add in a `for` loop over `range`",
}
_ON_TOP = "import at the top of the file"
_FIELD = "a kernel's state is its record `s`: make it a STATE field"
_ONCE = "a kernel function returns once"

FORBIDDEN: dict[type[ast.AST], str] = {
    ast.Pow: f"`**` {POWER_ADVICE}",
    ast.List: f"a list {_ALLOCATES}",
    ast.Dict: "a dict is allocated on every step: use STATE fields",
    ast.Set: "a set is allocated on every step: use STATE fields",
    ast.ListComp: _LOOP,
    ast.SetComp: _LOOP,
    ast.DictComp: _LOOP,
    ast.GeneratorExp: "a generator allocates: write a `for` loop over `range`",
    ast.Lambda: "a lambda is a new function on every call: define it at module level",
    ast.FunctionDef: "a nested function closes over its surroundings: define it at module level",
    ast.ClassDef: "a class cannot be compiled: use STATE fields and module-level functions",
    ast.Try: "exceptions cannot be caught in compiled code: guard the value with `if`",
    ast.Raise: (
        "a kernel cannot raise: guard the value with `if`, and check settings in `Config` or `load`"
    ),
    ast.Assert: "a kernel cannot assert: check settings in `Config` or `load`",
    ast.With: "a context manager cannot be compiled: do input and output in `load`",
    ast.JoinedStr: (
        "compiled code makes no text: keep the number in a STATE field and name it in "
        '`EnvSpec(trace=...)`, or run the kernel with backend="serial" in a debugger'
    ),
    ast.Import: _ON_TOP,
    ast.ImportFrom: _ON_TOP,
    ast.Global: _FIELD,
    ast.Nonlocal: _FIELD,
    ast.Yield: _ONCE,
    ast.YieldFrom: _ONCE,
    ast.Await: "a kernel function does no input or output",
    ast.Starred: "pass arguments one by one",
}
# Except for right shifts, int with uint64 gives uint64 interpreted and int64 compiled.
MIXES = (
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Mod,
    ast.FloorDiv,
    ast.BitAnd,
    ast.BitOr,
    ast.BitXor,
    ast.LShift,
)


def float_literal_fix(text: str) -> str:
    """Return the fix for `float("...")`."""
    try:
        value = float(text)
    except ValueError:
        return f"{text!r} is no number"
    if math.isnan(value):
        return "write `math.nan`"
    if math.isinf(value):
        return "write `math.inf`" if value > 0 else "write `-math.inf`"
    return f"write `{value!r}`"


def numpy_replacement(name: str) -> str:
    """Return the fix for a NumPy function or constant that kernels may not use."""
    if name in _INSTEAD:
        return _INSTEAD[name]
    return f"write `math.{name}`" if name in MATH else "use `math`"


class FieldNames(NamedTuple):
    """Names of fields that are checked wherever they are read.

    Attributes:
        narrow: Data fields of float32.
        unsigned: STATE fields of uint64.
        records: kind and fields of the arguments `s`, `p` and `d`.
    """

    narrow: frozenset[str]
    unsigned: frozenset[str]
    records: Mapping[str, tuple[str, tuple[str, ...]]]


class LintProblems(list[str]):
    """All problems of a kernel, so that an author can fix them in one pass."""

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Store the body's KernelError and continue after the body."""
        try:
            yield
        except KernelError as error:
            if str(error) not in self:
                self.append(str(error))

    def raise_if_any(self) -> None:
        """Raise a KernelError with all problems, numbered if there are several."""
        if len(self) == 1:
            raise KernelError(self[0])
        if self:
            problems = " ".join(f"({k}) {problem}" for k, problem in enumerate(self, 1))
            raise KernelError(f"{len(self)} rules are broken: {problems}")


class KernelLinter(ast.NodeVisitor):
    """Visit the body of one function, and collect the helper functions that it calls.

    Args:
        function: function to visit.
        offset: lines of its file above the parsed text.
        fields: field names that are checked.
        problems: collects the violations.
        pure: the function must not write STATE.
    """

    def __init__(
        self,
        function: FunctionType,
        offset: int,
        fields: FieldNames,
        problems: LintProblems,
        pure: bool = False,
    ) -> None:
        self.function, self.offset, self.fields, self.pure = function, offset, fields, pure
        self.problems = problems
        self.helpers: list[FunctionType] = []
        code = function.__code__
        self._local = set(code.co_varnames)
        self._arguments = set(code.co_varnames[: code.co_argcount])

    def visit(self, node: ast.AST) -> None:
        """Continue after a statement with a violation, so that all are found in one pass."""
        if not isinstance(node, ast.stmt):
            super().visit(node)
            return
        with self.problems.collect():
            super().visit(node)

    def fail(self, node: ast.AST, message: str) -> NoReturn:
        line = self.offset + getattr(node, "lineno", 1)
        where = source_location(self.function, line)
        raise KernelError(f"{where} (in `{self.function.__name__}`): {message}.")

    def check_returns(self, tree: ast.FunctionDef) -> None:
        """Check that every return of `step` has three values."""
        contract = "return reward, terminated, truncated"
        returns = [node for node in ast.walk(tree) if isinstance(node, ast.Return)]
        if not returns:
            self.fail(tree, f"`step` returns nothing: `{contract}`")
        for node in returns:
            value = node.value
            if value is None or isinstance(value, ast.Constant | ast.Compare | ast.BinOp):
                what = "nothing" if value is None else f"`{ast.unparse(value)}` alone"
                self.fail(node, f"`step` returns {what}: `{contract}`")
            if isinstance(value, ast.Tuple) and len(value.elts) != 3:
                self.fail(
                    node,
                    f"`step` returns {len(value.elts)} values, `{ast.unparse(value)}`: "
                    f"`{contract}`, the last one False where only the batch loop cuts episodes",
                )

    def check_written(self, tree: ast.FunctionDef, row: str) -> None:
        """Check that `observe` and `mask` write into their row, or pass it to a helper."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                if isinstance(node.value, ast.Name) and node.value.id == row:
                    return
            elif isinstance(node, ast.Name) and node.id == row and isinstance(node.ctx, ast.Load):
                parent = _holder(tree, node)
                if isinstance(parent, ast.Call | ast.Assign):
                    return
        self.fail(
            tree,
            f"`{tree.name}` writes nothing into its row: write every place of it, `{row}[0] = ...`",
        )

    def _check_target(self, node: ast.AST) -> None:
        """Check that an assignment does not write Data, Params, the action or the random stream."""
        for target in ast.walk(node):
            if not isinstance(target, ast.Subscript | ast.Attribute):
                continue
            base, inner = target.value, isinstance(target, ast.Attribute)
            while isinstance(base, ast.Subscript | ast.Attribute):
                inner, base = isinstance(base, ast.Attribute), base.value
            if not (isinstance(target.ctx, ast.Store) and isinstance(base, ast.Name)):
                continue
            if base.id not in self._arguments:
                continue
            text = ast.unparse(target)
            if base.id == "action" and not inner:
                self.fail(target, f"`{text}` writes into the action: copy it into a STATE field")
            if base.id in ("d", "p"):
                kind = self.fields.records[base.id][0]
                self.fail(target, f"`{text}` writes into {kind}, which is shared: use STATE")
            is_random = self.function.__module__ == "slipstream.core.random"  # may write the stream
            stream = isinstance(target, ast.Attribute) and target.attr in ("key", "counter")
            if stream and not is_random:
                self.fail(
                    target,
                    f"`{text}` writes into the random stream, which the batch loop sets before "
                    "every episode: draw with `uniform(s)` or `normal(s)`, and count in a STATE "
                    "field of your own",
                )
            if base.id == "s" and self.pure:
                self.fail(
                    target,
                    f"`{text}` is set in `{self.function.__name__}`, which may be called any "
                    "number of times: set it in `reset` or `step`",
                )

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._check_target(target)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name, arguments = node.func, node.args
        if isinstance(name, ast.Name) and name.id == "float" and len(arguments) == 1:
            text = arguments[0]
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                self.fail(node, f"`{ast.unparse(node)}`: {float_literal_fix(text.value)}")
        if isinstance(name, ast.Name) and name.id == "print" and name.id not in self._local:
            self.fail(
                node,
                "`print` is not among the built-ins of a kernel: keep the number in a STATE field "
                "and name it in `EnvSpec(trace=...)`",
            )
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        for kind, message in FORBIDDEN.items():
            if isinstance(node, kind):
                self.fail(node, message)
        super().generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._check_operands(node, node.op, node.left, node.right)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._check_target(node.target)
        self._check_operands(node, node.op, node.target, node.value)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for side in (node.left, *node.comparators):
            self._check_narrow(side, actions=False)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self._check_narrow(node.operand)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str | bytes | complex):
            self.fail(
                node,
                f"{node.value!r}: kernels support numbers only; use a module-level int constant "
                "as a code",
            )

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = node.value
        if isinstance(owner, ast.Name) and owner.id not in self._local:
            self._check_module_attribute(node, owner.id)
        elif isinstance(owner, ast.Name) and owner.id in self.fields.records:
            kind, known = self.fields.records[owner.id]
            if owner.id in self._arguments and node.attr not in known:
                guess = closest_match(node.attr, known)
                advice = (
                    f"perhaps `{guess}` is meant"
                    if guess
                    else f"it has {', '.join(known) or 'none'}"
                )
                self.fail(node, f"{kind} has no field `{node.attr}`; {advice}")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        always = isinstance(node.test, ast.Constant) and bool(node.test.value)
        if always and not any(isinstance(item, ast.Break | ast.Return) for item in ast.walk(node)):
            self.fail(node, "the loop never ends: write `for i in range(n)`, or a `break`")
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self._local:
            constant = self.function.__globals__.get(node.id)
            if isinstance(node.ctx, ast.Store) and isinstance(constant, bool | int | float | tuple):
                self.fail(
                    node,
                    f"`{node.id}` is a module constant, and this assignment creates a local "
                    "variable of the same name. Choose another name, or a field of STATE",
                )
            return
        if node.id not in self.function.__globals__:
            if node.id not in BUILTINS:
                known = ", ".join(sorted(BUILTINS))
                self.fail(node, f"`{node.id}` is not among the built-ins of a kernel ({known})")
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
                f"`{node.id}` is a global {type(value).__name__}: put arrays into Data and "
                "settings into Params",
            )

    def _check_operands(
        self, node: ast.AST, operator: ast.operator, left: ast.AST, right: ast.AST
    ) -> None:
        if isinstance(operator, ast.Pow):
            self.fail(node, FORBIDDEN[ast.Pow])
        for side, other in ((left, right), (right, left)):
            self._check_narrow(side)
            if isinstance(operator, MIXES) and self._is_unsigned(side) and _is_int(other):
                number = ast.unparse(other)
                self.fail(
                    node,
                    f"`{ast.unparse(side)}` is uint64, and beside an int it means different "
                    f"things interpreted and compiled: write `np.uint64({number})`",
                )

    def _is_unsigned(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Subscript):
            node = node.value
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            return False
        return node.value.id in self._local and node.attr in self.fields.unsigned

    def _check_narrow(self, node: ast.AST, actions: bool = True) -> None:
        if not isinstance(node, ast.Subscript):
            return
        base, text = node.value, ast.unparse(node)
        if isinstance(base, ast.Attribute) and base.attr in self.fields.narrow:
            self.fail(
                node,
                f"`{text}` is float32, and arithmetic on it differs compiled: write "
                f"`float({text})`",
            )
        if actions and isinstance(base, ast.Name) and base.id == "action":
            self.fail(
                node,
                f"`{text}` may be float32: write `float({text})` or `int({text})` before "
                "calculating",
            )

    def _check_module_attribute(self, node: ast.Attribute, owner: str) -> None:
        module, name = self.function.__globals__.get(owner), node.attr
        if module is math and name == "pow":
            self.fail(node, f"`math.pow` {POWER_ADVICE}")
        if module is math and name not in MATH:
            self.fail(node, f"`math.{name}`: a kernel may use {', '.join(sorted(MATH))} of `math`")
        if (module is np and name == "random") or getattr(module, "__name__", None) == "random":
            self.fail(node, f"`{owner}.{name}`: {RANDOM_ADVICE}")
        if module is np and name not in NUMPY:
            self.fail(
                node,
                f"`{owner}.{name}`: of NumPy a kernel may use {', '.join(sorted(NUMPY))}; "
                f"{numpy_replacement(name)}",
            )
        if inspect.ismodule(module) and module not in (math, np):
            self.fail(
                node,
                f"`{owner}.{name}`: import helpers by name, `from {module.__name__} import {name}`",
            )


def _holder(tree: ast.AST, child: ast.AST) -> ast.AST | None:
    """Return the parent of a node."""
    for node in ast.walk(tree):
        if any(item is child for item in ast.iter_child_nodes(node)):
            return node
    return None


def _is_int(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) is int


_ARGUMENTS = {
    "reset": ("s", "p", "d"),
    "step": ("s", "action", "p", "d"),
    "observe": ("s", "p", "d", "out"),
    "mask": ("s", "p", "d", "out"),
    "prefetch": ("s", "p", "d"),
    "finalize_episode": ("s", "p", "d"),
}
_PLAYER_ARGUMENTS = {  # with more than one player
    "observe": ("s", "p", "d", "player", "out"),
    "mask": ("s", "p", "d", "player", "out"),
}
_PYTHON_ARGUMENTS = {
    "load": ("config",),
    "spec": ("p", "d"),
}  # Python functions, which are not compiled
_WRITES_STATE = frozenset({"reset", "step", "finalize_episode"})
_STATE_KINDS = {"f8": "float64", "i8": "int64", "u8": "uint64", "b1": "bool"}


def check_kernel(kernel: Kernel) -> None:
    """Check a kernel against the contract and the numeric rules of docs/reference/kernel.md.

    Raises:
        KernelError: all violations, each with file, line and fix.
    """
    _check_classes(kernel)
    problems = LintProblems()
    with problems.collect():
        check_state(kernel)
    if not isinstance(kernel.STATE, np.dtype):
        problems.raise_if_any()
    params_dtype(kernel.Params)
    state = kernel.STATE.names or ()
    unsigned = {name for name in state if kernel.STATE[name].base.kind == "u"}
    records = {
        "s": ("STATE", tuple(state)),
        "p": ("Params", tuple(kernel.Params._fields)),
        "d": ("Data", tuple(kernel.Data._fields)),
    }
    fields = FieldNames(_narrow_fields(kernel.Data), frozenset(unsigned), records)
    seen: set[FunctionType] = set()
    for name, arguments in _ARGUMENTS.items():
        function = getattr(kernel, name)
        if function is None and name in ("mask", "prefetch", "finalize_episode"):
            continue
        given = tuple(inspect.signature(function).parameters)
        several = _PLAYER_ARGUMENTS.get(name, arguments)
        with problems.collect():
            if len(given) not in (len(arguments), len(several)):
                raise _wrong_count(function, name, len(given), arguments)
            names = arguments if len(given) == len(arguments) else several
            _check_order(function, name, given, names)
        with problems.collect():
            _check_function(function, fields, seen, problems, name)
    for name, arguments in _PYTHON_ARGUMENTS.items():
        function = getattr(kernel, name)
        with problems.collect():
            if not callable(function):
                raise KernelError(f"{kernel.module.__file__}: `{name}` must be a function.")
            count = len(inspect.signature(function).parameters)
            if count != len(arguments):
                raise _wrong_count(function, name, count, arguments)
    with problems.collect():
        _check_hyperparams(kernel)
    problems.raise_if_any()


def _check_order(
    function: Any, name: str, given: tuple[str, ...], contract: tuple[str, ...]
) -> None:
    """Check the order of parameters. Users may choose other names, but not swap the contract's."""
    if any(
        given_name in contract and given_name != expected
        for given_name, expected in zip(given, contract, strict=True)
    ):
        raise KernelError(
            f"{source_location(function)}: `{name}({', '.join(given)})` has its parameters in the "
            f"wrong order: the contract is {name}({', '.join(contract)})."
        )


def _wrong_count(function: Any, name: str, count: int, arguments: tuple[str, ...]) -> KernelError:
    takes = "1 argument" if count == 1 else f"{count} arguments"
    return KernelError(
        f"{source_location(function)}: `{name}` takes {takes}; the contract is "
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


def _check_hyperparams(kernel: Kernel) -> None:
    settings = getattr(kernel.module, "DEFAULT_HYPERPARAMS", {})
    agents = list(settings.values()) if isinstance(settings, dict) else [None]
    if not all(
        isinstance(sections, dict)
        and sections.keys() <= {"agent", "training"}
        and all(isinstance(part, dict) for part in sections.values())
        for sections in agents
    ):
        raise KernelError(
            f"{kernel.module.__file__}: `DEFAULT_HYPERPARAMS` is {settings!r}; write "
            'DEFAULT_HYPERPARAMS = {"ppo": {"agent": {...}, "training": {...}}}.'
        )


def check_state(kernel: Kernel) -> None:
    """Check the dtype of STATE.

    Raises:
        KernelError: a field is missing, or has a type that no backend supports.
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
    """Return the Data fields annotated as float32. Elements must be read through `float()`."""
    try:
        hints = get_type_hints(data)
    except Exception:  # an annotation that only a type checker can resolve
        hints = dict(getattr(data, "__annotations__", {}))
    return frozenset(name for name, hint in hints.items() if "float32" in str(hint))


def _check_function(
    function: Any,
    fields: FieldNames,
    seen: set[FunctionType],
    problems: LintProblems,
    name: str = "",
) -> None:
    """Check one function and its helpers; `name` is its name in the contract, if any."""
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
            f"{source_location(function)}: remove the decorator; kernels are plain functions."
        )
    body = tree.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]  # the docstring
    pure = bool(name) and name not in _WRITES_STATE
    rules = KernelLinter(function, first - 1, fields, problems, pure)
    for statement in body:
        rules.visit(statement)
    with problems.collect():
        if name == "step":
            rules.check_returns(tree)
        if name in ("observe", "mask"):
            row = function.__code__.co_varnames[function.__code__.co_argcount - 1]
            rules.check_written(tree, row)
    for helper in rules.helpers:
        with problems.collect():
            _check_function(helper, fields, seen, problems)
