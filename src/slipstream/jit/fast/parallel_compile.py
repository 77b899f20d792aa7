"""Modules that are asked for together are made together: side by side, by several processes.

A first training needs half a dozen modules that nobody has compiled on this machine. Within
`together` such a module is not made when it is asked for: its functions come later. When the block
ends, this process and its helpers go through all of them, each making what no other one is at.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from slipstream.core.child_process import is_orphaned
from slipstream.jit.cache import BUILD_TIMEOUT
from slipstream.jit.fast.feature_flag import is_enabled


class BuildFn(Protocol):
    """See `Module.make`."""

    def __call__(self, *, waits: bool) -> Mapping[str, Any]: ...


class PendingModule(NamedTuple):
    """A module that is to be made.

    Attributes:
        folder: where it will be.
        size: of what it is made of, bytes of Python's code and of text; the largest is begun first.
        calls: functions of other modules that it calls.
        make: makes or loads it, and returns its functions by name; told not to wait, it leaves the
            module to the process that is making it.
        own: others call it from the moment they are loaded: this process makes it, before all else.
    """

    folder: Path
    size: int
    calls: Sequence[Any]
    make: BuildFn
    own: bool = False


class LazyFunction:
    """A compiled function of a module that is still to be made; a call makes it.

    Args:
        module: whose function it is; home, name: its own names.
        kind: Numba's signature of it.
    """

    def __init__(self, module: PendingModule, home: str, name: str, kind: Any) -> None:
        self._module, self.__module__, self.__name__ = module, home, name
        self.kind = kind

    @cached_property
    def function(self) -> Any:
        """The function itself."""
        return self._module.make(waits=True)[self.__name__]

    @property
    def is_there(self) -> bool:
        """Whether somebody has made it by now."""
        return self._module.folder.exists()

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def resolve(function: Any) -> Any:
    """A function that may come later, now."""
    return function.function if isinstance(function, LazyFunction) else function


class _Thread(threading.local):
    """What this thread has asked for, by folder; None where it waits for each module.

    Attributes:
        helps: it is a helper's.
    """

    wanted: dict[Path, PendingModule] | None = None
    helps = False


_thread = _Thread()


def pending_modules() -> dict[Path, PendingModule] | None:
    """Where a module that nobody has compiled is put down within `together`; else None."""
    return _thread.wanted


def is_helper() -> bool:
    """Whether this process makes modules for another one, and will never call them."""
    return _thread.helps


def register_stub(symbol: str) -> None:
    """Tells the linker of a process that `helps` of a place for what is called by a symbol."""
    llvm: Any = importlib.import_module("llvmlite.binding")
    llvm.add_symbol(symbol, ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value)


class CompileLock:
    """One thread compiles at a time: Numba's folder for its files is a global."""

    lock = threading.RLock()

    @classmethod
    def renew(cls) -> None:
        """In a forked child, whose parent's other threads will never give the lock back."""
        cls.lock = threading.RLock()


os.register_at_fork(after_in_child=CompileLock.renew)

Helpers: TypeAlias = Callable[[Callable[[], None], int], AbstractContextManager[None]]
"""(work, most): up to so many forked processes do `work`, too; none is left after the block."""


@contextmanager
def compile_in_parallel(helpers: Helpers) -> Iterator[None]:
    """Makes at its end, side by side, what was asked for in the block and never compiled here.

    Who finds an error leaves it: this process comes to it, too, and raises it.

    Raises:
        KernelError: a function cannot be compiled.
    """
    if not is_enabled():
        yield
        return
    modules = _thread.wanted = dict[Path, PendingModule]()
    try:
        yield
    finally:
        _thread.wanted = None
    queue = sorted(modules.values(), key=lambda one: (not one.own, -one.size))
    with ExitStack() as helped:
        if len(queue) > 1:
            # No thread compiles while processes are forked, which would inherit its locks.
            numba_locks: Any = importlib.import_module("numba.core.compiler_lock")
            llvm: Any = importlib.import_module("llvmlite.binding.ffi")
            with CompileLock.lock, numba_locks.global_compiler_lock, llvm.lib._lock:
                helped.enter_context(helpers(partial(_help, queue), len(queue) - 1))
        for module in queue:
            if all(called.is_there for called in module.calls if isinstance(called, LazyFunction)):
                _make_if_free(module)
        for module in queue:
            began = time.monotonic()
            module.make(waits=True)
            if time.monotonic() - began > BUILD_TIMEOUT:
                break  # a helper hangs, and may hold other modules, too
    for module in queue:
        module.make(waits=True)


def _make_if_free(module: PendingModule) -> None:
    if not module.folder.exists():
        module.make(waits=False)


def _help(queue: Sequence[PendingModule]) -> None:
    _thread.helps = True
    owner = os.getppid()
    for module in (one for one in queue if not one.own):
        if is_orphaned(owner):  # what the system does not tell everywhere
            return
        with suppress(Exception):  # whoever wants the module finds it, too, and says so
            _make_if_free(module)
