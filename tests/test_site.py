"""The site: every page is in its menu, guides are short, and it builds without a complaint."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
# Tables that are looked up, not read from one end to the other.
LONGER = {"performance.md", "config.md", "cli.md"}


def test_guides_are_short() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        if page.name not in LONGER:
            assert len(page.read_text().splitlines()) <= 250, page.name


def test_the_reference_has_what_guides_import() -> None:
    """A name, or its module; read as text, for without MkDocs the hook cannot be imported."""
    held = set(re.findall(r'"(slipstream\.[\w.]+)"', (ROOT / "docs/site/hook.py").read_text()))
    named = re.compile(
        r"from (slipstream\.[\w.]+) import (\([^)]+\)|[\w, ]+)|import (slipstream\.[\w.]+)"
    )
    found = 0
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for module, names, whole in named.findall(page.read_text()):
            for name in re.findall(r"\w+", names) or [""]:
                place = f"{module}.{name}" if name else whole
                inside = any(one.startswith(f"{place}.") for one in held)  # `kernel.KernelData`
                assert inside or held & {place, module}, f"{page.name} imports {place}"
                found += 1
    assert found > 30


def load(name: str) -> Any:
    """Import a module of docs/site, which is no package."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / f"docs/site/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["config", "cli"])
def test_generated_pages_are_current(name: str) -> None:
    module = load("generated_pages")
    written = (ROOT / f"docs/reference/{name}.md").read_text(encoding="utf-8")
    assert getattr(module, f"{name}_page")() == written, "run `make docs`"


@pytest.fixture
def hook() -> Any:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: make site")
    return load("hook")


def test_a_public_name_without_a_docstring_ends_the_build(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "::: slipstream.api.training.train\n" in hook._reference()
    (tmp_path / "bare.py").write_text(
        '"""Has one."""\n\n\ndef told():\n    """Yes."""\n\n\ndef f(): ...\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(hook.PluginError, match=r"bare\.f is public"):
        hook._entry("bare")


def test_every_example_says_what_it_shows(hook: Any) -> None:
    page = hook._examples(sorted((ROOT / "examples").rglob("*.*")))
    lines = [line for line in page.splitlines() if line.startswith("- ")]
    assert len(lines) > 10 and not [line for line in lines if line.endswith(": ")]


def test_in_the_dark_only_drawn_pictures_are_turned_round(hook: Any) -> None:
    """A screenshot has the scheme that it was taken in."""
    page: Any = SimpleNamespace(file=SimpleNamespace(src_uri="guides/dashboard.md"))
    for path in (ROOT / "docs/figures").glob("*.png"):
        shown = hook.on_page_markdown(f"![One](../figures/{path.name})", page, None, None)
        assert (".drawn" in shown) == (not path.name.startswith(("dashboard-", "report"))), (
            path.name
        )


@pytest.mark.slow
def test_the_site_builds_strictly(hook: Any, tmp_path: Path) -> None:
    """As `make site` does; and a link that leads nowhere is found."""
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: make site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d"]
    done = subprocess.run(
        [*command, str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (tmp_path / "site/reference/python.html").read_text()
    assert all(f'id="slipstream.api.training.{name}"' in reference for name in ("train", "resume"))
    assert (tmp_path / "site/search/search_index.json").stat().st_size > 100_000
    copy = tmp_path / "copy"
    ignored = shutil.ignore_patterns(".git", ".venv*", "build", "__pycache__", "tests")
    shutil.copytree(ROOT, copy, ignore=ignored)
    (copy / "docs/guides/jobs.md").write_text("# Jobs\n\n[nothing](nowhere.md)\n")
    done = subprocess.run(
        [*command, str(tmp_path / "other")], cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0 and "nowhere.md" in done.stdout + done.stderr
