"""Where results come from and what they took of their machine: the last section of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.core.storage.machine import COLUMNS, WALL
from slipstream.core.storage.provenance import commit_words
from slipstream.core.storage.table import Columns
from slipstream.report.canvas import BLUE, canvas
from slipstream.report.inputs import RunEvaluation
from slipstream.report.learning import episode_sections
from slipstream.report.page import Picture, Section, Table, picture
from slipstream.report.statistics import Floats

_LABELS = ("processor\n(% of a core)", "memory (GiB)", "GPU (%)", "VRAM (GiB)", "GPU (W)")
_UNITS = ((7_200.0, 3_600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def machine_columns(table: Columns) -> dict[str, Floats]:
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


def origin(
    facts: Mapping[str, Any], work: Mapping[str, str], config: str | None, data: str | None
) -> dict[str, str]:
    """Command, what was done, config, data, code, versions, machine; without the unknown.

    Args:
        facts: ``provenance.json`` of a run or a study.
        work: what was done: label and text.
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
        "Commit": commit_words((facts.get("git") or {}).get("slipstream")),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        "Machine": ", ".join(str(part) for part in parts if part) if machine else "",
    }
    return {label: text for label, text in lines.items() if text}


def notes(
    title: str,
    sentences: Sequence[str],
    lines: Mapping[str, str],
    machine: Mapping[str, Floats],
    tables: Sequence[Table] = (),
) -> Section:
    """What was done to the data, where the results came from, and the machine meanwhile.

    Args:
        title: of the section.
        sentences: on the data.
        lines: as `origin` gives them.
        machine: as `machine_columns` gives it.
        tables: that stand before the provenance.
    """
    known = [Table("Provenance", (), list(lines.items()))] if lines else []
    return Section(title, sentences, [*tables, *known], machine_pictures(machine))


def closing(run: RunEvaluation) -> list[Section]:
    """What the page of every run ends with: its episodes of training, then its notes."""
    last = notes("Notes and provenance", run.notes, run.provenance, run.machine)
    return [*episode_sections(run.episodes), last]
