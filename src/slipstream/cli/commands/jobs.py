"""`slipstream jobs`: running and finished work, and a queue that survives crashes."""

from __future__ import annotations

import hashlib
import os
import shlex
from dataclasses import astuple, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.cli.background import command_line, command_words, estimate_memory
from slipstream.cli.options import select_cores
from slipstream.core.errors import ConfigError
from slipstream.core.plugins import folder_kinds
from slipstream.core.terminal import print_text
from slipstream.core.text import format_columns

app = typer.Typer(
    name="jobs",
    help="List runs, studies and jobs; manage the job queue.",
    invoke_without_command=True,
    epilog="Example: slipstream jobs --all",
)
_FROZEN = (".yaml", ".yml", ".json")
_TRAINING = ("train", "tune", "resume")
_RESUME_OPTIONS = (
    *("device", "gpu", "cluster", "max_workers", "gpu_share", "insecure_cluster", "no_report"),
)

JobOrFolder = Annotated[str, typer.Argument(help="Number, name or folder of a job.", metavar="JOB")]


@app.callback(rich_help_panel="Jobs")
def jobs(
    context: typer.Context,
    everything: Annotated[
        bool, typer.Option("--all", help="Include complete and failed work.")
    ] = False,
) -> None:
    """List jobs and work that was started by hand.

    Complete and failed work is included with --all.
    """
    if context.invoked_subcommand is not None:
        return
    from slipstream.jobs.job_list import JobRow, list_jobs
    from slipstream.jobs.queue import user_queue

    with user_queue() as queue:
        lines, absent = list_jobs(queue, everything)
    if lines:
        names = [field.name for field in fields(JobRow)]
        print_text("\n".join(format_columns(names, [astuple(line) for line in lines])))
    else:
        more = "was started yet" if everything else "runs or waits; --all includes finished work"
        print_text(f"Nothing {more}.")
    if everything and absent:
        print_text(f"{absent} more were moved or deleted.")


@app.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Example: slipstream jobs add -- tune my.yaml --study-name night",
)
def add(
    context: typer.Context,
    command: Annotated[
        list[str],
        typer.Argument(
            help="Command line after --: train, tune, resume, paper start or deploy --watch."
        ),
    ],
    cores: Annotated[
        int | None,
        typer.Option(
            min=1, help="Reserve this many cores for the job.", show_default="a fair share"
        ),
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(min=0, help="Reserve this much memory in GiB.", show_default="an estimate"),
    ] = None,
) -> None:
    """Add a command to the queue.

    Configs are copied when the job is added: editing a file later does not change the job.
    """
    from slipstream.core.capacity import total_memory
    from slipstream.jobs.job_process import job_environment
    from slipstream.jobs.queue import user_queue

    inner = _parse_job(context.find_root(), command)
    words = command_words(inner)
    name = " ".join(words)
    options = {**inner.params, "background": False, "log": None, "replace": False, "cores": None}
    kind, folder, fixed = _resolve_folder(name, inner.params)
    num_cores = cores or inner.params.get("cores")
    if num_cores is not None and num_cores > (os.cpu_count() or 1):
        raise ConfigError(
            f"--cores {num_cores} exceeds the {os.cpu_count()} cores of this machine. Give a "
            "smaller number."
        )
    total = total_memory() / 2**30
    if memory is not None and memory > total:
        raise ConfigError(
            f"--memory {memory:g} exceeds the {total:.1f} GiB of this machine. Give a smaller "
            "number."
        )
    size = 0 if memory is None else int(memory * 2**30)
    if memory is None and name in _TRAINING:
        size = estimate_memory(name, options)
    with user_queue() as queue:
        for option in ("target", "space"):
            if options.get(option):
                options[option] = _freeze_config(str(options[option]), queue.folder / "configs")
        first = command_line(words, inner.command, {**options, **fixed})
        resume_words = first
        if name == "train":
            resume = getattr(context.find_root().command, "commands", {})["resume"]
            resume_options = {option: options[option] for option in _RESUME_OPTIONS}
            resume_words = command_line(["resume"], resume, {**resume_options, "run": folder})
        job = queue.add(kind, folder, first, resume_words, job_environment(), num_cores, size)
    memory_text = f", about {size / 2**30:.1f} GiB of memory" if size else ""
    print_text(f"Job {job.id}: {folder}{memory_text}. `slipstream jobs run` runs the queue.")


@app.command(epilog="Example: slipstream jobs stop 3")
def stop(job: JobOrFolder) -> None:
    """Stop a job at a checkpoint.

    The job stays in the queue; `slipstream jobs retry` requeues it.
    """
    from slipstream.jobs.job_process import describe_other_process
    from slipstream.jobs.queue import user_queue
    from slipstream.jobs.supervisor import stop_job as stop_job

    with user_queue() as queue:
        queued_job = _find(queue, job)
        if stop_job(queue, queued_job):
            print_text(
                f"Job {queued_job.id} stops after the current iteration. Requeue it with "
                f"`slipstream jobs retry {queued_job.id}`."
            )
            return
        print_text(
            f"Job {queued_job.id} will not start until `slipstream jobs retry {queued_job.id}`."
        )
        if process := describe_other_process(Path(queued_job.folder)):
            print_text(f"`slipstream stop {shlex.quote(queued_job.folder)}` stops {process}.")


@app.command(epilog="Example: slipstream jobs retry 3")
def retry(job: JobOrFolder) -> None:
    """Requeue a failed or stopped job from its last checkpoint."""
    from slipstream.jobs.queue import user_queue

    with user_queue() as queue:
        queued_job = _find(queue, job)
        queue.retry(queued_job)
        print_text(f"Job {queued_job.id} is queued again.")


@app.command(epilog="Example: slipstream jobs run --until-idle")
def run(
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Exit when no job runs or waits.")
    ] = False,
    queue: Annotated[
        Path | None,
        typer.Option(help="Run the queue in this folder.", show_default="your own"),
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(min=1, help="Use this many cores for all jobs together.", show_default="all"),
    ] = None,
) -> None:
    """Run the queue: start jobs, restart crashed ones, share the cores."""
    from slipstream.jobs.queue import JobQueue, user_queue
    from slipstream.jobs.supervisor import Supervisor

    table = JobQueue(queue) if queue else user_queue()
    with table, Supervisor(table, select_cores(cores), notify=print_text) as supervisor:
        supervisor.run(until_idle)


def _find(queue: Any, name: str) -> Any:
    """Return a job by its number, its folder, or its name if the name is unique."""
    if name.isdecimal():
        return queue.job(int(name))
    jobs = find_jobs(queue, name)
    candidates = [job for job in jobs if not job.final_state] or jobs[-1:]
    if len(candidates) != 1:
        listed = "; ".join(f"{job.id} is {job.folder}" for job in candidates)
        raise ConfigError(
            f"{len(candidates)} jobs are called {name}: {listed}. Give a number."
            if candidates
            else f"No job is called {name}: `slipstream jobs --all` lists them."
        )
    return candidates[0]


def find_jobs(queue: Any, name: str) -> list[Any]:
    """Return the jobs with a name or folder."""
    path = str(Path(name).expanduser().resolve())
    return [job for job in queue.jobs() if name == job.name or path == job.folder]


def _parse_job(root: Any, command: list[str]) -> Any:
    """Return the context of a job's command line, without running it.

    Raises:
        ConfigError: the command cannot be a job.
    """
    allowed = [*_TRAINING, *(job for kind in folder_kinds() for job in kind.JOBS)]
    for job in allowed:
        words = _job_words(job)
        if command[: len(words)] != words:
            continue
        parent = root
        for word in words[:-1]:
            group = parent.command.commands[word]
            parent = group.context_class(group, info_name=word, parent=parent)
        selected = parent.command.commands[words[-1]]
        return selected.make_context(words[-1], command[len(words) :], parent=parent)
    raise ConfigError(
        f"A job must be {', '.join(f'`{name}`' for name in allowed[:-1])} or `{allowed[-1]}`, "
        f"got {' '.join(command[:2])!r}. Write: slipstream jobs add -- train cartpole."
    )


def _job_words(job: str) -> list[str]:
    """Return the words of a `FolderKind.JOBS` entry that select its command, without options."""
    return [word for word in job.split() if not word.startswith("-")]


def _resolve_folder(command: str, options: dict[str, Any]) -> tuple[str, Path, dict[str, Any]]:
    """Return kind and folder of a command's work, and the option values that pin the folder."""
    if command == "train":
        from slipstream.cli.commands.train import resolve_run_folder

        folder = resolve_run_folder(options).resolve()
        return "run", folder, {"out": folder}
    if command == "tune":
        from slipstream.cli.commands.tune import resolve_study_folder

        folder = resolve_study_folder(options).resolve()
        return "study", folder, {"study_name": folder}
    for kind in folder_kinds():
        if command in (" ".join(_job_words(job)) for job in kind.JOBS):
            return kind.NAME, *kind.job(command, options)
    from slipstream.studies.record.inspection import lookup

    path, study = lookup(options["run"])
    folder = path.resolve()
    return "run" if study is None else "study", folder, {"run": folder}


def _freeze_config(target: str, folder: Path) -> str:
    """Store a config in a file named by its content hash; return other targets unchanged."""
    path = Path(target).expanduser()
    if path.suffix not in _FROZEN or not path.is_file():
        return target
    from slipstream.core.storage.atomic_io import disk_errors, make_folder, write_bytes

    with disk_errors(path):
        content = path.read_bytes()
    make_folder(folder)
    copy = folder / f"{path.stem[:40]}-{hashlib.sha256(content).hexdigest()[:12]}{path.suffix}"
    write_bytes(copy, content)
    return str(copy)
