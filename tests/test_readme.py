"""The figures of README.md are those of benchmarks/results/*.json, as far as their digits go."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import measurements

ROOT = Path(__file__).parents[1]

# Row of the table -> file and case.
ROWS = {
    "stepping forex": ("env", "forex_vs_sb3"),
    "PPO on forex": ("train", "ppo_vs_sb3_tuned"),
    "PPO on CartPole": ("loops", "ppo_vs_jax"),
    "one fold of one study trial": ("study", "fold_vs_sb3"),
}
UNITS = {"k": 1e3, "M": 1e6, "min": 60.0}


def section(name):
    """Return the text of a section of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.split(f"## {name}\n")[1].split("\n## ")[0]


def cells():
    """Return the rows of the benchmark table, each a list of its cells."""
    lines = [line for line in section("Benchmarks").splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def result(file, case):
    """The machine's processor and the row of a case."""
    measured, row = measurements.find(ROOT / f"benchmarks/results/{file}.json", case)
    return measured["machine"]["processor"], row


def as_written(text, value):
    """`value` with the digits and the unit that the first number of `text` has."""
    number, unit = re.match(r"([\d.,]+) ?(k|M|min|)\b", text).groups()
    decimals = len(number.partition(".")[2])
    return f"{value / UNITS.get(unit, 1.0):.{decimals}f}", number


@pytest.mark.parametrize("row", cells(), ids=lambda row: row[0])
def test_figures_are_measured(row):
    what, ours, peer, ratio = row
    (place,) = (ROWS[name] for name in ROWS if what.startswith(name))
    processor, found = result(*place)
    pairs = [(ours, found["ours"]), (peer, found["peer"])]
    pairs.append((ratio.removesuffix("x"), (found["ratio"] or {}).get("median")))
    for text, value in pairs:
        if text:
            expected, written = as_written(text, value)
            assert written == expected, f"{what}: {text}"
    assert "EPYC" in processor and "AMD EPYC" in section("Benchmarks")


def test_all_are_there():
    assert len(cells()) == len(ROWS)


@pytest.mark.parametrize("case", ["dqn_vs_jax", "sac_vs_jax 64x64"])
def test_where_a_peer_is_faster_is_written(case):
    ratio = result("loops", case)[1]["ratio"]["median"]
    assert ratio < 1 and f"{ratio:.2f}" in section("Limitations")
