"""`slipstream train` and `resume`."""

from __future__ import annotations

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
    NoReport,
    RunFolder,
    Settings,
    Target,
    Trust,
    cluster_named,
    console,
    device_named,
)
from slipstream.core.errors import ConfigError

if TYPE_CHECKING:
    from slipstream.runs.listeners.console import ConsoleListener
    from slipstream.runs.run import Run

app = typer.Typer()
WORKS = ("train", "resume")


# Long: a line for each option.
@app.command()
def train(
    target: Target,
    num_envs: Annotated[
        str | None,
        typer.Option(
            "--num-envs",
            "--n-envs",
            help="Copies per member, a number or auto; the environment's own unless given.",
        ),
    ] = None,
    members: Annotated[
        str | None, typer.Option(help="Independent learners, seeds seed + m; 1 unless given.")
    ] = None,
    total_steps: Annotated[
        str | None,
        typer.Option(
            help="Environment steps per member, such as 2_000_000 or 2e6; the environment's own, "
            "else 500_000 unless given."
        ),
    ] = None,
    seed: Annotated[str | None, typer.Option(help="Seed of member 0; 0 unless given.")] = None,
    device: Device = None,
    gpu: Gpu = None,
    cluster: ClusterAddress = None,
    max_workers: MaxWorkers = None,
    gpu_share: GpuShare = None,
    insecure_cluster: Insecure = False,
    out: Annotated[
        Path | None, typer.Option(help="Run directory; runs/<env>-<date>-<time> unless given.")
    ] = None,
    set_: Settings = None,
    no_report: NoReport = False,
) -> None:
    """Trains a new run and writes its report."""
    from slipstream import api

    flags = {
        "num_envs": num_envs,
        "members": members,
        "total_steps": total_steps,
        "seed": seed,
        "device": device_named(device, gpu),
    }
    overrides = _overrides(flags, set_ or [])
    with closing(console()) as progress:
        run = api.train(
            target,
            out=out,
            overrides=overrides,
            cluster=cluster_named(cluster, max_workers, gpu_share, insecure_cluster),
            listeners=[progress],
            report=not no_report,
            say=progress.say,
        )
    if no_report:
        _say_result(progress, run)


@app.command()
def resume(
    run: RunFolder,
    device: Annotated[
        str | None, typer.Option(help="Goes on there; where the run was until now unless given.")
    ] = None,
    gpu: Gpu = None,
    cluster: ClusterAddress = None,
    max_workers: MaxWorkers = None,
    gpu_share: GpuShare = None,
    insecure_cluster: Insecure = False,
    no_report: NoReport = False,
    trust: Trust = False,
) -> None:
    """Goes on with a run that was stopped or killed, to the same weights bit for bit.

    On another device the last bits differ: that is said, and recorded in the run.
    """
    from slipstream import api
    from slipstream.runs.run import Run

    progress = console()
    opened = Run.open(run, progress.say, trust)
    if opened.result is not None and (no_report or opened.reported):
        progress.say(f"{opened.path} is complete; see `slipstream evaluate {run}`.")
        return
    with closing(progress):
        api.resume(
            opened,
            device=device_named(device, gpu),
            cluster=cluster_named(cluster, max_workers, gpu_share, insecure_cluster),
            listeners=[progress],
            report=not no_report,
        )
    if no_report:
        _say_result(progress, opened)


def _say_result(progress: ConsoleListener, run: Run) -> None:
    """What a report would have said first, and where the run is."""
    from slipstream.runs.listeners.telling import result_lines

    for line in [*result_lines(run.result or {}), f"Run: {run.path}"]:
        progress.say(line)


def _overrides(flags: dict[str, str | None], sets: list[str]) -> dict[str, Any]:
    from slipstream.files import yaml_file
    from slipstream.settings.target import parse_overrides

    named = {
        f"training.{name}": yaml_file.parse(text, f"--{name.replace('_', '-')} {text}")
        for name, text in flags.items()
        if text is not None
    }
    given = parse_overrides(sets)
    for path in named.keys() & given.keys():
        flag = path.removeprefix("training.").replace("_", "-")
        raise ConfigError(f"{path} is set twice, as --set and as --{flag}; leave one of them out.")
    return {**given, **named}
