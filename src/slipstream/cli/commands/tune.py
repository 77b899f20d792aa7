"""`slipstream tune` searches for settings; `resume` goes on with a run, a study or a deployment."""

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
from slipstream.core.terminal import Background, LogFile, Replace, Trust, tell

app = typer.Typer()
FILE_COMMANDS = ("resume", "tune")


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
    from slipstream.core.plugins import folder_kinds
    from slipstream.studies.record.status import lookup
    from slipstream.training.runs.run import CONFIG, Run

    folder, study = lookup(run)
    if context.obj(context, folder, run=folder):
        return
    for kind in folder_kinds(folder):
        kind.resume(folder, tell, trust)
        return
    options = arg.cluster_options(context.params)
    progress = arg.open_console()
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
            f"the start: `slipstream train {config} --total-timesteps N --out NEW`."
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


def _only(context: typer.Context, whose: str, *names: str) -> None:
    """Refuses options that the folder that was named has no use for."""
    given = [f"--{name.replace('_', '-')}" for name in names if context.params[name]]
    if given:
        raise ConfigError(f"{' and '.join(given)}: an option {whose}, and this is none of those.")


# Long: a line for each option.
@app.command()
def tune(
    context: typer.Context,
    target: arg.Target,
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
        int | None,
        typer.Option(
            "--n-envs",
            "--num-envs",
            min=1,
            help="Copies per member; on markets 12 unless given, else 16.",
        ),
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(
            help="What is searched: default, cappuccino or finrl_crypto, with the settings that "
            "these need, or a .yaml file."
        ),
    ] = None,
    from_study: Annotated[
        str | None,
        typer.Option(help="A study whose finished trials tell the sampler: its name or folder."),
    ] = None,
    total_timesteps: Annotated[
        str | None,
        typer.Option(help="Environment steps per member, such as 100_000; as for train."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the study; 0 unless given.")] = None,
    device: arg.Device = None,
    gpu: arg.Gpu = None,
    storage: arg.Storage = None,
    workers: arg.Workers = None,
    group_size: Annotated[
        int | None, typer.Option(min=1, help="Members of a population; measured unless given.")
    ] = None,
    cluster: arg.ClusterAddress = None,
    max_workers: arg.MaxWorkers = None,
    gpu_share: arg.GpuShare = None,
    insecure_cluster: arg.Insecure = False,
    hours: arg.Hours = None,
    fit: Annotated[
        str | None,
        typer.Option(help="Time such as 24h: begins only what ends by then, and says what would."),
    ] = None,
    final_refit: Annotated[
        bool, typer.Option("--final-refit", help="Also train the winner on everything.")
    ] = False,
    force_deploy: arg.Force = False,
    set_: arg.Settings = None,
    no_report: arg.NoStudyReport = False,
    background: Background = False,
    log: LogFile = None,
    replace: Replace = False,
) -> None:
    """Searches for settings, confirms the best, evaluates the winner on the hold-out once."""
    from slipstream import api

    if background or replace or log:
        folder = resolve_study_folder(context.params)
        if context.obj(context, folder, study_name=folder):
            return
        study_name = str(folder)
    overrides, section = arg.tune_overrides(context.params)
    with closing(arg.open_console()) as shown:
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
            fit=fit,
            force_deploy=force_deploy,
            report=not no_report,
            say=shown.say,
            show=shown.show,
        )


def resolve_study_folder(given: Mapping[str, Any]) -> Path:
    """Where `tune` of these values works; refused where its config is."""
    from slipstream.studies.record.folder import StudyFolder
    from slipstream.studies.start import fresh_name, prepare

    base, _, _ = prepare(given["target"], *arg.tune_overrides(given))
    return StudyFolder.of(given["study_name"] or fresh_name(base)).path
