"""Files are read in one place, which waits for nobody and believes nothing."""

from __future__ import annotations

import json
import os
import pickle
import socket
from pathlib import Path

import pytest

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.safe_io import (
    TEXT_LIMIT,
    UnreadableError,
    path_exists,
    payload_hash,
    read_bytes,
    read_json,
    read_text,
    schema_mismatch,
)
from slipstream.core.storage.atomic_io import write_hashed


def fifo(path):
    os.mkfifo(path)
    return path


def a_socket(path):
    # Names of sockets are short: bind from inside of the folder.
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(before)
    return path


def a_folder(path):
    path.mkdir()
    return path


def a_loop(path):
    path.symlink_to(path)
    return path


ODD = {
    "named pipe": fifo,
    "a socket": a_socket,
    "is a folder": a_folder,
    "a device": lambda path: Path("/dev/zero"),
    "name is too long": lambda path: path.with_name("x" * 300),
    "name cannot be": lambda path: Path(f"{path}\0x"),
    "symbolic links": a_loop,
}


@pytest.mark.parametrize("words", ODD)
def test_what_is_no_file_is_refused_at_once(tmp_path, words):
    path = ODD[words](tmp_path / "odd")
    with pytest.raises(UnreadableError, match=words):
        read_bytes(path)
    with pytest.raises(ConfigError, match=rf"The config file .* cannot be read: .*{words}"):
        read_text(path, "The config file")
    with pytest.raises(CheckpointError, match=words):
        read_json(path, CheckpointError, "Restore it.")


def test_a_file_without_end_is_refused(tmp_path):
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(TEXT_LIMIT + 1)  # no byte of it is on the disk
    with pytest.raises(ConfigError, match="1,048,577 bytes"):
        read_text(large, "The config file")
    assert read_bytes(large) == bytes(TEXT_LIMIT + 1)


def test_text_that_is_none(tmp_path):
    (tmp_path / "a").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_text(tmp_path / "a", "The config file")
    with pytest.raises(ConfigError, match="no such file"):
        read_text(tmp_path / "b", "The config file")
    (tmp_path / "c").write_bytes("﻿env: cartpole".encode())  # with a byte order mark
    assert read_text(tmp_path / "c", "The config file") == "env: cartpole"


def test_whether_something_is_there(tmp_path):
    assert path_exists(tmp_path)
    assert path_exists(a_loop(tmp_path / "loop"))
    for absent in ("none", "x" * 300, "nul\0"):
        assert not path_exists(tmp_path / absent)


SHAPE = {"members": [{"seed": int}], "score?": (int, float), "name": str, "progress": {}}
FITS = {"members": [{"seed": 3, "more": None}], "name": "a", "progress": {}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"score": 1.5}, None),
        ({"members": []}, None),
        ({"members": {}}, "`members` is a mapping, not a list"),
        ({"members": [3]}, "`members`, item 0, is 3, not a mapping"),
        ({"members": [{"seed": 1}, {}]}, "`members`, item 1, lacks 'seed'"),
        ({"members": [{"seed": "4"}]}, '`seed` is "4"'),
        ({"members": [{"seed": True}]}, "`seed` is true"),
        ({"score": None}, "`score` is null"),
        ({"score": [1]}, "`score` is a list"),
        ({"progress": []}, "`progress` is a list, not a mapping"),
    ],
)
def test_shapes(changes, words):
    assert schema_mismatch({**FITS, **changes}, SHAPE) == words


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", '"text"', "[" * 100_000, "\xff", '{"name": 3}', '{"members": 7}'],
)
def test_json_that_is_something_else(tmp_path, text):
    (tmp_path / "r.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"r\.json cannot be read: .*\. Restore it\."):
        read_json(tmp_path / "r.json", CheckpointError, "Restore it.", SHAPE)


def test_a_seal_is_verified_and_taken_off(tmp_path):
    path = tmp_path / "r.json"
    assert read_json(path, CheckpointError, "") is None
    facts = {"b": 1 / 3, "a": [1, None, "ü"], "c": {"d": 1e22}}
    write_hashed(path, facts)
    assert read_json(path, CheckpointError, "") == facts
    written = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(written.items()))))  # nothing but the order
    assert read_json(path, CheckpointError, "") == facts
    written["b"] = 0.5
    path.write_text(json.dumps(written))
    with pytest.raises(CheckpointError, match="hash"):
        read_json(path, CheckpointError, "")
    del written["sha256"]
    path.write_text(json.dumps(written))
    assert read_json(path, CheckpointError, "")["b"] == 0.5
    with pytest.raises(CheckpointError, match="hash"):
        read_json(path, CheckpointError, "", sealed=lambda facts: True)
    assert (
        payload_hash({"a": 1, "b": 2})
        == payload_hash({"b": 2, "a": 1})
        != payload_hash({"a": 1, "b": 3})
    )


def test_a_key_that_is_asked_for_and_missing_is_refused_at_any_depth(tmp_path):
    path = tmp_path / "result.json"
    path.write_text('{"winner": {"trial": 3}, "trials": [{"kind": "complete"}]}')
    found = read_json(path, CheckpointError, "Restore it.")
    assert found["winner"]["trial"] == 3 and found.get("holdout") is None
    for asked in (lambda: found["holdout"], lambda: found["winner"]["forced"]):
        with pytest.raises(CheckpointError, match=r"result.json cannot be read: .* is missing"):
            asked()
    with pytest.raises(CheckpointError, match=r"'score' is missing\. Restore it"):
        found["trials"][0]["score"]
    assert type(pickle.loads(pickle.dumps(found))) is dict
