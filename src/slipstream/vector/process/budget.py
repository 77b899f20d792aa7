"""How many copies all trainings of this user on this machine have together."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from slipstream.vector.cache import private_folder

_FILE = "leases.json"


class Budget:
    """Leases of copies, in a file that every process of the user reads and writes under a lock.

    What a process had that is gone no longer counts.

    Args:
        folder: of the file; in the cache folder unless given.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._path = (folder or private_folder("leases")) / _FILE

    def take(self, copies: int, most: int | None) -> tuple[bool, int]:
        """Leases copies to this process unless there would be more than `most` in all.

        Returns:
            Whether it did, and how many others have.
        """
        with self._leases() as leases:
            taken = sum(lease["copies"] for lease in leases)
            if most is not None and taken + copies > most:
                return False, taken
            own = [lease for lease in leases if lease["pid"] == os.getpid()]
            if own:
                own[0]["copies"] += copies
            else:
                leases.append(_me() | {"copies": copies})
            return True, taken

    def give(self, copies: int) -> None:
        """Gives copies back."""
        with self._leases() as leases:
            for lease in leases:
                if lease["pid"] == os.getpid():
                    lease["copies"] = max(0, lease["copies"] - copies)

    @property
    def taken(self) -> int:
        """Copies that are leased now."""
        with self._leases() as leases:
            return sum(lease["copies"] for lease in leases)

    @contextmanager
    def _leases(self) -> Iterator[list[dict[str, Any]]]:
        with open(self._path, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            try:
                leases = json.load(file)
            except ValueError:  # new, or cut off by a kill
                leases = []
            leases = [lease for lease in leases if _lives(lease)]
            yield leases
            file.seek(0)
            file.truncate()
            json.dump([lease for lease in leases if lease["copies"]], file)


def _me() -> dict[str, Any]:
    return {"pid": os.getpid(), "started": psutil.Process().create_time()}


def _lives(lease: dict[str, Any]) -> bool:
    """Whether the process that a lease names is the one that took it."""
    try:
        return bool(psutil.Process(lease["pid"]).create_time() == lease["started"])
    except (psutil.Error, KeyError):
        return False
