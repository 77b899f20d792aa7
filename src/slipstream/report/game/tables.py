"""The tables of a game's report: every member, and a sweep's settings averaged over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from slipstream.core.percent import NOTHING
from slipstream.report.game.wording import last_policy
from slipstream.report.inputs import Chosen, RunEvaluation
from slipstream.report.market.wording import number
from slipstream.report.numbers import Measured
from slipstream.report.page import Table
from slipstream.report.statistics import Floats
from slipstream.training.record.track import Track


def members(run: RunEvaluation, tracks: Sequence[Sequence[Track]]) -> Table:
    """A row for each member, for the shown one with drawn actions, and for a random policy."""
    game, rows = run.game, []
    names = settings_of(run)
    for index, own in enumerate(tracks):
        chosen = None if game is None else game.chosen[index]
        label = "agent" if len(tracks) == 1 else f"member {run.number(index)}"
        cells = [] if chosen is None else [_setting(chosen.settings, name) for name in names]
        rows.append([label, *cells, *_returns(own), *_choice(chosen)])
    blank = [""] * len(names)
    ends = ["", ""] if game is not None else []
    if game is not None and len(game.sampled):
        label = "actions drawn" if len(tracks) == 1 else f"member {run.number(run.member)}, drawn"
        rows.append([label, *blank, *_figures(game.sampled), "", *ends])
    if len(run.random_policy):
        rows.append(["random policy", *blank, *_figures(run.random_policy), "", *ends])
    count = len(tracks[0])
    columns = ("", *names, "mean", "lowest", "median", "highest", "length")
    if game is not None:
        columns = (*columns, "chosen at", "last policy")
    return Table(
        f"Returns of {count} fresh episodes",
        columns,
        rows,
        emphasis=run.member,
        note="mean and last policy ± standard error" if count > 1 else "",
    )


def sweep(run: RunEvaluation, tracks: Sequence[Sequence[Track]]) -> Table | None:
    """A row for each setting, averaged over its seeds; None where all members have the same."""
    names, game = settings_of(run), run.game
    if not names or game is None:
        return None
    groups: dict[tuple[float, ...], list[int]] = {}
    for index, chosen in enumerate(game.chosen):
        groups.setdefault(tuple(chosen.settings[name] for name in names), []).append(index)
    means = np.array([np.mean([track.ret for track in own]) for own in tracks])
    best = max(groups, key=lambda group: float(means[groups[group]].mean()))
    rows = []
    for group, indices in groups.items():
        over = Measured.of(means[indices])
        lasts = [game.chosen[index].last for index in indices]
        known = np.array([last for last in lasts if last is not None])
        digits = over.digits
        rows.append(
            [
                *(_setting(dict(zip(names, group, strict=True)), name) for name in names),
                number(len(indices), 0),
                str(over),
                number(float(means[indices].min()), digits),
                number(float(means[indices].max()), digits),
                str(Measured.of(known)) if len(known) == len(indices) else NOTHING,
                number(float(np.median([game.chosen[i].steps for i in indices])), 0),
            ]
        )
    seeds = "mean over seeds ± standard error between them" if len(rows) < len(tracks) else ""
    return Table(
        "Settings, averaged over seeds",
        (*names, "seeds", "mean", "lowest", "highest", "last policies", "chosen at (median)"),
        rows,
        emphasis=list(groups).index(best),
        note=seeds or "one seed each: what differs between rows may be chance",
    )


def settings_of(run: RunEvaluation) -> tuple[str, ...]:
    """Settings in which the members differ."""
    return tuple(run.game.chosen[0].settings) if run.game is not None else ()


def _setting(settings: Mapping[str, float], name: str) -> str:
    return f"{settings[name]:g}"


def _choice(chosen: Chosen | None) -> list[str]:
    if chosen is None:
        return []
    last = last_policy(chosen)
    return [number(chosen.steps, 0), NOTHING if last is None else str(last)]


def _returns(tracks: Sequence[Track]) -> list[str]:
    returns = np.array([track.ret for track in tracks])
    return [*_figures(returns), number(float(np.mean([track.length for track in tracks])), 0)]


def _figures(returns: Floats) -> list[str]:
    """Mean with its error, lowest, median, highest."""
    mean = Measured.of(returns)
    digits = max(mean.digits - 1, 0)  # a single episode's figures, less sure than their mean
    rest = (returns.min(), np.median(returns), returns.max())
    return [str(mean), *(number(float(value), digits) for value in rest)]
