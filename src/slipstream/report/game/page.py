"""The page of a run without prices: what the chosen policy does on episodes that chose nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slipstream.core.text import NOTHING
from slipstream.files.track import Track
from slipstream.report import learning
from slipstream.report.game import outcomes, wording
from slipstream.report.inputs import Chosen, RunEvaluation
from slipstream.report.numbers import Measured, interval, number
from slipstream.report.page import KeyFigure, Page, Section, Table, picture
from slipstream.report.provenance import closing
from slipstream.report.statistics import Floats


def game_page(run: RunEvaluation) -> Page:
    """Builds the page."""
    split = run.holdout if run.holdout in run.tracks else list(run.tracks)[-1]
    tracks, game = run.tracks[split], run.game
    returns = [np.array([track.ret for track in own]) for own in tracks]
    agents = [Measured.of(own) for own in returns]
    agent, count = agents[run.member], len(returns[run.member])
    random = Measured.of(run.random_policy) if len(run.random_policy) else None
    headline = wording.headline(agents, run.member, random, count, _kind(run))
    warnings, sentences = [], wording.members(run, agents)
    marked, games = [], []
    if game is not None:
        if game.outcomes:
            headline = wording.against_opponents(game.outcomes)
        warnings += wording.collapse(run, game, agents, random)
        warnings += wording.cuts(game, [track.length for track in tracks[run.member]])
        chosen = wording.choice(game, game.chosen[run.member], agent, count)
        sentences = [*chosen, *sentences, wording.sampling(agent, game.sampled)]
        marked = [(one.steps, one.score) for one in game.chosen]
        games = outcomes.sections(game.outcomes, game.played)
    first = None
    if run.curves:
        drawn = learning.learning(run.curves, marked, run.member)
        first = picture("learning_curve", "Score over training", drawn)
    drawn = learning.episode_returns(returns[run.member], run.random_policy)
    distribution = picture("episode_returns", "Distribution of episode returns", drawn)
    shown = [*_sweep(run, tracks), _members(run, tracks)]
    return Page(
        title=run.title,
        headline=headline,
        figures=_figures(run, agents, random, count),
        picture=first,
        warnings=warnings,
        sentences=sentences,
        sections=[Section("Result", (), shown, [distribution]), *games, *closing(run)],
    )


def _kind(run: RunEvaluation) -> str:
    return "seeds" if run.same_settings else "members"


def _figures(
    run: RunEvaluation, agents: list[Measured], random: Measured | None, count: int
) -> list[KeyFigure]:
    """The row of the first screen."""
    game, agent = run.game, agents[run.member]
    found = [outcomes.won(one) for one in (() if game is None else game.outcomes)]
    found.append(_figure("Mean return", agent, f"{count} fresh episodes"))
    if len(agents) > 1:
        means = interval([one.mean for one in agents], max(agent.digits - 1, 0))
        found.append(KeyFigure(f"All {len(agents)} {_kind(run)}", means, "mean returns"))
    if game is not None:
        shown = game.chosen[run.member]
        found.append(KeyFigure("Chosen at step", number(shown.steps, 0), f"of {game.steps:,}"))
        last = wording.last_policy(shown)
        if last is not None:
            found.append(_figure("Last policy", last, f"step {game.steps:,}"))
    if random is not None:
        found.append(_figure("Random policy", random))
    return found


def _figure(label: str, measured: Measured, note: str = "") -> KeyFigure:
    value, _, error = str(measured).partition(" ± ")
    return KeyFigure(label, value, ", ".join(filter(None, (error and f"± {error}", note))))


def _members(run: RunEvaluation, tracks: Sequence[Sequence[Track]]) -> Table:
    """A row for each member, for the shown one with drawn actions, and for a random policy."""
    game, rows, alone = run.game, [], len(tracks) == 1
    names = _settings(run)
    for index, own in enumerate(tracks):
        chosen = None if game is None else game.chosen[index]
        label = "agent" if alone else f"member {run.number(index)}"
        cells = [] if chosen is None else [f"{chosen.settings[name]:g}" for name in names]
        length = number(float(np.mean([track.length for track in own])), 0)
        returns = np.array([track.ret for track in own])
        rows.append([label, *cells, *_returns(returns), length, *_choice(chosen)])
    others = {"random policy": run.random_policy}
    if game is not None:
        label = "actions drawn" if alone else f"member {run.number(run.member)}, drawn"
        others = {label: game.sampled, **others}
    ends = [""] if game is None else ["", "", ""]
    rows += [
        [label, *[""] * len(names), *_returns(returns), *ends]
        for label, returns in others.items()
        if len(returns)
    ]
    count = len(tracks[0])
    columns = ("", *names, "mean", "lowest", "median", "highest", "length")
    if game is not None:
        columns = (*columns, "chosen at", "last policy")
    note = "mean and last policy ± standard error" if count > 1 else ""
    caption = f"Returns of {count} fresh episodes"
    return Table(caption, columns, rows, emphasis=run.member, note=note)


def _sweep(run: RunEvaluation, tracks: Sequence[Sequence[Track]]) -> list[Table]:
    """A row for each setting, averaged over its seeds; nothing where all members have the same."""
    names, game = _settings(run), run.game
    if not names or game is None:
        return []
    groups: dict[tuple[float, ...], list[int]] = {}
    for index, chosen in enumerate(game.chosen):
        groups.setdefault(tuple(chosen.settings[name] for name in names), []).append(index)
    means = np.array([np.mean([track.ret for track in own]) for own in tracks])
    best = max(groups, key=lambda group: float(means[groups[group]].mean()))
    rows = []
    for group, indices in groups.items():
        over, members = Measured.of(means[indices]), [game.chosen[index] for index in indices]
        known = np.array([one.last for one in members if one.last is not None])
        rows.append(
            [
                *(f"{value:g}" for value in group),
                number(len(indices), 0),
                str(over),
                number(float(means[indices].min()), over.digits),
                number(float(means[indices].max()), over.digits),
                str(Measured.of(known)) if len(known) == len(indices) else NOTHING,
                number(float(np.median([one.steps for one in members])), 0),
            ]
        )
    note = "one seed each: what differs between rows may be chance"
    if len(rows) < len(tracks):
        note = "mean over seeds ± standard error between them"
    ends = ("last policies", "chosen at (median)")
    columns = (*names, "seeds", "mean", "lowest", "highest", *ends)
    shown = list(groups).index(best)
    return [Table("Settings, averaged over seeds", columns, rows, emphasis=shown, note=note)]


def _settings(run: RunEvaluation) -> tuple[str, ...]:
    """Settings in which the members differ."""
    return tuple(run.game.chosen[0].settings) if run.game is not None else ()


def _choice(chosen: Chosen | None) -> list[str]:
    if chosen is None:
        return []
    return [number(chosen.steps, 0), str(wording.last_policy(chosen) or NOTHING)]


def _returns(returns: Floats) -> list[str]:
    """Mean with its error, lowest, median, highest."""
    mean = Measured.of(returns)
    digits = max(mean.digits - 1, 0)  # a single episode's figures, less sure than their mean
    rest = (returns.min(), np.median(returns), returns.max())
    return [str(mean), *(number(float(value), digits) for value in rest)]
