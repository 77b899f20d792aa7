"""The commit of a foreign folder is known without running anything of it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess

import pytest

from slipstream.core.storage import provenance
from slipstream.core.storage.provenance import describe_commit

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder, *arguments):
    """As a careful person would run it, whatever this machine's settings are."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    quiet = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    done = subprocess.run(
        ["git", *who, *arguments],
        cwd=folder,
        env={**kept, **quiet},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr("slipstream.core.storage.provenance._GIT_SECONDS", 120.0)


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "theirs"
    root.mkdir()
    git(root, "init", "-q")
    (root / "prices.csv").write_text("time,open\n")
    (root / "deep").mkdir()
    (root / "deep" / "more.csv").write_text("a\n")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "first")
    return root


def test_commit_and_changes(repository):
    head = git(repository, "rev-parse", "HEAD")
    assert describe_commit(repository) == {"commit": head, "dirty": False}
    assert describe_commit(repository / "deep") == {"commit": head, "dirty": False}
    os.utime(repository / "prices.csv", (1, 1))  # touched, and the same
    (repository / "untracked").write_text("x")
    assert describe_commit(repository) == {"commit": head, "dirty": False}
    (repository / "prices.csv").write_text("time,close\n")
    assert describe_commit(repository) == {"commit": head, "dirty": True}
    git(repository, "add", "-A")  # in the index, and in no commit
    assert describe_commit(repository / "deep") == {"commit": head, "dirty": True}


def test_the_same_from_packed_references_a_detached_head_and_a_work_tree(repository, tmp_path):
    head = git(repository, "rev-parse", "HEAD")
    git(repository, "pack-refs", "--all")
    git(repository, "gc", "-q")
    assert describe_commit(repository) == {"commit": head, "dirty": False}
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    (tmp_path / "tree" / "prices.csv").write_text("new\n")
    git(tmp_path / "tree", "commit", "-q", "-a", "-m", "second")
    second = git(tmp_path / "tree", "rev-parse", "HEAD")
    assert describe_commit(tmp_path / "tree") == {"commit": second, "dirty": False}
    git(repository, "checkout", "-q", "--detach", second)
    assert describe_commit(repository) == {"commit": second, "dirty": False}


def test_no_repository_and_none_yet(tmp_path):
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    assert describe_commit(tmp_path / "empty") is None


TRAPS = {
    "fsmonitor": "[core]\n\tfsmonitor = {trap}\n",
    "hooks": "[core]\n\thooksPath = {folder}\n",
    "filter": '[filter "trap"]\n\tclean = {trap}\n\tsmudge = {trap}\n\tprocess = {trap}\n',
    "diff": '[diff]\n\texternal = {trap}\n[diff "trap"]\n\ttextconv = {trap}\n',
    "pager": "[core]\n\tpager = {trap}\n\teditor = {trap}\n\tsshCommand = {trap}\n",
    "include": "[include]\n\tpath = {folder}/more\n",
    "remote": '[remote "origin"]\n\turl = ext::{trap}\n\tpromisor = true\n[core]\n'
    "\trepositoryformatversion = 1\n[extensions]\n\tpartialClone = origin\n",
}


@pytest.mark.parametrize("kind", TRAPS)
def test_nothing_of_a_foreign_folder_is_executed(repository, tmp_path, kind, monkeypatch):
    marker, folder = tmp_path / "executed", tmp_path / "traps"
    folder.mkdir()
    trap = shlex.quote(str(folder / "trap"))
    names = (
        "trap",
        "post-index-change",
        "pre-auto-gc",
        "fsmonitor-watchman",
        "reference-transaction",
    )
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\ntouch '{marker}'\ncat\n")
        (folder / name).chmod(0o755)
        shutil.copy(folder / name, repository / ".git" / "hooks" / name)
    (folder / "more").write_text(TRAPS["fsmonitor"].format(trap=trap))
    head = git(repository, "rev-parse", "HEAD")
    (repository / ".gitattributes").write_text("* filter=trap diff=trap\n")
    (repository / ".git" / "info" / "attributes").write_text("* filter=trap diff=trap\n")
    with (repository / ".git" / "config").open("a") as file:
        file.write(TRAPS[kind].format(trap=trap, folder=folder))
    (repository / "prices.csv").write_text("changed\n")  # of another size: git reads it
    os.utime(repository / "deep" / "more.csv", (1, 1))
    if kind in ("fsmonitor", "filter", "include"):  # the trap is one: plain git walks into it
        subprocess.run(["git", "status"], cwd=repository, capture_output=True, check=False)
        assert marker.exists()
        marker.unlink()
    monkeypatch.chdir(repository)
    assert provenance.describe()["git"]["folder"] == {"commit": head, "dirty": True}
    assert not marker.exists()


@pytest.mark.parametrize("harm", ["HEAD", "gitdir", "index", "loop", "upward", "objects"])
def test_a_repository_that_is_none(repository, tmp_path, harm, monkeypatch):
    place = repository / ".git"
    if harm == "HEAD":  # git waits for a writer, and describe_commit stops waiting for git
        monkeypatch.setattr("slipstream.core.storage.provenance._GIT_SECONDS", 0.5)
        (place / "HEAD").unlink()
        os.mkfifo(place / "HEAD")
    elif harm == "gitdir":
        shutil.rmtree(place)
        place.write_text("gitdir: /nowhere\n")
    elif harm == "loop":
        (place / "HEAD").write_text("ref: refs/heads/a\n")
        (place / "refs" / "heads" / "a").write_text("ref: refs/heads/a\n")
    elif harm == "upward":
        (place / "HEAD").write_text("ref: refs/../../../../etc/passwd\n")
    elif harm == "index":
        (place / "index").write_bytes(b"junk")
    else:
        shutil.rmtree(place / "objects")
    found = describe_commit(repository)
    assert found is None or (found["dirty"] is None and harm in ("index", "objects"))
