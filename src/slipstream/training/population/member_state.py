"""Member states between two segments, final policies, and live progress.

Each member has a state file. Workers append to `members.jsonl` for viewers; no result depends on
it.
"""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from slipstream.core.errors import CheckpointError, ResourceError
from slipstream.core.safe_io import UnreadableError, open_regular, regular_file
from slipstream.core.storage.atomic_io import make_folder, write_bytes
from slipstream.core.storage.checkpoint import add_prefix, strip_prefix
from slipstream.training.population.member import Member

PROGRESS_FILE = "members.jsonl"
LIMIT = 4 * 2**20  # maximum bytes of the file; then the oldest half is dropped
EVERY_SECONDS = 2.0  # interval between two writes of a worker
_NEWEST = 2**18  # bytes at the end that contain every running member
_NUMBER = (int, float)
Tensors = Mapping[str, NDArray[Any]]
_SUFFIX = ".safetensors"
BULK = "bulk."  # prefix of tensors that are chunks of a replay buffer
_CHECK = 4  # bytes of the leading checksum


@dataclass(frozen=True, order=True)
class MemberProgress:
    """Progress of a member.

    Attributes:
        name: name of the member, see `slipstream.studies.record.ledger.Slot`.
        step: environment steps so far.
        score: mean return of its last training episodes; None before the first.
        at: UTC seconds.
    """

    name: str
    step: int
    score: float | None
    at: float

    @classmethod
    def now(cls, name: str, step: int, score: float) -> MemberProgress:
        """Create the progress of a member at the current time."""
        rounded = float(f"{score:.6g}") if math.isfinite(score) else None
        return cls(name, step, rounded, round(time.time(), 2))


def append(path: Path, members: Sequence[MemberProgress]) -> bool:
    """Append a line for each member; return False if another process is writing or writing failed.

    It never waits: a process that stalls while holding the lock stops no training.
    """
    lines = [
        json.dumps([progress.at, progress.name, progress.step, progress.score])
        for progress in members
    ]
    content = "\n".join(["", *lines, ""]).encode()
    with suppress(OSError, ResourceError):
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (
                os.fstat(handle).st_ino != path.stat().st_ino
            ):  # replaced by a shorter file since it was opened
                return False
            if os.fstat(handle).st_size + len(content) > LIMIT:
                recent = os.pread(handle, LIMIT // 2, os.fstat(handle).st_size - LIMIT // 2)
                write_bytes(path, recent[recent.find(b"\n") + 1 :] + content, durable=False)
                return True
            return os.write(handle, content) == len(content)
        finally:
            os.close(handle)
    return False


def read_progress(path: Path, last: int = _NEWEST) -> dict[str, MemberProgress]:
    """Return the last progress of each member by name, including finished members.

    Args:
        path: path of the file; a missing file yields an empty mapping.
        last: number of bytes read from its end.
    """
    try:
        size = regular_file(path).st_size
        with path.open("rb") as file:
            file.seek(max(0, size - last))
            content = file.read(last)
    except (OSError, UnreadableError):
        return {}
    members = {}
    for line in content.split(b"\n"):
        try:
            at, name, step, score = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        plain = isinstance(name, str) and type(step) is int and isinstance(at, _NUMBER)
        if plain and (score is None or isinstance(score, _NUMBER)):
            members[name] = MemberProgress(name, step, score, at)
    return members


@dataclass(frozen=True)
class State:
    """State of a member.

    Attributes:
        iteration: completed iterations.
        tensors: everything needed to resume; first axes count the member or its environments. For
            a member that has reached its budget, only the policy.
        policy: tensors and manifest of its policy, if it has reached its budget.
        is_complete: True if `tensors` is complete; False if a large replay buffer is only in the
            file.
    """

    iteration: int
    tensors: Tensors
    policy: tuple[Tensors, Mapping[str, Any]] | None = None
    is_complete: bool = True

    @property
    def small(self) -> dict[str, NDArray[Any]]:
        """Return the tensors without those of a replay buffer."""
        return {name: value for name, value in self.tensors.items() if not name.startswith(BULK)}

    @property
    def bulk(self) -> dict[str, NDArray[Any]]:
        """Return the chunks of its replay buffer, by name."""
        return strip_prefix(BULK, self.tensors)

    def without_bulk(self) -> State:
        """Return a copy without tensors that are in the file and not needed in memory."""
        if len(small := self.small) == len(self.tensors):
            return self
        return State(self.iteration, small, self.policy, is_complete=False)


class LiveStates:
    """State files of running members, one each.

    A lost or damaged state is trained again, with identical bits. Files are therefore verified when
    read and written without fsync. A member whose last outcome is in the ledger is not trained
    again, so its policy is synced to disk before that outcome.

    Args:
        folder: folder of the files; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._progress_written = -math.inf  # time of the last progress update
        make_folder(folder)

    @property
    def due(self) -> bool:
        """Return whether a progress update is due."""
        return time.monotonic() - self._progress_written >= EVERY_SECONDS

    def write_progress(self, members: Sequence[MemberProgress]) -> None:
        """Write the progress of running members for viewers."""
        append(self.folder / PROGRESS_FILE, members)
        self._progress_written = time.monotonic()

    def save(self, member: Member, state: State) -> None:
        """Replace a member's file.

        Raises:
            ResourceError: the disk is full; the old file is untouched.
        """
        tensors = add_prefix("state.", state.tensors)
        metadata = {"iteration": str(state.iteration), "fingerprint": member.fingerprint}
        if state.policy is not None:
            policy_tensors, manifest = state.policy
            tensors |= add_prefix("policy.", policy_tensors)
            metadata["manifest"] = json.dumps(manifest)
        arrays = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
        content = safetensors.numpy.save(arrays, metadata)
        checksum = zlib.crc32(content).to_bytes(_CHECK, "big")
        self._replace(member.name, state.policy is not None, checksum, content)

    def load(self, member: Member) -> State | None:
        """Return a member's state; None if it has none or the file belongs to another member."""
        metadata, tensors = self._read(member.name)
        if metadata.get("fingerprint") != member.fingerprint:
            return None
        return State(
            int(metadata["iteration"]), strip_prefix("state.", tensors), _policy(metadata, tensors)
        )

    def iteration(self, member: Member) -> int:
        """Return the completed iterations from the file's header; 0 without a file."""
        metadata = self._head(member.name)
        return (
            int(metadata["iteration"]) if metadata.get("fingerprint") == member.fingerprint else 0
        )

    def keep_policy_only(self, member: Member) -> None:
        """Keep only the policy of a member that has reached its budget and was scored.

        The policy is half of what is transferred and written. A member that must be scored again,
        because its outcome did not reach the ledger, is trained again.
        """
        state = self.load(member)
        if state is not None and state.policy is not None:
            self.save(member, State(state.iteration, {}, state.policy))

    def policy(self, name: str) -> tuple[Tensors, Mapping[str, Any]] | None:
        """Return the policy of a member that has reached its budget."""
        return _policy(*self._read(name))

    def drop(self, name: str) -> None:
        """Delete a member's state."""
        self._path(name).unlink(missing_ok=True)

    def content(self, name: str) -> bytes | None:
        """Return a member's file for transfer to another machine; None without a file."""
        try:
            with self._open(name) as file:
                return file.read()
        except (FileNotFoundError, UnreadableError):
            return None

    def store(self, name: str, content: bytes, fingerprint: str | None = None) -> bool:
        """Store a file from another machine, unless a later state of the same member exists.

        Args:
            name: name of the member.
            content: see `content`.
            fingerprint: fingerprint of the member; None to accept any and compare it when loading.

        Returns:
            True if the file is intact and belongs to the member.
        """
        try:
            facts = _facts(content)
            iteration = int(facts["iteration"])
        except (KeyError, ValueError, TypeError, AttributeError):
            return False
        if fingerprint is not None and facts.get("fingerprint") != fingerprint:
            return False
        known = self._head(name)
        same = known.get("fingerprint") == facts.get("fingerprint")
        if not (same and int(known["iteration"]) > iteration):
            self._replace(name, "manifest" in facts, content)
        return True

    def _open(self, name: str) -> IO[bytes]:
        return open_regular(self._path(name))

    def _head(self, name: str) -> dict[str, str]:
        """Return the metadata of a file without reading its tensors; empty if it cannot be read."""
        try:
            with self._open(name) as file:
                length = int.from_bytes(file.read(_CHECK + 8)[_CHECK:], "little")
                metadata: dict[str, str] = json.loads(file.read(length)).get("__metadata__", {})
        except (OSError, UnreadableError, ValueError):
            return {}
        return metadata

    def _replace(self, name: str, durable: bool, *parts: bytes) -> None:
        write_bytes(self._path(name), b"".join(parts), durable)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.state"

    def _read(self, name: str) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
        """Return metadata and tensors of a file; empty if it is missing or damaged."""
        content = self.content(name)
        metadata = {} if content is None else _facts(content)
        return (
            (metadata, safetensors.numpy.load(content[_CHECK:]))
            if content and metadata
            else ({}, {})
        )


class InMemoryStates(LiveStates):
    """States kept in memory; they are lost with their process."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        self._progress_written, self._progress = -math.inf, dict[str, MemberProgress]()

    def write_progress(self, members: Sequence[MemberProgress]) -> None:
        self._progress_written = time.monotonic()
        self._progress |= {progress.name: progress for progress in members}

    def drain_progress(self) -> list[list[Any]]:
        """Return the progress since the last call, as fields of `MemberProgress`."""
        updates, self._progress = self._progress, {}
        return [list(vars(progress).values()) for progress in updates.values()]

    def drop(self, name: str) -> None:
        self._contents.pop(name, None)

    def content(self, name: str) -> bytes | None:
        return self._contents.get(name)

    def _open(self, name: str) -> IO[bytes]:
        if name not in self._contents:
            raise FileNotFoundError(name)
        return io.BytesIO(self._contents[name])

    def _replace(self, name: str, durable: bool, *parts: bytes) -> None:
        self._contents[name] = b"".join(parts)


class PolicyStore:
    """Final policies, one file for all folds of a trial; nothing else of a finished member is kept.

    Args:
        folder: folder of the files; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder)

    def add(self, policies: Mapping[str, tuple[Tensors, Mapping[str, Any]]]) -> None:
        """Add the policies of members by name; they are on disk on return."""
        by_file: dict[Path, list[str]] = {}
        for name in policies:
            by_file.setdefault(self._path(name), []).append(name)
        for path, names in by_file.items():
            tensors, metadata = self._read(path)
            for name in names:
                policy_tensors, manifest = policies[name]
                tensors |= {
                    f"{name}/{key}": np.ascontiguousarray(policy_tensors[key])
                    for key in policy_tensors
                }
                metadata[name] = json.dumps(manifest)
            write_bytes(path, safetensors.numpy.save(tensors, metadata))

    def get(self, name: str) -> tuple[Tensors, Mapping[str, Any]] | None:
        """Return tensors and manifest of a member's policy; None if it is missing."""
        tensors, metadata = self._read(self._path(name))
        if name not in metadata:
            return None
        return strip_prefix(f"{name}/", tensors), json.loads(metadata[name])

    def _path(self, name: str) -> Path:
        """Return a trial's file; members are named ``search-00012-3``, ``confirm-00012-1-3``."""
        return self.folder / f"{'-'.join(name.split('-')[:2])}{_SUFFIX}"

    def _read(self, path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
        if not path.exists():
            return {}, {}
        try:
            regular_file(path)
            with safe_open(path, "numpy") as file:
                return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
        except (SafetensorError, OSError, UnreadableError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error}). Restore it from a backup. "
                "Deleting it loses the policies of its trial."
            ) from error


def _facts(content: bytes) -> dict[str, str]:
    """Return the metadata in the header of a state file; empty if it is damaged."""
    body = memoryview(content)[_CHECK:]
    if zlib.crc32(body).to_bytes(_CHECK, "big") != content[:_CHECK]:
        return {}
    length = int.from_bytes(body[:8], "little")
    metadata: dict[str, str] = json.loads(bytes(body[8 : 8 + length])).get("__metadata__", {})
    return metadata


def _policy(
    metadata: Mapping[str, str], tensors: Tensors
) -> tuple[Tensors, Mapping[str, Any]] | None:
    if "manifest" not in metadata:
        return None
    return strip_prefix("policy.", tensors), json.loads(metadata["manifest"])
