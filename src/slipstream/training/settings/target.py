"""What a user points at, as the plain sections of a config: before any key is checked."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from slipstream.core.config import put
from slipstream.core.errors import ConfigError
from slipstream.core.field_names import setting_of_agent
from slipstream.core.plugins import offered
from slipstream.core.reader import is_there, read_text
from slipstream.core.storage import yaml_file
from slipstream.core.text import did_you_mean
from slipstream.kernels.discover import load_kernel
from slipstream.training.environments.factory import kind_of

SECTIONS = ("env", "agent", "training", "evaluation", "curriculum")
CONFIGS = (".yaml", ".yml", ".json")
STUDY = "study"  # a sixth section, which `slipstream tune` reads and a run passes over
CRYPTO = "crypto"  # what Cappuccino's command calls a portfolio of coins

Overrides: TypeAlias = Mapping[str, Any] | Sequence[str]
"""Dotted path -> value, or ``a.b=c`` strings whose right side is YAML."""


def read_target(target: str) -> dict[str, Any]:
    """The sections that a YAML file, a name, a ``.py`` file or ``gym:ID`` stands for."""
    if target.endswith(CONFIGS):
        return read_config(Path(target))
    if target == CRYPTO:
        return {"env": {"name": "portfolio"}}
    if kind_of(target).known:
        return {"env": {"name": target}}
    if is_there(Path(target)):
        raise ConfigError(
            f"{target} is not something to train: give a .yaml file, a kernel's .py file, the "
            "name of an environment (`slipstream list`), or gym:ID."
        )
    load_kernel(target)  # says what would work
    return {"env": {"name": target}}


def read_config(path: Path) -> dict[str, Any]:
    """The sections in a YAML or JSON file."""
    return read_sections(parsed(path))


def read_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of our sections that may be changed; another project's are translated into them."""
    foreign = _format_of(values)
    if foreign is None:
        return copied(values)
    sections: dict[str, Any] = foreign.sections_of(values)
    return sections


def _format_of(values: Mapping[str, Any]) -> ModuleType | None:
    """The module that reads the sections of another project; None where they are ours."""
    names = (name for names in offered("formats") for name in names)
    return next((m for m in map(importlib.import_module, names) if m.recognises(values)), None)


def parsed(path: Path) -> dict[str, Any]:
    """What the file says, in its own words."""
    text = read_text(path, "The config file")
    parse = yaml_file.parse_json if path.suffix == ".json" else yaml_file.parse
    values = parse(text, str(path))
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} must hold the sections {', '.join(SECTIONS)}, each with keys below it; "
            "`slipstream init cartpole` prints one to start from."
        )
    return values


def passed_over(target: object) -> str | None:
    """A sentence for whoever trains a file that also describes a study, or that asks for what is
    done otherwise; None for others."""
    if isinstance(target, (str, Path)) and str(target).endswith(CONFIGS):
        target = parsed(Path(target))
    if not isinstance(target, Mapping):
        return None
    foreign = _format_of(target)
    if foreign is not None:
        reader = foreign.__name__.removesuffix(".config")
        return f"`{reader}` reads this config. {foreign.otherwise(target) or ''}".strip()
    if STUDY in target:
        return "The section `study` is read by `slipstream tune`; a run passes over it."
    return None


def parse_overrides(overrides: Overrides) -> dict[str, Any]:
    """``["agent.epochs=2"]`` -> ``{"agent.epochs": 2}``; a mapping is taken as it is."""
    if isinstance(overrides, Mapping):
        return dict(overrides)
    parsed: dict[str, Any] = {}
    for one in overrides:
        path, equals, text = one.partition("=")
        if not equals or not all(part.strip() for part in path.split(".")):
            raise ConfigError(
                f"--set {one}: write it as section.key=value, such as agent.epochs=2."
            )
        if path.strip() in parsed:
            raise ConfigError(f"{path.strip()} is set twice; leave one of the two out.")
        parsed[path.strip()] = yaml_file.parse(text, f"--set {one}")
    return parsed


def override(values: dict[str, Any], path: str, value: Any) -> None:
    """Sets the dotted `path` in nested sections, making those that are missing."""
    first, dot, _ = path.partition(".")
    if not dot and first not in SECTIONS:
        raise ConfigError(unknown_section(first))
    if dot and isinstance(values.get(first), str):
        values[first] = {"name": values[first]}  # `env: cartpole` is short for its name
    put(values, path, value)


def copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of nested mappings that may be changed."""
    return {
        str(key): copied(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }


def unknown_section(name: str) -> str:
    """Says which section was meant."""
    if (setting := setting_of_agent(name)) is not None:
        return f"`{name}` is not a known section; did you mean `{setting}`?"
    return f"`{name}` is not a known section; {did_you_mean(name, SECTIONS)}"
