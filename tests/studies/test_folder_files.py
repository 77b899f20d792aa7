"""A study's JSON files: sealed, and refused in one paragraph where they are something else."""

from __future__ import annotations

import json
import os

import pytest

from slipstream.core.errors import CheckpointError
from slipstream.studies.record.folder import StudyFolder


@pytest.fixture
def folder(tmp_path):
    folder = StudyFolder(tmp_path / "study")
    folder.path.mkdir()
    return folder


def read(folder):
    return folder.result, folder.provenance, folder.asked_to_cut


@pytest.mark.parametrize("name", ["result.json", "provenance.json", "stop.json"])
@pytest.mark.parametrize("text", ["", "[]", "7", "[" * 100_000, '{"trials": [], "notes": 3}'])
def test_json_of_another_shape(folder, name, text):
    (folder.path / name).write_text(text)
    with pytest.raises(CheckpointError, match=rf"{name} cannot be read: .*intact in ledger\.db"):
        read(folder)


def test_a_pipe_is_waited_for_by_nobody(folder):
    os.mkfifo(folder.path / "provenance.json")
    with pytest.raises(CheckpointError, match="named pipe"):
        _ = folder.provenance


def test_facts_survive_and_altered_ones_are_not_believed(folder):
    folder.record(identity={"a": 1 / 3}, notes=["x"])
    folder.record(environment={"name": "forex"})
    facts = {"identity": {"a": 1 / 3}, "notes": ["x"], "environment": {"name": "forex"}}
    assert folder.provenance == facts
    path = folder.path / "provenance.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "notes": ["y"]}))
    with pytest.raises(CheckpointError, match="hash"):
        _ = folder.provenance
    folder.ask_to_stop(True)
    assert not folder.asked_to_cut
    folder.ask_to_stop(False)
    assert folder.asked_to_cut
