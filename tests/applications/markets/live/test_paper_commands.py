"""`slipstream paper start`, `status`, `report` and `stop` on one deployment."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from live_markets import Make, table, week, write

from slipstream.cli import main
from slipstream.markets.live.account_status import list_accounts
from slipstream.markets.live.deployment import KILL, Deployment
from slipstream.markets.live.paper_account import JOURNAL

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in an empty folder and return its output, or its error if `code` is not 0."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)

    def command(*words: str, code: int = 0) -> str:
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main(list(words))
        printed = capfd.readouterr()
        assert (left.value.code or 0) == code, printed
        return " ".join((printed.err if code == 2 else printed.out).split())

    return command


def test_an_account_is_started_listed_compared_and_stopped(
    make: Make, run: Run, tmp_path: Path
) -> None:
    assert "Nothing is deployed." in run("paper", "status")
    prices = write(tmp_path / "prices", {"EURUSD": table(week(420), 1.1, 0)})
    make("forex", prices, features=["log_return_1", "rsi_14"])
    assert run("paper", "status").endswith(f"new {Deployment.open('demo').path}")
    assert "has no decision yet" in run("paper", "report", "demo", code=2)
    for command in ("status", "report", "stop", "start"):
        assert "There is no deployment absent" in run("paper", command, "absent", code=2)
    assert "has no account yet" in run("paper", "start", "demo", code=2)
    assert "No such option: --flat" in run("paper", "start", "demo", "--flat", code=2)
    assert "No such option: --feed" in run("paper", "stop", "demo", "--feed", "x", code=2)

    begin = "2025-01-09T00:00"
    printed = run("paper", "start", "demo", "--feed", f"replay:{prices}", "--from", begin)
    assert "`slipstream paper report demo` compares" in printed
    (row,) = list_accounts()
    assert (row.name, row.version, row.state, row.reason) == ("demo", "1", "complete", "")
    assert row.progress.startswith("replay:") and row.progress.endswith(" decisions")
    assert row.equity.startswith("EURUSD ")
    status = run("paper", "status", "demo")
    assert status == run("status", "demo") and "Its feed has ended" in status
    assert "are bit-identical to `evaluate`" in run("paper", "report", "demo")

    journal = Deployment.open("demo").account(1) / JOURNAL
    (equity,) = write_equity(journal, "equity + 1")
    assert "First difference: " in run("paper", "report", "demo", code=1)
    assert "Bars or policy were modified" in run("paper", "start", "demo", code=2)
    assert list_accounts()[0].state == "failed"
    write_equity(journal, repr(equity))

    assert f"{KILL} is removed" in run("paper", "stop", "demo")
    assert list_accounts()[0].reason == "the kill switch is set (stop)"
    assert "demo is stopped by" in run("paper", "start", "demo", code=2)
    run("paper", "stop", "demo", "--flat")
    assert list_accounts()[0].reason == "the kill switch is set (flat)"


def write_equity(journal: Path, expression: str) -> tuple[float]:
    """Write the equity of one decision and return its previous value."""
    with closing(sqlite3.connect(journal)) as database, database:
        previous: tuple[float] = database.execute(
            "SELECT equity FROM decisions WHERE rowid = 3"
        ).fetchone()
        database.execute(f"UPDATE decisions SET equity = {expression} WHERE rowid = 3")
    return previous


def test_a_damaged_account_does_not_hide_the_others(make: Make, run: Run, tmp_path: Path) -> None:
    prices = write(tmp_path / "prices", {"EURUSD": table(week(420), 1.1, 0)})
    make("forex", prices, features=["log_return_1"])
    damaged = tmp_path / "deployments" / "broken"
    damaged.mkdir()
    (damaged / "current").write_text("many\n")
    rows = {row.name: row for row in list_accounts()}
    assert rows["demo"].state == "new" and rows["broken"].state == "unreadable"
    assert "must hold the number of a version" in rows["broken"].reason
    assert "broken" in run("paper", "status")
