"""`slipstream train`, `resume` and `evaluate`."""

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
    RunFolder,
    Target,
    Trust,
    cluster_named,
    device_named,
    setting_names,
)
from slipstream.core.errors import ConfigError

if TYPE_CHECKING:
    from slipstream.runs.listeners.console import ConsoleListener
    from slipstream.runs.run import Run

NoReport = Annotated[bool, typer.Option("--no-report", help="Do not write report.html.")]


# Long: a line for each option.
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
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="A.B=C",
            help="Sets any field, such as agent.epochs=2.",
            autocompletion=setting_names,
        ),
    ] = None,
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
    with closing(_console()) as progress:
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

    progress = _console()
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


# Long: a line for each option.
def evaluate(
    run: RunFolder,
    data: Annotated[Path | None, typer.Option(help="Folder of other prices to score.")] = None,
    symbols: Annotated[
        str | None, typer.Option(help="Only these of the prices, separated by commas.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="DATE", help="First moment scored, UTC.")
    ] = None,
    stop: Annotated[
        str | None, typer.Option("--to", metavar="DATE", help="Scored up to this moment, UTC.")
    ] = None,
    video: Annotated[
        Path | None, typer.Option(help="Film one episode (.gif, or .mp4 with ffmpeg).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the report; the run's unless given.")
    ] = None,
    games: Annotated[
        int | None, typer.Option(help="Games for two: play so many against each opponent instead.")
    ] = None,
    opponent: Annotated[
        list[str] | None,
        typer.Option(
            help="A bot's name, a run, a policy's folder or an ONNX file; may be repeated, all "
            "bots unless given."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the games; one that chose no policy unless given.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Scores a run's best policies on every split, or on newer bars, and writes the report.

    A study's folder, or the folder of the policy that it deployed, on other prices or newer bars.
    """
    from slipstream import api
    from slipstream.runs.policies import deployed_folder
    from slipstream.runs.run import Run

    progress = _console()
    deployed = deployed_folder(run)
    if deployed is not None and (games is not None or opponent or video is not None):
        raise ConfigError(
            f"{run} is a policy that a study deployed: --games, --opponent and --video are for the "
            "directory of a run. `slipstream.load_policy` and `slipstream.make_vec` play with it."
        )
    opened = Run.open(run, progress.say, trust) if deployed is None else None
    if opened is not None and video is not None:
        from slipstream.cli.video import film

        if games is not None or (opponent and len(opponent) > 1):
            raise ConfigError("--video films one game: leave out --games, and name one --opponent.")
        progress.say(f"Video: {film(opened, video, opponent[0] if opponent else None)}")
        return
    if opened is not None and (games is not None or opponent):
        from slipstream.cli.games import show_games

        show_games(opened, games, opponent, seed, trust)
        return
    path = api.write_report(
        opened or run,
        data=data,
        symbols=_names(symbols),
        start=start,
        stop=stop,
        out=out,
        say=progress.say,
        trust=trust,
    )
    progress.say(f"Report: {path}")


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


def _names(text: str | None) -> list[str] | None:
    """``"EURUSD, GBPUSD"`` -> both; None for none."""
    if text is None:
        return None
    return [name.strip() for name in text.split(",") if name.strip()]


def _console() -> ConsoleListener:
    from slipstream.runs.listeners.console import ConsoleListener

    return ConsoleListener()
