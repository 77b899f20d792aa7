"""`slipstream train` and `resume`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli import arguments as arg
from slipstream.cli.detached import Replace, set_aside_and_detach
from slipstream.core.command import Background, LogFile, Trust
from slipstream.core.errors import ConfigError

if TYPE_CHECKING:
    from slipstream.training.callbacks.console import ConsoleListener
    from slipstream.training.runs.run import Run

app = typer.Typer()
WORKS = ("train", "resume")


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
    total_steps: Annotated[
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
    from slipstream import api

    if background or replace or log:
        folder = run_folder(context.params, replace)
        if set_aside_and_detach(context, folder, out=folder):
            return
        out = folder
    overrides = arg.train_given(context.params)
    with closing(arg.console()) as progress:
        run = api.train(
            target,
            out=out,
            overrides=overrides,
            cluster=arg.cluster_named(cluster, max_workers, gpu_share, insecure_cluster),
            listeners=[progress],
            report=not no_report,
            track=track,
            say=progress.say,
        )
    if no_report:
        _say_result(progress, run)


@app.command()
def resume(
    context: typer.Context,
    run: arg.RunOrStudy,
    device: Annotated[
        str | None, typer.Option(help="Goes on there; where the run was until now unless given.")
    ] = None,
    gpu: arg.Gpu = None,
    num_envs: Annotated[
        int | None,
        typer.Option(min=1, help="Copies per member from now on, which is another training then."),
    ] = None,
    cluster: arg.ClusterAddress = None,
    max_workers: arg.MaxWorkers = None,
    gpu_share: arg.GpuShare = None,
    insecure_cluster: arg.Insecure = False,
    no_report: arg.NoReport = False,
    trust: Trust = False,
    storage: arg.Storage = None,
    workers: arg.Workers = None,
    hours: arg.Hours = None,
    force_deploy: arg.Force = False,
    background: Background = False,
    log: LogFile = None,
) -> None:
    """Goes on with a run or study that was stopped or killed, to the same weights bit for bit.

    A deployment's paper account goes on with the feed that it had.

    On another device the last bits differ; with --num-envs everything does from there on. That is
    said, and recorded in the run.
    """
    from slipstream import api
    from slipstream.core.command import tell
    from slipstream.core.plugins import folder_kinds
    from slipstream.studies.record.status import lookup
    from slipstream.training.runs.run import CONFIG, Run

    folder, study = lookup(run)
    if set_aside_and_detach(context, folder, run=folder):
        return
    for kind in folder_kinds(folder):
        kind.resume(folder, tell, trust)
        return
    options = arg.cluster_named(cluster, max_workers, gpu_share, insecure_cluster)
    progress = arg.console()
    if study is not None:
        _only(context, "of a run", "device", "gpu", "num_envs")
        with closing(progress):
            api.resume_study(
                str(study.path),
                storage=storage,
                workers=workers,
                cluster=options,
                hours=hours,
                force_deploy=force_deploy,
                trust=trust,
                report=not no_report,
                say=progress.say,
                show=progress.show,
            )
        return
    _only(context, "of a study", "storage", "workers", "hours", "force_deploy")
    opened = Run.open(folder, progress.say, trust)
    if opened.result is not None and (no_report or opened.reported):
        name, config = shlex.quote(run), shlex.quote(str(opened.path / CONFIG))
        progress.say(
            f"{opened.path} is complete; see `slipstream evaluate {name}`. To train longer, from "
            f"the start: `slipstream train {config} --total-steps N --out NEW`."
        )
        return
    with closing(progress):
        api.resume(
            opened,
            device=arg.device_named(device, gpu),
            num_envs=num_envs,
            cluster=options,
            listeners=[progress],
            report=not no_report,
        )
    if no_report:
        _say_result(progress, opened)


def _only(context: typer.Context, whose: str, *names: str) -> None:
    """Refuses options that the folder that was named has no use for."""
    given = [f"--{name.replace('_', '-')}" for name in names if context.params[name]]
    if given:
        raise ConfigError(f"{' and '.join(given)}: an option {whose}, and this is none of those.")


def _say_result(progress: ConsoleListener, run: Run) -> None:
    """What a report would have said first, and where the run is."""
    from slipstream.training.callbacks.telling import result_lines

    for line in [*result_lines(run.result or {}), f"Run: {run.path}"]:
        progress.say(line)


def run_folder(given: Mapping[str, Any], replace: bool = False) -> Path:
    """Where `train` of these values writes; refused where the config is, or something lies there.

    Args:
        given: the command's values.
        replace: a run may lie there: it will be moved.
    """
    from slipstream.training.runs.run import free_path
    from slipstream.training.settings.config import resolve

    config = resolve(given["target"], arg.train_given(given))
    out = given["out"] or config.training.out
    if replace and out:
        return Path(out).expanduser().absolute()
    return free_path(config, out)
