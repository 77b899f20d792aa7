"""What is suggested for Gymnasium environments, where a user leaves it open: one file has it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from slipstream.core.storage import yaml_file
from slipstream.training.environments.environment import Sections

_FILE = "gymnasium.yaml"


def for_gymnasium(env_id: str, agent_name: str) -> Sections:
    """For the sections `agent` and `training`: a default for all, presets for some ids."""
    default = _gymnasium()["default"].get(agent_name, {})
    preset = gymnasium_preset(env_id, agent_name) or {}
    return {
        section: {**default.get(section, {}), **preset.get(section, {})}
        for section in ("agent", "training")
    }


def gymnasium_preset(env_id: str, agent_name: str) -> Sections | None:
    """What replaces the default for this id; None where nothing does."""
    presets: Mapping[str, Mapping[str, Sections]] = _gymnasium()["ids"]
    found = presets.get(env_id.rpartition(":")[2], {})  # `module:ID` imports first
    return found.get(agent_name)


@cache
def _gymnasium() -> dict[str, Any]:
    text = files(__package__).joinpath(_FILE).read_text(encoding="utf-8")
    values: dict[str, Any] = yaml_file.parse(text, _FILE)
    return values
