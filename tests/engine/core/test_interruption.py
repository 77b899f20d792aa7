"""Requests to stop: the first one is remembered, also by whoever begins to listen later."""

import os
import signal

import pytest

from slipstream.core.storage.signals import Interruption


def test_a_request_made_before_is_heard_inside():
    with Interruption() as outer:
        with Interruption() as inner:
            assert not inner.requested
        os.kill(os.getpid(), signal.SIGTERM)
        with Interruption() as inner:
            assert outer.requested and inner.requested


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_what_is_ignored_stays_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with Interruption() as asked:
            os.kill(os.getpid(), number)
            assert not asked.requested
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_a_second_ctrl_c_interrupts():
    with Interruption() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
