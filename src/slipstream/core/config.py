"""Frozen, typed configuration in which a key that nobody reads is an error."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from slipstream.core.errors import ConfigError
from slipstream.core.field_names import renamed, setting_of_agent
from slipstream.core.text import did_you_mean

_TAG = re.compile(r"(constrained-\w+|literal\[.*|tuple\[.*|dict\[.*|int|float|str|bool|none)$")
_NAMED = ("env", "agent")  # sections whose `name` chooses the model, which has no such field

_MOST_ENTRIES = 5_000  # of a list or mapping; thousands of symbols are possible
_MOST_PROBLEMS = 20  # that a message names

ModelT = TypeVar("ModelT", bound=BaseModel)


class Config(BaseModel):
    """Base of every configuration model: immutable, no unknown keys, no NaN or infinity, no endless
    lists.

    A truth value is no number: `learning_rate: true` is refused, where Pydantic would read 1.

    Attributes:
        given: keys that say what the task is (costs, physics): a study that varied them would
            choose the easiest task, so none may.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    given: ClassVar[tuple[str, ...]] = ()

    @field_validator("*", mode="before")
    @classmethod
    def _possible_value(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        if isinstance(value, (Mapping, list, tuple, set, frozenset)) and len(value) > _MOST_ENTRIES:
            raise ValueError(
                f"has {len(value):,} entries, and {_MOST_ENTRIES:,} are the most; leave some out"
            )
        refuse_truth_value(cls.model_fields[info.field_name].annotation, value)
        return value


def refuse_truth_value(annotation: Any, value: Any) -> None:
    """Raises ValueError for true or false, alone or in a list, where a type knows none."""
    if _holds_truth_value(value) and not _takes_truth_value(annotation):
        kinds = str(annotation)
        wanted = "a number" if "int" in kinds or "float" in kinds else "text, in quotes"
        raise ValueError(
            f"must be {wanted}, not true or false (which YAML also reads in yes, no, on and off)"
        )


def _holds_truth_value(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_truth_value(part) for part in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(_holds_truth_value(part) for part in value)
    return isinstance(value, (bool, np.bool_))


def _takes_truth_value(annotation: Any) -> bool:
    """Whether bool, anything, or a model that judges its own fields is among the types."""
    if isinstance(annotation, type) and issubclass(annotation, (bool, BaseModel)):
        return True
    if annotation in (Any, object):
        return True
    if typing.get_origin(annotation) is typing.Literal:
        return any(isinstance(choice, bool) for choice in typing.get_args(annotation))
    return any(_takes_truth_value(argument) for argument in typing.get_args(annotation))


def put(values: dict[str, Any], path: str, value: Any) -> None:
    """Sets a dotted `path` in nested sections, which are copied; makes those that are missing.

    Raises:
        ConfigError: a section on the way is a value.
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


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path; KeyError if there is none."""
    found: Any = values
    for part in path.split("."):
        if not isinstance(found, Mapping):
            raise KeyError(path)
        found = found[part]
    return found


def searched(
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
    """What stands beside a default, as a Field's `json_schema_extra`: the range a study searches.

    Args:
        low, high: both ends belong to the range.
        log: small values are as likely as large ones.
        step: distance of neighbouring values.
        power_of: the value is this number to the power of an integer from low to high.
        choices: instead of the ends; values may be lists.
        when: fields of the same section and their value, or list of values, with which this one is
            read; on a nested section, for all of it.
        by_default: False where a study searches the field only if its space names it, such as
            sizes: trials of different sizes cannot be trained in one batch.
    """
    values = {"low": low, "high": high, "step": step, "power_of": power_of, "choices": choices}
    given = {name: value for name, value in values.items() if value is not None}
    entry = {"range": {**given, **({"log": True} if log else {})}, "by_default": by_default}
    return {"search": {**entry, "when": dict(when or {})}}


def validate(model: type[ModelT], values: Mapping[str, Any], where: str = "") -> ModelT:
    """Builds `model` from plain values (as read from YAML).

    Args:
        model: the Pydantic model to build.
        values: its fields, nested mappings allowed.
        where: dotted prefix of the values in the user's file, for messages (``"env"``).

    Raises:
        ConfigError: every problem in one paragraph, the nearest known key beside an unknown one.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"`{where or 'config'}` must be keys with values, it is {values!r:.80}.")
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise refusal(model, error, where) from None


def refusal(model: type[BaseModel], error: ValidationError, where: str) -> ConfigError:
    """What Pydantic found, in a paragraph; arguments as for `validate`."""
    problems: dict[str, list[str]] = {}
    entries = error.errors()
    for entry in entries[:_MOST_PROBLEMS]:
        before, problem, after = _explain(model, dict(entry), where)
        problems.setdefault(f"{before}|{after}", []).append(problem)  # a union complains twice
    sentences = []
    for words, found in problems.items():
        before, _, after = words.partition("|")
        sentences.append(before + ", or ".join(dict.fromkeys(found)) + after)
    if (more := len(entries) - _MOST_PROBLEMS) > 0:
        sentences.append(f"There are {more:,} more problems.")
    return ConfigError(" ".join(sentences))


def _explain(model: type[BaseModel], entry: dict[str, Any], where: str) -> tuple[str, str, str]:
    """What comes before a problem, the problem, and what comes after it."""
    location = _without_tags(model, [str(part) for part in entry["loc"]])
    path = ".".join([part for part in [where, *location] if part]) or "config"
    if entry["type"] == "extra_forbidden":
        choice = {"name"} if where in _NAMED and len(location) == 1 else set()
        known = sorted(choice | set(_fields_at(model, location[:-1])))
        if (new := renamed(path)) is not None and new.rpartition(".")[2] in known:
            return f"`{path}` is called ", f"`{new}`", "."
        advice = did_you_mean(location[-1], known, f"known keys: {', '.join(known)}.")
        if where == "training" and (setting := setting_of_agent(location[-1])) is not None:
            advice = f'did you mean `{setting}`? In Python: `overrides={{"{setting}": ...}}`.'
        return f"`{path}` is not a known key; ", advice, ""
    if entry["type"] == "missing":
        return f"`{path}` is ", "required and missing", "."
    message = str(entry["msg"]).removeprefix("Value error, ").rstrip(".")
    message = message.replace("valid tuple", "valid list")  # as a config file has it
    if not location:
        return f"{path}: ", message, "."
    given = repr(entry["input"])
    given = given if len(given) <= 300 else f"{given[:300]} ..."
    if message == "Input should be a valid list" and isinstance(entry["input"], str):
        items = ", ".join(item.strip() for item in entry["input"].split(","))
        return f"`{path}`: ", f"{message} (got {given}): write '[{items[:300]}]'", "."
    return f"`{path}`: ", message, "." if given in message else f" (got {given})."


def _without_tags(model: type[BaseModel], location: list[str]) -> list[str]:
    """A place in the user's file: without the names that Pydantic gives to a union's choices."""
    current: type[BaseModel] | None = model
    kept: list[str] = []
    for part in location:
        field = current.model_fields.get(part) if current else None
        if field is not None:
            current = model_in(field.annotation)
        elif kept and _TAG.match(part):
            continue
        kept.append(part)
    return kept


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """Field names of the model found by walking `path` down from `model`."""
    current: type[BaseModel] | None = model
    for part in path:
        field = current.model_fields.get(part) if current else None
        if field is None:
            continue  # a union's tag or a list index: stay on the same model
        current = model_in(field.annotation)
    return list(current.model_fields) if current else []


def model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in typing.get_args(annotation):
        found = model_in(argument)
        if found is not None:
            return found
    return None
