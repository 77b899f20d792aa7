"""Finds kernels by name (built in, or of plugins) or by the path of a file."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from slipstream.core.errors import ConfigError, KernelError
from slipstream.core.field_names import is_gymnasium_id, moved_module
from slipstream.core.plugins import left_out, load, merged, owner_of
from slipstream.core.safe_io import TEXT_LIMIT, UnreadableError, content
from slipstream.core.text import did_you_mean
from slipstream.kernels.kernel import OPTIONAL, REQUIRED, Kernel
from slipstream.kernels.source_lint import check_kernel
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.validation import guarded

USER_MODULE = "slipstream_user_"  # how modules of users' files begin


def list_kernels() -> list[str]:
    """Names of the built-in kernels and of those of plugins."""
    return sorted(kernel_modules())


@functools.cache  # a study asks thousands of times
def kernel_modules() -> dict[str, str]:
    """Return the module of each kernel by name: built-in ones and those of plugins."""
    folders = importlib.import_module("slipstream.kernels.classic").__path__
    own = {
        module.name: f"slipstream.kernels.classic.{module.name}"
        for module in pkgutil.iter_modules(folders)
        if not (module.ispkg or module.name.startswith("_"))
    }
    offers = merged("kernels")
    for name in sorted(own.keys() & offers.keys()):
        with left_out(f"The kernel {name}", owner_of("kernels", offers[name])):
            raise ValueError("there is a built-in kernel of that name")
    return {**offers, **own}


def load_kernel(name_or_path: str) -> Kernel:
    """Imports a kernel by built-in name, or from a user's own `.py` file.

    Raises:
        ConfigError: no such kernel or file.
        KernelError: the file fails to import, lacks a part of the contract, or breaks its rules.
    """
    if name_or_path.endswith(".py"):
        module = import_file(Path(name_or_path), "kernel")
        name = Path(name_or_path).stem
    else:
        known = list_kernels()
        if name_or_path not in known:
            advice = did_you_mean(name_or_path, known)
            if is_gymnasium_id(name_or_path):
                advice = f"did you mean `gym:{name_or_path}`?"
            raise ConfigError(
                f"There is no environment `{name_or_path}`; {advice} A "
                "file of your own is named by its path (`my_env.py`), a Gymnasium environment by "
                "`gym:ID`."
            )
        module = load("kernels", kernel_modules()[name_or_path])
        name = name_or_path
    return _checked(name, module)


@functools.cache  # a study asks thousands of times
def _checked(name: str, module: ModuleType) -> Kernel:
    kernel = _from_module(name, module)
    check_kernel(kernel)
    return kernel if kernel.built_in else guarded(kernel)


def import_file(path: Path, kind: str) -> ModuleType:
    """A user's own file as a module, once for each version of its text.

    Raises:
        ConfigError: there is none; `kind` says what was expected.
        KernelError: it fails to import.
    """
    if "\0" in str(path) or not path.is_file():
        raise ConfigError(f"There is no {kind} file {path}; give the path of an existing .py file.")
    try:
        source = content(path, TEXT_LIMIT)
    except (FileNotFoundError, UnreadableError) as error:
        raise ConfigError(f"The {kind} file {path} cannot be read: {error}.") from error
    # A stable name: compiled code is cached under it, and references by name must resolve.
    stem = "".join(c if c.isalnum() else "_" for c in path.stem)
    name = f"{USER_MODULE}{stem}_{hashlib.sha256(source).hexdigest()[:12]}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path.resolve()):
        return known  # the same text elsewhere may read other files beside it
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    before, depth = (sys.stdout, sys.stderr), sys.getrecursionlimit()
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever it raises, it is no request to stop
        del sys.modules[name]
        text = f"{type(error).__name__}: {error}".rstrip(": .")
        parts = (f"{path}{_line_of(error, path)} cannot be imported: {text}.", moved_module(error))
        raise KernelError(" ".join(filter(None, parts))) from error
    finally:  # a file that is imported changes nothing for others
        sys.stdout, sys.stderr = before
        sys.setrecursionlimit(depth)
    vars(module).pop("__getattr__", None)  # it has what it defines, and nothing that it makes up
    return module


def _line_of(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        return f":{error.lineno}"
    trace, line = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path.resolve()):
            line = f":{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def _from_module(name: str, module: ModuleType) -> Kernel:
    missing = [part for part in REQUIRED if not hasattr(module, part)]
    if missing:
        raise KernelError(
            f"{module.__file__} is not a kernel: it lacks {', '.join(missing)}. A kernel file "
            f"defines {', '.join(REQUIRED)}; docs/extending.md shows the shortest one."
        )
    parts = {part: getattr(module, part) for part in REQUIRED}
    parts |= {part: getattr(module, part, None) for part in OPTIONAL}
    if parts["mask"] is not None:
        parts["spec"] = _masked(parts["spec"])
    return Kernel(name=name, module=module, **parts)


def _masked(spec: Callable[[Any, Any], EnvSpec]) -> Callable[[Any, Any], EnvSpec]:
    """`spec` of a kernel that has a mask, which a EnvSpec says and its author need not."""

    @functools.wraps(spec)
    def outside(p: Any, d: Any) -> EnvSpec:
        found = spec(p, d)
        return replace(found, masked=True) if isinstance(found, EnvSpec) else found

    return outside
