"""`slipstream train`: train a new run."""

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


# Long: one parameter per option.
@app.command(
    rich_help_panel="Train",
    epilog="Example: slipstream train cartpole --members 4 --out runs/first",
)
def train(
    context: typer.Context,
    target: arg.Target,
    num_envs: Annotated[
        str | None,
        typer.Option(
            "--num-envs",
            "--n-envs",
            help="Step this many sub-environments per member, or auto.",
            show_default="the environment's own",
        ),
    ] = None,
    members: Annotated[
        str | None,
        typer.Option(
            help="Train this many independent members; member m has seed + m.", show_default="1"
        ),
    ] = None,
    total_timesteps: Annotated[
        str | None,
        typer.Option(
            "--total-timesteps",
            "--steps",
            help="Train each member for this many environment steps, such as 2e6.",
            show_default="the environment's own, else 500_000",
        ),
    ] = None,
    seed: Annotated[
        str | None, typer.Option(help="Seed member 0 with this number.", show_default="0")
    ] = None,
    device: arg.Device = None,
    gpu: arg.Gpu = None,
    cluster: arg.ClusterAddress = None,
    max_workers: arg.MaxWorkers = None,
    gpu_share: arg.GpuShare = None,
    insecure_cluster: arg.Insecure = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the run to this directory.", show_default="runs/<env>-<date>-<time>"
        ),
    ] = None,
    set_: arg.Settings = None,
    no_report: arg.NoReport = False,
    track: Annotated[
        str | None,
        typer.Option(help="Also log curves, report and policies to a tracker: wandb."),
    ] = None,
    background: Background = False,
    log: LogFile = None,
    replace: Replace = False,
) -> None:
    """Train a new run and write its report."""
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
            log=progress.log,
        )
    if no_report:
        print_result(progress, run)


def print_result(progress: ConsoleCallback, run: Run) -> None:
    """Print the result lines that a report would show, and the run's directory."""
    from slipstream.training.callbacks.progress_reporter import result_lines

    for line in [*result_lines(run.result or {}), f"Run: {run.path}"]:
        progress.log(line)


def resolve_run_folder(options: Mapping[str, Any], replace: bool = False) -> Path:
    """Return the directory that `train` with these options writes to.

    Args:
        options: values of the command's options.
        replace: an existing run in the directory will be moved aside.

    Raises:
        ConfigError: the config is invalid, or the directory is in use.
    """
    from slipstream.training.runs.run import free_path
    from slipstream.training.settings.config import resolve

    config = resolve(options["target"], arg.train_overrides(options))
    out = options["out"] or config.training.out
    if replace and out:
        return Path(out).expanduser().absolute()
    return free_path(config, out)
