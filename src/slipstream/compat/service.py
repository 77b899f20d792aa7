"""AgentTrainingService: trainings in a queue of their own, from Python."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from slipstream.api.envs import registered_target
from slipstream.core.bounds import Count
from slipstream.core.config import Config, validate, validation_error
from slipstream.core.errors import ConfigError
from slipstream.core.storage.atomic_io import make_folder, write_text
from slipstream.core.storage.status_file import Status, read_status
from slipstream.gym.object_environment import OBJECT
from slipstream.jobs.job_list import job_state
from slipstream.jobs.job_process import detach, job_environment, start_process
from slipstream.jobs.memory_forecast import forecast_run_memory
from slipstream.jobs.queue import STOPPED, JobQueue, QueuedJob
from slipstream.jobs.supervisor import has_supervisor, stop_job
from slipstream.training.environments.factory import get_kind
from slipstream.training.runs.run import CONFIG, Run
from slipstream.training.settings.config import RunConfig, resolve


class VectorizedEnvConfig(Config):
    """Copies of a service's job.

    A kernel is always stepped compiled, whatever `env_type` says; a ``gym:ID`` one after the other
    in the training's process (``DummyVecEnv``), or in worker processes (``SubprocVecEnv``), where
    those work. Results say which it was.
    """

    env_type: Literal["DummyVecEnv", "SubprocVecEnv"] = Field(
        "DummyVecEnv", description="how copies of a gym:ID are stepped; changes no result"
    )
    num_envs: Count = Field(4, description="copies, per member")
    max_concurrent_envs: Count = Field(
        8, description="copies that no job may have more of while this one has not ended"
    )
    enable_monitoring: bool = Field(
        True, description="results say what the job took of memory, processor and cards"
    )

    def __init__(self, **values: Any) -> None:
        """Fields by name, as a program gives them.

        Raises:
            ConfigError: in a paragraph.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise validation_error(type(self), error, "vectorized") from None

    def training(self, env_name: str) -> dict[str, Any]:
        """What it means for a run's `training` section."""
        section: dict[str, Any] = {"num_envs": self.num_envs, "backend": "auto"}
        if "process" in get_kind(env_name).backends:
            section["backend"] = "serial"
            if self.env_type == "SubprocVecEnv":
                section |= {"backend": "process", "backend_fallback": ["serial"]}
        return section


_SECONDS = 0.2  # between two looks of `wait`


class AgentTrainingService:
    """Trains several agents at once, each in a process of its own, and loses none of them.

    ::

        service = slipstream.AgentTrainingService("trainings")
        config = VectorizedEnvConfig(num_envs=8)
        number = service.submit("cartpole", config, total_timesteps=100_000)
        service.wait(number)
        print(service.results(number)["scores"])

    Jobs, their order and their results lie in the folder: another process, or this one after a
    kill, goes on with the same calls. A supervisor (`slipstream jobs run`) works them off; it is
    started where none works, and ends with the last job. There is no server.

    Args:
        folder: of the queue (``queue/``) and of the runs (``runs/ID``); made where it is missing.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self._queue = JobQueue(self.folder / "queue")

    def submit(
        self,
        config: str | Path | Mapping[str, Any] | RunConfig,
        vectorized: VectorizedEnvConfig | Mapping[str, Any] | None = None,
        **training: Any,
    ) -> int:
        """Adds a training, which begins when there is a core for it; its number.

        Args:
            config: as for `slipstream.train`; its `training.num_envs` and `backend` are what
                `vectorized` says.
            vectorized: copies and how they are stepped; `VectorizedEnvConfig()` unless given.
            **training: fields of the `training` section: total_timesteps, seed, ...

        Raises:
            ConfigError: the config is none, or asks for more copies than the smallest
                `max_concurrent_envs` of the jobs under way, or its own.
            ResourceError: this machine's memory cannot hold it.
        """
        if not isinstance(vectorized, VectorizedEnvConfig):
            vectorized = validate(VectorizedEnvConfig, vectorized or {}, "vectorized")
        if told := {"num_envs", "backend"} & training.keys():
            raise ConfigError(
                f"{min(told)} is said by `vectorized`: write VectorizedEnvConfig(num_envs=..., "
                "env_type=...)."
            )
        changes = {f"training.{name}": value for name, value in training.items()}
        name = resolve(registered_target(config), changes).env_name
        if name.startswith(OBJECT):
            raise ConfigError(
                f"{config!r:.80} is an environment that this program made, and a job is another "
                "process, which has not got it: write a kernel's file "
                "(docs/guides/custom-environment.md), or "
                "register it with Gymnasium and submit gym:MODULE:ID; `slipstream.train` trains "
                "the object itself, here."
            )
        own = vectorized.training(name)
        resolved = resolve(config, {**changes, **{f"training.{k}": v for k, v in own.items()}})
        self._check_copies(vectorized)
        memory = forecast_run_memory(resolved)
        stem = f"{resolved.short_name}-{time.time_ns()}"
        folder = self.folder / "runs" / stem
        job = self._queue.add(
            "run",
            folder,
            self._command(resolved, folder),
            ["resume", str(folder)],
            {**job_environment(), "vectorized": vectorized.model_dump()},
            memory=memory,
        )
        self._supervise()
        return job.id

    def scale(self, job: int, num_envs: int) -> None:
        """Goes on with another number of copies; returns once that is settled.

        A job at work is stopped at a checkpoint, and goes on from it: copies that it keeps go on,
        more begin, an agent's replay begins empty. From there on results are those of another
        training, which the run's notes and `results` say.

        Raises:
            ConfigError: the job has ended, or cannot have so many copies: then it is left alone.
        """
        found = self._open_job(job)
        asked = {**found.environment["vectorized"], "num_envs": num_envs}
        vectorized = validate(VectorizedEnvConfig, asked, "vectorized")
        self._check_copies(vectorized, job)
        config = resolve(found.command[-1]).with_num_envs(num_envs)
        memory = forecast_run_memory(config)
        self.cancel(job)
        while (handle := self._queue.acquire_lock(found)) is None:  # nobody begins it meanwhile
            time.sleep(_SECONDS)
        try:
            found = self._open_job(job)
            self._queue.replace(
                found,
                memory,
                command=self._command(config, Path(found.folder)),
                again=["resume", f"--num-envs={num_envs}", found.folder],
                place={**found.environment, "vectorized": vectorized.model_dump()},
            )
        finally:
            os.close(handle)
        self._supervise()

    def status(self, job: int) -> tuple[str, Status | None]:
        """Where a job stands, as `slipstream jobs` says it, and what its run last said of itself.

        ``waiting``, ``running``, ``stopping``, ``stopped``, ``complete`` or ``failed``.
        """
        found = self._queue.job(job)
        folder = Path(found.folder)
        return job_state(self._queue, found), read_status(folder) if folder.is_dir() else None

    def wait(self, job: int, timeout: float | None = None) -> str:
        """Waits until a job is complete, failed or stopped; its state then, or after `timeout`.

        Args:
            job: its number.
            timeout: seconds; None: as long as it takes.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            state = job_state(self._queue, self._queue.job(job))
            ended = state in ("complete", "failed", "stopped")
            if ended or (deadline is not None and time.monotonic() >= deadline):
                return state
            self._supervise()  # the one before may have been killed
            time.sleep(_SECONDS)

    def cancel(self, job: int) -> None:
        """Stops a job at a checkpoint; `retry` goes on with it."""
        found = self._queue.job(job)
        if not found.final_state:
            stop_job(self._queue, found)

    def retry(self, job: int) -> None:
        """Wants a job again that failed or was cancelled; it goes on where it was."""
        found = self._queue.job(job)
        self._check_copies(VectorizedEnvConfig(**found.environment["vectorized"]), job)
        self._queue.retry(found)
        self._supervise()

    def results(self, job: int) -> dict[str, Any]:
        """Return what came of a job, also of one that is stopped or failed after its run began.

        Returns:
            ``state`` (as `status` has it), ``scores`` (a dict for each member; empty before the
            end), ``evaluations`` (columns of the validations so far), ``backend`` (what stepped the
            copies), ``env_type`` (what was asked for), ``fallback`` (whether it was another one),
            ``num_envs``, and ``copies``: from which step on there were how many, more than one
            row where it was scaled; ``steps_per_second``, ``folder``, ``notes`` (what there is to
            know about the scores); with `enable_monitoring` the run's
            means ``cpu_percent`` and ``memory_gib``, of cards ``gpu_percent`` and
            ``vram_gib`` (None where there is none).

        Raises:
            ConfigError: its run has not begun, or it is at work.
        """
        found = self._queue.job(job)
        state, folder = job_state(self._queue, found), Path(found.folder)
        there = state in ("complete", "stopped", "failed") and (folder / CONFIG).is_file()
        if not there:
            why = f": {found.reason}" if found.reason else ""
            ended = state in ("stopped", "failed")
            advice = f"`retry({job})` begins it again." if ended else f"Call `wait({job})` first."
            raise ConfigError(f"Job {job} is {state}{why}, and there are no results. {advice}")
        run = Run.open(folder)
        result = run.result or {}
        asked = found.environment["vectorized"]
        backend = run.provenance.get("backend")
        wanted = {"DummyVecEnv": "serial", "SubprocVecEnv": "process"}[asked["env_type"]]
        results = {
            "state": state,
            "scores": result.get("members", []),
            "evaluations": run.evaluations(),
            "backend": backend,
            "env_type": asked["env_type"],
            "num_envs": run.num_envs_history[-1]["num_envs"],
            "copies": run.num_envs_history,
            "fallback": backend not in (wanted, "compiled"),
            "steps_per_second": result.get("steps_per_second"),
            "folder": run.path,
            "notes": run.provenance.get("notes", []),
        }
        return {**results, **run.resource_usage()} if asked["enable_monitoring"] else results

    def _command(self, config: RunConfig, folder: Path) -> list[str]:
        """What begins a training, from a config that is kept beside the queue."""
        kept = self.folder / "queue" / "configs" / f"{folder.name}-{config.num_envs}.yaml"
        make_folder(kept.parent)
        write_text(kept, config.to_yaml())
        return ["train", f"--out={folder}", "--", str(kept)]

    def _open_job(self, job: int) -> QueuedJob:
        found = self._queue.job(job)
        if found.final_state:
            raise ConfigError(
                f"Job {job} is {found.final_state}, and its copies stay as they were: submit "
                "another."
            )
        return found

    def _check_copies(self, vectorized: VectorizedEnvConfig, job: int | None = None) -> None:
        """Refuses more copies than any job under way allows, or its own config."""
        limits = [(vectorized.max_concurrent_envs, "its own max_concurrent_envs")]
        for other in self._queue.jobs(include_ended=False):
            if other.id != job and (other.target_state != STOPPED or self._queue.is_running(other)):
                own = other.environment["vectorized"]["max_concurrent_envs"]
                limits.append((own, f"that of job {other.id}, which has not ended,"))
        most, whose = min(limits)
        if vectorized.num_envs > most:
            raise ConfigError(
                f"num_envs is {vectorized.num_envs}, and {whose} allows {most} copies at once: ask "
                "for fewer, or wait for that job."
            )

    def _supervise(self) -> None:
        """Sees to it that a supervisor works while there are jobs."""
        if has_supervisor(self._queue) or not any(
            job.target_state != STOPPED for job in self._queue.jobs(include_ended=False)
        ):
            return
        words = ["jobs", "run", "--until-idle", f"--queue={self._queue.folder}"]
        detach(start_process(words, self._queue.folder / "supervisor.txt", job_environment()))
