"""Helpers of compiled functions: linked into what is entered, and optimised there alone.

Numba optimises each function by itself and again with everything it calls, and makes machine code
of both, before it does the same for whoever calls it. Nobody calls a helper but the functions that
it is linked into, so a chain of ten helpers would be compiled ten times for the last one. Within
`only_entries` a helper is kept as it was written down. A function that is entered from Python is
linked with all that it reaches, and LLVM goes over that once: it optimises a helper before it takes
it into its callers. Outside, Numba's own class of libraries serves.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from slipstream.jit.fast.switch import is_enabled


class _Thread(threading.local):
    """What this thread compiles: other threads, and what they compile, are left alone."""

    entries: Collection[str] | None = None


_thread = _Thread()


@contextmanager
def only_entries(names: Collection[str]) -> Iterator[None]:
    """Makes machine code of functions of these names only, of all that this thread compiles.

    One thread of a process at a time may be within it; it nests.
    """
    if not is_enabled():
        yield
        return
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
        """One function's code; a helper's lies in each entry that it is called from."""

        def __init__(self, codegen: Any, name: str) -> None:
            super().__init__(codegen, name)
            entries = _thread.entries
            self._helper = entries is not None and name not in entries
            self._lacks_calls = self._helper

        def _optimize_functions(self, module: Any) -> None:
            module.data_layout = self._codegen._data_layout

        def add_linking_library(self, library: Any) -> None:
            for one in (library, *library._linking_libraries):
                if one not in self._linking_libraries:
                    super().add_linking_library(one)

        def finalize(self) -> None:
            if not self._helper:
                super().finalize()
                return
            self._finalize_dynamic_globals()
            self._finalized = True

        def _get_module_for_linking(self) -> Any:
            if self._lacks_calls and _thread.entries is None:  # outside: one of Numba's own
                self._lacks_calls, self._shared_module = False, None
                for library in self._linking_libraries:
                    module = library._get_module_for_linking()
                    self._final_module.link_in(module, preserve=True)
            return super()._get_module_for_linking()

        def _optimize_final_module(self) -> None:
            passes, builder = self._codegen._module_pass_manager()
            passes.run(self._final_module, builder)

    return Library
