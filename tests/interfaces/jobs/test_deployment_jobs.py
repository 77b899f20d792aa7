"""Commands that work on a deployment run in the background and in the queue."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from live_markets import Make, table, week, write

from slipstream.cli import main
from slipstream.core.storage.signals import request_stop
from slipstream.jobs.queue import user_queue
from slipstream.markets.live.auto_promotion import UNCHANGED
from slipstream.markets.live.deployment import Deployment

Told = Callable[..., str]


@pytest.fixture
def told(
    make: Make,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Told:
    """Commands beside a deployment `demo`; what they print."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    prices = write(tmp_path / "prices", {"EURUSD": table(week(420), 1.1, 0)})
    make("forex", prices, features=["log_return_1", "rsi_14"])

    def run(*words: str, code: int = 0) -> str:
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main(list(words))
        said = capfd.readouterr()
        assert (left.value.code or 0) == code, said
        return said.err if code else said.out

    return run


def test_the_queue_leads_an_account_and_watches_studies(told: Told, tmp_path: Path) -> None:
    feed = f"--feed=replay:{tmp_path / 'prices'}"
    added = told("jobs", "add", "--", "paper", "start", "demo", feed, "--max-gap", "1000000")
    assert str(Deployment.open("demo").path) in added
    told("jobs", "add", "--", "deploy", "--watch", "night*", "--name", "demo", "--run-once")
    told("jobs", "run", "--until-idle")
    with user_queue() as queue:
        assert [(job.kind, job.final_state) for job in queue.jobs()] == [
            ("deployment", "complete")
        ] * 2
    found = Deployment.open("demo")
    assert "decisions" in told("status", "demo")
    assert [line["event"] for line in found.audit()] == ["deploy", UNCHANGED]
    assert "Nothing" not in told("jobs", "--all")


@pytest.mark.parametrize(
    "words",
    [
        ["paper", "report", "demo"],
        ["paper", "demo"],
        ["deploy", "first", "--name", "demo"],
        ["rollback", "demo"],
    ],
)
def test_what_is_no_job_is_refused(told: Told, words: list[str]) -> None:
    assert "jobs add --" in told("jobs", "add", "--", *words, code=2)


def test_studies_are_watched_in_the_background(told: Told) -> None:
    told("deploy", "first", "--name", "demo", "--background", code=2)
    said = told("deploy", "--watch", "night*", "--name", "demo", "--background")
    folder = Deployment.open("demo").path / "watch"
    assert f"slipstream stop {folder}" in said
    assert "watches night*, 1 look  (process" in told("status", str(folder))
    assert "no study matches night*" in (folder / "log.txt").read_text()
    told("deploy", "--watch", "night*", "--name", "demo", "--run-once", code=2)  # another one does
    command = "slipstream deploy --name demo --watch 'night*'"
    assert f"after the current check. Resume with: {command}\n" in told("stop", str(folder))
    deadline = time.monotonic() + 30
    while "No process works on it" not in (status := told("status", str(folder))):
        assert time.monotonic() < deadline, status
        time.sleep(0.2)
    assert status.startswith(f"Watch for new studies {folder}\n") and f"`{command}`" in status
    request_stop(folder)  # its process was killed before it noticed
    told(*shlex.split(command)[1:], "--run-once")
    status = told("status", str(folder))
    assert f"It has looked once; resume with `{command}`." in status and "1 look" in status
