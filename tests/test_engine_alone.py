"""The engine works without applications, and without all interfaces but the command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import slipstream

REST = ("markets", "games", "adapters", "compat", "dashboard", "jobs")


def test_it_trains_from_the_command_line(tmp_path: Path) -> None:
    copy = tmp_path / "src/slipstream"
    source = Path(slipstream.__file__).parent
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in REST:
        shutil.rmtree(copy / name)
    code = "import slipstream; print(slipstream.__file__); from slipstream.cli import main; main()"
    words = ("train", "cartpole", "--total-steps", "2048", "--set", "training.num_envs=8")
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(copy.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(copy))
    assert list(tmp_path.glob("runs/*/report.html"))
