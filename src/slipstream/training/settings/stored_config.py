"""Settings that another version wrote: read as far as this one knows them, and not gone on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from slipstream.core.errors import UnreadKeyError, VersionError
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.target import copied, read_config
from slipstream.training.settings.trust import check_trust

_Built = TypeVar("_Built")
_SHOWN = 4


def read_known(
    values: Mapping[str, Any], build: Callable[[dict[str, Any]], _Built]
) -> tuple[_Built, list[str]]:
    """What is built of a file's values without those that nobody reads here, and their names."""
    known, gone = copied(values), list[str]()
    while True:
        try:
            return build(known), gone
        except UnreadKeyError as error:
            for path in error.paths:
                if not _removed(known, path):
                    raise
                gone.append(".".join(path))


def read_run_config(path: Path, say: Callable[[str], None], trust: bool) -> RunConfig:
    """The config.yaml of a run; `say` is told which settings of another version it has.

    Raises:
        TrustError: see `check_trust`.
    """
    values = read_config(path)
    check_trust(path.parent, values, trust)
    config, gone = read_known(values, RunConfig.from_mapping)
    if gone:
        say(f"{path} has settings that this version does not read, {named(gone)}: passed over.")
    return config


def check_settings(path: Path, config: RunConfig, read: str, again: str) -> None:
    """Refuses to go on with a run whose file has other settings than this version knows.

    Args:
        path: its config.yaml.
        config: as it was read.
        read: a command that still reads it; again: one that begins anew.

    Raises:
        VersionError: with the settings.
    """
    written, here = flat(read_config(path)), flat(config.as_mapping())
    refuse_settings(
        str(path.parent),
        [name for name in written if name not in here],
        [name for name in here if name not in written],
        read,
        again,
    )


def refuse_settings(what: str, gone: list[str], new: list[str], read: str, again: str) -> None:
    """Raises a VersionError where there are settings that only one of two versions knows."""
    parts = [f"{named(gone)} {'are' if len(gone) > 1 else 'is'} gone"] if gone else []
    parts += [f"{named(new)} {'are' if len(new) > 1 else 'is'} new"] if new else []
    without = f", after taking {named(gone)} out" if gone else ""
    if parts:
        raise VersionError(
            f"{what} was written by another version of slipstream, which had other settings "
            f"({', and '.join(parts)}): it cannot be gone on with here. Use the version that wrote "
            f"it, or begin anew with `{again}`{without}. What is there can still be read: `{read}`."
        )


def named(settings: list[str]) -> str:
    """The first few settings, in words."""
    more = f" and {len(settings) - _SHOWN} more" if len(settings) > _SHOWN else ""
    return ", ".join(f"`{name}`" for name in settings[:_SHOWN]) + more


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted name."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return found


def _removed(values: Any, path: tuple[str, ...]) -> bool:
    """Takes a setting out, in place; False where there is none."""
    *outer, last = path
    for key in outer:
        values = values.get(key) if isinstance(values, dict) else None
    if not isinstance(values, dict) or last not in values:
        return False
    del values[last]
    return True
