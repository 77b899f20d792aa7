"""Helpers of compiled functions: linked into their callers, and not made into machine code.

Numba optimises each function with everything it calls and makes machine code of both, before it
does the same for whoever calls it. Nobody calls a helper but the functions that it is linked into,
so a chain of ten helpers would be compiled ten times for the last one. Within `only_entries` a
helper is kept as it was written down, and optimised in the functions that are entered from Python.
Outside, Numba's own class of libraries serves.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


class _Thread(threading.local):
    """What this thread compiles: other threads, and what they compile, are left alone."""

    entries: Collection[str] | None = None


_thread = _Thread()


@contextmanager
def only_entries(names: Collection[str]) -> Iterator[None]:
    """Makes machine code of functions of these names only, of all that this thread compiles.

    One thread of a process at a time may be within it; it nests.
    """
    registry: Any = importlib.import_module("numba.core.registry")
    codegen = registry.cpu_target.target_context.codegen()
    given, set_env = codegen._library_class, codegen.set_env

    def set_env_of_entry(name: str, env: Any) -> None:
        if codegen._engine.is_symbol_defined(name):
            set_env(name, env)

    _thread.entries, before = names, _thread.entries
    if before is None:
        codegen._library_class, codegen.set_env = _following(given), set_env_of_entry
    try:
        yield
    finally:
        _thread.entries = before
        if before is None:
            codegen._library_class, codegen.set_env = given, set_env


@cache
def _following(given: Any) -> Any:
    """A class of libraries that follow `only_entries`, else as those given."""

    class Library(given):  # type: ignore[misc]
        """One function's code, with all that it calls."""

        def __init__(self, codegen: Any, name: str) -> None:
            super().__init__(codegen, name)
            entries = _thread.entries
            self._helper = entries is not None and name not in entries

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
