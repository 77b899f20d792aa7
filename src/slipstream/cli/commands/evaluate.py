"""`slipstream evaluate` and `exploit`: reports on other bars, games, best responses."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.options import NoReport, RunOrPolicy, RunOrStudy, Settings, open_console
from slipstream.core.errors import ConfigError
from slipstream.core.terminal import Trust, show_table, tell

if TYPE_CHECKING:
    from slipstream.training.runs.matches import MatchResult
    from slipstream.training.runs.run import Run

app = typer.Typer()
FILE_COMMANDS = ("evaluate", "exploit")


# Long: a line for each option.
@app.command()
def evaluate(
    run: RunOrStudy,
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

    A study, or the folder of the policy that it deployed, on other prices or newer bars; a
    deployment's name: its policy, on the bars of its paper account.
    """
    from slipstream import api
    from slipstream.api.trained_runs import placed
    from slipstream.training.runs.policies import deployed_folder
    from slipstream.training.runs.run import Run

    progress = open_console()
    place, bars, start = placed(run, data, start)
    folder = Path(str(place))
    deployed = deployed_folder(folder)
    if deployed is not None and video is not None:
        raise ConfigError(
            f"{folder} is a policy by itself: --video is for the directory of a run. "
            "`slipstream.load_policy` and `slipstream.make_vec` play with it."
        )
    opened = Run.open(folder, progress.say, trust) if deployed is None else None
    if opened is not None and video is not None:
        from slipstream.cli.video import film

        if games is not None or (opponent and len(opponent) > 1):
            raise ConfigError("--video films one game: leave out --games, and name one --opponent.")
        progress.say(f"Video: {film(opened, video, opponent[0] if opponent else None)}")
        return
    if games is not None or opponent:
        _show_games(opened or folder, games, opponent, seed, trust)
        return
    path = api.write_report(
        opened or folder,
        data=bars,
        symbols=_names(symbols),
        start=start,
        stop=stop,
        out=out,
        say=progress.say,
        trust=trust,
    )
    progress.say(f"Report: {path}")


def _show_games(
    run: Run | Path, games: int | None, opponents: list[str] | None, seed: int | None, trust: bool
) -> None:
    """Plays, prints a table and writes `games.json` into a run's directory."""
    from slipstream import api

    number = {} if games is None else {"games": games}
    played = api.evaluate_games(run, opponents or None, seed=seed, trust=trust, **number)
    _print_table(played)


def _print_table(played: list[MatchResult]) -> None:
    """A row for each opponent."""
    from slipstream.training.runs.matches import ALIKE

    rows = []
    for games in played:
        facts = games.as_dict()
        shares = [
            f"{100 * share:.1f}" + f" [{100 * low:.1f}, {100 * high:.1f}]" * (not games.alike)
            for share, low, high in games.shares().values()
        ]
        sides = [facts.get(name) for name in ("won_left", "won_right")]
        both = " | ".join("-" if side is None else f"{100 * side:.1f}" for side in sides)
        rows.append((games.two, *shares, both, f"{facts['mean_length']:.0f}"))
    columns = ("opponent", "won %", "drawn %", "lost %", "won left | right %", "mean length")
    title = f"{played[0].one}, {len(played[0].result):,} games each, from both sides"
    show_table(columns, rows, title, numbers=True)
    if alike := [games.two for games in played if games.alike]:
        tell(f"Without an interval, against {' and '.join(alike)}: {ALIKE}.")


def _names(text: str | None) -> list[str] | None:
    """``"EURUSD, GBPUSD"`` -> both; None for none."""
    if text is None:
        return None
    return [name.strip() for name in text.split(",") if name.strip()]


@app.command()
def exploit(
    run: RunOrPolicy,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Of the response's training; RUN's unless given.")
    ] = None,
    games: Annotated[int, typer.Option(min=1, help="Played in the end, from both sides.")] = 1_000,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the games; one that chose no policy unless given.")
    ] = None,
    member: Annotated[
        int | None, typer.Option(min=0, help="Whose policy; the best one's unless given.")
    ] = None,
    drawn: Annotated[
        bool, typer.Option("--drawn", help="RUN's policy draws its actions, too.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The response's run; runs/<env>-<date>-<time> unless given.")
    ] = None,
    set_: Settings = None,
    no_report: NoReport = False,
    trust: Trust = False,
) -> None:
    """Trains a best response against RUN's frozen policy, and says which share of games it wins.

    RUN is a run's directory, a folder in its `best`, or a policy that `card --out` handed on.
    """
    from slipstream import api
    from slipstream.training.runs.matches import ALIKE

    with closing(open_console()) as progress:
        response, played = api.exploit(
            run,
            steps=steps,
            games=games,
            seed=seed,
            member=member,
            drawn=drawn,
            out=out,
            overrides=set_ or (),
            callbacks=[progress],
            report=not no_report,
            say=progress.say,
            trust=trust,
        )
        (won, low, high), (drew, *_), (lost, *_) = played.shares().values()
        interval = "" if played.alike else f" ({100 * low:.1f} to {100 * high:.1f})"
        progress.say(
            f"A best response of {response.config.training.total_timesteps:,} steps wins "
            f"{100 * won:.1f} %{interval} of {games:,} games against {played.two}, draws "
            f"{100 * drew:.1f} % and loses {100 * lost:.1f} %{f': {ALIKE}' * played.alike}."
        )
        progress.say(f"Run: {response.path}")
