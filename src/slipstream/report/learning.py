"""Curves over steps, from a run's tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from slipstream.core.errors import CheckpointError
from slipstream.core.spec import Spec
from slipstream.report.inputs import Curve
from slipstream.report.statistics import Floats
from slipstream.training.listeners.recent_episodes import PREFIX
from slipstream.training.runs.run import Run

_MOST_POINTS = 1_000


def curves(run: Run, market: bool) -> tuple[Curve, ...]:
    """Learning curves from the run's tables; in a market the two kinds of score differ in unit."""
    members = run.config.training.members
    training, scored = Curve.unit, Curve.unit
    if market:
        training, scored = "return of a\ntraining episode", "mean log return"
    table, evaluations = run.metrics(), run.evaluations()
    found = [_curve("training", table, members, training)] if "score" in table else []
    for split in dict.fromkeys(evaluations.get("split", [])):
        rows = [row for row, name in enumerate(evaluations["split"]) if name == split]
        part = {name: [column[row] for row in rows] for name, column in evaluations.items()}
        # A game is validated on the one split that it has.
        label = str(split) if market else "evaluation"
        found.append(_curve(label, part, members, scored))
    return tuple(curve for curve in found if not np.isnan(curve.score).all())


def numbers_of(table: Mapping[str, Sequence[float | str | None]], column: str) -> Floats:
    """A column of a run's table; NaN where a cell is empty.

    Raises:
        CheckpointError: a cell holds words.
    """
    cells = [np.nan if cell is None else cell for cell in table[column]]
    odd = [cell for cell in cells if isinstance(cell, str)]
    if odd:
        raise CheckpointError(
            f"The run's tables hold {odd[0][:40]!r} in the column `{column}`, where numbers are "
            "expected: metrics.csv or evaluations.csv is damaged. Move both away, or restore them."
        )
    return np.array(cells, dtype=np.float64)


def _curve(
    name: str,
    table: Mapping[str, Sequence[float | str | None]],
    members: int,
    unit: str,
    column: str = "score",
) -> Curve:
    """Rows of (member, steps, `column`) as one column a member, thinned."""
    steps, score = numbers_of(table, "steps"), numbers_of(table, column)
    member = numbers_of(table, "member").astype(int)
    if len(member) and not 0 <= member.min() <= member.max() < members:
        raise CheckpointError(
            f"The run's tables name the members {member.min()} to {member.max()} where it has "
            f"{members}: metrics.csv or evaluations.csv is damaged. Move both away, or restore "
            "them."
        )
    grid, place = np.unique(steps, return_inverse=True)
    values = np.full((len(grid), members), np.nan)
    values[place, member] = score
    stride = -(-len(grid) // _MOST_POINTS)
    return Curve(name, grid[::stride], values[::stride], unit)


def episode_curves(run: Run, spec: Spec, left_out: Collection[str] = ()) -> tuple[Curve, ...]:
    """Length and metrics of recent training episodes over steps, where the tables have them.

    Args:
        run: whose tables are read.
        spec: of its environment, whose metrics have units.
        left_out: metrics whose means say nothing.
    """
    table, members = run.metrics(), run.config.training.members
    named = {"length": ("length", "steps")}
    for metric in spec.metrics:
        column = f"{PREFIX}{metric.name}"
        if metric.name not in left_out:  # one that is called `length`, too, goes by its column
            named[column] = (column if metric.name in named else metric.name, metric.unit)
    return tuple(
        _curve(name, table, members, unit, column)
        for column, (name, unit) in named.items()
        if column in table
    )
