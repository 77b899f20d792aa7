"""SearchSpace: ranges by dotted path, their Optuna distributions, and configs of suggestions.

A `SearchableSetting` is a config key that a study may vary, with its type and limits.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo

from slipstream.core.bounds import Count
from slipstream.core.config import Config, find_model, get_by_path, reject_bool, validate
from slipstream.core.errors import ConfigError
from slipstream.core.safe_io import read_text
from slipstream.core.storage import yaml_file
from slipstream.core.text import closest_match, did_you_mean
from slipstream.studies.config import SETTINGS, published_spaces, read_published_space
from slipstream.training.environments.factory import get_kind
from slipstream.training.settings.config import CONFIGS, RunConfig, TrainingConfig, resolve

optuna.logging.set_verbosity(optuna.logging.WARNING)

DEFAULT = "default"
_EXTENDS = "extends"
_MIN_TRIALS_FOR_IMPORTANCE = 20  # fewer trials show the sampler's own pattern
_MAX_NUMBER = 2.0**1000  # larger numbers are rejected before any arithmetic
# Random combinations. All must give valid configs; their mean cost estimates that of trials.
_NUM_SAMPLES = 32
AGENT, NUM_ENVS = "agent.", "training.num_envs"
_TRAINING = ("num_envs", "total_timesteps")


class Overrides(NamedTuple):
    """A trial's settings for `resolve` (`training/settings/config.py`), and notes on rounding."""

    values: dict[str, Any]
    notes: tuple[str, ...]


Number = int | float


class Range(Config):
    """A range with both ends, or choices.

    The value that Optuna suggests differs from the config's value for powers (the exponent is
    suggested) and for choices that are lists (their JSON text is suggested).
    """

    low: Number | None = Field(None, description="Smallest value.")
    high: Number | None = Field(None, description="Largest value.")
    log: bool = Field(False, description="Sample on a logarithmic scale.")
    step: Number | None = Field(None, gt=0, description="Difference between adjacent values.")
    power_of: int | None = Field(
        None, ge=2, description="Base b of values b**n, with n from `low` to `high`."
    )
    choices: tuple[Any, ...] | None = Field(
        None, description="Categorical values, instead of `low` and `high`."
    )

    @model_validator(mode="after")
    def _possible(self) -> Range:
        if self.choices is not None:
            others = self.model_fields_set - {"choices"}
            if others:
                raise ValueError(f"`choices` must be the only key, without `{min(others)}`")
            if not self.choices:
                raise ValueError("`choices` is empty; list at least one value")
            seen = set[str]()
            for text in map(encode_choice, self.choices):
                if repr(text) in seen:
                    raise ValueError(f"`choices` lists {text} twice")
                seen.add(repr(text))
            return self
        if self.low is None or self.high is None:
            raise ValueError("give `low` and `high`, or `choices`")
        if self.low > self.high:
            raise ValueError(f"`low` {self.low:g} is above `high` {self.high:g}")
        if self.power_of is not None and (
            self.log or self.step is not None or not self._are_integers(self.low, self.high)
        ):
            raise ValueError(
                "with `power_of`, `low` and `high` must be integer exponents, without other keys"
            )
        if self.log and self.step is not None:
            raise ValueError("`log` and `step` cannot be combined")
        if self.log and self.low <= 0:
            raise ValueError(f"`log` requires a positive `low`, got {self.low:g}")
        if self.step is not None:
            steps = (self.high - self.low) / self.step
            if abs(steps - round(steps)) > 1e-6:
                raise ValueError(
                    f"`step` {self.step:g} does not lead from {self.low:g} to {self.high:g}"
                )
        return self

    @staticmethod
    def _are_integers(*numbers: Number | None) -> bool:
        return all(isinstance(n, int) for n in numbers if n is not None)

    def with_type(self, whole: bool) -> Range:
        """Return the same range for an integer setting, or for a setting with any numbers.

        Raises:
            ValueError: integers are required and others given.
        """
        if self.choices is not None or self.power_of is not None:
            if whole and self.power_of is not None and self.low is not None and self.low < 0:
                raise ValueError("the setting is an integer: `low` must be at least 0")
            return self
        if not whole:
            ends = {"low": self.low, "high": self.high, "step": self.step}
            floats = {k: float(v) for k, v in ends.items() if v is not None}
            return self.model_copy(update=floats)
        if not self._are_integers(self.low, self.high, self.step):
            raise ValueError("the setting is an integer: `low`, `high` and `step` must be integers")
        return self

    @property
    def distribution(self) -> BaseDistribution:
        """Optuna's distribution of the range."""
        if self.choices is not None:
            return CategoricalDistribution([encode_choice(choice) for choice in self.choices])
        assert self.low is not None and self.high is not None
        if isinstance(self.low, int) and isinstance(self.high, int):
            step = int(self.step) if self.step is not None else 1
            return IntDistribution(self.low, self.high, log=self.log, step=step)
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def to_value(self, suggested: Any) -> Any:
        """Return the config's value for a suggestion.

        Raises:
            ValueError: the suggestion is not in the range.
        """
        if self.choices is not None:
            for choice in self.choices:
                text = encode_choice(choice)
                if text == suggested and isinstance(text, bool) == isinstance(suggested, bool):
                    return choice
            raise ValueError(f"{suggested!r} is not one of the choices")
        if not self._contains(suggested):
            raise ValueError(f"{suggested!r} is outside {self.description}")
        return suggested if self.power_of is None else self.power_of**suggested

    def to_suggestion(self, value: Any) -> Any:
        """Return the suggestion for a config's value, the inverse of `to_value`.

        Raises:
            ValueError: the value is not in the range.
        """
        suggested = encode_choice(value)
        if self.choices is None:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"{value!r} is not a number")
            if not -_MAX_NUMBER <= value <= _MAX_NUMBER:
                raise ValueError(f"{value!r} is outside {self.description}")
            if self.power_of is not None:
                suggested = round(math.log(value, self.power_of)) if value > 0 else 0
                if self.power_of**suggested != value:
                    raise ValueError(f"{value!r} is outside {self.description}")
            elif isinstance(self.low, float):
                suggested = float(value)
            elif value == int(value):
                suggested = int(value)
        self.to_value(suggested)
        return suggested

    def _contains(self, number: Number) -> bool:
        """Return whether a number is between the ends and on a step, if there are steps."""
        assert self.low is not None and self.high is not None
        step = self.step or (1 if self._are_integers(self.low, self.high) else None)
        places = (number - self.low) / step if step else 0.0
        return self.low <= number <= self.high and abs(places - round(places)) < 1e-8

    @property
    def bounds(self) -> tuple[Any, ...]:
        """Values that must all be valid: every choice, or both ends."""
        if self.choices is not None:
            return self.choices
        assert self.low is not None and self.high is not None
        if self.power_of is not None:
            return self.power_of**self.low, self.power_of**self.high
        return self.low, self.high

    @property
    def description(self) -> str:
        """The range as text: ``0.1 to 0.4``, ``one of [64, 64], [128, 128]``."""
        if self.choices is not None:
            return "one of " + ", ".join(json.dumps(choice) for choice in self.choices)
        if self.power_of is not None:
            return f"{self.power_of}^{self.low} to {self.power_of}^{self.high}"
        how = " (log)" if self.log else f" in steps of {self.step:g}" if self.step else ""
        return f"{self.low:g} to {self.high:g}{how}"

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values from which `Range` can be restored."""
        return self.model_dump(mode="json", exclude_defaults=True)


def encode_choice(choice: Any) -> bool | int | float | str | None:
    """Return a choice as Optuna's storages hold it: lists and mappings become JSON text."""
    if isinstance(choice, (list, tuple, dict)):
        return json.dumps(choice, sort_keys=True)
    return choice  # type: ignore[no-any-return]


@dataclass(frozen=True)
class SearchSpace:
    """Ranges by dotted path, sorted. The order in a file does not affect results."""

    ranges: Mapping[str, Range]

    @classmethod
    def from_mapping(cls, values: str | Mapping[str, Any] | None, base: RunConfig) -> SearchSpace:
        """Parse `study.space`.

        Args:
            values: ``default``, a published space's name, the path of a .yaml file, or a mapping
                from dotted paths to ranges. In a mapping, the range ``default`` is the one declared
                with the field, null removes a name, and the key ``extends`` names the space to
                extend.
            base: the config that trials vary.

        Raises:
            ConfigError: an unknown name, a range beyond the field's limits, or combinations that no
                config allows.
        """
        space = cls(dict(sorted(_parse_ranges(values, base, ()).items())))
        space._check(base)
        return space

    @classmethod
    def from_stored(cls, values: Mapping[str, Any]) -> SearchSpace:
        """Restore a space from `to_mapping`, as in a study.yaml, without running named code.

        Raises:
            ConfigError: the mapping is not a space.
        """
        return cls(
            {
                str(name): validate(Range, range_values, str(name))
                for name, range_values in values.items()
            }
        )

    def start_params(self, starts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the params of `study.start_with`; each mapping may set some of the names.

        Raises:
            ConfigError: a name is not searched, or a value is outside its range.
        """
        all_params = []
        for k, start in enumerate(starts):
            params = {}
            for name, value in start.items():
                where = f"`study.start_with`, trial {k}"
                if name not in self.ranges:
                    advice = did_you_mean(name, sorted(self.ranges))
                    raise ConfigError(
                        f"{where} sets `{name}`, which is not in the search space; {advice} Values "
                        "that apply to all trials belong in the config."
                    )
                try:
                    params[name] = self.ranges[name].to_suggestion(value)
                except ValueError as error:
                    raise ConfigError(
                        f"{where} sets `{name}`: {error}. Widen its range in `study.space`, or "
                        "remove the setting."
                    ) from None
            all_params.append(params)
        return all_params

    def check_starts(self, starts: Sequence[Mapping[str, Any]], base: RunConfig) -> None:
        """Check that trials can start with the settings of `study.start_with`.

        Raises:
            ConfigError: a setting is invalid, or fits no other values.
        """
        for k, params in enumerate(self.start_params(starts)):
            for values in self.sample_overrides(base, params):
                try:
                    resolve(base, values)
                except ConfigError as error:
                    raise ConfigError(f"`study.start_with`, trial {k}: {error}") from None

    def _check(self, base: RunConfig) -> None:
        if not self.ranges:
            raise ConfigError(
                "The search space is empty. Name at least one setting, such as "
                "agent.learning_rate, or write `space: default`."
            )
        for path in self.ranges:
            self._check_used(find_setting(path, base), base)
        for values in self.sample_overrides(base):
            try:
                resolve(base, values)
            except ConfigError as error:
                tried = ", ".join(f"{name} {value}" for name, value in values.items())
                raise ConfigError(
                    f"The search space contains invalid combinations, such as {tried}: {error} "
                    "Narrow a range, or set the other key in the config."
                ) from None

    def _check_used(self, setting: SearchableSetting, base: RunConfig) -> None:
        """Check that a setting is used, given the values of other settings."""

        def possible(path: str) -> Sequence[Any]:
            return self.ranges[path].bounds if path in self.ranges else _base_values(path, base)

        unread = setting.find_unmet_condition(possible)
        if unread is not None:
            needed, actual = unread
            raise ConfigError(
                f"The search space names `{setting.path}`, which is used only with `{needed}`, but "
                f"the value is {actual[0]}. Set `{needed}` in the config, or remove "
                f"`{setting.path}` from the space."
            )

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Optuna's distributions, by dotted path."""
        return {name: searched.distribution for name, searched in self.ranges.items()}

    def ask(self, study: optuna.Study) -> optuna.Trial:
        """Ask `study` for a new trial with a suggestion for every name."""
        return study.ask(fixed_distributions=self.distributions)

    def sample_overrides(
        self, base: RunConfig, fixed: Mapping[str, Any] | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """Return overrides of random trials, always the same except for `fixed` params."""
        sampler = optuna.samplers.RandomSampler(seed=0)
        samples = []
        for _ in range(_NUM_SAMPLES):
            params = {
                name: sampler.sample_independent(None, None, name, distribution)  # type: ignore[arg-type]
                for name, distribution in self.distributions.items()
            }
            samples.append(self.overrides({**params, **(fixed or {})}, base).values)
        return samples

    def overrides(self, params: Mapping[str, Any], base: RunConfig) -> Overrides:
        """Return the settings that a trial changes in `base`.

        Args:
            params: suggestions by name. A suggestion that is unused with the other values changes
                nothing, such as the sharpness of a softmax that was not selected.
            base: the config that trials vary; it provides sizes that the space does not name.

        Raises:
            ConfigError: a suggestion is missing or not in the space.
        """
        mismatched = sorted(set(self.ranges) ^ set(params))
        if mismatched:
            name = mismatched[0]
            problem = "is missing" if name in self.ranges else "is not in the search space"
            raise ConfigError(
                f"A trial's parameter `{name}` {problem}: the trial belongs to another space."
            )
        values = {}
        for name, searched in self.ranges.items():
            try:
                values[name] = searched.to_value(params[name])
            except ValueError as error:
                raise ConfigError(f"A trial's parameter `{name}`: {error}.") from None
        values = self._without_unused(values, base)
        notes = _fit_sizes(values, base)
        return Overrides(values, notes)

    def _without_unused(self, values: dict[str, Any], base: RunConfig) -> dict[str, Any]:
        """Return the values without those that are unused with this trial's other values."""

        def of_trial(path: str) -> Sequence[Any]:
            return (values[path],) if path in values else _base_values(path, base)

        known = searchable_settings(base)
        return {
            name: value
            for name, value in values.items()
            if name not in known or known[name].find_unmet_condition(of_trial) is None
        }

    def importances(self, trials: Sequence[tuple[Mapping[str, Any], float]]) -> dict[str, float]:
        """Return the hyperparameter importances, which sum to 1, largest first.

        Optuna's PED-ANOVA (Watanabe et al. 2023): the difference between the distribution of a
        setting among the better trials and among all trials. Empty with too few or equal trials.

        Args:
            trials: params by searched name, and score. Pruned trials count with their last score,
                so that causes of bad trials are visible.
        """
        finite = [(params, score) for params, score in trials if math.isfinite(score)]
        if len(finite) < _MIN_TRIALS_FOR_IMPORTANCE or len({score for _, score in finite}) < 2:
            return {}
        study = optuna.create_study(direction="maximize")
        for params, score in finite:
            study.add_trial(
                optuna.create_trial(
                    params=dict(params), distributions=self.distributions, value=score
                )
            )
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
        return {name: float(share) for name, share in shares.items()}

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values from which `from_mapping` restores the space."""
        return {name: searched.to_mapping() for name, searched in self.ranges.items()}


def _fit_sizes(values: dict[str, Any], base: RunConfig) -> tuple[str, ...]:
    """Adjust the sizes of a trial to each other, in place, by the rules of its agent.

    Returns:
        Sentences on rounded values.

    Raises:
        ConfigError: the number of environments is not fixed.
    """
    sizes = {name: values[AGENT + name] for name in base.agent.FITTED if AGENT + name in values}
    if not sizes and NUM_ENVS not in values:
        return ()
    num_envs = values.get(NUM_ENVS, base.training.num_envs)
    if not isinstance(num_envs, int):
        raise ConfigError(
            "A study that searches sizes requires a fixed number of environments per member. Set "
            f"`{NUM_ENVS}` (or --num-envs) to a number, such as 12."
        )
    searched = set(sizes)
    notes = base.agent.fit(sizes, num_envs)
    for name in searched - set(sizes):
        del values[AGENT + name]
    values.update({AGENT + name: value for name, value in sizes.items()})
    return notes


def _parse_ranges(
    values: str | Mapping[str, Any] | None, base: RunConfig, inside: tuple[str, ...]
) -> dict[str, Range]:
    """Return ranges by name; `inside` lists the files being read, outermost first."""
    if values is None or values == DEFAULT:
        return {
            setting.path: _parse_range(setting.path, setting.default_range, base)
            for setting in searchable_settings(base).values()
            if setting.is_default
            and setting.find_unmet_condition(lambda path: _base_values(path, base)) is None
        }
    if isinstance(values, str):
        if values in inside:
            raise ConfigError(f"The search space {values} extends itself. Remove that line.")
        inside = (*inside, values)
        values = _read_space(values)
    if not isinstance(values, Mapping):
        raise ConfigError(
            "`study.space` must be a name, a .yaml file, or a mapping from dotted paths to ranges, "
            f"such as agent.learning_rate: {{low: 1e-4, high: 3e-3, log: true}} (got {values!r})."
        )
    ranges = _parse_ranges(str(values[_EXTENDS]), base, inside) if _EXTENDS in values else {}
    for name, value in values.items():
        if name == _EXTENDS:
            continue
        if value is None:
            if name not in ranges:
                raise ConfigError(
                    f"The search space removes `{name}`, which it does not contain. Give a range, "
                    "or the word default."
                )
            del ranges[name]
        else:
            ranges[name] = _parse_range(str(name), value, base)
    return ranges


def _parse_range(path: str, value: Any, base: RunConfig) -> Range:
    setting = find_setting(path, base)
    where = f"study.space.{path}"
    if value == DEFAULT:
        value = setting.default_range
        if value is None:
            raise ConfigError(
                f"`{where}`: the setting has no default range. Give {{low: ..., high: ...}} or "
                "{choices: [...]}."
            )
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"`{where}` must be a range: {{low: ..., high: ...}}, {{choices: [...]}} or the word "
            f"default (got {value!r})."
        )
    parsed = validate(Range, value, where)
    if parsed.choices is None and not setting.is_numeric:
        raise ConfigError(f"`{where}` is not a number: list its values as {{choices: [...]}}.")
    if setting.annotation is not Any:
        try:
            parsed = parsed.with_type(setting.is_integer)
        except ValueError as error:
            raise ConfigError(f"`{where}`: {error}.") from None
    for extreme in parsed.bounds:
        refusal = setting.validation_error(extreme)
        if refusal:
            raise ConfigError(
                f"`{where}` contains {extreme!r}, which is not valid for `{path}`: {refusal}."
            )
    return parsed


def _base_values(path: str, base: RunConfig) -> Sequence[Any]:
    """Return the value of a dotted path in the config, as a sequence of one."""
    return (get_by_path(base.as_mapping(), path),)


def _read_space(name: str) -> Any:
    """Read the mapping of a published space or of a user's file."""
    if name.endswith(CONFIGS):
        text = read_text(Path(name).expanduser(), "The search space")
        parse = yaml_file.parse_json if name.endswith(".json") else yaml_file.parse
        return parse(text, name)
    if name not in published_spaces():
        advice = did_you_mean(name, [DEFAULT, *published_spaces()])
        raise ConfigError(
            f"There is no search space `{name}`; {advice} Name your own file by its path, ending "
            "in .yaml."
        )
    return {key: value for key, value in read_published_space(name).items() if key != SETTINGS}


@dataclass(frozen=True)
class SearchableSetting:
    """A config key that may be searched.

    Attributes:
        path: dotted path.
        annotation: its type, with limits.
        default_range: declared range, as a mapping; None without one.
        is_default: part of the default space.
        when: other fields of its section and their values with which the setting is used.
    """

    path: str
    annotation: Any
    default_range: Mapping[str, Any] | None = None
    is_default: bool = False
    when: Mapping[str, Any] = field(default_factory=dict)

    def find_unmet_condition(
        self, possible: Callable[[str], Sequence[Any]]
    ) -> tuple[str, Sequence[Any]] | None:
        """Return the condition that leaves the setting unused, and the actual values; or None.

        Args:
            possible: returns the possible values of another key.
        """
        section = self.path.partition(".")[0]
        for key, required in self.when.items():
            accepted = required if isinstance(required, (list, tuple)) else [required]
            actual = possible(f"{section}.{key}")
            if not any(value in accepted for value in actual):
                return f"{section}.{key}: {' or '.join(map(str, accepted))}", actual
        return None

    @property
    def is_integer(self) -> bool:
        """True if the setting takes integers only."""
        kinds = set(_plain_types(self.annotation))
        return int in kinds and float not in kinds

    @property
    def is_numeric(self) -> bool:
        """True if the setting takes numbers, so that a range from low to high is valid."""
        return bool({int, float, Any} & set(_plain_types(self.annotation)))

    def validation_error(self, value: Any) -> str | None:
        """Return why a value is invalid; None if it is valid."""
        try:
            reject_bool(self.annotation, value)
        except ValueError as error:
            return str(error)
        try:
            TypeAdapter(self.annotation).validate_python(value)
        except ValidationError as error:
            wrong = error.errors()
            # A union also reports that a number is not a list of numbers, one per member.
            wrong = [e for e in wrong if "tuple[" not in str(e["loc"])] or wrong
            return ", or ".join(
                dict.fromkeys(str(e["msg"]).removeprefix("Value error, ") for e in wrong)
            )
        return None


def searchable_settings(base: RunConfig) -> dict[str, SearchableSetting]:
    """Return all settings that may be searched from this config, by dotted path."""
    settings = dict(_section_settings("agent", type(base.agent), ()))
    for name in set(base.agent.FITTED) - set(type(base.agent).model_fields):
        settings[AGENT + name] = SearchableSetting(AGENT + name, Count)
    for name in _TRAINING:
        info = TrainingConfig.model_fields[name]
        settings[f"training.{name}"] = SearchableSetting(
            f"training.{name}", _field_annotation(info)
        )
    model = get_kind(base.env_name).model
    return settings | _section_settings("env", model, model.FIXED_KEYS)


def find_setting(path: str, base: RunConfig) -> SearchableSetting:
    """Return the setting at a dotted path.

    Raises:
        ConfigError: the setting is unknown or cannot be searched; with the nearest valid name.
    """
    known = searchable_settings(base)
    if path in known:
        return known[path]
    kind = get_kind(base.env_name)
    if kind.open_section is not None and path.startswith(f"env.{kind.open_section}."):
        return SearchableSetting(path, Any)
    head, _, rest = path.partition(".")
    if head == "env" and rest.split(".")[0] == "training_wrappers":
        raise ConfigError(
            f"`{path}` names code, which trials do not record. Set it in the config, for the whole "
            "study."
        )
    if head == "env" and rest.split(".")[0] in kind.model.FIXED_KEYS:
        raise ConfigError(
            f"`{path}` defines the task: a study that varies it would choose the easiest task. Set "
            "it in the config, for the whole study."
        )
    if head == "evaluation" or (head == "training" and rest in TrainingConfig.model_fields):
        raise ConfigError(
            f"`{path}` cannot be searched: it determines where and how a member is trained or "
            f"scored, not what it learns. Of these sections only {' and '.join(_TRAINING)} of "
            "`training` can be searched."
        )
    guess = closest_match(path, known) or closest_match(
        rest, [name.partition(".")[2] for name in known]
    )
    if guess and guess not in known:
        guess = next(name for name in known if name.partition(".")[2] == guess)
    advice = did_you_mean(guess or path, sorted(known))
    raise ConfigError(
        f"The search space names `{path}`, which is not a setting of {base.env_name} with the "
        f"agent {base.agent_name}; {advice}"
    )


def _section_settings(
    where: str, model: type[BaseModel], fixed_keys: tuple[str, ...]
) -> dict[str, SearchableSetting]:
    settings: dict[str, SearchableSetting] = {}
    for name, info in model.model_fields.items():
        path = f"{where}.{name}"
        if name in fixed_keys:
            continue
        inner = find_model(info.annotation)
        if inner is not None:
            below = _section_settings(path, inner, ())
            when = _search_metadata(info).get("when", {})
            settings |= {
                name: replace(inner_setting, when={**when, **inner_setting.when})
                for name, inner_setting in below.items()
            }
            continue
        search = _search_metadata(info)
        suggested = search.get("range") or None  # the metadata may contain only `when`
        settings[path] = SearchableSetting(
            path,
            _field_annotation(info),
            suggested,
            suggested is not None and search.get("by_default", False),
            search.get("when", {}),
        )
    return settings


def _search_metadata(info: FieldInfo) -> dict[str, Any]:
    """Return the search metadata that `core.config` declares with a default."""
    extra = info.json_schema_extra
    metadata: Any = extra.get("search", {}) if isinstance(extra, dict) else {}
    return dict(metadata)


def _field_annotation(info: FieldInfo) -> Any:
    if not info.metadata:
        return info.annotation
    return Annotated[info.annotation, *info.metadata]


def _plain_types(annotation: Any) -> list[Any]:
    """Return the plain types of an annotation: all members of a union, the origin of a tuple."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _plain_types(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(annotation) for kind in _plain_types(part)]
    return [origin or annotation]


"""The key of a file that holds settings by dotted path; all other keys are ranges."""
