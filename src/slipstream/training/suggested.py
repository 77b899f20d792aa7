"""Settings that an environment suggests, where a user leaves them open."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias

from slipstream.core.discover import load_kernel
from slipstream.training import yaml_file
from slipstream.training.target import GYMNASIUM

if TYPE_CHECKING:
    from slipstream.training.config import RunConfig

Sections: TypeAlias = Mapping[str, Mapping[str, Any]]

_FILE = "gymnasium.yaml"


def suggested_settings(env_name: str, agent_name: str) -> Sections:
    """For the sections `agent` and `training`, where this agent is trained.

    A kernel's file says it in `SETTINGS`; for Gymnasium environments one file has a default for all
    and presets for some ids.
    """
    if not env_name.startswith(GYMNASIUM):
        settings: Mapping[str, Sections] = getattr(load_kernel(env_name).module, "SETTINGS", {})
        return settings.get(agent_name, {})
    default = _gymnasium()["default"].get(agent_name, {})
    preset = gymnasium_preset(env_name, agent_name) or {}
    return {
        section: {**default.get(section, {}), **preset.get(section, {})}
        for section in ("agent", "training")
    }


def gymnasium_preset(env_name: str, agent_name: str) -> Sections | None:
    """What replaces the default for this id; None where nothing does."""
    env_id = env_name.removeprefix(GYMNASIUM).rpartition(":")[2]  # `module:ID` imports first
    presets: Mapping[str, Mapping[str, Sections]] = _gymnasium()["ids"]
    return presets.get(env_id, {}).get(agent_name)


def preset_note(config: RunConfig) -> str | None:
    """A sentence about the preset's settings that are in force; None without any."""
    if not config.env_name.startswith(GYMNASIUM):
        return None
    preset = gymnasium_preset(config.env_name, config.agent_name) or {}
    resolved = config.as_mapping()
    values = [
        f"{section}.{name}={value}"
        for section, fields in preset.items()
        for name, value in fields.items()
        if resolved[section][name] == value
    ]
    if not values:
        return None
    return f"Preset for {config.env_name} (your own settings win): {', '.join(values)}."


@cache
def _gymnasium() -> dict[str, Any]:
    text = files(__package__).joinpath(_FILE).read_text(encoding="utf-8")
    values: dict[str, Any] = yaml_file.parse(text, _FILE)
    return values
