"""`slipstream train`: a new run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import options as arg
from slipstream.core.terminal import Background, LogFile, Replace

if TYPE_CHECKING:
    from slipstream.training.callbacks.console import ConsoleCallback
    from slipstream.training.runs.run import Run

app = typer.Typer()
FILE_COMMANDS = ("train",)


# Long: a line for each option.
@app.command()
def train(
    context: typer.Context,
    target: arg.Target,
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
    total_timesteps: Annotated[
        str | None,
        typer.Option(
            help="Environment steps per member, such as 2_000_000 or 2e6; the environment's own, "
            "else 500_000 unless given."
        ),
    ] = None,
    seed: Annotated[str | None, typer.Option(help="Seed of member 0; 0 unless given.")] = None,
    device: arg.Device = None,
    gpu: arg.Gpu = None,
    cluster: arg.ClusterAddress = None,
    max_workers: arg.MaxWorkers = None,
    gpu_share: arg.GpuShare = None,
    insecure_cluster: arg.Insecure = False,
    out: Annotated[
        Path | None, typer.Option(help="Run directory; runs/<env>-<date>-<time> unless given.")
    ] = None,
    set_: arg.Settings = None,
    no_report: arg.NoReport = False,
    track: Annotated[
        str | None,
        typer.Option(help="wandb: send curves, report and policies to Weights & Biases, too."),
    ] = None,
    background: Background = False,
    log: LogFile = None,
    replace: Replace = False,
) -> None:
    """Trains a new run and writes its report."""
    from slipstream.api.training import train as begin

    if background or replace or log:
        folder = resolve_run_folder(context.params, replace)
        if context.obj(context, folder, out=folder):
            return
        out = folder
    overrides = arg.train_overrides(context.params)
    with closing(arg.open_console()) as progress:
        run = begin(
            target,
            out=out,
            overrides=overrides,
            cluster=arg.cluster_options(context.params),
            callbacks=[progress],
            report=not no_report,
            track=track,
            say=progress.say,
        )
    if no_report:
        print_result(progress, run)


def print_result(progress: ConsoleCallback, run: Run) -> None:
    """What a report would have said first, and where the run is."""
    from slipstream.training.callbacks.progress_reporter import result_lines

    for line in [*result_lines(run.result or {}), f"Run: {run.path}"]:
        progress.say(line)


def resolve_run_folder(given: Mapping[str, Any], replace: bool = False) -> Path:
    """Where `train` of these values writes; refused where the config is, or something lies there.

    Args:
        given: the command's values.
        replace: a run may lie there: it will be moved.
    """
    from slipstream.training.runs.run import free_path
    from slipstream.training.settings.config import resolve

    config = resolve(given["target"], arg.train_overrides(given))
    out = given["out"] or config.training.out
    if replace and out:
        return Path(out).expanduser().absolute()
    return free_path(config, out)
