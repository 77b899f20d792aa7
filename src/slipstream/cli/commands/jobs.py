"""`slipstream jobs`: what this user runs and ran, and the queue that loses nothing."""

from __future__ import annotations

import hashlib
import os
import shlex
from dataclasses import astuple, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.cli.background import command_line, memory_of
from slipstream.cli.options import select_cores
from slipstream.core.errors import ConfigError
from slipstream.core.plugins import folder_kinds
from slipstream.core.terminal import tell, told_columns

app = typer.Typer(
    name="jobs",
    help="Lists what you run and ran; adds to a queue, and works it off.",
    invoke_without_command=True,
)
_FROZEN = (".yaml", ".yml", ".json")
_TRAINING = ("train", "tune", "resume")
_GOES_ON = (
    *("device", "gpu", "cluster", "max_workers", "gpu_share", "insecure_cluster", "no_report"),
)

JobOrFolder = Annotated[
    str, typer.Argument(help="Number of a job, its name or its folder.", metavar="JOB")
]


@app.callback()
def jobs(
    context: typer.Context,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what is complete or failed.")
    ] = False,
) -> None:
    """Lists jobs and what was started by hand; what has ended only with --all."""
    if context.invoked_subcommand is not None:
        return
    from slipstream.jobs.overview import JobLine, overview
    from slipstream.jobs.queue import own_queue

    with own_queue() as queue:
        lines, absent = overview(queue, everything)
    if lines:
        names = [one.name for one in fields(JobLine)]
        tell("\n".join(told_columns(names, [astuple(line) for line in lines])))
    else:
        more = "was ever begun" if everything else "runs or waits; --all lists what has ended, too"
        tell(f"Nothing {more}.")
    if everything and absent:
        tell(f"Not where they were, moved or deleted: {absent} more.")


@app.command(context_settings={"ignore_unknown_options": True})
def add(
    context: typer.Context,
    command: Annotated[
        list[str],
        typer.Argument(help="-- train, tune, resume, paper or deploy --watch, with arguments."),
    ],
    cores: Annotated[
        int | None, typer.Option(min=1, help="Of these; a fair share unless given.")
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(min=0, help="GiB that it takes, forecast unless given; it waits for them."),
    ] = None,
) -> None:
    """Adds a command to the queue: slipstream jobs add -- tune my.yaml --study-name night.

    What it was given is fixed now: a config is copied, and changing the file changes no job.
    """
    from slipstream.core.capacity import total_memory
    from slipstream.jobs.process import place
    from slipstream.jobs.queue import own_queue

    root = context.find_root()
    known = getattr(root.command, "commands", {})
    if command[0] not in _TRAINING:
        jobs = [*_TRAINING, *(one for kind in folder_kinds() for one in kind.JOBS)]
        if command[0] not in [one.split()[0] for one in jobs]:
            raise ConfigError(
                f"Jobs are {', '.join(f'`{one}`' for one in jobs[:-1])} or `{jobs[-1]}`, not "
                f"{command[0]!r}: slipstream jobs add -- train cartpole."
            )
    inner = known[command[0]].make_context(command[0], list(command[1:]), parent=root)
    given = {**inner.params, "background": False, "log": None, "replace": False, "cores": None}
    kind, folder, fixed = _fixed(command[0], inner.params)
    wanted = cores or inner.params.get("cores")
    if wanted is not None and wanted > (os.cpu_count() or 1):
        raise ConfigError(f"--cores {wanted}: this machine has {os.cpu_count()}.")
    there = total_memory() / 2**30
    if memory is not None and memory > there:
        raise ConfigError(f"--memory {memory:g}: this machine has {there:.1f} GiB.")
    size = 0 if memory is None else int(memory * 2**30)
    if memory is None and command[0] in _TRAINING:
        size = memory_of(command[0], given)
    with own_queue() as queue:
        for name in ("target", "space"):
            if given.get(name):
                given[name] = _frozen(str(given[name]), queue.folder / "configs")
        first = command_line(inner.command, {**given, **fixed})
        again = first
        if command[0] == "train":
            kept = {name: given[name] for name in _GOES_ON}
            again = command_line(known["resume"], {**kept, "run": folder})
        job = queue.add(kind, folder, first, again, place(), wanted, size)
    takes = f", about {size / 2**30:.1f} GiB of memory" if size else ""
    tell(f"Job {job.id}: {folder}{takes}. `slipstream jobs run` works the queue off.")


@app.command()
def stop(job: JobOrFolder) -> None:
    """Stops a job at a checkpoint; it stays in the queue until `retry`."""
    from slipstream.jobs.process import other_in
    from slipstream.jobs.queue import own_queue
    from slipstream.jobs.supervisor import stop as stop_job

    with own_queue() as queue:
        found = _find(queue, job)
        if stop_job(queue, found):
            tell(f"Job {found.id} ends after the iteration under way; `slipstream jobs retry` it.")
            return
        tell(f"Job {found.id} does not begin until `slipstream jobs retry {found.id}`.")
        if other := other_in(Path(found.folder)):
            tell(f"`slipstream stop {shlex.quote(found.folder)}` stops {other}.")


@app.command()
def retry(job: JobOrFolder) -> None:
    """Wants a job again that failed or was stopped; it goes on where it was."""
    from slipstream.jobs.queue import own_queue

    with own_queue() as queue:
        found = _find(queue, job)
        queue.retry(found)
        tell(f"Job {found.id} is wanted again.")


@app.command()
def run(
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Leave when nothing runs or waits.")
    ] = False,
    queue: Annotated[
        Path | None, typer.Option(help="Folder of a service's queue; your own unless given.")
    ] = None,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Of all jobs together; all unless given.")
    ] = None,
) -> None:
    """Works the queue off: begins jobs, goes on with those that died, shares the cores."""
    from slipstream.jobs.queue import JobQueue, own_queue
    from slipstream.jobs.supervisor import Supervisor

    table = JobQueue(queue) if queue else own_queue()
    with table, Supervisor(table, select_cores(cores), say=tell) as supervisor:
        supervisor.run(until_idle)


def _find(queue: Any, name: str) -> Any:
    """A job by its number, its folder, or its name where only one has it."""
    if name.isdecimal():
        return queue.job(int(name))
    found = called(queue, name)
    going = [one for one in found if not one.ended] or found[-1:]
    if len(going) != 1:
        several = "; ".join(f"{one.id} is {one.folder}" for one in going)
        raise ConfigError(
            f"{len(going)} jobs are called {name}: {several}. Give a number."
            if going
            else f"No job is called {name}: `slipstream jobs --all` lists them."
        )
    return going[0]


def called(queue: Any, name: str) -> list[Any]:
    """Jobs of a name or folder."""
    path = str(Path(name).expanduser().resolve())
    return [one for one in queue.jobs() if name == one.name or path == one.folder]


def _fixed(command: str, given: dict[str, Any]) -> tuple[str, Path, dict[str, Any]]:
    """Kind and folder of what a command works on, and the values that fix the folder."""
    if command == "train":
        from slipstream.cli.commands.train import resolve_run_folder

        folder = resolve_run_folder(given).resolve()
        return "run", folder, {"out": folder}
    if command == "tune":
        from slipstream.cli.commands.tune import resolve_study_folder

        folder = resolve_study_folder(given).resolve()
        return "study", folder, {"study_name": folder}
    for kind in folder_kinds():
        if command in (one.split()[0] for one in kind.JOBS):
            return kind.NAME, *kind.job(command, given)
    from slipstream.studies.record.status import lookup

    found, study = lookup(given["run"])
    folder = found.resolve()
    return "run" if study is None else "study", folder, {"run": folder}


def _frozen(target: str, folder: Path) -> str:
    """A copy of a config under the hash of its content; anything else than a config as it is."""
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
