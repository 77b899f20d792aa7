"""What other processes are told of a run: whole files, honest states, and never an end of work."""

import itertools
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from slipstream.core.errors import CheckpointError, ConfigError, DataError
from slipstream.core.storage import atomic_io
from slipstream.core.storage.logbook import Logbook
from slipstream.core.storage.signals import STOP, Interrupted, is_stop_requested, request_stop
from slipstream.core.storage.status_file import (
    EVENTS,
    LOG,
    STATUS,
    Status,
    read_events,
    read_status,
    run_lines,
)
from slipstream.training.callbacks.events import Updated
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve
from slipstream.training.trainer import resume, train

SETTINGS = {
    "training.num_envs": 4,
    "training.total_timesteps": 4 * 16 * 6,
    "agent.n_steps": 16,
    "agent.batch_size": 32,
    "agent.net_arch": [8],
    "evaluation.episodes": 2,
    "evaluation.max_steps": 20,
}


def begun(tmp_path, name="run", **more):
    return Run.create(resolve("cartpole", {**SETTINGS, **more}), tmp_path / name)


def kinds(folder):
    return [event["event"] for event in read_events(folder)]


def weights(run):
    tensors, _ = run.load_checkpoint()
    return {name: np.array(value) for name, value in tensors.items()}


def quiet(folder):
    return Logbook(folder, "run", lambda line: None)


def test_a_run_tells_where_it_stands_to_its_end(tmp_path):
    run, seen = begun(tmp_path, **{"training.members": 2}), []

    def look(event):
        if isinstance(event, Updated):
            seen.append(read_status(run.path))

    train(run.config, run, [look])
    run.close()
    assert {one.liveness() for one in seen} == {"running"} and seen[0].pid == os.getpid()
    assert seen[0].phase == "training" and seen[0].total == 2 * 384
    last = read_status(run.path)
    assert (last.state, last.completed, last.total) == ("complete", 768, 768)
    assert last.host == platform.node() and last.eta is None
    found = kinds(run.path)
    assert (found[0], found[-1]) == ("started", "ended")
    assert {"validated", "checkpoint"} <= set(found)
    assert run_lines(run.path)[1] == "Complete."


def test_the_status_is_written_at_most_once_a_second(tmp_path, monkeypatch):
    now, written = [100.0], []
    monkeypatch.setattr("slipstream.core.storage.logbook.time.monotonic", lambda: now[0])
    monkeypatch.setattr(
        "slipstream.core.storage.logbook.write_json",
        lambda path, facts, durable: written.append((now[0], facts["completed"])),
    )
    with quiet(tmp_path) as logbook:
        for k in range(1, 11):
            now[0] += 0.25
            logbook.show(Status("run", completed=k))
    assert [at - 100.0 for at, _ in written] == [0.0, 1.0, 2.0, 2.5]
    assert [done for _, done in written] == [0, 4, 8, 10]  # the end is always told


@pytest.mark.parametrize("by", ["ask", pytest.param("touch", marks=pytest.mark.slow)])
def test_a_request_stops_a_run_which_resumes_to_the_same_weights(tmp_path, by):
    whole = begun(tmp_path, "whole")
    train(whole.config, whole)
    whole.close()
    run, done = begun(tmp_path), []

    def request(event):
        if isinstance(event, Updated):
            done.append(event.progress.iterations)
            if len(done) == 3:
                request_stop(run.path) if by == "ask" else (run.path / STOP).touch()

    with pytest.raises(Interrupted, match="slipstream resume"):
        train(run.config, run, [request])
    run.close()
    assert len(done) == 3 and not (run.path / STOP).exists()
    assert read_status(run.path).liveness() == "stopped"
    assert "resume with `slipstream resume" in run_lines(run.path)[1]
    again = Run.open(run.path)
    resume(again)
    again.close()
    assert kinds(run.path).count("resumed") == 1 and kinds(run.path)[-1] == "ended"
    one, other = weights(whole), weights(again)
    assert one.keys() == other.keys()
    assert [k for k in one if one[k].tobytes() != other[k].tobytes()] == []


def test_a_request_for_a_process_that_is_gone_stops_nobody(tmp_path):
    run = begun(tmp_path)
    request_stop(run.path)
    assert is_stop_requested(run.path)
    train(run.config, run)
    run.close()
    assert run.result is not None and not (run.path / STOP).exists()


def test_a_second_owner_is_refused_and_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic_io, "_PATIENCE_SECONDS", 0.0)
    run, told = begun(tmp_path), []

    def second(event):
        if isinstance(event, Updated) and not told:
            before = (run.path / STATUS).read_bytes(), (run.path / EVENTS).read_bytes()
            with pytest.raises(ConfigError, match="Another process is training"):
                resume(Run.open(run.path))
            told.append(
                before == ((run.path / STATUS).read_bytes(), (run.path / EVENTS).read_bytes())
            )

    train(run.config, run, [second])
    run.close()
    assert told == [True]


def test_a_killed_process_is_gone_and_the_next_one_notes_it(tmp_path):
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from slipstream.core.storage.logbook import Logbook\n"
        "with Logbook(Path(sys.argv[1]), 'run', print) as book:\n"
        "    book.log_event('checkpoint', steps=1)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    status = read_status(tmp_path)
    assert status.state == "running" and status.liveness() == "gone"
    assert f"Process {status.pid} on" in run_lines(tmp_path)[1]
    with quiet(tmp_path):
        pass
    assert kinds(tmp_path) == ["started", "checkpoint", "lost", "resumed", "ended"]
    assert read_events(tmp_path)[2]["pid"] == status.pid


def test_a_full_disk_that_took_its_last_event_alone_is_no_kill(tmp_path):
    now = time.time()
    left = Status("run", pid=2**22 + 1, host=platform.node(), started=now, updated=now)
    (tmp_path / STATUS).write_text(json.dumps(left.as_dict()))
    told = {"at": now + 1.0, "event": "failed", "reason": "The disk is full."}
    (tmp_path / EVENTS).write_text(json.dumps(told) + "\n")
    assert read_status(tmp_path).liveness() == "failed"
    lines = run_lines(tmp_path)
    assert lines[1].startswith("It failed: The disk is full. Fix it, then resume with `slipstream")
    assert "gone" not in " ".join(lines)
    told["at"] = now - 1.0  # of the session before
    (tmp_path / EVENTS).write_text(json.dumps(told) + "\n")
    assert read_status(tmp_path).liveness() == "gone"


def test_what_cannot_be_known_is_not_claimed():
    now = time.time()
    mine = Status("run", pid=os.getpid(), host=platform.node(), started=now, updated=now)
    assert mine.liveness() == "running"
    assert replace(mine, started=1.0).liveness() == "gone"  # another process has its number
    assert replace(mine, host="elsewhere").liveness() == "running"
    assert replace(mine, host="elsewhere", updated=now - 61).liveness() == "silent"
    assert replace(mine, state="failed").liveness() == "failed"


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (DataError("No such symbol."), "failed", "No such symbol."),
        (ZeroDivisionError("x"), "failed", "ZeroDivisionError('x')"),
        (KeyboardInterrupt(), "stopped", ""),
    ],
)
def test_how_a_session_ends_is_its_last_word(tmp_path, error, state, reason):
    with pytest.raises(type(error)), quiet(tmp_path):
        raise error
    status = read_status(tmp_path)
    assert (status.state, status.reason) == (state, reason)
    assert kinds(tmp_path) == ["started", state]


def test_a_line_that_a_kill_cut_short_is_passed_over(tmp_path):
    with quiet(tmp_path):
        pass
    with (tmp_path / EVENTS).open("a") as file:
        file.write('{"at": 1.0, "event": "che')
    with quiet(tmp_path) as logbook:
        logbook.log_event("checkpoint", steps=float("nan"))
    assert kinds(tmp_path) == ["started", "ended", "resumed", "checkpoint", "ended"]
    assert read_events(tmp_path, 2)[0]["steps"] is None


@pytest.mark.parametrize("name", [STATUS, EVENTS])
def test_a_pipe_in_its_place_is_waited_for_by_nobody(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with quiet(tmp_path):
        pass
    assert kinds(tmp_path) == ([] if name == EVENTS else ["resumed", "ended"])
    assert read_status(tmp_path).state == "complete"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is always full")
def test_a_full_disk_is_said_once_and_ends_nothing(tmp_path):
    (tmp_path / EVENTS).symlink_to("/dev/full")
    (tmp_path / STATUS).mkdir()
    said = []
    with Logbook(tmp_path, "run", said.append) as logbook:
        logbook.log_event("checkpoint")
        logbook.show(Status("run", completed=1))
    assert len(said) == 1
    assert "The disk is full" in said[0] and "The work continues" in said[0]


def test_a_damaged_status_is_one_paragraph_and_no_obstacle(tmp_path):
    (tmp_path / STATUS).write_text('{"kind": 3}')
    with pytest.raises(CheckpointError, match=r"status\.json cannot be read.*Delete it"):
        read_status(tmp_path)
    with quiet(tmp_path):
        assert read_status(tmp_path).liveness() == "running"
    facts = json.loads((tmp_path / STATUS).read_text())
    (tmp_path / STATUS).write_text(json.dumps({**facts, "colour": "of a later version"}))
    assert read_status(tmp_path).state == "complete"


def test_a_log_for_people_has_an_event_a_line(tmp_path):
    run = begun(tmp_path, **{"training.members": 2})
    train(run.config, run)
    run.close()
    lines = (run.path / LOG).read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC  \S", line) for line in lines)
    text = "\n".join(lines)
    assert "UTC  started  pid" in text and text.endswith("UTC  ended")
    assert "Using Vectorized Environments: 4 parallel envs (compiled), for each member" in text
    assert text.count("evaluation score") == kinds(run.path).count("validated") > 0


def test_the_log_is_bounded_and_nothing_between_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("slipstream.core.storage.logbook._LOG_BYTES", 1_000)
    with quiet(tmp_path) as logbook:
        for k in range(100):
            logbook.log(f"sentence {k}\nin two lines\x1b[2J")
    logbook.log("after the session")
    old, new = ((tmp_path / name).read_text() for name in (f"{LOG}.1", LOG))
    assert len(old) < 1_200 and len(new) < 1_200
    found = [int(n) for n in re.findall(r"UTC  sentence (\d+)\\nin two lines\\x1b", old + new)]
    assert found == list(range(found[0], 100)) and found[0] > 50
    assert "after the session" not in new


def test_what_takes_long_is_told_as_it_begins(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(
        "slipstream.core.storage.logbook.write_json",
        lambda path, facts, durable: written.append(facts["phase"]),
    )
    run = begun(tmp_path)
    train(run.config, run)
    run.close()
    phases = [phase for phase, _ in itertools.groupby(written)]
    assert phases[:2] == ["starting", "compiling"]
    assert {"training", "validating", "writing"} <= set(phases) and "testing" in phases[-2:]
