"""A study's files: sealed, refused in one paragraph, what looking at them costs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.rl.best_policies import BestPolicies
from slipstream.studies.record.folder import (
    StudyFolder,
    describe_difference,
    read_section,
    read_study,
)
from slipstream.training.runs.policies import deployed_folder
from slipstream.training.runs.run import Run


@pytest.fixture
def folder(tmp_path):
    folder = StudyFolder(tmp_path / "study")
    folder.path.mkdir()
    return folder


def read(folder):
    return folder.result, folder.provenance, folder.is_cut_requested


@pytest.mark.parametrize("name", ["result.json", "provenance.json", "stop.json"])
@pytest.mark.parametrize("text", ["", "[]", "7", "[" * 100_000, '{"trials": [], "notes": 3}'])
def test_json_of_another_shape(folder, name, text):
    (folder.path / name).write_text(text)
    with pytest.raises(CheckpointError, match=rf"{name} cannot be read: .*intact in ledger\.db"):
        read(folder)


def test_a_second_search_is_told_that_all_cores_are_used(folder, monkeypatch):
    monkeypatch.setattr("slipstream.core.storage.atomic_io._PATIENCE_SECONDS", 0.0)
    folder.lock()
    with pytest.raises(ConfigError, match=r"runs the study study, and uses its cores already"):
        StudyFolder(folder.path).lock()
    folder.unlock()


def test_commands_that_refusals_name_take_a_folder_with_a_blank(tmp_path, monkeypatch):
    monkeypatch.setattr("slipstream.core.storage.atomic_io._PATIENCE_SECONDS", 0.0)
    folder, said = StudyFolder(tmp_path / "a b"), []
    folder.path.mkdir()
    folder.lock()
    for refuse in (
        StudyFolder(folder.path).lock,
        lambda: StudyFolder.open(str(folder.path)),
        lambda: BestPolicies(folder.path, print).present,
        lambda: (folder.config.touch(), Run.open(folder.path)),
        lambda: (folder.ledger.touch(), deployed_folder(folder.path)),
        lambda: ((folder.path / "result.json").touch(), deployed_folder(folder.path)),
    ):
        with pytest.raises((CheckpointError, ConfigError)) as refused:
            refuse()
        said += [shlex.split(one) for one in str(refused.value).split("`")[1::2]]
    folder.unlock()
    named = [command for command in said if str(folder.path) in command]
    assert [command[1] for command in named] == [
        *("study", "study", "tune", "resume", "study", "resume", "study", "resume")
    ]


def test_a_setting_that_is_gone_makes_no_other_study():
    before = {"training": {"double_buffer": False, "total_timesteps": 5}}
    assert not describe_difference(before, {"training": {"total_timesteps": 5}})
    assert describe_difference(before, {"training": {"total_timesteps": 6}}).startswith(
        "`training.total_timesteps`"
    )


def test_a_setting_that_was_added_makes_no_other_study():
    before, now = (
        {"training": {"total_timesteps": 5}},
        {"total_timesteps": 5, "precision": "float32"},
    )
    assert not describe_difference(before, {"training": now})
    rounded = describe_difference(before, {"training": {**now, "precision": "tf32"}})
    assert rounded == "`training.precision` was float32 and is tf32"


def test_a_pipe_is_waited_for_by_nobody(folder):
    os.mkfifo(folder.path / "provenance.json")
    with pytest.raises(CheckpointError, match="named pipe"):
        _ = folder.provenance


def test_facts_survive_and_altered_ones_are_not_believed(folder):
    folder.update_provenance(identity={"a": 1 / 3}, notes=["x"])
    folder.update_provenance(environment={"name": "forex"})
    facts = {"identity": {"a": 1 / 3}, "notes": ["x"], "environment": {"name": "forex"}}
    assert folder.provenance == facts
    path = folder.path / "provenance.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "notes": ["y"]}))
    with pytest.raises(CheckpointError, match="hash"):
        _ = folder.provenance
    folder.request_stop(True)
    assert not folder.is_cut_requested
    folder.request_stop(False)
    assert folder.is_cut_requested


def test_looking_at_a_study_loads_no_library_for_training():
    code = (
        "import sys, slipstream.studies.record.inspection as s;"
        "print([m for m in ('torch', 'numba', 'optuna', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("read", [read_study, read_section])
def test_a_file_without_a_study_is_none(read, tmp_path):
    """A file cut in half may be a whole file of fewer sections."""
    (tmp_path / "study.yaml").write_text("env: {name: cartpole}\n")
    with pytest.raises(CheckpointError, match=r"no section `study`.*trials are intact"):
        read(tmp_path / "study.yaml")
