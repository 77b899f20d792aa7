"""Folders that strangers wrote, or that change under a watcher: bounded, finite, said in words."""

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.ours.watched import add_trial, write_run, write_study_folder
from slipstream.core.errors import CheckpointError
from slipstream.core.storage.status_file import CURRENT, read_status
from slipstream.core.storage.updates import Updates, deltas
from slipstream.core.text import log_time
from slipstream.dashboard.pages import run_updates
from slipstream.dashboard.server import EventStream
from slipstream.markets.live.account_comparison import RERUN
from slipstream.markets.live.deployment import KILL, Deployment, read_kill_switch
from slipstream.markets.live.journal import Journal
from slipstream.markets.live.paper_account import JOURNAL
from slipstream.studies.record.ledger import Ledger, count_outcomes

ENDLESS = "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n) SELECT k{} FROM n"


def endless_link(path):
    path.symlink_to("/dev/zero")


def large(path):
    with path.open("wb") as file:
        file.truncate(1 << 30)  # sparse


def nowhere(path):
    path.symlink_to("/nowhere")


@pytest.fixture
def study(tmp_path):
    return write_study_folder(tmp_path / "shown" / "search", trials=6, under_way=1)


def spoil(path, *statements):
    with sqlite3.connect(path) as table:
        for one in statements:
            table.execute(one)
    table.close()


def view_of(name, width):
    """An endless view in place of a table of so many columns."""
    return f"DROP TABLE {name}", f"CREATE VIEW {name} AS " + ENDLESS.format(", k" * (width - 1))


@pytest.mark.parametrize("strange", [endless_link, os.mkfifo, large, nowhere])
def test_a_strange_switch_stops_and_a_strange_version_is_refused(tmp_path, strange):
    strange(tmp_path / KILL)
    assert read_kill_switch(tmp_path) == "stop"
    strange(tmp_path / CURRENT)
    if strange is nowhere:
        assert Deployment(tmp_path).current == 0
    else:
        with pytest.raises(CheckpointError, match="number of a version"):
            _ = Deployment(tmp_path).current


@pytest.mark.parametrize("strange", [endless_link, os.mkfifo, large])
def test_the_page_of_a_deployment_says_what_is_strange(serving, deployed, tmp_path, strange):
    live = deployed(tmp_path / "shown" / "live")
    (live / CURRENT).unlink()
    strange(live / KILL)
    strange(live / CURRENT)
    updates, _ = serving(live.parent).updates("deployment", live)
    assert updates["facts"][0]["killed"] == "stop"
    assert "number of a version" in updates["facts"][0]["unreadable"]


@pytest.mark.parametrize(
    "statements",
    [
        view_of("suggestions", 6),
        ("ALTER TABLE suggestions ADD COLUMN more AS (hex(zeroblob(100000000)))",),
        ("DROP TABLE decisions", "CREATE VIRTUAL TABLE decisions USING fts4(trial)"),
    ],
)
def test_rows_that_are_computed_are_refused(serving, study, statements):
    spoil(study / "ledger.db", *statements)
    with pytest.raises(CheckpointError, match="is computed"):
        Ledger(study / "ledger.db", read_only=True)
    dash, began = serving(study.parent), time.monotonic()
    updates, _ = dash.updates("study", study)
    assert "is computed" in updates["trials"][0]["unreadable"] and updates["members"]
    assert dash.get("/api/overview/all")["events"][0][1][0]["spark"] == []
    assert time.monotonic() - began < 5


def test_endless_outcomes_and_decisions_are_refused(deployed, study, tmp_path):
    spoil(study / "ledger.db", *view_of("outcomes", 16))
    assert count_outcomes(study / "ledger.db") == 0
    journal = deployed(tmp_path / "live") / "accounts" / "2" / JOURNAL
    spoil(journal, *view_of("decisions", 7))
    with pytest.raises(CheckpointError, match="is computed"):
        Journal(journal, read_only=True)


@pytest.mark.parametrize("name", ["_MAX_TRIALS", "_MAX_STAGES"])
def test_a_ledger_that_is_too_long_is_not_read(serving, study, monkeypatch, name):
    monkeypatch.setattr(f"slipstream.dashboard.overview.{name}", 0)
    dash = serving(study.parent)
    updates, _ = dash.updates("study", study)
    assert "at most" in updates["trials"][0]["unreadable"]
    assert dash.get("/api/overview/all")["events"][0][1][0]["spark"] == []


def test_a_look_leaves_nothing_in_a_folder_and_needs_no_right_to_write(serving, study):
    before, _ = sorted(one.name for one in study.iterdir()), os.utime(study, (1, 1))
    dash = serving(study.parent)
    assert len(dash.updates("study", study)[0]["trials"][0]["rows"]) == 7
    row = dash.get("/api/overview/all")["events"][0][1][0]
    assert row["spark"] and row["since"] == log_time(read_status(study).started)
    assert sorted(one.name for one in study.iterdir()) == before and study.stat().st_mtime == 1
    study.chmod(0o500)
    words = "from slipstream.studies.record.ledger import *; import sys\n"
    words += "print(*Ledger(Path(sys.argv[1]), read_only=True).row_counts())"
    rights = [] if os.getuid() else ["setpriv", "--bounding-set=-dac_override"]  # root writes all
    if rights and (not shutil.which("setpriv") or subprocess.run([*rights, "true"]).returncode):
        pytest.skip("root cannot give up its rights here: setpriv is missing or refused")
    command = [*rights, sys.executable, "-c", words, str(study / "ledger.db")]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "7 6 0\n"


@pytest.mark.parametrize("damaged", [False, True])
def test_who_writes_during_a_look_makes_it_look_again(serving, study, monkeypatch, damaged):
    own = Ledger.trials

    def trials(ledger):
        monkeypatch.setattr(Ledger, "trials", own)
        found = own(ledger)
        add_trial(study, 9)  # and the closed file has other pages than were read
        if damaged:  # as half of each may be
            raise CheckpointError("Restore it from a backup.")
        return found

    monkeypatch.setattr(Ledger, "trials", trials)
    dash = serving(study.parent)
    updates, cursor = dash.updates("study", study)
    assert "trials" not in updates and updates["status"]
    [told] = dash.updates("study", study, cursor)[0]["trials"]
    assert [one["number"] for one in told["rows"]][-1] == 9


def test_a_value_that_is_too_large_is_not_read(serving, study, monkeypatch):
    monkeypatch.setattr("slipstream.core.storage.database._MOST_BYTES", 1 << 16)
    spoil(
        study / "ledger.db", "UPDATE suggestions SET params = hex(zeroblob(40000)) WHERE trial = 0"
    )
    updates, _ = serving(study.parent).updates("study", study)
    assert "too big" in updates["trials"][0]["unreadable"] and updates["members"]


def test_what_sqlite_opens_beside_a_ledger_is_a_file(study):
    Path(f"{study / 'ledger.db'}-journal").unlink(missing_ok=True)
    os.mkfifo(f"{study / 'ledger.db'}-journal")  # SQLite would wait for a writer
    with pytest.raises(CheckpointError, match="named pipe"):
        Ledger(study / "ledger.db", read_only=True)


def test_numbers_that_are_none_are_told_as_none(serving, deployed, study, tmp_path):
    run = write_run(tmp_path / "shown" / "own", members=1, iterations=3, state="complete")
    (run / "result.json").write_text('{"score_is": NaN, "members": [Infinity]}')
    candidate = {"trial": 0, "lcb": float("nan"), "value": 1.0, "seeds": [float("-inf")]}
    counts = dict.fromkeys(("started", "complete", "pruned", "failed"), 1)
    told = {
        **{"study": "search", "market": False, "objective": "sharpe", "folds": 6},
        **{"trials": counts, "rungs": [], "seconds": {"workers": {}}, "steps": {}},
        **{"confirmation": {"candidates": [candidate], "seeds": 1}, "sentences": []},
    }
    (study / "result.json").write_text(json.dumps(told))
    live = deployed(tmp_path / "shown" / "live")
    rerun = live / "accounts" / "2" / RERUN
    rerun.write_text(rerun.read_text().replace('"costs": 12.5', '"costs": Infinity'))
    dash = serving(run.parent)
    assert "members" not in dash.updates("run", run)[0]["facts"][0]
    updates, _ = dash.updates("deployment", live)
    assert updates["account"][0]["rerun"]["passes"][0]["costs"] is None
    updates, _ = dash.updates("study", study)
    [candidate] = updates["facts"][0]["result"]["candidates"]
    assert candidate["lcb"] is None and candidate["seeds"] == [None]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE suggestions SET at = 'yesterday'",
        "UPDATE suggestions SET params = '[1]'",
        "UPDATE decisions SET folds = '[3]'",
        "UPDATE decisions SET score = 'high', kind = 'complete', folds = '[]'",
        "UPDATE suggestions SET params = x'ff00'",
    ],
)
def test_wrong_types_in_a_ledger_are_said(serving, study, statement):
    spoil(study / "ledger.db", statement)
    dash = serving(study.parent)
    updates, _ = dash.updates("study", study)
    assert "cannot be read" in updates["trials"][0]["unreadable"] and updates["status"]
    rows = dash.get("/api/overview/all")["events"][0][1]
    assert rows[0]["name"] == "search"


def test_strange_numbers_of_a_process_spoil_no_other_row(serving, study):
    write_run(study.parent / "odd", 1, 3, pid=10**39, host="elsewhere", eta=float("nan"))
    rows = serving(study.parent).get("/api/overview/all")["events"][0][1]
    assert {one["name"] for one in rows} == {"odd", "search"}


@pytest.mark.parametrize(
    "cursor", ["machine:1.2.3", "machine:nan", "rows:%0a", ":::", ",;,", "%ff"]
)
def test_a_malformed_place_is_the_beginning(serving, study, cursor):
    dash = serving(study.parent)
    updates = dash.get(f"/api/overview/all?from={cursor}")["events"]
    assert {"rows", "machine"} <= {name for name, _ in updates}
    told, _ = dash.updates("study", study, cursor.replace("machine", "trials"))
    assert len(told["trials"][0]["rows"]) == 7
    link, events = dash.stream("study", study, last_id="trials:1_2_x,members:9-9")
    assert "trials" in dict(next(events)[1])
    link.close()


def test_a_folder_that_vanishes_is_said_to_be_gone(serving, tmp_path):
    run = write_run(tmp_path / "shown" / "own", members=1, iterations=3)
    dash = serving(run.parent)
    _, cursor = dash.updates("run", run)
    link, events = dash.stream("run", run, cursor)
    run.rename(tmp_path / "elsewhere")
    for _, told in events:
        [[name, facts]] = told  # curves stay
        assert name == "status"
        if facts["lines"][0].startswith(f"{run} is gone"):
            break  # on a busy machine the run's age may be told before
    else:
        raise AssertionError("the stream ended before")
    link.close()


def test_a_folder_that_vanishes_while_it_is_read_keeps_its_curves(tmp_path):
    run = write_run(tmp_path / "own", members=1, iterations=3)
    first = deltas(run_updates, run, "")

    def look(folder, cursor):
        folder.rename(tmp_path / "elsewhere")
        return run_updates(folder, cursor)

    second = deltas(look, run, first.cursor)
    [(name, facts)] = second.events
    assert name == "status" and facts["lines"][0].startswith(f"{run} is gone")
    assert not deltas(run_updates, run, second.cursor).events


def test_a_look_that_hangs_is_not_looked_at_again():
    go_on, looks = threading.Event(), []

    def look(cursor):
        looks.append(cursor)
        go_on.wait(20)
        updates = Updates.unchanged(cursor)
        updates.add_snapshot("status", {"state": "running"})
        return updates

    async def main():
        now = [0.0]
        feed = EventStream(clock=lambda: now[0])
        first = asyncio.create_task(feed.get_update("page", "", look))
        others = []
        for _ in range(5):
            await asyncio.sleep(0.01)
            now[0] += 1.0
            others.append(asyncio.create_task(feed.get_update("page", "", look)))
        await asyncio.sleep(0.01)
        go_on.set()
        return {one.text for one in await asyncio.gather(first, *others)}

    assert len(asyncio.run(main())) == 1 and looks == [""]
