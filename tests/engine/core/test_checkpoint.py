"""Checkpoints: whole or absent, exact, and a bad one is passed over and named."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.errors import CheckpointError, ResourceError
from slipstream.core.storage import atomic_io, checkpoint


def arrays():
    return {
        "key": np.array([0, 2**64 - 1, 2**63], np.uint64),
        "flag": np.array([[True, False]]),
        "count": np.array([-(2**63), 2**63 - 1], np.int64),
        "equity": np.array([1 / 3, -0.0, np.nan, np.inf]),
        "weight": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32),
        "pixel": np.arange(256, dtype=np.uint8),
        "empty": np.zeros((0, 3)),
        "scalar": np.array(7.5),
        "turned": np.arange(6.0).reshape(2, 3).T,
    }


def save(parent, steps, config="c"):
    folder = parent / checkpoint.checkpoint_name(steps)
    return checkpoint.save(folder, {"x": np.arange(steps)}, {"steps": steps, "config": config})


def test_every_bit_survives(tmp_path):
    checkpoint.save(tmp_path / "step-1", arrays(), {"steps": 1})
    loaded, manifest = checkpoint.load(tmp_path / "step-1")
    assert manifest["steps"] == 1
    assert set(loaded) == set(arrays())
    for name, expected in arrays().items():
        assert loaded[name].dtype == expected.dtype
        assert loaded[name].shape == expected.shape
        assert loaded[name].tobytes() == expected.tobytes()


def test_a_file_larger_than_the_memory_is_refused_before_it_is_read(tmp_path):
    folder = checkpoint.save(tmp_path / "step-1", arrays(), {"steps": 1})
    os.truncate(folder / checkpoint.STATE, 1 << 43)  # sparse: it takes no room on the disk
    with pytest.raises(ResourceError, match=r"8,192\.0 GiB of tensors"):
        checkpoint.load(folder)


def test_saving_again_replaces_and_leaves_nothing_else(tmp_path):
    save(tmp_path, 5)
    checkpoint.save(tmp_path / checkpoint.checkpoint_name(5), {"x": np.ones(2)}, {"steps": 5})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000005"]
    assert len(checkpoint.load(tmp_path / "step-000000000005")[0]["x"]) == 2


def corrupt(folder):
    data = bytearray((folder / checkpoint.STATE).read_bytes())
    data[-1] ^= 1
    (folder / checkpoint.STATE).write_bytes(bytes(data))


def truncate(folder):
    os.truncate(folder / checkpoint.STATE, 40)


def lose_state(folder):
    (folder / checkpoint.STATE).unlink()


def lose_manifest(folder):
    (folder / checkpoint.MANIFEST).unlink()


def break_manifest(folder):
    (folder / checkpoint.MANIFEST).write_text("{")


def edit_manifest(folder, **changes):
    path = folder / checkpoint.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def other_steps(folder):
    edit_manifest(folder, steps=-1)


def other_seal(folder):
    edit_manifest(folder, sha256="0" * 64)


def no_seal(folder):
    edit_manifest(folder, sha256=None)


def older_and_of_wrong_shape(folder):
    edit_manifest(folder, format=1, sha256=None, files=[])


def a_list(folder):
    (folder / checkpoint.MANIFEST).write_text("[1, 2]")


def a_pipe(folder):
    (folder / checkpoint.STATE).unlink()
    os.mkfifo(folder / checkpoint.STATE)


def other_format(folder):
    (folder / checkpoint.MANIFEST).write_text(json.dumps({"format": 99}))


@pytest.mark.parametrize(
    "damage",
    [
        *(corrupt, truncate, lose_state, lose_manifest, break_manifest, other_format, other_steps),
        *(other_seal, no_seal, older_and_of_wrong_shape, a_list, a_pipe),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path, damage):
    save(tmp_path, 1)
    damage(save(tmp_path, 2))
    said = []
    found = checkpoint.load_latest(tmp_path, said.append, "c")
    assert found is not None
    assert found[2]["steps"] == 1
    assert len(said) == 1
    assert "step-000000000002" in said[0]
    with pytest.raises(CheckpointError):
        checkpoint.load(tmp_path / checkpoint.checkpoint_name(2))


def test_a_foreign_checkpoint_is_passed_over(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2, config="another")
    said = []
    found = checkpoint.load_latest(tmp_path, said.append, "c")
    assert found is not None
    assert found[2]["steps"] == 1
    assert "another config" in said[0]


def test_none_at_all_is_a_start_but_none_valid_is_an_error(tmp_path):
    assert checkpoint.load_latest(tmp_path, print) is None
    corrupt(save(tmp_path, 1))
    with pytest.raises(CheckpointError, match="None of the 1 checkpoints"):
        checkpoint.load_latest(tmp_path, lambda text: None)


def test_rotation_keeps_the_newest_whole_ones(tmp_path):
    for steps in range(1, 6):
        save(tmp_path, steps)
    truncate(tmp_path / checkpoint.checkpoint_name(5))
    (tmp_path / ".step-abandoned").mkdir()
    checkpoint.rotate(tmp_path, 2)
    kept = [path.name for path in sorted(tmp_path.iterdir())]
    assert kept == [checkpoint.checkpoint_name(steps) for steps in (3, 4, 5)]


def test_a_checkpoint_under_another_name_is_passed_over(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2).rename(tmp_path / checkpoint.checkpoint_name(3))
    said = []
    found = checkpoint.load_latest(tmp_path, said.append, "c")
    assert found is not None and found[2]["steps"] == 1
    assert "under another name" in said[0]


ERRORS = {
    "ENOSPC": "The disk is full",
    "EDQUOT": "Your share of the disk is used up",
    "EFBIG": "larger than files may be here",
    "EROFS": "may not be written",
    "EIO": "the disk reports an error",
    "EMFILE": "as many files open as it may",
    "ENOTSUP": "may not be written",
}


@pytest.mark.parametrize("name", ERRORS)
def test_whatever_the_system_refuses_is_one_paragraph(tmp_path, monkeypatch, name):
    def refuse(*arguments, **keywords):
        raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))

    monkeypatch.setattr(atomic_io.os, "fsync", refuse)
    for write in (lambda: atomic_io.write_text(tmp_path / "a", "x"), lambda: save(tmp_path, 2)):
        with pytest.raises(ResourceError, match=ERRORS[name]) as error:
            write()
        assert str(tmp_path) in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_cannot_be_is_one_paragraph(tmp_path):
    for name in ("x" * 300, "nul\0"):
        with pytest.raises(ResourceError, match="may not be written"):
            atomic_io.write_text(tmp_path / name, "x")
    atomic_io.write_text(tmp_path / ("y" * 250), "as long as a name may be")


def test_what_killed_processes_left_is_swept(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / f".member-000-{dead.pid}-abcd.partial").mkdir()
    (tmp_path / f".member-000-{dead.pid}-abcd.partial" / "state").write_text("half")
    (tmp_path / f".result.json-{dead.pid}-abcd.partial").write_text("half")
    (tmp_path / f".config.yaml-{os.getppid()}-abcd.partial").write_text("being written")
    (tmp_path / "mine.partial").write_text("x")
    atomic_io.remove_partials(tmp_path)
    left = {f".config.yaml-{os.getppid()}-abcd.partial", "mine.partial"}
    assert {path.name for path in tmp_path.iterdir()} == left


def full_disk(*arguments, **keywords):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_one_paragraph_and_loses_nothing(tmp_path, monkeypatch):
    save(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(atomic_io.os, "fsync", full_disk)
        with pytest.raises(ResourceError, match="The disk is full"):
            save(tmp_path, 2)
    found = checkpoint.load_latest(tmp_path, print)
    assert found is not None
    assert found[2]["steps"] == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_inside_safetensors_is_recognised(tmp_path, monkeypatch):
    def fail(*arguments, **keywords):
        raise checkpoint.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint.safetensors.numpy, "save_file", fail)
    with pytest.raises(ResourceError, match="The disk is full"):
        save(tmp_path, 1)
    assert not list(tmp_path.iterdir())


def test_a_file_is_replaced_in_one_step(tmp_path, monkeypatch):
    file = tmp_path / "result.json"
    atomic_io.write_json(file, {"a": 1})
    monkeypatch.setattr(atomic_io.os, "fsync", full_disk)
    with pytest.raises(ResourceError, match="disk is full"):
        atomic_io.write_json(file, {"a": 2})
    assert json.loads(file.read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_json_has_no_nan():
    values = {"a": np.float64("nan"), "b": np.arange(2), "c": (1, float("inf")), 3: np.bool_(True)}
    assert atomic_io.to_jsonable(values) == {"a": None, "b": [0, 1], "c": [1, None], "3": True}


def test_nothing_has_its_name_before_it_is_on_the_disk(tmp_path, monkeypatch):
    """Neither a file nor a folder; and the name is, before the call returns."""
    done = []
    fsync, replace = atomic_io.os.fsync, atomic_io.os.replace

    def named(handle):
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}"))))
        fsync(handle)

    monkeypatch.setattr(atomic_io.os, "fsync", named)
    monkeypatch.setattr(
        atomic_io.os,
        "replace",
        lambda old, new: (done.append((Path(old), Path(new))), replace(old, new)),
    )
    atomic_io.write_text(tmp_path / "one", "1")
    save(tmp_path, 1)
    unnamed = set()
    for k, (what, where) in enumerate(done):
        if what == "sync":
            unnamed.discard(where)
        elif what.parent.name.endswith(".partial"):  # of a folder that has no name yet
            continue
        else:
            inside = [new for old, new in done[:k] if old != "sync" and new.parent == what]
            assert all(("sync", one) in done[:k] for one in [what, *inside])
            unnamed.add(where.parent)
    assert not unnamed
    atomic_io.write_text(tmp_path / "status.json", "{}", durable=False)
    assert done[-1][1] == tmp_path / "status.json"  # nobody waits for it


def test_a_folder_is_made_with_its_name_on_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(atomic_io, "fsync_folder", synced.append)
    atomic_io.make_folder(tmp_path / "a" / "b")
    assert set(synced) == {tmp_path, tmp_path / "a"}
    atomic_io.make_folder(tmp_path / "a" / "b")
    assert len(synced) == 2
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError):
        atomic_io.make_folder(tmp_path / "file")
