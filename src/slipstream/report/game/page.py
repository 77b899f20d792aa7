"""The page of a run without prices: what the chosen policy does on episodes that chose nothing."""

from __future__ import annotations

import numpy as np

from slipstream.report import learning_figures
from slipstream.report.episode_section import episode_sections
from slipstream.report.game import outcomes as game_outcomes
from slipstream.report.game import tables as game_tables
from slipstream.report.game import wording as game_wording
from slipstream.report.inputs import Outcomes, RunEvaluation
from slipstream.report.market.page import notes
from slipstream.report.market.wording import number, share
from slipstream.report.numbers import Measured
from slipstream.report.page import KeyFigure, Page, Section, picture
from slipstream.training.runs.games import wilson


def plain_page(run: RunEvaluation) -> Page:
    """Builds the page."""
    split = run.holdout if run.holdout in run.tracks else list(run.tracks)[-1]
    tracks, game = run.tracks[split], run.game
    returns = [np.array([track.ret for track in own]) for own in tracks]
    agents = [Measured.of(own) for own in returns]
    agent, count = agents[run.member], len(returns[run.member])
    random = Measured.of(run.random_policy) if len(run.random_policy) else None
    sentences = game_wording.choice(run, agent, count)
    sentences += game_wording.members(run, agents)
    if game is not None:
        sentences.append(game_wording.sampling(agent, game.sampled))
    first = None
    if run.curves:
        marked = [] if game is None else [(one.steps, one.score) for one in game.chosen]
        drawn = learning_figures.learning(run.curves, marked, run.member)
        first = picture("learning_curve", "Score over training", drawn)
    distribution = picture(
        "episode_returns",
        "Distribution of episode returns",
        learning_figures.episode_returns(returns[run.member], run.random_policy),
    )
    swept = game_tables.sweep(run, tracks)
    tables = [*([swept] if swept else []), game_tables.members(run, tracks)]
    games = None if game is None else game_outcomes.section(game.outcomes, game.played)
    met = () if game is None else game.outcomes
    kind = "seeds" if run.same_settings else "members"
    return Page(
        title=run.title,
        headline=game_wording.against_opponents(met)
        if met
        else game_wording.headline(agents, run.member, random, count, kind),
        figures=_figures(run, agents, random, count),
        picture=first,
        warnings=[
            *game_wording.collapse(run, agents, random),
            *game_wording.cuts(game, [track.length for track in tracks[run.member]]),
        ],
        sentences=sentences,
        sections=[
            Section("Result", (), tables, [distribution]),
            *([] if games is None else [games]),
            *episode_sections(run.episodes),
            notes(run),
        ],
    )


def _figures(
    run: RunEvaluation, agents: list[Measured], random: Measured | None, count: int
) -> list[KeyFigure]:
    """The row of the first screen."""
    game, agent = run.game, agents[run.member]
    found = [_won(one) for one in (() if game is None else game.outcomes)]
    found.append(_figure("Mean return", agent, f"{count} fresh episodes"))
    if len(agents) > 1:
        means = [one.mean for one in agents]
        low, high = (number(value, max(agent.digits - 1, 0)) for value in (min(means), max(means)))
        kind = "seeds" if run.same_settings else "members"
        found.append(KeyFigure(f"All {len(agents)} {kind}", f"{low} to {high}", "mean returns"))
    if game is not None:
        shown = game.chosen[run.member]
        found.append(KeyFigure("Chosen at step", number(shown.steps, 0), f"of {game.steps:,}"))
        last = game_wording.last_policy(shown)
        if last is not None:
            found.append(_figure("Last policy", last, f"step {game.steps:,}"))
    if random is not None:
        found.append(_figure("Random policy", random))
    return found


def _won(met: Outcomes) -> KeyFigure:
    games = met.won + met.drawn + met.lost
    low, high = (f"{100 * end:.0f}" for end in wilson(met.won, games)[1:])
    return KeyFigure(f"Won against {met.opponent}", share(met.won / games), f"{low} to {high} %")


def _figure(label: str, measured: Measured, note: str = "") -> KeyFigure:
    value, _, error = str(measured).partition(" ± ")
    parts = ([f"± {error}"] if error else []) + ([note] if note else [])
    return KeyFigure(label, value, ", ".join(parts))
