"""The policies that validation chose, as a run's directory keeps them."""

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
    """``best/member-*/`` of a run: each member's best policy, and the one before it.

    Attributes:
        run: the run's directory.
        folder: ``best`` in it.
    """

    def __init__(self, run: Path, say: Callable[[str], None]) -> None:
        """Nothing is read yet; `say` is told of a policy that had to be passed over, once each."""
        self.run, self.folder, self._say = run, run / BEST, say
        self._fallen_back: set[int] = set()  # members whose best policy is the one before

    @property
    def members(self) -> list[int]:
        """Members that were ever validated, as their best policies lie there."""
        names = (one.name.partition(".")[0] for one in self.folder.glob("member-*"))
        numbers = (name.removeprefix("member-") for name in names)
        return sorted({int(number) for number in numbers if number.isdecimal()})

    @property
    def present(self) -> list[int]:
        """The same, at least one: a member that failed before its first validation has none.

        Raises:
            CheckpointError: nobody has one.
        """
        members = [member for member in self.members if self.has(member)]
        if not members:
            raise CheckpointError(
                f"{self.run} has no policy yet: it stopped before its first validation. Go on with "
                f"`slipstream resume {shlex.quote(str(self.run))}`."
            )
        return members

    @property
    def highest(self) -> int:
        """The member whose best policy has the highest score in validation.

        Raises:
            CheckpointError: as for `present` and `load`.
        """
        scores = {member: float(self.load(member)[1]["score"]) for member in self.present}
        return max(scores, key=lambda member: scores[member])

    def folder_of(self, member: int) -> Path:
        """Where a member's best policy is."""
        return self.folder / f"member-{member:03d}"

    def has(self, member: int) -> bool:
        """Whether a member was ever validated."""
        folder = self.folder_of(member)
        return folder.is_dir() or _previous(folder).is_dir()

    def save(self, member: int, tensors: Mapping[str, Any], manifest: Mapping[str, Any]) -> Path:
        """Replaces a member's best policy; the one it replaces is kept beside it."""
        folder = self.folder_of(member)
        return checkpoint.save(folder, tensors, manifest, keep=_previous(folder))

    def load(self, member: int) -> tuple[checkpoint.Tensors, dict[str, Any]]:
        """A member's best policy and what is known about it; the one before it if it is corrupt.

        Raises:
            CheckpointError: there is none yet, or none can be used.
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
            found = checkpoint.load(_previous(folder), _SHAPE)
            if member not in self._fallen_back:
                self._fallen_back.add(member)
                self._say(f"{error} The policy that was the best before it is used instead.")
            return found


def _previous(folder: Path) -> Path:
    """Where the best policy before the one in `folder` is kept."""
    return folder.with_name(f"{folder.name}.previous")
