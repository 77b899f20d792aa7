"""Validation of arguments of public functions by their annotations."""

from __future__ import annotations

import inspect
import numbers
import os
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin

from slipstream.core.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")
_NAMES: dict[Any, str] = {type(None): "None", os.PathLike: "path"}
_WIDER: dict[Any, Any] = {
    Path: os.PathLike,
    int: numbers.Integral,
    float: numbers.Real,
    Sequence: Iterable,
    bool: object,
}


class ArgumentError(ConfigError, TypeError):
    """An argument of a public function is missing, unknown or of the wrong type."""


def validate_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function with validation of arguments by its annotations."""
    parameters, name_of = inspect.signature(function).parameters, function.__qualname__
    kinds: dict[str, Any] = {}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not kinds:
            kinds.update(
                {name: _kind(function, annotation) for name, annotation in parameters.items()}
            )
        try:
            given = inspect.signature(function).bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ArgumentError(
                f"{name_of}: {error}. Its arguments are {', '.join(parameters)}."
            ) from None
        for name, value in given.items():
            if not _fits(value, kinds[name]):
                raise ArgumentError(
                    f"{name_of}: `{name}` must be {_described(kinds[name])}, got "
                    f"{value!r:.80}. See help(slipstream.{name_of})."
                )
        return function(*args, **kwargs)

    return call


def _kind(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter; Any if it is not available at run time."""
    text = parameter.annotation
    if not isinstance(text, str) or parameter.kind is parameter.VAR_KEYWORD:
        return Any
    try:
        return eval(text, function.__globals__)
    except NameError:  # imported under TYPE_CHECKING only
        return Any


def _options(kind: Any) -> Sequence[Any]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _fits(value: Any, kind: Any) -> bool:
    for option in _options(kind):
        base = get_origin(option) or option
        base = _WIDER.get(base, base)
        if base is Any or not isinstance(base, type) or isinstance(value, base):
            return True
    return False


def _described(kind: Any) -> str:
    names = [_NAMES.get(get_origin(option) or option, option.__name__) for option in _options(kind)]
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
