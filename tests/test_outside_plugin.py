"""The plugin of docs/guides/plugins.md, installed as a package, takes part in everything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDES = Path(__file__).parents[1] / "docs/guides"
PAGE = "".join((GUIDES / f"{name}.md").read_text() for name in ("custom-environment", "plugins"))
PROGRAM = """
import slipstream, walk_plugin
run = slipstream.train("walk", total_timesteps=2048, num_envs=8, out="run")
assert {"Started", "Finished"} <= set(walk_plugin.events), walk_plugin.events
assert run.provenance["plugins"] == {"walk": "1.0"}, run.provenance["plugins"]
assert "The exit is at the right end." in (run.path / "report.html").read_text()
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder into which pip installed the package; no network is used."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name, text in re.findall(r"<!-- file: (walk\w*\.py) -->\n```python\n(.*?)```", PAGE, re.S):
        (source / name).write_text(text)
    (project,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    (source / "pyproject.toml").write_text(project)
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--target", str(target))
    subprocess.run((*pip, *offline, str(source)), check=True, timeout=120)
    return target


def call(installed: Path, folder: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = (sys.executable, *words)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_kernel_is_trained_with_its_section_and_callback(
    installed: Path, tmp_path: Path
) -> None:
    call(installed, tmp_path, "-c", PROGRAM)


def test_its_command_and_kernel_are_listed(installed: Path, tmp_path: Path) -> None:
    assert call(installed, tmp_path, "-m", "slipstream", "shortest", "--length=5") == "4 steps\n"
    assert "Walk to the right end" in call(installed, tmp_path, "-m", "slipstream", "list")


def test_broken_commands_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "rusty.py").write_text("commands = {'rusty': 'rusty_commands'}")
    (tmp_path / "rusty_commands.py").write_text("import that_is_not_there")
    facts = tmp_path / "rusty-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: rusty\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[slipstream.plugins]\nrusty = rusty\n")
    assert "slipstream" in call(tmp_path, tmp_path, "-m", "slipstream", "--version")
