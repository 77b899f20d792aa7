"""Search spaces that come as files, and the settings of a config that each of them needs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from slipstream.core.storage import yaml_file

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
