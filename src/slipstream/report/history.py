"""History of a run or study: learning curves, resource usage and provenance.

Curves over steps are read from the tables of a run. Pages end with these sections.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slipstream.core.errors import CheckpointError
from slipstream.core.storage.csv_table import Columns
from slipstream.core.storage.provenance import commit_text
from slipstream.core.storage.resource_monitor import COLUMNS, WALL
from slipstream.core.text import truncate_list
from slipstream.kernels.spec import EnvSpec
from slipstream.report.inputs import Curve, RunEvaluation
from slipstream.report.page import Picture, Section, Table, make_picture
from slipstream.report.plot_style import (
    BLUE,
    GREY,
    ORANGE,
    SKY,
    VERMILION,
    count_axis,
    legend,
    new_figure,
    new_grid,
    percent_axis,
)
from slipstream.report.statistics import Floats
from slipstream.training.callbacks.events import PREFIX
from slipstream.training.runs.run import Run

_MOST_POINTS = 1_000
_MOST_PANELS = 16  # panels of training episodes; the tables have all metrics
_MOST_LISTED = 20  # maximum number of names in a sentence
_COLOURS = {"training": GREY, "validation": BLUE, "evaluation": BLUE}
_LABELS = ("processor\n(% of a core)", "memory (GiB)", "GPU (%)", "VRAM (GiB)", "GPU (W)")
_UNITS = ((7_200.0, 3_600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def learning_curves(run: Run, market: bool) -> tuple[Curve, ...]:
    """Return learning curves from the run's tables; in a market the scores differ in unit."""
    members = run.config.training.members
    training, scored = Curve.unit, Curve.unit
    if market:
        training, scored = "return of a\ntraining episode", "mean log return"
    table, evaluations = run.metrics(), run.evaluations()
    curves = [_curve("training", table, members, training)] if "score" in table else []
    for split in dict.fromkeys(evaluations.get("split", [])):
        rows = [row for row, name in enumerate(evaluations["split"]) if name == split]
        part = {name: [column[row] for row in rows] for name, column in evaluations.items()}
        # A game has one split.
        label = str(split) if market else "evaluation"
        curves.append(_curve(label, part, members, scored))
    return tuple(curve for curve in curves if not np.isnan(curve.score).all())


def numeric_column(table: Columns, column: str) -> Floats:
    """Return a column of a run's table; NaN where a cell is empty.

    Raises:
        CheckpointError: a cell is not a number.
    """
    cells = [np.nan if cell is None else cell for cell in table[column]]
    odd = [cell for cell in cells if isinstance(cell, str)]
    if odd:
        raise CheckpointError(
            f"The run's tables hold {odd[0][:40]!r} in the column `{column}`, where numbers are "
            "expected: metrics.csv or evaluations.csv is damaged. Move both away, or restore them."
        )
    return np.array(cells, dtype=np.float64)


def _curve(name: str, table: Columns, members: int, unit: str, column: str = "score") -> Curve:
    """Return rows of (member, steps, `column`) as one column per member, subsampled."""
    steps, score = numeric_column(table, "steps"), numeric_column(table, column)
    member = numeric_column(table, "member").astype(int)
    if len(member) and not 0 <= member.min() <= member.max() < members:
        raise CheckpointError(
            f"The run's tables name the members {member.min()} to {member.max()} where it has "
            f"{members}: metrics.csv or evaluations.csv is damaged. Move both away, or restore "
            "them."
        )
    grid, place = np.unique(steps, return_inverse=True)
    values = np.full((len(grid), members), np.nan)
    values[place, member] = score
    stride = max(1, -(-len(grid) // _MOST_POINTS))  # a power failure may leave only a header
    return Curve(name, grid[::stride], values[::stride], unit)


def episode_curves(run: Run, spec: EnvSpec, left_out: Collection[str] = ()) -> tuple[Curve, ...]:
    """Return length and metrics of recent training episodes over steps, if recorded.

    Args:
        run: run with the tables.
        spec: spec of its environment; its metrics have units.
        left_out: metrics with meaningless means.
    """
    table, members = run.metrics(), run.config.training.members
    named = {"length": ("length", "steps")}
    for metric in spec.metrics:
        column = f"{PREFIX}{metric.name}"
        if metric.name not in left_out:  # a metric named `length` uses its column name
            named[column] = (column if metric.name in named else metric.name, metric.unit)
    return tuple(
        _curve(name, table, members, unit, column)
        for column, (name, unit) in named.items()
        if column in table
    )


def draw_learning_curves(
    curves: Sequence[Curve], chosen: Sequence[tuple[int, float]] = (), shown: int = 0
) -> Figure:
    """Plot score over steps, a panel per unit: members with thin lines, their mean thick.

    Args:
        curves: learning curves; the last one selects policies.
        chosen: step and score at which each member's policy was chosen.
        shown: index of the member whose policy the report shows.
    """
    units = list(dict.fromkeys(curve.unit for curve in curves))
    figure, panels = new_figure("Learning curve", 1.2 + 2.0 * len(units), [1.0] * len(units))
    for curve in curves:
        _draw(panels[units.index(curve.unit)], curve)
    if chosen:
        _mark_choices(panels[units.index(curves[-1].unit)], chosen, shown)
    for axes, unit in zip(panels, units, strict=True):
        axes.set_ylabel(unit)
        legend(axes, 2)  # long names require fewer columns
    panels[-1].set_xlabel("steps per member")
    count_axis(panels[-1])
    return figure


def _mark_choices(axes: Axes, chosen: Sequence[tuple[int, float]], shown: int) -> None:
    """Mark where policies were chosen, with a large star for the displayed member."""
    others = [place for index, place in enumerate(chosen) if index != shown]
    if others:
        label = "chosen, other members"
        at, scores = zip(*others, strict=True)
        axes.scatter(at, scores, s=28, marker="*", color=SKY, zorder=4, label=label)
    steps, score = chosen[shown]
    axes.axvline(steps, color=VERMILION, linewidth=0.8, linestyle=":", zorder=3)
    axes.scatter(
        [steps], [score], s=130, marker="*", color=VERMILION, zorder=5, label="chosen and shown"
    )


def _draw(axes: Axes, curve: Curve, colour: str | None = None) -> None:
    colour = colour or _COLOURS.get(curve.name, ORANGE)
    members = curve.score.shape[1]
    if members > 1:
        axes.plot(curve.steps, curve.score, color=colour, linewidth=0.6, alpha=0.4)
    seen = ~np.isnan(curve.score).all(axis=1)
    axes.plot(
        curve.steps[seen],
        np.nanmean(curve.score[seen], axis=1),
        color=colour,
        linewidth=1.8,
        marker="o" if len(curve.steps) <= 40 else None,
        markersize=4,
        label=curve.name if members == 1 else f"{curve.name}, mean of members",
    )


def _episodes(curves: Sequence[Curve]) -> Figure:
    """Plot training episodes over steps, a panel per metric: members thin, their mean thick."""
    rows = -(-len(curves) // 2)
    title = "Training episodes, means of the last 100"
    figure, panels = new_grid(title, 0.7 + 1.55 * rows, rows, 2, share="x")
    for axes, curve in zip(panels, curves, strict=False):
        _draw(axes, curve, BLUE)
        unit = f" ({curve.unit})" if curve.unit else ""
        axes.set_title(f"{curve.name}{unit}", loc="left", fontsize=9.5)
        axes.tick_params(labelsize=9)
        count_axis(axes, "y")
        count_axis(axes)
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    for axes in panels[max(0, len(curves) - 2) : len(curves)]:  # lowest panel of each column
        axes.tick_params(labelbottom=True)
    figure.supxlabel("steps per member", fontsize=9.5)
    return figure


def draw_episode_returns(agent: Floats, random: Floats) -> Figure:
    """Plot a histogram of episode returns and those of a random policy."""
    figure, (axes,) = new_figure("Episode returns", 3.2)
    both = np.concatenate([agent, random])
    low, high = float(both.min()), float(both.max())
    edges = np.linspace(low, high if high > low else low + 1.0, 31)
    kinds = ((random, GREY, 0.6, "random policy"), (agent, BLUE, 0.75, "agent"))
    for values, colour, alpha, label in kinds:
        if len(values):
            weights = np.full(len(values), 1 / len(values))
            axes.hist(values, list(edges), weights=weights, color=colour, alpha=alpha, label=label)
    axes.set_xlabel("episode return")
    axes.set_ylabel("share of episodes")
    percent_axis(axes)
    legend(axes)
    return figure


def episode_sections(curves: Sequence[Curve]) -> list[Section]:
    """Return the section of learning curves; empty if no curve has two points."""
    known = [curve for curve in curves if _points(curve) > 1]
    moving = [curve for curve in known if _moves(curve)]
    if not moving:
        return []
    sentences = [
        "Training episodes use sampled actions and include the cost of exploration: their trend "
        "shows learning progress, not the quality of the selected policy."
    ]
    still = [f"{c.name} {float(np.nanmin(c.score)):.4g}" for c in known if not _moves(c)]
    if still:
        sentences.append(f"Constant: {truncate_list(still, _MOST_LISTED)}.")
    left = [curve.name for curve in moving[_MOST_PANELS:]]
    if left:
        sentences.append(
            f"Not drawn, in metrics.csv and TensorBoard: {truncate_list(left, _MOST_LISTED)}."
        )
    drawn = _episodes(moving[:_MOST_PANELS])
    words = "Length and metrics of training episodes over steps"
    return [Section("Training episodes", sentences, (), [make_picture("episodes", words, drawn)])]


def _moves(curve: Curve) -> bool:
    return bool(np.nanmin(curve.score) < np.nanmax(curve.score))


def _points(curve: Curve) -> int:
    """Return the times at which any member has a value."""
    return int((~np.isnan(curve.score)).any(axis=1).sum())


def resource_columns(table: Columns) -> dict[str, Floats]:
    """Return the machine's resource usage by column; empty with fewer than two samples.

    Args:
        table: `metrics.csv` of a run, or `machine.csv` of a study.
    """
    known = [name for name in (WALL, *COLUMNS) if name in table]
    if not {WALL, *COLUMNS[:2]} <= set(known):
        return {}
    cells = [
        [cell if isinstance(cell, float) else np.nan for cell in table[name]] for name in known
    ]
    values = np.array(cells, np.float64)
    values = values[:, np.isfinite(values[:3]).all(axis=0)]  # rows with a measurement
    _, first = np.unique(
        values[0], return_index=True
    )  # members of an iteration share a measurement
    return dict(zip(known, values[:, first], strict=True)) if len(first) > 1 else {}


def resource_pictures(found: Mapping[str, Floats]) -> list[Picture]:
    """Return a panel for each column; empty with too few samples."""
    if not found:
        return []
    wall = found[WALL]
    size, unit = next((size, unit) for least, size, unit in _UNITS if wall[-1] >= least)
    shown = [(label, name) for label, name in zip(_LABELS, COLUMNS, strict=True) if name in found]
    figure, panels = new_figure("The machine", 0.9 + 1.15 * len(shown), [1.0] * len(shown))
    for axes, (label, name) in zip(panels, shown, strict=True):
        axes.plot(wall / size, found[name], color=BLUE, linewidth=1.4)
        axes.set_ylabel(label, fontsize=9)
        axes.set_ylim(bottom=0.0)
    panels[-1].set_xlabel(f"{unit} of training")
    words = "CPU, memory and GPU use over time"
    return [make_picture("machine", words, figure)]


def origin_lines(
    facts: Mapping[str, Any], work: Mapping[str, str], config: str | None, data: str | None
) -> dict[str, str]:
    """Return command, work, config, data, code, versions and machine; unknown ones are omitted.

    Args:
        facts: ``provenance.json`` of a run or a study.
        work: label and text of the work.
        config, data: sha256.
    """
    versions, machine = facts.get("versions") or {}, facts.get("machine") or {}
    parts = (
        machine.get("processor"),
        f"{machine.get('cores')} cores",
        f"{machine.get('memory_gib')} GiB",
        *(card.get("name") for card in machine.get("gpus") or ()),
        machine.get("system"),
    )
    lines = {
        "Command": str(facts.get("command") or ""),
        "Started": str(facts.get("started") or ""),
        **work,
        "Config": f"sha256 {config}" if config else "",
        "Data": f"sha256 {data}" if data else "",
        "Commit": commit_text((facts.get("git") or {}).get("slipstream")),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        "Machine": ", ".join(str(part) for part in parts if part) if machine else "",
    }
    return {label: text for label, text in lines.items() if text}


def notes_section(
    title: str,
    sentences: Sequence[str],
    lines: Mapping[str, str],
    machine: Mapping[str, Floats],
    tables: Sequence[Table] = (),
) -> Section:
    """Return the section of notes, provenance and resource usage.

    Args:
        title: title of the section.
        sentences: sentences about the data.
        lines: see `origin_lines`.
        machine: see `resource_columns`.
        tables: tables before the provenance.
    """
    known = [Table("Provenance", (), list(lines.items()))] if lines else []
    return Section(title, sentences, [*tables, *known], resource_pictures(machine))


def closing_sections(run: RunEvaluation) -> list[Section]:
    """Return the last sections of every run's page: its training episodes, then its notes."""
    last = notes_section("Notes and provenance", run.notes, run.provenance, run.resources)
    return [*episode_sections(run.episodes), last]
