"""The engine works without applications, and without all interfaces but the command line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import slipstream

ROOT = Path(__file__).parents[1]
REST = ("markets", "games", "adapters", "compat", "dashboard", "jobs")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A folder with the engine, `cli/`, `api/` and the engine's tests."""
    folder = tmp_path_factory.mktemp("alone")
    without = shutil.ignore_patterns("__pycache__", *REST)
    shutil.copytree(Path(slipstream.__file__).parent, folder / "src/slipstream", ignore=without)
    shutil.copytree(ROOT / "tests/engine", folder / "tests/engine", ignore=without)
    for name in ("examples", "benchmarks", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=without)
    for name in ("tests/conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def run(alone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=alone,
        env={**os.environ, "PYTHONPATH": str(alone / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_trains_from_the_command_line(alone: Path) -> None:
    code = "import slipstream; print(slipstream.__file__); from slipstream.cli import main; main()"
    words = ("train", "cartpole", "--total-timesteps", "2048", "--set", "training.num_envs=8")
    done = run(alone, "-c", code, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(alone))
    assert list(alone.glob("runs/*/report.html"))


@pytest.mark.parametrize(
    "path",
    [
        "kernels/test_kernel.py",
        pytest.param("", marks=[pytest.mark.slow, pytest.mark.timeout(3600)], id="all"),
    ],
)
def test_the_engines_tests_need_nothing_else(alone: Path, path: str) -> None:
    done = run(alone, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/engine/{path}")
    assert done.returncode == 0, done.stdout[-3000:]


def test_no_test_of_the_engine_names_what_is_above_it() -> None:
    above = re.compile(rf"\bslipstream[./]({'|'.join(REST)})\b")
    files = sorted((ROOT / "tests/engine").rglob("*.py"))
    assert len(files) > 150
    assert not [str(path) for path in files if above.search(path.read_text("utf-8"))]
