"""Dependencies of a plain function: all functions and constants reachable through its globals."""

from __future__ import annotations

import dis
import functools
import hashlib
import math
from collections.abc import Callable, Collection, Mapping
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from slipstream.core.errors import KernelError
from slipstream.jit.float32 import compiled_variant, is_single

BUILTINS = frozenset({"abs", "bool", "float", "int", "len", "max", "min", "range", "round"})
"""The built-in functions that mean the same interpreted, compiled and on a GPU."""

_OPEN_MODULES = (math, np)

Decorator = Callable[[FunctionType], Any]


class ClosureBinder:
    """Binds a function and all helpers and constants that it reaches through its globals.

    Args:
        decorate: converts a plain function (compiles it, or returns it unchanged).
        given: functions by name for globals that are None when they are read.
        apart: functions that are decorated without binding their dependencies.
    """

    def __init__(
        self,
        decorate: Decorator,
        given: Mapping[str, FunctionType] | None = None,
        apart: Collection[FunctionType] = (),
    ) -> None:
        self._decorate, self._given, self._apart = decorate, given or {}, apart
        self._open: list[FunctionType] = []  # being bound, outermost first
        self._bound: dict[FunctionType, Any] = {}
        self._constants: dict[str, str] = {}

    def bind(self, function: FunctionType) -> Any:
        """Return the decorated version of `function`, with all its helpers decorated."""
        if function in self._bound:
            return self._bound[function]
        if function in self._open:
            raise KernelError(
                f"{_place(function)} calls itself through "
                f"{' and '.join(f.__name__ for f in self._open)}: a GPU has no stack for that; "
                "write a `for` loop."
            )
        if is_single(function) or function in self._apart:
            self._bound[function] = self._decorate(function)
            return self._bound[function]
        self._open.append(function)
        names = {"__builtins__": __builtins__, "__name__": function.__module__}
        for name in sorted(_global_names(function.__code__)):
            if name in function.__globals__:
                value = function.__globals__[name]
                value = self._given.get(name) if value is None else value
                names[name] = self._admit(name, value, function)
            elif name not in BUILTINS:
                raise KernelError(
                    f"{_place(function)} uses `{name}`, which is neither defined in its module nor "
                    f"one of a kernel's built-ins ({', '.join(sorted(BUILTINS))})."
                )
        copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
        copy.__doc__ = function.__doc__
        self._open.pop()
        self._bound[function] = self._decorate(copy)
        return self._bound[function]

    @classmethod
    def reachable_functions(cls, function: Any) -> Collection[FunctionType]:
        """Return a plain function and all functions that it calls, directly or indirectly."""
        reached = cls(lambda item: item)
        reached.bind(function)
        return reached._bound

    def digest(self) -> str:
        """Return the hex SHA-256 of the functions and constants seen so far.

        Functions are hashed as loaded, not as their files read now: a file edited after its import
        must not be associated with the old code.
        """
        lines = [f"{key}={value}" for key, value in sorted(self._constants.items())]
        lines += [
            f"{key}={f.__module__}.{f.__qualname__}" for key, f in sorted(self._given.items())
        ]
        for function in sorted(self._bound, key=lambda f: (f.__module__, f.__qualname__)):
            parts = _parts(compiled_variant(function).__code__)
            defaults = function.__defaults__
            name = f"{function.__module__}.{function.__qualname__}"
            lines.append(f"{name}: {parts!r} {defaults!r}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def _admit(self, name: str, value: Any, function: FunctionType) -> Any:
        if isinstance(value, FunctionType):
            return self.bind(value)
        if any(value is module for module in _OPEN_MODULES):
            return value
        if isinstance(value, bool | int | float | np.generic) or _is_constant_tuple(value):
            self._constants[f"{function.__module__}.{name}"] = repr(value)
            return value
        if isinstance(value, type):  # a scalar type such as np.uint64, or a NamedTuple
            if hasattr(value, "_fields"):
                self._constants[f"{function.__module__}.{name}"] = repr((value, value._fields))
            return value
        raise KernelError(
            f"{_place(function)} reads the global `{name}`, a {type(value).__name__}: a kernel may "
            "reach plain functions, numbers and the modules math and numpy; put arrays into Data "
            "and settings into Params, and import helper functions by name "
            "(`from module import helper`)."
        )


def _is_constant_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(item, bool | int | float | np.generic) for item in value
    )


def _parts(code: CodeType) -> tuple[Any, ...]:
    """Return the content of a code object with nested functions, independent of its location."""
    consts = tuple(_parts(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.co_code.hex(), consts, code.co_names, code.co_varnames


@functools.lru_cache(maxsize=4096)  # populations are assembled repeatedly
def _global_names(code: CodeType) -> frozenset[str]:
    names = frozenset(
        str(i.argval)
        for i in dis.get_instructions(code)
        if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    )
    within = (_global_names(c) for c in code.co_consts if isinstance(c, CodeType))
    return names.union(*within)


def source_location(function: Any, line: int | None = None) -> str:
    """Return ``file:line`` of a function, or of a line within it."""
    code = getattr(function, "__code__", None)
    if code is None:
        return repr(function)
    return f"{code.co_filename}:{line or code.co_firstlineno}"


def _place(function: FunctionType) -> str:
    return f"{source_location(function)} ({function.__name__})"
