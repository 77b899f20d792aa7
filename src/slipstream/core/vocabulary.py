"""What the source of a kernel may use, and what to write instead of the rest."""

from __future__ import annotations

import ast
import math

BUILTINS = frozenset({"abs", "bool", "float", "int", "len", "max", "min", "range", "round"})
"""The built-in functions that mean the same interpreted, compiled and on a GPU."""

NUMPY = frozenset({"uint64", "int64", "float64", "bool_"})
MATH = frozenset(
    {"acos", "asin", "atan", "atan2", "ceil", "copysign", "cos", "cosh", "exp", "expm1", "fabs"}
    | {"floor", "isfinite", "isinf", "isnan", "log", "log1p", "sin", "sinh", "sqrt", "tan", "tanh"}
    | {"e", "inf", "nan", "pi", "tau"}
)
POWER = (
    "calls the C library's pow, whose last bit differs from a product: write `x * x`, or "
    "`math.exp(y * math.log(x))`"
)
_ALLOCATES = "is allocated on every step: use a fixed array field of STATE"
_LOOP = "a comprehension allocates: write a `for` loop over `range`"
DRAWS = (
    "a copy draws from its own stream, so that a run can be repeated: `uniform(s)`, `normal(s)` or "
    "`integer(s, n)`, from `from slipstream.core.random import uniform`"
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
    ast.Pow: f"`**` {POWER}",
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
        '`Spec(trace=...)`, or run the kernel with backend="serial" in a debugger'
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
# Right shifts apart, an int beside a uint64 makes uint64 interpreted and int64 compiled.
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


def number_in(text: str) -> str:
    """What to write for `float("...")`."""
    try:
        value = float(text)
    except ValueError:
        return f"{text!r} is no number"
    if math.isnan(value):
        return "write `math.nan`"
    if math.isinf(value):
        return "write `math.inf`" if value > 0 else "write `-math.inf`"
    return f"write `{value!r}`"


def instead_of(name: str) -> str:
    """What to write for a function or constant of NumPy."""
    if name in _INSTEAD:
        return _INSTEAD[name]
    return f"write `math.{name}`" if name in MATH else "use `math`"
