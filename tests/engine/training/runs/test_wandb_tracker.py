"""Runs at Weights & Biases, offline: what is sent, after a kill, too; its failure stops no run."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time

import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.training.runs.run import Run

wandb = pytest.importorskip("wandb", reason="pip install wandb")
SMALL = {"agent.n_steps": 32, "agent.batch_size": 64, "agent.net_arch": [8]}


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """No network, no files of the user's."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_ARTIFACT_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-files"))


def records(run):
    """Return the contents of the folder `wandb`, by session."""
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # its service writes the last rows when it ends
    paths = sorted(run.path.glob("wandb/offline-run-*/*.wandb"))
    return [[Record.FromString(data) for data in contents(path.read_bytes())] for path in paths]


def contents(file):
    """Records of LevelDB's log format: blocks of 32 KiB; a head (checksum, length, kind) a part."""
    place, whole = 7, b""  # after the file's own head
    while place + 7 <= len(file):
        if 32_768 - place % 32_768 < 7:  # no head fits: a block ends in zeros
            place += 32_768 - place % 32_768
            continue
        _, length, kind = struct.unpack_from("<IHB", file, place)
        whole += file[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the only part, or the last one
            yield whole
            whole = b""


def history(session):
    """Names of what is logged."""
    rows = [record.history for record in session if record.WhichOneof("record_type") == "history"]
    return {"/".join(item.nested_key) or item.key for row in rows for item in row.item}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_config_curves_report_episodes_and_policies_are_sent(tmp_path):
    said = []
    run = slipstream.train(
        "cartpole",
        overrides=SMALL,
        members=2,
        num_envs=4,
        total_timesteps=1_024,
        out=tmp_path / "run",
        track="wandb",
        log=said.append,
    )
    assert run.result is not None and not [line for line in said if "failed" in line]
    (session,) = records(run)
    names = history(session)
    for name in (
        "rollout/ep_rew_mean",
        "rollout/episodes",
        "eval/mean_reward",
        "train/entropy_loss",
    ):
        assert {f"member-000/{name}", f"member-001/{name}"} <= names, names
    assert "steps" in names
    (first,) = [one.run for one in session if one.WhichOneof("record_type") == "run"][:1]
    assert {item.key for item in first.config.update} >= {"env", "agent", "training"}
    kinds = {one.request.log_artifact.artifact.type for one in session} | {
        one.artifact.type for one in session
    }
    assert {"report", "episodes", "policy"} <= kinds


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_run_goes_on_as_the_same_tracked_run(tmp_path):
    code = (
        "import slipstream; slipstream.train('cartpole', num_envs=4, total_timesteps=200_000, "
        f"overrides={SMALL | {'training.checkpoint_every': 0.02}!r}, out='run', track='wandb', "
        "report=False)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, start_new_session=True)
    while not list((tmp_path / "run/checkpoints").glob("step-*")):
        assert child.poll() is None
        time.sleep(0.1)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    run = slipstream.resume(tmp_path / "run", report=False)  # it remembers that it is tracked
    assert run.result is not None
    sessions = sorted(path.name for path in (run.path / "wandb").glob("offline-run-*"))
    assert len(sessions) == 2 and len({name.rpartition("-")[2] for name in sessions}) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", ["init", "log"])
def test_a_tracker_that_fails_stops_no_training(tmp_path, monkeypatch, part):
    def fail(*arguments, **options):
        raise OSError("the network is down")

    if part == "init":
        monkeypatch.setattr(wandb, "init", fail)
    else:
        begin = wandb.init

        def init(**options):
            found = begin(**options)
            found.log = fail
            return found

        monkeypatch.setattr(wandb, "init", init)
    said = []
    options = {"num_envs": 4, "total_timesteps": 512, "report": False, "log": said.append}
    run = slipstream.train(
        "cartpole", overrides=SMALL, out=tmp_path / "run", track="wandb", **options
    )
    assert Run.open(run.path).result is not None
    told = [
        line for line in said if "Weights & Biases failed (OSError: the network is down)" in line
    ]
    assert len(told) == 1
    if part == "log":
        wandb.finish()


def test_an_unknown_tracker_is_refused_before_anything(tmp_path):
    with pytest.raises(ConfigError, match=r"^track='mlflow' is unknown"):
        slipstream.train("cartpole", out=tmp_path / "run", track="mlflow")
    assert not (tmp_path / "run").exists()
