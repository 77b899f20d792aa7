"""Frozen, typed configuration models that reject unknown keys."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from slipstream.core.errors import ConfigError
from slipstream.core.field_names import agent_setting, renamed
from slipstream.core.text import did_you_mean, validation_message

_TAG = re.compile(r"(constrained-\w+|literal\[.*|tuple\[.*|dict\[.*|int|float|str|bool|none)$")
_NAMED = ("env", "agent")  # sections whose `name` selects the model, which has no such field

_MOST_ENTRIES = 5_000  # of a list or mapping; it may have thousands of symbols
_MOST_PROBLEMS = 20  # per message

ModelT = TypeVar("ModelT", bound=BaseModel)


class Config(BaseModel):
    """Base class of configuration models: immutable, no unknown keys, NaN, infinity or huge lists.

    Booleans are not numbers: `learning_rate: true` is rejected, while Pydantic would read 1.

    Attributes:
        FIXED_KEYS: keys that define the task (costs, physics). Studies cannot tune them, because
            they would choose the easiest task.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    FIXED_KEYS: ClassVar[tuple[str, ...]] = ()

    @field_validator("*", mode="before")
    @classmethod
    def _possible_value(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        if isinstance(value, (Mapping, list, tuple, set, frozenset)) and len(value) > _MOST_ENTRIES:
            raise ValueError(
                f"has {len(value):,} entries, and {_MOST_ENTRIES:,} are the most; leave some out"
            )
        reject_bool(cls.model_fields[info.field_name].annotation, value)
        return value


def reject_bool(annotation: Any, value: Any) -> None:
    """Raise a ValueError for a bool, alone or in a list, if the annotation does not allow one."""
    if _contains_bool(value) and not _accepts_bool(annotation):
        kinds = str(annotation)
        expected = "a number" if "int" in kinds or "float" in kinds else "text, in quotes"
        raise ValueError(
            f"must be {expected}, not true or false (which YAML also reads in yes, no, on and off)"
        )


def _contains_bool(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_contains_bool(part) for part in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(_contains_bool(part) for part in value)
    return isinstance(value, (bool, np.bool_))


def _accepts_bool(annotation: Any) -> bool:
    """Return true if an annotation contains bool, Any, or a model that validates its own fields."""
    if isinstance(annotation, type) and issubclass(annotation, (bool, BaseModel)):
        return True
    if annotation in (Any, object):
        return True
    if typing.get_origin(annotation) is typing.Literal:
        return any(isinstance(choice, bool) for choice in typing.get_args(annotation))
    return any(_accepts_bool(argument) for argument in typing.get_args(annotation))


def set_by_path(values: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted `path` in nested sections. Sections are copied, missing ones are created.

    Raises:
        ConfigError: a section of the path is a value.
    """
    *sections, key = path.split(".")
    for depth, name in enumerate(sections):
        below = values.get(name)
        if not isinstance(below, Mapping | None):
            where = ".".join(sections[: depth + 1])
            raise ConfigError(
                f"`{path}` cannot be set: `{where}` is the value {below!r}, not a section."
            )
        values[name] = dict(below or {})
        values = values[name]
    values[key] = value


def get_by_path(values: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path; KeyError if there is none."""
    value: Any = values
    for part in path.split("."):
        if not isinstance(value, Mapping):
            raise KeyError(path)
        value = value[part]
    return value


def tunable(
    low: float | None = None,
    high: float | None = None,
    *,
    log: bool = False,
    step: float | None = None,
    power_of: int | None = None,
    choices: Sequence[Any] | None = None,
    when: Mapping[str, Any] | None = None,
    by_default: bool = True,
) -> dict[str, Any]:
    """Return the `json_schema_extra` of a Field with the default search range of studies.

    Args:
        low, high: inclusive bounds.
        log: sample on a logarithmic scale.
        step: distance of neighbouring values.
        power_of: the value is this base to the power of an integer from low to high.
        choices: categorical values in place of the bounds; values may be lists.
        when: fields of the same section and the value, or list of values, for which this one is
            active; on a nested section, for all of it.
        by_default: False if a study tunes the field only when its space names it, such as sizes:
            trials of different sizes cannot be trained in one batch.
    """
    values = {"low": low, "high": high, "step": step, "power_of": power_of, "choices": choices}
    given = {name: value for name, value in values.items() if value is not None}
    entry = {"range": {**given, **({"log": True} if log else {})}, "by_default": by_default}
    return {"search": {**entry, "when": dict(when or {})}}


def validate(model: type[ModelT], values: Mapping[str, Any], where: str = "") -> ModelT:
    """Build `model` from plain values (as read from YAML).

    Args:
        model: the Pydantic model to build.
        values: its fields, nested mappings allowed.
        where: dotted prefix of the values in the user's file, for messages (``"env"``).

    Raises:
        ConfigError: all problems in one paragraph; unknown keys with the nearest known key.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"`{where or 'config'}` must be keys with values, it is {values!r:.80}.")
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise validation_error(model, error, where) from None


def validation_error(model: type[BaseModel], error: ValidationError, where: str) -> ConfigError:
    """Return Pydantic's errors as one ConfigError; arguments as for `validate`."""
    problems: dict[str, list[str]] = {}
    entries = error.errors()
    for entry in entries[:_MOST_PROBLEMS]:
        before, problem, after = _explain(model, dict(entry), where)
        problems.setdefault(f"{before}|{after}", []).append(problem)  # unions report twice
    sentences = []
    for words, inputs in problems.items():
        before, _, after = words.partition("|")
        sentences.append(before + ", or ".join(dict.fromkeys(inputs)) + after)
    if (more := len(entries) - _MOST_PROBLEMS) > 0:
        sentences.append(f"There are {more:,} more problems.")
    return ConfigError(" ".join(sentences))


def _explain(model: type[BaseModel], entry: dict[str, Any], where: str) -> tuple[str, str, str]:
    """Return the text before a problem, the problem, and the text after it."""
    location = _without_tags(model, [str(part) for part in entry["loc"]])
    path = ".".join([part for part in [where, *location] if part]) or "config"
    if entry["type"] == "extra_forbidden":
        choice = {"name"} if where in _NAMED and len(location) == 1 else set()
        known = sorted(choice | set(_fields_at(model, location[:-1])))
        if (new := renamed(path)) is not None and new.rpartition(".")[2] in known:
            return f"`{path}` is called ", f"`{new}`", "."
        advice = did_you_mean(location[-1], known, f"known keys: {', '.join(known)}.")
        if where == "training" and (setting := agent_setting(location[-1])) is not None:
            advice = f'did you mean `{setting}`? In Python: `overrides={{"{setting}": ...}}`.'
        return f"`{path}` is not a known key; ", advice, ""
    if entry["type"] == "missing":
        return f"`{path}` is ", "required and missing", "."
    message = validation_message(str(entry["msg"]))
    if not location:
        return f"{path}: ", message, "."
    given = repr(entry["input"])
    given = given if len(given) <= 300 else f"{given[:300]} ..."
    if message == "must be a list" and isinstance(entry["input"], str):
        items = ", ".join(item.strip() for item in entry["input"].split(","))
        return f"`{path}` ", f"{message}, got {given}: write '[{items[:300]}]'", "."
    message = message.removeprefix(f"`{location[-1]}` ")
    if message.startswith("must be ") and ", got " in message:
        return f"`{path}` ", message, "."
    if message.startswith("must be "):
        return f"`{path}` must be ", message.removeprefix("must be "), f", got {given}."
    elements = entry["input"] if isinstance(entry["input"], tuple) else ()
    is_quoted = given in message or any(repr(element) in message for element in elements)
    return f"`{path}`: ", message, "." if is_quoted else f" (got {given})."


def _without_tags(model: type[BaseModel], location: list[str]) -> list[str]:
    """Return a location in the user's file, without Pydantic's names of union members."""
    current: type[BaseModel] | None = model
    parts: list[str] = []
    for part in location:
        field = current.model_fields.get(part) if current else None
        if field is not None:
            current = find_model(field.annotation)
        elif parts and _TAG.match(part):
            continue
        parts.append(part)
    return parts


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """Return the field names of the model at `path` below `model`."""
    current: type[BaseModel] | None = model
    for part in path:
        field = current.model_fields.get(part) if current else None
        if field is None:
            continue  # a union's tag or a list index: stay on the same model
        current = find_model(field.annotation)
    return list(current.model_fields) if current else []


def find_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in typing.get_args(annotation):
        model = find_model(argument)
        if model is not None:
            return model
    return None
