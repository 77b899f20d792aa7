"""Kernels: the rules of one environment as plain scalar functions, found by file name or path."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from slipstream.core import config
from slipstream.core.config import nearest, validate
from slipstream.core.errors import ConfigError, KernelError, SlipstreamError
from slipstream.core.raised import raised
from slipstream.core.spec import Spec

REQUIRED = ("Config", "Params", "Data", "STATE", "load", "reset", "step", "observe", "spec")
OPTIONAL = ("mask", "ahead", "conclude", "load_folds", "vary", "timeline")
_PARAM_TYPES = {float: "f8", int: "i8", bool: "?"}


@dataclass(frozen=True)
class Loaded:
    """What `load(config)` returns: everything that a kernel reads.

    Attributes:
        data: the kernel's `Data`: read-only arrays, one copy for all environments.
        params: records by split. Training copy n of a member uses ``params["train"][n % P]``;
            episode j of an evaluation of split X runs with ``params[X][j]``.
        notes: sentences the user must see, such as what loading did about bad data.
        provenance: JSON-able facts for the run directory (hashes of files).
        state: the record's type where its size follows from the data (a field for each asset);
            None: the kernel's own `STATE`. Field names are the same in both.
    """

    data: Any
    params: Mapping[str, tuple[Any, ...]]
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    state: np.dtype[Any] | None = None


class Kernel(NamedTuple):
    """One environment's rules; what a kernel may leave out is None where it does.

    Attributes:
        mask: which discrete actions are allowed; None: always all.
        ahead: (s, p, d): asks, by `core.memory.prefetch`, for the memory that the next step of this
            copy will read; it changes nothing. Compiled loops call it some copies ahead.
        conclude: (s, p, d): sets the metrics of an episode that ends here and that no step needs,
            such as means; called before they are recorded.
        load_folds: (config, plan) -> Loaded whose splits are a study's folds: `fold0/train`,
            `fold0/test`, ..., `development/train`, `holdout`, `everything/train`, and `train`, an
            alias of `fold0/train`. `Loaded.provenance["folds"]` says what they cover.
        vary: (loaded, config) -> the same data and splits with the records of another config, equal
            to what `load` or `load_folds` of that config gives; None where it needs other data.
        timeline: (p, d) -> int64 [n], UTC seconds of the end of the bar at which equity is marked
            after step k of evaluation record p.
    """

    name: str
    module: ModuleType
    Config: type[config.Config]
    Params: Any
    Data: Any
    STATE: np.dtype[Any]
    load: Callable[[Any], Loaded]
    reset: Callable[..., None]
    step: Callable[..., tuple[float, bool, bool]]
    observe: Callable[..., None]
    spec: Callable[[Any, Any], Spec]
    mask: Callable[..., None] | None
    ahead: Callable[..., None] | None = None
    conclude: Callable[..., None] | None = None
    load_folds: Callable[[Any, Any], Loaded] | None = None
    vary: Callable[[Loaded, Any], Loaded | None] | None = None
    timeline: Callable[[Any, Any], NDArray[np.int64]] | None = None

    @property
    def built_in(self) -> bool:
        """Whether it is slipstream's own; loops of other kernels are compiled with checks."""
        return self.module.__name__.startswith("slipstream.")

    def fitted(self, loaded: Loaded) -> Kernel:
        """The kernel whose `STATE` is the record's type for `loaded`."""
        return self if loaded.state is None else self._replace(STATE=loaded.state)

    def configure(self, values: Mapping[str, Any]) -> config.Config:
        """Validates what a user wrote under `env:`."""
        try:
            return validate(self.Config, values, where="env")
        except SlipstreamError:
            raise
        except Exception as error:  # of a validator of its own
            if self.built_in:
                raise
            raise raised(f"Kernel `{self.name}`", self.Config, error) from error


def list_kernels() -> list[str]:
    """Names of the built-in kernels, files and folders of `slipstream.envs`."""
    return sorted(_built_in())


def _built_in() -> dict[str, str]:
    """The module of each built-in kernel, by the kernel's name: `NAME.py` or `NAME/kernel.py`."""
    package = importlib.import_module("slipstream.envs")
    found = {}
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            inner = f"{module.name}.kernel" if module.ispkg else module.name
            found[module.name] = f"slipstream.envs.{inner}"
    return found


def load_kernel(name_or_path: str) -> Kernel:
    """Imports a kernel by built-in name, or from a user's own `.py` file.

    Raises:
        ConfigError: no such kernel or file.
        KernelError: the file fails to import, lacks a part of the contract, or breaks its rules.
    """
    if name_or_path.endswith(".py"):
        module = _import_path(Path(name_or_path))
        name = Path(name_or_path).stem
    else:
        known = list_kernels()
        if name_or_path not in known:
            guess = nearest(name_or_path, known)
            advice = f"did you mean `{guess}`?" if guess else f"known: {', '.join(known)}."
            raise ConfigError(
                f"There is no environment `{name_or_path}`; {advice} A file of your own is named "
                "by its path (`my_env.py`), a Gymnasium environment by `gym:ID`."
            )
        module = importlib.import_module(_built_in()[name_or_path])
        name = name_or_path
    return _checked(name, module)


@functools.cache  # a study asks thousands of times
def _checked(name: str, module: ModuleType) -> Kernel:
    from slipstream.core.checker import check_kernel  # which reads Kernel: imported late
    from slipstream.core.guard import guarded

    kernel = _from_module(name, module)
    check_kernel(kernel)
    return kernel if kernel.built_in else guarded(kernel)


def param_types(params: type[Any]) -> dict[str, type]:
    """float, int or bool by field of a `Params` NamedTuple.

    Raises:
        KernelError: a field is something else.
    """
    types = get_type_hints(params)
    for field_name, annotation in types.items():
        if annotation not in _PARAM_TYPES:
            raise KernelError(
                f"{params.__module__}.Params.{field_name} is annotated {annotation!r}: Params "
                "holds scalars, so use float, int or bool, and put arrays into Data."
            )
    return types


def params_dtype(params: type[Any]) -> np.dtype[Any]:
    """Record dtype of a `Params` NamedTuple: float, int and bool become float64, int64 and bool."""
    fields = [(name, _PARAM_TYPES[kind]) for name, kind in param_types(params).items()]
    if not fields:
        fields = [("unused", "i8")]  # a record needs a field
    return np.dtype(fields, align=True)


def params_table(kernel: Kernel, records: tuple[Any, ...]) -> NDArray[Any]:
    """Structured array [P] of Params records, as the batch loop reads it."""
    dtype = params_dtype(kernel.Params)
    table = np.zeros(len(records), dtype)
    for row, record in enumerate(records):
        for name in kernel.Params._fields:
            table[name][row] = getattr(record, name)
    return table


def _import_path(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"There is no kernel file {path}; give the path of an existing .py file.")
    source = path.read_bytes()
    # A stable name: compiled code is cached under it, and references by name must resolve.
    stem = "".join(c if c.isalnum() else "_" for c in path.stem)
    name = f"slipstream_user_{stem}_{hashlib.sha256(source).hexdigest()[:12]}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path.resolve()):
        return known  # the same text elsewhere may read other files beside it
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        line = _line_of(error, path)
        raise KernelError(
            f"{path}{line} cannot be imported: {type(error).__name__}: {error}."
        ) from error
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


def _masked(spec: Callable[[Any, Any], Spec]) -> Callable[[Any, Any], Spec]:
    """`spec` of a kernel that has a mask, which a Spec says and its author need not."""

    @functools.wraps(spec)
    def outside(p: Any, d: Any) -> Spec:
        found = spec(p, d)
        return replace(found, masked=True) if isinstance(found, Spec) else found

    return outside
