"""`AgentTrainingService`: a queue of training jobs, from Python."""

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
    """Vectorized environment of a job.

    `env_type` applies to ``gym:ID`` environments: sub-environments are stepped in the training's
    process (``DummyVecEnv``) or in worker processes (``SubprocVecEnv``), if those work. Kernels are
    always compiled. `results` returns the backend that was used.
    """

    env_type: Literal["DummyVecEnv", "SubprocVecEnv"] = Field(
        "DummyVecEnv", description="backend of a gym:ID; does not change results"
    )
    num_envs: Count = Field(4, description="sub-environments per member")
    max_concurrent_envs: Count = Field(
        8, description="maximum `num_envs` of every job until this one has ended"
    )
    enable_monitoring: bool = Field(
        True, description="results include CPU, memory and GPU usage of the job"
    )

    def __init__(self, **values: Any) -> None:
        """Validate the fields.

        Raises:
            ConfigError: a field is unknown or not valid.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise validation_error(type(self), error, "vectorized") from None

    def training(self, env_name: str) -> dict[str, Any]:
        """Return the keys of a run's `training` section."""
        section: dict[str, Any] = {"num_envs": self.num_envs, "backend": "auto"}
        if "process" in get_kind(env_name).backends:
            section["backend"] = "serial"
            if self.env_type == "SubprocVecEnv":
                section |= {"backend": "process", "backend_fallback": ["serial"]}
        return section


_POLL_SECONDS = 0.2


class AgentTrainingService:
    """Queue of training jobs, each in its own process, that survives crashes.

    ::

        service = slipstream.AgentTrainingService("trainings")
        config = VectorizedEnvConfig(num_envs=8)
        number = service.submit("cartpole", config, total_timesteps=100_000)
        service.wait(number)
        print(service.results(number)["scores"])

    Jobs, their order and their results are stored in the folder. After a crash, or in another
    process, the same calls continue with them. A supervisor (`slipstream jobs run`) executes the
    jobs: it is started if none is running, and ends after the last job. There is no server.

    Args:
        folder: folder of the queue (``queue/``) and of the runs (``runs/ID``); created if missing.
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
        """Add a training job, which starts when a core is free; return its number.

        Args:
            config: config as for `slipstream.train`; `vectorized` replaces its `training.num_envs`
                and `training.backend`.
            vectorized: vectorized environment; None: `VectorizedEnvConfig()`.
            **training: fields of the `training` section: total_timesteps, seed, ...

        Raises:
            ConfigError: the config is not valid, or `num_envs` exceeds a `max_concurrent_envs`, its
                own or that of an unfinished job.
            ResourceError: the memory of this machine is too small.
        """
        if not isinstance(vectorized, VectorizedEnvConfig):
            vectorized = validate(VectorizedEnvConfig, vectorized or {}, "vectorized")
        if duplicates := {"num_envs", "backend"} & training.keys():
            raise ConfigError(
                f"{min(duplicates)} is set by `vectorized`. Use VectorizedEnvConfig(num_envs=..., "
                "env_type=...)."
            )
        changes = {f"training.{name}": value for name, value in training.items()}
        name = resolve(registered_target(config), changes).env_name
        if name.startswith(OBJECT):
            raise ConfigError(
                f"{config!r:.80} is an environment object of this process, and a job runs in "
                "another one. Write a kernel file (docs/guides/custom-environment.md), or register "
                "it with Gymnasium and submit gym:MODULE:ID. `slipstream.train` accepts the object "
                "itself."
            )
        section = vectorized.training(name)
        resolved = resolve(config, {**changes, **{f"training.{k}": v for k, v in section.items()}})
        self._check_num_envs(vectorized)
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
        """Continue with another number of sub-environments.

        A running job is stopped at a checkpoint and resumed from it: remaining sub-environments
        continue, new ones start, and a replay buffer starts empty. Results then differ from those
        of an unscaled job, which the run's notes and `results` record.

        Raises:
            ConfigError: the job has ended, or `num_envs` is not valid; the job is unchanged.
        """
        queued = self._open_job(job)
        values = {**queued.environment["vectorized"], "num_envs": num_envs}
        vectorized = validate(VectorizedEnvConfig, values, "vectorized")
        self._check_num_envs(vectorized, job)
        config = resolve(queued.command[-1]).with_num_envs(num_envs)
        memory = forecast_run_memory(config)
        self.cancel(job)
        # The lock keeps supervisors from starting the job.
        while (handle := self._queue.acquire_lock(queued)) is None:
            time.sleep(_POLL_SECONDS)
        try:
            queued = self._open_job(job)
            self._queue.replace(
                queued,
                memory,
                command=self._command(config, Path(queued.folder)),
                again=["resume", f"--num-envs={num_envs}", queued.folder],
                place={**queued.environment, "vectorized": vectorized.model_dump()},
            )
        finally:
            os.close(handle)
        self._supervise()

    def status(self, job: int) -> tuple[str, Status | None]:
        """Return the state of a job and the latest status of its run.

        States are ``waiting``, ``running``, ``stopping``, ``stopped``, ``complete`` and ``failed``.
        """
        queued = self._queue.job(job)
        folder = Path(queued.folder)
        return job_state(self._queue, queued), read_status(folder) if folder.is_dir() else None

    def wait(self, job: int, timeout: float | None = None) -> str:
        """Wait until a job is complete, failed or stopped; return its state.

        Args:
            job: number of the job.
            timeout: seconds after which the current state is returned; None: no limit.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            state = job_state(self._queue, self._queue.job(job))
            ended = state in ("complete", "failed", "stopped")
            if ended or (deadline is not None and time.monotonic() >= deadline):
                return state
            self._supervise()  # the supervisor may have been killed
            time.sleep(_POLL_SECONDS)

    def cancel(self, job: int) -> None:
        """Stop a job at a checkpoint; `retry` continues it."""
        queued = self._queue.job(job)
        if not queued.final_state:
            stop_job(self._queue, queued)

    def retry(self, job: int) -> None:
        """Requeue a failed or cancelled job from its last checkpoint."""
        queued = self._queue.job(job)
        self._check_num_envs(VectorizedEnvConfig(**queued.environment["vectorized"]), job)
        self._queue.retry(queued)
        self._supervise()

    def results(self, job: int) -> dict[str, Any]:
        """Return the results of a job that is complete, or that stopped or failed in its run.

        Returns:
            - ``state``: as returned by `status`.
            - ``scores``: a dict per member; empty before the end.
            - ``evaluations``: columns of the validations so far.
            - ``backend``: backend that stepped the environments.
            - ``env_type``: requested type; ``fallback``: True if another backend was used.
            - ``num_envs``: number of sub-environments; ``num_envs_history``: its values with the
              timestep of each change.
            - ``steps_per_second``, ``folder``, ``notes``.
            - With `enable_monitoring`, the means ``cpu_percent``, ``memory_gib``, ``gpu_percent``
              and ``vram_gib``; None without a GPU.

        Raises:
            ConfigError: the run has not started, or is running.
        """
        queued = self._queue.job(job)
        state, folder = job_state(self._queue, queued), Path(queued.folder)
        has_results = state in ("complete", "stopped", "failed") and (folder / CONFIG).is_file()
        if not has_results:
            reason = f": {queued.reason}" if queued.reason else ""
            ended = state in ("stopped", "failed")
            advice = f"`retry({job})` starts it again." if ended else f"Call `wait({job})` first."
            raise ConfigError(f"Job {job} has no results, because it is {state}{reason}. {advice}")
        run = Run.open(folder)
        result = run.result or {}
        vectorized = queued.environment["vectorized"]
        backend = run.provenance.get("backend")
        backends = {"DummyVecEnv": "serial", "SubprocVecEnv": "process"}
        results = {
            "state": state,
            "scores": result.get("members", []),
            "evaluations": run.evaluations(),
            "backend": backend,
            "env_type": vectorized["env_type"],
            "num_envs": run.num_envs_history[-1]["num_envs"],
            "num_envs_history": run.num_envs_history,
            "fallback": backend not in (backends[vectorized["env_type"]], "compiled"),
            "steps_per_second": result.get("steps_per_second"),
            "folder": run.path,
            "notes": run.provenance.get("notes", []),
        }
        return {**results, **run.resource_usage()} if vectorized["enable_monitoring"] else results

    def _command(self, config: RunConfig, folder: Path) -> list[str]:
        """Write the config beside the queue and return the command that trains it."""
        path = self.folder / "queue" / "configs" / f"{folder.name}-{config.num_envs}.yaml"
        make_folder(path.parent)
        write_text(path, config.to_yaml())
        return ["train", f"--out={folder}", "--", str(path)]

    def _open_job(self, job: int) -> QueuedJob:
        queued = self._queue.job(job)
        if queued.final_state:
            raise ConfigError(
                f"Job {job} is {queued.final_state} and cannot be scaled. Submit another job."
            )
        return queued

    def _check_num_envs(self, vectorized: VectorizedEnvConfig, job: int | None = None) -> None:
        """Raise ConfigError if `num_envs` exceeds the limit of this or an unfinished job."""
        limits = [(vectorized.max_concurrent_envs, "its own max_concurrent_envs")]
        for other in self._queue.jobs(include_ended=False):
            if other.id != job and (other.target_state != STOPPED or self._queue.is_running(other)):
                limit = other.environment["vectorized"]["max_concurrent_envs"]
                limits.append((limit, f"max_concurrent_envs of the unfinished job {other.id}"))
        limit, source = min(limits)
        if vectorized.num_envs > limit:
            raise ConfigError(
                f"num_envs must be at most {limit}, {source}, got {vectorized.num_envs}. Use fewer "
                "sub-environments, or wait for that job."
            )

    def _supervise(self) -> None:
        """Start a supervisor if there are jobs and none is running."""
        if has_supervisor(self._queue) or not any(
            job.target_state != STOPPED for job in self._queue.jobs(include_ended=False)
        ):
            return
        words = ["jobs", "run", "--until-idle", f"--queue={self._queue.folder}"]
        detach(start_process(words, self._queue.folder / "supervisor.txt", job_environment()))
