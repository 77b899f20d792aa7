"""Server of the dashboard: pages, their updates, and the four requests that write.

It has no persistent state: any number of servers may run, and killing one loses nothing. Texts of
runs and studies are sent as JSON and set as text in the browser. Reports, which are HTML, are shown
in a sandbox without an origin and without scripts.

Files are read once a second while a page is watched. Watchers wake together, at whole seconds of
one clock; those with the same cursor share one update. A slow read delays the next one, so that a
page never uses more than a twentieth of a core.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import platform
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import uvicorn
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from slipstream.core.errors import ConfigError, SlipstreamError
from slipstream.core.plugins import folder_kinds
from slipstream.core.safe_io import UnreadableError, read_bytes
from slipstream.core.storage.atomic_io import to_jsonable
from slipstream.core.storage.status_file import RUN, STUDY
from slipstream.core.storage.updates import (
    MALFORMED,
    Event,
    Updates,
    deltas,
    deltas_of_folders,
    resolve_inside,
)
from slipstream.dashboard import pages
from slipstream.dashboard.auth import LOCAL, AuthMiddleware, user_token
from slipstream.dashboard.overview import MachineHistory, Sparklines, VisibleFolders, build_rows
from slipstream.jobs.job_list import JobRow, job_state
from slipstream.jobs.job_process import run_in_background
from slipstream.jobs.queue import FAILED, STOPPED
from slipstream.jobs.supervisor import has_supervisor, stop_job
from slipstream.studies.record.inspection import stop as ask_to_stop
from slipstream.training.runs.run import REPORT

PORT = 8770
_TRIES = 20  # higher ports that are tried if it is in use
_STATIC = resources.files("slipstream.dashboard") / "static"
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}
_MOST_COMPARED = 6  # maximum number of compared runs
_MOST_PAGE = 64 << 20  # maximum size of a report in bytes
_SANDBOX = (
    "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'self'"
)
_MACHINE_SECONDS, _FIRST_SECONDS = 10.0, 0.5

_OTHERS = {kind.NAME: kind for kind in folder_kinds()}
_KINDS = {
    **{RUN: pages.run_updates, STUDY: pages.study_updates},
    **{name: kind.updates for name, kind in _OTHERS.items()},
}

ReadUpdates = Callable[[str], Updates]
"""Function from a cursor to the updates since then. It reads files and may take a moment."""

_SECONDS = 1.0  # interval of reads
_SHARE = 0.05  # maximum share of a core for the reads of a page


@dataclass(frozen=True)
class PageUpdate:
    """Update of a page.

    Attributes:
        cursor: cursor of the next update.
        text: JSON of the events; empty without events.
        chunk: the same as a server-sent event.
        wait_seconds: seconds until the next read.
    """

    cursor: str
    text: str
    chunk: bytes
    wait_seconds: float


class EventStream:
    """Streams updates to watchers.

    Args:
        clock: returns seconds; replaced in tests.
        sleep: waits; replaced in tests.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._tasks: dict[tuple[str, str], tuple[int, asyncio.Task[PageUpdate]]] = {}

    async def get_update(self, page: str, cursor: str, read_updates: ReadUpdates) -> PageUpdate:
        """Return the update of a page since a cursor.

        Requests with the same cursor share one read per second, and a read that still runs.
        """
        tick = math.floor(self._clock() / _SECONDS)
        known = self._tasks.get((page, cursor))
        if known is None or (known[0] != tick and known[1].done()):
            old = [key for key, (at, one) in self._tasks.items() if at < tick and one.done()]
            for key in old:
                del self._tasks[key]
            known = tick, asyncio.create_task(self._compute_update(cursor, read_updates))
            self._tasks[page, cursor] = known
        return await asyncio.shield(known[1])  # other watchers share the task

    async def stream(
        self, page: str, cursor: str, read_updates: ReadUpdates
    ) -> AsyncIterator[bytes]:
        """Yield server-sent events of a page from a cursor on, until the watcher leaves."""
        while True:
            answer = await self.get_update(page, cursor, read_updates)
            if answer.chunk:
                yield answer.chunk
            cursor = answer.cursor
            now = self._clock()
            due = _SECONDS * math.ceil((now + answer.wait_seconds) / _SECONDS)
            await self._sleep(max(due - now, 0.01))

    async def _compute_update(self, cursor: str, read_updates: ReadUpdates) -> PageUpdate:
        began = self._clock()
        cursor, text = await run_in_threadpool(_read_updates, cursor, read_updates)
        rests = max(0.001, (self._clock() - began) / _SHARE)
        chunk = ServerSentEvent(text, id=cursor, event="updates").encode() if text else b""
        return PageUpdate(cursor, text, chunk, rests)


def _read_updates(cursor: str, read_updates: ReadUpdates) -> tuple[str, str]:
    """Return the next cursor and JSON with finite numbers; read errors become an event."""
    try:
        updates = read_updates(cursor)
        return updates.cursor, _json(updates.events) if updates.events else ""
    except MALFORMED as error:
        return cursor, _json([("problem", f"This cannot be read: {error}")])


def _json(events: Sequence[Event]) -> str:
    return json.dumps(to_jsonable(events), allow_nan=False, separators=(",", ":"))


class Dashboard:
    """Application without authentication.

    Args:
        folders: the visible folders.
        feed: replaced in tests.
    """

    def __init__(self, folders: VisibleFolders, feed: EventStream | None = None) -> None:
        self._folders, self._feed = folders, feed or EventStream()
        self._sparklines, self._machine = Sparklines(), MachineHistory()

    def app(self) -> Starlette:
        """Return the application with all routes."""
        shells = ("/", "/jobs", *(f"/{kind}/{{id}}" for kind in (*_KINDS, "compare")))
        return Starlette(
            routes=[
                *(Route(path, self._shell) for path in shells),
                Route("/static/{name}", self._static),
                Route("/api/importances/{id}", self._importances),
                Route("/api/{page}/{id}", self._get_json),
                Route("/stream/{page}/{id}", self._stream),
                Route("/page/{id}", self._page),
                Route("/video/{id}/{name}", self._video),
                Route("/act/{id}/{action}", self._post_action, methods=["POST"]),
            ],
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async def sample_machine() -> None:
            while True:
                await asyncio.sleep(_FIRST_SECONDS)  # the first sample measures this time
                await run_in_threadpool(self._machine.sample)
                await asyncio.sleep(_MACHINE_SECONDS - _FIRST_SECONDS)

        task = asyncio.create_task(sample_machine())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    def _find_reader(self, request: Request) -> tuple[str, ReadUpdates]:
        """Return the name of a requested page, and the function that reads its updates.

        Raises:
            HTTPException: there is no such page, run or study.
        """
        page, number = request.path_params["page"], request.path_params["id"]
        if page == "overview":
            return page, self._overview
        if page == "compare":
            numbers = number.split(",")[:_MOST_COMPARED]
            folders = [Path(self._find_row(number).folder) for number in numbers]
            return f"{page}/{number}", partial(deltas_of_folders, pages.run_updates, folders)
        if page not in _KINDS:
            raise HTTPException(404, "There is no such page.")
        line = self._find_row(number)
        if line.kind != page:
            raise HTTPException(404, f"That is a {line.kind}.")
        return f"{page}/{number}", partial(deltas, _KINDS[page], Path(line.folder))

    def _find_row(self, number: str) -> JobRow:
        try:
            return self._folders.find_row(number)
        except KeyError:
            raise HTTPException(404, "There is no such run or study.") from None

    def _overview(self, cursor: str) -> Updates:
        updates = Updates(Path(), cursor)
        rows, older = build_rows(self._folders, self._sparklines)
        updates.add_snapshot("rows", rows)
        updates.add_snapshot("older", older)
        since = max(updates.numbers("machine"), default=-1.0)
        machine = self._machine.since(since)
        if machine["rows"] or since < 0:
            updates.events.append(("machine", machine))
        newest = machine["rows"][-1]["at"] if machine["rows"] else max(0.0, since)
        updates.set_cursor("machine", str(newest))
        return updates

    async def _shell(self, request: Request) -> Response:
        return _static_response("index.html")

    async def _static(self, request: Request) -> Response:
        return _static_response(request.path_params["name"])

    async def _get_json(self, request: Request) -> Response:
        page, read_updates = await run_in_threadpool(self._find_reader, request)
        cursor = request.query_params.get("from", "")
        answer = await self._feed.get_update(page, cursor, read_updates)
        text = f'{{"cursor":{json.dumps(answer.cursor)},"events":{answer.text or "[]"}}}'
        return Response(text, media_type="application/json")

    async def _stream(self, request: Request) -> Response:
        page, read_updates = await run_in_threadpool(self._find_reader, request)
        cursor = request.headers.get("last-event-id") or request.query_params.get("from", "")
        return EventSourceResponse(self._feed.stream(page, cursor, read_updates))

    def _importances(self, request: Request) -> Response:
        line = self._find_row(request.path_params["id"])
        try:
            return JSONResponse(pages.importances(Path(line.folder)))
        except MALFORMED as error:
            raise HTTPException(404, f"It cannot be computed: {error}") from error

    def _page(self, request: Request) -> Response:
        line = self._find_row(request.path_params["id"])
        name = pages.PAGE if line.kind == STUDY else REPORT
        try:
            text = read_bytes(resolve_inside(Path(line.folder), name, _MOST_PAGE), _MOST_PAGE)
        except (OSError, UnreadableError) as error:
            raise HTTPException(404, f"{name} cannot be shown: {error}.") from error
        headers = {"Content-Security-Policy": _SANDBOX}
        return Response(text, headers=headers, media_type="text/html; charset=utf-8")

    def _video(self, request: Request) -> Response:
        line = self._find_row(request.path_params["id"])
        name = request.path_params["name"]
        try:
            if Path(name).name != name or Path(name).suffix not in pages.VIDEOS:
                raise UnreadableError("it is no video")
            path = resolve_inside(Path(line.folder), name)
        except (OSError, UnreadableError) as error:
            raise HTTPException(404, f"That cannot be shown: {error}.") from error
        return FileResponse(path, headers={"Content-Security-Policy": _SANDBOX})

    def _post_action(self, request: Request) -> Response:
        number, action = request.path_params["id"], request.path_params["action"]
        try:
            return JSONResponse({"message": self._execute(self._find_row(number), action)})
        except SlipstreamError as error:
            return JSONResponse({"message": str(error)}, 409)

    def _execute(self, line: JobRow, action: str) -> str:
        """Execute one of the four actions and return a message.

        Raises:
            SlipstreamError: the action is not possible now.
        """
        folder = Path(line.folder)
        kind = _OTHERS.get(line.kind)
        if kind is not None and (done := kind.act(folder, action)) is not None:
            return done
        if action not in ("stop", "resume", "retry"):
            raise ConfigError(f"Jobs are stopped, resumed or tried again; {action!r} is neither.")
        if not line.job:
            if action == "stop":
                asked = ask_to_stop(folder)
                return "It ends at a checkpoint." if asked else "No process works on it."
            messages: list[str] = []
            run_in_background(["resume", str(folder)], folder, None, messages.append)
            return messages[0]
        with self._folders.open_queue() as queue:
            job = queue.job(int(line.job))
            if action == "stop":
                stop_job(queue, job)
                return f"Job {job.id} ends at a checkpoint, or does not begin."
            state = job_state(queue, job)
            if state not in (STOPPED, FAILED):
                raise ConfigError(f"Job {job.id} is {state}: there is nothing to {action}.")
            queue.retry(job)
            works = has_supervisor(queue)
        hint = "" if works else " No supervisor runs: start one with `slipstream jobs run`."
        return f"Job {job.id} is queued again.{hint}"


def _static_response(name: str) -> Response:
    """Return a packaged file."""
    names = {path.name: path for path in _STATIC.iterdir()}
    kind = _TYPES.get(Path(name).suffix)
    if name not in names or kind is None:
        raise HTTPException(404, "There is no such file.")
    return Response(names[name].read_bytes(), media_type=f"{kind}; charset=utf-8")


def build_app(
    folders: VisibleFolders,
    token: str,
    port: int,
    address: str = "",
    feed: EventStream | None = None,
) -> ASGIApp:
    """Return the whole application.

    Args:
        folders: the visible folders.
        token: see `user_token`.
        port: port of the server.
        address: an address beyond this machine; empty: this machine alone.
        feed: replaced in tests.
    """
    names = (*LOCAL, platform.node().lower(), address.lower()) if address else LOCAL
    return AuthMiddleware(Dashboard(folders, feed).app(), token, port, names, bool(address))


def serve(
    folders: Sequence[Path], port: int | None, address: str, notify: Callable[[str], None]
) -> None:
    """Serve until a signal arrives.

    Args:
        folders: folders to show besides those of the register and the queue.
        port: port; None: 8770, or the next free one.
        address: address to listen on; empty: this machine alone.
        notify: called with the URL and hints.

    Raises:
        ConfigError: the port is in use, or the address does not belong to this machine.
    """
    for folder in folders:
        if not os.path.isdir(folder):
            raise ConfigError(f"{folder} is not a folder. Give a run, a study or a folder of them.")
    bound = _bind_socket(address or "127.0.0.1", port)
    number, token = bound.getsockname()[1], user_token()
    notify(f"Open http://localhost:{number}/?token={token}")
    notify("Keep the URL private: its token grants access. The browser stores it as a cookie.")
    notify(
        f"From another machine: run `ssh -L {number}:127.0.0.1:{number} {platform.node()}`, then "
        "open the same URL."
    )
    if address:
        notify(
            f"The dashboard listens on {address} without encryption: anyone with the token can "
            "read everything and stop jobs. `ssh -L` is safer."
        )
    notify("Ctrl-C stops the dashboard; runs and jobs continue.")
    app = build_app(VisibleFolders(folders), token, number, address)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=1,
        limit_concurrency=1_000,
    )
    # An open page at the end is not an error.
    ended = "returned without completing response"
    logging.getLogger("uvicorn.error").addFilter(lambda record: ended not in record.getMessage())
    with bound:
        uvicorn.Server(config).run(sockets=[bound])


def _bind_socket(host: str, port: int | None) -> socket.socket:
    ports = [port] if port is not None else range(PORT, PORT + _TRIES)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    refusal: Any = None
    for number in ports:
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, number))
            return bound
        except (OSError, OverflowError) as error:
            bound.close()
            refusal = error
    raise ConfigError(
        f"{host}, port {ports[0]}, cannot be listened at ({refusal}): name a free one with --port, "
        "or an address of this machine with --listen."
    )
