"""Load kernels by name (built-in or of plugins) or by the path of a file."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from slipstream.core.errors import ConfigError, KernelError
from slipstream.core.field_names import RENAMED_KERNEL_PARTS, is_gymnasium_id, moved_module
from slipstream.core.plugins import find_owner, load, merge_offers, skip_on_error
from slipstream.core.safe_io import TEXT_LIMIT, UnreadableError, read_bytes
from slipstream.core.text import did_you_mean
from slipstream.kernels.kernel import OPTIONAL, REQUIRED, Kernel, default_parts
from slipstream.kernels.source_lint import check_kernel
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.validation import validated

USER_MODULE_PREFIX = "slipstream_user_"  # prefix of module names of users' files


def list_kernels() -> list[str]:
    """Return the names of all kernels: built-in ones and those of plugins."""
    return sorted(kernel_modules())


@functools.cache  # called thousands of times by a study
def kernel_modules() -> dict[str, str]:
    """Return the module of each kernel by name: built-in ones and those of plugins."""
    folders = importlib.import_module("slipstream.kernels.classic").__path__
    builtin = {
        module.name: f"slipstream.kernels.classic.{module.name}"
        for module in pkgutil.iter_modules(folders)
        if not (module.ispkg or module.name.startswith("_"))
    }
    offers = merge_offers("kernels")
    for name in sorted(builtin.keys() & offers.keys()):
        with skip_on_error(f"The kernel {name}", find_owner("kernels", offers[name])):
            raise ValueError("there is a built-in kernel of that name")
    return {**offers, **builtin}


def load_kernel(name_or_path: str) -> Kernel:
    """Load a kernel by built-in name, or from a user's `.py` file.

    Raises:
        ConfigError: there is no such kernel or file.
        KernelError: the file fails to import, is incomplete, or violates the kernel contract.
    """
    if name_or_path.endswith(".py"):
        module = import_file(Path(name_or_path), "kernel")
        name = Path(name_or_path).stem
    else:
        known = list_kernels()
        if name_or_path not in known:
            advice = did_you_mean(name_or_path, known)
            if is_gymnasium_id(name_or_path):
                identifier = name_or_path.removeprefix("gymnasium:")
                advice = f"did you mean `gym:{identifier}`?"
            raise ConfigError(
                f"There is no environment `{name_or_path}`; {advice} Name a "
                "kernel file by its path (`my_env.py`), a Gymnasium environment by `gym:ID`."
            )
        module = load("kernels", kernel_modules()[name_or_path])
        name = name_or_path
    return _load_checked(name, module)


@functools.cache  # called thousands of times by a study
def _load_checked(name: str, module: ModuleType) -> Kernel:
    kernel = _from_module(name, module)
    check_kernel(kernel)
    return kernel if kernel.built_in else validated(kernel)


def import_file(path: Path, kind: str) -> ModuleType:
    """Import a user's file as a module, once per version of its text.

    Raises:
        ConfigError: there is no such file; `kind` names what was expected.
        KernelError: the import failed.
    """
    if "\0" in str(path) or not path.is_file():
        raise ConfigError(f"There is no {kind} file {path}; give the path of an existing .py file.")
    try:
        source = read_bytes(path, TEXT_LIMIT)
    except (FileNotFoundError, UnreadableError) as error:
        raise ConfigError(f"The {kind} file {path} cannot be read: {error}.") from error
    # A stable name: compiled code is cached under it, and references by name must resolve.
    stem = "".join(c if c.isalnum() else "_" for c in path.stem)
    name = f"{USER_MODULE_PREFIX}{stem}_{hashlib.sha256(source).hexdigest()[:12]}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path.resolve()):
        return known  # the same text elsewhere may read other files
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    before, depth = (sys.stdout, sys.stderr), sys.getrecursionlimit()
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # including SystemExit
        del sys.modules[name]
        text = f"{type(error).__name__}: {error}".rstrip(": .")
        parts = (f"{path}{_line_of(error, path)} cannot be imported: {text}.", moved_module(error))
        raise KernelError(" ".join(filter(None, parts))) from error
    finally:  # undo global changes of the imported file
        sys.stdout, sys.stderr = before
        sys.setrecursionlimit(depth)
    vars(module).pop("__getattr__", None)  # only names that are defined count
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
            f"defines {', '.join(REQUIRED)}; docs/guides/custom-environment.md shows the shortest "
            "one."
        )
    _refuse_former_names(module)
    parts = default_parts(module) | {part: getattr(module, part) for part in REQUIRED}
    parts |= {part: getattr(module, part, None) for part in OPTIONAL}
    if parts["mask"] is not None:
        parts["spec"] = _with_mask(parts["spec"])
    return Kernel(name=name, module=module, **parts)


def _refuse_former_names(module: ModuleType) -> None:
    """Raise a KernelError for an optional part under its former name, which nothing would read."""
    for old, new in RENAMED_KERNEL_PARTS.items():
        value = getattr(module, old, None)
        if isinstance(value, FunctionType):
            is_part = len(inspect.signature(value).parameters) == (2 if old == "vary" else 3)
        else:
            agents = {"ppo", "dqn", "sac", "td3"}
            is_part = isinstance(value, dict) and not agents.isdisjoint(value)
        if is_part and not hasattr(module, new):
            raise KernelError(
                f"{module.__file__}: `{old}` is called `{new}`. Rename it, or give a function of "
                "your own another name."
            )


def _with_mask(spec: Callable[[Any, Any], EnvSpec]) -> Callable[[Any, Any], EnvSpec]:
    """Wrap `spec` of a kernel that has a mask: set `has_action_mask`, which authors may omit."""

    @functools.wraps(spec)
    def outside(p: Any, d: Any) -> EnvSpec:
        result = spec(p, d)
        return replace(result, has_action_mask=True) if isinstance(result, EnvSpec) else result

    return outside
