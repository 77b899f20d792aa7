"""Numba's front end without what it does over and over: a sixth of what compiling takes.

Each `a[i]` and `a + b` is offered to dozens of templates until one takes it, and to all of them
again wherever the same types meet. The variables of a statement are looked for in all that it holds
down to its numbers, by `isinstance`. Each of the calls into LLVM is timed for every function that
is being compiled, and nobody asks for the times.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_repeats() -> Iterator[None]:
    """Compiles within the block sooner, and what Numba does.

    One thread of a process at a time may be within it, see `Compiling`; it nests.
    """
    function: Any = importlib.import_module("numba.core.types.functions").BaseFunction
    ir: Any = importlib.import_module("numba.core.ir")
    lock: Any = importlib.import_module("llvmlite.binding.ffi").lib._lock
    resolve, variables_of = function.get_call_type, ir.Inst._rec_list_vars
    # By identity, for a type's hash covers all its templates; the type is kept alive beside.
    known: dict[int, tuple[Any, dict[Any, Any]]] = {}
    leaves = frozenset({str, int, float, bool, type(None), ir.Loc})

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

    def _rec_list_vars(self: Any, value: Any) -> Any:
        if isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, list | tuple):
            return variables_of(self, value)
        found = []
        for part in value:
            if type(part) is ir.Var:
                found.append(part)
            elif type(part) not in leaves:
                found += self._rec_list_vars(part)
        return found

    function.get_call_type, ir.Inst._rec_list_vars = get_call_type, _rec_list_vars
    with lock._lock:
        timers, lock._cblist = lock._cblist, []
    try:
        yield
    finally:
        function.get_call_type, ir.Inst._rec_list_vars = resolve, variables_of
        with lock._lock:
            lock._cblist = timers
