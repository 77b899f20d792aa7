"""Write the tables and the pictures of a page: ``python -m benchmarks.page PAGE RESULTS``."""

from __future__ import annotations

import math
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from benchmarks import measurements
from benchmarks.comparison import comparison
from benchmarks.row import cells, markdown, peer_figures, wrap_item
from slipstream.report import plot_style

# <!-- benchmarks/results/env.json --> ... <!-- end -->: the text between is replaced by all
# cases of the file, or by named ones: <!-- benchmarks/results/agents.json dqn_vs_sb3 -->.
_MARK = re.compile(
    r"(<!-- benchmarks/results/(?P<file>[\w-]+\.json)(?P<cases>( [\w-]+)*) -->\n).*?(<!-- end -->)",
    re.DOTALL,
)

# Rows of <!-- the most important rows --> ... <!-- end -->.
_FIRST = re.compile(r"(<!-- the most important rows -->\n).*?(<!-- end -->)", re.DOTALL)
ROWS = {
    "steps/s of forex": ("env", "forex_vs_sb3"),
    "steps/s of CartPole, 1,024 envs": ("env", "cartpole_vs_envpool"),
    "steps/s of portfolios of 7 assets": ("study", "portfolio_kernel"),
    "steps/s of hockey, two strong bots, one core": ("hockey", "hockey_step"),
    "steps/s of Gymnasium's CartPole in worker processes, 64 envs": ("vector", "cheap_vs_async"),
    "training steps/s of PPO on forex, 64x64, equal work": ("train", "ppo_vs_sb3_tuned"),
    "training steps/s of PPO on CartPole, 64x64, equal work": ("loops", "ppo_vs_jax"),
    "training steps/s of one DQN on CartPole, 64x64, equal work": ("loops", "dqn_vs_jax"),
    "training steps/s of one DQN on hockey, 256x512x256, equal work": (
        "hockey",
        "hockey_dqn_large",
    ),
    "training steps/s of one SAC on Pendulum, 256x256, equal work": ("loops", "sac_vs_jax 256x256"),
    "seconds to a mean of 475 on CartPole by PPO, 64x64": ("train", "time_to_score"),
    "seconds from nothing to 95 % of games of hockey won against each bot, 64x64": (
        "hockey",
        "hockey_95",
    ),
    "seconds a fold of a trial, 64x64, both cores busy, equal work": ("study", "fold_vs_sb3"),
    "seconds of 500 trials x 6 folds x 100,000 steps, 64x64, run whole": ("study", "study_full"),
    "seconds of a search on two Ray nodes, 64x64": ("cluster", "ray_overhead"),
}

# <!-- what a study takes --> ... <!-- end -->: hours of these trials x folds x steps.
_STUDIES = re.compile(r"(<!-- what a study takes -->\n).*?(<!-- end -->)", re.DOTALL)
_SIZES = ((100, 1, 100_000), (100, 6, 100_000), (500, 6, 100_000), (500, 6, 540_000))

# <!-- figure benchmarks/results/vector.json throughput --> ... <!-- end -->: its rows as a picture.
_FIGURE = re.compile(
    r"(<!-- figure benchmarks/results/(?P<file>[\w-]+)\.json throughput -->\n).*?(<!-- end -->)",
    re.DOTALL,
)
_COLOURS = {
    "slipstream auto": plot_style.BLUE,
    "slipstream serial": plot_style.SKY,
    "slipstream process": plot_style.GREEN,
    "Gymnasium SyncVectorEnv": plot_style.GREY,
    "Gymnasium AsyncVectorEnv (shared memory)": plot_style.INK,
    "SB3 DummyVecEnv": plot_style.ORANGE,
    "SB3 SubprocVecEnv": plot_style.VERMILION,
    "EnvPool": plot_style.PURPLE,
}


def render(page: str, folder: Path) -> str:
    """Return the page with each marked block filled from its file, or with a note of absence."""

    def filled(match: re.Match[str]) -> str:
        measured, named = measurements.read(folder / match["file"]), match["cases"].split()
        chosen = [case for case in measured if not named or case["case"] in named]
        body = "\n\n".join(_table(stamp, list(group)) for stamp, group in groupby(chosen, _stamp))
        return f"{match[1]}\n{body or 'Not measured yet.'}\n\n<!-- end -->"

    page = _MARK.sub(filled, page)
    page = _STUDIES.sub(lambda match: f"{match[1]}\n{_studies(folder)}\n\n{match[2]}", page)
    return _FIRST.sub(lambda match: f"{match[1]}\n{_first(folder)}\n\n{match[2]}", page)


def _first(folder: Path) -> str:
    """Return the list of the most important rows."""
    items = []
    for words, (file, name) in ROWS.items():
        measured, row = measurements.find(folder / f"{file}.json", name)
        _, ours, *_ = cells(row)
        machine = measured["machine"]
        when = f"{machine['date']}, {machine['processor'].partition('(')[0]}"
        figures = [f"slipstream {ours}", *peer_figures(row)]
        items.append(wrap_item(f"**{words}**: {'; '.join(figures)}. Measured {when}."))
    return "\n".join(items)


def _studies(folder: Path) -> str:
    """Return the table of search durations: their steps by the measured steps per second."""
    widths = [
        case for case in measurements.read(folder / "study.json") if case["case"] == "study_widths"
    ]
    if not widths:
        return "Not measured yet."
    rows = [(f"ppo, {row['case'].split()[1]}", row["ours"]) for row in widths[0]["rows"]]
    _, large = measurements.find(folder / "hockey.json", "hockey_dqn_large")
    rows.append(("dqn, 256x512x256", large["ours"]))
    sizes = [f"{trials} x {folds} x {steps:,}" for trials, folds, steps in _SIZES]
    heads = ("network", "steps/s", *sizes)
    lines: list[tuple[str, ...]] = [heads, ("---",) * len(heads)]
    for network, rate in rows:
        hours = [math.prod(size) / rate / 3600 for size in _SIZES]
        lines.append((network, f"{rate:,.0f}", *map(_long, hours)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _long(hours: float) -> str:
    """Format hours, in minutes or days if that is easier to read."""
    if hours < 1.0:
        return f"{60.0 * hours:.2g} min"
    return f"{hours:.2g} h" if hours < 48.0 else f"{hours / 24.0:,.3g} days"


def _stamp(measured: measurements.Measurement) -> str:
    """Return the machine, the day and the commit of a measurement as text."""
    machine = measured["machine"]
    head, dash, dirty = (measured.get("commit") or "").partition("-")
    commit = f" at {head[:7]}{dash}{dirty}" if head else ""
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Python {machine['python']}; {machine['date']}{commit}"
    )


def _table(stamp: str, group: Sequence[measurements.Measurement]) -> str:
    """Return the rows of measurements of one machine, day and commit."""
    rows = [row for measured in group for row in measured["rows"]]
    commands = [
        line
        for command in dict.fromkeys(measured["command"] for measured in group)
        for line in _wrap_command(command)
    ]
    return "\n".join([markdown(rows), "", f"{stamp}:", "", *(f"    {line}" for line in commands)])


def _wrap_command(command: str) -> list[str]:
    """Return a shell command as lines of at most 90 characters with continuations."""
    lines = textwrap.wrap(
        command, 90, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
    )
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def illustrate(page: str, files: Path, folder: Path) -> str:
    """Return the page with its pictures, drawn into `folder`, or with notes if data is missing."""

    def drawn(match: re.Match[str]) -> str:
        measured, body = measurements.read(files / f"{match['file']}.json"), "Not measured yet."
        figure = throughput([row for case in measured for row in case["rows"]])
        if figure is not None:
            name = f"{match['file']}-throughput.png"
            folder.mkdir(exist_ok=True)
            (folder / name).write_bytes(plot_style.png(figure))
            words = "Steps per second of vector layers by number of environments"
            body = f"![{words}](../{folder.name}/{name})"
        return f"{match[1]}\n{body}\n\n{match[3]}"

    return _FIGURE.sub(drawn, page)


def throughput(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw steps per second by num_envs, a panel for each environment; None without data."""
    cells = [cell for row in rows if row["case"] == "systems" for cell in row.get("cells", ())]
    cells = [cell for cell in cells if cell.get("copies") and cell["steps_per_second"]]
    kinds = {
        cell["env"]: [other for other in cells if other["env"] == cell["env"]] for cell in cells
    }
    # A single num_envs has no line.
    kinds = {
        env: group for env, group in kinds.items() if len({cell["copies"] for cell in group}) > 1
    }
    if not kinds:
        return None
    height = 0.9 + 2.6 * len(kinds)
    figure, panels = plot_style.new_figure(
        "Steps per second by environments", height, [1.0] * len(kinds)
    )
    for axes, (kind, mine) in zip(panels, kinds.items(), strict=True):
        for system in dict.fromkeys(cell["system"] for cell in mine):
            line = [cell for cell in mine if cell["system"] == system]
            ours = system.startswith("slipstream")
            axes.plot(
                [cell["copies"] for cell in line],
                [cell["steps_per_second"] for cell in line],
                color=_COLOURS.get(system, plot_style.GREY),
                linewidth=1.8 if ours else 1.1,
                linestyle="-" if ours else "--",
                marker="o",
                markersize=3.5,
                label=system,
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sorted({cell["copies"] for cell in mine}))
        plot_style.count_axis(axes)
        plot_style.count_axis(axes, "y")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel(f"{kind}:\nsteps/s")
    plot_style.legend(panels[0], 2)
    panels[-1].set_xlabel("environments")
    return figure


def main(page: str, folder: str) -> None:
    """Rewrite docs/FOLDER/PAGE in place; pictures go into docs/figures.

    One of them is the chart of README.md.
    """
    path, files = Path(page), Path(folder)
    text = render(path.read_text(encoding="utf-8"), files)
    figures = path.parent.parent / "figures"
    text = illustrate(text, files, figures)
    path.write_text(text, encoding="utf-8")
    (figures / "comparison.svg").write_text(comparison(files), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
