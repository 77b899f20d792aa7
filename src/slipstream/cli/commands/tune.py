"""`slipstream tune`: a search for settings, confirmed and evaluated once."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from slipstream.cli.arguments import (
    ClusterAddress,
    Device,
    Force,
    Gpu,
    GpuShare,
    Hours,
    Insecure,
    MaxWorkers,
    NoStudyReport,
    Settings,
    Storage,
    Target,
    Workers,
    cluster_named,
    console,
    device_named,
)

app = typer.Typer()
WORKS = ("tune",)


# Long: a line for each option.
@app.command()
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
    set_: Settings = None,
    no_report: NoStudyReport = False,
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
    with closing(console()) as shown:
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
            say=shown.say,
            show=shown.show,
        )
