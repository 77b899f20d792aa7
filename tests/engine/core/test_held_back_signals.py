"""Stop signals wait until a process that works for another one ignores them."""

from __future__ import annotations

import signal
import subprocess
import sys

from slipstream.core.child_process import STOP_SIGNALS, block_stop_signals

CHILD = """
import time
print("begun", flush=True)
time.sleep(0.3)
from slipstream.core.child_process import ignore_stop_signals
ignore_stop_signals()
print("served")
"""


def test_signals_wait_until_the_child_ignores_them() -> None:
    command = [sys.executable, "-c", CHILD]
    with block_stop_signals():
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "begun\n"
    for number in STOP_SIGNALS:
        child.send_signal(number)
    assert child.communicate(timeout=60) == ("served\n", "")
    assert child.returncode == 0


def test_the_parent_hears_them_again() -> None:
    with block_stop_signals():
        assert {*STOP_SIGNALS} <= signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert not {*STOP_SIGNALS} & signal.pthread_sigmask(signal.SIG_BLOCK, ())
