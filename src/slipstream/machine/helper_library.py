"""Helpers of compiled functions: linked into their callers, and not made into machine code.

Numba optimises each function with everything it calls and makes machine code of both, before it
does the same for whoever calls it. Nobody calls a helper but the functions that it is linked into,
so a chain of ten helpers would be compiled ten times for the last one. Within `only_entries` a
helper is kept as it was written down, and optimised in the functions that are entered from Python.

No version of Numba promises the parts that this needs. One that lacks a part compiles as it always
does, which takes longer and calculates the same.
"""

from __future__ import annotations

import importlib
import inspect
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# Methods of Numba's libraries, called without arguments.
_STEPS = ("_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals")


class _Thread(threading.local):
    """What this thread compiles: other threads, and what they compile, are left alone."""

    entries: Collection[str] | None = None


_thread = _Thread()


@contextmanager
def only_entries(names: Collection[str]) -> Iterator[None]:
    """Makes machine code of functions of these names only, of all that this thread compiles."""
    _install()
    _thread.entries, before = names, _thread.entries
    try:
        yield
    finally:
        _thread.entries = before


@cache
def _install() -> bool:
    """Numba's libraries of functions follow `only_entries` from now on; whether they do."""
    registry: Any = importlib.import_module("numba.core.registry")
    return adopt(registry.cpu_target.target_context.codegen())


def adopt(codegen: Any) -> bool:
    """Makes the libraries of a code generator of Numba follow `only_entries`.

    Returns:
        Whether it has the parts for that; one that has not is left as it was.
    """
    try:
        given, set_env, engine = codegen._library_class, codegen.set_env, codegen._engine
        steps = [inspect.signature(getattr(given, step)) for step in _STEPS]
        if any(len(step.parameters) != 1 for step in steps) or given._finalized:
            return False
        library = _following(given)
        library(codegen, "a helper", helper=True)._finalize_final_module()

        def set_env_of_entry(name: str, env: Any) -> None:
            if engine.is_symbol_defined(name):
                set_env(name, env)

        set_env_of_entry("a function that nobody has defined", None)
        codegen._library_class, codegen.set_env = library, set_env_of_entry
    except (AttributeError, TypeError):
        return False
    return True


def _following(given: Any) -> Any:
    """A class of libraries that follow `only_entries`, else as those given."""

    class Library(given):  # type: ignore[misc]
        """One function's code, with all that it calls."""

        def __init__(self, codegen: Any, name: str, helper: bool = False) -> None:
            super().__init__(codegen, name)
            entries = _thread.entries
            self._helper = helper or (entries is not None and name not in entries)

        def _optimize_final_module(self) -> None:
            if not self._helper:
                super()._optimize_final_module()

        def _finalize_final_module(self) -> None:
            if not self._helper:
                super()._finalize_final_module()
                return
            self._finalize_dynamic_globals()
            self._finalized = True

    return Library
