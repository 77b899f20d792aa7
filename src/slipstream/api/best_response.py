"""`exploit`: how far a policy for two can be exploited, by a best response that is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.api.evaluation import write_report
from slipstream.api.training import train
from slipstream.runs.listeners.events import Listener
from slipstream.runs.run import Run
from slipstream.settings.target import Overrides, parse_overrides

if TYPE_CHECKING:
    from slipstream.runs.games import Games


def exploit(
    path: str | Path | Run,
    *,
    steps: int | None = None,
    games: int = 1_000,
    seed: int | None = None,
    member: int | None = None,
    drawn: bool = False,
    out: str | Path | None = None,
    overrides: Overrides = (),
    listeners: Sequence[Listener] | None = None,
    report: bool = True,
    say: Callable[[str], None] | None = None,
    trust: bool = False,
) -> tuple[Run, Games]:
    """Trains a best response against a frozen policy for two, and plays whole games with it.

    The share of them that it wins is a lower bound of what the policy can lose: a better response
    may win more. It goes into `games.json` of the response's run.

    Args:
        path: a run, a folder in its `best`, or a policy that `write_card` handed on.
        steps: that the response is trained for; as the policy was unless given.
        games: played in the end, from both sides.
        seed: of the games; one that chose no policy unless given.
        member: of the run, whose policy; the best one's unless given.
        drawn: the policy draws its actions, in training and in the games, else it takes the most
            likely ones.
        out: the response's run directory, ``runs/<env>-<date>-<time>`` unless given.
        overrides: of the response's config, which is the policy's own.
        listeners, say: as for `train`.
        report: write `report.html` of the response.
        trust: as for `evaluate`.

    Returns:
        The response's run, and its games as the response sees them.

    Raises:
        ConfigError: it is no policy for two.
        CheckpointError: there is no policy yet, or it is damaged.
    """
    from slipstream.runs import games as whole

    config, two = whole.learner_of(path, member, trust)
    whole.check_game(config.env_name, games)
    assert two.place is not None
    whole.game_against(config.env_name, config.env_settings, 0, two)  # refused before training
    changes: dict[str, Any] = {} if steps is None else {"training.total_steps": steps}
    run = train(
        whole.exploiting(config, two.place, drawn),
        out=out,
        overrides={**changes, **parse_overrides(overrides)},
        listeners=listeners,
        report=False,
        say=say,
    )
    number = run.config.evaluation.test_seed if seed is None else seed
    backend = run.config.training.chosen_backend
    one = whole.player_of(run)
    played = whole.play(run.config.env_name, one, two, games, number, backend=backend, drawn=drawn)
    whole.write_games(run, [played], number)
    if report:
        run.say(f"Report: {write_report(run, say=run.say)}")
    return run, played
