"""`slipstream tune`: hyperparameter studies; `resume`: continue a run, study or deployment."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.cli import options as arg
from slipstream.cli.commands.train import print_result
from slipstream.core.errors import ConfigError
from slipstream.core.terminal import Background, LogFile, Replace, Trust, print_text

app = typer.Typer()
FILE_COMMANDS = ("resume", "tune")


@app.command(rich_help_panel="Train", epilog="Example: slipstream resume runs/first")
def resume(
    context: typer.Context,
    run: arg.RunOrStudy,
    device: Annotated[
        str | None,
        typer.Option(
            help="Continue on this device: cpu or cuda:N.", show_default="the run's last device"
        ),
    ] = None,
    gpu: arg.Gpu = None,
    num_envs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Continue with this many sub-environments per member; changes results.",
            show_default="unchanged",
        ),
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
    """Resume a run or study that was stopped or killed.

    The final weights are bit-identical to those of an uninterrupted run. A deployment's paper
    account continues with its feed.

    On another device the results are not bit-identical. With --num-envs the training continues
    differently. Both changes are logged and recorded in the run.
    """
    from slipstream import api
    from slipstream.core.plugins import folder_kinds
    from slipstream.studies.record.inspection import lookup
    from slipstream.training.runs.run import CONFIG, Run

    folder, study = lookup(run)
    if context.obj(context, folder, run=folder):
        return
    for kind in folder_kinds(folder):
        kind.resume(folder, print_text, trust)
        return
    options = arg.cluster_options(context.params)
    progress = arg.open_console()
    if study is not None:
        _reject_options(context, "runs", "device", "gpu", "num_envs")
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
                log=progress.log,
                on_progress=progress.show,
            )
        return
    _reject_options(context, "studies", "storage", "workers", "hours", "force_deploy")
    opened = Run.open(folder, progress.log, trust)
    if opened.result is not None and (no_report or opened.mark_reported):
        name, config = shlex.quote(run), shlex.quote(str(opened.path / CONFIG))
        progress.log(
            f"{opened.path} is complete; see `slipstream evaluate {name}`. To train longer, start "
            f"again: `slipstream train {config} --total-timesteps N --out NEW`."
        )
        return
    with closing(progress):
        api.resume(
            opened,
            device=arg.device_override(context.params),
            num_envs=num_envs,
            cluster=options,
            callbacks=[progress],
            report=not no_report,
        )
    if no_report:
        print_result(progress, opened)


def _reject_options(context: typer.Context, kind: str, *names: str) -> None:
    """Raise a ConfigError if options are given that apply only to another kind of folder."""
    flags = [f"--{name.replace('_', '-')}" for name in names if context.params[name]]
    if flags:
        raise ConfigError(f"{' and '.join(flags)} applies only to {kind}. Remove it.")


# Long: one parameter per option.
@app.command(
    rich_help_panel="Studies",
    epilog="Example: slipstream tune my.yaml --study-name night --hours 8",
)
def tune(
    context: typer.Context,
    target: arg.Target,
    n_trials: Annotated[
        int | None, typer.Option(min=1, help="Run this many trials.", show_default="500")
    ] = None,
    study_name: Annotated[
        str | None,
        typer.Option(
            help="Store the study below ./studies under this name; an existing one is resumed.",
            show_default="<env>-<date>-<time>",
        ),
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option(help="Read prices from this folder (env.data.folder).")
    ] = None,
    timeframe: Annotated[
        str | None, typer.Option(help="Require this bar length; files are not resampled.")
    ] = None,
    num_envs: Annotated[
        int | None,
        typer.Option(
            "--num-envs",
            "--n-envs",
            min=1,
            help="Step this many sub-environments per member.",
            show_default="12 on markets, else 16",
        ),
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(
            help="Search this space: default, cappuccino, finrl_crypto or a .yaml file.",
            show_default="default",
        ),
    ] = None,
    from_study: Annotated[
        str | None,
        typer.Option(help="Warm-start the sampler with the finished trials of this study."),
    ] = None,
    total_timesteps: Annotated[
        str | None,
        typer.Option(
            "--total-timesteps",
            "--steps",
            help="Train each member for this many environment steps, such as 100_000.",
            show_default="as for train",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed the study.", show_default="0")
    ] = None,
    device: arg.Device = None,
    gpu: arg.Gpu = None,
    storage: arg.Storage = None,
    workers: arg.Workers = None,
    group_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Train this many trials together as one population.",
            show_default="measured",
        ),
    ] = None,
    cluster: arg.ClusterAddress = None,
    max_workers: arg.MaxWorkers = None,
    gpu_share: arg.GpuShare = None,
    insecure_cluster: arg.Insecure = False,
    hours: arg.Hours = None,
    time_budget: Annotated[
        str | None,
        typer.Option(
            help="Refuse to start a study forecast to take longer than this, such as 24h."
        ),
    ] = None,
    final_refit: Annotated[
        bool, typer.Option("--final-refit", help="Retrain the winner on all data at the end.")
    ] = False,
    force_deploy: arg.Force = False,
    set_: arg.Settings = None,
    no_report: arg.NoStudyReport = False,
    background: Background = False,
    log: LogFile = None,
    replace: Replace = False,
) -> None:
    """Search hyperparameters and confirm the best trials.

    The winner is evaluated once on the hold-out split, which no trial has seen.
    """
    from slipstream import api

    if background or replace or log:
        folder = resolve_study_folder(context.params)
        if context.obj(context, folder, study_name=folder):
            return
        study_name = str(folder)
    overrides, section = arg.tune_overrides(context.params)
    with closing(arg.open_console()) as console:
        api.tune(
            target,
            study_name=study_name,
            overrides=overrides,
            study=section,
            storage=storage,
            workers=workers,
            cluster=arg.cluster_options(context.params),
            group_size=group_size,
            hours=hours,
            time_budget=time_budget,
            force_deploy=force_deploy,
            report=not no_report,
            log=console.log,
            on_progress=console.show,
        )


def resolve_study_folder(options: Mapping[str, Any]) -> Path:
    """Return the folder in which `tune` with these options works.

    Raises:
        ConfigError: the config is invalid.
    """
    from slipstream.studies.record.folder import StudyFolder
    from slipstream.studies.start import default_study_name, prepare_study

    base, _, _ = prepare_study(options["target"], *arg.tune_overrides(options))
    return StudyFolder.from_name(options["study_name"] or default_study_name(base)).path
