"""Kernels that leave a trace where they are imported, and users with registers of their own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slipstream.kernels.kernel_registry import USER_MODULE_PREFIX
from slipstream.training.environments import kernel_environment

EXAMPLES = Path(__file__).parents[3] / "examples" / "kernels"
RAN = "import pathlib\npathlib.Path(__file__).with_name('{}.ran').touch()\n"
SMALL = {"num_envs": 4, "total_timesteps": 256, "report": False, "log": lambda sentence: None}
FAST = {
    **{"agent.n_steps": 32, "agent.batch_size": 32, "evaluation.episodes": 2},
    "training.backend": "serial",  # no version of a kernel is compiled for these tests
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty working folder, and a register of the test's own; kernels are taken to be right."""
    monkeypatch.setattr(kernel_environment, "check_environment", lambda *_, **__: None)
    become(monkeypatch, tmp_path, "me")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def become(monkeypatch, tmp_path, user):
    """Whose register it is; what was imported before is forgotten."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state" / user))
    for name in [name for name in sys.modules if name.startswith(USER_MODULE_PREFIX)]:
        del sys.modules[name]


def kernel(path, example="shop"):
    """A kernel's file that leaves a trace where it is imported."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RAN.format(path.stem) + (EXAMPLES / f"{example}.py").read_text())
    return path


def ran(path):
    """Whether a file was imported since this was last asked."""
    trace = path.with_name(f"{path.stem}.ran")
    found = trace.exists()
    trace.unlink(missing_ok=True)
    return found
