"""Runs, studies and policies with one file damaged each, and the commands that read them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from malformed import Case

SMALL = ("--no-report", "--total-timesteps", "4096", "--num-envs", "4", "--set", "agent.n_steps=64")
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "complete": (("evaluate", "{folder}/it"),),
    "stopped": (("resume", "{folder}/it", "--no-report"), ("status", "{folder}/it")),
    "study": (
        ("study", "status", "{folder}/it"),
        ("resume", "{folder}/it"),
        ("study", "best", "{folder}/it"),
        ("study", "report", "{folder}/it"),
    ),
}


def make(folder: Path) -> None:
    """A complete run, one that was stopped, and a finished study."""
    command = (sys.executable, "-m", "slipstream")

    def call(*argv: str) -> None:
        subprocess.run([*command, *argv], cwd=folder, check=True, capture_output=True)

    call("train", "cartpole", *SMALL, "--members", "2", "--out", "complete")
    shutil.copytree(folder / "complete", folder / "stopped")
    (folder / "stopped/result.json").unlink()
    _forget_the_end(folder / "stopped/checkpoints")
    argv = ("tune", "cartpole", "--n-trials", "2", "--total-timesteps", "4096", "--n-envs", "4")
    sizes = ("fold_seeds=2", "confirmation.top=1", "confirmation.seeds=1", "final_seeds=1")
    sets = [word for size in sizes for word in ("--set", f"study.{size}")]
    call(*argv, "--workers", "1", "--set", "agent.n_steps=64", *sets, "--study-name", "study")
    shutil.move(folder / "studies/study", folder / "study")


def _forget_the_end(checkpoints: Path) -> None:
    """Leaves the checkpoint before the last one, as if the run had been killed after it."""
    newest = sorted(path for path in checkpoints.iterdir() if path.is_dir())[-1]
    shutil.rmtree(newest)


def _cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for at in range(len(content) // 3, len(content), max(len(content) // 7, 1)):
        content[at] ^= 0x55
    path.write_bytes(content)


def _instead(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "gone": Path.unlink,
    "empty": _instead(b""),
    "cut in half": _cut,
    "bits flipped": _flip,
    "null": _instead(b"null\n"),
    "a list": _instead(b"[1, 2]\n"),
    "a mapping": _instead(b"{}\n"),
    "a number": _instead(b"7\n"),
    "nested": _instead(b"[" * 20_000 + b"]" * 20_000),
    "binary": _instead(bytes(range(256)) * 8),
    "a folder": _folder,
    "a FIFO": _fifo,
}


def artefacts(made: Path) -> Iterator[Case]:
    for kind, commands in COMMANDS.items():
        root = made / kind
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            name = file.relative_to(root)
            if "tensorboard" in name.parts or name.suffix == ".html":
                continue  # nothing reads them back
            for damage, change in DAMAGE.items():
                for command in commands:
                    shown = f"{kind}: {name} {damage}: {' '.join(command[:-1])}"
                    yield Case(shown, command, _damaged(root, name, change))


def _damaged(root: Path, name: Path, change: Callable[[Path], None]) -> Callable[[Path], None]:
    def arrange(folder: Path) -> None:
        shutil.copytree(root, folder / "it")
        change(folder / "it" / name)

    return arrange
