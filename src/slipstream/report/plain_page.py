"""The page of a run without prices: learning curve, returns, a random policy beside them."""

from __future__ import annotations

import numpy as np

from slipstream.report import learning_figures, wording
from slipstream.report.inputs import RunEvaluation
from slipstream.report.market_page import notes
from slipstream.report.page import Page, Section, Table, picture
from slipstream.report.statistics import Floats
from slipstream.report.wording import number


def plain_page(run: RunEvaluation) -> Page:
    """Builds the page; every split counts by its episodes."""
    split = run.holdout if run.holdout in run.tracks else list(run.tracks)[-1]
    returns = [np.array([t.ret for t in tracks]) for tracks in run.tracks[split]]
    agent, random = returns[run.member], run.random_policy
    lines = wording.episodes(
        float(agent.mean()),
        _deviation(agent),
        len(agent),
        float(random.mean()) if len(random) else None,
    )
    if len(returns) > 1:
        means = [float(r.mean()) for r in returns]
        kind = "seeds" if run.same_settings else "members with different settings"
        lines.append(
            f"Over {len(returns)} {kind} the mean is {number(min(means))} to {number(max(means))}, "
            f"median {number(float(np.median(means)))}. Shown is member {run.number(run.member)}"
            f"{run.member_reason and ', ' + run.member_reason}."
        )
    rows = []
    for name, members in run.tracks.items():
        for index, tracks in enumerate(members):
            label = f"agent, {name}" if len(members) == 1 else f"member {run.number(index)}, {name}"
            rows.append(
                _row(
                    label,
                    np.array([t.ret for t in tracks]),
                    float(np.mean([t.length for t in tracks])),
                )
            )
    if len(random):
        rows.append(_row("random policy", random, None))
    columns = ("", "mean", "deviation", "lowest", "median", "highest", "length", "episodes")
    pictures = []
    if run.curves:
        pictures.append(
            picture(
                "learning_curve",
                "Score over training",
                learning_figures.learning(run.curves),
            )
        )
    pictures.append(
        picture(
            "episode_returns",
            "Distribution of episode returns",
            learning_figures.episode_returns(agent, random),
        )
    )
    return Page(
        title=run.title,
        headline=lines[0],
        sentences=lines[1:],
        sections=[
            Section("Result", (), [Table("Episode returns", columns, rows)], pictures),
            notes(run),
        ],
    )


def _deviation(values: Floats) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _row(name: str, values: Floats, length: float | None) -> list[str]:
    return [
        name,
        number(float(values.mean())),
        number(_deviation(values)),
        number(float(values.min())),
        number(float(np.median(values))),
        number(float(values.max())),
        "" if length is None else number(length, 0),
        number(len(values), 0),
    ]
