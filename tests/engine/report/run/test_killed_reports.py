"""Killed after the result was written, before the report was: `resume` writes what is missing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import study_world

import slipstream
from slipstream.core.storage import logbook
from slipstream.core.storage.status_file import read_events, read_status
from slipstream.report import page, plot_style, run_page
from slipstream.studies import start
from slipstream.studies.record.folder import StudyFolder
from slipstream.training.callbacks.tensorboard import TensorBoardWriter
from slipstream.training.runs import run as run_file
from slipstream.training.runs.run import Run

SETTINGS = {
    "num_envs": 8,
    "total_timesteps": 1_024,
    "overrides": {"agent.n_steps": 32, "evaluation.episodes": 5},
}


def killed_before(where, name, matches=lambda *arguments: True):
    """From now on this process is killed where it would call it."""
    wrapped = getattr(where, name)

    def call(*arguments, **named):
        if matches(*arguments):
            os.kill(os.getpid(), signal.SIGKILL)
        return wrapped(*arguments, **named)

    setattr(where, name, call)


def is_result_file(path, *_):
    return Path(path).name == "result.json"


def killed_after_the_result():
    write = run_file.write_sealed

    def written(path, values):
        write(path, values)
        if is_result_file(path):
            os.kill(os.getpid(), signal.SIGKILL)

    run_file.write_sealed = written


STEPS = {
    "with the result": killed_after_the_result,
    "before the log's end": lambda: killed_before(logbook.Logbook, "__exit__"),
    "before it is evaluated": lambda: killed_before(run_page, "evaluate_run"),
    "before a picture": lambda: killed_before(page, "write_bytes"),
    "before the page": lambda: killed_before(page, "write_text"),
}


def in_a_killed_process(prepare, work):
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            prepare()
            work()
        finally:
            os._exit(1)  # it was not killed
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    monkeypatch.setattr(plot_style, "DPI", 40)


def curve(run):
    """Bytes of all points that TensorBoard shows."""
    return sum(file.stat().st_size for file in run.path.glob("tensorboard/*/events*"))


@pytest.mark.parametrize(
    "step",
    [pytest.param(s, marks=[] if s == "before the page" else pytest.mark.slow) for s in STEPS],
)
def test_a_run_gets_its_report(step, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(TensorBoardWriter, "_flush_sometimes", lambda self: None)
    whole = slipstream.train("cartpole", out=tmp_path / "whole", report=False, **SETTINGS)
    path = tmp_path / "run"
    in_a_killed_process(STEPS[step], lambda: slipstream.train("cartpole", out=path, **SETTINGS))
    run = Run.open(path)
    assert run.result is not None and not run.mark_reported
    assert curve(run) == pytest.approx(curve(whole), rel=0.01), "no point was lost"
    reads, before = run.test_reads, run.result
    assert slipstream.resume(path, report=False).mark_reported is False
    resumed = slipstream.resume(path)
    assert "its report is missing" in capsys.readouterr().err
    assert resumed.mark_reported and (path / "figures" / "learning_curve.png").is_file()
    assert (resumed.result, resumed.test_reads) == (before, reads)
    assert read_status(path).liveness() == "complete"
    assert read_events(path)[-1]["event"] == "ended"
    written = (path / "report.html").stat().st_mtime_ns
    slipstream.resume(path)  # now it is left as it is
    assert (path / "report.html").stat().st_mtime_ns == written


def test_a_report_of_an_unfinished_run_is_not_taken_for_its_own(tmp_path):
    run = slipstream.train("cartpole", out=tmp_path / "run", report=False, **SETTINGS)
    (run.path / "report.html").write_text("of a time before the end")
    os.utime(run.path / "report.html", (1.0, 1.0))
    assert not run.mark_reported
    assert slipstream.resume(run).mark_reported


def test_a_study_gets_its_page(tmp_path):
    folder = study_world.run_study(tmp_path / "one", trials=8, market=None)
    (folder.path / "status.json").unlink()  # killed with the result: nobody wrote the end
    assert not folder.has_report
    told = []
    again = start.resume(
        str(folder.path), start.Resources(), notify=told.append, report=slipstream.report_study
    )
    assert "its page is missing" in told[0] and told[-1].startswith("Report: ")
    assert again.has_report and read_status(folder.path).liveness() == "complete"
    told.clear()
    start.resume(
        str(folder.path), start.Resources(), notify=told.append, report=slipstream.report_study
    )
    assert "is complete; see" in told[0] and len(told) == 1
    assert isinstance(again, StudyFolder)
