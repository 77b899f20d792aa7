"""Tasks side by side: their errors, and interrupts while one waits for another."""

import threading

import pytest

from slipstream.training.workers import ThreadPool


def test_all_are_waited_for_and_the_first_error_is_raised():
    done = threading.Barrier(3)  # three at once

    def fail(k):
        done.wait(60)
        raise ValueError(k)

    with ThreadPool(3) as crew:
        with pytest.raises(ValueError, match="1"):
            crew.run([lambda: done.wait(60), lambda: fail(1), lambda: fail(2)])
        seen = []
        crew.run([lambda k=k: seen.append(k) for k in range(10)])  # more than threads
        assert sorted(seen) == list(range(10))


def test_an_interrupt_does_not_wait_for_whoever_waits():
    told, heard = threading.Event(), []

    def interrupted():
        raise KeyboardInterrupt

    with ThreadPool(2) as crew, pytest.raises(KeyboardInterrupt):
        try:
            crew.run([interrupted, lambda: heard.append(told.wait(20))])
        finally:
            told.set()
    assert heard == [True]


def test_threads_begin_with_the_first_tasks():
    """Before those, processes are forked, which would lack them."""
    before = threading.active_count()
    with ThreadPool(3) as crew:
        crew.run([lambda: None])
        assert threading.active_count() == before
        crew.run([lambda: None, lambda: None])
        assert threading.active_count() == before + 2
    assert threading.active_count() == before
