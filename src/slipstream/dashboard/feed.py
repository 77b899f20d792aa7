"""Feed: what all watchers of a page are sent, read once a second while there are any.

Watchers wake together, at whole seconds of one clock: those who know equally much share one look at
the files and one text. A look that takes long makes the next one wait, so that watching never takes
more than a twentieth of a core.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from sse_starlette.event import ServerSentEvent
from starlette.concurrency import run_in_threadpool

from slipstream.core.storage.files import plain
from slipstream.core.storage.news import MALFORMED, Event, News

Look = Callable[[str], News]
"""From a place to what is new since; reads files, and may take a moment."""

_SECONDS = 1.0  # between two looks
_SHARE = 0.05  # of a core that one page's looks may take


@dataclass(frozen=True)
class Answer:
    """What came of a look.

    Attributes:
        place: from which the next look asks.
        text: JSON of the events; empty where there is nothing new.
        chunk: the same as a server-sent event.
        rests: seconds until the next look.
    """

    place: str
    text: str
    chunk: bytes
    rests: float


class PageFeed:
    """Answers questions of watchers.

    Args:
        clock: seconds; replaced in tests.
        sleep: waits; replaced in tests.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._answers: dict[tuple[str, str], tuple[int, asyncio.Task[Answer]]] = {}

    async def answer(self, page: str, place: str, look: Look) -> Answer:
        """What is new on a page since a place.

        All who ask the same share one look a second, and one that still runs.
        """
        tick = math.floor(self._clock() / _SECONDS)
        known = self._answers.get((page, place))
        if known is None or (known[0] != tick and known[1].done()):
            old = [key for key, (at, one) in self._answers.items() if at < tick and one.done()]
            for key in old:
                del self._answers[key]
            known = tick, asyncio.create_task(self._look(place, look))
            self._answers[page, place] = known
        return await asyncio.shield(known[1])  # one who leaves takes it from nobody

    async def stream(self, page: str, place: str, look: Look) -> AsyncIterator[bytes]:
        """Server-sent events of a page from a place on, until the watcher leaves."""
        while True:
            answer = await self.answer(page, place, look)
            if answer.chunk:
                yield answer.chunk
            place = answer.place
            now = self._clock()
            due = _SECONDS * math.ceil((now + answer.rests) / _SECONDS)
            await self._sleep(max(due - now, 0.01))

    async def _look(self, place: str, look: Look) -> Answer:
        began = self._clock()
        place, text = await run_in_threadpool(_told, place, look)
        rests = max(0.001, (self._clock() - began) / _SHARE)
        chunk = ServerSentEvent(text, id=place, event="news").encode() if text else b""
        return Answer(place, text, chunk, rests)


def _told(place: str, look: Look) -> tuple[str, str]:
    """The next place and JSON of finite numbers; what cannot be read is said on the page."""
    try:
        news = look(place)
        return news.place, _json(news.events) if news.events else ""
    except MALFORMED as error:
        return place, _json([("problem", f"This cannot be read: {error}")])


def _json(events: Sequence[Event]) -> str:
    return json.dumps(plain(events), allow_nan=False, separators=(",", ":"))
