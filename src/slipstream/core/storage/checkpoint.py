"""Checkpoints: tensors and a manifest in a folder, written atomically; no pickle.

Large parts of a state, such as a replay buffer, are stored beside them in chunks shared between
checkpoints. Each chunk is written by the process that holds it.
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
from slipstream.core.safe_io import UnreadableError, read_json, regular_file, schema_mismatch
from slipstream.core.storage.atomic_io import (
    atomic_folder,
    make_folder,
    remove,
    sha256,
    write_bytes,
    write_hashed,
)

FORMAT = 2
STATE, MANIFEST = "state.safetensors", "manifest.json"
Tensors = dict[str, NDArray[Any]]
_CHUNK_SUFFIX, _CHUNK_KEY = ".chunk", "chunk"


def save(
    folder: Path, tensors: Mapping[str, Any], manifest: Mapping[str, Any], keep: Path | None = None
) -> Path:
    """Write `tensors` and `manifest` as `folder` atomically, replacing an existing one.

    Args:
        folder: the checkpoint's folder.
        tensors: NumPy arrays; dtypes and bits are preserved.
        manifest: JSON-compatible metadata; `format`, `files` (hashes) and `sha256` (of the manifest
            itself) are added.
        keep: new location of the replaced checkpoint, replacing the one before it.

    Raises:
        ResourceError: the disk is full; older checkpoints are untouched.
    """
    arrays = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    with atomic_folder(folder, keep) as place:
        path = place / STATE
        try:
            safetensors.numpy.save_file(arrays, path)  # twice as fast as `save` followed by a write
        except SafetensorError as error:  # has the OS error as text
            number = re.search(r"os error (\d+)", str(error))
            if number is None:
                raise
            code = int(number[1])
            raise OSError(code, os.strerror(code), str(path)) from error
        files = {STATE: {"sha256": sha256(path), "bytes": path.stat().st_size}}
        write_hashed(
            place / MANIFEST, {**manifest, "format": FORMAT, "files": files}, durable=False
        )
    return folder


def load(folder: Path, shape: Any = None) -> tuple[Tensors, dict[str, Any]]:
    """Return tensors and manifest of a checkpoint; `shape` is the schema of the manifest.

    Raises:
        CheckpointError: missing, truncated, altered, or not written by slipstream.
    """
    manifest = read_manifest(folder)
    problem = schema_mismatch(manifest, shape or {})
    if problem is not None:
        raise CheckpointError(f"{folder / MANIFEST} cannot be used: {problem}.")
    path = folder / STATE
    try:
        size, room = regular_file(path).st_size, free_memory()
        if size > room:  # even hashing a sparse file of terabytes would take hours
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


def add_prefix(prefix: str, tensors: Mapping[str, NDArray[Any]]) -> Tensors:
    """Return tensors with prefixed names; `strip_prefix` inverts it."""
    return {f"{prefix}{name}": value for name, value in tensors.items()}


def strip_prefix(prefix: str, tensors: Mapping[str, NDArray[Any]]) -> Tensors:
    """Return the tensors whose names start with a prefix, without the prefix."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest without reading the tensors.

    Raises:
        CheckpointError: missing, of another format, or altered.
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
    problem = schema_mismatch(
        manifest, {"files": {STATE: {"sha256": str, "bytes": int}}, "policy?": {}}
    )
    if problem is not None:
        raise CheckpointError(f"{folder / MANIFEST} cannot be used: {problem}.")
    return manifest


def checkpoints(parent: Path) -> list[Path]:
    """Return the checkpoint folders of a run, oldest first; names sort by step."""
    return sorted(path for path in parent.glob("step-*") if path.is_dir())


def checkpoint_name(steps: int) -> str:
    """Return a zero-padded name that sorts by step: ``step-000000012800``."""
    return f"step-{steps:012d}"


def load_latest(
    parent: Path,
    log: Callable[[str], None],
    config_hash: str | None = None,
    shape: Mapping[str, Any] | None = None,
    check: Callable[[Mapping[str, Any]], None] = lambda manifest: None,
) -> tuple[Path, Tensors, dict[str, Any]] | None:
    """Return the newest intact checkpoint of this config; None before the first one.

    Args:
        parent: folder of checkpoints.
        log: receives a message about every checkpoint that is skipped.
        config_hash: required value of the manifest's `config`.
        shape: schema of other keys, see `schema_mismatch`.
        check: may reject a manifest that matches the schema.

    Raises:
        CheckpointError: there are checkpoints, but none is usable.
        VersionError: raised by `check`: older ones would be of another version too.
    """
    paths = checkpoints(parent)
    for folder in reversed(paths):
        try:
            tensors, manifest = load(folder)
            problem = schema_mismatch(manifest, {"steps": int, **(shape or {})})
            if problem is not None:
                raise CheckpointError(f"{folder / MANIFEST} cannot be used: {problem}.")
            check(manifest)
            if folder.name != checkpoint_name(manifest["steps"]):
                raise CheckpointError(f"The checkpoint {folder} was written under another name.")
            if config_hash is not None and manifest.get("config") != config_hash:
                raise CheckpointError(
                    f"The checkpoint {folder} was written by a run of another config."
                )
        except VersionError:
            raise
        except CheckpointError as error:
            log(f"{error} It is skipped; the one before it is used.")
            continue
        return folder, tensors, manifest
    if paths:
        raise CheckpointError(
            f"None of the {len(paths)} checkpoints in {parent} can be used. Train again into "
            "another directory (--out), or restore them from a backup."
        )
    return None


def rotate(parent: Path, keep: int) -> None:
    """Delete the oldest checkpoints beyond `keep`, and partial ones of crashed processes.

    The newest intact one always stays: corrupt folders do not count.
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
    """Check that the manifest is readable and the tensors have the stated size; cheap."""
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
    """Write a member's missing chunks; return sha256 by path relative to `folder`.

    Args:
        folder: folder of all chunks; member: index of the member.
        chunks: constructor of each chunk by name; called for missing files only.
        known: hashes of files that this process has written or read; extended.

    Raises:
        ResourceError: the disk is full.
    """
    member_folder = folder / f"member-{member:03d}"
    written = {}
    make_folder(member_folder)
    for name, make in chunks.items():
        path = member_folder / f"{name}{_CHUNK_SUFFIX}"
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
    """Yield a member's chunks, one at a time.

    Raises:
        CheckpointError: a file is missing or altered.
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


def prune_chunks(folder: Path, used: set[str]) -> None:
    """Delete chunks that no checkpoint references."""
    for path in folder.glob(f"*/*{_CHUNK_SUFFIX}"):
        if str(path.relative_to(folder)) not in used:
            path.unlink(missing_ok=True)


class ReceivedChunks:
    """Chunks held by other machines, written to files when they are received.

    Args:
        folder: folder of all chunks.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, str] = {}
        # Files of checkpoints; others are deleted with the next one.
        self._kept = {str(path.relative_to(folder)) for path in folder.glob(f"*/*{_CHUNK_SUFFIX}")}

    def take(self, chunks: Mapping[str, Mapping[str, NDArray[Any] | None]]) -> dict[str, str]:
        """Write received chunks by member and name; return sha256 by file, also of referenced ones.

        Args:
            chunks: None for a chunk that was received before.

        Raises:
            ResourceError: the disk is full.
            CheckpointError: a file was deleted.
        """
        files: dict[str, str] = {}
        for member, member_files in chunks.items():
            made = {
                name: partial(_content, content, name) for name, content in member_files.items()
            }
            if made:
                files |= write_chunks(self._folder, int(member), made, self._known)
        return files

    def keep(self, files: Mapping[str, str]) -> dict[str, str]:
        """Mark files as part of a checkpoint."""
        self._kept |= files.keys()
        return dict(files)

    def drop(self, files: Iterable[str]) -> None:
        """Delete files that belong to no checkpoint."""
        for file in {*files} - self._kept:
            (self._folder / file).unlink(missing_ok=True)
            self._known.pop(file, None)

    def read(self, member: int, files: Mapping[str, str]) -> dict[str, NDArray[Any]]:
        """Return a member's chunks by name; see `read_chunks`."""
        return dict(read_chunks(self._folder, member, files))


def _content(content: NDArray[Any] | None, name: str) -> NDArray[Any]:
    if content is None:
        raise CheckpointError(
            f"The file of the chunk {name} was deleted while a run needed it: resume from the last "
            "checkpoint with `slipstream resume`."
        )
    return content
