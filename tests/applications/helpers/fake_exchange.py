"""An exchange on this machine that speaks Alpaca's documented JSON, with a bad week of its own.

What it does to whom is a function of (bar, symbol, attempt), so that a client that was killed and
one that was not meet the same. Its clock is virtual and waits for the client: it moves only when
the client sleeps. Faults: orders that are taken and never answered, not taken, held up until they
were missed, refused, rejected, filled in part, late or after their end was asked for; orders listed
twice; status 429; an hour without answers; a clock that is minutes off; a bar that is revised for a
while and one that comes late; two pages of bars. New York's clock changes within the week.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import struct
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import requests

INCREMENT, LEAST = 1e-6, 1e-3  # coins
PAGE = 100  # bars, however many are asked for
LATE_POST = 3.0  # seconds, and the client's first look at its orders comes after 2


def iso(second: float, zone: ZoneInfo | None = None) -> str:
    moment = datetime.fromtimestamp(second, zone or UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


class Clock:
    """Seconds that all processes of a test share."""

    def __init__(self, begin: float) -> None:
        self._block = mmap.mmap(-1, 8)
        self.set(begin)

    def set(self, second: float) -> None:
        self._block[:8] = struct.pack("d", second)

    def __call__(self) -> float:
        return float(struct.unpack("d", self._block[:8])[0])

    def sleep(self, seconds: float) -> None:
        self.set(self() + seconds)


class Week(NamedTuple):
    """Schedule of faults; the default has none.

    Attributes:
        seed: of all draws; None: every order is filled at once.
        outage: [begin, end) without answers; clocks: [(begin, end, seconds off)].
        revised: (open of a bar, begin, end) in which it is told with another volume.
        late: opens of bars that come 10 s late.
    """

    seed: int | None = None
    outage: tuple[float, float] = (0.0, 0.0)
    clocks: tuple[tuple[float, float, float], ...] = ()
    revised: tuple[int, float, float] = (0, 0.0, 0.0)
    late: frozenset[int] = frozenset()


class Exchange:
    """Its whole state; one lock, for requests come one by one."""

    def __init__(
        self, tables: Mapping[str, pl.DataFrame], size: int, clock: Clock, cash: float, week: Week
    ) -> None:
        self.size, self.clock, self.cash, self.week = size, clock, cash, week
        self.bars = {f"{name[:-3]}/USD": _columns(frame) for name, frame in tables.items()}
        self.positions = dict.fromkeys(self.bars, 0.0)
        self.orders: dict[str, dict[str, Any]] = {}
        self.known: dict[tuple[int, str], list[str]] = {}  # ids that arrived, refused ones too
        self.delayed: list[tuple[float, dict[str, Any]]] = []  # orders, and when they arrive
        self.counts = Counter[Any]()
        self.lock = Lock()

    def bar(self) -> int:
        """The last one that has closed."""
        return int(self.clock() // self.size - 1) * self.size

    def draw(self, *what: object) -> float:
        return random.Random(f"{self.week.seed}/{what}").random()

    def told_clock(self) -> float:
        now = self.clock()
        return now + sum(off for begin, end, off in self.week.clocks if begin <= now < end)

    def price(self, symbol: str) -> float:
        table = self.bars[symbol]
        return float(table["close"][np.searchsorted(table["time"], self.bar(), "right") - 1])

    def answer(self, method: str, url: str, body: bytes) -> tuple[int, Any, bool]:
        """Status, JSON, and whether the connection breaks instead."""
        parts = urlsplit(url)
        words = {key: value[0] for key, value in parse_qs(parts.query).items()}
        if parts.path == "/state":
            self._move()
            return 200, self.state(), False
        begin, end = self.week.outage
        if begin <= self.clock() < end:
            return 503, {"message": "service unavailable"}, False
        self._move()
        if method == "POST":
            return self._take(json.loads(body))
        place = (self.bar(), method, parts.path.split("/orders/")[0])
        self.counts[place] += 1
        if self.week.seed is not None and self.counts[place] == 1 and self.draw(*place) < 0.1:
            return 429, {"code": 42910000, "message": "rate limit exceeded"}, False
        if method == "DELETE":
            return self._cancel(parts.path.rpartition("/")[2])
        return 200, self._get(parts.path, words), False

    def _get(self, path: str, words: Mapping[str, str]) -> Any:
        if path == "/v2/clock":
            return {"timestamp": iso(self.told_clock(), ZoneInfo("America/New_York"))}
        if path == "/v2/assets":
            return [
                {
                    **{"id": name, "class": "crypto", "symbol": name, "status": "active"},
                    **{"min_order_size": str(LEAST), "min_trade_increment": f"{INCREMENT:.6f}"},
                    "price_increment": "0.01",
                }
                for name in self.bars
            ]
        if path == "/v2/account":
            equity = f"{self.equity():.6f}"  # sums in another order differ in the last bits
            return {"equity": equity, "cash": str(self.cash), "currency": "USD"}
        if path == "/v2/positions":
            return [
                {"symbol": name.replace("/", ""), "qty": repr(held), "side": "long"}
                for name, held in self.positions.items()
                if abs(held) > 1e-12
            ]
        if path == "/v2/orders":
            return self._listed(words)
        if path == "/v1beta3/crypto/us/bars":
            return self._told(words)
        raise AssertionError(path)

    def equity(self) -> float:
        return self.cash + sum(held * self.price(name) for name, held in self.positions.items())

    def _listed(self, words: Mapping[str, str]) -> list[dict[str, Any]]:
        assert words["status"] == "all" and words["direction"] == "asc"
        after = datetime.fromisoformat(words["after"]).timestamp()
        found = []
        for order in sorted(self.orders.values(), key=lambda one: float(one["at"])):
            if order["at"] <= after:
                continue
            if order["status"] == "filled" and self.draw("twice", order["client_order_id"]) < 0.3:
                half = {"status": "partially_filled", "filled_qty": repr(float(order["qty"]) / 2)}
                found.append(order | half)
            found.append(order)
        return found[: int(words["limit"])]

    def _told(self, words: Mapping[str, str]) -> dict[str, Any]:
        table, now = self.bars[words["symbols"]], self.told_clock()
        begin = datetime.fromisoformat(words["start"]).timestamp()
        times = table["time"]
        there = (times >= begin) & (times <= now)  # the open one, too
        for late in self.week.late:
            there &= (times != late) | (self.clock() >= late + self.size + 10.0)
        rows = np.flatnonzero(there)
        revised, since, until = self.week.revised
        told = []
        for k in rows[:PAGE]:
            names = zip("ohlcv", ("open", "high", "low", "close", "volume"), strict=True)
            bar = {key: float(table[name][k]) for key, name in names}
            if times[k] == revised and since <= self.clock() < until:
                bar["v"] += 1.0
            if times[k] + self.size > self.clock():  # still open
                bar |= {"c": bar["o"], "h": bar["o"], "l": bar["o"]}
            told.append(bar | {"t": iso(float(times[k]))[:19] + "Z", "n": 1, "vw": bar["c"]})
        token = "more" if len(rows) > PAGE else None
        return {"bars": {words["symbols"]: told}, "next_page_token": token}

    def _take(self, order: dict[str, Any]) -> tuple[int, Any, bool]:
        client, symbol = order["client_order_id"], order["symbol"]
        self.counts["post", client] += 1
        attempt, bar = self.counts["post", client], self.bar()
        if client in self.orders:
            return 422, {"code": 40010001, "message": "client_order_id must be unique"}, False
        same = self.known.setdefault((bar, symbol), [])
        same += [] if client in same else [client]
        number = same.index(client)
        kind = "filled" if self.week.seed is None else self._fate(bar, symbol, number)
        luck = 1.0 if self.week.seed is None else self.draw("post", bar, symbol, number)
        if attempt == 1 and luck < 0.1:
            return 429, {"code": 42910000, "message": "rate limit exceeded"}, False
        if attempt == 1 and luck < 0.2:  # lost on its way, or held up
            self.delayed += [(self.clock() + LATE_POST, order)] if luck < 0.15 else []
            return 0, None, True
        if kind == "refused":
            message = f"insufficient balance for {symbol}"
            return 403, {"code": 40310000, "message": message}, False
        assert order["type"] == "market" and float(order["qty"]) >= LEAST
        now, sign = self.clock(), 1.0 if order["side"] == "buy" else -1.0
        slip = 1.0 + sign * 2e-4 + 1e-4 * (self.draw("slip", bar, symbol, number) - 0.5)
        made = order | {
            **{"id": f"own-{len(self.orders)}", "filled_qty": "0", "filled_avg_price": None},
            **{"status": "new", "submitted_at": iso(now), "at": now, "bar": bar, "kind": kind},
            **{"price": self.price(symbol) * slip, "number": number, "equity": self.equity()},
        }
        notional = float(order["qty"]) * self.price(symbol)
        made["notional_share"] = notional / self.equity()
        made["held_after"] = self.equity() - self.cash + sign * notional
        self.orders[client] = made
        self._move()
        return 200, made, attempt == 1 and luck < 0.35  # taken, and never answered

    def _fate(self, bar: int, symbol: str, number: int) -> str:
        luck = self.draw("fate", bar, symbol, number)
        kinds = ("refused", "rejected", "partial", "late", "too late", "stubborn")
        return kinds[int(luck * 20)] if luck * 20 < len(kinds) else "filled"

    def _cancel(self, own: str) -> tuple[int, Any, bool]:
        order = next(one for one in self.orders.values() if one["id"] == own)
        if order["status"] in ("new", "partially_filled"):
            if order["kind"] == "stubborn":  # it is filled before the request arrives
                self._fill(order, 1.0, "filled")
            else:
                order["status"] = "canceled"
        return 204, None, False

    def _move(self) -> None:
        """Whatever happens to open orders by now, and to those that were held up."""
        arrived = [order for at, order in self.delayed if at <= self.clock()]
        self.delayed = [one for one in self.delayed if one[0] > self.clock()]
        for order in arrived:
            self._take(order)
        for order in self.orders.values():
            if order["status"] not in ("new", "partially_filled"):
                continue
            age, kind = self.clock() - order["bar"] - self.size, order["kind"]
            if kind == "filled" or (kind == "late" and age >= 0.6 * self.size):
                self._fill(order, 1.0, "filled")
            elif kind == "rejected":
                order["status"] = "rejected"
            elif kind == "partial":
                if order["status"] == "new":
                    self._fill(order, 0.4, "partially_filled")
                if age >= 0.2 * self.size:
                    order["status"] = "canceled"

    def _fill(self, order: dict[str, Any], share: float, status: str) -> None:
        size = round(share * float(order["qty"]) / INCREMENT) * INCREMENT
        more = size - float(order["filled_qty"])
        sign = 1.0 if order["side"] == "buy" else -1.0
        self.positions[order["symbol"]] += sign * more
        self.cash -= sign * more * order["price"]
        facts = {"filled_qty": repr(size), "filled_avg_price": repr(order["price"])}
        order |= facts | {"status": status}

    def state(self) -> dict[str, Any]:
        posts = {key[1]: n for key, n in self.counts.items() if key[:1] == ("post",)}
        return {
            **{"positions": self.positions, "cash": self.cash, "posts": posts},
            **{"orders": self.orders, "equity": self.equity()},
        }


def _columns(frame: pl.DataFrame) -> dict[str, Any]:
    stamps = [one.removesuffix("Z") for one in frame["time"].to_list()]
    opens = np.array(stamps, "datetime64[s]").astype(np.int64)
    return {"time": opens, **{name: frame[name].to_numpy() for name in frame.columns[1:]}}


class Server:
    """The exchange in a process of its own.

    Attributes:
        url: of it; clock: which it shares with its clients.
    """

    def __init__(
        self,
        tables: Mapping[str, pl.DataFrame],
        size: int,
        begin: float,
        cash: float,
        week: Week | None = None,
    ) -> None:
        self.clock = Clock(begin)
        exchange = Exchange(tables, size, self.clock, cash, week or Week())
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(exchange))
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}"
        self._process = os.fork()
        if self._process == 0:
            try:
                server.serve_forever()
            finally:
                os._exit(0)
        server.socket.close()

    def state(self) -> dict[str, Any]:
        return dict(requests.get(f"{self.url}/state", timeout=10).json())

    def close(self) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


def _handler(exchange: Exchange) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # one packet an answer

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with exchange.lock:
                status, answer, breaks = exchange.answer(self.command, self.path, body)
                text = b"" if answer is None else json.dumps(answer).encode()
            if breaks:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815

        def log_message(self, *words: Any) -> None:
            pass

    return Handler
