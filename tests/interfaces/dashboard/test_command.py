"""`slipstream dash` as it is typed: what it says, what a kill costs, and what it is asked to do."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from benchmarks.ours.watched import write_run
from slipstream.core.storage.status_file import read_status
from slipstream.dashboard.overview import folder_id

MAIN = [sys.executable, "-m", "slipstream"]


def begin(folder, state, port, *more):
    """A dashboard in a process of its own, and the lines that it says first."""
    command = [*MAIN, "dash", str(folder), "--port", str(port), *more]
    own = {**os.environ, "XDG_STATE_HOME": str(state)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=own, text=True)
    lines = [process.stdout.readline().strip() for _ in range(4)]
    return process, lines


def ask(port, path, method="GET", **headers):
    deadline = time.monotonic() + 20
    while True:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            link.request(method, path, headers={"Host": f"localhost:{port}", **headers})
            answer = link.getresponse()
            return answer.status, answer.getheader("set-cookie"), answer.read().decode()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        finally:
            link.close()


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return bound.getsockname()[1]


def test_it_prints_its_address_and_a_kill_costs_nothing(tmp_path, port):
    run = write_run(tmp_path / "shown" / "own", members=1, iterations=3)
    process, lines = begin(run.parent, tmp_path / "state", port)
    assert lines[0].startswith(f"Open http://localhost:{port}/?token=")
    assert any(f"ssh -L {port}:127.0.0.1:{port}" in line for line in lines)
    assert not any("listens" in line for line in lines)
    code, cookie, _ = ask(port, lines[0].partition(str(port))[2])
    assert code == 200
    cookie = cookie.partition(";")[0]
    assert ask(port, f"/api/run/{folder_id(str(run))}", Cookie=cookie)[0] == 200
    process.kill()
    process.wait()
    process.stdout.close()
    again, _ = begin(run.parent, tmp_path / "state", port)
    assert ask(port, f"/api/run/{folder_id(str(run))}", Cookie=cookie)[0] == 200
    again.send_signal(signal.SIGINT)
    assert again.wait(20) == 130
    again.stdout.close()


def test_listening_beyond_this_machine_says_what_it_means(tmp_path, port):
    process, lines = begin(tmp_path, tmp_path / "state", port, "--listen", "0.0.0.0")
    assert any("without encryption" in line for line in lines)
    assert ask(port, "/", Host="192.168.1.7")[0] == 401
    assert ask(port, "/", Host="evil.example")[0] == 421
    process.terminate()
    process.wait(20)
    process.stdout.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_training_is_stopped_and_resumed_from_the_page(tmp_path, port):
    state = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    run = tmp_path / "run"
    command = [*MAIN, "train", "cartpole", "--total-timesteps", "500_000_000", "--out", str(run)]
    training = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=state)

    def works(before):
        status = read_status(run) if run.is_dir() else None
        return status is not None and status.phase == "training" and status.pid not in before

    def until(true):
        deadline = time.monotonic() + 120
        while not true():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    until(lambda: works(()))
    process, lines = begin(tmp_path, tmp_path / "state", port)
    _, cookie, _ = ask(port, lines[0].partition(str(port))[2])
    own = {"Cookie": cookie.partition(";")[0], "Origin": f"http://localhost:{port}"}
    path = f"/act/{folder_id(str(run))}"
    assert "ends at a checkpoint" in ask(port, f"{path}/stop", "POST", **own)[2]
    assert training.wait(120) == 130
    code, _, said = ask(port, f"{path}/resume", "POST", **own)
    assert code == 200 and "works on" in said
    until(lambda: works((training.pid,)))
    assert "ends at a checkpoint" in ask(port, f"{path}/stop", "POST", **own)[2]
    until(lambda: read_status(run).liveness() == "stopped")
    process.terminate()
    process.wait(20)
    process.stdout.close()
