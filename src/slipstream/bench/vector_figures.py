"""Pictures of `slipstream bench vector`, in the style of reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from slipstream.report.canvas import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    canvas,
    count_axis,
)
from slipstream.report.canvas import legend as legend_of

Rows = Sequence[Mapping[str, Any]]

_COLOURS = {
    "slipstream auto": BLUE,
    "slipstream serial": SKY,
    "slipstream process": GREEN,
    "slipstream compiled": BLUE,
    "Gymnasium SyncVectorEnv": GREY,
    "Gymnasium AsyncVectorEnv (shared memory)": INK,
    "SB3 DummyVecEnv": ORANGE,
    "SB3 SubprocVecEnv": VERMILION,
    "EnvPool": PURPLE,
}


def throughput(rows: Rows) -> Figure | None:
    """Steps per second by copies, a panel for each environment; None where nothing is measured."""
    cells = [cell for row in rows if row["case"] == "systems" for cell in row.get("cells", ())]
    cells = [cell for cell in cells if cell.get("copies") and cell["steps_per_second"]]
    counts = {
        cell["env"]: {one["copies"] for one in cells if one["env"] == cell["env"]} for cell in cells
    }
    kinds = [env for env, copies in counts.items() if len(copies) > 1]  # else there is no line
    if not kinds:
        return None
    figure, panels = canvas(
        "Steps per second by copies", 0.9 + 2.6 * len(kinds), [1.0] * len(kinds)
    )
    for axes, kind in zip(panels, kinds, strict=True):
        mine = [cell for cell in cells if cell["env"] == kind]
        for system in _systems(mine):
            line = [cell for cell in mine if cell["system"] == system]
            axes.plot(
                [cell["copies"] for cell in line],
                [cell["steps_per_second"] for cell in line],
                color=_COLOURS.get(system, GREY),
                linewidth=1.8 if system.startswith("slipstream") else 1.1,
                linestyle="-" if system.startswith("slipstream") else "--",
                marker="o",
                markersize=3.5,
                label=system,
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sorted({cell["copies"] for cell in mine}))
        count_axis(axes)
        count_axis(axes, "y")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel(f"{kind}:\nsteps/s")
    legend_of(panels[0], 2)
    panels[-1].set_xlabel("copies")
    return figure


def _systems(cells: Rows) -> list[str]:
    return list(dict.fromkeys(cell["system"] for cell in cells))


FIGURES: dict[str, tuple[str, Callable[[Rows], Figure | None]]] = {
    "throughput": ("Steps per second of vector layers by number of copies", throughput),
}
"""What a page may ask for: words for who cannot see it, and what draws it."""
