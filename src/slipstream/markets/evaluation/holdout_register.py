"""Hold-out register: days of prices that a user has searched on or has evaluated.

A hold-out is evidence only once, and only on days that no study has searched on. A study registers
its development days before it searches, and the days of its hold-out before it opens it. Both
entries are written to the user's state folder and to a file beside the study, so a study under
another home or in another folder finds them. Prices are identified by their returns, not by names:
the same prices under another name, bar length, time zone, side or inverted are recognised.
Evaluations of test splits are registered as accesses, which are only listed.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import SlipstreamError
from slipstream.core.storage.database import (
    MOMENT,
    ColumnRule,
    StoredTable,
    connect_writer,
    database_errors,
)
from slipstream.core.storage.folder_registry import state_folder
from slipstream.core.text import as_utf8, date_text
from slipstream.core.timeline import DAY, HOLDOUT, DayRoll, day_closes, day_number
from slipstream.markets.backtest_spec import SymbolBacktestSpec
from slipstream.markets.synthetic import is_synthetic
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.kernel_environment import Timeline
from slipstream.training.environments.parts import FEWEST_SHARED, HoldoutRegister, Opening

FILE = "openings.db"
MIN_CORRELATION = 0.95  # smallest absolute correlation of log returns of the same prices
_APART, _UNRELATED = 0.3, 0.6  # of daily variance, of von Neumann's ratio: see `_together`
LAGS = sorted(range(-26, 27), key=abs)  # hours between two files' timestamps of the same prices
HOUR = 3_600
SEARCH, OPENING, ACCESS = "search", "opening", "look"
_BUSY_SECONDS = 30.0
_TABLES = """
CREATE TABLE IF NOT EXISTS seen (
    number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
    name TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS prices (digest TEXT PRIMARY KEY, days BLOB, returns BLOB);
CREATE TABLE IF NOT EXISTS of (
    number INTEGER NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (number, digest));
CREATE TABLE IF NOT EXISTS series (
    digest TEXT PRIMARY KEY, step INTEGER NOT NULL, at BLOB NOT NULL, close BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS spans (
    number INTEGER NOT NULL, digest TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    PRIMARY KEY (number, digest));
CREATE TABLE IF NOT EXISTS trials (key TEXT PRIMARY KEY, num_trials INTEGER NOT NULL);
"""  # `prices` and `of` hold daily returns of older registers without `series`
Array = NDArray[Any]
_REMEDY = (
    "Restore the file from a backup, or move it away; earlier openings of hold-outs are then "
    "unknown."
)
_KINDS, _ROW = ColumnRule(str, words=(SEARCH, OPENING, ACCESS)), ColumnRule(int, -(2**53), 2**53)
_SEEN = StoredTable("seen", _TABLES, _REMEDY, kind=_KINDS, at=MOMENT)
_PRICES, _OF = StoredTable("prices", _TABLES, _REMEDY), StoredTable("of", _TABLES, _REMEDY)
_SERIES = StoredTable("series", _TABLES, _REMEDY)
_TRIALS = StoredTable("trials", _TABLES, _REMEDY, asked=ColumnRule(int, 0, 2**53))
_SPANS = StoredTable("spans", _TABLES, _REMEDY, first=_ROW, last=_ROW)
_TYPES = ("<i8", "<f8")  # of times and values
_MOST_ROWS = 1 << 24  # hours of 1,900 years, between the first and the last of a series


class PriceSeries(NamedTuple):
    """Log closes of one symbol [n], hourly, or daily if its bars are longer than an hour.

    Attributes:
        step: seconds of a row: HOUR or DAY.
        row_index: int64 [n], increasing: hours since 1970 UTC, or trading days.
        close: float64 [n], logarithm of the row's last close.
        day: int64 [n], trading day of the row.
        selected: bool [n], rows of the days in question; the others only help to identify prices.
    """

    step: int
    row_index: NDArray[np.int64]
    close: NDArray[np.float64]
    day: NDArray[np.int64]
    selected: NDArray[np.bool_]

    @classmethod
    def from_returns(cls, days: Array, returns: Array) -> PriceSeries:
        """Create a daily series from log returns; NaN counts as 0."""
        close = np.cumsum(np.nan_to_num(returns))
        return cls(DAY, days, close, days, np.ones(len(days), np.bool_))

    @property
    def days(self) -> frozenset[int]:
        """Selected trading days."""
        return frozenset(self.day[self.selected].tolist())


def record_opening(
    prices: Sequence[PriceSeries],
    key: str,
    name: str,
    beside: Path,
    own_openings: int,
    now: float | None = None,
) -> Opening:
    """Record an opening of a hold-out with these prices, at `now`; see `HoldoutRegister.open`."""
    if not prices:
        return Opening(own_openings)
    matches, unknown = _record_both((key, OPENING, name, _now(now)), prices, beside)
    named = {
        kind: tuple(text for entry_kind, text, _ in matches.values() if entry_kind == kind)
        for kind in (OPENING, SEARCH, ACCESS)
    }
    used = (days for kind, _, days in matches.values() if kind != ACCESS)
    opened = frozenset[int]().union(*used)
    if own_openings > 1:  # openings by the study itself, even if its register was lost
        opened = opened.union(*(series.days for series in prices))
    number = max(own_openings, 1 + len(named[OPENING]))
    compared = max(len(np.unique(series.day)) for series in prices)
    return Opening(
        number,
        named[OPENING],
        opened,
        named[ACCESS],
        unknown,
        named[SEARCH],
        compared if compared < FEWEST_SHARED else 0,
    )


def register_search(
    prices: Sequence[PriceSeries],
    study: str,
    name: str,
    beside: Path,
    now: float | None = None,
    trials: int = 0,
) -> dict[str, Any]:
    """Record a study's development days with these prices; see `HoldoutRegister.begin_search`.

    A register that cannot be written is reported when the hold-out is opened.
    """
    if not prices:
        return {}
    matches, _ = _record_both((search_key(study), SEARCH, name, _now(now)), prices, beside)
    searches = {key: text for key, (kind, text, _) in matches.items() if kind == SEARCH}
    counts = count_trials(study, trials, beside)
    trial_counts = [counts[key] for key in searches if key in counts]
    missing = len(searches) - len(trial_counts)
    summary = {"studies": [*searches.values()], "trials": sum(trial_counts), "unknown": missing}
    return summary if searches else {}


def count_trials(study: str, trials: int, beside: Path) -> dict[str, int]:
    """Write the number of trials of a search into both registers; return those of all searches."""
    counts: dict[str, int] = {}
    for folder in (None, beside):
        with suppress(SlipstreamError, OSError), _register(_path(folder)) as db:
            row = (search_key(study), trials)
            db.execute("INSERT OR REPLACE INTO trials VALUES (?, ?)", row)
            counts |= _trials_in(db)
    return counts


def _trials_in(db: sqlite3.Connection) -> dict[str, int]:
    """Return the number of trials of each search by its key."""
    return dict(_TRIALS.read(db, make=lambda row: (str(row[0]), int(row[1]))))


def search_key(study: str) -> str:
    """Key of the entry with the development days of a study, by its id."""
    return f"{study}/search"


def get_searched_days(
    study: str, prices: Sequence[PriceSeries], beside: Path
) -> frozenset[int] | None:
    """Return the selected days of these prices that the study of this id searched on.

    None if no register contains the study.
    """
    searched: set[int] = set()
    is_known = False
    for path in map(_path, (None, beside)):
        if path.exists():
            with _register(path) as db:
                key = (search_key(study),)
                is_known = is_known or bool(_SEEN.read(db, "WHERE key = ?", key))
                searched.update(*(days for *_, days in _matches(db, prices, "WHERE key = ?", key)))
    return frozenset(searched) if is_known else None


def _path(beside: Path | None = None) -> Path:
    """Return the user's own register, or the one beside the studies of a folder."""
    return state_folder("holdouts") / FILE if beside is None else beside / f".{FILE}"


def _now(now: float | None) -> float:
    return time.time() if now is None else now


def _record_both(
    entry: tuple[str, str, str, float], prices: Sequence[PriceSeries], beside: Path
) -> tuple[dict[str, tuple[str, str, set[int]]], str]:
    """Write an entry into both registers.

    Returns:
        The earlier entries over the same prices by key (kind, name, days), and why the user's own
        register could not be used; empty if it was.
    """
    matches: dict[str, tuple[str, str, set[int]]] = {}
    unknown = ""
    try:
        with ExitStack() as locks:  # holds the first until the second is written: fixed lock order
            for folder in (None, beside):
                try:
                    matches |= _record(locks.enter_context(_register(_path(folder))), entry, prices)
                except (SlipstreamError, OSError) as error:
                    unknown = unknown if folder else str(error).rstrip(".")
    except SlipstreamError as error:  # the commit failed
        unknown = str(error).rstrip(".")
    return matches, unknown


def get_opened_days(prices: Sequence[PriceSeries]) -> frozenset[int]:
    """Return the days of these prices that some study of this user has opened a hold-out on."""
    with _register(_path()) as db:
        matches = _matches(db, prices, "WHERE kind = ?", (OPENING,))
        return frozenset[int]().union(*(days for *_, days in matches))


@contextmanager
def _register(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a register in one transaction, durable on commit; concurrent studies are serialised."""
    with database_errors(path, _REMEDY), closing(connect_writer(path, _BUSY_SECONDS)) as db:
        db.execute("PRAGMA synchronous=EXTRA")  # the folder's entry survives a power loss
        db.execute("BEGIN IMMEDIATE")
        for statement in _TABLES.split(";")[:-1]:
            db.execute(statement)
        yield db
        db.execute("COMMIT")


def _record(
    db: sqlite3.Connection, entry: tuple[str, str, str, float], prices: Sequence[PriceSeries]
) -> dict[str, tuple[str, str, set[int]]]:
    """Write an entry and return the earlier ones over the same prices: kind, name, days.

    A study's own development days do not count as an earlier entry of its hold-out.
    """
    db.execute("INSERT OR IGNORE INTO seen (key, kind, name, at) VALUES (?, ?, ?, ?)", entry)
    (number,), *_ = _SEEN.read(db, "WHERE key = ?", entry[:1], ("number",))
    for series in prices:
        rows = np.flatnonzero(series.selected)
        if len(rows):
            span = (int(series.row_index[rows[0]]), int(series.row_index[rows[-1]]))
            spanned = (number, _store(db, series), *span)
            db.execute("INSERT OR IGNORE INTO spans VALUES (?, ?, ?, ?)", spanned)
    entries: dict[str, tuple[str, str, set[int]]] = {}
    own_key = search_key(entry[0].rpartition("/")[0])
    where = ("WHERE seen.number < ? AND key != ?", (number, own_key))
    for key, kind, name, at, days in _matches(db, prices, *where):
        entries.setdefault(key, (kind, f"{name} ({date_text(at)})", set()))[2].update(days)
    return entries


def _store(db: sqlite3.Connection, new: PriceSeries) -> str:
    """Return the digest of the stored series that contains these closes.

    A series that continues a stored one extends it: nightly studies over a growing file share one.
    """
    for digest, old in _series(db).items():
        if old.step != new.step:
            continue
        _, new_rows, old_rows = np.intersect1d(
            new.row_index, old.row_index, assume_unique=True, return_indices=True
        )
        days = len(np.unique(new.day[new_rows]))
        if days >= FEWEST_SHARED and np.abs(new.close[new_rows] - old.close[old_rows]).max() < 1e-9:
            at, first = np.unique(np.concatenate([old.row_index, new.row_index]), return_index=True)
            if len(at) > len(old.row_index):
                close = np.concatenate([old.close, new.close])[first]
                row = (at.astype("<i8").tobytes(), close.astype("<f8").tobytes(), digest)
                db.execute("UPDATE series SET at = ?, close = ? WHERE digest = ?", row)
            return digest
    blobs = (new.row_index.astype("<i8").tobytes(), new.close.astype("<f8").tobytes())
    digest = hashlib.sha256(b"".join(blobs)).hexdigest()
    db.execute("INSERT OR IGNORE INTO series VALUES (?, ?, ?, ?)", (digest, new.step, *blobs))
    return digest


def _series(db: sqlite3.Connection) -> dict[str, PriceSeries]:
    """Return every stored series by its digest."""
    return dict(_SERIES.read(db, make=_stored))


def _stored(row: Sequence[Any]) -> tuple[str, PriceSeries]:
    """Return a row of `series`, or of `prices` with the step DAY before it, by its digest.

    Raises:
        ValueError: its columns contradict each other.
    """
    digest, step, *blobs = row
    at, values = (
        np.frombuffer(blob or b"", kind) for blob, kind in zip(blobs, _TYPES, strict=True)
    )
    rises = len(at) > 0 and bool((np.diff(at) > 0).all()) and at[-1] - at[0] < _MOST_ROWS
    if step not in (HOUR, DAY) or len(at) != len(values) or not rises:
        raise ValueError("holds times that do not rise, or not one value for each")
    return digest, PriceSeries(step, at, values, at, np.ones(len(at), np.bool_))


def _matches(
    db: sqlite3.Connection, prices: Sequence[PriceSeries], where: str, values: tuple[Any, ...]
) -> Iterator[tuple[str, str, str, float, set[int]]]:
    """Yield entries over the same prices: key, kind, name, time and selected days they cover."""
    series_by_digest = _series(db)
    for digest, stored in _PRICES.read(db, make=lambda row: _stored([row[0], DAY, *row[1:]])):
        series_by_digest[digest] = PriceSeries.from_returns(stored.row_index, stored.close)
    aligned: dict[str, list[tuple[PriceSeries, Array]]] = {}
    entries = {row[0]: row[1:] for row in _SEEN.read(db, where, values)}
    spans = [*_SPANS.read(db), *((*row, None, None) for row in _OF.read(db))]
    for number, digest, first, last in sorted(spans, key=lambda row: row[0]):
        if number not in entries:
            continue
        key, kind, name, at = entries[number]
        old = series_by_digest.get(digest)
        if old is None:
            raise _SPANS.refusal(db, f"refers to the series {digest[:12]}, which is missing")
        if digest not in aligned:
            pairs = ((series, _align(old, series)) for series in prices)
            aligned[digest] = [(series, rows) for series, rows in pairs if rows is not None]
        first, last = (old.row_index[0], old.row_index[-1]) if first is None else (first, last)
        days: set[int] = set()
        for series, rows in aligned[digest]:
            days.update(series.day[series.selected & (rows >= first) & (rows <= last)].tolist())
        if days:
            yield key, kind, name, at, days


def _align(old: PriceSeries, new: PriceSeries) -> Array | None:
    """Map rows of `new` to values of `old.row_index` if both are the same prices at some lag."""
    if old.step == new.step:
        lags = LAGS if new.step == HOUR else (0, 1, -1)
        a, b = (
            _RegularGrid.from_series(old.row_index, old.close),
            _RegularGrid.from_series(new.row_index, new.close),
        )
        days = 24 if new.step == HOUR else 1
        alignment = next(([lag] for lag in lags if _is_correlated(a, b, lag, days)), [])
        if not alignment and new.step == DAY:  # days may begin at different hours
            alignment = [lag for lag in lags if _is_cointegrated(a, b, lag)]
        return new.row_index - alignment[0] if alignment else None
    hourly, daily = (old, new) if old.step == HOUR else (new, old)
    b = _RegularGrid.from_series(daily.row_index, daily.close)
    for roll in range(24):  # hour at which the daily file's day may begin
        day = (hourly.row_index - roll) // 24
        ends = day_closes(day)
        a = _RegularGrid.from_series(day[ends], hourly.close[ends])
        for lag in (0, 1, -1):
            if _is_correlated(a, b, lag, 1):
                return day + lag if new is hourly else (new.row_index - lag) * 24 + roll + 12
    return None


class _RegularGrid(NamedTuple):
    """Closes on every step from the first on; NaN if there is none."""

    first: int
    close: NDArray[np.float64]

    @classmethod
    def from_series(cls, at: Array, close: Array) -> _RegularGrid:
        grid = np.full(int(at[-1] - at[0]) + 1, np.nan)
        grid[at - at[0]] = close
        return cls(int(at[0]), grid)


def _is_correlated(a: _RegularGrid, b: _RegularGrid, lag: int, day: int) -> bool:
    """Return True if log returns correlate at a lag of `a`; `day` steps are a day."""
    pair = _common(a, b, lag, day)
    if pair is None:
        return False
    moves = np.diff(pair, axis=1)
    moves -= moves.mean(axis=1, keepdims=True)
    x, y = moves
    scale = np.sqrt((x @ x) * (y @ y))
    return bool(scale > 0.0 and abs(x @ y) >= MIN_CORRELATION * scale)


def _is_cointegrated(a: _RegularGrid, b: _RegularGrid, lag: int) -> bool:
    """Return True if daily closes stay together, as those of the same prices at other hours do.

    Their difference is then the return of a few hours, which is independent from day to day (von
    Neumann's ratio of about 1). The difference to other prices drifts, even if returns correlate.
    """
    pair = _common(a, b, lag, 1)
    if pair is None:
        return False
    for sign in (1, -1):  # also inverted prices
        apart = pair[0] - sign * pair[1]
        spread = apart.var()
        if 0.0 < spread <= _APART * np.diff(pair[0]).var():
            return bool((np.diff(apart) ** 2).mean() >= 2 * _UNRELATED * spread)
    return False


def _common(a: _RegularGrid, b: _RegularGrid, lag: int, day: int) -> Array | None:
    """Return closes of both at common steps [2, n] at a lag of `a`; None if too few days."""
    shift = a.first + lag
    first = max(shift, b.first)
    last = min(shift + len(a.close), b.first + len(b.close))
    if last - first < FEWEST_SHARED * day:
        return None
    pair = np.stack(
        [a.close[first - shift : last - shift], b.close[first - b.first :][: last - first]]
    )
    common = np.flatnonzero(np.isfinite(pair).all(axis=0))
    if len(common) < FEWEST_SHARED or len(np.unique((common + first) // day)) < FEWEST_SHARED:
        return None
    return pair[:, common]


def price_series(
    environment: Environment, split: str, window: Sequence[float] | None = None
) -> list[PriceSeries]:
    """Return log closes of every symbol up to a split's end; empty for synthetic markets.

    If a kernel does not declare its prices, they are replaced by one number per day that is derived
    from its arrays: equal arrays are the same prices.

    Args:
        split: split with the selected days.
        window: UTC seconds, half open; selects these days instead of the split's.
    """
    timeline = environment.part(Timeline)
    if timeline is None or environment.spec.market is None:
        return []
    data = (environment.provenance.get("settings") or {}).get("data") or {}
    if "folder" in data and not data.get("files") and is_synthetic(data["folder"]):
        return []
    kernel, loaded = timeline.kernel, timeline.loaded
    declared = kernel.hook("backtest_spec")
    series_by_symbol: dict[tuple[Any, ...], list[tuple[Array, ...]]] = {}
    step = HOUR
    for record in loaded.params[split]:
        market = kernel.spec(record, loaded.data).market
        assert market is not None
        roll = cast(DayRoll, market.day_roll)
        if declared is None:
            ends = timeline.ends(record) - 1
            ends = ends[day_closes(day_number(ends, roll))]
            step, inside = DAY, np.ones(len(ends), np.bool_)
            logs = _hashed_series(loaded.data, day_number(ends, roll))[:, None]
        else:
            spec = declared(record, loaded.data)
            rows = slice(
                spec.first_symbol_row if isinstance(spec, SymbolBacktestSpec) else 0, spec.last + 1
            )
            ends = spec.time[rows] + market.bar_seconds - 1
            closes = spec.close.reshape(len(spec.close), -1)[rows]
            logs = np.log(np.where(closes > 0.0, closes, np.nan))  # 0: not listed
            inside = np.arange(len(ends)) >= spec.first - rows.start
            step = HOUR if market.bar_seconds <= HOUR else DAY
        if window is not None:
            inside = (ends >= window[0]) & (ends < window[1])
        day = day_number(ends, roll)
        at = ends // HOUR if step == HOUR else day
        for asset, close in enumerate(logs.T):
            listed = np.isfinite(close)
            part = (at[listed], close[listed], day[listed], inside[listed])
            series_by_symbol.setdefault((market.symbols, asset), []).append(part)
    series = (_concat_series(step, parts) for parts in series_by_symbol.values())
    return [prices for prices in series if prices.selected.any()]


def _concat_series(step: int, parts: Sequence[tuple[Array, ...]]) -> PriceSeries:
    """Return the last row of each step over several passes of a symbol."""
    at, close, day, inside = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.argsort(at, kind="stable")
    ends = np.flatnonzero(np.diff(at[order], append=np.iinfo(np.int64).max))
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    within = np.logical_or.reduceat(inside[order], starts) if len(at) else inside
    rows = order[ends]
    return PriceSeries(step, at[rows], close[rows], day[rows], within)


def _hashed_series(data: Any, days: NDArray[np.int64]) -> NDArray[np.float64]:
    digest = hashlib.sha256()
    for array in data:
        digest.update(np.ascontiguousarray(array).tobytes())
    seed = int.from_bytes(digest.digest()[:8], "big")
    return np.array([np.random.default_rng([seed, day]).random() for day in days.tolist()])


@dataclass
class PriceRegister(HoldoutRegister):
    """Register of the prices of an environment."""

    environment: Environment
    searched: bool = False  # a search is registered

    def prices(self, split: str, window: Sequence[float] | None = None) -> Sequence[PriceSeries]:
        """Return the series that identify the prices; see `price_series`."""
        return price_series(self.environment, split, window)

    def record_access(self, what: str) -> tuple[str, ...]:
        """Record an access if the register can be written; it does not affect bounds."""
        what = as_utf8(what)  # SQLite stores text as UTF-8
        entries: dict[str, tuple[str, str, set[int]]] = {}
        for split in {"test", "window"} & set(self.environment.splits()):
            with suppress(SlipstreamError, OSError):
                if prices := self.prices(split):
                    entry = (f"{what}:{split}", ACCESS, what, time.time())
                    with _register(_path()) as db:
                        entries |= _record(db, entry, prices)
        return tuple(
            text for key, (_, text, _) in entries.items() if not key.startswith(f"{what}:")
        )

    def begin_search(
        self, window: Sequence[float] | None, study: str, name: str, beside: Path, trials: int
    ) -> Mapping[str, Any]:
        """Record a study's development days."""
        prices = self.prices(HOLDOUT, window)
        self.searched = bool(prices)
        return register_search(prices, study, name, beside, trials=trials)

    def end_search(self, study: str, trials: int, beside: Path) -> None:
        """Record the number of trials of a search that has stopped."""
        if self.searched:
            count_trials(study, trials, beside)

    def searched_days(self, study: str, beside: Path) -> frozenset[int] | None:
        """Return the days of the hold-out that a study searched on."""
        prices = self.prices(HOLDOUT)
        return get_searched_days(study, prices, beside) if prices else frozenset()

    def open(self, key: str, name: str, beside: Path, own_openings: int) -> Opening:
        """Record an opening of the hold-out."""
        return record_opening(self.prices(HOLDOUT), key, name, beside, own_openings)
