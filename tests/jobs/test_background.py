"""--replace: whose folders it leaves alone, and what it says."""

import os
from types import SimpleNamespace

import pytest

from slipstream.core.errors import ConfigError
from slipstream.jobs import background
from slipstream.jobs.background import make_room


@pytest.fixture
def folder(tmp_path):
    """Of a run."""
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "config.yaml").write_text("env: cartpole\n")
    return tmp_path / "a b"


def test_a_folder_of_another_user_is_left_alone(folder, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(ConfigError, match=r"belongs to user \d+: --replace moves folders of yours"):
        make_room(folder, print)
    assert folder.is_dir()


def test_what_another_machine_works_on_is_left_alone(folder, monkeypatch):
    status = SimpleNamespace(host="elsewhere", pid=7, judged=lambda: "running")
    monkeypatch.setattr(background, "status_of", lambda _: status)
    with pytest.raises(ConfigError) as caught:
        make_room(folder, print)
    assert f"process 7 on elsewhere: stop it there, with `slipstream stop '{folder}'`" in str(
        caught.value
    )
    assert folder.is_dir()
