"""What the terminal shows."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from slipstream.training.listeners import console
from slipstream.training.listeners.events import (
    Checkpointed,
    Evaluated,
    Failed,
    Finished,
    Started,
    Updated,
)
from slipstream.training.listeners.progress import Progress
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve

NOW = Progress(500_000, 210_000, 100, 800, 2.0, 3.0, 5.0, 12.0)


def started(**changes):
    values = {"members": 1, "num_envs": 1024, "shards": 2, "backend": "compiled", "device": "cpu"}
    return Started(NOW, **{**values, **changes})


def play(events, *, terminal=False):
    text = io.StringIO()
    ticks = iter(range(0, 1_000, 20))
    shown = Console(file=text, force_terminal=terminal, width=120, color_system=None)
    listener = console.ConsoleListener(shown, clock=lambda: float(next(ticks)))
    for event in events:
        listener(event)
    listener.close()
    return text.getvalue()


def updated(steps=210_000, score=(212.44,)):
    from dataclasses import replace

    return Updated(replace(NOW, steps=steps), tuple(range(len(score))), {"score": np.array(score)})


EVERYTHING = [
    started(notes=("EURUSD has a hole of 56 bars.",)),
    updated(100_000),
    updated(200_000),
    Evaluated(NOW, "validation", (0,), np.array([0.0123]), best=(True,)),
    Checkpointed(NOW, None),
    Failed(NOW, 0, "its loss became NaN"),
    Finished(NOW, {}),
]


def test_plain_lines_where_nobody_can_redraw():
    text = play(EVERYTHING)
    assert "\x1b" not in text
    assert "Note: EURUSD has a hole of 56 bars." in text
    assert "Training 1 member, 1,024 compiled environments, 500,000 steps, 2 shards, cpu" in text
    assert "40 %  200,000 steps  5 k steps/s  env 20 policy 30 update 50 %  score 212.4" in text
    assert "ETA 1:00" in text
    assert "validation score 0.0123  best" in text
    assert "Member 0 stopped: its loss became NaN." in text
    assert "210,000 steps in 0:12 (18 k steps/s" in text


def test_one_environment_is_not_many():
    assert "1 compiled environment, " in play([started(num_envs=1)])


def test_a_live_line_on_a_terminal():
    text = play(EVERYTHING, terminal=True)
    assert "\x1b" in text
    assert "score 212.4" in text


def test_plain_lines_are_rare_but_the_last_is_shown():
    text = io.StringIO()
    listener = console.ConsoleListener(Console(file=text, width=120), clock=lambda: 0.0)
    for steps in (100, 200, 300, 500_000):
        listener(updated(steps))
    lines = text.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[-1].startswith("100 %")


def test_members_show_mean_and_range():
    line = console.progress_line(updated(score=(1.0, 2.0, np.nan)), 3, 1e6)
    assert "score 1.5 (1 to 2)" in line
    assert "1.00 M steps/s" in line


def test_terminal_escapes_in_names_are_shown_not_sent(capsys, tmp_path):
    note = "\x1b[31mEURUSD does not name its currencies.\nAnother line."
    text = io.StringIO()
    console.ConsoleListener(Console(file=text, width=120, color_system=None)).say(note)
    Run(tmp_path, resolve("cartpole")).say(note)
    for shown in (text.getvalue(), capsys.readouterr().err):
        assert shown == "\\x1b[31mEURUSD does not name its currencies.\nAnother line.\n"


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (3_723, "1:02:03"), (59.6, "1:00")])
def test_clock(seconds, text):
    assert console.clock(seconds) == text


def test_no_score_yet():
    assert console.spread([np.nan]) == "-"
    assert "score -" in console.progress_line(updated(score=(np.nan,)), 1, 10.0)


def test_the_result_in_words():
    result = {
        "chosen_on": "validation",
        "score_is": "mean log return",
        "members": [
            {"member": 0, "best_score": 0.01, "test_score": -0.02, "failed": False},
            {"member": 1, "best_score": None, "test_score": None, "failed": True},
        ],
    }
    assert console.result_lines(result) == [
        "Best validation score (mean log return): 0.01",
        "On the test split those policies score -0.02",
        "Failed members: 1",
    ]
    assert console.result_lines({}) == []


def test_a_games_result_in_words():
    result = {"chosen_on": "train", "score_is": "mean episode return", "test_episodes": 100}
    one = {"member": 0, "best_score": 0.0, "test_score": -0.051, "test_error": 0.015}
    result["members"] = [{**one, "last_score": -0.2}]
    assert console.result_lines(result) == [
        "Best evaluation score (mean episode return): 0",
        "On 100 fresh episodes those policies score -0.051 (standard error 0.015)",
        "The last policies score -0.2 there",
    ]
