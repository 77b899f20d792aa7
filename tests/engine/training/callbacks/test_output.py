"""Output may be lost without affecting the work."""

from __future__ import annotations

import io
import os

import pytest
from rich.console import Console

from slipstream.training.callbacks.console import ConsoleCallback
from slipstream.training.callbacks.output import Output, robust_stream


def test_a_reader_who_leaves_is_noted_once():
    ours, theirs = os.pipe()
    stream = os.fdopen(theirs, "w")
    lost = []
    output = Output(stream, lost.append)
    output.write("heard\n")
    output.flush()
    assert os.read(ours, 100) == b"heard\n"
    os.close(ours)
    for _ in range(3):
        output.write("not heard\n")
        output.flush()
    assert len(lost) == 1 and isinstance(lost[0], BrokenPipeError)
    assert output.lost is lost[0] and not output.isatty()
    stream.close()  # nor does what it still held fail here


def test_a_full_disk_a_closed_stream_and_none():
    full = open("/dev/full", "w")  # noqa: SIM115
    output = Output(full)
    output.write("x")
    output.flush()
    assert output.lost is not None and output.lost.errno == 28
    full.close()
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        output = Output(stream)
        output.write("x")
        output.flush()
        assert not output.isatty()


def test_characters_that_the_encoding_lacks_are_replaced():
    raw = io.BytesIO()
    output = Output(io.TextIOWrapper(raw, encoding="ascii"))
    assert output.write("±1 µs ·\n") == 8
    output.flush()
    assert raw.getvalue() == b"+-1 ?s ?\n"
    assert output.lost is None
    output = robust_stream(output)
    assert robust_stream(output) is output


@pytest.mark.parametrize("terminal", [False, True])
def test_a_console_survives_its_reader(terminal):
    ours, theirs = os.pipe()
    stream = os.fdopen(theirs, "w")
    os.close(ours)
    callback = ConsoleCallback(Console(file=robust_stream(stream), force_terminal=terminal))
    for _ in range(3):
        callback.log("a sentence")
    callback.close()
    stream.close()
