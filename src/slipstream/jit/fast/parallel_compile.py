"""Parallel compilation of modules that are requested together, by several processes.

A first training needs half a dozen uncached modules. Within `compile_in_parallel`, requesting such
a module returns lazy functions. When the block ends, this process and its helpers build all of
them, each taking a module that no other process is building.
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
    """Build function, see `PendingModule.make`."""

    def __call__(self, *, waits: bool) -> Mapping[str, Any]: ...


class PendingModule(NamedTuple):
    """A module to be built.

    Attributes:
        folder: its future folder.
        size: bytes of its bytecode and source; the largest is built first.
        calls: functions of other modules that it calls.
        make: builds or loads it, and returns its functions by name; without `waits` it leaves a
            module to the process that is already building it.
        own: other modules call it when they are loaded, so this process builds it first.
    """

    folder: Path
    size: int
    calls: Sequence[Any]
    make: BuildFn
    own: bool = False


class LazyFunction:
    """Compiled function of a module that is not built yet; a call builds it.

    Args:
        module: its module; home, name: its own names.
        kind: Numba's signature.
    """

    def __init__(self, module: PendingModule, home: str, name: str, kind: Any) -> None:
        self._module, self.__module__, self.__name__ = module, home, name
        self.kind = kind

    @cached_property
    def function(self) -> Any:
        """The compiled function."""
        return self._module.make(waits=True)[self.__name__]

    @property
    def is_there(self) -> bool:
        """Return true if the module has been built."""
        return self._module.folder.exists()

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def resolve(function: Any) -> Any:
    """Return the compiled function of a possibly lazy one."""
    return function.function if isinstance(function, LazyFunction) else function


class _Thread(threading.local):
    """Modules requested by this thread, by folder; None outside `compile_in_parallel`.

    Attributes:
        helps: true in a helper process.
    """

    wanted: dict[Path, PendingModule] | None = None
    helps = False


_thread = _Thread()


def pending_modules() -> dict[Path, PendingModule] | None:
    """Return the queue of uncached modules within `compile_in_parallel`, else None."""
    return _thread.wanted


def is_helper() -> bool:
    """Return true if this process builds modules for another one and never calls them."""
    return _thread.helps


def register_stub(symbol: str) -> None:
    """Register a placeholder address for a symbol in a helper process."""
    llvm: Any = importlib.import_module("llvmlite.binding")
    llvm.add_symbol(symbol, ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value)


class CompileLock:
    """Lock that lets one thread compile at a time: Numba's cache folder is a global."""

    lock = threading.RLock()

    @classmethod
    def renew(cls) -> None:
        """Reset in a forked child, where the parent's threads never release the lock."""
        cls.lock = threading.RLock()


os.register_at_fork(after_in_child=CompileLock.renew)

Helpers: TypeAlias = Callable[[Callable[[], None], int], AbstractContextManager[None]]
"""(work, most): up to `most` forked processes also run `work`; all end with the block."""


@contextmanager
def compile_in_parallel(helpers: Helpers) -> Iterator[None]:
    """Build, at the end of the block and in parallel, the uncached modules requested in it.

    A process that hits an error skips the module: this process builds it too and raises the error.

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
    queue = sorted(modules.values(), key=lambda pending: (not pending.own, -pending.size))
    with ExitStack() as helped:
        if len(queue) > 1:
            # No thread may compile during a fork: children would inherit its locks.
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
                break  # a helper hangs and may hold other locks
    for module in queue:
        module.make(waits=True)


def _make_if_free(module: PendingModule) -> None:
    if not module.folder.exists():
        module.make(waits=False)


def _help(queue: Sequence[PendingModule]) -> None:
    _thread.helps = True
    owner = os.getppid()
    for module in (candidate for candidate in queue if not candidate.own):
        if is_orphaned(owner):  # not every system kills orphans
            return
        with suppress(Exception):  # the process that needs the module raises it again
            _make_if_free(module)
