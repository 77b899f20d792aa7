"""Registry of folders that this user's commands created, in the user's state folder.

There is one small file per entry in `folders/` of the state folder, named by the `id` in the
folder's provenance, and written atomically. Concurrent processes and kills are safe, and a moved
folder is still recognised by its id. No result depends on the registry.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from slipstream.core.errors import CheckpointError, ResourceError
from slipstream.core.safe_io import check_private, path_exists, read_json
from slipstream.core.storage.atomic_io import make_folder, remove_partials, to_jsonable, write_json
from slipstream.core.storage.status_file import KINDS

PROVENANCE = "provenance.json"
_MOST = 10_000  # entries; a tenth is removed beyond this
_SHAPE = {
    **dict.fromkeys(("id", "kind", "name", "path"), str),
    "began": (int, float),
    "references": [str],
    "files": {},
}
_SAID = set[str]()  # write errors already reported by this process


@dataclass(frozen=True)
class RegistryEntry:
    """A folder that a command of this user created.

    Attributes:
        id: as in the folder's provenance.
        kind: one of `KINDS`.
        name: of the environment.
        path: last known location of the folder.
        began: UTC seconds.
        references: code named by its config, see `training/settings/trust.py`.
        files: sha256 of the source files that the command ran, by absolute path.
    """

    id: str
    kind: str
    name: str
    path: str
    began: float
    references: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_present(self) -> bool:
        """Return true if its folder is at its path."""
        return read_id(Path(self.path)) == self.id


def state_folder(name: str = "") -> Path:
    """Return `$XDG_STATE_HOME/slipstream`, else `~/.local/state/slipstream`, or a folder in it.

    For data that must survive clearing the cache; created with mode 0700.

    Raises:
        ResourceError: it cannot be created, or others may write it.
    """
    base = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state")
    if not base.is_absolute():  # ignored, as in the XDG specification
        base = Path("~/.local/state")
    try:
        folder = base.expanduser() / "slipstream"
    except RuntimeError as error:  # a user without a home
        raise ResourceError(
            "There is no home folder to keep a register in: set XDG_STATE_HOME to a folder."
        ) from error
    try:
        make_folder(folder, private=True)
        make_folder(folder / name, private=True)
    except ResourceError as error:
        raise ResourceError(f"{error} {_VARIABLE} names another one.") from error
    check_private(folder, "state folder", "slipstream goes by what is kept there", _VARIABLE)
    return folder / name


def register_folder(
    folder: Path,
    kind: str,
    name: str,
    log: Callable[[str], None],
    references: tuple[str, ...] = (),
    files: Mapping[str, str] | None = None,
) -> None:
    """Register a folder created by a command of this user; its provenance has an `id`.

    A failed write is reported, once per process.
    """
    number = read_id(folder)
    assert number is not None
    entry = RegistryEntry(number, kind, name, str(folder), time.time(), references, files or {})
    try:
        place = state_folder(_FOLDERS)
        _write(place, entry)
        _prune(place)
    except ResourceError as error:
        if _FOLDERS not in _SAID:
            _SAID.add(_FOLDERS)
            log(
                f"{error} The work continues, but `slipstream jobs` does not list this folder, and "
                "its user code needs --trust again."
            )


def find_entry(number: str, at: Path) -> RegistryEntry | None:
    """Return the entry of an id that was read at a folder; None if it is not registered.

    If the folder was moved, its new location is stored.
    """
    try:
        entry = _read(state_folder(_FOLDERS) / f"{number}.json") if number.isalnum() else None
    except ResourceError:
        return None
    if entry is not None and entry.path != str(at) and not entry.is_present:
        entry = replace(entry, path=str(at))
        with suppress(ResourceError):
            _write(state_folder(_FOLDERS), entry)
    return entry


def list_entries() -> list[RegistryEntry]:
    """Return all entries, newest first; damaged ones are omitted.

    Raises:
        ResourceError: see `state_folder`.
    """
    candidates = map(_read, state_folder(_FOLDERS).glob("*.json"))
    ours = [entry for entry in candidates if entry is not None and entry.kind in KINDS]
    return sorted(ours, key=lambda entry: entry.began, reverse=True)


def entries_named(name: str) -> list[RegistryEntry]:
    """Return entries whose folder has that name; empty if there is no registry."""
    try:
        return [entry for entry in list_entries() if Path(entry.path).name == name]
    except ResourceError:
        return []


def find_folder(name: str | os.PathLike[str], *kinds: str) -> Path | None:
    """Return the registered folder of that name; None if there is none.

    Args:
        name: a folder's name; a path with several parts is not a name.
        kinds: kinds of folders to search; all by default.

    Raises:
        CheckpointError: several folders have that name.
    """
    entries = [
        entry
        for entry in entries_named(os.fspath(name))
        if entry.is_present and entry.kind in (kinds or KINDS)
    ]
    if len(entries) > 1:
        paths = " and ".join(entry.path for entry in entries)
        raise CheckpointError(f"{len(entries)} are called {name}: give its path, of {paths}.")
    return Path(entries[0].path) if entries else None


def read_id(folder: Path) -> str | None:
    """Return the `id` in a folder's provenance; None if there is none."""
    with suppress(ResourceError):
        run_id = (read_json(folder / PROVENANCE, ResourceError, "") or {}).get("id")
        return run_id if isinstance(run_id, str) else None
    return None


def _read(path: Path) -> RegistryEntry | None:
    try:
        values = read_json(path, ResourceError, "", _SHAPE)
    except ResourceError:
        return None
    if values is None or f"{values['id']}.json" != path.name:
        return None
    known = {name: values[name] for name in _SHAPE}  # a later version may write more
    return RegistryEntry(**{**known, "references": tuple(values["references"])})


def _write(place: Path, entry: RegistryEntry) -> None:
    write_json(place / f"{entry.id}.json", to_jsonable(asdict(entry)))


def _prune(place: Path) -> None:
    """Remove the oldest entries beyond the limit, first those without a folder."""
    remove_partials(place)
    files = list(place.glob("*.json"))
    if len(files) <= _MOST:
        return
    entries = {path: _read(path) for path in files}

    def worth(path: Path) -> tuple[bool, float]:
        entry: Any = entries[path]
        return (False, 0.0) if entry is None else (path_exists(Path(entry.path)), entry.began)

    for path in sorted(files, key=worth)[: len(files) - _MOST + _MOST // 10]:
        path.unlink(missing_ok=True)


_FOLDERS, _VARIABLE = "folders", "XDG_STATE_HOME"
