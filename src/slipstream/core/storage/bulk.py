"""The bulk of a state: chunks that checkpoints share, written by the process that holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from slipstream.core.errors import CheckpointError
from slipstream.core.storage.files import make_folder, write_bytes

_SUFFIX, _KEY = ".chunk", "chunk"


def write_chunks(
    folder: Path,
    member: int,
    chunks: Mapping[str, Callable[[], NDArray[Any]]],
    known: MutableMapping[str, str],
) -> dict[str, str]:
    """Writes a member's chunks that are not there yet; sha256 of each file by its path in `folder`.

    Args:
        folder: of the bulk; member: whose.
        chunks: what makes each one, by name; called for those without a file.
        known: hashes of files that this process has written or read; added to.

    Raises:
        ResourceError: the disk is full.
    """
    own = folder / f"member-{member:03d}"
    written = {}
    make_folder(own)
    for name, make in chunks.items():
        path = own / f"{name}{_SUFFIX}"
        file = str(path.relative_to(folder))
        if not path.is_file():
            content = safetensors.numpy.save({_KEY: np.ascontiguousarray(make())})
            write_bytes(path, content)
            known[file] = hashlib.sha256(content).hexdigest()
        elif file not in known:
            known[file] = hashlib.sha256(path.read_bytes()).hexdigest()
        written[file] = known[file]
    return written


def read_chunks(
    folder: Path, member: int, files: Mapping[str, str]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """A member's chunks, one at a time.

    Raises:
        CheckpointError: a file is missing, or not as it was written.
    """
    for file, digest in files.items():
        path = folder / file
        if path.parent.name != f"member-{member:03d}":
            continue
        content = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(content).hexdigest() != digest:
            raise CheckpointError(
                f"{path}, a part of the checkpoint's state, is missing or not the file that was "
                "written. Restore it from a backup, or train again into another directory (--out)."
            )
        yield path.name.removesuffix(_SUFFIX), safetensors.numpy.load(content)[_KEY]


def drop_chunks(folder: Path, used: set[str]) -> None:
    """Deletes what no checkpoint names any more."""
    for path in folder.glob(f"*/*{_SUFFIX}"):
        if str(path.relative_to(folder)) not in used:
            path.unlink(missing_ok=True)


class HandedChunks:
    """Chunks that other machines hold, in files as soon as they are handed over.

    Args:
        folder: of the bulk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, str] = {}
        # Of checkpoints: what else lies there goes with the next one.
        self._kept = {str(path.relative_to(folder)) for path in folder.glob(f"*/*{_SUFFIX}")}

    def take(self, chunks: Mapping[str, Mapping[str, NDArray[Any] | None]]) -> dict[str, str]:
        """Writes what came, by member and name; sha256 of its files and of those that are named.

        Args:
            chunks: None stands for one that was handed over before.

        Raises:
            ResourceError: the disk is full.
            CheckpointError: somebody deleted a file.
        """
        files: dict[str, str] = {}
        for member, own in chunks.items():
            made = {name: partial(_content, content, name) for name, content in own.items()}
            if made:
                files |= write_chunks(self._folder, int(member), made, self._known)
        return files

    def keep(self, files: Mapping[str, str]) -> dict[str, str]:
        """They belong to a checkpoint from now on."""
        self._kept |= files.keys()
        return dict(files)

    def drop(self, files: Iterable[str]) -> None:
        """Deletes those that belong to no checkpoint."""
        for file in {*files} - self._kept:
            (self._folder / file).unlink(missing_ok=True)
            self._known.pop(file, None)

    def read(self, member: int, files: Mapping[str, str]) -> dict[str, NDArray[Any]]:
        """A member's chunks by name; see `read_chunks`."""
        return dict(read_chunks(self._folder, member, files))


def _content(content: NDArray[Any] | None, name: str) -> NDArray[Any]:
    if content is None:
        raise CheckpointError(
            f"The file of the chunk {name} was deleted while a run needed it: go on from the last "
            "checkpoint with `slipstream resume`."
        )
    return content
