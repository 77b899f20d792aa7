"""Addresses where no cluster is, and tokens that are missing or others; without Ray."""

from __future__ import annotations

import socket
import threading

import pytest

from slipstream.core.errors import ResourceError
from slipstream.training.processes import cluster_access
from slipstream.training.processes.cluster import ClusterOptions
from slipstream.training.processes.cluster_access import lets_in_everybody, unreachable

SETTINGS = bytes([0, 0, 6, 4, 0, 0, 0, 0, 0])  # the first frame of any HTTP/2 server


@pytest.fixture
def server():
    """The address of somebody who answers so, once; None: nothing, until the end."""
    opened = []

    def serve(answer):
        listening = socket.create_server(("127.0.0.1", 0))
        opened.append(listening)

        def work():
            connection, _ = listening.accept()
            opened.append(connection)
            connection.recv(100)
            if answer is not None:
                connection.sendall(answer)

        threading.Thread(target=work, daemon=True).start()
        return f"127.0.0.1:{listening.getsockname()[1]}"

    yield serve
    for one in opened:
        one.close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 505 HTTP Version Not Supported\r\n\r\n", "not the head of one"),
        (b"SSH", "not the head of one"),
        (None, "timed out"),
    ],
)
def test_somebody_else_at_that_port(server, answer, words, monkeypatch):
    monkeypatch.setattr(cluster_access, "_WORD_SECONDS", 0.2)
    monkeypatch.setattr(cluster_access, "_PROBE", "raise AssertionError")
    address = server(answer)
    with pytest.raises(ResourceError, match=f"No cluster can be used at {address}.*{words}"):
        lets_in_everybody(ClusterOptions(address), print)


@pytest.mark.parametrize("port", ["1", "99999", "99999999999"])
def test_nobody_at_that_port(port):
    with pytest.raises(ResourceError, match=f"No cluster can be used at 127.0.0.1:{port} "):
        lets_in_everybody(ClusterOptions(f"127.0.0.1:{port}"), print)


def test_one_that_hangs(server, monkeypatch):
    """It speaks as Ray does, and then says nothing more."""
    monkeypatch.setattr(cluster_access, "_PROBE_SECONDS", 1.0)
    monkeypatch.setattr(cluster_access, "_PROBE", "import time; time.sleep(60)")
    with pytest.raises(ResourceError, match="said nothing for 1 s"):
        lets_in_everybody(ClusterOptions(server(SETTINGS)), print)


def test_one_that_asks_for_a_token(server, monkeypatch):
    monkeypatch.setattr(cluster_access, "_PROBE", "raise SystemExit(1)")
    assert not lets_in_everybody(ClusterOptions(server(SETTINGS)), print)


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("no authentication token was found. Ensure", "This machine has no token for the cluster"),
        ("Invalid or missing authentication token", "did not accept this machine's token"),
        ("it is on fire", "No cluster can be used at here:1"),
    ],
)
def test_what_a_connection_fails_by(cause, words):
    error = ConnectionError("Failed to connect to Ray cluster")
    error.__cause__ = RuntimeError(cause)
    assert words in str(unreachable("here:1", error))


def test_advice_of_ray_is_left_out():
    """It names options of its own commands."""
    error = ConnectionError("Could not find any running Ray instance. Please specify `--address`.")
    assert "at auto (Could not find any running Ray instance). " in str(unreachable("auto", error))
