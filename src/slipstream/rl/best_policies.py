"""Best policies of a run, selected by validation and stored in its directory."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slipstream.core.errors import CheckpointError
from slipstream.core.storage import checkpoint

BEST = "best"
_SHAPE = {"policy": {}, "score": (int, float), "steps": int}


class BestPolicies:
    """The directories ``best/member-*/`` of a run: each member's best policy and its predecessor.

    Attributes:
        run: Directory of the run.
        folder: Its subdirectory ``best``.
    """

    def __init__(self, run: Path, log: Callable[[str], None]) -> None:
        """Store the paths. `log` receives one warning per skipped corrupt policy."""
        self.run, self.folder, self._log = run, run / BEST, log
        self._fallen_back: set[int] = set()  # members that use the predecessor

    @property
    def members(self) -> list[int]:
        """Members with a directory of their own, sorted."""
        names = (path.name.partition(".")[0] for path in self.folder.glob("member-*"))
        numbers = (name.removeprefix("member-") for name in names)
        return sorted({int(number) for number in numbers if number.isdecimal()})

    @property
    def present(self) -> list[int]:
        """Members with a best policy, at least one. Members without a validation have none.

        Raises:
            CheckpointError: No member has a policy.
        """
        members = [member for member in self.members if self.has(member)]
        if not members:
            raise CheckpointError(
                f"{self.run} has no policy yet: it stopped before its first validation. Resume "
                f"it with `slipstream resume {shlex.quote(str(self.run))}`."
            )
        return members

    @property
    def highest(self) -> int:
        """The member whose best policy has the highest validation score.

        Raises:
            CheckpointError: See `present` and `load`.
        """
        scores = {member: float(self.load(member)[1]["score"]) for member in self.present}
        return max(scores, key=lambda member: scores[member])

    def folder_of(self, member: int) -> Path:
        """Return the directory of a member's best policy."""
        return self.folder / f"member-{member:03d}"

    def has(self, member: int) -> bool:
        """Return whether a member has a best policy."""
        folder = self.folder_of(member)
        return folder.is_dir() or _previous(folder).is_dir()

    def save(self, member: int, tensors: Mapping[str, Any], manifest: Mapping[str, Any]) -> Path:
        """Replace a member's best policy. Its predecessor is stored beside it."""
        folder = self.folder_of(member)
        return checkpoint.save(folder, tensors, manifest, keep=_previous(folder))

    def load(self, member: int) -> tuple[checkpoint.Tensors, dict[str, Any]]:
        """Load a member's best policy and its manifest, or the predecessor if it is corrupt.

        Raises:
            CheckpointError: There is no policy yet, or none can be read.
        """
        if not self.has(member):
            raise CheckpointError(
                f"{self.run} has no best policy of member {member}; members that have one: "
                f"{', '.join(map(str, self.present))}."
            )
        folder = self.folder_of(member)
        try:
            return checkpoint.load(folder, _SHAPE)
        except CheckpointError as error:
            if not _previous(folder).is_dir():
                raise
            previous = checkpoint.load(_previous(folder), _SHAPE)
            if member not in self._fallen_back:
                self._fallen_back.add(member)
                self._log(f"{error} The previous best policy is used instead.")
            return previous


def _previous(folder: Path) -> Path:
    """Return the directory of the predecessor of the best policy in `folder`."""
    return folder.with_name(f"{folder.name}.previous")
