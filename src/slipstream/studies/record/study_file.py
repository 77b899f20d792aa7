"""study.yaml: the sections of a run and the `study` section, in one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slipstream.core.config import validate
from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.files import yaml_file
from slipstream.settings.config import RunConfig
from slipstream.settings.target import read_config
from slipstream.settings.trust import check_trust
from slipstream.studies.config import StudyConfig

if TYPE_CHECKING:  # Optuna, which whoever only looks at a study need not load
    from slipstream.studies.space.space import SearchSpace

STUDY = "study"
_Built = TypeVar("_Built")


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


def read_section(path: Path) -> StudyConfig:
    """The `study` section alone of a study.yaml: nothing that the others name is imported."""

    def build(values: dict[str, Any]) -> StudyConfig:
        if STUDY not in values:
            raise ConfigError("It has no section `study`.")
        return validate(StudyConfig, study_section(values), STUDY)

    return _read(path, build)


def read_study(path: Path, trust: bool = False) -> tuple[RunConfig, StudyConfig]:
    """Base config and `study` section of a study.yaml.

    Args:
        path: of the file.
        trust: code that it names may run, see `check_trust`.

    Raises:
        CheckpointError: it was damaged or edited to something that is no study.
        TrustError: code of somebody else's would run.
    """

    def build(values: dict[str, Any]) -> tuple[RunConfig, StudyConfig]:
        check_trust(path.parent, values, trust)
        return _built(values)

    return _read(path, build)


def _read(path: Path, build: Callable[[dict[str, Any]], _Built]) -> _Built:
    try:
        return build(read_config(path))
    except ConfigError as error:
        raise CheckpointError(
            f"{path} cannot be used: {error} The study's trials are intact in ledger.db: mend the "
            "file, restore it from a backup, or run the `slipstream tune` command that began the "
            f"study again with --study-name {path.parent.name}, which writes it anew and goes on."
        ) from None
