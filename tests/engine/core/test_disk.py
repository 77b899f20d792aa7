"""The model of a disk on cases worked out by hand, on SQLite's promises, and on real calls."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from disk import Call, Cut, Disk, UnknownCallError, lay, look
from syscalls import MISSING, available, record

ROOT = "/r"
MAKES, APPENDS = "O_WRONLY|O_CREAT|O_TRUNC", "O_WRONLY|O_CREAT|O_APPEND"
watched = pytest.mark.skipif(not available(), reason=MISSING)


def disk_of(*calls: Call) -> Disk:
    disk = Disk(Path(ROOT))
    for call in calls:
        assert disk.apply(call)
    return disk


def images(*calls: Call) -> tuple[dict[str, bytes | None], ...]:
    """What is lost and what is kept of names."""
    disk = disk_of(*calls)
    return disk.image(Cut.LOST), disk.image(Cut.NAMES)


def made(path: str, flags: str = MAKES) -> Call:
    return Call("open", f"{ROOT}/{path}", flags=flags)


def written(path: str, data: bytes, place: int | None = None) -> Call:
    return Call("write", f"{ROOT}/{path}", data=data, place=place)


def synced(path: str = "") -> Call:
    return Call("sync", f"{ROOT}/{path}".rstrip("/"))


def moved(path: str, to: str) -> Call:
    return Call("rename", f"{ROOT}/{path}", f"{ROOT}/{to}")


OLD = (made("a"), written("a", b"old"), synced("a"), synced())


def test_what_nobody_synced_is_lost_or_empty():
    assert images(made("a"), written("a", b"x")) == ({}, {"a": b""})


def test_a_files_fsync_keeps_its_bytes_and_not_its_name():
    assert images(made("a"), written("a", b"x"), synced("a")) == ({}, {"a": b"x"})


def test_a_folders_fsync_keeps_names_and_not_bytes():
    assert images(made("a"), written("a", b"x"), synced()) == ({"a": b""}, {"a": b""})


def test_replacing_a_file_keeps_the_old_one_or_the_new_one():
    steps = (made("b"), written("b", b"new"), synced("b"), moved("b", "a"), synced())
    for done in range(len(steps) + 1):
        for image in images(*OLD, *steps[:done]):
            assert image["a"] in (b"old", b"new")
    assert images(*OLD, *steps) == ({"a": b"new"}, {"a": b"new"})


def test_a_rename_without_fsync_leaves_an_empty_file_on_some_disks():
    steps = (made("b"), written("b", b"new"), moved("b", "a"))
    assert images(*OLD, *steps) == ({"a": b"old"}, {"a": b""})


def test_an_append_is_cut_at_the_last_fsync():
    steps = (made("a", APPENDS), written("a", b" and"), synced("a"), written("a", b" more"))
    assert images(*OLD, *steps) == ({"a": b"old and"}, {"a": b"old and"})


def test_opening_for_writing_anew_empties_a_file_on_some_disks():
    assert images(*OLD, made("a"), written("a", b"new")) == ({"a": b"old"}, {"a": b""})


def test_truncations_are_kept_with_names():
    steps = (Call("truncate", f"{ROOT}/a", place=1), written("a", b"!", 5))
    assert images(*OLD, *steps) == ({"a": b"old"}, {"a": b"o"})
    grown = Call("truncate", f"{ROOT}/a", place=5)
    assert images(*OLD, grown, synced("a"))[0] == {"a": b"old\0\0"}


def test_what_was_unlinked_comes_back_until_its_folder_is_synced():
    gone = Call("unlink", f"{ROOT}/a")
    assert images(*OLD, gone) == ({"a": b"old"}, {})
    assert images(*OLD, gone, synced()) == ({}, {})


def test_a_folder_that_was_made_is_there_once_the_one_above_is_synced():
    inside = (Call("mkdir", f"{ROOT}/d"), made("d/a"), written("d/a", b"x"), synced("d/a"))
    assert images(*inside, synced("d")) == ({}, {"d": None, "d/a": b"x"})
    assert images(*inside, synced("d"), synced())[0] == {"d": None, "d/a": b"x"}
    assert images(*inside, synced())[0] == {"d": None}


def test_a_folder_is_renamed_with_all_that_is_in_it():
    steps = (Call("mkdir", f"{ROOT}/d"), made("d/a"), synced("d"), moved("d", "e"))
    assert images(*steps, synced()) == ({"e": None, "e/a": b""}, {"e": None, "e/a": b""})


def test_a_move_between_folders_may_keep_both_names_or_none():
    folders = (Call("mkdir", f"{ROOT}/d"), synced(), *OLD, moved("a", "d/a"))
    assert images(*folders, synced("d"))[0] == {"a": b"old", "d": None, "d/a": b"old"}
    assert images(*folders, synced())[0] == {"d": None}


def test_a_second_name_is_the_same_file():
    linked = Call("link", f"{ROOT}/a", f"{ROOT}/b")
    assert images(*OLD, linked, synced())[0] == {"a": b"old", "b": b"old"}


def test_a_write_through_needs_no_fsync():
    assert images(made("a", f"{MAKES}|O_SYNC"), synced(), written("a", b"x"))[0] == {"a": b"x"}


def test_a_torn_file_has_any_of_its_last_writes():
    disk = disk_of(*OLD, made("a", APPENDS), *(written("a", b"%d" % k) for k in range(4)))
    found = {disk.image(Cut.TORN, seed)["a"] for seed in range(200)}
    assert {b"old", b"old0123", b"old0", b"old01", b"old\x001"} < found
    assert all(one is not None and len(one) <= 7 and one.startswith(b"old") for one in found)


def test_a_shared_map_of_a_durable_file_is_named():
    disk = disk_of(
        *OLD, Call("map", f"{ROOT}/a"), Call("map", f"{ROOT}/t.db-shm", flags="PROT_WRITE")
    )
    assert not disk.maps
    disk.apply(Call("map", f"{ROOT}/a", flags="PROT_WRITE"))
    assert disk.maps == {"a"}


def test_what_is_elsewhere_is_let_alone_and_what_is_not_known_is_refused():
    disk = disk_of(*OLD)
    assert not disk.apply(Call("write", "/elsewhere", data=b"x"))
    with pytest.raises(UnknownCallError, match="across the border"):
        disk.apply(Call("rename", "/elsewhere", f"{ROOT}/a"))
    with pytest.raises(UnknownCallError, match="fallocate"):
        disk.apply(Call("fallocate (not known)", f"{ROOT}/a"))
    with pytest.raises(UnknownCallError, match="a place that is not known"):
        disk_of(*OLD, made("a", "O_RDWR")).apply(written("a", b"x"))


PROGRAM = """
import os, shutil, sqlite3, sys
root, mode = sys.argv[1:]
said = open(root + "-said", "ab", 0)
os.mkdir(root + "/d")
table = sqlite3.connect(root + "/d/t.db", isolation_level=None)
table.execute(f"PRAGMA journal_mode={mode.split()[0]}")
table.execute(f"PRAGMA synchronous={mode.split()[1]}")
table.execute("CREATE TABLE t (n)")
handle = os.open(root, os.O_RDONLY); os.fsync(handle)
for n in range(30):
    table.execute("INSERT INTO t VALUES (?)", (n,))
    said.write(b"%d" % n)
    if n == 14:
        table.execute("PRAGMA wal_checkpoint")
if os.fork() == 0:
    with open(root + "/d/child", "w") as file: file.write("a" * 100_000)
    os.rename(root + "/d/child", root + "/child")
    os._exit(0)
os.wait()
os.mkdir(root + "/e"); open(root + "/e/x", "a").close(); shutil.rmtree(root + "/e")
"""


def rows(image, root):
    """How many rows a table has after a power cut; they are the first ones, or it is damaged."""
    lay(image, root)
    if not (root / "d/t.db").exists():
        return 0
    with closing(sqlite3.connect(root / "d/t.db")) as table:
        try:
            found = [n for (n,) in table.execute("SELECT n FROM t ORDER BY n")]
        except sqlite3.OperationalError:  # not made yet
            return 0
    assert found == list(range(len(found)))
    return len(found)


@watched
@pytest.mark.parametrize(
    "mode",
    [
        "WAL FULL",
        "WAL OFF",
        *(pytest.param(f"DELETE {one}", marks=pytest.mark.slow) for one in ("EXTRA", "OFF")),
    ],
)
def test_sqlite_keeps_what_it_promises(tmp_path, mode):
    """All rows that it said it wrote with FULL and EXTRA; with OFF some are lost, which is seen."""
    root = tmp_path / "disk"
    root.mkdir()
    command = [sys.executable, "-c", PROGRAM, str(root), mode]
    disk, said, lost, seen = Disk(root), 0, 0, set[int]()
    calls = list(record(command, tmp_path / "log", tmp_path))
    real, after = look(root), tmp_path / "after"
    for call in calls:
        said += call.path == f"{root}-said" and call.name == "write"
        disk.apply(call)
        for cut in Cut:
            image = disk.image(cut, said)
            key = hash((said, *image.items()))
            if key in seen:
                continue
            seen.add(key)
            try:
                lost += rows(image, after) < said
            except (sqlite3.DatabaseError, AssertionError):  # damaged
                lost += 1
    assert said == 30 and not disk.maps
    assert disk.image(None) == real and real.keys() == {"child", "d", "d/t.db"}
    assert (lost == 0) == ("OFF" not in mode), lost
