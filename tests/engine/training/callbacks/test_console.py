"""Output of the terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from slipstream.training.callbacks import console
from slipstream.training.callbacks.events import (
    Checkpointed,
    Entered,
    Evaluated,
    Failed,
    Finished,
    Progress,
    Started,
    StepClock,
    Updated,
)
from slipstream.training.callbacks.progress_reporter import result_lines
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve

NOW = Progress(500_000, 210_000, 100, 800, 2.0, 3.0, 5.0, 12.0, 1.0)


def started(**changes):
    values = {"members": 1, "num_envs": 1024, "shards": 2, "backend": "compiled", "device": "cpu"}
    return Started(Progress(500_000), **{**values, **changes})


def play(events, *, terminal=False):
    text = io.StringIO()
    now = [0.0]
    shown = Console(file=text, force_terminal=terminal, width=120, color_system=None)
    callback = console.ConsoleCallback(shown, clock=lambda: now[0])
    for event in events:
        now[0] += 20.0
        callback(event)
    callback.close()
    return text.getvalue()


def updated(steps=210_000, score=(212.44,), eta=None):
    metrics = {"score": np.array(score)}
    return Updated(replace(NOW, steps=steps), tuple(range(len(score))), metrics, eta=eta)


EVERYTHING = [
    started(notes=("EURUSD has a hole of 56 bars.",)),
    updated(100_000),
    updated(200_000, eta=60.0),
    Entered(NOW, "validating"),
    Evaluated(NOW, "validation", (0,), np.array([0.0123]), best=(True,)),
    Checkpointed(NOW, Path("step-1")),
    Failed(NOW, 0, "its loss became NaN"),
    Finished(NOW, {}),
]


def test_plain_lines_where_nobody_can_redraw():
    text = play(EVERYTHING)
    assert "\x1b" not in text
    assert "Note: EURUSD has a hole of 56 bars." in text
    assert "Training 1 member, 500,000 steps, 2 shards, cpu" in text
    assert "Using Vectorized Environments: 1024 parallel envs (compiled)" in text
    shares = "time: env 17 %, policy 25 %, update 42 %, validate 8 %, other 8 %"
    line = "training 40 %, 200,000 of 500,000 steps  5 k steps/s  ETA 1:00  score 212.4  "
    assert line + shares in text
    assert "compiling 0 %, 0 of 500,000 steps\n" in text  # and no ETA before it can be known
    assert "ETA" not in text.partition("200,000 of")[0]
    assert "validating 42 %, 210,000 of 500,000 steps" in text
    assert "validation score 0.0123  new best" in text
    assert "Member 0 stopped: its loss became NaN." in text
    assert "210,000 steps in 0:12 (18 k steps/s" in text


def test_a_live_line_on_a_terminal():
    text = play(EVERYTHING, terminal=True)
    assert "\x1b" in text
    assert "score 212.4" in text


def test_plain_lines_are_rare_but_the_last_is_shown():
    text = io.StringIO()
    callback = console.ConsoleCallback(Console(file=text, width=120), clock=lambda: 0.0)
    for steps in (100, 200, 300, 500_000):
        callback(updated(steps))
    lines = text.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[-1].startswith("training 100 %")


def test_no_time_is_left_once_all_is_done():
    """An ETA at 100 % is of validations and tests; what ended has none."""
    done = replace(NOW, steps=NOW.budget)
    text = play([updated(done.steps, eta=6.0), Entered(done, "testing"), Finished(done, {})])
    lines = [line for line in text.splitlines() if " of 500,000 steps" in line]
    assert [line.partition(" ")[0] for line in lines] == ["training", "testing", "training"]
    assert ["ETA 0:06" in line for line in lines] == [True, True, False]
    assert "training 99 %" in play([updated(499_999)])


def test_members_show_mean_and_range():
    text = play([updated(1), updated(score=(1.0, 2.0, np.nan))])
    assert "score 1.5 (1 to 2)" in text


def test_terminal_escapes_in_names_are_shown_not_sent(capsys, tmp_path):
    note = "\x1b[31mEURUSD does not name its currencies.\nAnother line."
    text = io.StringIO()
    console.ConsoleCallback(Console(file=text, width=120, color_system=None)).log(note)
    Run(tmp_path, resolve("cartpole")).notify(note)
    for shown in (text.getvalue(), capsys.readouterr().err):
        assert shown == "\\x1b[31mEURUSD does not name its currencies.\nAnother line.\n"


def test_no_score_yet():
    assert "score" not in play([updated(score=(np.nan,))])


def test_pace_forgets_what_was_compiled_and_knows_nothing_too_early():
    pace, now = StepClock(), Progress(10_000)
    seen = []
    for steps, wall in [(100, 60.0), (200, 61.0), (300, 62.0), (400, 65.0)]:
        pace.add(replace(now, steps=steps, updates=steps, wall=wall, seconds_validate=0.0))
        seen.append(pace.seconds_per_step)
    assert seen == [None, 0.01, 0.01, 0.02]
    waiting = StepClock()
    for steps in (100, 200, 300):  # nothing is learned yet: an update takes far longer
        waiting.add(replace(now, steps=steps, wall=steps / 1_000))
    assert waiting.seconds_per_step is None
    for steps in range(1_000, 1_000_000, 1_000):
        pace.add(replace(now, steps=steps, updates=steps, wall=70 + steps / 500))
    assert abs(pace.seconds_per_step - 1 / 500) < 1e-9


def test_the_result_in_words():
    result = {
        "chosen_on": "validation",
        "score_is": "mean log return",
        "members": [
            {"member": 0, "best_score": 0.01, "test_score": -0.02, "failed": False},
            {"member": 1, "best_score": None, "test_score": None, "failed": True},
        ],
    }
    assert result_lines(result) == [
        "Best validation score (mean log return): 0.01",
        "On the test split those policies score -0.02",
        "Failed members: 1",
    ]
    assert result_lines({}) == []


def test_a_games_result_in_words():
    result = {"chosen_on": "train", "score_is": "mean episode return", "test_episodes": 100}
    one = {"member": 0, "best_score": 0.0, "test_score": -0.051, "test_error": 0.015}
    result["members"] = [{**one, "last_score": -0.2}]
    assert result_lines(result) == [
        "Best evaluation score (mean episode return): 0",
        "On 100 fresh episodes those policies score -0.051 (standard error 0.015)",
        "The last policies score -0.2 there",
    ]
