"""Writes the tables and the picture of a page: ``python -m benchmarks.page PAGE RESULTS``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from benchmarks.row import markdown
from slipstream.report import canvas

# <!-- results/env.json --> ... <!-- end -->: what stands between is replaced.
_MARK = re.compile(r"(<!-- results/(?P<file>[\w-]+\.json) -->\n).*?(<!-- end -->)", re.DOTALL)

# <!-- figure results/vector.json throughput --> ... <!-- end -->: a picture of that file's rows.
_FIGURE = re.compile(
    r"(<!-- figure results/(?P<file>[\w-]+)\.json throughput -->\n).*?(<!-- end -->)", re.DOTALL
)
_COLOURS = {
    "slipstream auto": canvas.BLUE,
    "slipstream serial": canvas.SKY,
    "slipstream process": canvas.GREEN,
    "Gymnasium SyncVectorEnv": canvas.GREY,
    "Gymnasium AsyncVectorEnv (shared memory)": canvas.INK,
    "SB3 DummyVecEnv": canvas.ORANGE,
    "SB3 SubprocVecEnv": canvas.VERMILION,
    "EnvPool": canvas.PURPLE,
}


def render(page: str, results: Path) -> str:
    """The page with each marked place filled from its file; places whose file is absent say so."""

    def filled(match: re.Match[str]) -> str:
        path = results / match["file"]
        body = _section(json.loads(path.read_text())) if path.is_file() else "Not measured yet."
        return f"{match[1]}\n{body}\n\n{match[3]}"

    return _MARK.sub(filled, page)


def _section(result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    versions = ", ".join(f"{name} {value}" for name, value in result["versions"].items() if value)
    head, dash, dirty = (result.get("commit") or "").partition("-")
    commit = f" at {head[:7]}{dash}{dirty}" if head else ""
    facts = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Python {machine['python']}; {machine['date']}{commit}; "
        f"`{result['command']}`. {versions}."
    )
    return f"{markdown(result['rows'])}\n\n{facts}"


def illustrate(page: str, results: Path, folder: Path) -> str:
    """The page with its pictures, drawn into `folder`; places without measurements say so."""

    def drawn(match: re.Match[str]) -> str:
        path, body = results / f"{match['file']}.json", "Not measured yet."
        figure = throughput(json.loads(path.read_text())["rows"]) if path.is_file() else None
        if figure is not None:
            name = f"{match['file']}-throughput.png"
            folder.mkdir(exist_ok=True)
            (folder / name).write_bytes(canvas.png(figure))
            words = "Steps per second of vector layers by number of copies"
            body = f"![{words}]({folder.name}/{name})"
        return f"{match[1]}\n{body}\n\n{match[3]}"

    return _FIGURE.sub(drawn, page)


def throughput(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Steps per second by copies, a panel for each environment; None where nothing is measured."""
    cells = [cell for row in rows if row["case"] == "systems" for cell in row.get("cells", ())]
    cells = [cell for cell in cells if cell.get("copies") and cell["steps_per_second"]]
    kinds = {cell["env"]: [one for one in cells if one["env"] == cell["env"]] for cell in cells}
    # Of one number of copies there is no line.
    kinds = {env: own for env, own in kinds.items() if len({one["copies"] for one in own}) > 1}
    if not kinds:
        return None
    height = 0.9 + 2.6 * len(kinds)
    figure, panels = canvas.canvas("Steps per second by copies", height, [1.0] * len(kinds))
    for axes, (kind, mine) in zip(panels, kinds.items(), strict=True):
        for system in dict.fromkeys(cell["system"] for cell in mine):
            line = [cell for cell in mine if cell["system"] == system]
            ours = system.startswith("slipstream")
            axes.plot(
                [cell["copies"] for cell in line],
                [cell["steps_per_second"] for cell in line],
                color=_COLOURS.get(system, canvas.GREY),
                linewidth=1.8 if ours else 1.1,
                linestyle="-" if ours else "--",
                marker="o",
                markersize=3.5,
                label=system,
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sorted({cell["copies"] for cell in mine}))
        canvas.count_axis(axes)
        canvas.count_axis(axes, "y")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel(f"{kind}:\nsteps/s")
    canvas.legend(panels[0], 2)
    panels[-1].set_xlabel("copies")
    return figure


def main(page: str, results: str) -> None:
    """Rewrites the page in place; pictures go into the folder `figures` beside it."""
    path, files = Path(page), Path(results)
    text = render(path.read_text(encoding="utf-8"), files)
    text = illustrate(text, files, path.parent / "figures")
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
