"""A disk whose power fails: what a program's files are then, after any of its calls.

A `Disk` is told a program's system calls one by one (`syscalls.py` records them). Of every file and
folder it knows what living processes see, and what is on the disk for certain. Only these make
something certain, as POSIX promises it:

    fsync, fdatasync of a file    its bytes, not its name
    fsync of a folder             the names in it, not the bytes of what they name
    a write through O_SYNC        as the write, then fsync

A kill keeps all that living processes see, so that it shows no fsync that is missing. What a power
cut keeps of the rest is not promised; `Cut` has the ends of what file systems do. A call that this
model does not know raises: it never guesses.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

Image = Mapping[str, bytes | None]
"""Content by path below the root, and None for a folder."""

_OF_LIVING_ONES = "-shm"  # SQLite's index of its journal is memory: it is made anew after a crash


class Call(NamedTuple):
    """A system call that succeeded, as far as files go.

    Attributes:
        name: ``open``, ``write``, ``truncate``, ``sync``, ``rename``, ``link``, ``unlink``,
            ``mkdir``, ``rmdir`` or ``map`` (a file into memory that others see).
        path: absolute.
        to: the second path of ``rename`` and ``link``.
        data: of ``write``.
        place: offset of ``write``, None where it goes on from the one before; size of ``truncate``.
        flags: of ``open`` as strace writes them; of ``map`` ``PROT_WRITE`` where it may be written.
    """

    name: str
    path: str
    to: str = ""
    data: bytes = b""
    place: int | None = None
    flags: str = ""


class Cut(Enum):
    """What is left when the power fails."""

    LOST = "what no fsync has made certain is gone, names and bytes"
    NAMES = "all names are as living processes saw them, bytes without fsync are gone"
    TORN = "all names are, and of the bytes without fsync any of the writes"


class UnknownCallError(Exception):
    """The model does not know what a call does to the disk."""


@dataclass(eq=False)
class File:
    """Bytes, whatever they are called.

    Attributes:
        synced: on the disk for certain.
        later: since then, in order: (offset, bytes) of a write, (size, None) of a truncation.
        size: as living processes see it.
        cursor: where a write without an offset goes; None: to the end.
        known: whether that is so: not after an `open` that may overwrite what is there.
        through: whether writes are on the disk when they return.
    """

    synced: bytes = b""
    later: list[tuple[int, bytes | None]] = field(default_factory=list)
    size: int = 0
    cursor: int | None = None
    known: bool = True
    through: bool = False

    def content(self, reached: Callable[[], bool]) -> bytes:
        """The synced bytes, truncations, and those writes that `reached` the disk; holes are 0."""
        if not self.later:
            return self.synced
        content = bytearray(self.synced)
        for place, data in self.later:
            if data is None:
                del content[place:]
            if data is None or reached():
                content.extend(bytes(max(0, place - len(content))))
                content[place : place + len(data or b"")] = data or b""
        return bytes(content)

    def sync(self) -> None:
        """All bytes are on the disk."""
        self.synced = self.content(lambda: True)
        self.later.clear()


@dataclass(eq=False)
class Folder:
    """Names as living processes see them, and as they are on the disk for certain."""

    now: dict[str, File | Folder] = field(default_factory=dict)
    synced: dict[str, File | Folder] = field(default_factory=dict)

    def sync(self) -> None:
        """All names are on the disk."""
        self.synced = dict(self.now)


class Disk:
    """All below one folder, which was empty when the program began.

    Args:
        root: absolute, without links; it is on the disk itself.

    Attributes:
        maps: files that were mapped so that writing into memory writes them: when that reaches the
            disk nobody can say, so no durable file may be among them.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._top = f"{root}/", Folder()
        self.maps: set[str] = set()

    def apply(self, call: Call) -> bool:
        """Does what a call did; False where it is about nothing below the root.

        Raises:
            UnknownCallError: the model does not cover it.
        """
        inside = [path.startswith(self._root) for path in (call.path, call.to) if path]
        if call.name in ("rename", "link") and any(inside) != all(inside):
            raise UnknownCallError(f"{call.name} across the border: {call.path} {call.to}")
        if not any(inside) and f"{call.path}/" != self._root:
            return False
        if not hasattr(self, f"_{call.name}"):
            raise UnknownCallError(f"{call.name} {call.path}")
        getattr(self, f"_{call.name}")(call)
        return True

    def image(self, cut: Cut | None, seed: object = 0) -> dict[str, bytes | None]:
        """All files after a power cut; None: as living processes see them.

        Args:
            cut: of which kind.
            seed: of what `Cut.TORN` draws.
        """
        coin = random.Random(f"{seed}").random
        reached = {None: lambda: True, Cut.TORN: lambda: coin() < 0.5}.get(cut, lambda: False)
        lost = cut is Cut.LOST

        def walk(folder: Folder, above: str) -> Iterator[tuple[str, bytes | None]]:
            for name, node in sorted((folder.synced if lost else folder.now).items()):
                if isinstance(node, Folder):
                    yield above + name, None
                    yield from walk(node, f"{above}{name}/")
                elif not name.endswith(_OF_LIVING_ONES):
                    yield above + name, node.synced if lost else node.content(reached)

        return dict(walk(self._top, ""))

    # What each call does. Paths are those that the kernel found, so that they are there.

    def _open(self, call: Call) -> None:
        folder, name = self._place(call.path)
        node = folder.now.get(name) if name else folder
        if isinstance(node, Folder):
            return
        writes = "O_WRONLY" in call.flags or "O_RDWR" in call.flags
        if node is None:
            if "O_CREAT" not in call.flags:
                raise UnknownCallError(f"{call.path} is opened, and nobody made it")
            node = folder.now[name] = File()
        elif writes and "O_TRUNC" in call.flags:
            self._truncate(call._replace(place=0))
        if writes:
            appends = "O_APPEND" in call.flags
            node.cursor, node.known = None if appends else 0, appends or node.size == 0
            node.through |= "O_SYNC" in call.flags or "O_DSYNC" in call.flags

    def _write(self, call: Call) -> None:
        file = self._file(call.path)
        place = call.place
        if place is None:
            if not file.known:
                raise UnknownCallError(f"{call.path} is written at a place that is not known")
            place = file.size if file.cursor is None else file.cursor
            file.cursor = None if file.cursor is None else place + len(call.data)
        file.later.append((place, call.data))
        file.size = max(file.size, place + len(call.data))
        if file.through:
            file.sync()

    def _truncate(self, call: Call) -> None:
        file = self._file(call.path)
        assert call.place is not None
        if file.size != call.place:
            file.later.append((call.place, None))
            file.size = call.place

    def _sync(self, call: Call) -> None:
        folder, name = self._place(call.path)
        (folder.now[name] if name else folder).sync()

    def _rename(self, call: Call) -> None:
        (old, before), (new, after) = self._place(call.path), self._place(call.to)
        new.now[after] = old.now.pop(before)

    def _link(self, call: Call) -> None:
        (old, before), (new, after) = self._place(call.path), self._place(call.to)
        new.now[after] = old.now[before]

    def _mkdir(self, call: Call) -> None:
        folder, name = self._place(call.path)
        if name:  # else the root itself
            folder.now[name] = Folder()

    def _unlink(self, call: Call) -> None:
        folder, name = self._place(call.path)
        del folder.now[name]

    _rmdir = _unlink

    def _map(self, call: Call) -> None:
        if "PROT_WRITE" in call.flags and not call.path.endswith(_OF_LIVING_ONES):
            self.maps.add(call.path.removeprefix(self._root))

    def _place(self, path: str) -> tuple[Folder, str]:
        """The folder that has a path's last name, and that name; of the root the top and none."""
        *above, name = path.removeprefix(self._root.rstrip("/")).strip("/").split("/")
        folder = self._top
        for one in above:
            below = folder.now[one]
            assert isinstance(below, Folder)
            folder = below
        return folder, name

    def _file(self, path: str) -> File:
        folder, name = self._place(path)
        node = folder.now[name]
        assert isinstance(node, File)
        return node


def lay(image: Image, root: Path) -> None:
    """Makes a folder hold what an image has, and nothing else."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for path, content in image.items():
        if content is None:
            (root / path).mkdir(mode=0o700)
        else:
            (root / path).write_bytes(content)


def look(root: Path) -> dict[str, bytes | None]:
    """The image of a folder as living processes see it."""
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if not path.name.endswith(_OF_LIVING_ONES)
    }
