"""`slipstream evaluate` and `best-response`: reports on other data, matches, best responses."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.options import NoReport, RunOrPolicy, RunOrStudy, Settings, open_console
from slipstream.core.errors import ConfigError
from slipstream.core.terminal import Trust, print_table, print_text

if TYPE_CHECKING:
    from slipstream.training.runs.matches import GamesResult
    from slipstream.training.runs.run import Run

app = typer.Typer()
FILE_COMMANDS = ("evaluate", "best-response")


# Long: one parameter per option.
@app.command(rich_help_panel="Train", epilog="Example: slipstream evaluate runs/first --out page")
def evaluate(
    run: RunOrStudy,
    data: Annotated[
        Path | None, typer.Option(help="Evaluate on the prices in this folder.")
    ] = None,
    symbols: Annotated[
        str | None,
        typer.Option(help="Use only these symbols, separated by commas.", show_default="all"),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="DATE", help="Evaluate from this date, UTC.")
    ] = None,
    stop: Annotated[
        str | None, typer.Option("--to", metavar="DATE", help="Evaluate up to this date, UTC.")
    ] = None,
    video: Annotated[
        Path | None,
        typer.Option(help="Record an episode to this file (.gif, or .mp4 with ffmpeg)."),
    ] = None,
    video_episodes: Annotated[
        int, typer.Option(min=1, help="Record this many episodes to the video.")
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the report to this folder.", show_default="the run's"),
    ] = None,
    games: Annotated[
        int | None,
        typer.Option(help="Play this many matches against each opponent (two-player games)."),
    ] = None,
    opponent: Annotated[
        list[str] | None,
        typer.Option(
            help="Play against this bot, run, policy folder or ONNX file; repeatable.",
            show_default="all bots",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed the matches.", show_default="the run's test seed"),
    ] = None,
    trust: Trust = False,
) -> None:
    """Evaluate a run's best policies and write the report.

    A run is evaluated on every split, or on newer data. A study, or the folder of its deployed
    policy, is evaluated on other or newer prices. For a deployment, its policy is evaluated on the
    bars of its paper account.
    """
    from slipstream import api
    from slipstream.api.trained_runs import resolve_source
    from slipstream.training.runs.policies import deployed_folder
    from slipstream.training.runs.run import Run

    progress = open_console()
    source_folder, bars, start = resolve_source(run, data, start)
    folder = Path(str(source_folder))
    deployed = deployed_folder(folder)
    if deployed is not None and video is not None:
        raise ConfigError(
            f"--video requires a run directory, and {folder} is a policy folder. Use "
            "`slipstream.load_policy` and `slipstream.make_vec` to step the policy."
        )
    opened = Run.open(folder, progress.log, trust) if deployed is None else None
    if opened is not None and video is not None:
        from slipstream.cli.video import record_video

        if games is not None or (opponent and len(opponent) > 1):
            raise ConfigError(
                "--video records matches against one opponent. Remove --games, and give one "
                "--opponent."
            )
        rival = opponent[0] if opponent else None
        progress.log(f"Video: {record_video(opened, video, rival, video_episodes)}")
        return
    if games is not None or opponent:
        _show_games(opened or folder, games, opponent, seed, trust)
        return
    path = api.write_report(
        opened or folder,
        data=bars,
        symbols=_split_names(symbols),
        start=start,
        stop=stop,
        out=out,
        log=progress.log,
        trust=trust,
    )
    progress.log(f"Report: {path}")


def _show_games(
    run: Run | Path, games: int | None, opponents: list[str] | None, seed: int | None, trust: bool
) -> None:
    """Play matches, print a table and write `games.json` into a run's directory."""
    from slipstream import api

    number = {} if games is None else {"games": games}
    played = api.evaluate_games(run, opponents or None, seed=seed, trust=trust, **number)
    _print_table(played)


def _print_table(played: GamesResult) -> None:
    """Print one row per opponent."""
    from slipstream.training.runs.matches import DETERMINISTIC_NOTE

    rows = []
    for games in played:
        metadata = games.as_dict()
        shares = [
            f"{100 * share:.1f}"
            + f" [{100 * low:.1f}, {100 * high:.1f}]" * (not games.deterministic)
            for share, low, high in games.shares().values()
        ]
        sides = [metadata.get(name) for name in ("won_left", "won_right")]
        side_shares = " | ".join("-" if side is None else f"{100 * side:.1f}" for side in sides)
        rows.append((games.player2, *shares, side_shares, f"{metadata['mean_length']:.0f}"))
    columns = ("opponent", "won %", "drawn %", "lost %", "won % as left | right", "mean length")
    title = f"{played[0].player1}, {len(played[0].result):,} matches per opponent, both sides"
    print_table(columns, rows, title, numbers=True)
    if identical := [games.player2 for games in played if games.deterministic]:
        print_text(f"No interval against {' and '.join(identical)}: {DETERMINISTIC_NOTE}.")


def _split_names(text: str | None) -> list[str] | None:
    """Split ``"EURUSD, GBPUSD"`` at its commas; None stays None."""
    if text is None:
        return None
    return [name.strip() for name in text.split(",") if name.strip()]


@app.command(
    rich_help_panel="Games", epilog="Example: slipstream best-response runs/first --games 500"
)
def best_response(
    run: RunOrPolicy,
    total_timesteps: Annotated[
        int | None,
        typer.Option(
            "--total-timesteps",
            "--steps",
            min=1,
            help="Train the response for this many steps.",
            show_default="as RUN",
        ),
    ] = None,
    games: Annotated[
        int, typer.Option(min=1, help="Play this many evaluation matches, from both sides.")
    ] = 1_000,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed the matches.", show_default="the run's test seed"),
    ] = None,
    member: Annotated[
        int | None,
        typer.Option(min=0, help="Play against this member's policy.", show_default="the best"),
    ] = None,
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Sample the actions of RUN's policy.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the response's run to this directory.",
            show_default="runs/<env>-<date>-<time>",
        ),
    ] = None,
    set_: Settings = None,
    no_report: NoReport = False,
    trust: Trust = False,
) -> None:
    """Train a best response to RUN's frozen policy.

    Its win rate against that policy is printed. RUN is a run directory, a folder in its `best`, or
    a policy exported with `model-card --out`.
    """
    from slipstream import api
    from slipstream.training.runs.matches import DETERMINISTIC_NOTE

    with closing(open_console()) as progress:
        response = api.best_response(
            run,
            total_timesteps=total_timesteps,
            games=games,
            seed=seed,
            member=member,
            deterministic=not stochastic,
            out=out,
            overrides=set_ or (),
            callbacks=[progress],
            report=not no_report,
            log=progress.log,
            trust=trust,
        )
        played, run_config = response.match, response.run.config
        interval = (
            ""
            if played.interval is None
            else " ({:.1f} to {:.1f})".format(*(100 * end for end in played.interval))
        )
        certain = f": {DETERMINISTIC_NOTE}" if played.deterministic else ""
        progress.log(
            f"A best response trained for {run_config.training.total_timesteps:,} steps wins "
            f"{100 * played.win_rate:.1f} %{interval} of {games:,} games against "
            f"{played.player2}, draws {100 * played.draw_rate:.1f} % and loses "
            f"{100 * played.loss_rate:.1f} %{certain}."
        )
        progress.log(f"Run: {response.run.path}")
