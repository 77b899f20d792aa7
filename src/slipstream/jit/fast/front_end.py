"""Numba's front end without what it does over and over: a fifth of what compiling takes.

Each `a[i]` and `a + b` is offered to dozens of templates until one takes it, and to all of them
again wherever the same types meet. After most passes it is found out anew which variables live
where, which matters in generators. All of Numba is imported anew for every function. Each of the
calls into LLVM is timed for every function that is being compiled, and nobody asks for the times.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slipstream.jit.fast.switch import is_enabled


@contextmanager
def without_repeats() -> Iterator[None]:
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
