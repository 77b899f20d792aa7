"""Register: the folders that this user's commands made, in a folder of the user's own.

One small file an entry in `folders/` of the state folder, named by the `id` in the provenance of
what lies there, and written whole or not at all: processes beside each other and kills do no harm,
and a folder that was moved is still known by its id. No result depends on it.
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
from slipstream.core.safe_io import is_there, read_json, refuse_strangers
from slipstream.core.storage.atomic_io import make_folder, plain, sweep, write_json
from slipstream.core.storage.status_file import KINDS

PROVENANCE = "provenance.json"
_MOST = 10_000  # entries; a tenth of them goes when there are more
_SHAPE = {
    **dict.fromkeys(("id", "kind", "name", "path"), str),
    "began": (int, float),
    "references": [str],
    "files": {},
}
_SAID = set[str]()  # what cannot be written is said once a process


@dataclass(frozen=True)
class Registered:
    """A folder that a command of this user made.

    Attributes:
        id: as in the folder's provenance.
        kind: one of `KINDS`.
        name: of the environment.
        path: where the folder was when a command last had it.
        began: UTC seconds.
        references: what its config names as code, see `training/settings/trust.py`.
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
    def present(self) -> bool:
        """Whether its folder, and no other one, lies at its path."""
        return id_of(Path(self.path)) == self.id


def state_folder(name: str = "") -> Path:
    """`$XDG_STATE_HOME/slipstream`, else `~/.local/state/slipstream`, or a folder in it.

    What no cache may lose is kept there: made with mode 0700.

    Raises:
        ResourceError: it cannot be made, or others may write it.
    """
    base = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state")
    if not base.is_absolute():  # as the XDG specification says
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
    refuse_strangers(folder, "state folder", "slipstream goes by what is kept there", _VARIABLE)
    return folder / name


def enter(
    folder: Path,
    kind: str,
    name: str,
    say: Callable[[str], None],
    references: tuple[str, ...] = (),
    files: Mapping[str, str] | None = None,
) -> None:
    """Writes down that a command of this user made a folder, whose provenance has an `id`.

    What cannot be written is said, once a process.
    """
    number = id_of(folder)
    assert number is not None
    entry = Registered(number, kind, name, str(folder), time.time(), references, files or {})
    try:
        place = state_folder(_FOLDERS)
        _write(place, entry)
        _forget(place)
    except ResourceError as error:
        if _FOLDERS not in _SAID:
            _SAID.add(_FOLDERS)
            say(
                f"{error} The work goes on; `slipstream jobs` does not know this folder, and what "
                "it runs of your own files wants --trust again."
            )


def known(number: str, at: Path) -> Registered | None:
    """The entry of an id that was read at a folder; None where this user's commands made none.

    Where the folder was moved, its new place is written down.
    """
    try:
        entry = _read(state_folder(_FOLDERS) / f"{number}.json") if number.isalnum() else None
    except ResourceError:
        return None
    if entry is not None and entry.path != str(at) and not entry.present:
        entry = replace(entry, path=str(at))
        with suppress(ResourceError):
            _write(state_folder(_FOLDERS), entry)
    return entry


def entries() -> list[Registered]:
    """All entries, the newest first; what is damaged is left out.

    Raises:
        ResourceError: see `state_folder`.
    """
    found = map(_read, state_folder(_FOLDERS).glob("*.json"))
    ours = [one for one in found if one is not None and one.kind in KINDS]
    return sorted(ours, key=lambda one: one.began, reverse=True)


def named(name: str) -> list[Registered]:
    """Entries whose folder has that name; none where there is no register."""
    try:
        return [one for one in entries() if Path(one.path).name == name]
    except ResourceError:
        return []


def place_of(name: str | Path, *kinds: str) -> Path | None:
    """Return the folder of that name that a command of this user made; None if there is none.

    Args:
        name: a folder's name; a path with several parts is no name.
        kinds: kinds of folders to look among; all if none is given.

    Raises:
        CheckpointError: several folders have that name.
    """
    made = [one for one in named(str(name)) if one.present and one.kind in (kinds or KINDS)]
    if len(made) > 1:
        paths = " and ".join(one.path for one in made)
        raise CheckpointError(f"{len(made)} are called {name}: give its path, of {paths}.")
    return Path(made[0].path) if made else None


def id_of(folder: Path) -> str | None:
    """The `id` in a folder's provenance; None where there is none."""
    with suppress(ResourceError):
        found = (read_json(folder / PROVENANCE, ResourceError, "") or {}).get("id")
        return found if isinstance(found, str) else None
    return None


def _read(path: Path) -> Registered | None:
    try:
        found = read_json(path, ResourceError, "", _SHAPE)
    except ResourceError:
        return None
    if found is None or f"{found['id']}.json" != path.name:
        return None
    known = {name: found[name] for name in _SHAPE}  # a later version may write more
    return Registered(**{**known, "references": tuple(found["references"])})


def _write(place: Path, entry: Registered) -> None:
    write_json(place / f"{entry.id}.json", plain(asdict(entry)))


def _forget(place: Path) -> None:
    """Takes the oldest entries out where there are too many: first those without a folder."""
    sweep(place)
    files = list(place.glob("*.json"))
    if len(files) <= _MOST:
        return
    found = {path: _read(path) for path in files}

    def worth(path: Path) -> tuple[bool, float]:
        entry: Any = found[path]
        return (False, 0.0) if entry is None else (is_there(Path(entry.path)), entry.began)

    for path in sorted(files, key=worth)[: len(files) - _MOST + _MOST // 10]:
        path.unlink(missing_ok=True)


_FOLDERS, _VARIABLE = "folders", "XDG_STATE_HOME"
