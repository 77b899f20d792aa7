"""A dashboard that answers in a thread of this process, over folders of the real writers."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import uvicorn

from benchmarks.ours.watched import write_run, write_study_folder
from slipstream.core.storage import checkpoint
from slipstream.core.storage.atomic_io import make_folder, write_json
from slipstream.core.storage.logbook import Logbook
from slipstream.core.storage.status_file import DEPLOYMENT, Status
from slipstream.dashboard.overview import VisibleFolders, folder_id
from slipstream.dashboard.server import EventStream, build_app
from slipstream.markets.live.account_comparison import RERUN
from slipstream.markets.live.deployment import Deployment
from slipstream.markets.live.journal import Decision, Journal
from slipstream.markets.live.paper_account import JOURNAL

SCRIPT = "<img src=x onerror=alert(1)>"
FASTER = 20  # than seconds: how often files are looked at
TOKEN = "a-token-of-the-tests-that-is-long-enough-to-be-one"


@dataclass
class Dash:
    """One dashboard.

    Attributes:
        folder: what it was told to show.
        port: where it answers.
        cookie: that its token was exchanged for.
    """

    folder: Path
    port: int
    cookie: str = ""
    token: str = TOKEN

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    def ask(self, path, method="GET", headers=(), cookie=True):
        """Status, headers and body of an answer."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        given = {"Host": f"localhost:{self.port}", **dict(headers)}
        if cookie:
            given.setdefault("Cookie", self.cookie)
        link.putrequest(method, path, skip_host=True)
        for name, value in given.items():
            link.putheader(name, value)
        link.endheaders()
        answer = link.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read().decode()
        link.close()
        return found

    def get(self, path):
        """JSON of an answer that must be fine."""
        code, _, text = self.ask(path)
        assert code == 200, text
        return json.loads(text)

    def updates(self, page, folder, cursor=""):
        """Return the events of a folder since a cursor by name, and the next cursor."""
        time.sleep(2 / FASTER)  # who asks within the same second is told the same
        told = self.get(f"/api/{page}/{folder_id(str(folder))}?from={cursor}")
        found = {}
        for name, facts in told["events"]:
            found.setdefault(name, []).append(facts)
        return found, told["cursor"]

    def stream(self, page, folder, cursor="", last_id=""):
        """A connection to a stream: iterate over (id, events)."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        more = {"Last-Event-ID": last_id} if last_id else {}
        host = {"Host": f"localhost:{self.port}", "Cookie": self.cookie}
        path = f"/stream/{page}/{folder_id(str(folder))}?from={cursor}"
        link.request("GET", path, headers={**host, **more})
        answer = link.getresponse()
        assert answer.status == 200
        return link, _events(answer)


def _events(answer):
    event = {}
    for line in iter(answer.readline, b""):
        name, _, value = line.decode().rstrip("\r\n").partition(": ")
        if name:
            event[name] = value
        elif "data" in event:
            yield event["id"], json.loads(event["data"])
            event = {}


def write_deployment(folder, bars=300):
    """A deployment whose account has decided on some bars, with its rerun and a forced gate."""
    found, draw = Deployment(folder), np.random.default_rng(0)
    make_folder(folder / "versions")
    gates = [
        {"name": "confirmed", "passed": True, "figure": "trial 3", "forced": None},
        {"name": "pbo", "passed": False, "figure": "0.31, at most 0.2", "forced": f"try {SCRIPT}"},
    ]
    for number in (1, 2):
        facts = {"gates": gates, "study": "night-2", "label": "first seed"}
        checkpoint.save(found.version(number), {"w": np.zeros(1, np.float32)}, facts)
        found.switch(number, "deploy", source="/studies/night-2", why="the first one")
    make_folder(found.account(2))
    equity = 1e5 * np.exp(np.cumsum(1e-3 * draw.standard_normal(bars)))
    times = 1_760_000_000 // 900 * 900 + 900 * np.arange(bars)
    rows = [
        Decision("EURUSD", int(t), "", (k % 3,), (float(1_000 * (k % 3)),), float(e), float(t))
        for k, (t, e) in enumerate(zip(times, equity, strict=True))
    ]
    with closing(Journal(found.account(2) / JOURNAL)) as journal:
        journal.add_decisions(rows)
    curve = [(int(t), float(e)) for t, e in zip(times, equity, strict=True)]
    one = {
        "name": "EURUSD",
        "num_equal": bars - 1,
        "num_compared": bars - 1,
        "fills": 7,
        "costs": 12.5,
    }
    moved = [(int(times[9]), 0.0, 1_000.0), (int(times[20]), 1_000.0, 0.0)]
    kept = {"at": float(times[-1]), "passes": [{**one, "curve": curve, "position_changes": moved}]}
    write_json(found.account(2) / RERUN, kept)
    with Logbook(folder, DEPLOYMENT, print) as log:
        log.show(
            Status(DEPLOYMENT, phase="tail:EURUSD.csv", completed=bars, unit="decisions"), True
        )
    return folder


@pytest.fixture
def deployed():
    """See `write_deployment`."""
    return write_deployment


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Folders that no test changes: two runs, a study and a deployment."""
    folder = tmp_path_factory.mktemp("shown")
    write_run(folder / "night")
    write_run(folder / "other", members=1, iterations=200, state="complete", phase="writing")
    write_study_folder(folder / "search")
    write_deployment(folder / "live")
    return folder


@pytest.fixture
def serving(tmp_path, monkeypatch):
    """A callable: Dash of a folder, and of nothing that other tests have registered."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    servers = []

    def serve(folder):
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        feed = EventStream(
            lambda: FASTER * time.monotonic(), lambda seconds: asyncio.sleep(seconds / FASTER)
        )
        app = build_app(VisibleFolders([folder], tmp_path / "queue"), TOKEN, port, feed=feed)
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        servers.append((server, thread, bound))
        dash = Dash(folder, port)
        deadline = time.monotonic() + 20
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        code, headers, _ = dash.ask(f"/?token={TOKEN}", cookie=False)
        assert code == 200
        dash.cookie = headers["set-cookie"].partition(";")[0]
        return dash

    yield serve
    for server, thread, bound in servers:
        server.should_exit = True
        thread.join(20)
        bound.close()


@pytest.fixture
def dash(serving, made):
    """A dashboard of `made`."""
    return serving(made)
