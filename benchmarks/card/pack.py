"""Archive of the packages that a machine without a package index lacks."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

_ROOT = Path(__file__).parents[2]
_LIMIT = (
    62 * 2**20
)  # bytes; the limit of a transfer is 64 MiB, and the checkout takes less than 2 MiB
_TESTS = ("pytest", "hypothesis", "iniconfig", "pluggy", "sortedcontainers")
_PLATFORMS = (
    *("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64"),
    *("manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64"),
)


def pins(lines: Iterable[str]) -> dict[str, str]:
    """Return versions by normalised name from a lock file or from `pip list --format=freeze`."""
    versions = {}
    for line in lines:
        name, _, version = line.split("#")[0].strip().partition("==")
        if version:
            versions[re.sub(r"[-_.]+", "-", name).lower()] = version.split(";")[0].strip()
    return versions


def missing(wanted: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return the pins of packages that are not installed in any version."""
    return [f"{name}=={version}" for name, version in wanted.items() if name not in there]


def main(
    there: Annotated[Path, typer.Argument(help="`pip list --format=freeze` of that machine.")],
    archive: Annotated[Path, typer.Argument(help="To write, such as packages.tar.xz.")],
    python: Annotated[str, typer.Option(help="Its Python.")] = "3.12",
) -> None:
    """Pack the packages that the machine lacks into one archive.

    The runtime of polars is the largest of them by far.
    """
    lock = pins((_ROOT / "requirements/base.lock").read_text("utf-8").splitlines())
    development = pins((_ROOT / "requirements/dev.lock").read_text("utf-8").splitlines())
    lock |= {name: development[name] for name in _TESTS}
    asked = missing(lock, pins(there.read_text("utf-8").splitlines()))
    print("Missing there:", ", ".join(asked) or "nothing")
    with tempfile.TemporaryDirectory(prefix="slipstream-card-") as folder:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile"]
        command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
        for platform in _PLATFORMS:
            command += ["--platform", platform]
        subprocess.run([*command, "--target", folder, *asked], check=True)
        with tarfile.open(archive, "w:xz", preset=9) as packed:
            packed.add(folder, "packages")
    size = archive.stat().st_size
    fits = "fits" if size < _LIMIT else "does NOT fit"
    print(f"{archive}: {size / 2**20:.1f} MiB, which {fits} into {_LIMIT >> 20}")
    raise SystemExit(0 if size < _LIMIT else 1)


if __name__ == "__main__":
    typer.run(main)
