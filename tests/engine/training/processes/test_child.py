"""Children answer, ignore people's signals, have children, and never outlive who made them."""

import errno
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest

from slipstream.core.child_process import describe_exit
from slipstream.core.errors import ConfigError, KernelError, ResourceError
from slipstream.training.forked_process import ChildProcess, picklable_error

REMEDY = "give fewer --workers"


def echo(pipe):
    while (message := pipe.recv()) is not None:
        pipe.send((os.getpid(), message))


def busy(pipe):
    """Looks at no pipe."""
    pipe.send(os.getpid())
    time.sleep(600)


def has_a_child(pipe):
    own = ChildProcess(busy, "grandchild", REMEDY)
    pipe.send(own.receive())
    pipe.recv()


def alive(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):  # before it was opened, or read
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def dies(pid):
    deadline = time.monotonic() + 60
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def test_a_child_answers_and_leaves():
    child = ChildProcess(echo, "echo", REMEDY)
    assert child.send("word") and child.receive() == (child.pid, "word")
    child.request_stop()
    assert child.terminate(10.0) == "ended with exit code 0"
    assert not child.send("more") and child.receive() is None
    assert child.terminate(0.0) == "ended with exit code 0"  # again is harmless


def test_people_s_signals_are_the_parent_s_business():
    child = ChildProcess(echo, "echo", REMEDY)
    child.send(0)
    child.receive()  # it has begun
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(child.pid, number)
    assert child.send("still") and child.receive() == (child.pid, "still")
    child.terminate(10.0)


def test_a_killed_child_is_told_with_its_likely_reason():
    child = ChildProcess(echo, "echo", REMEDY)
    os.kill(child.pid, signal.SIGKILL)
    assert child.receive() is None
    assert child.terminate(10.0) == "was killed by SIGKILL (out of memory?)"
    assert describe_exit(-signal.SIGSEGV) == "was killed by SIGSEGV" and describe_exit(3).endswith(
        "code 3"
    )


def test_patience_has_an_end():
    child = ChildProcess(busy, "busy", REMEDY)
    child.receive()
    assert child.terminate(0.2).startswith("was killed by SIGKILL")
    assert not alive(child.pid)  # long before it would have ended


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child must look for itself")
def test_children_have_children_and_no_orphans():
    child = ChildProcess(has_a_child, "parent", REMEDY)
    grandchild = child.receive()
    assert alive(grandchild)
    os.kill(child.pid, signal.SIGKILL)
    assert dies(grandchild)
    child.terminate(10.0)
    gentle = ChildProcess(has_a_child, "parent", REMEDY)
    grandchild = gentle.receive()
    gentle.request_stop()
    assert gentle.terminate(10.0) == "ended with exit code 0" and dies(grandchild)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child must look for itself")
@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(0)", "1 / 0"])
def test_no_child_outlives_who_made_it(how):
    program = (
        f"import os, signal, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_child import ChildProcess, REMEDY, busy, echo\n"
        "made = zip('abc', (echo, busy, echo))\n"
        "children = [ChildProcess(serve, name, REMEDY) for name, serve in made]"
        f"\nprint(*[c.pid for c in children], flush=True)\n{how}\n"
    )
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 3, done.stderr
    assert all(dies(pid) for pid in pids)


def test_what_the_system_refuses_names_the_remedy_and_leaks_nothing(monkeypatch):
    def refuse(self):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.context.ForkProcess.start", refuse)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(
        ResourceError, match=r"could not be started .*limit, or give fewer workers=;"
    ):
        ChildProcess(echo, "echo", REMEDY)
    assert set(os.listdir("/proc/self/fd")) == before


def test_users_mistakes_travel_as_they_are_and_others_with_their_trace():
    mistake = ConfigError("no")
    assert picklable_error(mistake) is mistake
    try:
        raise KeyError("inside")
    except KeyError as error:
        told = picklable_error(error)
    assert isinstance(told, RuntimeError) and "KeyError: 'inside'" in str(told)
    assert str(os.getpid()) in str(told)


def test_what_an_error_was_raised_from_travels_as_a_note():
    def fail(pipe):
        try:
            try:
                raise KeyError("an environment's own")
            except KeyError as error:
                raise KernelError("gym:Own-v0 raised") from error
        except KernelError as error:
            pipe.send(picklable_error(error))

    child = ChildProcess(fail, "fails", REMEDY)
    told = child.receive()
    child.terminate(5.0)
    assert isinstance(told, KernelError) and str(told) == "gym:Own-v0 raised"
    assert 'KeyError: "an environment\'s own"' in "".join(traceback.format_exception(told))
    assert "in fail" in "".join(told.__notes__)
