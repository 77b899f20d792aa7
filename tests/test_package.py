"""The wheel: what is in it, and that it is enough to train with, in an emptied environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import slipstream

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, as `python -m build` builds it from a source distribution."""
    pytest.importorskip("setuptools")
    place = tmp_path_factory.mktemp("package")
    copy = place / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    (copy / "tests").mkdir()
    code = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, str(place)], cwd=copy, check=True, capture_output=True
    )
    (found,) = place.glob("*.whl")
    return found


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"slipstream-{slipstream.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "slipstream",
        f"slipstream-{slipstream.__version__}.dist-info",
    }
    own = {f"slipstream/{path.relative_to(ROOT / 'src/slipstream')}" for path in package_files()}
    assert own == {name for name in names if name.startswith("slipstream/")}
    licences = [name for name in names if "/licenses/" in name]
    assert any(name.endswith("cli/demo/prices/LICENSE.txt") for name in licences)
    assert len(licences) == 3


def package_files() -> list[Path]:
    """Every file below src/slipstream that is no by-product of running it."""
    files = (path for path in (ROOT / "src/slipstream").rglob("*") if path.is_file())
    return [path for path in files if "__pycache__" not in path.parts]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_runs_from_the_wheel_without_a_clone(wheel: Path, tmp_path: Path) -> None:
    """Its libraries are those of this environment; everything of slipstream is the wheel's."""
    target, work = tmp_path / "installed", tmp_path / "work"
    work.mkdir()
    zipfile.ZipFile(wheel).extractall(target)
    kept = [sysconfig.get_path("purelib"), *(p for p in sys.path if p.endswith("site-packages"))]
    environ = {
        "PATH": os.defpath,
        "HOME": str(tmp_path / "home"),
        "PYTHONPATH": os.pathsep.join([str(target), *dict.fromkeys(kept)]),
    }
    done = subprocess.run(
        [sys.executable, "-S", "-m", "slipstream", "demo", "--out", "first"],
        cwd=work,
        env=environ,
        capture_output=True,
        text=True,
        timeout=500,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert re.search(r"Prices: .*MIT licence", said)
    assert f"Report: {work / 'first/report.html'}" in said
    assert (work / "first/report.html").stat().st_size > 10_000
    assert str(target) in said  # the config is the wheel's own
