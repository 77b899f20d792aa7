"""A malformed input: what is put into a folder, and the command that must refuse it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Case(NamedTuple):
    """One malformed input.

    Attributes:
        name: says what is wrong; unique.
        argv: of `slipstream`; ``{folder}`` stands for the case's folder.
        arrange: makes the files in that folder.
    """

    name: str
    argv: tuple[str, ...]
    arrange: Callable[[Path], None] = lambda folder: None


def writes(name: str, content: str | bytes) -> Callable[[Path], None]:
    """Arranges one file."""

    def arrange(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return arrange
