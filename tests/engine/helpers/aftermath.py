"""What a user does after a power cut: the states that it can leave, and commands run on them."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from disk import Call, Cut, Disk

from slipstream.cli.main import main

_SECONDS = 120  # that a command may take
Image = dict[str, bytes | None]


class State(NamedTuple):
    """What a power cut leaves.

    Attributes:
        number: of the call after which it came; `call` is that one.
        cut: of which kind.
        said: what the program had told its user by then, see `SAID`.
        image: of the disk.
    """

    number: int
    call: Call
    cut: Cut
    said: tuple[str, ...]
    image: Image

    def __str__(self) -> str:
        return f"after call {self.number} ({self.call.name} {self.call.path}), {self.cut.name}"


SAID = "said"  # a file beside the disk: a program that writes a line there has told its user so


class Recording:
    """The calls of a program, and the states of its disk that differ.

    Args:
        root: of the disk.
        calls: all of them.
    """

    def __init__(self, root: Path, calls: Sequence[Call]) -> None:
        self.root, self.calls = root, calls
        self.maps = set[str]()
        self.end: Image = {}
        self._distinct = list(self._find())

    def __len__(self) -> int:
        return len(self._distinct)

    def states(self, most: int | None = None, seed: int = 0) -> Iterator[State]:
        """All states that differ, in order, or a sample of them with the same share of each cut."""
        places = self._distinct
        if most is not None:
            places = []
            for cut in Cut:
                own = [one for one in self._distinct if one[1] is cut]
                draw = random.Random(f"{seed}/{cut.name}")
                places += draw.sample(own, min(len(own), most // len(Cut)))
        wanted = set(places)
        for number, call, disk, said in self._replay():
            for cut in Cut:
                if (number, cut) in wanted:
                    yield State(number, call, cut, said, disk.image(cut, number))

    def _replay(self) -> Iterator[tuple[int, Call, Disk, tuple[str, ...]]]:
        disk, said = Disk(self.root), list[str]()
        for number, call in enumerate(self.calls):
            if call.path == str(self.root.with_name(SAID)) and call.name == "write":
                said += call.data.decode().splitlines()
                yield number, call, disk, tuple(said)
            elif disk.apply(call):
                yield number, call, disk, tuple(said)
        self.maps, self.end = disk.maps, disk.image(None)

    def _find(self) -> Iterator[tuple[int, Cut]]:
        seen = set[int]()
        for number, _, disk, said in self._replay():
            for cut in Cut:
                image = disk.image(cut, number)  # unequal hashes of equal states cost a repetition
                key = hash((said, *((path, hash(content)) for path, content in image.items())))
                if key not in seen:
                    seen.add(key)
                    yield number, cut


class Answer(NamedTuple):
    """What a command left: its exit code, and all that it printed."""

    code: int
    text: str

    @property
    def paragraph(self) -> bool:
        """Whether it refused in one paragraph: of an error's text alone no line is empty."""
        told = [line for line in self.text.splitlines() if not line.startswith(" ")]
        return self.code == 2 and bool(told) and len(told[-1]) > 40

    def check(self, *codes: int) -> Answer:
        """That the command ended in one of these ways, and without a fault of ours."""
        assert self.code in codes, self
        assert not re.search(r"Traceback|should not|slipstream-fault", self.text), self
        assert self.code == 0 or self.paragraph, self
        return self


def slipstream(*words: str, cwd: Path, variables: Mapping[str, str]) -> Answer:
    """A command in a child of this process, which has everything imported already."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            code = 99
            try:
                os.setpgid(0, 0)
                signal.alarm(_SECONDS)
                for handle in (1, 2):
                    os.dup2(output.fileno(), handle)
                sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
                os.chdir(cwd)
                os.environ.update(variables)
                main(list(words))
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 1
            except BaseException:
                traceback.print_exc()
            finally:
                with suppress(Exception):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        with suppress(ProcessLookupError):  # workers whose parent was ended by the alarm
            os.killpg(child, signal.SIGKILL)
        output.seek(0)
        return Answer(os.waitstatus_to_exitcode(status), output.read().decode(errors="replace"))
