"""One process at a time makes a module; the others wait, and nothing but time depends on it."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from slipstream.jit import cache
from slipstream.jit.cache import build_lock, is_intact, staged_folder

SOURCE = Path(__file__).parents[3] / "src"
HEAD = """
    import os, sys
    from pathlib import Path
    from slipstream.jit.cache import staged_folder, build_lock
    folder = Path(sys.argv[1])
    def say(*words):
        print(*words, flush=True)
"""
MAKER = """
    with build_lock(folder):
        say("in")
        sys.stdin.readline()
        with staged_folder(folder) as unfinished:
            (unfinished / "code.py").write_text("")
"""
WAITER = """
    say("asks")
    with build_lock(folder):
        say("there" if folder.exists() else "missing")
"""


@pytest.fixture
def child():
    """Starts a process: `body` with the path of a module, spoken with by lines."""
    running = []

    def start(body, folder):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(HEAD) + textwrap.dedent(body), str(folder)],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "module_1"


def answer(process):
    return process.stdout.readline().strip()


def go_on(process):
    process.stdin.write("\n")
    process.stdin.flush()


def waits(process, seconds=0.5):
    """Whether it says nothing for a while; what it says afterwards is in the list."""
    said = []
    thread = threading.Thread(target=lambda: said.append(answer(process)))
    thread.start()
    thread.join(seconds)
    return thread.is_alive(), said, thread


def test_the_second_waits_and_finds_what_the_first_made(child, folder):
    maker = child(MAKER, folder)
    assert answer(maker) == "in"
    waiter = child(WAITER, folder)
    assert answer(waiter) == "asks"
    waiting, said, thread = waits(waiter)
    go_on(maker)
    thread.join(30)
    assert waiting and said == ["there"] and is_intact(folder)
    assert waiter.wait(30) == maker.wait(30) == 0
    assert list(folder.parent.iterdir()) == [folder], "no lock is left"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_maker_that_is_killed_holds_nobody_up(child, folder, number):
    maker = child(MAKER, folder)
    assert answer(maker) == "in"
    waiter = child(WAITER, folder)
    assert answer(waiter) == "asks"
    waiting, said, thread = waits(waiter)
    maker.send_signal(number)
    thread.join(30)
    assert waiting and said == ["missing"]


def test_a_child_forked_meanwhile_has_no_share_in_the_lock(child, folder):
    """It may live on, and may ask for the same module."""
    maker = child(
        """
        with build_lock(folder):
            if os.fork() == 0:
                say("asks")
                with build_lock(folder):
                    say("there" if folder.exists() else "missing")
                os.close(1)
                sys.stdin.readline()
                os._exit(0)
            sys.stdin.readline()
            with staged_folder(folder) as unfinished:
                (unfinished / "code.py").write_text("")
        """,
        folder,
    )
    assert answer(maker) == "asks"
    waiting, said, thread = waits(maker)
    go_on(maker)
    thread.join(30)
    assert waiting and said == ["there"]
    with build_lock(folder):  # the child lives
        assert cache._Makers.held == 1


def test_two_that_need_each_others_module_go_on(child, folder):
    other = folder.with_name("module_2")
    crossing = """
    with build_lock(folder):
        say("in")
        sys.stdin.readline()
        with build_lock(Path(str(folder)[:-1] + ("2" if str(folder).endswith("1") else "1"))):
            say("both")
    """
    pair = [child(crossing, one) for one in (folder, other)]
    assert [answer(process) for process in pair] == ["in", "in"]
    begin = time.monotonic()
    for process in pair:
        go_on(process)
    assert [answer(process) for process in pair] == ["both", "both"]
    assert time.monotonic() - begin < 20


def test_a_maker_that_was_stopped_is_waited_for_only_so_long(child, folder, monkeypatch):
    maker = child(MAKER, folder)
    assert answer(maker) == "in"
    maker.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(cache, "BUILD_TIMEOUT", 0.2)
    with build_lock(folder), staged_folder(folder) as unfinished:
        (unfinished / "code.py").write_text("")
    maker.send_signal(signal.SIGCONT)
    go_on(maker)
    assert maker.wait(30) == 0 and is_intact(folder), "the first one's is kept"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_without_a_file_to_lock_it_is_made_all_the_same(folder, monkeypatch, number):
    def refuse(*_args):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with build_lock(folder):
            assert cache._Makers.held == 0
    assert not list(folder.parent.iterdir())


def test_without_locks_it_is_made_all_the_same(folder, monkeypatch):
    def refuse(*_args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(cache.fcntl, "lockf", refuse)
    with build_lock(folder):
        assert cache._Makers.held == 0


def test_an_error_lets_go(folder):
    with pytest.raises(KeyError), build_lock(folder):
        raise KeyError
    assert cache._Makers.held == 0 and not list(folder.parent.iterdir())
