"""SearchSpace: what a study searches, by dotted path, and how a suggestion becomes a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution

from slipstream.core.config import validate
from slipstream.core.errors import ConfigError
from slipstream.core.reader import read_text
from slipstream.core.text import did_you_mean
from slipstream.files import json_file, yaml_file
from slipstream.settings.config import RunConfig, resolve
from slipstream.settings.target import CONFIGS
from slipstream.studies.space.range import Range
from slipstream.studies.space.settings import AGENT, NUM_ENVS, Setting, setting, settings

DEFAULT = "default"
_EXTENDS = "extends"
_DRAWS = 32  # random combinations: all must give valid configs, and they tell what a trial costs


class Overrides(NamedTuple):
    """A trial's settings: for `training.config.resolve`, and what was rounded to get there."""

    values: dict[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class SearchSpace:
    """Ranges by dotted path, in alphabetic order: how a file orders them changes no result."""

    ranges: Mapping[str, Range]

    @classmethod
    def from_mapping(cls, values: str | Mapping[str, Any] | None, base: RunConfig) -> SearchSpace:
        """The space that a user wrote under `study.space`.

        Args:
            values: ``default``, a published space's name, the path of a .yaml file, or a mapping
                from dotted paths to ranges. In a mapping, the range ``default`` is the one beside
                the field's default value, null takes the name out, and the key ``extends`` names
                the space that the others are added to.
            base: the config that trials vary.

        Raises:
            ConfigError: a name that nothing reads, a range beyond the field's own limits, or
                combinations that no config allows.
        """
        space = cls(dict(sorted(_ranges(values, base, ()).items())))
        space._check(base)
        return space

    @classmethod
    def defaults(cls, base: RunConfig) -> SearchSpace:
        """The ranges that stand beside the defaults of the sections in use."""
        return cls.from_mapping(DEFAULT, base)

    def _check(self, base: RunConfig) -> None:
        if not self.ranges:
            raise ConfigError(
                "The search space is empty: name at least one setting, such as "
                "agent.learning_rate, or write `space: default`."
            )
        for path in self.ranges:
            self._check_read(setting(path, base), base)
        for values in self.draws(base):
            try:
                resolve(base, values)
            except ConfigError as error:
                tried = ", ".join(f"{name} {value}" for name, value in values.items())
                raise ConfigError(
                    f"The search space holds combinations that no config allows, such as {tried}: "
                    f"{error} Narrow a range, or set the other key in the config."
                ) from None

    def _check_read(self, one: Setting, base: RunConfig) -> None:
        """Refuses a setting that is read only with another setting's other value."""

        def possible(path: str) -> Sequence[Any]:
            return self.ranges[path].extremes if path in self.ranges else _values(path, base)

        unread = one.unread(possible)
        if unread is not None:
            needed, here = unread
            raise ConfigError(
                f"The search space names `{one.path}`, which is read only with `{needed}`; it is "
                f"{here[0]}. Set that in the config, or take `{one.path}` out of the space."
            )

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """What Optuna samples from, by dotted path."""
        return {name: one.distribution for name, one in self.ranges.items()}

    def ask(self, study: optuna.Study) -> optuna.Trial:
        """A new trial of `study` with a suggestion for every name: its `params`."""
        return study.ask(fixed_distributions=self.distributions)

    def draws(self, base: RunConfig) -> Sequence[Mapping[str, Any]]:
        """What random trials change in `base`, always the same ones."""
        sampler = optuna.samplers.RandomSampler(seed=0)
        found = []
        for _ in range(_DRAWS):
            params = {
                name: sampler.sample_independent(None, None, name, distribution)  # type: ignore[arg-type]
                for name, distribution in self.distributions.items()
            }
            found.append(self.overrides(params, base).values)
        return found

    def overrides(self, params: Mapping[str, Any], base: RunConfig) -> Overrides:
        """What a trial changes in `base`.

        Args:
            params: suggestions by name, as Optuna keeps them; those that nothing reads beside the
                others, such as the sharpness of a softmax that was not chosen, change nothing.
            base: the config that trials vary; it settles sizes that the space does not name.

        Raises:
            ConfigError: a suggestion is missing or not in the space.
        """
        odd = sorted(set(self.ranges) ^ set(params))
        if odd:
            known = "is missing" if odd[0] in self.ranges else "is not in the search space"
            raise ConfigError(f"A trial's parameter `{odd[0]}` {known}: it is of another space.")
        values = {}
        for name, one in self.ranges.items():
            try:
                values[name] = one.value(params[name])
            except ValueError as error:
                raise ConfigError(f"A trial's parameter `{name}`: {error}.") from None
        values = self._without_unread(values, base)
        notes = _fit_sizes(values, base)
        return Overrides(values, notes)

    def _without_unread(self, values: dict[str, Any], base: RunConfig) -> dict[str, Any]:
        """Leaves out what nothing reads beside this trial's own values, as configs refuse it."""

        def of_trial(path: str) -> Sequence[Any]:
            return (values[path],) if path in values else _values(path, base)

        known = settings(base)
        return {
            name: value
            for name, value in values.items()
            if name not in known or known[name].unread(of_trial) is None
        }

    def difference(self, other: SearchSpace) -> str:
        """What `other` has differently, in words; empty if nothing."""
        lines = []
        for name in sorted({*self.ranges, *other.ranges}):
            ours, theirs = self.ranges.get(name), other.ranges.get(name)
            if ours == theirs:
                continue
            told = [one.words if one else "not searched" for one in (ours, theirs)]
            lines.append(f"`{name}` is {told[0]} here and {told[1]} there")
        return "; ".join(lines)

    def to_mapping(self) -> dict[str, Any]:
        """Plain values: what `from_mapping` makes the same space from."""
        return {name: one.to_mapping() for name, one in self.ranges.items()}


def _fit_sizes(values: dict[str, Any], base: RunConfig) -> tuple[str, ...]:
    """Makes sizes that a trial suggests agree, in place, as its agent knows how.

    Returns:
        Sentences about what was rounded.

    Raises:
        ConfigError: the number of copies is not settled.
    """
    sizes = {name: values[AGENT + name] for name in base.agent.FITTED if AGENT + name in values}
    if not sizes and NUM_ENVS not in values:
        return ()
    num_envs = values.get(NUM_ENVS, base.training.num_envs)
    if not isinstance(num_envs, int):
        raise ConfigError(
            "A study that searches sizes needs a number of environments per member: set "
            f"`{NUM_ENVS}` (or --num-envs) to a number, such as 12."
        )
    asked = set(sizes)
    notes = base.agent.fit(sizes, num_envs)
    for name in asked - set(sizes):
        del values[AGENT + name]
    values.update({AGENT + name: value for name, value in sizes.items()})
    return notes


def published() -> list[str]:
    """Names of the spaces that come as files."""
    files = resources.files("slipstream.studies.space").iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def _ranges(
    values: str | Mapping[str, Any] | None, base: RunConfig, inside: tuple[str, ...]
) -> dict[str, Range]:
    """Ranges by name; `inside` lists the files being read, outermost first."""
    if values is None or values == DEFAULT:
        return {
            one.path: _range(one.path, one.suggested, base)
            for one in settings(base).values()
            if one.by_default and one.unread(lambda path: _values(path, base)) is None
        }
    if isinstance(values, str):
        if values in inside:
            raise ConfigError(f"The search space {values} extends itself; take that line out.")
        inside = (*inside, values)
        values = _read(values)
    if not isinstance(values, Mapping):
        raise ConfigError(
            "`study.space` must be a name, a .yaml file, or a mapping from dotted paths to ranges, "
            f"such as agent.learning_rate: {{low: 1e-4, high: 3e-3, log: true}} (got {values!r})."
        )
    found = _ranges(str(values[_EXTENDS]), base, inside) if _EXTENDS in values else {}
    for name, value in values.items():
        if name == _EXTENDS:
            continue
        if value is None:
            if name not in found:
                raise ConfigError(
                    f"The search space takes out `{name}`, which it does not hold; give a range, "
                    "or the word default."
                )
            del found[name]
        else:
            found[name] = _range(str(name), value, base)
    return found


def _range(path: str, value: Any, base: RunConfig) -> Range:
    one = setting(path, base)
    where = f"study.space.{path}"
    if value == DEFAULT:
        value = one.suggested
        if value is None:
            raise ConfigError(
                f"`{where}`: no range stands beside its default; give {{low: ..., high: ...}} or "
                "{choices: [...]}."
            )
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"`{where}` must be a range: {{low: ..., high: ...}}, {{choices: [...]}} or the word "
            f"default (got {value!r})."
        )
    found = validate(Range, value, where)
    if found.choices is None and not one.number:
        raise ConfigError(f"`{where}` is not a number: list its values as {{choices: [...]}}.")
    if one.takes is not Any:
        try:
            found = found.fitted(one.whole)
        except ValueError as error:
            raise ConfigError(f"`{where}`: {error}.") from None
    for extreme in found.extremes:
        refusal = one.refusal(extreme)
        if refusal:
            raise ConfigError(
                f"`{where}` reaches {extreme!r}, which `{path}` itself refuses: {refusal}."
            )
    return found


def _values(path: str, base: RunConfig) -> Sequence[Any]:
    """The one value of a dotted path in the config."""
    at: Any = base.as_mapping()
    for part in path.split("."):
        at = at[part]
    return (at,)


def _read(name: str) -> Any:
    """The mapping in a published space's file, or in a user's."""
    if name.endswith(CONFIGS):
        text = read_text(Path(name).expanduser(), "The search space")
        return (json_file if name.endswith(".json") else yaml_file).parse(text, name)
    if name not in published():
        advice = did_you_mean(name, [DEFAULT, *published()])
        raise ConfigError(
            f"There is no search space `{name}`; {advice} A file of your own is named by its path, "
            "ending in .yaml."
        )
    file = resources.files("slipstream.studies.space") / f"{name}.yaml"
    return yaml_file.parse(file.read_text(encoding="utf-8"), f"{name}.yaml")
