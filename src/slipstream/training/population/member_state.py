"""Where members stand: their states between two stretches, their policies, and their progress.

Each member has a state file. `members.jsonl` is appended by workers for whoever watches; no result
depends on it.
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
LIMIT = 4 * 2**20  # bytes of the file; the oldest half is dropped
EVERY_SECONDS = 2.0  # between two writings of a worker
_NEWEST = 2**18  # bytes in which whoever is under way has spoken lately
_NUMBER = (int, float)
Tensors = Mapping[str, NDArray[Any]]
_SUFFIX = ".safetensors"
BULK = "bulk."  # in names of a state's tensors: chunks of a replay
_CHECK = 4  # bytes of the checksum in front


@dataclass(frozen=True, order=True)
class MemberProgress:
    """A member at a moment of its training.

    Attributes:
        name: of the member, see `slipstream.studies.record.ledger.Slot`.
        step: environment steps that it has made.
        score: mean return of its last training episodes; None before the first ended.
        at: UTC seconds.
    """

    name: str
    step: int
    score: float | None
    at: float

    @classmethod
    def now(cls, name: str, step: int, score: float) -> MemberProgress:
        """A member as it is."""
        told = float(f"{score:.6g}") if math.isfinite(score) else None
        return cls(name, step, told, round(time.time(), 2))


def append(path: Path, members: Sequence[MemberProgress]) -> bool:
    """Adds a line for each; False where another process writes just now, or nothing can be written.

    Nobody waits: a process that stands still while it holds the lock stops no training.
    """
    lines = [json.dumps([one.at, one.name, one.step, one.score]) for one in members]
    content = "\n".join(["", *lines, ""]).encode()
    with suppress(OSError, ResourceError):
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_ino != path.stat().st_ino:  # shortened since it was opened
                return False
            if os.fstat(handle).st_size + len(content) > LIMIT:
                kept = os.pread(handle, LIMIT // 2, os.fstat(handle).st_size - LIMIT // 2)
                write_bytes(path, kept[kept.find(b"\n") + 1 :] + content, durable=False)
                return True
            return os.write(handle, content) == len(content)
        finally:
            os.close(handle)
    return False


def read_progress(path: Path, last: int = _NEWEST) -> dict[str, MemberProgress]:
    """What each member last said, by name; those that have ended are among them.

    Args:
        path: of the file; without it there is nobody.
        last: bytes at its end that are looked at.
    """
    try:
        size = regular_file(path).st_size
        with path.open("rb") as file:
            file.seek(max(0, size - last))
            content = file.read(last)
    except (OSError, UnreadableError):
        return {}
    found = {}
    for line in content.split(b"\n"):
        try:
            at, name, step, score = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        plain = isinstance(name, str) and type(step) is int and isinstance(at, _NUMBER)
        if plain and (score is None or isinstance(score, _NUMBER)):
            found[name] = MemberProgress(name, step, score, at)
    return found


@dataclass(frozen=True)
class State:
    """Where a member stands.

    Attributes:
        iteration: rollouts learned from.
        tensors: everything needed to go on; the first axis counts the member or its copies. Of a
            member that has reached its budget, what acts.
        policy: tensors and manifest of its policy, where it has reached its budget.
        whole: `tensors` has everything; false where a replay, which is large, is in the member's
            file alone.
    """

    iteration: int
    tensors: Tensors
    policy: tuple[Tensors, Mapping[str, Any]] | None = None
    whole: bool = True

    @property
    def small(self) -> dict[str, NDArray[Any]]:
        """Its tensors but for a replay's."""
        return {name: value for name, value in self.tensors.items() if not name.startswith(BULK)}

    @property
    def bulk(self) -> dict[str, NDArray[Any]]:
        """Chunks of its replay, by name."""
        return strip_prefix(BULK, self.tensors)

    def lightened(self) -> State:
        """Without what its file has and nobody needs in memory."""
        if len(small := self.small) == len(self.tensors):
            return self
        return State(self.iteration, small, self.policy, whole=False)


class LiveStates:
    """Files of members under way, one each.

    What is lost or damaged is trained again, to the same bits; so files are checked when they are
    read, and nobody waits for the disk when they are written. But a member whose last outcome the
    ledger has is not trained again: its policy is on the disk before that outcome.

    Args:
        folder: where they are; made if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._told = -math.inf  # when a process last said who is under way
        make_folder(folder)

    @property
    def due(self) -> bool:
        """Whether those who watch wait for `tell`."""
        return time.monotonic() - self._told >= EVERY_SECONDS

    def tell(self, members: Sequence[MemberProgress]) -> None:
        """Says where members under way are, to whoever watches."""
        append(self.folder / PROGRESS_FILE, members)
        self._told = time.monotonic()

    def save(self, member: Member, state: State) -> None:
        """Replaces a member's file.

        Raises:
            ResourceError: the disk is full; the old file is untouched.
        """
        tensors = add_prefix("state.", state.tensors)
        facts = {"iteration": str(state.iteration), "fingerprint": member.fingerprint}
        if state.policy is not None:
            own, manifest = state.policy
            tensors |= add_prefix("policy.", own)
            facts["manifest"] = json.dumps(manifest)
        arrays = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
        content = safetensors.numpy.save(arrays, facts)
        check = zlib.crc32(content).to_bytes(_CHECK, "big")
        self._replace(member.name, state.policy is not None, check, content)

    def load(self, member: Member) -> State | None:
        """Where a member stands; None where it begins, or what is there is not its own."""
        facts, tensors = self._read(member.name)
        if facts.get("fingerprint") != member.fingerprint:
            return None
        return State(
            int(facts["iteration"]), strip_prefix("state.", tensors), _policy(facts, tensors)
        )

    def iteration(self, member: Member) -> int:
        """Rollouts that a member has learned from, as its file's head says; 0 without a file."""
        facts = self._head(member.name)
        return int(facts["iteration"]) if facts.get("fingerprint") == member.fingerprint else 0

    def slim(self, member: Member) -> None:
        """Keeps the policy alone of a member that has reached its budget, and was scored.

        Its weights are half of what is carried and written. Who must be scored again after all,
        because the ledger was not told, is trained again.
        """
        state = self.load(member)
        if state is not None and state.policy is not None:
            self.save(member, State(state.iteration, {}, state.policy))

    def policy(self, name: str) -> tuple[Tensors, Mapping[str, Any]] | None:
        """The policy of a member that has reached its budget."""
        return _policy(*self._read(name))

    def drop(self, name: str) -> None:
        """Forgets a member."""
        self._path(name).unlink(missing_ok=True)

    def content(self, name: str) -> bytes | None:
        """A member's file as another machine may take it; None where there is none."""
        try:
            with self._open(name) as file:
                return file.read()
        except (FileNotFoundError, UnreadableError):
            return None

    def put(self, name: str, content: bytes, own: str | None = None) -> bool:
        """Takes a file that another machine wrote, unless there is a later state of the same.

        Args:
            name: the member's.
            content: see `content`.
            own: the member's fingerprint; None: any is taken, and compared when it is loaded.

        Returns:
            Whether it is whole and the member's.
        """
        try:
            facts = _facts(content)
            iteration = int(facts["iteration"])
        except (KeyError, ValueError, TypeError, AttributeError):
            return False
        if own is not None and facts.get("fingerprint") != own:
            return False
        known = self._head(name)
        same = known.get("fingerprint") == facts.get("fingerprint")
        if not (same and int(known["iteration"]) > iteration):
            self._replace(name, "manifest" in facts, content)
        return True

    def _open(self, name: str) -> IO[bytes]:
        return open_regular(self._path(name))

    def _head(self, name: str) -> dict[str, str]:
        """Facts of a file whose tensors are not looked at; nothing where it cannot be read."""
        try:
            with self._open(name) as file:
                length = int.from_bytes(file.read(_CHECK + 8)[_CHECK:], "little")
                facts: dict[str, str] = json.loads(file.read(length)).get("__metadata__", {})
        except (OSError, UnreadableError, ValueError):
            return {}
        return facts

    def _replace(self, name: str, durable: bool, *parts: bytes) -> None:
        write_bytes(self._path(name), b"".join(parts), durable)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.state"

    def _read(self, name: str) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
        """Facts and tensors of a file; nothing where it is missing or damaged."""
        content = self.content(name)
        facts = {} if content is None else _facts(content)
        return (facts, safetensors.numpy.load(content[_CHECK:])) if content and facts else ({}, {})


class InMemoryStates(LiveStates):
    """The same in memory: they end with their process, which a kill leaves nothing of."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}
        self._told, self._said = -math.inf, dict[str, MemberProgress]()

    def tell(self, members: Sequence[MemberProgress]) -> None:
        self._told = time.monotonic()
        self._said |= {one.name: one for one in members}

    def said(self) -> list[list[Any]]:
        """What was told since the last call: fields of `MemberProgress`."""
        found, self._said = self._said, {}
        return [list(vars(one).values()) for one in found.values()]

    def drop(self, name: str) -> None:
        self._held.pop(name, None)

    def content(self, name: str) -> bytes | None:
        return self._held.get(name)

    def _open(self, name: str) -> IO[bytes]:
        if name not in self._held:
            raise FileNotFoundError(name)
        return io.BytesIO(self._held[name])

    def _replace(self, name: str, durable: bool, *parts: bytes) -> None:
        self._held[name] = b"".join(parts)


class PolicyStore:
    """Final policies, a file for all folds of a trial: nothing else is kept of a finished member.

    Args:
        folder: where they are; made if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_folder(folder)

    def add(self, policies: Mapping[str, tuple[Tensors, Mapping[str, Any]]]) -> None:
        """Adds members by name; on disk when it returns."""
        by_file: dict[Path, list[str]] = {}
        for name in policies:
            by_file.setdefault(self._path(name), []).append(name)
        for path, names in by_file.items():
            tensors, facts = self._read(path)
            for name in names:
                own, manifest = policies[name]
                tensors |= {f"{name}/{key}": np.ascontiguousarray(own[key]) for key in own}
                facts[name] = json.dumps(manifest)
            write_bytes(path, safetensors.numpy.save(tensors, facts))

    def get(self, name: str) -> tuple[Tensors, Mapping[str, Any]] | None:
        """Tensors and manifest of a member; None where it is not there."""
        tensors, facts = self._read(self._path(name))
        if name not in facts:
            return None
        return strip_prefix(f"{name}/", tensors), json.loads(facts[name])

    def _path(self, name: str) -> Path:
        """A trial's file: members are called ``search-00012-3``, ``confirm-00012-1-3``."""
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
                f"{path} cannot be read ({error}): delete it, and its trial's policies are gone, "
                "or restore it from a backup."
            ) from error


def _facts(content: bytes) -> dict[str, str]:
    """What the head of a state's file says; nothing where any of it is damaged."""
    body = memoryview(content)[_CHECK:]
    if zlib.crc32(body).to_bytes(_CHECK, "big") != content[:_CHECK]:
        return {}
    length = int.from_bytes(body[:8], "little")
    facts: dict[str, str] = json.loads(bytes(body[8 : 8 + length])).get("__metadata__", {})
    return facts


def _policy(facts: Mapping[str, str], tensors: Tensors) -> tuple[Tensors, Mapping[str, Any]] | None:
    if "manifest" not in facts:
        return None
    return strip_prefix("policy.", tensors), json.loads(facts["manifest"])
