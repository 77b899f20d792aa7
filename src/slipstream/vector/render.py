"""From plain scalar functions to compiled ones, cached on disk by the content of all they reach.

Numba's own cache does not survive closures over compiled functions: it compiles again in every
process. So the text of the loop is written into a module of its own, named by a hash of every source
and constant that the kernel reaches, in the user's cache folder; a second process then loads machine
code in well under a second.
"""

from __future__ import annotations

import dis
import hashlib
import importlib.util
import inspect
import logging
import math
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from slipstream.core.errors import KernelError, ResourceError

log = logging.getLogger("slipstream")

_OPEN_MODULES = (math, np)

# Kernels allocate nothing, so their arrays need no counting of references, which costs two atomic
# additions at every read of `d.bars`; helpers are inlined wherever they are called. Measured on
# forex, steps per second of one core: 1.3 M with counting and calls, 5.3 M without.
_OPTIONS = {"error_model": "numpy", "_nrt": False}
_HELPER_OPTIONS = {**_OPTIONS, "forceinline": True}
_DAYS_KEPT = 90
_BUILTINS = frozenset({"abs", "bool", "float", "int", "len", "max", "min", "range", "round"})

Decorator = Callable[[FunctionType], Any]


class Reached:
    """All that a function reaches through its globals: helper functions, constants, their modules.

    Args:
        decorate: makes the callable form of a plain function (compiles it, or leaves it as it is).
    """

    def __init__(self, decorate: Decorator) -> None:
        self._decorate = decorate
        self._bound: dict[FunctionType, Any] = {}
        self._constants: dict[str, str] = {}
        self._modules: dict[str, ModuleType] = {}

    def bind(self, function: FunctionType) -> Any:
        """The decorated form of `function`, every helper that it calls decorated likewise."""
        if function in self._bound:
            return self._bound[function]
        module = inspect.getmodule(function)
        if module is not None and module.__name__ not in self._modules:
            self._modules[module.__name__] = module
        names = {"__builtins__": __builtins__, "__name__": function.__module__}
        for name in sorted(_global_names(function.__code__)):
            if name in function.__globals__:
                names[name] = self._admit(name, function.__globals__[name], function)
            elif name not in _BUILTINS:
                raise KernelError(
                    f"{_place(function)} uses `{name}`, which is neither defined in its module nor one of the "
                    f"built-ins a compiled kernel may use ({', '.join(sorted(_BUILTINS))})."
                )
        copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
        copy.__doc__ = function.__doc__
        self._bound[function] = self._decorate(copy)
        return self._bound[function]

    def digest(self) -> str:
        """Hex SHA-256 of the sources and constants seen so far."""
        lines = [f"{key}={value}" for key, value in sorted(self._constants.items())]
        for name, module in sorted(self._modules.items()):
            lines.append(f"{name}:{inspect.getsource(module)}")
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
            return value
        raise KernelError(
            f"{_place(function)} reads the global `{name}`, a {type(value).__name__}: a kernel may reach plain "
            "functions, numbers and the modules math and numpy; put arrays into Data and settings into "
            "Params, and import helper functions by name (`from module import helper`)."
        )


def _is_constant_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(item, bool | int | float | np.generic) for item in value
    )


def _global_names(code: CodeType) -> set[str]:
    return {
        str(i.argval)
        for i in dis.get_instructions(code)
        if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }


def _place(function: FunctionType) -> str:
    return (
        f"{function.__code__.co_filename}:{function.__code__.co_firstlineno} ({function.__name__})"
    )


def source_of(functions: Sequence[Callable[..., Any]]) -> str:
    """The text of the functions, one after another."""
    return "\n\n".join(inspect.getsource(function) for function in functions)


def interpret(
    text: str, bindings: Mapping[str, FunctionType], constants: Mapping[str, Any]
) -> ModuleType:
    """A module made of `text` with the plain functions bound: the oracle of every other backend."""
    reached = Reached(lambda function: function)
    bound = {name: reached.bind(function) for name, function in bindings.items()}
    module = ModuleType("slipstream_interpreted")
    vars(module).update(constants, **bound)
    exec(compile(text, "<batch loop>", "exec"), vars(module))
    return module


def compile_module(
    name: str,
    text: str,
    entries: Mapping[str, tuple[Any, ...]],
    bindings: Mapping[str, FunctionType],
    constants: Mapping[str, Any],
) -> dict[str, Any]:
    """Compiles functions of `text`, or loads them from the cache.

    Args:
        name: what is compiled, for file names and messages.
        text: Python source that defines the entry functions; it may call the names of `bindings`.
        entries: entry function -> example arguments, whose Numba types make its one signature.
        bindings: plain functions by the name under which `text` calls them.
        constants: further globals of `text` (numbers, NamedTuple classes, dtypes).

    Returns:
        Compiled functions by name. They release the interpreter lock.
    """
    import numba  # here and not above: commands that step nothing need not wait for it

    def compiled(function: FunctionType) -> Any:
        return numba.njit(**_HELPER_OPTIONS)(function)

    reached = Reached(compiled)
    bound = {key: reached.bind(function) for key, function in bindings.items()}
    signatures = {
        entry: tuple(numba.typeof(argument) for argument in arguments)
        for entry, arguments in entries.items()
    }
    facts = [
        text,
        reached.digest(),
        repr(sorted(signatures.items())),
        numba.__version__,
        np.__version__,
        repr(_HELPER_OPTIONS),
    ]
    facts += [sys.version, repr(sorted((k, repr(v)) for k, v in constants.items()))]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:20]
    path = cache_folder() / f"{name}_{digest}.py"
    fresh = not path.exists()
    if fresh:
        _write(path, text)
        log.info("compiling %s (once; the result is kept in %s)", name, path.parent)
    module = _import(path, {**constants, **bound})
    # Inner functions that the text itself defines are compiled in the order of their definition.
    for key, value in list(vars(module).items()):
        if (
            isinstance(value, FunctionType)
            and key not in entries
            and value.__code__.co_filename == str(path)
        ):
            setattr(module, key, numba.njit(**_HELPER_OPTIONS)(value))
    result = {}
    for entry, signature in signatures.items():
        function = numba.njit([signature], cache=True, nogil=True, **_OPTIONS)(
            getattr(module, entry)
        )
        function.disable_compile()
        setattr(module, entry, function)
        result[entry] = function
    if fresh:
        _sweep(path.parent)
    return result


def cache_folder() -> Path:
    """The user's own folder for compiled code (mode 0700): `$SLIPSTREAM_CACHE`, else `~/.cache/slipstream`.

    Raises:
        ResourceError: the folder belongs to or may be written by somebody else; it holds code that runs.
    """
    base = os.environ.get("SLIPSTREAM_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(base) if base else home / "slipstream"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(folder)
    except OSError:
        user = getattr(os, "getuid", lambda: "user")()
        folder = Path(tempfile.gettempdir()) / f"slipstream-{user}"
        folder.mkdir(mode=0o700, exist_ok=True)
    if os.name == "posix":
        facts = folder.stat()
        if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o022:
            raise ResourceError(
                f"The cache folder {folder} must belong to you and be writable by you alone, because compiled "
                f"code is loaded from it; run `chmod 700 {folder}` or set SLIPSTREAM_CACHE to another folder."
            )
    return folder


def _write(path: Path, text: str) -> None:
    """Two processes may write the same module at once: each writes its own file and moves it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.utime(
        temporary, (1e9, 1e9)
    )  # Numba's index compares the stamp; the name already says the content
    os.replace(temporary, path)


def _import(path: Path, names: Mapping[str, Any]) -> ModuleType:
    module_name = f"slipstream_rendered_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module).update(names)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def _sweep(folder: Path) -> None:
    """Forgets compiled code that nobody has loaded for a long time."""
    oldest = time.time() - _DAYS_KEPT * 86_400
    for path in (*folder.glob("*.py"), *folder.glob("__pycache__/*")):
        try:
            used = path.stat()
            if max(used.st_atime, used.st_ctime) < oldest:
                path.unlink()
        except OSError:
            continue  # another process was faster
