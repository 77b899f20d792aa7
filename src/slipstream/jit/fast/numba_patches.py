"""Parts of Numba that are replaced while it compiles, so that a first start is shorter.

`without_repeats`: Numba's front end without repeated work, a fifth of what compiling takes. Each
`a[i]` and `a + b` is offered to dozens of templates until one takes it, and to all of them again
wherever the same types meet. After most passes it is found out again which variables live where,
which matters in generators. All of Numba is imported again for every function. Each of the calls
into LLVM is timed for every function that is being compiled, and nobody asks for the times.

`only_entries`: helpers are linked into the function that is entered, and optimised there alone.
Numba optimises each function by itself and again with everything it calls, and makes machine code
of both, before it does the same for the caller. Only the functions that a helper is linked into
call it, so a chain of ten helpers would be compiled ten times for the last one. A helper is kept
as it was written down. A function that is entered from Python is linked with all that it reaches,
and LLVM goes over that once. Outside, Numba's own class of libraries serves.
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
    """Compiles within the block sooner, and what Numba does.

    One thread of a process at a time may be within it, see `Compiling`; it nests.
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
    # By identity, for a type's hash covers all its templates; the type is kept alive beside.
    known: dict[int, tuple[Any, dict[Any, Any]]] = {}

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws or isinstance(self.typing_key, str):  # the latter of `a[0]`: the number is in `args`
            return resolve(self, context, args, kws)
        _, of_types = known.setdefault(id(self), (self, {}))
        found = of_types.get(args)
        if found is None:
            found = resolve(self, context, args, kws)
            # Else it is a function of Python's, which is compiled as the caller's options say.
            if self._impl_keys[found.args] is self.typing_key:
                of_types[args] = found
        else:
            self._impl_keys[found.args] = self.typing_key
        return found

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
    """What this thread compiles: other threads, and what they compile, are left alone."""

    entries: Collection[str] | None = None


_thread = _Thread()


@contextmanager
def compile_entries_only(names: Collection[str]) -> Iterator[None]:
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
