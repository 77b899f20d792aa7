"""How far members are, in one file that workers write for whoever watches; no result depends on it.

A line that a kill cut short is passed by: every writing begins a line of its own.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slipstream.core.errors import ResourceError
from slipstream.core.reader import UnreadableError, regular_file
from slipstream.core.storage.files import write_bytes

UNDER_WAY = "members.jsonl"
LIMIT = 4 * 2**20  # bytes of the file; the oldest half is dropped
EVERY_SECONDS = 2.0  # between two writings of a worker
_NEWEST = 2**18  # bytes in which whoever is under way has spoken lately
_NUMBER = (int, float)


@dataclass(frozen=True, order=True)
class UnderWay:
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
    def now(cls, name: str, step: int, score: float) -> UnderWay:
        """A member as it is."""
        told = float(f"{score:.6g}") if math.isfinite(score) else None
        return cls(name, step, told, round(time.time(), 2))


def append(path: Path, members: Sequence[UnderWay]) -> bool:
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


def read_under_way(path: Path, last: int = _NEWEST) -> dict[str, UnderWay]:
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
            found[name] = UnderWay(name, step, score, at)
    return found
