"""Jobs, their supervisor and both are killed: none is lost, none begins twice.

The state that a training ends with is the same, bit for bit, as that of one nobody disturbed.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

import slipstream as package
from slipstream.core.storage import checkpoint
from slipstream.jobs.job_list import job_state
from slipstream.jobs.job_process import find_process, job_environment
from slipstream.jobs.queue import JobQueue

SETTINGS = ["--num-envs=8", "--no-report", "--set=training.keep_last=1"]
MAIN = [sys.executable, "-c", "from slipstream.cli import main; main()", "jobs", "run"]


def final_state(folder):
    tensors, _ = checkpoint.load(checkpoint.checkpoints(folder / "checkpoints")[-1])
    return {name: value.tobytes() for name, value in tensors.items()}


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("each", "steps", "seeds"),
    [
        (1, 400_000, (1, 2)),
        pytest.param(20, 2_000_000, (1, 2, 3), marks=pytest.mark.timeout(2400)),
    ],
)
def test_killed_jobs_end_with_the_weights_of_undisturbed_ones(
    tmp_path, each, steps, seeds, monkeypatch
):
    """So many kills of the supervisor, of a job and of both; all fall while jobs are under way."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for seed in seeds:
        package.train(
            "cartpole", num_envs=8, total_timesteps=steps, seed=seed, keep_last=1,
            out=f"calm/{seed}", report=False, log=lambda _: None,
        )  # fmt: skip
    draw = random.Random(each)
    kills = ["job", "supervisor", "both"] * each
    draw.shuffle(kills)
    with JobQueue(tmp_path / "queue") as queue:
        for seed in seeds:
            folder = tmp_path / "killed" / str(seed)
            own = [f"--total-timesteps={steps}", f"--seed={seed}", f"--out={folder}"]
            first = ["train", *SETTINGS, *own, "--", "cartpole"]
            again = ["resume", "--no-report", str(folder)]
            queue.add("run", folder, first, again, job_environment())
        command, supervisor = [*MAIN, f"--queue={queue.folder}"], None
        deadline = time.monotonic() + 2000
        try:
            while any(not job.final_state for job in queue.jobs()):
                assert time.monotonic() < deadline
                if supervisor is None or supervisor.poll() is not None:
                    supervisor = subprocess.Popen(command, stdout=subprocess.DEVNULL)
                time.sleep(draw.uniform(0.3, 1.5))
                running = [job for job in queue.jobs() if job_state(queue, job) == "running"]
                assert len(running) <= (os.cpu_count() or 1)
                process = find_process(draw.choice(running)) if running else None
                if not kills or process is None:  # it has not said its number yet
                    continue
                which = kills.pop()
                if which != "job":
                    kill(supervisor.pid)
                    supervisor.wait()
                if which != "supervisor":
                    kill(process.pid)
                for job in running:  # kills so close together leave no time to get further
                    queue.set_target(job, "complete")
        finally:
            if supervisor is not None:
                supervisor.kill()
                supervisor.wait()
            for job in queue.jobs():
                process = find_process(job)
                if queue.is_running(job) and process is not None:
                    kill(process.pid)
        assert [job.final_state for job in queue.jobs()] == ["complete"] * len(seeds)
        assert not kills, "jobs were complete before all kills had fallen: let them train longer"
    for seed in seeds:
        folder = tmp_path / "killed" / str(seed)
        assert final_state(folder) == final_state(tmp_path / "calm" / str(seed))
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        assert sum(event["event"] == "started" for event in events) == 1
