"""study.yaml: the sections of a run and the `study` section, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.core.config import validate
from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.studies.config import StudyConfig
from slipstream.training.record import yaml_file
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.stored_config import read_known, refuse_settings
from slipstream.training.settings.target import read_config

if TYPE_CHECKING:  # Optuna, which whoever only looks at a study need not load
    from slipstream.studies.space.space import SearchSpace

STUDY = "study"


def _built(values: Mapping[str, Any]) -> tuple[RunConfig, StudyConfig]:
    study = validate(StudyConfig, study_section(values), STUDY)
    return RunConfig.from_mapping({k: v for k, v in values.items() if k != STUDY}), study


def study_section(values: Mapping[str, Any]) -> dict[str, Any]:
    """The plain `study` section of a target's values.

    Raises:
        ConfigError: it is no section.
    """
    section = values.get(STUDY)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"`study` must be a section with keys below it (got {section!r}).")
    return {str(key): value for key, value in section.items()}


def write_study(base: RunConfig, study: StudyConfig, space: SearchSpace) -> str:
    """The resolved file: `read_study` gives the same back."""
    section = {**study.model_dump(mode="json"), "space": space.to_mapping()}
    return yaml_file.dump({**base.as_mapping(), STUDY: section})


def read_study(path: Path, goes_on: bool = False) -> tuple[RunConfig, StudyConfig]:
    """Base config and `study` section of a study.yaml.

    Args:
        path: of the file.
        goes_on: refuses settings of another version, which are passed over otherwise.

    Raises:
        CheckpointError: it was damaged or edited to something that is no study.
        VersionError: see `goes_on`.
    """
    try:
        found, gone = read_known(read_config(path), _built)
        if goes_on:
            name = path.parent.name
            again = f"slipstream tune {path} --study-name NEW_NAME"
            refuse_settings(f"The study {name}", gone, [], f"slipstream study report {name}", again)
        return found
    except ConfigError as error:
        raise CheckpointError(
            f"{path} cannot be used: {error} The study's trials are intact in ledger.db: mend the "
            "file, restore it from a backup, or run the `slipstream tune` command that began the "
            f"study again with --study-name {path.parent.name}, which writes it anew and goes on."
        ) from None
