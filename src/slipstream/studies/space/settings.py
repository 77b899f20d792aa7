"""Settings that a study may vary, what each of them takes, and the spaces that come as files."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from slipstream.core.bounds import Count
from slipstream.core.config import model_in, refuse_truth_value
from slipstream.core.errors import ConfigError
from slipstream.core.storage import yaml_file
from slipstream.core.text import did_you_mean, nearest
from slipstream.training.environments.factory import kind_of
from slipstream.training.settings.config import RunConfig, TrainingConfig

AGENT, NUM_ENVS = "agent.", "training.num_envs"
_TRAINING = ("num_envs", "total_steps")


@dataclass(frozen=True)
class Setting:
    """One key of a config that may be searched.

    Attributes:
        path: dotted.
        takes: its type, with limits.
        suggested: the range beside its default, as a mapping; None where there is none.
        by_default: whether a study searches it unasked.
        when: fields of its section and their value, or values, with which it is read.
    """

    path: str
    takes: Any
    suggested: Mapping[str, Any] | None = None
    by_default: bool = False
    when: Mapping[str, Any] = field(default_factory=dict)

    def unread(self, possible: Callable[[str], Sequence[Any]]) -> tuple[str, Sequence[Any]] | None:
        """The key, and its values here, because of which nothing reads the setting; or None.

        Args:
            possible: the values that a key beside it may have.
        """
        section = self.path.partition(".")[0]
        for key, wanted in self.when.items():
            reading = wanted if isinstance(wanted, (list, tuple)) else [wanted]
            here = possible(f"{section}.{key}")
            if not any(value in reading for value in here):
                return f"{section}.{key}: {' or '.join(map(str, reading))}", here
        return None

    @property
    def whole(self) -> bool:
        """Whether it takes whole numbers only."""
        kinds = set(_kinds(self.takes))
        return int in kinds and float not in kinds

    @property
    def number(self) -> bool:
        """Whether a range from low to high means something."""
        return bool({int, float, Any} & set(_kinds(self.takes)))

    def refusal(self, value: Any) -> str | None:
        """Why the setting cannot have this value; None if it can."""
        try:
            refuse_truth_value(self.takes, value)
        except ValueError as error:
            return str(error)
        try:
            TypeAdapter(self.takes).validate_python(value)
        except ValidationError as error:
            wrong = error.errors()
            # A union also complains that one number is not a list of numbers, one per member.
            wrong = [e for e in wrong if "tuple[" not in str(e["loc"])] or wrong
            return ", or ".join(
                dict.fromkeys(str(e["msg"]).removeprefix("Value error, ") for e in wrong)
            )
        return None


def settings(base: RunConfig) -> dict[str, Setting]:
    """Everything that may be searched from this config, by dotted path."""
    found = dict(_below("agent", type(base.agent), ()))
    for name in set(base.agent.FITTED) - set(type(base.agent).model_fields):
        found[AGENT + name] = Setting(AGENT + name, Count)
    for name in _TRAINING:
        info = TrainingConfig.model_fields[name]
        found[f"training.{name}"] = Setting(f"training.{name}", _takes(info))
    model = kind_of(base.env_name).model
    return found | _below("env", model, model.given)


def setting(path: str, base: RunConfig) -> Setting:
    """The setting at a dotted path.

    Raises:
        ConfigError: nothing reads it, or no study may vary it; with the nearest that would do.
    """
    known = settings(base)
    if path in known:
        return known[path]
    kind = kind_of(base.env_name)
    if kind.open_section is not None and path.startswith(f"env.{kind.open_section}."):
        return Setting(path, Any)
    head, _, rest = path.partition(".")
    if head == "env" and rest.split(".")[0] == "training_wrappers":
        raise ConfigError(
            f"`{path}` names code, which trials do not record. Set it for the whole study, in the "
            "config."
        )
    if head == "env" and rest.split(".")[0] in kind.model.given:
        raise ConfigError(
            f"`{path}` says what the task is: a study that varied it would choose the easiest "
            "task. Set it for the whole study, in the config."
        )
    if head == "evaluation" or (head == "training" and rest in TrainingConfig.model_fields):
        raise ConfigError(
            f"`{path}` is not for a study to vary: it decides where and how a member is trained or "
            f"scored, not what it learns. Of these sections, {' and '.join(_TRAINING)} of "
            "`training` may be searched."
        )
    guess = nearest(path, known) or nearest(rest, [name.partition(".")[2] for name in known])
    if guess and guess not in known:
        guess = next(name for name in known if name.partition(".")[2] == guess)
    advice = did_you_mean(guess or path, sorted(known))
    raise ConfigError(
        f"The search space names `{path}`, which nothing reads in {base.env_name} with the agent "
        f"{base.agent_name}; {advice}"
    )


def _below(where: str, model: type[BaseModel], given: tuple[str, ...]) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for name, info in model.model_fields.items():
        path = f"{where}.{name}"
        if name in given:
            continue
        inner = model_in(info.annotation)
        if inner is not None:
            below = _below(path, inner, ())
            when = _search(info).get("when", {})
            found |= {name: replace(one, when={**when, **one.when}) for name, one in below.items()}
            continue
        search = _search(info)
        suggested = search.get("range") or None  # without one, only `when` stands beside it
        found[path] = Setting(
            path,
            _takes(info),
            suggested,
            suggested is not None and search.get("by_default", False),
            search.get("when", {}),
        )
    return found


def _search(info: FieldInfo) -> dict[str, Any]:
    """What `core.config.searched` put beside a default."""
    extra = info.json_schema_extra
    found: Any = extra.get("search", {}) if isinstance(extra, dict) else {}
    return dict(found)


def _takes(info: FieldInfo) -> Any:
    if not info.metadata:
        return info.annotation
    return Annotated[info.annotation, *info.metadata]


def _kinds(annotation: Any) -> list[Any]:
    """The plain types that a value may have: of a union all of them, of a tuple the tuple."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _kinds(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(annotation) for kind in _kinds(part)]
    return [origin or annotation]


SETTINGS = "settings"
"""The key of a file that holds settings by dotted path; all other keys are ranges."""


def published() -> list[str]:
    """Names of the spaces that come as files."""
    files = resources.files("slipstream.studies.space").iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def read_published(name: str) -> Any:
    """What the file says."""
    file = resources.files("slipstream.studies.space") / f"{name}.yaml"
    return yaml_file.parse(file.read_text(encoding="utf-8"), f"{name}.yaml")


def settings_of(name: object) -> Mapping[str, Any]:
    """Settings without which the space means something else, by dotted path; none for others."""
    if not isinstance(name, str) or name not in published():
        return {}
    found: Mapping[str, Any] = read_published(name).get(SETTINGS, {})
    return found
