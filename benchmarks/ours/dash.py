"""What the dashboard's rows measure; folders are those of `watched.py`, or of a real training."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from benchmarks.ours.watched import add_rows, rows_of, write_run, write_study_folder
from benchmarks.worker import WorkerError
from slipstream.dashboard.feed import PageFeed
from slipstream.dashboard.overview import Places, id_of
from slipstream.dashboard.server import guarded

_TOKEN = "a-token-of-the-benchmarks-that-is-long-enough"
_PATIENCE = 60.0  # seconds


def point(points: int) -> dict[str, float]:
    """Seconds from a line in a table until a watcher has it."""
    with tempfile.TemporaryDirectory() as parent:
        run = write_run(Path(parent) / "run", members=4, iterations=1_000)
        with _serving(Path(parent)) as (port, _, cookie):
            answer = _streamed(port, cookie, f"run/{id_of(str(run))}")
            answer.readline()
            found = []
            for k in range(points):
                time.sleep(0.37)  # not in step with the looks
                began = time.perf_counter()
                add_rows(run, rows_of(4, 1_001 + k, 1_002 + k))
                while b'"metrics"' not in answer.readline():
                    pass
                found.append(time.perf_counter() - began)
    return {"slowest": max(found)}


def trials(trials: int, folds: int) -> dict[str, float]:
    """Seconds until Chromium has drawn the page of a study."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise WorkerError("Playwright is missing: pip install playwright") from error
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise WorkerError("There is no chromium: apt-get install chromium.")
    sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
    with tempfile.TemporaryDirectory() as parent, sync_playwright() as playwright:
        study = write_study_folder(Path(parent) / "study", trials, folds, under_way=16)
        browser = playwright.chromium.launch(executable_path=chromium, args=sandbox)
        with _serving(Path(parent)) as (port, token, _):
            page = browser.new_page()
            page.goto(f"http://localhost:{port}/?token={token}")
            page.wait_for_selector("main h1")
            began = time.perf_counter()
            page.goto(f"http://localhost:{port}/study/{id_of(str(study))}", wait_until="commit")
            page.wait_for_selector(".heat")  # what is drawn last
            seconds = time.perf_counter() - began
        browser.close()
    return {"seconds": seconds}


def watchers(watchers: int, lines: int) -> dict[str, float]:
    """Milliseconds from a look that saw a line until the last watcher has it."""
    with tempfile.TemporaryDirectory() as parent:
        run = write_run(Path(parent) / "run", members=1, iterations=100)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
        found = asyncio.run(_watched(run, watchers, lines))
    return {"p99": 1e3 * float(np.quantile(found, 0.99))}


async def _watched(run: Path, count: int, lines: int) -> list[float]:
    saw, have = dict[str, float](), list[dict[str, float]]()

    class SeenFeed(PageFeed):
        """Notes when a look first saw a line."""

        async def _look(self, place: str, look: Any) -> Any:
            answer = await super()._look(place, look)
            saw.setdefault(_newest(answer.text), time.perf_counter())
            return answer

    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    app = guarded(Places([run.parent], run.parent / "queue"), _TOKEN, port, feed=SeenFeed())
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    while not server.started:
        await asyncio.sleep(0.01)
    cookie = await asyncio.to_thread(_cookie, port, _TOKEN)

    async def watch() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        path = f"/stream/run/{id_of(str(run))}"
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n"
        writer.write(head.encode())
        times: dict[str, float] = {}
        have.append(times)
        while line := await reader.readline():
            if line.startswith(b"data"):
                times[_newest(line.decode())] = time.perf_counter()

    tasks = [asyncio.create_task(watch()) for _ in range(count)]
    while len(have) < count or not all(have):
        await asyncio.sleep(0.1)
    await asyncio.sleep(2.5)  # all know equally much
    steps = []
    for k in range(lines):
        rows = rows_of(1, 101 + k, 102 + k)
        steps.append(str(rows[0]["steps"]))
        add_rows(run, rows)
        deadline = time.perf_counter() + _PATIENCE
        while not all(steps[-1] in times for times in have) and time.perf_counter() < deadline:
            await asyncio.sleep(0.02)
    server.should_exit = True
    for one in tasks:
        one.cancel()
    await serving
    return [max(times[step] for times in have) - saw[step] for step in steps]


def _newest(text: str) -> str:
    """Steps of the last row in what a watcher is told; empty where there is none."""
    found = re.findall(r"\[0\.0,(\d+)\.0,", text)
    return found[-1] if found else ""


def trained(watched: bool, steps: int) -> dict[str, float]:
    """Steps per second of a training, after its start."""
    with tempfile.TemporaryDirectory() as parent:
        run = Path(parent) / "run"
        command = [sys.executable, "-m", "slipstream", "train", "cartpole", "--no-report"]
        command += ["--total-steps", str(steps), "--out", str(run)]
        with _serving(Path(parent)) as (port, _, cookie):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            while watched and not (run / "metrics.csv").exists() and process.poll() is None:
                time.sleep(0.02)
            if watched:
                answer = _streamed(port, cookie, f"run/{id_of(str(run))}")
                threading.Thread(target=_drain, args=(answer,), daemon=True).start()
            if process.wait():
                raise WorkerError(f"The training ended with exit code {process.returncode}.")
        rows = np.genfromtxt(run / "metrics.csv", delimiter=",", names=True)
    first = len(rows) // 10  # what compiles, and who begins to watch
    done, seconds = (rows[name][-1] - rows[name][first] for name in ("steps", "wall"))
    return {"steps_per_second": float(done / seconds)}


@contextmanager
def _serving(folder: Path) -> Iterator[tuple[int, str, str]]:
    """`slipstream dash` of a folder: its port, its token, and a cookie for it."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    command = [sys.executable, "-m", "slipstream", "dash", str(folder), "--port", str(port)]
    own = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=own, text=True)
    try:
        assert process.stdout is not None
        token = process.stdout.readline().strip().rpartition("=")[2]
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                cookie = _cookie(port, token)
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise WorkerError("The dashboard did not begin.") from None
                time.sleep(0.05)
        yield port, token, cookie
    finally:
        process.terminate()
        process.wait()


def _cookie(port: int, token: str) -> str:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
    link.request("GET", f"/?token={token}", headers={"Host": "localhost"})
    found = link.getresponse().getheader("set-cookie") or ""
    link.close()
    return found.partition(";")[0]


def _streamed(port: int, cookie: str, page: str) -> http.client.HTTPResponse:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
    link.request("GET", f"/stream/{page}", headers={"Host": "localhost", "Cookie": cookie})
    return link.getresponse()


def _drain(answer: http.client.HTTPResponse) -> None:
    try:
        while answer.readline():
            pass
    except OSError:
        pass
