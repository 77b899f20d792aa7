"""Measurements of the dashboard, on folders written by `watched.py` or on a real training."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from benchmarks.machine import threads
from benchmarks.ours.watched import add_rows, rows_of, write_run, write_study_folder
from benchmarks.worker import WorkerError
from slipstream.dashboard.overview import VisibleFolders, folder_id
from slipstream.dashboard.server import EventStream, build_app

_TOKEN = "a-token-of-the-benchmarks-that-is-long-enough"
_PATIENCE = 60.0  # seconds


def point(points: int) -> dict[str, float]:
    """Measure the seconds from a table's new line until Chromium has drawn it on the run's page."""
    with tempfile.TemporaryDirectory() as parent:
        run = write_run(Path(parent) / "run", members=4, iterations=1_000)
        with _browsed(Path(parent)) as (page, url):
            page.goto(f"{url}/run/{folder_id(str(run))}")
            page.wait_for_selector("#link:text-is('live')")
            page.wait_for_selector(".chart canvas")
            curve = page.locator(".chart:has-text('Score of recent') [role=img]")
            latencies = []
            for k in range(points):
                time.sleep((points - 1 - k) / points)  # the last one waits for a whole poll
                before, began = curve.get_attribute("aria-label"), time.perf_counter()
                add_rows(run, rows_of(4, 1_001 + k, 1_002 + k))
                while curve.get_attribute("aria-label") == before:  # shows the last values
                    time.sleep(0.01)
                latencies.append(time.perf_counter() - began)
    return {"slowest": max(latencies)}


def trials(trials: int, folds: int) -> dict[str, float]:
    """Measure the seconds until Chromium has drawn the page of a study."""
    with tempfile.TemporaryDirectory() as parent:
        study = write_study_folder(Path(parent) / "study", trials, folds, under_way=16)
        with _browsed(Path(parent)) as (page, url):
            began = time.perf_counter()
            page.goto(f"{url}/study/{folder_id(str(study))}", wait_until="commit")
            page.wait_for_selector(".heat")  # drawn last
            return {"seconds": time.perf_counter() - began}


def watchers(watchers: int, lines: int) -> dict[str, float]:
    """Measure the ms from the poll that found a line until the last watcher has received it."""
    with tempfile.TemporaryDirectory() as parent:
        run = write_run(Path(parent) / "run", members=1, iterations=100)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
        latencies = asyncio.run(_watched(run, watchers, lines))
    return {"p99": 1e3 * float(np.quantile(latencies, 0.99))}


async def _watched(run: Path, count: int, lines: int) -> list[float]:
    saw, have = dict[str, float](), list[dict[str, float]]()

    class SeenFeed(EventStream):
        """Notes when a look first saw a line."""

        async def _compute_update(self, cursor: str, read_updates: Any) -> Any:
            answer = await super()._compute_update(cursor, read_updates)
            saw.setdefault(_newest(answer.text), time.perf_counter())
            return answer

    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    app = build_app(
        VisibleFolders([run.parent], run.parent / "queue"), _TOKEN, port, feed=SeenFeed()
    )
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    while not server.started:
        await asyncio.sleep(0.01)
    cookie = await asyncio.to_thread(_cookie, port, _TOKEN)

    async def watch() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        path = f"/stream/run/{folder_id(str(run))}"
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
    await asyncio.sleep(2.5)  # all watchers have the same state
    steps = []
    for k in range(lines):
        rows = rows_of(1, 101 + k, 102 + k)
        steps.append(str(rows[0]["steps"]))
        add_rows(run, rows)
        deadline = time.perf_counter() + _PATIENCE
        while not all(steps[-1] in times for times in have) and time.perf_counter() < deadline:
            await asyncio.sleep(0.02)
    server.should_exit = True
    for task in tasks:
        task.cancel()
    await serving
    return [max(times[step] for times in have) - saw[step] for step in steps]


def _newest(text: str) -> str:
    """Return the step count of the last row in an update that a watcher received, or ""."""
    step_counts = re.findall(r"\[0\.0,(\d+)\.0,", text)
    return step_counts[-1] if step_counts else ""


@contextmanager
def training(seconds: float) -> Iterator[Callable[[bool], float]]:
    """Train on all cores; yield a function that returns steps per second, watched or not."""
    with tempfile.TemporaryDirectory() as parent, _serving(Path(parent)) as (port, _, cookie):
        run = Path(parent) / "run"
        command = [sys.executable, "-m", "slipstream", "train", "cartpole", "--no-report"]
        command += ["--members", str(threads()), "--num-envs", "64", "--out", str(run)]
        command += ["--total-timesteps", "500_000_000"]  # terminated before
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=_own(Path(parent)))

        def rate(watched: bool) -> float:
            stream = _followed(port, cookie, f"run/{folder_id(str(run))}") if watched else None
            (steps, wall), ends = _reached(run), time.monotonic() + seconds
            while time.monotonic() < ends:
                if stream is None:
                    time.sleep(0.1)
                else:
                    stream.readline()
            now = _reached(run)
            if stream is not None:
                stream.close()
            if process.poll() is not None:
                raise WorkerError(f"The training ended with exit code {process.returncode}.")
            return (now[0] - steps) / (now[1] - wall)

        try:
            while not (run / "metrics.csv").exists() and process.poll() is None:
                time.sleep(0.1)
            time.sleep(seconds)
            yield rate
        finally:
            process.terminate()
            process.wait()


def _reached(run: Path) -> tuple[float, float]:
    """Return the steps and seconds of the newest row of a run's table."""
    with (run / "metrics.csv").open("rb") as file:
        names = file.readline().decode().strip().split(",")
        file.seek(max(0, os.fstat(file.fileno()).st_size - (1 << 14)))
        row = file.read().decode().split("\n")[-2].split(",")
    return float(row[names.index("steps")]), float(row[names.index("wall")])


@contextmanager
def _browsed(folder: Path) -> Iterator[tuple[Any, str]]:
    """Open a folder's dashboard in Chromium; yield its first page and the dashboard's address."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise WorkerError("Playwright is not installed: pip install playwright") from error
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise WorkerError("chromium is not installed: apt-get install chromium")
    sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as playwright, _serving(folder) as (port, token, _):
        browser = playwright.chromium.launch(executable_path=chromium, args=sandbox)
        page, url = browser.new_page(), f"http://localhost:{port}"
        page.goto(f"{url}/?token={token}")
        page.wait_for_selector("main h1")
        yield page, url
        browser.close()


@contextmanager
def _serving(folder: Path) -> Iterator[tuple[int, str, str]]:
    """Serve a folder with `slipstream dash`; yield its port, its token and a session cookie."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    command = [sys.executable, "-m", "slipstream", "dash", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=_own(folder), text=True)
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
                    raise WorkerError("The dashboard did not start.") from None
                time.sleep(0.05)
        yield port, token, cookie
    finally:
        process.terminate()
        process.wait()


def _cookie(port: int, token: str) -> str:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
    link.request("GET", f"/?token={token}", headers={"Host": "localhost"})
    cookie = link.getresponse().getheader("set-cookie") or ""
    link.close()
    return cookie.partition(";")[0]


def _followed(port: int, cookie: str, page: str) -> http.client.HTTPResponse:
    """Open the event stream of a page that, as in a browser, has loaded all data before."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
    headers = {"Host": "localhost", "Cookie": cookie}
    link.request("GET", f"/api/{page}", headers=headers)
    place = json.loads(link.getresponse().read())["cursor"]
    link.request("GET", f"/stream/{page}", headers={**headers, "Last-Event-ID": place})
    return link.getresponse()


def _own(folder: Path) -> dict[str, str]:
    """Return environment variables of a process whose job registry is in the folder."""
    return {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
