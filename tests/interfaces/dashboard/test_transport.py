"""Appended lines arrive once, after any side's loss of connection and any delay."""

import asyncio
import os
import threading
import time
import tracemalloc

import pytest

from benchmarks.ours.watched import (
    add_rows,
    add_trial,
    append_members,
    rows_of,
    write_run,
    write_status,
    write_study_folder,
)
from slipstream.core.storage.status_file import Status
from slipstream.core.storage.updates import Updates
from slipstream.dashboard.overview import MachineHistory, folder_id
from slipstream.dashboard.server import EventStream
from slipstream.jobs.queue import FAILED, JobQueue


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "shown" / "own", members=2, iterations=20)


def rows_in(events):
    return [row for name, facts in events if name == "metrics" for row in facts["rows"]]


def test_a_line_that_is_appended_appears(serving, run):
    dash = serving(run.parent)
    _, place = dash.updates("run", run)
    link, events = dash.stream("run", run, place)
    add_rows(run, rows_of(2, 21, 22))
    began = time.monotonic()
    _, told = next(events)
    assert [row[2] for row in rows_in(told)] == [21.0, 21.0]
    assert time.monotonic() - began < 10
    link.close()


def test_who_reconnects_has_no_gap_and_nothing_twice(serving, run):
    dash = serving(run.parent)
    updates, place = dash.updates("run", run)
    seen = [tuple(row[:3]) for row in updates["metrics"][0]["rows"]]
    last = ""
    for k in range(3):  # connected, cut, written meanwhile, connected with the last id
        link, events = dash.stream("run", run, place, last)
        first = 21 + 10 * k
        add_rows(run, rows_of(2, first, first + 5))
        while True:
            last, told = next(events)
            seen += [tuple(row[:3]) for row in rows_in(told)]
            if seen[-1][2] == first + 4:
                break
        link.close()
        add_rows(run, rows_of(2, first + 5, first + 10))
    updates, _ = dash.updates("run", run, last)
    seen += [tuple(row[:3]) for row in updates["metrics"][0]["rows"]]
    wanted = {(float(m), 2_048.0 * i, float(i)) for i in range(1, 51) for m in range(2)}
    assert len(seen) == len(set(seen)) and set(seen) == wanted


def test_a_table_that_shrank_or_became_another_one_begins_anew(serving, run):
    dash = serving(run.parent)
    _, place = dash.updates("run", run)
    path = run / "metrics.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:11]))  # the same file, shorter
    updates, place = dash.updates("run", run, place)
    assert {"part": "metrics"} in updates["reset"] and len(updates["metrics"][0]["rows"]) == 10
    other = path.with_name("other")
    other.write_text("".join(lines[:1] + lines[3:30]))  # another one, longer
    os.replace(other, path)
    updates, place = dash.updates("run", run, place)
    assert {"part": "metrics"} in updates["reset"] and len(updates["metrics"][0]["rows"]) == 27
    with path.open("r+") as file:  # the same file and longer, with another past
        file.write("".join(lines[:1] + lines[5:]) + "".join(lines[5:12]))
    updates, _ = dash.updates("run", run, place)
    assert {"part": "metrics"} in updates["reset"]


def test_trials_and_members_arrive_as_they_come(serving, tmp_path):
    study = write_study_folder(tmp_path / "shown" / "search", trials=8, under_way=1)
    dash = serving(study.parent)
    updates, place = dash.updates("study", study)
    assert [one["number"] for one in updates["trials"][0]["rows"]] == list(range(9))
    assert {row[1] for row in updates["members"][0]} == {8}
    assert dash.updates("study", study, place)[0] == {}
    add_trial(study, 9)
    append_members(study, 9, 1, 2, points=1)
    updates, place = dash.updates("study", study, place)
    assert [one["number"] for one in updates["trials"][0]["rows"]] == [9]
    assert {(row[1], row[3]) for row in updates["members"][0]} == {(9, 0), (9, 1)}
    add_trial(study, 10, "failed", "it diverged")
    updates, _ = dash.updates("study", study, place)
    assert updates["trials"][0]["rows"][-1]["reason"] == "it diverged"


def test_a_status_is_told_when_it_is_another(serving, run):
    dash = serving(run.parent)
    updates, place = dash.updates("run", run)
    assert updates["status"][0]["state"] == "running"
    assert "status" not in dash.updates("run", run, place)[0]
    write_status(run, Status("run", "failed", reason="the disk is full"))
    updates, _ = dash.updates("run", run, place)
    assert updates["status"][0]["state"] == "failed"
    assert "the disk is full" in updates["status"][0]["lines"][0]


def test_several_runs_come_on_one_stream(serving, run):
    other = write_run(run.parent / "other", members=1, iterations=5)
    dash = serving(run.parent)
    numbers = ",".join(folder_id(str(one)) for one in (run, other))
    told = dash.get(f"/api/compare/{numbers}")
    assert [facts["run"] for _, facts in told["events"]] == [0, 1]
    add_rows(other, rows_of(1, 6, 7))
    time.sleep(0.1)
    more = dash.get(f"/api/compare/{numbers}?from={told['cursor']}")
    [[name, facts]] = more["events"]
    assert name == "of" and facts["run"] == 1 and len(rows_in(facts["events"])) == 1


def test_jobs_are_stopped_and_wanted_again(serving, run, tmp_path):
    place = {"python": "python", "cwd": "/", "variables": {}}
    with JobQueue(tmp_path / "queue") as queue:
        job = queue.add("run", run, ["train", "cartpole"], ["resume", str(run)], place)
    dash = serving(run.parent)
    path, own = f"/act/{folder_id(str(run))}", {"Origin": dash.url}
    assert dash.ask(f"{path}/retry", "POST", own)[0] == 409  # it waits already
    assert "ends at a checkpoint" in dash.ask(f"{path}/stop", "POST", own)[2]
    with JobQueue(tmp_path / "queue") as queue:
        assert queue.job(job.id).target_state == "stopped"
    assert "queued again" in dash.ask(f"{path}/resume", "POST", own)[2]
    with JobQueue(tmp_path / "queue") as queue:
        assert queue.job(job.id).target_state == "complete"
        queue.end(job, FAILED, "no such environment")
    assert "nothing to stop" in dash.ask(f"{path}/stop", "POST", own)[2]
    assert "jobs run" in dash.ask(f"{path}/retry", "POST", own)[2]
    assert dash.ask(f"{path}/delete", "POST", own)[0] == 409


@pytest.mark.parametrize("kind", ["run", "study"])
def test_a_job_that_waits_has_a_page_already(serving, tmp_path, kind):
    place, folder = {"python": "python", "cwd": "/", "variables": {}}, tmp_path / "later"
    with JobQueue(tmp_path / "queue") as queue:
        queue.add(kind, folder, ["train", "cartpole"], ["resume", str(folder)], place)
    (tmp_path / "shown").mkdir()
    updates, _ = serving(tmp_path / "shown").updates(kind, folder)
    assert (
        updates["status"][0]["lines"] == ["No process has begun it."] and "problem" not in updates
    )


def test_older_rows_are_counted_unless_their_folder_was_named(serving, run, tmp_path, monkeypatch):
    monkeypatch.setattr("slipstream.dashboard.overview._MAX_ENDED", 1)
    place, ended = {"python": "python", "cwd": "/", "variables": {}}, {"state": "complete"}
    with JobQueue(tmp_path / "queue") as queue:
        for name in ("first", "second", "third"):
            folder = write_run(tmp_path / "away" / name, 1, 1, **ended)
            queue.end(queue.add("run", folder, ["train"], ["resume"], place), FAILED, "")
            write_run(run.parent / f"{name}-named", 1, 1, **ended)
    told = dict(serving(run.parent).get("/api/overview/all")["events"])
    names = [one["name"] for one in told["rows"]]
    assert names[0] == "own" and told["older"] == 3  # the newest of all is a named one
    assert set(names[1:]) == {"first-named", "second-named", "third-named"}


def test_the_processors_use_is_known_in_whichever_thread_looks(monkeypatch):
    machine = MachineHistory()
    looks = iter([(100.0, 0.0), (100.0, 0.1), (100.0 + 7.5 * machine.cores, 10.1)])
    monkeypatch.setattr("slipstream.dashboard.overview._idle_seconds", lambda: next(looks))
    monkeypatch.setattr("slipstream.dashboard.overview._EVERY_SECONDS", 0.0)
    for _ in range(2):
        thread = threading.Thread(target=machine.sample)
        thread.start()
        thread.join()
    assert [one["cpu"] for one in machine.since(0)["rows"]] == [100.0, 25.0]


def test_what_was_started_by_hand_is_stopped(serving, run):
    dash = serving(run.parent)
    said = dash.ask(f"/act/{folder_id(str(run))}/stop", "POST", {"Origin": dash.url})
    assert said[0] == 200 and (run / "stop.json").exists()


class SimulatedClock:
    """Time that passes once everybody sleeps."""

    def __init__(self, sleepers):
        self.now, self._sleepers, self._waiting = 0.0, sleepers, []

    async def sleep(self, seconds):
        woken = asyncio.get_running_loop().create_future()
        self._waiting.append((self.now + seconds, woken))
        await woken

    async def run(self, seconds):
        while self.now < seconds:
            while len(self._waiting) < self._sleepers:
                await asyncio.sleep(0)
            self.now = min(at for at, _ in self._waiting)
            due = [one for one in self._waiting if one[0] <= self.now]
            self._waiting = [one for one in self._waiting if one[0] > self.now]
            for _, woken in due:
                woken.set_result(None)


@pytest.mark.parametrize(
    "seconds", [20, pytest.param(3_600, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_watchers_of_a_page_share_one_look(seconds):
    """A hundred watchers: a look a second, everything to everybody, and nothing piles up."""
    looks, got = [0], [0] * 100
    sizes = []

    def look(place):
        looks[0] += 1
        updates = Updates.unchanged(place)
        updates.add_snapshot("status", {"look": looks[0]})
        return updates

    async def main():
        clock = SimulatedClock(100)
        feed = EventStream(clock=lambda: clock.now, sleep=clock.sleep)

        async def watch(k):
            async for _ in feed.stream("page", "", look):
                got[k] += 1
                if k == 0 and got[0] in (10, seconds - 1):
                    sizes.append((len(feed._tasks), tracemalloc.get_traced_memory()[0]))

        tasks = [asyncio.create_task(watch(k)) for k in range(100)]
        await clock.run(seconds)
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    tracemalloc.start()
    asyncio.run(main())
    tracemalloc.stop()
    assert seconds <= looks[0] <= seconds + 2 and set(got) <= {looks[0] - 1, looks[0]}
    (few, before), (then, after) = sizes
    assert max(few, then) <= 3 and after < before + 200_000
