"""Kernels: the rules of one environment as plain scalar functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from slipstream.core import config
from slipstream.core.config import validate
from slipstream.core.errors import KernelError, SlipstreamError, wrap_user_error
from slipstream.kernels.spec import EnvSpec, TrainingContext

REQUIRED = ("STATE", "reset", "step", "observe", "spec")
LOADING = ("Params", "Data", "load")
"""Parts of a kernel that reads data: all of them or none. See `default_parts`."""
OPTIONAL = (
    "mask",
    "prefetch",
    "finalize_episode",
    "load_folds",
    "with_params",
    "timeline",
    "NOINLINE",
)
_PARAM_TYPES = {float: "f8", int: "i8", bool: "?"}


@dataclass(frozen=True)
class KernelData:
    """Return value of `load(config)`: everything that a kernel reads.

    Attributes:
        data: the kernel's `Data`: read-only arrays, shared by all environments.
        params: records by split. Training environment n of a member uses
            ``params["train"][n % P]``; episode j of an evaluation of split X uses ``params[X][j]``.
        warnings: messages for the user, such as corrections of bad data.
        provenance: JSON-compatible metadata for the run directory (hashes of files).
        state: state dtype if its size depends on the data (a field per asset). Field names are
            those of the kernel's `STATE`. None: the kernel's `STATE`.
        training_context: data properties that a policy trained on these prices depends on.
        functions: replacements of the kernel's `step`, `observe` and `mask`, by name, for kernels
            whose number of players is a setting.
    """

    data: Any
    params: Mapping[str, tuple[Any, ...]]
    warnings: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    state: np.dtype[Any] | None = None
    training_context: TrainingContext | None = None
    functions: Mapping[str, Any] = field(default_factory=dict)


class Kernel(NamedTuple):
    """The rules of one environment.

    A kernel file defines `REQUIRED`. `default_parts` completes the rest; optional parts that the
    file does not define are None.

    Attributes:
        mask: writes which discrete actions are allowed. None: all actions, always.
        prefetch: (s, p, d): prefetches the memory that the next step of this environment reads
            (`jit.alignment.prefetch_element`) and changes nothing. Compiled loops call it several
            environments ahead.
        finalize_episode: (s, p, d): sets the metrics of a finished episode that no step needs, such
            as means. Called before the metrics are recorded.
        load_folds: (config, plan) -> KernelData whose splits are a study's folds: `fold0/train`,
            `fold0/test`, ..., `development/train`, `holdout`, `everything/train`, and `train`, an
            alias of `fold0/train`. `KernelData.provenance["folds"]` describes their ranges.
        with_params: (loaded, config) -> the same data and splits with the records of another
            config, equal to the result of `load` or `load_folds` for that config. None if that
            config needs other data.
        timeline: (p, d) -> int64 [n], UTC seconds of the end of the bar at which equity is marked
            after step k of evaluation record p.
        NOINLINE: built-in kernels only: large functions that a step calls in several places. Their
            arguments are s, p, d and annotated numbers; each may call those before it. They are
            compiled separately, once, and in parallel.
    """

    name: str
    module: ModuleType
    Config: type[config.Config]
    Params: Any
    Data: Any
    STATE: np.dtype[Any]
    load: Callable[[Any], KernelData]
    reset: Callable[..., None]
    step: Callable[..., tuple[float, bool, bool]]
    observe: Callable[..., None]
    spec: Callable[[Any, Any], EnvSpec]
    mask: Callable[..., None] | None
    prefetch: Callable[..., None] | None = None
    finalize_episode: Callable[..., None] | None = None
    load_folds: Callable[[Any, Any], KernelData] | None = None
    with_params: Callable[[KernelData, Any], KernelData | None] | None = None
    timeline: Callable[[Any, Any], NDArray[np.int64]] | None = None
    NOINLINE: tuple[FunctionType, ...] | None = None

    def hook(self, name: str) -> Any:
        """Return an optional function of the kernel's module that applications call, or None."""
        return getattr(self.module, name, None)

    @property
    def built_in(self) -> bool:
        """Return true for slipstream kernels. Loops of other kernels are compiled with checks."""
        return self.module.__name__.startswith("slipstream.")

    def specialize(self, loaded: KernelData) -> Kernel:
        """Return the kernel with the STATE and the functions of `loaded`."""
        kernel = self if loaded.state is None else self._replace(STATE=loaded.state)
        return kernel._replace(**loaded.functions) if loaded.functions else kernel

    def configure(self, values: Mapping[str, Any]) -> config.Config:
        """Validate a user's settings under `env:`."""
        try:
            return validate(self.Config, values, where="env")
        except SlipstreamError:
            raise
        except Exception as error:  # raised by a custom validator
            if self.built_in:
                raise
            raise wrap_user_error(f"Kernel `{self.name}`", self.Config, error) from error


class NoData(NamedTuple):
    """`Data` of a kernel whose rules read no arrays."""

    none: NDArray[np.float64]


class NoSettings(config.Config):
    """`Config` of a kernel without settings."""


def default_parts(module: ModuleType) -> dict[str, Any]:
    """Return `Config`, `Params`, `Data` and `load` of a kernel file that leaves them out.

    Without `load` the rules read no arrays, and `Params` are the fields of `Config`.

    Raises:
        KernelError: only some of `LOADING` are defined, or a field of `Config` is not a float, int
            or bool.
    """
    model = getattr(module, "Config", NoSettings)
    defined = [part for part in LOADING if hasattr(module, part)]
    if len(defined) == len(LOADING):
        return {"Config": model, **{part: getattr(module, part) for part in LOADING}}
    if defined:
        missing = ", ".join(part for part in LOADING if part not in defined)
        raise KernelError(
            f"{module.__file__} is not a complete kernel: it lacks {missing}. A kernel defines all "
            f"of {', '.join(LOADING)}, or none of them if its rules read no arrays; "
            "docs/guides/custom-environment.md shows both."
        )
    # `check_kernel` rejects other classes than Config.
    is_config = isinstance(model, type) and issubclass(model, config.Config)
    fields = model.model_fields if is_config else {}
    types = {name: field.annotation for name, field in fields.items()}
    if others := [name for name, kind in types.items() if kind not in _PARAM_TYPES]:
        raise KernelError(
            f"{module.__file__}: `Config.{others[0]}` is annotated {types[others[0]]!r}. Settings "
            "that a kernel reads are float, int or bool; for others define Params, Data and "
            "load(config), see docs/guides/custom-environment.md."
        )
    params = NamedTuple("Params", list(types.items()))  # type: ignore[misc]
    # Records are pickled by the name of their class.
    params.__module__, module.Params = module.__name__, params  # type: ignore[attr-defined]

    def load(config: config.Config) -> KernelData:
        data = NoData(np.zeros(1))
        return KernelData(data, {"train": (params(**config.model_dump()),)})

    return {"Config": model, "Params": params, "Data": NoData, "load": load}


def param_types(params: type[Any]) -> dict[str, type]:
    """Return float, int or bool for each field of a `Params` NamedTuple.

    Raises:
        KernelError: a field has another type.
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
    """Return the record dtype of a `Params` NamedTuple: float64, int64 and bool fields."""
    fields = [(name, _PARAM_TYPES[kind]) for name, kind in param_types(params).items()]
    if not fields:
        fields = [("unused", "i8")]  # a record needs a field
    return np.dtype(fields, align=True)


def params_table(kernel: Kernel, records: tuple[Any, ...]) -> NDArray[Any]:
    """Return a structured array [P] of Params records, as the batch loop reads it."""
    dtype = params_dtype(kernel.Params)
    table = np.zeros(len(records), dtype)
    for row, record in enumerate(records):
        for name in kernel.Params._fields:
            table[name][row] = getattr(record, name)
    return table
