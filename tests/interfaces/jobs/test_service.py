"""AgentTrainingService, as a script uses it."""

import os
import signal
import time

import gymnasium
import psutil
import pytest

from slipstream import AgentTrainingService, VectorizedEnvConfig
from slipstream.core.errors import ConfigError, ResourceError
from slipstream.core.storage.status_file import read_status
from slipstream.jobs.queue import STOPPED, JobQueue

SMALL = {"total_timesteps": 4_096, "checkpoint_every": 0.25}
LONG = {"total_timesteps": 50_000_000, "checkpoint_every": 0.0002}
SECONDS = 120.0


@pytest.fixture
def service(tmp_path, monkeypatch):
    """One whose processes end with the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = AgentTrainingService(tmp_path / "trainings")
    yield made
    with JobQueue(tmp_path / "trainings" / "queue") as queue:
        for job in queue.jobs(include_ended=False):
            queue.set_target(job, STOPPED)
    for process in psutil.process_iter(["cmdline"]):
        if str(tmp_path) in " ".join(process.info["cmdline"] or ()):
            process.kill()


def begins(service, job, after=None):
    """Its status once it trains, in another process than `after`."""
    deadline = time.monotonic() + SECONDS
    while (status := service.status(job)[1]) is None or not status.completed or status.pid == after:
        assert time.monotonic() < deadline, service.status(job)
        time.sleep(0.05)
    return status


@pytest.mark.slow
def test_a_kernel_is_compiled_by_either_name_and_results_say_what_it_took(service):
    config = VectorizedEnvConfig(env_type="SubprocVecEnv", num_envs=4)
    assert config.max_concurrent_envs == 8 and config.enable_monitoring is True
    job = service.submit("cartpole", config, **SMALL)
    assert service.wait(job, SECONDS) == "complete", service.status(job)
    found = service.results(job)
    assert found["backend"] == "compiled" and found["fallback"] is False
    assert found["env_type"] == "SubprocVecEnv" and found["num_envs"] == 4
    assert found["num_envs_history"] == [{"steps": 0, "num_envs": 4}]
    assert found["steps_per_second"] > 0 and found["memory_gib"] > 0
    assert found["cpu_percent"] > 0 and "gpu_percent" in found
    assert "best_score" in found["scores"][0]
    with pytest.raises(ConfigError, match=r"Job 1 is complete"):
        service.scale(job, 8)


@pytest.mark.slow
def test_a_job_at_work_is_scaled_at_a_checkpoint(service):
    job = service.submit("cartpole", {"num_envs": 4}, **LONG)
    before = begins(service, job)
    service.scale(job, 8)
    deadline = time.monotonic() + SECONDS
    while (status := service.status(job)[1]).pid == before.pid or not status.completed:
        assert time.monotonic() < deadline, service.status(job)
        time.sleep(0.05)
    assert status.completed >= before.completed
    service.cancel(job)
    assert service.wait(job, SECONDS) == "stopped"
    (folder,) = (service.folder / "runs").iterdir()
    log = (folder / "log.txt").read_text()
    assert "has num_envs 8 per member, before 4" in log
    assert read_status(folder).state == "stopped"
    found = service.results(job)
    assert (found["state"], found["scores"], found["folder"]) == ("stopped", [], folder)
    assert found["num_envs_history"][-1]["num_envs"] == 8 and found["evaluations"] == {}


@pytest.mark.slow
def test_a_job_that_waits_is_scaled_before_it_begins(service):
    job = service.submit("cartpole", {"num_envs": 4}, **SMALL)
    service.cancel(job)
    service.wait(job, SECONDS)
    service.scale(job, 2)
    assert service.wait(job, SECONDS) == "complete", service.status(job)
    assert service.results(job)["num_envs"] == 2


def test_the_smallest_limit_of_jobs_under_way_governs(service):
    with pytest.raises(ConfigError, match="at most 8, its own max_concurrent_envs"):
        service.submit("cartpole", {"num_envs": 16}, **SMALL)
    job = service.submit("cartpole", {"num_envs": 2, "max_concurrent_envs": 4}, **LONG)
    with pytest.raises(
        ConfigError, match=r"at most 4, max_concurrent_envs of the unfinished job 1, got 8"
    ):
        service.submit("cartpole", {"num_envs": 8}, **SMALL)
    with pytest.raises(ConfigError, match=r"at most \d+, its own max_concurrent_envs, got 8"):
        service.scale(job, 8)
    with pytest.raises(ConfigError, match="`vectorized` must be keys with values, it is 8"):
        service.submit("cartpole", 8)
    with pytest.raises(
        ConfigError, match=r"`vectorized\.env_type` must be .*SubprocVecEnv"
    ) as caught:
        VectorizedEnvConfig(env_type="Dummy")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"num_envs is set by `vectorized`"):
        service.submit("cartpole", num_envs=3)
    service.cancel(job)
    assert service.wait(job, SECONDS) == "stopped"
    other = service.submit("cartpole", {"num_envs": 8}, **SMALL)  # who was stopped governs nothing
    service.cancel(other)
    assert service.wait(other, SECONDS) == "stopped"


def test_what_no_machine_can_hold_is_refused_at_once(service):
    big = {"env": "cartpole", "agent": {"net_arch": [500_000, 500_000]}}
    with pytest.raises(ResourceError, match=r"reduce .*agent.net_arch to "):
        service.submit(big, **SMALL)
    with pytest.raises(ConfigError, match="There is no job 1"):
        service.status(1)


@pytest.mark.parametrize(
    "given",
    [lambda: gymnasium.make("CartPole-v1"), gymnasium.make("CartPole-v1"), "object:CartPoleEnv"],
    ids=["function", "object", "name"],
)
def test_an_environment_object_is_refused_with_what_can_be_submitted(service, given):
    """It is in this process, and a job is another one."""
    with pytest.raises(ConfigError, match=r"gym:MODULE:ID") as caught:
        service.submit(given, {"num_envs": 2}, **SMALL)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="is not an environment"):
        service.submit(5)
    with pytest.raises(ConfigError, match="There is no job 1"):
        service.status(1)


@pytest.mark.slow
def test_a_foreign_environment_is_stepped_as_it_was_asked_for(service):
    one = service.submit("gym:CartPole-v1", {"env_type": "DummyVecEnv"}, total_timesteps=4096)
    two = service.submit("gym:CartPole-v1", {"env_type": "SubprocVecEnv"}, total_timesteps=4096)
    for job, backend in ((one, "serial"), (two, "process")):
        assert service.wait(job, SECONDS) == "complete", service.status(job)
        found = service.results(job)
        assert found["backend"] == backend and found["fallback"] is False


@pytest.mark.slow
def test_a_killed_job_goes_on_after_it_was_scaled(service):
    job = service.submit("cartpole", {"num_envs": 4}, **LONG)
    before = begins(service, job).pid
    service.scale(job, 8)
    pid = begins(service, job, after=before).pid
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + SECONDS
    while (status := service.status(job)[1]).pid == pid:
        assert time.monotonic() < deadline
        service.wait(job, 0.1)
    assert status.liveness() == "running"
