"""What a run or a study took of its machine: one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from slipstream.report.canvas import BLUE, canvas
from slipstream.report.page import Picture, picture
from slipstream.report.statistics import Floats
from slipstream.training.record.machine import COLUMNS, WALL

_LABELS = ("processor\n(% of a core)", "memory (GiB)", "GPU (%)", "VRAM (GiB)", "GPU (W)")
_UNITS = ((7_200.0, 3_600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def machine_columns(table: Mapping[str, Sequence[float | str | None]]) -> dict[str, Floats]:
    """What looks at the machine found, by column; empty with fewer than two looks.

    Args:
        table: `metrics.csv` of a run, or `machine.csv` of a study.
    """
    known = [name for name in (WALL, *COLUMNS) if name in table]
    if not {WALL, *COLUMNS[:2]} <= set(known):
        return {}
    cells = [[one if isinstance(one, float) else np.nan for one in table[name]] for name in known]
    values = np.array(cells, np.float64)
    values = values[:, np.isfinite(values[:3]).all(axis=0)]  # rows in which there was a look
    _, first = np.unique(values[0], return_index=True)  # members of an iteration share one
    return dict(zip(known, values[:, first], strict=True)) if len(first) > 1 else {}


def machine_pictures(found: Mapping[str, Floats]) -> list[Picture]:
    """A panel for each column; nothing where there is too little to draw."""
    if not found:
        return []
    wall = found[WALL]
    size, unit = next((size, unit) for least, size, unit in _UNITS if wall[-1] >= least)
    shown = [(label, name) for label, name in zip(_LABELS, COLUMNS, strict=True) if name in found]
    figure, panels = canvas("The machine", 0.9 + 1.15 * len(shown), [1.0] * len(shown))
    for axes, (label, name) in zip(panels, shown, strict=True):
        axes.plot(wall / size, found[name], color=BLUE, linewidth=1.4)
        axes.set_ylabel(label, fontsize=9)
        axes.set_ylim(bottom=0.0)
    panels[-1].set_xlabel(f"{unit} of training")
    words = "Processor and memory of all processes, and the machine's cards, over time"
    return [picture("machine", words, figure)]
