"""`slipstream tune` and `slipstream study`: searches over configs, and what became of them."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli.arguments import (
    ClusterAddress,
    Device,
    Gpu,
    GpuShare,
    Insecure,
    MaxWorkers,
    StudyName,
    Target,
    Trust,
    cluster_named,
    device_named,
    setting_names,
)
from slipstream.cli.output import tell
from slipstream.core.errors import ConfigError
from slipstream.core.text import printable_lines

if TYPE_CHECKING:
    from slipstream.runs.listeners.console import ConsoleListener

app = typer.Typer(help="Looks at studies, resumes, stops and exports them.", no_args_is_help=True)

Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Processes; one per core unless given."),
]
Hours = Annotated[
    float | None,
    typer.Option(help="End by then: cuts the search, keeps the confirmation's share."),
]
Storage = Annotated[
    str | None,
    typer.Option(help="sqlite, journal, sqlite:///FILE, journal:FILE or postgresql://..."),
]
NoReport = Annotated[bool, typer.Option("--no-report", help="Do not write study.html.")]
Force = Annotated[
    bool, typer.Option("--force-deploy", help="Deploy the best one even if nothing is recommended.")
]


# Long: a line for each option.
def tune(
    target: Target,
    n_trials: Annotated[
        int | None, typer.Option(min=1, help="Suggestions tried; 500 unless given.")
    ] = None,
    study_name: Annotated[
        str | None, typer.Option(help="Folder below ./studies; goes on where it exists.")
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder of prices: env.data.folder.")] = None,
    timeframe: Annotated[
        str | None, typer.Option(help="Bar length the files must have; nothing is resampled.")
    ] = None,
    num_envs: Annotated[
        int | None, typer.Option("--n-envs", "--num-envs", min=1, help="Copies per member.")
    ] = None,
    total_steps: Annotated[
        str | None,
        typer.Option(help="Environment steps per member, such as 100_000; as for train."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the study; 0 unless given.")] = None,
    device: Device = None,
    gpu: Gpu = None,
    storage: Storage = None,
    workers: Workers = None,
    group_size: Annotated[
        int | None, typer.Option(min=1, help="Members of a population; measured unless given.")
    ] = None,
    cluster: ClusterAddress = None,
    max_workers: MaxWorkers = None,
    gpu_share: GpuShare = None,
    insecure_cluster: Insecure = False,
    hours: Hours = None,
    final_refit: Annotated[
        bool, typer.Option("--final-refit", help="Also train the winner on everything.")
    ] = False,
    force_deploy: Force = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="A.B=C",
            help="Sets any field, such as study.penalty=0.",
            autocompletion=setting_names,
        ),
    ] = None,
    no_report: NoReport = False,
) -> None:
    """Searches for settings, confirms the best, evaluates the winner on the hold-out once."""
    from slipstream import api
    from slipstream.files import yaml_file
    from slipstream.settings.target import parse_overrides

    overrides = parse_overrides(set_ or [])
    flags: dict[str, Any] = {
        "env.data.folder": data_dir,
        "env.data.timeframe": timeframe,
        "training.num_envs": num_envs,
        "training.device": device_named(device, gpu),
    }
    if total_steps is not None:
        flags["training.total_steps"] = yaml_file.parse(total_steps, f"--total-steps {total_steps}")
    overrides |= {path: value for path, value in flags.items() if value is not None}
    section: dict[str, Any] = {"n_trials": n_trials, "seed": seed}
    if final_refit:
        section["final_refit"] = True
    with closing(_console()) as console:
        api.tune(
            target,
            study_name=study_name,
            overrides=overrides,
            study={name: value for name, value in section.items() if value is not None},
            storage=storage,
            workers=workers,
            cluster=cluster_named(cluster, max_workers, gpu_share, insecure_cluster),
            group_size=group_size,
            hours=hours,
            force_deploy=force_deploy,
            report=not no_report,
            say=console.say,
            show=console.show,
        )


@app.command()
def resume(
    name: StudyName,
    storage: Storage = None,
    workers: Workers = None,
    cluster: ClusterAddress = None,
    max_workers: MaxWorkers = None,
    gpu_share: GpuShare = None,
    insecure_cluster: Insecure = False,
    hours: Hours = None,
    force_deploy: Force = False,
    no_report: NoReport = False,
    trust: Trust = False,
) -> None:
    """Goes on with a study that was stopped or killed; the same study, whatever happened."""
    from slipstream import api

    with closing(_console()) as console:
        api.resume_study(
            name,
            storage=storage,
            workers=workers,
            cluster=cluster_named(cluster, max_workers, gpu_share, insecure_cluster),
            hours=hours,
            force_deploy=force_deploy,
            trust=trust,
            report=not no_report,
            say=console.say,
            show=console.show,
        )


@app.command()
def status(name: StudyName) -> None:
    """Says where a study stands; also while another process runs it."""
    from slipstream.studies.record.folder import StudyFolder
    from slipstream.studies.record.status import status_lines

    for line in status_lines(StudyFolder.open(name)):
        tell(line)


@app.command()
def best(
    name: StudyName,
    trial: Annotated[
        int | None, typer.Option(help="This trial instead of the winner or the best one.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Prints the winner's config: slipstream study best NAME > best.yaml."""
    from slipstream.studies.record.folder import StudyFolder
    from slipstream.studies.record.status import best_config

    tell(best_config(StudyFolder.open(name, trust=trust), trial), end="")


@app.command()
def export(
    name: StudyName,
    out: Annotated[
        Path | None,
        typer.Option(help="File ending in .csv or .json; standard output unless given."),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="csv or json, without --out.")] = "csv",
) -> None:
    """Writes all trials: numbers, states, scores, folds and params."""
    from slipstream.files.files import write_text
    from slipstream.studies.record.folder import StudyFolder
    from slipstream.studies.record.status import FORMATS, export_text

    kind = out.suffix.removeprefix(".") if out is not None else format_
    if kind not in FORMATS:
        raise ConfigError(f"Trials are exported as {' or '.join(FORMATS)}, not as {kind!r}.")
    text = export_text(StudyFolder.open(name), kind)
    if out is None:
        typer.echo(printable_lines(text) if sys.stdout.isatty() else text, nl=False)
        return
    write_text(out, text)
    tell(f"Trials: {out}")


@app.command()
def stop(
    name: StudyName,
    now: Annotated[
        bool, typer.Option("--now", help="Leave at once, to be resumed; nothing is confirmed.")
    ] = False,
) -> None:
    """Ends the search after the trials in flight, and goes on to the confirmation."""
    from slipstream.studies.record.folder import StudyFolder

    folder = StudyFolder.open(name)
    if folder.result is not None and not folder.locked:
        tell(f"The study {folder.name} is complete; there is nothing to stop.")
        return
    if now and not folder.locked:
        tell(
            f"No process runs the study {folder.name}; go on with `slipstream study resume {name}`."
        )
        return
    folder.ask_to_stop(now)
    if now:
        tell(f"Stopping; go on with `slipstream study resume {name}`.")
    elif folder.locked:
        tell("The search ends after the trials in flight; then the best are confirmed.")
    else:
        tell(
            f"No process runs the study {folder.name}: its search ends once it is resumed, with "
            f"`slipstream study resume {name}`."
        )


@app.command()
def report(name: StudyName, trust: Trust = False) -> None:
    """Writes study.html."""
    from slipstream import api

    tell(f"Report: {api.report_study(name, trust=trust)}")


def _console() -> ConsoleListener:
    from slipstream.runs.listeners.console import ConsoleListener

    return ConsoleListener()
