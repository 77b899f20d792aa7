"""Patches of Numba that make the first compilation faster.

`skip_repeated_passes` removes repeated work of Numba's front end, a fifth of the compile time. Type
inference of `a[i]` and `a + b` tries dozens of templates for every occurrence; results are cached.
Per-pass liveness analysis, which only generators need, is skipped. Registries are not imported
again for every function. Timers of LLVM calls are disabled.

`compile_entries_only` links helpers into the entry function and optimises them only there. Numba
optimises each function alone and again with everything it calls, and generates machine code of
both, before it does the same for the caller. A chain of ten helpers would be compiled ten times for
the last one. Here a helper stays unoptimised, and LLVM optimises an entry function with all its
helpers once. Outside the context Numba's own library class is active.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from slipstream.jit.fast.feature_flag import is_enabled


@contextmanager
def skip_repeated_passes() -> Iterator[None]:
    """Compile faster within the block, with the same result.

    One thread per process at a time may use it, see `CompileLock`; it nests.
    """
    if not is_enabled():
        yield
        return
    function: Any = importlib.import_module("numba.core.types.functions").BaseFunction
    post: Any = importlib.import_module("numba.core.postproc")
    cpu: Any = importlib.import_module("numba.core.registry").cpu_target
    lock: Any = importlib.import_module("llvmlite.binding.ffi").lib._lock
    cpu.target_context.refresh()
    resolve, finish = function.get_call_type, post.PostProcessor.run
    # Keyed by identity, because hashing a type is slow; the type is kept alive with it.
    known: dict[int, tuple[Any, dict[Any, Any]]] = {}

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws or isinstance(self.typing_key, str):  # the latter of `a[0]`: the number is in `args`
            return resolve(self, context, args, kws)
        _, of_types = known.setdefault(id(self), (self, {}))
        cached = of_types.get(args)
        if cached is None:
            cached = resolve(self, context, args, kws)
            # Otherwise it is a Python function, compiled with the caller's options.
            if self._impl_keys[cached.args] is self.typing_key:
                of_types[args] = cached
        else:
            self._impl_keys[cached.args] = self.typing_key
        return cached

    def run(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        of = self.func_ir
        if of.is_generator:
            finish(self, emit_dels, extend_lifetimes)
            return
        of.blocks = post.transforms.canonicalize_cfg(of.blocks)
        of.variable_lifetime, of.generator_info = post.VariableLifetime(of.blocks), None
        if emit_dels:
            self._insert_var_dels(extend_lifetimes=extend_lifetimes)

    def load_additional_registries(self: Any) -> None:
        for registry in list(self._registries):  # which `refresh` has loaded, above
            self.install_registry(registry)

    replaced = [
        (function, get_call_type),
        (post.PostProcessor, run),
        (type(cpu.target_context), load_additional_registries),
        (type(cpu.typing_context), load_additional_registries),
    ]
    given = [getattr(owner, new.__name__) for owner, new in replaced]
    for owner, new in replaced:
        setattr(owner, new.__name__, new)
    with lock._lock:
        timers, lock._cblist = lock._cblist, []
    try:
        yield
    finally:
        for (owner, new), old in zip(replaced, given, strict=True):
            setattr(owner, new.__name__, old)
        with lock._lock:
            lock._cblist = timers


class _Thread(threading.local):
    """Thread-local state: compilation of other threads is unaffected."""

    entries: Collection[str] | None = None


_thread = _Thread()


@contextmanager
def compile_entries_only(names: Collection[str]) -> Iterator[None]:
    """Generate machine code only for functions of these names, among all that this thread compiles.

    One thread per process at a time may use it; it nests.
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
    """Return a library class that respects `compile_entries_only`, derived from the given one."""

    class Library(given):  # type: ignore[misc]
        """Code of one function; helpers are linked into each entry that calls them."""

        def __init__(self, codegen: Any, name: str) -> None:
            super().__init__(codegen, name)
            entries = _thread.entries
            self._helper = entries is not None and name not in entries
            self._lacks_calls = self._helper

        def _optimize_functions(self, module: Any) -> None:
            module.data_layout = self._codegen._data_layout

        def add_linking_library(self, library: Any) -> None:
            for item in (library, *library._linking_libraries):
                if item not in self._linking_libraries:
                    super().add_linking_library(item)

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
