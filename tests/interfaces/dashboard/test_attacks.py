"""Hostile requests and hostile folders: rejected, or shown as bounded text."""

import json
import os
import sqlite3
import stat
import time

import pytest

from benchmarks.ours.watched import add_trial, write_run, write_study_folder
from slipstream.core.safe_io import UnreadableError
from slipstream.core.storage.folder_registry import state_folder
from slipstream.core.storage.updates import Cursor, read_table_tail, resolve_inside
from slipstream.dashboard.auth import user_token
from slipstream.dashboard.overview import folder_id

SCRIPT = "<img src=x onerror=alert(1)><script>alert(2)</script>"
PATHS = ("/", "/jobs", "/static/dash.js", "/api/overview/all", "/stream/overview/all", "/page/x")


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "shown" / "own", members=2, iterations=20)


@pytest.fixture
def study(tmp_path):
    return write_study_folder(tmp_path / "shown" / "search", trials=6, under_way=1)


def test_nobody_gets_in_without_the_token(dash):
    for path in PATHS:
        assert dash.ask(path, cookie=False)[0] == 401, path
        assert dash.ask(path, headers={"Cookie": f"slipstream-{dash.port}=x"})[0] == 401, path
        assert dash.ask(path, headers={"Cookie": "slipstream-1=" + dash.cookie})[0] == 401, path
    assert dash.ask("/?token=", cookie=False)[0] == 403
    assert dash.ask("/?token=" + "x" * 43, cookie=False)[0] == 403
    assert dash.ask("/jobs?token=" + "x" * 43, cookie=False)[0] == 401


def test_the_token_becomes_a_cookie_that_no_script_reads(dash):
    name, _, value = dash.cookie.partition("=")
    assert name == f"slipstream-{dash.port}" and len(value) == 64
    _, headers, text = dash.ask(f"/?token={dash.token}", cookie=False)
    words = headers["set-cookie"].lower()
    assert "httponly" in words and "samesite=strict" in words
    assert dash.token not in text and value not in text


def test_the_token_lies_in_a_file_of_the_user_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    token = user_token()
    path = state_folder("dashboard") / "token"
    assert user_token() == token and len(token) >= 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)  # others could have read it
    assert user_token() != token
    path.unlink()
    os.symlink("/dev/zero", path)
    assert len(user_token()) >= 43


def test_foreign_names_of_this_server_are_refused(dash):
    for host in ("evil.example", "evil.example:8770", "localhost.evil.example", "1.2.3.4", ""):
        assert dash.ask("/", headers={"Host": host})[0] == 421, host
    for host in ("localhost:1", "127.0.0.1:9999", "[::1]:5", "LOCALHOST."):  # as ssh -L gives
        assert dash.ask("/", headers={"Host": host})[0] == 200, host


def test_only_own_pages_may_ask_to_write(dash, made):
    path = f"/act/{folder_id(str(made / 'night'))}/stop"
    for origin in (None, "null", "http://evil.example", f"http://127.0.0.1:{dash.port}"):
        headers = {} if origin is None else {"Origin": origin}
        assert dash.ask(path, "POST", headers)[0] == 403, origin
    assert not (made / "night" / "stop.json").exists()
    assert dash.ask(path, "GET")[0] == 405
    assert dash.ask("/", "PUT")[0] == 405
    assert dash.ask(path, "POST", {"Origin": dash.url}, cookie=False)[0] == 401


def test_answers_carry_what_keeps_others_out(dash):
    for path in ("/", "/static/dash.js", "/api/overview/all", "/nothing"):
        headers = dash.ask(path)[1]
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_no_path_leads_out(dash):
    for path in (
        *("/static/../server.py", "/static/%2e%2e%2fserver.py", "/static/..", "/page/../../etc"),
        *("/api/run/..%2f..%2fetc%2fpasswd", "/video/x/../../etc/passwd", "/static/%00"),
    ):
        assert dash.ask(path)[0] in (400, 404), path
    number = folder_id(str(dash.folder / "night"))
    for name in ("..%2fother%2fmetrics.csv", "config.yaml", "%2fetc%2fpasswd.gif", "..gif"):
        assert dash.ask(f"/video/{number}/{name}")[0] == 404, name


def test_links_out_of_a_folder_are_not_followed(serving, run, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("member,steps,score\n0,1,42\n")
    for name in ("metrics.csv", "log.txt", "report.html", "film.gif", "status.json"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(secret)
    dash = serving(run.parent)
    updates, _ = dash.updates("run", run)
    assert "a link leads out" in updates["metrics"][0]["unreadable"]
    assert "a link leads out" in updates["log"][0][0]
    assert "a link leads out" in updates["status"][0]["lines"][0]
    number = folder_id(str(run))
    assert dash.ask(f"/page/{number}")[0] == 404
    assert dash.ask(f"/video/{number}/film.gif")[0] == 404
    (run / "metrics.csv").unlink()
    (run / "metrics.csv").symlink_to("metrics.csv")  # in a circle
    with pytest.raises(UnreadableError):
        resolve_inside(run, "metrics.csv")


def test_a_folder_that_was_not_named_is_not_there(serving, run, tmp_path):
    hidden = write_run(tmp_path / "elsewhere" / "hidden", members=1, iterations=3)
    (run.parent / "link").symlink_to(hidden, target_is_directory=True)
    dash = serving(run.parent)
    assert dash.ask(f"/api/run/{folder_id(str(hidden))}")[0] == 404
    assert dash.ask(f"/api/run/{folder_id(str(run.parent / 'link'))}")[0] == 404


def test_reports_are_shown_without_rights(serving, run):
    (run / "report.html").write_text(f"<!doctype html><p>{SCRIPT}")
    code, headers, text = serving(run.parent).ask(f"/page/{folder_id(str(run))}")
    assert code == 200 and SCRIPT in text
    rules = headers["content-security-policy"]
    assert rules.startswith("sandbox;") and "default-src 'none'" in rules and "allow" not in rules


def test_endless_and_strange_files_are_refused_without_being_read(serving, run):
    with (run / "status.json").open("wb") as file:
        file.truncate(1 << 30)  # sparse
    (run / "metrics.csv").unlink()
    os.mkfifo(run / "metrics.csv")
    (run / "evaluations.csv").unlink(missing_ok=True)
    (run / "evaluations.csv").mkdir()
    (run / "config.yaml").write_text("a: " + "[" * 100_000)
    dash, began = serving(run.parent), time.monotonic()
    updates, _ = dash.updates("run", run)
    assert "bytes" in updates["status"][0]["lines"][0]
    assert "named pipe" in updates["metrics"][0]["unreadable"]
    assert "folder" in updates["evaluations"][0]["unreadable"]
    assert "unreadable" in updates["facts"][0]
    assert dash.get("/api/overview/all")["events"][0][1][0]["name"] == "own"
    assert time.monotonic() - began < 5


def test_deep_json_is_told_as_damaged(serving, run, study):
    deep = "[" * 200_000
    (run / "status.json").write_text(f'{{"kind": {deep}')
    with (run / "events.jsonl").open("a") as file:
        file.write(f'{{"at": 1, "event": {deep}\n{{"at": 2, "event": "fine"}}\n')
    with sqlite3.connect(study / "ledger.db") as ledger:
        ledger.execute("UPDATE suggestions SET params = ?", (deep,))
    with (study / "live" / "members.jsonl").open("a") as file:
        file.write(f"{deep}\n")
    dash = serving(run.parent)
    updates, _ = dash.updates("run", run)
    assert updates["status"][0]["state"] == "unreadable"
    assert updates["events"][0][-1].endswith("fine")
    told, _ = dash.updates("study", study)
    assert "cannot be read" in told["trials"][0]["unreadable"] and told["members"]


def test_torn_lines_wait_or_are_passed_by(run):
    before = read_table_tail(run, "metrics.csv", Cursor(), 500, 4_000)
    with (run / "metrics.csv").open("ab") as file:
        file.write(b"0,999")  # a kill, then a resumed writer's line, then half of one
    half = read_table_tail(run, "metrics.csv", before.cursor, 500, 4_000)
    assert half.rows == [] and half.cursor == before.cursor and not half.restarted
    row = b"0,41000,21,84,1.1,480.0,0.0,3.0,480.0,,\n"
    with (run / "metrics.csv").open("ab") as file:
        file.write(b"\n" + row + b"nonsense,\xff\xfe,\x00" + row[1:] + row[:9])
    after = read_table_tail(run, "metrics.csv", half.cursor, 500, 4_000)
    steps = [one[1] for one in after.rows]
    assert 41_000.0 in steps and 999.0 not in steps
    assert after.cursor.offset < (run / "metrics.csv").stat().st_size


def test_scripts_in_names_and_reasons_stay_text(serving, tmp_path):
    """The browser's half, that they are set as text, is in test_pages.py."""
    study = write_study_folder(tmp_path / "shown" / "<b onclick=x>", trials=4, under_way=0)
    add_trial(study, 4, "failed", SCRIPT)
    run = write_run(tmp_path / "shown" / "own", members=1, iterations=3, reason=SCRIPT)
    lines = (run / "metrics.csv").read_text().replace("value_loss", SCRIPT)
    (run / "metrics.csv").write_text(lines)
    dash = serving(study.parent)
    for path in (f"/api/study/{folder_id(str(study))}", f"/api/run/{folder_id(str(run))}"):
        code, headers, text = dash.ask(path)
        assert code == 200 and headers["content-type"] == "application/json"
        assert SCRIPT in json.loads(text).__repr__()


def test_words_are_bounded(serving, study):
    add_trial(study, 7, "failed", "x" * 1_000_000)
    told, _ = serving(study.parent).updates("study", study)
    assert max(len(one["reason"]) for one in told["trials"][0]["rows"]) == 400


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_table_of_ten_million_rows_takes_no_longer(tmp_path, serving):
    run = write_run(tmp_path / "shown" / "own", members=2, iterations=2)
    with (run / "metrics.csv").open("a") as file:
        for k in range(5_000):
            rows = (
                f"{m},{2_048 * i},{i},{i},{i / 20},{i / 1e4},0.0,1.0,9.0,,\n"
                for i in range(1_000 * k + 3, 1_000 * k + 1_003)
                for m in (0, 1)
            )
            file.write("".join(rows))
    dash, began = serving(run.parent), time.monotonic()
    updates, cursor = dash.updates("run", run)
    assert time.monotonic() - began < 3
    rows = updates["metrics"][0]["rows"]
    assert 900 <= len(rows) <= 1_002 and {row[0] for row in rows} == {0.0, 1.0}
    steps = [row[1] for row in rows if row[0] == 0.0]
    assert steps == sorted(steps) and steps[0] < 1e8 and steps[-1] > 0.99 * 2_048 * 5e6
    assert dash.updates("run", run, cursor)[0].get("metrics") is None
