"""study.yaml: the sections of a run and the `study` section; two starts must agree about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slipstream.core.config import validate
from slipstream.core.errors import CheckpointError, ConfigError, DataError, VersionError
from slipstream.files import yaml_file
from slipstream.settings.config import RunConfig
from slipstream.settings.target import read_config
from slipstream.settings.trust import check_trust
from slipstream.studies.config import StudyConfig

if TYPE_CHECKING:  # Optuna, which whoever only looks at a study need not load
    from slipstream.studies.space.space import SearchSpace

STUDY = "study"
_Built = TypeVar("_Built")
OPTUNA = "optuna"  # its version, major and minor: samplers change with it
_PLACE = ("out", "shards", "keep_last", "checkpoint_every", "members", "seed")
_SHOWN = 4
_MISSING = "absent"


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


def identity(base: RunConfig, config: StudyConfig, space: SearchSpace) -> dict[str, Any]:
    """JSON-able facts that decide every trial, apart from the data."""
    sections = base.as_mapping()
    for name in _PLACE:
        del sections["training"][name]
    sections["training"].pop("num_envs") if "training.num_envs" in space.ranges else None
    facts = {"study": config.identity(), "space": space.to_mapping()}
    return {**sections, **facts, OPTUNA: ".".join(metadata.version(OPTUNA).split(".")[:2])}


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs, in words: ```agent.epochs` was 4 and is 8``; empty if nothing does."""
    old, new = flat(before), flat(now)
    changed = [key for key in {**old, **new} if old.get(key, _MISSING) != new.get(key, _MISSING)]
    parts = [
        f"`{key}` was {old.get(key, _MISSING)} and is {new.get(key, _MISSING)}" for key in changed
    ]
    more = f"; and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return "; ".join(parts[:_SHOWN]) + more


def check_same(
    name: str, before: Mapping[str, Any], now: Mapping[str, Any], read: str, again: str
) -> None:
    """Refuses to go on with a study under another config or space.

    Args:
        name: of the study; before, now: its `identity`.
        read: a command that still reads it; again: one that begins anew.

    Raises:
        CheckpointError: nothing says what it began with.
        VersionError: another version of Optuna began it.
        ConfigError: with the difference.
    """
    if not before:
        raise CheckpointError(
            f"provenance.json of the study {name} is missing or says nothing of what it began with "
            "(`identity`), so nothing says that these settings are its own. Its trials are intact "
            "in ledger.db: restore the file from a backup, or begin another study with "
            "--study-name."
        )
    if before.get(OPTUNA) != now[OPTUNA]:
        version = before.get(OPTUNA, "an unknown version")
        raise VersionError(
            f"The study {name} was begun with Optuna {version}, and this is Optuna {now[OPTUNA]}: "
            "another minor version may suggest other trials (5.0 changed TPE). To go on with it, "
            f"install the one that it began with (`pip install 'optuna=={version}.*'`); to begin "
            f"anew, `{again}`. What is there can still be read: `{read}`."
        )
    found = difference(before, now)
    if found:
        raise ConfigError(
            f"There is a study {name} already, begun with other settings: {found}. Give it those "
            "that it began with (its study.yaml has them, unless it was edited) to go on with it, "
            "or name this one otherwise with --study-name."
        )


def check_data(name: str, before: str | None, now: str | None) -> None:
    """Refuses to go on with a study on other prices.

    Raises:
        DataError: with both hashes.
    """
    if before != now:
        raise DataError(
            f"The prices of study {name} changed since it began: their sha256 was {before} and is "
            f"{now}. Put the files back to go on with it; for the new prices begin another study "
            "with --study-name. Nothing was lost."
        )


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted name."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return found
