"""Validation of what the Python functions of a user's kernel return.

`load` and `spec` run once and may do anything, so a mistake in them would otherwise surface as an
unrelated traceback. Built-in kernels skip this; the tests validate them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from slipstream.core.errors import KernelError, SlipstreamError, wrap_user_error
from slipstream.kernels.kernel import Kernel, KernelData, param_types
from slipstream.kernels.source_lint import check_state
from slipstream.kernels.spec import EnvSpec, Metric

_NUMBERS = tuple(np.dtype(code) for code in ("f8", "f4", "i8", "i4", "i2", "i1"))
_NUMBERS += tuple(np.dtype(code) for code in ("u8", "u4", "u2", "u1", "?"))
_FITS: dict[type, tuple[type, ...]] = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (float, int, np.floating, np.integer),
}
# Aggregations are not units: a metric is one number, copied when an episode ends.
_NOT_UNITS = frozenset({"avg", "average", "mean", "median", "sum", "total", "min", "max"})
_NOT_UNITS |= frozenset({"last", "first", "final", "std"})
_METRIC = 'write metrics=(Metric("profit", "units"),): a STATE field and its unit'


def validated(kernel: Kernel) -> Kernel:
    """Return the kernel with functions that raise only `SlipstreamError` and return valid results.

    Arrays of Data become read-only.
    """

    def load(*arguments: Any) -> KernelData:
        return validate_kernel_data(kernel, _call(kernel, kernel.load, arguments), "load")

    def spec(p: Any, d: Any) -> EnvSpec:
        env_spec = _call(kernel, kernel.spec, (p, d))
        check_spec(kernel, env_spec)
        return env_spec  # type: ignore[no-any-return]

    replaced: dict[str, Any] = {"load": load, "spec": spec}
    for name in ("load_folds", "with_params"):
        if (function := getattr(kernel, name)) is not None:
            replaced[name] = _loading(kernel, function, name)
    if kernel.timeline is not None:
        replaced["timeline"] = functools.partial(_timeline, kernel)
    return kernel._replace(**replaced)


def _loading(kernel: Kernel, function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def called(*arguments: Any) -> Any:
        result = _call(kernel, function, arguments)
        return (
            None
            if result is None and name == "with_params"
            else validate_kernel_data(kernel, result, name)
        )

    return called


def _timeline(kernel: Kernel, p: Any, d: Any) -> Any:
    assert kernel.timeline is not None
    timeline = _call(kernel, kernel.timeline, (p, d))
    if not isinstance(timeline, np.ndarray) or timeline.dtype != np.int64 or timeline.ndim != 1:
        raise KernelError(
            f"{_where(kernel, 'timeline')} returned {_shown(timeline)}. Return an int64 array with "
            "the UTC seconds of each step."
        )
    return timeline


def _call(kernel: Kernel, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except KernelError as error:  # raised by EnvSpec, without the kernel's name
        raise KernelError(f"{_where(kernel, function.__name__)}: {error}") from error
    except SlipstreamError:
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise wrap_user_error(f"Kernel `{kernel.name}`", function, error) from error


def validate_kernel_data(kernel: Kernel, loaded: Any, name: str = "load") -> KernelData:
    """Return the result of `load` with read-only arrays.

    Raises:
        KernelError: it violates the kernel contract.
    """

    where = _where(kernel, name)
    if not isinstance(loaded, KernelData):
        raise KernelError(
            f"{where} returned {_shown(loaded)}; return kernel.KernelData(Data(...), "
            '{"train": (Params(...),)}).'
        )
    if not isinstance(loaded.data, kernel.Data):
        raise KernelError(
            f"{where} returned {_shown(loaded.data)} as KernelData.data; give its own Data(...)."
        )
    for field, array in zip(kernel.Data._fields, loaded.data, strict=True):
        if not isinstance(array, np.ndarray) or array.dtype not in _NUMBERS:
            raise KernelError(
                f"{where} returned Data.{field} as {_shown(array)}; make it a NumPy array of "
                "float64, float32, integers or bool."
            )
    _check_params(kernel, loaded.params, where)
    if loaded.state is not None:
        names = getattr(loaded.state, "names", None)
        if names != kernel.STATE.names:
            raise KernelError(
                f"{where} returned a `state` with the fields {names}; give it those of STATE, in "
                f"their order: {kernel.STATE.names}."
            )
        check_state(kernel.specialize(loaded))
    if not any(array.flags.writeable for array in loaded.data):
        return loaded  # read-only arrays from an earlier load, reused by `with_params`
    return replace(loaded, data=kernel.Data(*(_locked(array) for array in loaded.data)))


def _check_params(kernel: Kernel, params: Any, where: str) -> None:
    if not isinstance(params, Mapping) or "train" not in params:
        have = (
            f"the splits {', '.join(map(str, params))}"
            if isinstance(params, Mapping)
            else _shown(params)
        )
        raise KernelError(
            f'{where} returned {have} as KernelData.params; give {{"train": (Params(...),)}}: '
            "records by split. `train` is required, `validation` and `test` are optional."
        )
    types = param_types(kernel.Params)
    for split, records in params.items():
        if not isinstance(records, tuple | list) or not records:
            raise KernelError(
                f"{where} returned {_shown(records)} as split `{split}`; give a tuple of at least "
                "one Params(...), such as (Params(...),) with its comma."
            )
        for record in records:
            if not isinstance(record, kernel.Params):
                raise KernelError(
                    f"{where} returned {_shown(record)} within split `{split}`, which is a tuple "
                    "of Params(...) records: (Params(...),) has a comma."
                )
            for name, kind in types.items():
                value = getattr(record, name)
                if not isinstance(value, _FITS[kind]) or (
                    kind is not bool and isinstance(value, bool)
                ):
                    raise KernelError(
                        f"{where} returned Params.{name} as {_shown(value)}, annotated as "
                        f"{kind.__name__}: give such a number, or change the annotation."
                    )


def check_spec(kernel: Kernel, spec: Any) -> None:
    """Validate the result of `spec`.

    Raises:
        KernelError: it violates the kernel contract.
    """
    where = _where(kernel, "spec")
    if not isinstance(spec, EnvSpec):
        raise KernelError(
            f"{where} returned {_shown(spec)}; return EnvSpec(observation_space=spaces.Box(...), "
            "action_space=spaces.Discrete(n))."
        )
    _check_spaces(spec, where)
    _check_metrics(kernel, spec, where)
    if type(spec.players) is not int or spec.players < 1:
        raise KernelError(
            f"{where} returned players={spec.players!r}; give their number, 1 or more."
        )
    if spec.winner is not None and spec.winner not in {metric.name for metric in spec.metrics}:
        raise KernelError(
            f"{where} returned winner={spec.winner!r}, which is none of its metrics: keep who won "
            f'in a STATE field and list it, metrics=(Metric("{spec.winner}", "1, 0 or -1"),).'
        )
    if kernel.mask is not None and spec.num_actions == 0:
        raise KernelError(
            f"{where} returned the action {spec.action_space}, but `mask` needs discrete actions: "
            "make the action Discrete or MultiDiscrete, or remove `mask`."
        )
    for name in ("fixed_mean", "fixed_std"):
        fixed = getattr(spec, name)
        if fixed is not None and np.shape(fixed) != spec.observation_shape:
            raise KernelError(
                f"{where} returned {name} of shape {np.shape(fixed)}; the observation has shape "
                f"{spec.observation_shape}."
            )


def _check_spaces(spec: EnvSpec, where: str) -> None:
    seen, action = spec.observation_space, spec.action_space
    if not isinstance(seen, spaces.Box) or seen.dtype not in (np.float32, np.uint8):
        what = "" if isinstance(seen, gymnasium.Space) else "which is no space of Gymnasium; "
        raise KernelError(
            f"{where} returned the observation {_shown(seen)}; {what}make it one "
            "spaces.Box(low, high, (n,), np.float32), n numbers that `observe` writes into "
            "out[0] to out[n - 1], or a Box of uint8 for images."
        )
    if not seen.shape or 0 in seen.shape:
        raise KernelError(
            f"{where} returned an observation of shape {seen.shape}; give it one place or more: "
            "shape (1,) for a single number, which `observe` writes into out[0]."
        )
    if not isinstance(action, spaces.Discrete | spaces.MultiDiscrete | spaces.Box):
        raise KernelError(
            f"{where} returned the action {_shown(action)}; make it spaces.Discrete(n), "
            "spaces.MultiDiscrete([n, m]) or spaces.Box(low, high, (k,), np.float32)."
        )
    if not isinstance(action, spaces.Discrete) and (not action.shape or 0 in action.shape):
        raise KernelError(
            f"{where} returned an action of shape {action.shape}; give it one place or more: "
            "shape (1,) for a single number, which `step` reads as action[0]."
        )


def _check_metrics(kernel: Kernel, spec: EnvSpec, where: str) -> None:
    state = kernel.STATE
    fields = ", ".join(state.names or ())
    if isinstance(spec.metrics, Metric) or not isinstance(spec.metrics, tuple | list):
        raise KernelError(f"{where} returned metrics={spec.metrics!r}, not a tuple: {_METRIC}.")
    for metric in spec.metrics:
        if not isinstance(metric, Metric):
            raise KernelError(f"{where} returned {metric!r} among its metrics: {_METRIC}.")
        if metric.name not in (state.names or ()):
            raise KernelError(
                f"{where}: the metric `{metric.name}` is not a field of STATE ({fields})."
            )
        if state[metric.name].shape:
            raise KernelError(
                f"{where}: the metric `{metric.name}` is an array of STATE; a metric is one "
                "number: keep it in a field of its own."
            )
        if not isinstance(metric.unit, str) or metric.unit.lower() in _NOT_UNITS:
            raise KernelError(
                f"{where} returned {metric!r}: the second part is the unit of one number, such as "
                '"share" or "steps". A metric is copied from STATE where an episode ends; a mean '
                "over the episode is calculated there, in `finalize_episode(s, p, d)`."
            )
    if isinstance(spec.trace, str) or not isinstance(spec.trace, tuple | list):
        raise KernelError(f'{where} returned trace={spec.trace!r}; write trace=("field",).')
    for name in spec.trace:
        if name not in (state.names or ()):
            raise KernelError(f"{where}: the trace `{name}` is not a field of STATE ({fields}).")


def _locked(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


def _where(kernel: Kernel, name: str) -> str:
    return f"{kernel.module.__file__}: Kernel `{kernel.name}`: `{name}`"


def _shown(value: Any) -> str:
    """Return a value for a sentence: its type, and its repr if that adds something."""
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    text = repr(value)
    kind = type(value).__name__
    if text.startswith(kind) or len(text) > 120:
        return text if len(text) <= 120 else f"a {kind}"
    return f"{text} (a {kind})"
