"""What a terminal shows of a study: counts, and lines that fit; and what looking costs."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console

from slipstream.studies.console import StudyConsole, counts, folded, standing_parts
from slipstream.studies.record.export import _guarded
from slipstream.studies.standing import Standing

BUSY = Standing(
    phase="search",
    trials=500,
    complete=180,
    pruned=238,
    failed=2,
    running=16,
    inactive=7,
    trials_per_hour=1_234.5,
    steps_per_second=604_000.0,
    eta=754.0,
    best=1.234,
    best_trial=145,
    best_low=-0.5,
    best_high=2.31,
    shares={"env": 0.2, "policy": 0.2, "update": 0.5, "evaluate": 0.05, "overhead": 0.05},
    machine={"cpu": 198.0, "memory": 1_300_000_000},
)


def test_inactive_trials_are_counted():
    assert counts(BUSY) == (
        "search 420/500: 180 done (7 inactive), 238 pruned, 2 failed, 16 running"
    )


@pytest.mark.parametrize("width", [80, 110, 200])
def test_lines_fit_the_terminal_and_lose_nothing(width):
    parts = standing_parts(BUSY)
    lines = folded(parts, width)
    assert all(len(line) <= width for line in lines)
    assert "  ".join(lines) == "  ".join(parts)
    assert len(lines) <= (4 if width == 80 else 3)


def test_the_live_lines_are_whole_at_110_columns():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=110, color_system=None)
    shown = StudyConsole(console)
    shown.show(BUSY)
    shown.close()
    text = out.getvalue()
    assert "memory 1.2 GiB" in text and "\u2026" not in text


def test_looking_at_a_study_loads_no_library_for_training():
    code = (
        "import sys, slipstream.studies.status as s;"
        "print([m for m in ('torch', 'numba', 'optuna', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1"])
def test_text_is_never_a_formula(text):
    assert _guarded(text) == f"'{text}"


@pytest.mark.parametrize("value", [-0.5, -3, True, None, "plain", "a=b", ""])
def test_numbers_and_plain_text_stay(value):
    assert _guarded(value) == value
