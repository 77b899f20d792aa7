"""Owner's side of a cluster; the process that runs Ray is replaced by a stub."""

from __future__ import annotations

import socket
import time
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.errors import ConfigError, ResourceError
from slipstream.training.cluster import ray_cluster
from slipstream.training.cluster.cluster import ClusterOptions, ClusterWork, Lost, connection_error
from slipstream.training.cluster.ray_cluster import RayCluster


@pytest.fixture(autouse=True)
def stub(monkeypatch):
    monkeypatch.setattr(ray_cluster, "_PROGRAM", "stub_ray_process")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
def address():
    """Return an address that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def said():
    return []


def cluster(said, does="works", address="local", **options):
    work = ClusterWork(does, "x:Y", b"", ())
    return RayCluster(ClusterOptions(address, **options), work, said.append)


def test_a_cluster_that_lets_in_everybody(address, said):
    with pytest.raises(ConfigError, match=r"requires no token.*--insecure-cluster"):
        cluster(said, address=address).__enter__()
    assert not said
    with cluster(said, address=address, insecure=True) as one:
        wait_for(lambda: "disabled" in one._capacity)
    assert len(said) == 1 and "anyone who can reach its ports" in said[0]


def test_a_cluster_that_asks_for_a_token(address, said):
    with cluster(said, "asks for a token", address) as one:
        wait_for(lambda: "token" in one._capacity)
    with cluster(said) as one:  # its own
        wait_for(lambda: "token" in one._capacity)
    assert not said


@pytest.mark.parametrize("port", ["1", "99999", "99999999999"])
def test_nobody_at_that_port(said, port):
    with pytest.raises(ResourceError, match=f"No cluster can be used at 127.0.0.1:{port} "):
        cluster(said, address=f"127.0.0.1:{port}").__enter__()


@pytest.mark.parametrize(
    ("does", "kind", "words"),
    [
        pytest.param("hangs", ResourceError, r"no answer within 1 s", marks=pytest.mark.slow),
        ("crashes", ResourceError, "Ray's process ended with exit code 3"),
        ("is owned", ConfigError, "Another process"),
    ],
)
def test_one_that_is_not_let_in(address, said, monkeypatch, does, kind, words):
    if does == "hangs":
        monkeypatch.setattr(ray_cluster, "_JOIN_SECONDS", 1.0)
    with pytest.raises(kind, match=words):
        cluster(said, does, address).__enter__()


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
    assert words in str(connection_error("here:1", error))


def test_advice_of_ray_is_left_out():
    """It names options of its own commands."""
    error = ConnectionError("Could not find any running Ray instance. Please specify `--address`.")
    assert "at auto (Could not find any running Ray instance). " in str(
        connection_error("auto", error)
    )


def test_a_head_that_dies(said):
    """It takes Ray's process with it; the owner ends in words."""
    with cluster(said, "dies") as one:
        shared = one.share([np.zeros(3)])
        (actor,) = arrived(one)
        actor.send(b"request", [shared])  # the process dies of it, perhaps before this returns
        wait_for(lambda: one._gone)
        for ask in (one.new_actors, lambda: one.share([np.ones(3)])):
            with pytest.raises(ResourceError, match=r"was lost.*exit code 1.*slipstream resume"):
                ask()
        assert not actor.send(b"request")


def test_arrays_are_taken_over_once(said):
    with cluster(said) as one:
        assert one.share([np.zeros(3)]) is one.share([np.zeros(3)])
    with cluster(said, "is full") as one, pytest.raises(ResourceError, match="It is full"):
        one.share([np.zeros(3)])


def test_what_an_actor_says(said):
    with cluster(said) as one:
        one._on_arrived(3, "abcdefgh", "there", ["other instructions"])
        one._on_arrived(4, "ijklmnop", "there", ["other instructions"])
        first, second = arrived(one)
        assert said == ["Note: other instructions"]
        assert (first.node, second.node) == ("there", "there-ijklmn")
        assert first.send(b"request") and first.busy
        first.request_stop()
        second.request_stop()  # does nothing that could be left
        for content, final in ((b"news", False), (b"answer", True)):
            one._on_message(3, content, final)
            assert first.pipe.poll() and first.receive() == content
            assert first.busy != final
        told = one.status()[0]
        assert told == {
            **{"node": "there", "slots": 1, "busy": 0, "answers": 1, "losses": 0},
            "bytes": len(b"request") + len(b"news") + len(b"answer"),
        }
        one._on_lost(4, "went away", "silent")
        assert second.receive() == Lost("on there-ijklmn went away", "silent")
        assert not second.send(b"more") and one.status()[1]["losses"] == 1
        one._on_arrived(4, "abcdefgh", "there", [])  # Ray began it anew, elsewhere
        (third,) = arrived(one)
        assert third.node == "there" and one.status()[0]["slots"] == 2
        third.end()
        third.end()
        wait_for(lambda: any("detach 4" in text for text in one._logged))
        calls = [text.partition("(")[2].partition(")")[0] for text in one._logged]
        assert sorted(call for call in calls if call) == ["detach 4", "leave 3", "work 3"]
        assert one.status()[0]["slots"] == 1


def test_nodes_that_are_refused_are_named_once(said):
    with cluster(said) as one:
        wait_for(lambda: one._target == 2)
        one._on_failed(0, "old", "It has another numpy.", True)
        one._on_failed(0, "old", "It has another numpy.", True)
        assert not one.new_actors()
        assert said == ["old is not used. It has another numpy."]
        one._on_failed(1, "bare", "no slipstream", False)
        with pytest.raises(ResourceError, match=r"No worker started.*3 attempts.*on bare: no slip"):
            one.new_actors()
        assert said[1] == "No worker starts on bare (no slipstream); retrying every minute."
        one._on_arrived(1, "abcdefgh", "bare", [])
        assert len(arrived(one)) == 1


@pytest.mark.parametrize("failed", [True, False])
def test_no_worker_in_a_minute(said, failed):
    with cluster(said) as one:
        wait_for(lambda: one._target == 2)
        if failed:
            one._on_failed(0, "old", "It has another numpy.", True)
        assert not one.new_actors()
        one._last -= ray_cluster._START_SECONDS + 1.0
        words = "another numpy" if failed else r"no room for a worker for 6\d s: it has 2 cores"
        with pytest.raises(ResourceError, match=words):
            one.new_actors()


def arrived(one):
    """Its new actors, once there are some."""
    found = []
    wait_for(lambda: found.extend(one.new_actors()) or found)
    return found


def wait_for(happened):
    deadline = time.monotonic() + 30.0
    while not happened():
        assert time.monotonic() < deadline
        wait([], 0.05)
