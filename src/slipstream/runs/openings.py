"""Openings: which days of which prices a user has seen the outcome of, and by what.

A hold-out proves something once. Every opening is written down before it happens, with the daily
returns of its prices, in the user's state folder and again beside the study: a study under another
home, or in another folder, still finds it. Prices are known by their returns, whatever they are
called. Test splits of runs and evaluations are written down as looks, which are only listed.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import SlipstreamError
from slipstream.core.market_pass import SymbolPass
from slipstream.environments.environment import Environment
from slipstream.files.register import state_folder
from slipstream.market.calendar import DayRoll, day_number
from slipstream.market.planted.prices import is_planted

FILE = "openings.db"
SAME = 0.99  # correlation of daily returns from which on prices are the same
FEWEST_SHARED = 20  # days
_BUSY_SECONDS = 30.0
_TABLES = """
CREATE TABLE IF NOT EXISTS seen (
    number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
    name TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS prices (digest TEXT PRIMARY KEY, days BLOB, returns BLOB);
CREATE TABLE IF NOT EXISTS of (
    number INTEGER NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (number, digest));
"""


class PriceSeries(NamedTuple):
    """Daily close-to-close log returns of one symbol [n]; NaN on days without one."""

    days: NDArray[np.int64]
    returns: NDArray[np.float64]


@dataclass(frozen=True)
class Opening:
    """What is known of one opening of a hold-out.

    Attributes:
        number: which opening of these days it is; 0 where there is nothing to open.
        before: the studies that opened some of them before.
        opened: days that were.
        looks: runs and evaluations that showed an outcome of some of them.
        unknown: why it is not known whether others opened them; empty where it is.
    """

    number: int = 0
    before: tuple[str, ...] = ()
    opened: frozenset[int] = frozenset()
    looks: tuple[str, ...] = ()
    unknown: str = ""

    def facts(self) -> dict[str, Any]:
        """As in `result.json`; `opening` alone where there is nothing more."""
        told = {"before": self.before, "looks": self.looks, "unknown": self.unknown}
        return {"opening": self.number, **{k: v for k, v in told.items() if v}}


def open_days(
    prices: Sequence[PriceSeries],
    key: str,
    name: str,
    beside: Path,
    own: int,
    now: float | None = None,
) -> Opening:
    """Writes an opening down, on disk when this returns, and says what was known before.

    Args:
        prices: of the hold-out; none of a market of our own generators, which is not written down.
        key: the same for the same opening: a resumed study opens once.
        name: of the study, for others.
        beside: the folder that its studies lie in.
        own: which opening of its hold-out the study itself counts.
        now: UTC seconds.
    """
    if not prices:
        return Opening(own)
    known: dict[str, tuple[str, str, set[int]]] = {}
    unknown = ""
    entry = (key, "opening", name, time.time() if now is None else now)
    try:
        with ExitStack() as both:  # the first is held until the second is written: one order
            for place in (None, beside):
                try:
                    path = beside / f".{FILE}" if place else state_folder("holdouts") / FILE
                    known |= _enter(both.enter_context(_register(path)), entry, prices)
                except (SlipstreamError, sqlite3.Error, OSError) as error:
                    unknown = unknown if place else str(error).rstrip(".")
    except sqlite3.Error as error:  # it could not be written in the end
        unknown = str(error)
    before = [text for kind, text, _ in known.values() if kind == "opening"]
    looks = [text for kind, text, _ in known.values() if kind == "look"]
    opened: set[int] = set().union(*(days for kind, _, days in known.values() if kind == "opening"))
    if own > 1:  # what the study itself opened, wherever its register went
        opened.update(*(one.days.tolist() for one in prices))
    number = max(own, 1 + len(before))
    return Opening(number, tuple(before), frozenset(opened), tuple(looks), unknown)


def look(environment: Environment, what: str) -> None:
    """Writes down that something showed an outcome of a test split or of a chosen window.

    Where that cannot be written, it is not: looks take nothing off a bound.
    """
    for split in {"test", "window"} & set(environment.splits()):
        with suppress(SlipstreamError, sqlite3.Error, OSError):
            prices = price_series(environment, split)
            if prices:
                entry = (f"{what}:{split}", "look", what, time.time())
                with _register(state_folder("holdouts") / FILE) as db:
                    _enter(db, entry, prices)


def opened_days(prices: Sequence[PriceSeries]) -> frozenset[int]:
    """Days of these prices that some study of this user has opened a hold-out on."""
    with _register(state_folder("holdouts") / FILE) as db:
        rows = db.execute(
            "SELECT days, returns FROM seen JOIN of USING (number) JOIN prices USING (digest) "
            "WHERE kind = 'opening'"
        ).fetchall()
    return frozenset().union(*(_shared(_prices(*blobs), prices) for blobs in rows))


@contextmanager
def _register(path: Path) -> Iterator[sqlite3.Connection]:
    """A register in one transaction, on disk after it: of two studies at once, one is the first."""
    with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous=EXTRA")  # also its folder's entry survives a power loss
        db.execute("BEGIN IMMEDIATE")
        for statement in _TABLES.split(";")[:-1]:
            db.execute(statement)
        yield db
        db.execute("COMMIT")


def _enter(
    db: sqlite3.Connection, entry: tuple[str, str, str, float], prices: Sequence[PriceSeries]
) -> dict[str, tuple[str, str, set[int]]]:
    """Writes an entry, and returns the earlier ones over the same prices: kind, name, days."""
    db.execute("INSERT OR IGNORE INTO seen (key, kind, name, at) VALUES (?, ?, ?, ?)", entry)
    ((number,),) = db.execute("SELECT number FROM seen WHERE key = ?", entry[:1])
    for one in prices:
        blobs = (one.days.astype("<i8").tobytes(), one.returns.astype("<f8").tobytes())
        digest = hashlib.sha256(b"".join(blobs)).hexdigest()
        db.execute("INSERT OR IGNORE INTO prices VALUES (?, ?, ?)", (digest, *blobs))
        db.execute("INSERT OR IGNORE INTO of VALUES (?, ?)", (number, digest))
    rows = db.execute("SELECT digest, days, returns FROM prices").fetchall()
    shared = {digest: _shared(_prices(*blobs), prices) for digest, *blobs in rows}
    found: dict[str, tuple[str, str, set[int]]] = {}
    for key, kind, name, at, digest in db.execute(
        "SELECT key, kind, name, at, digest FROM seen JOIN of USING (number) WHERE number < ? "
        "ORDER BY number",
        (number,),
    ):
        if shared[digest]:
            when = time.strftime("%Y-%m-%d", time.gmtime(at))
            found.setdefault(key, (kind, f"{name} ({when})", set()))[2].update(shared[digest])
    return found


def _prices(days: bytes, returns: bytes) -> PriceSeries:
    return PriceSeries(np.frombuffer(days, "<i8"), np.frombuffer(returns, "<f8"))


def _shared(old: PriceSeries, new: Sequence[PriceSeries]) -> set[int]:
    """Days of an old series that are also days of the same prices in some new one."""
    found: set[int] = set()
    for one in new:
        days, mine, theirs = np.intersect1d(one.days, old.days, return_indices=True)
        pairs = np.array([one.returns[mine], old.returns[theirs]])
        pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
        moves = len(pairs[0]) >= FEWEST_SHARED and pairs.std(axis=1).min() > 0.0
        if moves and np.corrcoef(pairs)[0, 1] > SAME:
            found.update(days.tolist())
    return found


def price_series(environment: Environment, split: str) -> list[PriceSeries]:
    """Daily returns of every symbol on a split's days; none of our own generators' markets.

    Where a kernel does not declare its prices, a number for each day that follows from its arrays
    stands for them: equal arrays are the same prices.
    """
    rules = environment.prices
    if rules is None:
        return []
    data = (environment.provenance.get("settings") or {}).get("data") or {}
    if "folder" in data and not data.get("files") and is_planted(data["folder"]):
        return []
    kernel, loaded = rules
    found: dict[tuple[Any, ...], list[PriceSeries]] = {}
    for record in loaded.params[split]:
        market = kernel.spec(record, loaded.data).market
        assert market is not None
        roll = cast(DayRoll, market.day_roll)
        if kernel.market_pass is None:
            assert kernel.timeline is not None
            days = np.unique(day_number(kernel.timeline(record, loaded.data) - 1, roll))
            found.setdefault((), []).append(PriceSeries(days, _stand_in(loaded.data, days)))
            continue
        one = kernel.market_pass(record, loaded.data)
        rows = slice(one.history if isinstance(one, SymbolPass) else 0, one.last + 1)
        day = day_number(one.time[rows] + market.bar_seconds - 1, roll)
        ends = np.flatnonzero(np.diff(day, append=day[-1] + 1))
        close = one.close.reshape(len(one.close), -1)[rows][ends]
        with np.errstate(divide="ignore", invalid="ignore"):  # 0: not listed
            returns = np.diff(np.log(close), axis=0, prepend=np.nan)
        inside = day[ends] >= day[one.first - rows.start]
        for asset, column in enumerate(returns.T):
            prices = PriceSeries(day[ends][inside], column[inside])
            found.setdefault((market.symbols, asset), []).append(prices)
    return [
        PriceSeries(*(np.concatenate(part) for part in zip(*one, strict=True)))
        for one in found.values()
    ]


def _stand_in(data: Any, days: NDArray[np.int64]) -> NDArray[np.float64]:
    digest = hashlib.sha256()
    for array in data:
        digest.update(np.ascontiguousarray(array).tobytes())
    seed = int.from_bytes(digest.digest()[:8], "big")
    return np.array([np.random.default_rng([seed, day]).random() for day in days.tolist()])
