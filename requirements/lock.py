"""Renew every lock of requirements/: ``make lock``.

pip resolves the ranges of pyproject.toml for the Python and the platform that run this file. A lock
holds names and public versions only. Header, comments and order of a lock are kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
Pins = dict[str, str]  # version by canonical name

# Packages that are not renewed; their lock's header states why.
HELD = ("torch", "ccxt")
# Libraries that depend on the build of torch; pip adds them.
OF_TORCH = ("nvidia-", "cuda-", "triton")


@dataclass(frozen=True)
class Lock:
    """How a lock is resolved.

    Attributes:
        requirements: ranges to resolve; empty: the names that the lock lists.
        base: lock that is installed first. Its pins are kept and not repeated.
        same_as: lock with which shared packages have equal versions.
        dependencies: whether what the packages require is locked too.
    """

    requirements: tuple[str, ...] = ()
    base: str | None = None
    same_as: str | None = None
    dependencies: bool = True


def plan(project: Mapping[str, Any]) -> dict[str, Lock]:
    """Return the locks by name, each after those that it depends on.

    Args:
        project: content of pyproject.toml.
    """
    metadata, build = project["project"], tuple(project["build-system"]["requires"])
    extras = metadata["optional-dependencies"]
    return {
        "base": Lock((*metadata["dependencies"], *build)),
        "live": Lock(tuple(extras["live"]), base="base"),
        "dev": Lock((*extras["torch"], *extras["dev"]), base="live"),
        "ray": Lock(tuple(extras["ray"]), base="dev"),
        "site": Lock(tuple(extras["site"]), base="dev"),
        "wandb": Lock(tuple(extras["wandb"]), base="dev"),
        "package": Lock((*build, *extras["package"]), same_as="dev"),
        "peers": Lock(base="dev", dependencies=False),
        "loops": Lock(),
    }


def read_pins(text: str) -> Pins:
    """Return the pins of a lock, without those of the lock that it includes."""
    pairs = [line.split("==") for line in text.splitlines() if _is_pin(line)]
    return {canonicalize_name(name): version.strip() for name, version in pairs}


def renew(text: str, pins: Mapping[str, str]) -> str:
    """Return a lock with new pins.

    Args:
        text: the lock.
        pins: versions by canonical name. A line whose package is absent is removed; a package
            without a line is inserted in alphabetical order.
    """
    left, lines = dict(pins), []
    for line in text.splitlines():
        name = line.partition("==")[0]
        if not _is_pin(line):
            lines.append(line)
        elif (version := left.pop(canonicalize_name(name), None)) is not None:
            lines.append(f"{name}=={version}")
    for name, version in sorted(left.items()):
        later = (k for k, line in enumerate(lines) if _is_pin(line) and line > name)
        lines.insert(next(later, len(lines)), f"{name}=={version}")
    return "\n".join(lines) + "\n"


def _is_pin(line: str) -> bool:
    return "==" in line and not line.startswith("#")


def resolve(requirements: Sequence[str], constraints: Pins, dependencies: bool) -> Pins:
    """Return the versions that pip would install into an empty environment.

    Raises:
        CalledProcessError: pip found no versions that fit; its message is on standard error.
    """
    with tempfile.TemporaryDirectory() as folder:
        report, file = Path(folder, "report.json"), Path(folder, "constraints.txt")
        file.write_text("".join(f"{name}=={version}\n" for name, version in constraints.items()))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
        command += ["--ignore-installed", "--report", str(report), "--constraint", str(file)]
        command += [] if dependencies else ["--no-deps"]
        subprocess.run([*command, *requirements], check=True)
        found = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    return {canonicalize_name(one["name"]): Version(one["version"]).public for one in found}


def renew_all(
    texts: Mapping[str, str],
    locks: Mapping[str, Lock],
    resolver: Callable[[Sequence[str], Pins, bool], Pins] = resolve,
) -> dict[str, str]:
    """Return the renewed text of every lock.

    Args:
        texts: current text by name.
        locks: how each is resolved, in order.
        resolver: `resolve`; replaced in tests.
    """
    renewed: dict[str, str] = {}
    complete: dict[str, Pins] = {}  # pins with those of included locks
    for name, lock in locks.items():
        current = read_pins(texts[name])
        included = complete.get(lock.base or "", {})
        constraints = included | complete.get(lock.same_as or "", {})
        constraints |= {held: current[held] for held in HELD if held in current}
        found = resolver(lock.requirements or tuple(current), constraints, lock.dependencies)
        own = {package: version for package, version in found.items() if package not in included}
        if "torch" in own:
            own = {package: own[package] for package in own if not package.startswith(OF_TORCH)}
        renewed[name], complete[name] = renew(texts[name], own), included | own
    return renewed


def main() -> None:
    """Renew the locks and print what changed."""
    locks = plan(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8")))
    files = {name: ROOT / f"requirements/{name}.lock" for name in locks}
    texts = {name: path.read_text("utf-8") for name, path in files.items()}
    for name, text in renew_all(texts, locks).items():
        files[name].write_text(text, "utf-8")
        before, after = read_pins(texts[name]), read_pins(text)
        for package in sorted(before.keys() | after.keys()):
            old, new = before.get(package, "absent"), after.get(package, "removed")
            if old != new:
                print(f"{name}: {package} {old} -> {new}")


if __name__ == "__main__":
    main()
