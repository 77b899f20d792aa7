"""Checkpoints: tensors and a manifest in a folder that is whole or not there; no pickle.

The bulk of a state, such as a replay, lies beside them in chunks that checkpoints share, each
written by the process that holds it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from slipstream.core.capacity import free_memory
from slipstream.core.errors import CheckpointError, ResourceError, VersionError
from slipstream.core.safe_io import UnreadableError, misfit, read_json, regular_file
from slipstream.core.storage.atomic_io import (
    make_folder,
    remove,
    sha256,
    whole_folder,
    write_bytes,
    write_sealed,
)

FORMAT = 2
STATE, MANIFEST = "state.safetensors", "manifest.json"
Tensors = dict[str, NDArray[Any]]
_CHUNK_SUFFIX, _CHUNK_KEY = ".chunk", "chunk"


def save(
    folder: Path, tensors: Mapping[str, Any], manifest: Mapping[str, Any], keep: Path | None = None
) -> Path:
    """Writes `tensors` and `manifest` as `folder`, replacing what was there, atomically.

    Args:
        folder: the checkpoint's folder.
        tensors: NumPy arrays; dtypes and bits survive.
        manifest: JSON-able facts; `format`, `files` (hashes) and `sha256` (of the manifest
            itself) are added.
        keep: where the replaced checkpoint stays, in place of the one before it.

    Raises:
        ResourceError: the disk is full; older checkpoints are untouched.
    """
    arrays = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    with whole_folder(folder, keep) as place:
        path = place / STATE
        try:
            safetensors.numpy.save_file(arrays, path)  # twice as fast as writing what `save` gives
        except SafetensorError as error:  # it reports the system's errors as text
            number = re.search(r"os error (\d+)", str(error))
            if number is None:
                raise
            code = int(number[1])
            raise OSError(code, os.strerror(code), str(path)) from error
        files = {STATE: {"sha256": sha256(path), "bytes": path.stat().st_size}}
        write_sealed(
            place / MANIFEST, {**manifest, "format": FORMAT, "files": files}, durable=False
        )
    return folder


def load(folder: Path, shape: Any = None) -> tuple[Tensors, dict[str, Any]]:
    """Tensors and manifest of a checkpoint; `shape` is what the manifest must hold, see `misfit`.

    Raises:
        CheckpointError: missing, truncated, altered, or not written by slipstream.
    """
    manifest = read_manifest(folder)
    problem = misfit(manifest, shape or {})
    if problem is not None:
        raise CheckpointError(f"{folder / MANIFEST} cannot be used: {problem}.")
    path = folder / STATE
    try:
        size, room = regular_file(path).st_size, free_memory()
        if size > room:  # hashing a sparse file of terabytes alone would take hours
            raise ResourceError(
                f"The checkpoint {folder} has {size / 2**30:,.1f} GiB of tensors, and "
                f"{room / 2**30:,.1f} GiB of memory are free: read it on a larger machine."
            )
        if sha256(path) != manifest["files"][STATE]["sha256"]:
            raise CheckpointError(
                f"The checkpoint {folder} is corrupt: {STATE} is not the file that was written "
                "(its hash differs). Use another checkpoint."
            )
        return safetensors.numpy.load_file(path), manifest
    except FileNotFoundError:
        raise CheckpointError(f"The checkpoint {folder} lacks {STATE}; use another one.") from None
    except (UnreadableError, SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"The checkpoint {folder} cannot be read ({type(error).__name__}: {error}). "
            "Use another checkpoint."
        ) from error


def prefixed(prefix: str, tensors: Mapping[str, NDArray[Any]]) -> Tensors:
    """Tensors by longer names, which `below` shortens again."""
    return {f"{prefix}{name}": value for name, value in tensors.items()}


def below(prefix: str, tensors: Mapping[str, NDArray[Any]]) -> Tensors:
    """Those whose names begin with a prefix, by the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest alone; the tensors are not looked at.

    Raises:
        CheckpointError: there is none, it is of another format, or not as it was written.
    """
    manifest = read_json(
        folder / MANIFEST,
        CheckpointError,
        "Use another checkpoint.",
        sealed=lambda facts: facts.get("format") == FORMAT,
    )
    if manifest is None:
        raise CheckpointError(
            f"{folder} is not a checkpoint: it has no {MANIFEST}. Give a folder that slipstream "
            "wrote."
        )
    version = manifest.get("format")
    if isinstance(version, bool) or version != FORMAT:
        raise CheckpointError(
            f"{folder} has checkpoint format {version!r}, this slipstream reads {FORMAT}; "
            "use the version that wrote it, or train again."
        )
    problem = misfit(manifest, {"files": {STATE: {"sha256": str, "bytes": int}}, "policy?": {}})
    if problem is not None:
        raise CheckpointError(f"{folder / MANIFEST} cannot be used: {problem}.")
    return manifest


def checkpoints(parent: Path) -> list[Path]:
    """Checkpoint folders of a run, oldest first; their names sort by step."""
    return sorted(path for path in parent.glob("step-*") if path.is_dir())


def folder_name(steps: int) -> str:
    """``step-000000012800``: zero-padded, so that names sort by step."""
    return f"step-{steps:012d}"


def load_newest(
    parent: Path,
    say: Callable[[str], None],
    config_hash: str | None = None,
    shape: Mapping[str, Any] | None = None,
    check: Callable[[Mapping[str, Any]], None] = lambda manifest: None,
) -> tuple[Path, Tensors, dict[str, Any]] | None:
    """The newest checkpoint that is whole and belongs to this config; None before the first one.

    Args:
        parent: folder of checkpoints.
        say: told about every one that had to be passed over, and why.
        config_hash: what the manifest's `config` must be.
        shape: what else it must hold, see `misfit`.
        check: may refuse a manifest of this shape.

    Raises:
        CheckpointError: there are checkpoints, and none of them can be used.
        VersionError: raised by `check`: none before it would be of another version.
    """
    found = checkpoints(parent)
    for folder in reversed(found):
        try:
            tensors, manifest = load(folder)
            problem = misfit(manifest, {"steps": int, **(shape or {})})
            if problem is not None:
                raise CheckpointError(f"{folder / MANIFEST} cannot be used: {problem}.")
            check(manifest)
            if folder.name != folder_name(manifest["steps"]):
                raise CheckpointError(f"The checkpoint {folder} was written under another name.")
            if config_hash is not None and manifest.get("config") != config_hash:
                raise CheckpointError(
                    f"The checkpoint {folder} was written by a run of another config."
                )
        except VersionError:
            raise
        except CheckpointError as error:
            say(f"{error} It is passed over for the one before it.")
            continue
        return folder, tensors, manifest
    if found:
        raise CheckpointError(
            f"None of the {len(found)} checkpoints in {parent} can be used. Train again into "
            "another directory (--out), or restore them from a backup."
        )
    return None


def rotate(parent: Path, keep: int) -> None:
    """Deletes the oldest checkpoints beyond `keep`, and what a crash left half written.

    The newest whole one always stays: corrupt folders do not count as kept.
    """
    for leftover in parent.glob(".step-*"):
        remove(leftover)
    whole = 0
    for folder in reversed(checkpoints(parent)):
        if whole >= keep:
            shutil.rmtree(folder, ignore_errors=True)
        elif _looks_whole(folder):
            whole += 1


def _looks_whole(folder: Path) -> bool:
    """Manifest readable and the tensors of the stated size: cheap enough for every save."""
    try:
        stated = read_manifest(folder)["files"][STATE]["bytes"]
        return bool((folder / STATE).stat().st_size == stated)
    except (CheckpointError, KeyError, TypeError, OSError):
        return False


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
        path = own / f"{name}{_CHUNK_SUFFIX}"
        file = str(path.relative_to(folder))
        if not path.is_file():
            content = safetensors.numpy.save({_CHUNK_KEY: np.ascontiguousarray(make())})
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
        yield path.name.removesuffix(_CHUNK_SUFFIX), safetensors.numpy.load(content)[_CHUNK_KEY]


def drop_chunks(folder: Path, used: set[str]) -> None:
    """Deletes what no checkpoint names any more."""
    for path in folder.glob(f"*/*{_CHUNK_SUFFIX}"):
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
        self._kept = {str(path.relative_to(folder)) for path in folder.glob(f"*/*{_CHUNK_SUFFIX}")}

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
