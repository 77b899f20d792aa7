"""Studies and runs on a real Ray of several nodes: the same bits, whoever is killed.

One cluster for all tests; what the other tests say of clusters, they say by a fake.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from killed_studies import CONFIG, contents, whole
from killed_studies import PROGRAM as MAIN

from slipstream.core.storage.status_file import read_status

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(  # it is not imported yet: it would read how to ask for tokens
        importlib.util.find_spec("ray") is None,
        reason="Ray is not installed: pip install -r requirements/ray.lock",
    ),
]

BUDGET = ("--total-timesteps", "100_000")
# States are handed over every second, and who is silent for eight is given up.
PROGRAM = """
from slipstream.training.cluster import cluster_workers, ray_cluster
cluster_workers.HAND_OVER_SECONDS = 1.0
cluster_workers._GATHER_SECONDS = 120.0  # a run waits for both nodes, however busy the machine is
ray_cluster._START_SECONDS = {room}
from slipstream.cli import main
main()
"""
# What Ray's process of an owner and its actors, which are sent its constants, begin with.
SITE = """
import sys
words = " ".join(sys.orig_argv)
if "default_worker" in words:
    from slipstream.training.population import pool_worker
    pool_worker.SAVE_SECONDS = 1.0
if "ray_process" in words:
    from slipstream.training.cluster import cluster
    cluster.BEAT_SECONDS, cluster.SILENT_SECONDS = 1.0, 8.0
"""
TOKEN = secrets.token_hex(32)  # its processes are told from another cluster's by it


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """A cluster of one node with one core that asks for a token; tests add others."""
    before = dict(os.environ)
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(SITE)
    os.environ["PYTHONPATH"] = f"{site}:{before.get('PYTHONPATH', '')}"
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        yield cluster
    finally:
        cluster.shutdown()
        os.environ.clear()
        os.environ |= before


_owners = []


@pytest.fixture(autouse=True)
def alone(nodes):
    """Isolate each test from the state that earlier tests leave."""
    yield
    for process in _owners:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        if not process.stdout.closed:
            process.communicate()
    _owners.clear()
    for node in list(nodes.worker_nodes):
        nodes.remove_node(node)
    for one in actors():
        one.kill()


def owner(cluster, folder, *words, room=60.0, **environment):
    """A process that owns a study on the cluster."""
    program = PROGRAM.format(room=room)
    command = [sys.executable, "-c", program, *map(str, words), "--cluster", cluster.address]
    _owners.append(
        subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    )
    return _owners[-1]


def ended(process, seconds=900.0):
    out, told = process.communicate(timeout=seconds)
    print(out, told)
    return process.returncode, out + told


def begun(folder):
    folder.mkdir()
    (folder / "c.yaml").write_text(CONFIG)
    return ("tune", folder / "c.yaml", "--study-name", folder / "one", "--no-report", *BUDGET)


def actors():
    """Processes of actors of this cluster."""
    found = []
    for one in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error):
            mine = (one.info["cmdline"] or [""])[0].startswith("ray::Process")
            if mine and one.environ().get("RAY_AUTH_TOKEN") == TOKEN:
                found.append(one)
    return found


def until(happened, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


def told(folder):
    """Return the nodes as reported by `study status`."""
    status = read_status(folder / "one")
    return [] if status is None else list(status.nodes)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return whole(tmp_path_factory.mktemp("expected") / "alone", *BUDGET)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_same_study_on_any_number_of_nodes(nodes, tmp_path, expected, count):
    folder = tmp_path / "study"
    for _ in range(count - 1):
        nodes.add_node(num_cpus=1)
    code, said = ended(owner(nodes, folder.parent, *begun(folder)))
    assert code == 0, said
    assert contents(folder) == expected
    assert len(told(folder)) == count and sum(one["answers"] for one in told(folder)) > 0
    until(lambda: not actors(), 30.0)


def test_kills(nodes, tmp_path):
    """Losses of an actor, a hanging actor, a node and the owner; a late node is used."""
    folder, budget = tmp_path / "study", ("--total-timesteps", "2_000_000")
    words = (*begun(folder)[:-2], *budget)
    process = owner(nodes, tmp_path, *words)
    until(lambda: any(one["busy"] for one in told(folder)))
    elsewhere = ("--study-name", tmp_path / "elsewhere" / "one", *budget)
    code, said = ended(owner(nodes, tmp_path, *words[:2], *elsewhere))
    assert code == 2 and "works on the study one" in said
    actors()[0].kill()
    until(lambda: sum(one["losses"] for one in told(folder)) == 1)
    late = nodes.add_node(num_cpus=1)
    until(lambda: sum(one["busy"] for one in told(folder)) == 2)
    nodes.remove_node(late, allow_graceful=False)
    until(lambda: sum(one["losses"] for one in told(folder)) == 2)
    until(lambda: any(one["busy"] for one in told(folder)))
    actors()[0].suspend()
    until(lambda: sum(one["losses"] for one in told(folder)) == 3)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    for one in actors():  # Ray cannot end one that hangs
        one.kill()
    until(lambda: not actors(), 60.0)
    code, said = ended(owner(nodes, tmp_path, "resume", folder / "one", "--no-report"))
    assert code == 0, said
    assert contents(folder) == whole(tmp_path / "alone", *budget)


def test_ctrl_c_leaves_no_actors_and_one_machine_goes_on(nodes, tmp_path, expected):
    folder = tmp_path / "study"
    process = owner(nodes, tmp_path, *begun(folder))
    until(lambda: any(one["busy"] for one in told(folder)))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    code, said = ended(process, 120.0)
    assert code == 130 and "slipstream resume" in said
    until(lambda: not actors(), 30.0)
    command = [sys.executable, "-c", MAIN, "resume", str(folder / "one")]
    done = subprocess.run([*command, "--no-report"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert contents(folder) == expected


def test_a_run_and_a_kernel_of_the_users(nodes, tmp_path):
    """Its members are on two nodes, one of which dies; the user's file is there, too."""
    pole = tmp_path / "pole.py"
    pole.write_text(
        "from slipstream.kernels.classic.cartpole import Config, Params, Data, STATE, load, reset, "
        "step, observe, spec\n"
    )
    words = ("train", pole, "--members", "2", "--total-timesteps", "600_000", "--no-report")
    alone = [sys.executable, "-c", MAIN, *map(str, words), "--out", "alone"]
    subprocess.run(alone, cwd=tmp_path, check=True, capture_output=True)
    late = nodes.add_node(num_cpus=1)
    process = owner(nodes, tmp_path, *words, "--out", "far")
    until(lambda: (tmp_path / "far" / "metrics.csv").exists())
    nodes.remove_node(late, allow_graceful=False)
    nodes.add_node(num_cpus=1)
    code, said = ended(process)
    assert code == 0 and "another one continues" in said, said
    for m in range(2):
        files = [tmp_path / run / "best" / f"member-{m:03d}" for run in ("alone", "far")]
        assert len({(one / "state.safetensors").read_bytes() for one in files}) == 1
    results = [json.loads((tmp_path / run / "result.json").read_text()) for run in ("alone", "far")]
    assert results[0]["members"] == results[1]["members"]


def test_an_agents_file_of_the_users(nodes, tmp_path):
    """It is laid out on nodes, and read there before a config that names its classes."""
    own = tmp_path / "mine.py"
    own.write_text((Path(__file__).parents[1] / "samples/reinforce.py").read_text())
    words = ("train", "cartpole", "--set", "agent.name=mine.py", "--members", "2")
    words += ("--total-timesteps", "20_000", "--no-report", "--out")
    command = [sys.executable, "-c", MAIN, *words, "alone"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    code, said = ended(owner(nodes, tmp_path, *words, "far"))
    assert code == 0, said
    for m in range(2):
        files = [tmp_path / run / "best" / f"member-{m:03d}" for run in ("alone", "far")]
        assert len({(one / "state.safetensors").read_bytes() for one in files}) == 1


@pytest.mark.parametrize(
    ("address", "environment", "words"),
    [
        ("127.0.0.1:1", {}, "No cluster can be used at 127.0.0.1:1"),
        (None, {"RAY_AUTH_TOKEN": "f" * 64}, "did not accept this machine's token"),
    ],
)
def test_a_cluster_that_cannot_be_used(nodes, tmp_path, address, environment, words):
    folder = tmp_path / "study"
    there = type("Address", (), {"address": address or nodes.address})
    code, said = ended(owner(there, tmp_path, *begun(folder), **environment))
    assert code == 2 and words in said


def test_a_cluster_without_room(nodes, tmp_path):
    """Others use it all: a study of its own does."""
    first, second = tmp_path / "first", tmp_path / "second"
    owner(nodes, tmp_path, *begun(first)[:-1], "2_000_000")
    until(lambda: any(one["busy"] for one in told(first)))
    words = (*begun(second)[:3], second / "two")
    code, said = ended(owner(nodes, tmp_path, *words, room=5.0))
    assert code == 2 and "has had no room" in said


def test_shares_of_a_card(nodes, tmp_path):
    """Ray is told of a card that is not there: two actors have half of it each."""
    from slipstream.training.cluster.cluster import ClusterOptions
    from slipstream.training.cluster.cluster_workers import SERVICE
    from slipstream.training.cluster.node_service import work_for
    from slipstream.training.cluster.ray_cluster import RayCluster
    from slipstream.training.environments.factory import resolve_environment
    from slipstream.training.settings.config import resolve

    config = resolve("cartpole", {"training.device": "cuda:0"})
    environment = resolve_environment(config.env_name, config.env_settings)
    work = work_for("cards", SERVICE, environment, config, tmp_path)
    nodes.add_node(num_cpus=3, num_gpus=1)
    found = []
    with RayCluster(ClusterOptions(nodes.address, gpu_share=0.5), work, print) as cluster:
        until(lambda: found.extend(cluster.new_actors()) or len(found) == 2, 120.0)
        time.sleep(3.0)
        assert not cluster.new_actors()
        assert [node["slots"] for node in cluster.status()] == [2]


def test_an_owner_whose_head_dies_ends_in_words(nodes, tmp_path):
    from ray.cluster_utils import Cluster

    head = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        folder = tmp_path / "study"
        process = owner(head, tmp_path, *begun(folder)[:-1], "2_000_000")
        until(lambda: any(one["busy"] for one in told(folder)))
        head.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
        code, said = ended(process, 300.0)
    finally:
        head.shutdown()
    assert code == 2 and "was lost: its head died" in said and "slipstream resume" in said
