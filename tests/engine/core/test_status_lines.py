"""What people read of a status: the same lines of runs and studies, that fit and send nothing."""

from __future__ import annotations

import io
import json
import platform
from dataclasses import replace

import pytest
from rich.console import Console

from slipstream.core.errors import CheckpointError
from slipstream.core.storage.status_file import (
    STATUS,
    Status,
    event_line,
    folder_status_lines,
    progress_parts,
    read_status,
    run_lines,
    wrap_parts,
)
from slipstream.core.text import duration, mean_and_range
from slipstream.training.callbacks.console import ConsoleCallback


def progress_line(status):
    return "  ".join(progress_parts(status))


NODE = {"node": "big", "slots": 4, "busy": 3, "answers": 120, "losses": 1}
BUSY = Status(
    "study",
    phase="search",
    completed=420,
    total=500,
    unit="trials",
    counts={"complete": 180, "pruned": 238, "failed": 2, "inactive": 7},
    running=[{"trial": number} for number in range(420, 436)],
    trials_per_hour=1_234.5,
    rate=604_000.0,
    eta=754.0,
    best={"score": 1.234, "trial": 145, "low": -0.5, "high": 2.31},
    phases={"env": 20.0, "policy": 20.0, "update": 50.0, "evaluate": 5.0, "overhead": 5.0},
    machine={"cpu": 198.0, "memory": 1_300_000_000},
)


def test_everything_of_a_search_in_one_line():
    assert progress_line(BUSY) == (
        "search 84 %, 420 of 500 trials: 180 complete (7 inactive), 238 pruned, 2 failed, "
        "16 running  604 k steps/s  1 k trials/h  ETA 12:34  best 1.234 (trial 145, -0.5 to 2.31)"
        "  time: env 20 %, policy 20 %, update 50 %, evaluate 5 %, overhead 5 %  CPU 198 %  "
        "memory 1.2 GiB  no GPU"
    )


def test_a_study_keeps_its_counts_and_its_best_after_the_search():
    line = progress_line(replace(BUSY, phase="confirmation", completed=3, total=20, unit="members"))
    assert line.startswith(
        "confirmation 15 %, 3 of 20 members  trials: 180 complete (7 inactive), 238 pruned, "
        "2 failed  604 k steps/s  ETA 12:34  best 1.234 (trial 145"
    )


@pytest.mark.parametrize("width", [80, 110, 200])
def test_lines_fit_the_terminal_and_lose_nothing(width):
    parts = progress_parts(BUSY)
    lines = wrap_parts(parts, width)
    assert all(len(line) <= max(width, len(parts[0])) for line in lines)
    assert "  ".join(lines) == progress_line(BUSY)
    assert len(lines) <= (4 if width == 80 else 3)


def test_the_live_lines_are_whole_at_110_columns():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=110, color_system=None)
    shown = ConsoleCallback(console)
    shown.show(BUSY)
    shown.close()
    assert "memory 1.2 GiB  no GPU" in out.getvalue() and "\u2026" not in out.getvalue()


def test_nodes_and_members_under_way_have_lines(tmp_path):
    running = [{"trial": 7, "fold": 2, "step": 40_000, "score": 0.5, "time": 1.8e9}, {"trial": 8}]
    status = replace(BUSY, host="elsewhere", nodes=[NODE], running=running, updated=2e9)
    lines = folder_status_lines("Study x", tmp_path, "slipstream resume x", status)
    assert "  trial 7, fold 2, step 40,000, score 0.5" in lines
    assert "  big: 3 of 4 slots busy, 120 segments, 1 loss" in lines
    assert not any("trial 8" in line for line in lines)


def test_a_status_is_json_and_comes_back(tmp_path):
    (tmp_path / STATUS).write_text(json.dumps(BUSY.as_dict()))
    assert progress_line(read_status(tmp_path)) == progress_line(BUSY)


@pytest.mark.parametrize(
    "change",
    [
        {"scores": {"score": "x"}},
        {"scores": 3},
        {"counts": {"complete": "many"}},
        {"phases": {"env": None}},
        {"machine": {"cpu": "all"}},
        {"best": {"score": []}},
        {"running": [3]},
        {"nodes": [{}]},
        {"notes": "x"},
    ],
)
def test_what_a_status_cannot_be_is_refused_in_words(tmp_path, change):
    (tmp_path / STATUS).write_text(json.dumps({**BUSY.as_dict(), **change}))
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_status(tmp_path)


def test_no_line_sends_a_terminal_escapes_of_a_stranger(tmp_path):
    evil = "\x1b]0;owned\x07\x1b[2J"
    running = Status(
        "run",
        phase=evil,
        host=evil,
        total=1,
        updated=2e9,
        scores={evil: (1.0, 1.0, 1.0)},
        phases={evil: 1.0},
        nodes=[{**NODE, "node": evil}],
        unit=evil,
    )
    failed = Status("run", state="failed", reason=evil)
    event = {"at": 1.0, "event": evil, evil: evil, "list": [evil]}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    for status in (running, failed):
        (tmp_path / STATUS).write_text(json.dumps(status.as_dict()))
        lines = run_lines(tmp_path)
        assert "\\x1b]0;owned" in " ".join(lines)
        assert all(line.isprintable() for line in [*lines, event_line(event)])


@pytest.mark.parametrize("at", [1e300, float("nan"), -1e18])
def test_numbers_that_no_clock_knows_are_no_obstacle(at):
    assert event_line({"at": at, "event": "x"}).endswith("  x")
    assert "ETA ?" in progress_line(replace(BUSY, eta=float("inf")))


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (3_723, "1:02:03"), (59.6, "1:00")])
def test_clock(seconds, text):
    assert duration(seconds) == text


def test_a_spread_before_there_is_a_value():
    assert mean_and_range([float("nan")]) == "-"
    assert mean_and_range([1.0, 2.0, float("nan")]) == "1.5 (1 to 2)"


@pytest.mark.parametrize(
    "change",
    [
        {"pid": -1, "host": platform.node()},
        *({name: 10**400} for name in ("completed", "rate", "eta")),
        {"best": {"score": 10**400}},
        {"scores": {"score": [10**400]}},
        {"machine": {"cpu": 10**400}},
    ],
)
def test_numbers_that_nobody_writes_are_no_traceback(tmp_path, change):
    (tmp_path / STATUS).write_text(json.dumps({**BUSY.as_dict(), **change}))
    try:
        assert "ended unexpectedly" in " ".join(run_lines(tmp_path))
    except CheckpointError as error:
        assert "is too large" in str(error)
