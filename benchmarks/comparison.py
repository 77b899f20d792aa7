"""The chart of README.md: slipstream's speed beside other libraries', as SVG.

Each bar is a measured ratio of `benchmarks/results/*.json`. Rows differ in environment, network and
machine, so bars of different rows must not be divided by each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks import measurements

SB3, JAX = "Stable-Baselines3", "JAX, a compiled loop on each core"


@dataclass(frozen=True)
class Pair:
    """A measured case.

    Attributes:
        peer: library of the other side.
        file, case: its results file and row.
        task: what both sides do.
    """

    peer: str
    file: str
    case: str
    task: str


# Titles of rows and their measured pairs.
ROWS: tuple[tuple[str, tuple[Pair, ...]], ...] = (
    (
        "PPO, 64x64",
        (
            Pair(SB3, "train", "ppo_vs_sb3_tuned", "forex"),
            Pair(JAX, "loops", "ppo_vs_jax", "CartPole"),
        ),
    ),
    (
        "DQN, 64x64",
        (
            Pair(SB3, "agents", "dqn_vs_sb3", "CartPole"),
            Pair(JAX, "loops", "dqn_vs_jax", "CartPole"),
        ),
    ),
    (
        "SAC, 64x64",
        (
            Pair(SB3, "agents", "sac_small", "Pendulum"),
            Pair(JAX, "loops", "sac_vs_jax 64x64", "Pendulum"),
        ),
    ),
    (
        "SAC, 256x256",
        (
            Pair(SB3, "agents", "sac_vs_sb3", "Pendulum"),
            Pair(JAX, "loops", "sac_vs_jax 256x256", "Pendulum"),
        ),
    ),
    ("Study, 64x64", (Pair(SB3, "study", "fold_vs_sb3", "forex, with Optuna"),)),
)

_WIDTH, _TOP, _BAR, _GAP = 760, 84, 16, 18
_LEFT, _RIGHT = 128, 596  # ends of the axis
_LOW, _HIGH = 0.5, 64.0  # ratios at these ends
_TICKS = (0.5, 1, 2, 4, 8, 16, 32, 64)
_NOTES = (
    "Two CPU cores, equal work, medians; thin lines: slowest and fastest repetition; log axis.",
    "JAX trains one agent on each core, and their speeds are added. slipstream trains one agent.",
    "Study: a fold of a trial, forecast from shorter runs. No study was measured in JAX.",
    "Rows are separate measurements on different hosts: do not divide one bar by another.",
)
_COLORS = {SB3: "sb3", JAX: "jax"}
_STYLE = """
  .card { fill: #ffffff; stroke: #d9dce1; }
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
         fill: #222222; }
  .title { font-size: 16px; font-weight: 600; }
  .row { font-weight: 600; }
  .soft { fill: #5f666f; font-size: 12px; }
  .grid { stroke: #d9dce1; }
  .one { stroke: #222222; stroke-width: 1.5; }
  .range { stroke: #222222; stroke-opacity: 0.6; }
  .sb3 { fill: #0072b2; }
  .jax { fill: #e69f00; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #161b22; stroke: #30363d; }
    text { fill: #e6edf3; }
    .soft { fill: #9aa4af; }
    .grid { stroke: #30363d; }
    .one, .range { stroke: #e6edf3; }
    .sb3 { fill: #56b4e9; }
  }
"""


def comparison(results: Path) -> str:
    """Return the chart as SVG.

    Args:
        results: folder of the results files.

    Raises:
        ConfigError: a row of `ROWS` was not measured.
    """
    body, y = [], _TOP
    for title, pairs in ROWS:
        height = len(pairs) * (_BAR + 4)
        body.append(_text(16, y + height / 2 + 3, title, "row"))
        for pair in pairs:
            body += _bar(pair, y, results)
            y += _BAR + 4
        y += _GAP
    bottom = y - _GAP / 2
    head = [_text(16, 30, "Speed of slipstream relative to other libraries", "title")]
    for index, peer in enumerate(_COLORS):
        left = 16 + 190 * index
        kind = _COLORS[peer]
        head.append(f'<rect class="{kind}" x="{left}" y="44" width="12" height="12" rx="2"/>')
        head.append(_text(left + 18, 54, f"{peer} = 1"))
    for tick in _TICKS:
        x = _place(tick)
        kind = "one" if tick == 1 else "grid"
        head.append(f'<path class="{kind}" d="M{x:.1f} {_TOP - 8}V{bottom:.1f}"/>')
        head.append(_text(x, bottom + 16, f"{tick:g}x", "soft", "middle"))
    foot = [_text(16, bottom + 42 + 17 * k, line, "soft") for k, line in enumerate(_NOTES)]
    total = bottom + 42 + 17 * len(_NOTES)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {total:.0f}" '
            f'width="{_WIDTH}" height="{total:.0f}" role="img" '
            'aria-label="Speed of slipstream relative to Stable-Baselines3 and JAX">',
            f"<style>{_STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{total - 1:.0f}" '
            'rx="8"/>',
            *head,
            *body,
            *foot,
            "</svg>",
            "",
        ]
    )


def _bar(pair: Pair, y: float, results: Path) -> Sequence[str]:
    """Return the bar of a case, its range and its label."""
    _, row = measurements.find(results / f"{pair.file}.json", pair.case)
    ratio = row["ratio"]
    value, low, high = (_place(ratio[name]) for name in ("median", "min", "max"))
    one, middle = _place(1.0), y + _BAR / 2
    left, width = min(one, value), abs(value - one)
    number = f"{ratio['median']:.2g}" if ratio["median"] < 10 else f"{ratio['median']:.0f}"
    return (
        f'<rect class="{_COLORS[pair.peer]}" x="{left:.1f}" y="{y}" width="{width:.1f}" '
        f'height="{_BAR}" rx="2"/>',
        f'<path class="range" d="M{low:.1f} {middle}H{high:.1f}"/>',
        _text(max(one, value, high) + 8, y + _BAR - 4, f"{number}x  {pair.task}"),
    )


def _place(ratio: float) -> float:
    """Return the x coordinate of a ratio on the logarithmic axis."""
    share = math.log(ratio / _LOW) / math.log(_HIGH / _LOW)
    return _LEFT + share * (_RIGHT - _LEFT)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    names = f' class="{kind}"' if kind else ""
    place = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text{names} x="{x:.1f}" y="{y:.1f}"{place}>{escape(text)}</text>'
