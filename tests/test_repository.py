"""The repository around the code: files, pins, verbs, and what must not be in it."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import slipstream
from slipstream.core.extras import EXTRAS, install_command

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LAYERS = (
    *("core", "jit", "kernels", "rl", "training", "gym", "studies", "report", "markets", "games"),
    *("jobs", "dashboard", "api", "cli", "adapters", "compat"),
)


# Files that import each other in a circle, for types or within functions too, and why they may.
# What is marked "to be cut" is no example; at most two circles stay.
CIRCLES = {
    "kernels.interpreter kernels.kernel_vector_env": "the class replays a failed step",
}


@functools.cache
def imports_of_files() -> dict[str, set[str]]:
    """What each file of the package names in an import statement, wherever that stands."""
    files = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in (ROOT / "src/slipstream").rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        named = set[str]()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= {one if one in files else node.module for one in inner}
        found[name] = (named & files.keys()) - {name}
    return found


def circles_of(graph: dict[str, set[str]]) -> list[set[str]]:
    """Groups of two or more files each of which reaches all others."""
    reached: dict[str, set[str]] = {}
    for name in graph:
        seen, left = set[str](), [name]
        while left:
            for one in graph[left.pop()] - seen:
                seen.add(one)
                left.append(one)
        reached[name] = seen
    groups = {
        frozenset(one for one in reached[name] if name in reached[one])
        for name in graph
        if name in reached[name]
    }
    return [set(group) for group in groups]


def pins(name: str) -> dict[str, str]:
    """Version by canonical name, of a lock and of the one that it includes."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    found: dict[str, str] = {}
    for line in filter(None, lines):
        if line.startswith("-r "):
            found |= pins(f"requirements/{line.removeprefix('-r ')}")
            continue
        assert line.count("==") == 1, "every line of a lock file is a pin"
        package, version = line.split("==")
        assert canonicalize_name(package) not in found, f"{package} is pinned twice"
        found[canonicalize_name(package)] = version
    return found


def source_files() -> list[Path]:
    """Files that git tracks; without git, those that a checkout would hold."""
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_the_files_of_a_repository_exist() -> None:
    for name in (
        *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile"),
        *("CITATION.cff", "SECURITY.md", "MANIFEST.in"),
        *("requirements/base.lock", "requirements/dev.lock"),
        *("requirements/peers.lock", "requirements/loops.lock"),
        "requirements/live.lock",
        *(".ci/run", "src/slipstream/py.typed"),
        *(
            "docs/tutorials/first-training.md",
            "docs/guides/custom-environment.md",
            "docs/reference/glossary.md",
            "docs/reference/performance.md",
        ),
    ):
        assert (ROOT / name).is_file(), name
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_folders_are_the_layers() -> None:
    folders = [p.name for p in (ROOT / "src/slipstream").iterdir() if (p / "__init__.py").exists()]
    assert set(folders) <= set(LAYERS)


def test_files_import_each_other_in_no_circle() -> None:
    known = [{f"slipstream.{file}" for file in files.split()} for files in CIRCLES]
    for circle in circles_of(imports_of_files()):
        assert any(circle <= one for one in known), (
            f"{', '.join(sorted(circle))} import each other in a circle: let one of them be handed "
            "what it needs, or put what both need into a file that imports neither"
        )


def test_circles_are_found_wherever_an_import_stands() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": {"f"}, "f": {"e"}}
    assert sorted(map(sorted, circles_of(graph))) == [["a", "b", "c"], ["e", "f"]]
    graph = imports_of_files()
    package = "slipstream"
    assert f"{package}.core.errors" in graph[f"{package}.cli.main"]  # at the top
    assert f"{package}.training.settings.config" in graph[package]  # for types alone
    assert (
        f"{package}.studies.record.inspection" in graph[f"{package}.cli.commands.watch"]
    )  # within


def test_the_dashboards_pages_are_written_to_be_read() -> None:
    """No build step makes them: what a browser loads is the source."""
    static = ROOT / "src/slipstream/dashboard/static"
    for path in (one for kind in ("js", "css", "html") for one in static.glob(f"*.{kind}")):
        if path.stem == "uPlot":  # vendored
            continue
        longest = max(path.read_text().splitlines(), key=len)
        assert len(longest) <= 100, f"{path}: {longest}"


def test_make_has_its_verbs() -> None:
    text = (ROOT / "Makefile").read_text()
    verbs = {"demo", "test", "test-all", "check", "bench", "docs", "clean"}
    verbs |= {"package", "site", "lock"}
    assert verbs <= set(re.findall(r"^([\w-]+):", text, re.MULTILINE))


def test_the_hooks_of_a_commit_are_those_of_make_check() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    hooks = [words.split() for words in re.findall(r"entry: \.venv/bin/(.+)", text)]
    assert {"ruff", "mypy", "lint-imports", "codespell", "python"} == {hook[0] for hook in hooks}
    for program, *words in hooks:
        paths = [word for word in words if not word.startswith("-")]
        lines = [line for line in recipe.splitlines() if f"$(BIN)/{program}" in line]
        assert any(all(word in line for word in paths) for line in lines), program
    assert len(hooks) == text.count("- id:")


def test_the_citation_is_of_this_version() -> None:
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert found["cff-version"] == "1.2.0" and found["type"] == "software"
    assert found["version"] == slipstream.__version__
    assert found["license"] in PROJECT["project"]["license"]
    assert [one["name"] for one in found["authors"]] == [
        one["name"] for one in PROJECT["project"]["authors"]
    ]


def test_the_release_notes_are_of_this_version() -> None:
    text = (ROOT / "docs/reference/release-notes.md").read_text("utf-8")
    assert text.startswith(f"# Release notes: {slipstream.__version__}\n")
    assert f"slipstream-{slipstream.__version__}-py3-none-any.whl" in text
    assert f"## {slipstream.__version__} " in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_lock_fits_the_ranges() -> None:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    for lock, lines in (
        ("requirements/base.lock", project["dependencies"]),
        ("requirements/dev.lock", (*extras["torch"], *extras["dev"])),
        ("requirements/ray.lock", extras["ray"]),
        ("requirements/package.lock", (*PROJECT["build-system"]["requires"], *extras["package"])),
        ("requirements/site.lock", extras["site"]),
        ("requirements/live.lock", extras["live"]),
        ("requirements/wandb.lock", extras["wandb"]),
    ):
        locked = pins(lock)
        for line in lines:
            requirement = Requirement(line)
            version = locked[canonicalize_name(requirement.name)]
            assert Version(version) in requirement.specifier, line


def test_the_package_has_one_version() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    (place,) = PROJECT["tool"]["setuptools"]["dynamic"]["version"].values()
    module, _, name = place.rpartition(".")
    assert getattr(importlib.import_module(module), name) == slipstream.__version__
    for page in ("README.md", "docs/tutorials/first-training.md"):
        wheel = f"pip install dist/slipstream-{slipstream.__version__}-py3-none-any.whl"
        assert wheel in (ROOT / page).read_text(), page


def test_what_is_missing_is_installed_by_the_packages_of_an_extra() -> None:
    """A registry's `slipstream` is not this one: messages and pages name the packages."""
    extras = PROJECT["project"]["optional-dependencies"]
    theirs = {
        name: tuple(extras[name]) for name in extras if name not in ("dev", "package", "site")
    }
    assert theirs == EXTRAS
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*")]
    named = set[str]()
    for path in pages:
        text = path.read_text(errors="ignore")
        assert "slipstream[" not in text, path
        named |= set(re.findall(r"pip install '([^']+)'", text))
    assert named and named <= {line for lines in EXTRAS.values() for line in lines}
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        assert "slipstream[" not in text, path
        assert path.name == "extras.py" or "pip install" not in text, f"{path}: use core/extras.py"
    assert shlex.split(install_command("postgresql"))[1:] == [
        "-m",
        "pip",
        "install",
        *theirs["postgresql"],
    ]


def test_the_product_needs_no_torch() -> None:
    assert "torch" not in pins("requirements/base.lock")
    assert not [line for line in PROJECT["project"]["dependencies"] if line.startswith("torch")]


@pytest.mark.parametrize(
    "lock",
    [
        *("requirements/base.lock", "requirements/dev.lock", "requirements/ray.lock"),
        *("requirements/site.lock", "requirements/live.lock", "requirements/wandb.lock"),
        "requirements/package.lock",
    ],
)
def test_the_lock_is_the_whole_closure(lock: str) -> None:
    """What any locked package needs is locked too, at a version it accepts.

    Torch's own needs are passed over: they depend on its build, and `make` lets pip add them.
    """
    locked = pins(lock)
    for package, pinned in locked.items():
        if package == "torch":
            continue
        try:
            found = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{package} is not installed: this environment was not made from the lock")
        if Version(found.version).public != pinned:
            pytest.skip(f"{package} is installed in another version than the lock's")
        for line in found.requires or ():
            needed = Requirement(line)
            if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
                continue
            name = canonicalize_name(needed.name)
            assert name in locked, f"{package} needs {line}"
            assert Version(locked[name]) in needed.specifier, f"{package} needs {line}"


def test_the_package_is_made_with_few_and_with_the_same_versions() -> None:
    few, all_ = pins("requirements/package.lock"), pins("requirements/dev.lock")
    assert not few.keys() & {"torch", "numpy", "numba"}
    assert {name: all_[name] for name in few.keys() & all_.keys()}.items() <= few.items()


def test_peers_do_not_repin_the_lock() -> None:
    assert not set(pins("requirements/dev.lock")) & set(pins("requirements/peers.lock"))


def test_test_files_have_unique_names() -> None:
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_no_machine_of_ours_is_named() -> None:
    """No home folders, no registries, no absolute paths of the machine it was written on."""
    private = re.compile(
        r"file:///|--(?:extra-)?index-url|--find-links|/home/\w+/|/root/|/opt/\w|/work/|/tmp/slip"
    )
    own = Path(__file__)
    for path in source_files():
        if path == own or path.suffix in {".png", ".parquet", ".html"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            assert not private.search(line), f"{path}:{number}: {line.strip()}"


def test_no_large_files() -> None:
    for path in source_files():
        assert path.stat().st_size < 500_000, path


def test_importing_slipstream_is_cheap() -> None:
    heavy = ("torch", "numba", "polars", "matplotlib")
    code = f"import sys, slipstream; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "src"
    )
    assert done.stdout.strip() == "[]"


def test_a_class_name_has_one_meaning() -> None:
    """Two files share a name only where both fill the same place of a contract."""
    shared = {
        **{key: {"Config", "Params", "Data"} for key in ("kernels", "games", "markets")},
        "rl": {"Coefficients", "Explorer", "Group", "Learner"}
        | {"Rows", "Settings", "Space", "Tally"},
    }
    files: dict[str, set[str]] = {}
    for path in (ROOT / "src/slipstream").rglob("*.py"):
        folder = path.relative_to(ROOT / "src/slipstream").parts[0]
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            if node.name not in shared.get(folder, ()):
                files.setdefault(node.name, set()).add(str(path))
    assert not {name: sorted(own) for name, own in files.items() if len(own) > 1}


def test_the_badges_of_the_readme_are_true() -> None:
    text = (ROOT / "docs/figures/badges.svg").read_text()
    versions = PROJECT["project"]["requires-python"]
    first, after = re.findall(r"3\.(\d+)", versions)
    assert f">3.{first} to 3.{int(after) - 1}<" in text and versions.startswith(">=")
    assert ">Apache-2.0<" in text and PROJECT["project"]["license"].startswith("Apache-2.0")
    assert ">make test<" in text and len((ROOT / "README.md").read_text().splitlines()) <= 120
