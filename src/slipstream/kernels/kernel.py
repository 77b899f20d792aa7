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
from slipstream.core.errors import KernelError, SlipstreamError, raised
from slipstream.kernels.spec import Conditions, Spec

REQUIRED = ("Config", "Params", "Data", "STATE", "load", "reset", "step", "observe", "spec")
OPTIONAL = ("mask", "ahead", "conclude", "load_folds", "vary", "timeline", "APART")
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
        conditions: of prices, what a policy that is trained on them takes along.
        functions: what stands in place of the kernel's `step`, `observe` and `mask`, by name, where
            the settings decide how many players act.
    """

    data: Any
    params: Mapping[str, tuple[Any, ...]]
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    state: np.dtype[Any] | None = None
    conditions: Conditions | None = None
    functions: Mapping[str, Any] = field(default_factory=dict)


class Kernel(NamedTuple):
    """One environment's rules; what a kernel may leave out is None where it does.

    Attributes:
        mask: which discrete actions are allowed; None: always all.
        ahead: (s, p, d): asks, by `jit.memory.prefetch`, for the memory that the next step of this
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
        APART: of a built-in kernel: large functions that a step calls in several places, of s, p, d
            and numbers that are annotated; one may call those before it. Each is compiled once, by
            itself and beside the others, and not again wherever it is called.
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
    APART: tuple[FunctionType, ...] | None = None

    def hook(self, name: str) -> Any:
        """A function of the kernel's module that only an application calls; None without one."""
        return getattr(self.module, name, None)

    @property
    def built_in(self) -> bool:
        """Whether it is slipstream's own; loops of other kernels are compiled with checks."""
        return self.module.__name__.startswith("slipstream.")

    def fitted(self, loaded: Loaded) -> Kernel:
        """The kernel whose `STATE` and functions are those for `loaded`."""
        fitted = self if loaded.state is None else self._replace(STATE=loaded.state)
        return fitted._replace(**loaded.functions) if loaded.functions else fitted

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
