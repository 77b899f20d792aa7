"""Price files as vendors write them, made from a known truth: UTC stamps and quoted prices."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from slipstream.core.config import validate
from slipstream.core.storage import yaml_file
from slipstream.core.timeline import DAY, NEW_YORK, clock, local_time
from slipstream.markets.data.calendar import is_weekend
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import Market, load_market

HOUR = 3600
PRICES = ("open", "high", "low", "close")
LEVELS = {
    "EURUSD": (1.1, 5),
    "GBPUSD": (1.3, 5),
    "USDJPY": (145.0, 3),
    "EURJPY": (160.0, 3),
    "USDCHF": (0.9, 5),
    "XAUUSD": (1900.0, 2),
    "BTCUSDT": (40_000.0, 2),
    "ETHUSDT": (2_500.0, 2),
}


@dataclass(frozen=True)
class Truth:
    """Data of a vendor: UTC seconds of the opens, prices as quoted, spreads in points."""

    symbol: str
    time: np.ndarray
    prices: dict[str, np.ndarray]
    volume: np.ndarray
    points: np.ndarray
    bar_seconds: int

    @property
    def point(self) -> float:
        return 10.0 ** -LEVELS[self.symbol][1]

    def rows(self, keep: np.ndarray) -> Truth:
        prices = {name: column[keep] for name, column in self.prices.items()}
        return replace(
            self,
            time=self.time[keep],
            prices=prices,
            volume=self.volume[keep],
            points=self.points[keep],
        )


def second(text: str) -> int:
    """UTC seconds of an ISO date."""
    return int(np.datetime64(text, "s").astype(np.int64))


def truth(
    symbol: str = "EURUSD",
    bar_seconds: int = 900,
    start: str = "2021-01-04",
    days: int = 364,
    seed: int = 0,
) -> Truth:
    """A random walk on the symbol's own hours; forex bars longer than an hour begin at 17:00."""
    first = second(start)
    time = np.arange(first, first + days * DAY, min(bar_seconds, HOUR), dtype=np.int64)
    if "USDT" not in symbol:
        time = time[~is_weekend(time)]
        local = local_time(time, NEW_YORK)
        if symbol.startswith("XAU"):
            time = time[local % DAY // HOUR != 17]
        elif bar_seconds > HOUR:
            time = time[(local - 17 * HOUR) % bar_seconds == 0]
    elif bar_seconds > HOUR:
        time = time[time % bar_seconds == 0]
    level, digits = LEVELS[symbol]
    draw = np.random.default_rng(seed)
    n = len(time)
    close = level * np.exp(2e-4 * np.cumsum(draw.standard_normal(n)))
    opened = np.concatenate([[level], close[:-1]])
    reach = 1e-4 * level * (0.2 + np.abs(draw.standard_normal((2, n))))
    columns = {
        "open": opened,
        "high": np.maximum(opened, close) + reach[0],
        "low": np.minimum(opened, close) - reach[1],
        "close": close,
    }
    prices = {name: np.round(column, digits) for name, column in columns.items()}
    volume = np.round(10.0 + 100.0 * draw.random(n))
    return Truth(symbol, time, prices, volume, draw.integers(4, 30, n), bar_seconds)


def in_winter(one: Truth) -> np.ndarray:
    """Bars in New York's standard time, bool [n]."""
    return local_time(one.time, NEW_YORK) - one.time == -5 * HOUR


def with_bars(one: Truth, added: np.ndarray) -> Truth:
    """The same with bars of its own prices at other moments, UTC seconds."""
    rows = np.searchsorted(one.time, added).clip(0, len(one.time) - 1)
    time = np.concatenate([one.time, added])
    order = np.argsort(time, kind="stable")
    part = one.rows(np.concatenate([np.arange(len(one.time)), rows])[order])
    return replace(part, time=time[order])


def christmas_trader(weeks: int = 150) -> Truth:
    """Hourly EURUSD of a broker who closes on Christmas and New Year, and reopens at 15:00."""
    one = truth("EURUSD", HOUR, "2018-01-08", 7 * weeks)
    evening = local_time(one.time, NEW_YORK) + 9 * HOUR  # the closed day, from 15:00 on the eve
    days = (evening // DAY).astype("datetime64[D]").astype(str)
    return one.rows(~np.array([day[5:] in ("12-25", "01-01") for day in days]))


Writer = Callable[[Path, Truth], None]


@dataclass(frozen=True)
class Vendor:
    """One way to write prices.

    Attributes:
        write: writes a symbol's file (or adds it to one) into a folder.
        zone: of its stamps; None where the file itself says the moment.
        side: what is quoted.
        spread: whether the file has the truth's spreads.
        markets: "fx" and "24/7", what it sells.
        needs: what a user may have to write besides a zone, in short files.
    """

    write: Writer
    zone: str | None = None
    side: str = "mid"
    spread: bool = False
    markets: tuple[str, ...] = ("fx",)
    needs: dict[str, object] = field(default_factory=dict)


def wall(time: np.ndarray, zone: str) -> np.ndarray:
    """Return the local time in `zone` in seconds."""
    return clock(zone, time).local(time)


def text(local: np.ndarray, form: str) -> pl.Series:
    return pl.from_epoch(pl.Series(local), "s").dt.strftime(form)


def frame(one: Truth, stamps: pl.Series, name: str = "time", **more: object) -> pl.DataFrame:
    columns = {name: stamps, **one.prices, "volume": one.volume, **more}
    return pl.DataFrame(columns)


def renamed(data: pl.DataFrame, **names: str) -> pl.DataFrame:
    return data.rename({ours: theirs for ours, theirs in names.items() if ours in data.columns})


TITLES = {name: name.title() for name in (*PRICES, "volume")}


def metatrader_5(zone: str) -> Writer:
    def write(folder: Path, one: Truth) -> None:
        local = wall(one.time, zone)
        columns = {"<DATE>": text(local, "%Y.%m.%d"), "<TIME>": text(local, "%H:%M:%S")}
        if one.bar_seconds >= DAY:
            del columns["<TIME>"]
        columns |= {f"<{name.upper()}>": one.prices[name] for name in PRICES}
        columns |= {"<TICKVOL>": one.volume, "<VOL>": 0 * one.points, "<SPREAD>": one.points}
        content = pl.DataFrame(columns).write_csv(separator="\t", line_terminator="\r\n")
        (folder / f"{one.symbol}.csv").write_bytes(content.encode("utf-16"))

    return write


def metatrader_4(folder: Path, one: Truth) -> None:
    local = wall(one.time, "America/New_York+7")
    columns = {"date": text(local, "%Y.%m.%d"), "time": text(local, "%H:%M"), **one.prices}
    pl.DataFrame({**columns, "v": one.volume.astype(int)}).write_csv(
        folder / f"{one.symbol}.csv", include_header=False
    )


def metatrader_python(suffix: str, zone: str = "America/New_York+7") -> Writer:
    def write(folder: Path, one: Truth) -> None:
        columns = {"time": wall(one.time, zone), **one.prices, "tick_volume": one.volume}
        data = pl.DataFrame({**columns, "spread": one.points, "real_volume": 0 * one.points})
        if suffix == "csv":
            data.write_csv(folder / f"{one.symbol}.csv")
        else:
            data.write_parquet(folder / f"{one.symbol}.parquet")

    return write


def ticks_and_price_spreads(folder: Path, one: Truth) -> None:
    """Columns named as MetaTrader's, but spreads in price units."""
    stamps = text(one.time, "%Y-%m-%dT%H:%M:%SZ")
    data = renamed(frame(one, stamps), volume="tick_volume")
    data.with_columns(spread=one.points * one.point).write_csv(folder / f"{one.symbol}_BID.csv")


def histdata(folder: Path, one: Truth) -> None:
    stamps = text(wall(one.time, "Etc/GMT+5"), "%Y%m%d %H%M%S")
    data = frame(one, stamps).with_columns(volume=0)
    data.write_csv(folder / f"{one.symbol}.csv", include_header=False, separator=";")


def with_weekends(one: Truth) -> Truth:
    """The same with flat candles without volume while the market is closed."""
    size = one.bar_seconds
    holes = np.flatnonzero(np.diff(one.time) > size)
    added = [np.arange(one.time[k] + size, one.time[k + 1] - size + 1, size) for k in holes]
    time = np.sort(np.concatenate([one.time, *added]))
    row = np.searchsorted(one.time, time, side="right") - 1
    real = one.time[row] == time
    flat = {
        name: np.where(real, one.prices[name][row], one.prices["close"][row]) for name in PRICES
    }
    return replace(one, time=time, prices=flat, volume=np.where(real, one.volume[row], 0.0))


def dukascopy(header: str, zone: str) -> Writer:
    def write(folder: Path, one: Truth) -> None:
        padded = with_weekends(one)
        stamps = text(wall(padded.time, zone), "%d.%m.%Y %H:%M:%S.000")
        data = renamed(frame(padded, stamps, header), **TITLES)
        data.write_csv(folder / f"{one.symbol}_Candlestick_BID.csv")

    return write


def iso(form: str, column: str, zone: str = "UTC", **names: str) -> Writer:
    """A plain table with stamps of one format."""

    def write(folder: Path, one: Truth) -> None:
        data = renamed(frame(one, text(wall(one.time, zone), form), column), **names)
        data.write_csv(folder / f"{one.symbol}.csv")

    return write


def newest_first(folder: Path, one: Truth) -> None:
    stamps = text(one.time, "%Y-%m-%d %H:%M:%S")
    frame(one, stamps, "timestamp").reverse().write_csv(folder / f"{one.symbol}.csv")


def oanda(folder: Path, one: Truth) -> None:
    stamps = text(one.time, "%Y-%m-%dT%H:%M:%S.000000000Z")
    names = {name: f"mid.{name[0]}" for name in PRICES}
    data = renamed(frame(one, stamps, complete=[True] * len(one.time)), **names)
    data.write_csv(folder / f"{one.symbol[:3]}_{one.symbol[3:]}.csv")


def yahoo(folder: Path, one: Truth) -> None:
    offset = (wall(one.time, "Europe/London") - one.time) // HOUR
    stamps = text(wall(one.time, "Europe/London"), "%Y-%m-%d %H:%M:%S")
    zoned = pl.DataFrame({"t": stamps, "o": offset}).select(
        pl.col("t") + pl.when(pl.col("o") == 1).then(pl.lit("+01:00")).otherwise(pl.lit("+00:00"))
    )["t"]
    data = frame(one, zoned, "Datetime").with_columns(volume=0)
    data = renamed(data, **TITLES).with_columns(pl.col("Close").alias("Adj Close"))
    data.write_csv(folder / f"{one.symbol}=X.csv")


def yfinance(folder: Path, one: Truth) -> None:
    stamps = text(one.time, "%Y-%m-%d %H:%M:%S+00:00")
    columns = {"t": stamps, **{name: one.prices[name] for name in ("close", "high", "low", "open")}}
    rows = pl.DataFrame({**columns, "volume": one.volume}).write_csv(include_header=False)
    ticker = f"{one.symbol}=X"
    head = f"Price,Close,High,Low,Open,Volume\nTicker,{','.join([ticker] * 5)}\nDatetime,,,,,\n"
    (folder / f"{ticker}.csv").write_text(head + rows)


def polygon(prefix: str) -> Writer:
    def write(folder: Path, one: Truth) -> None:
        columns = {"ticker": [f"{prefix}{one.symbol}"] * len(one.time), "volume": one.volume}
        columns |= {name: one.prices[name] for name in ("open", "close", "high", "low")}
        data = pl.DataFrame(
            {**columns, "window_start": one.time * 10**9, "transactions": one.points}
        )
        data.write_csv(folder / f"{one.symbol}.csv")

    return write


def tiingo(folder: Path, one: Truth) -> None:
    stamps = text(one.time, "%Y-%m-%dT%H:%M:%S.000Z")
    data = frame(one, stamps, "date").drop("volume")
    data.with_columns(ticker=pl.lit(one.symbol.lower())).write_csv(folder / f"{one.symbol}.csv")


def stooq(folder: Path, one: Truth) -> None:
    local = wall(one.time, "Europe/Warsaw")
    columns = {"<TICKER>": [one.symbol] * len(local), "<PER>": [60] * len(local)}
    columns |= {"<DATE>": text(local, "%Y%m%d"), "<TIME>": text(local, "%H%M%S")}
    columns |= {f"<{name.upper()}>": one.prices[name] for name in PRICES}
    data = pl.DataFrame({**columns, "<VOL>": one.volume, "<OPENINT>": 0 * one.points})
    data.write_csv(folder / f"{one.symbol}.csv")


def units(factor: float, noise: float = 0.0, spread: str = "") -> Writer:
    """Prices times a factor, with the noise of floats; a spread column of points or pips."""

    def write(folder: Path, one: Truth) -> None:
        scaled = {name: one.prices[name] / (one.point if factor == 0 else 1.0) for name in PRICES}
        if factor:
            scaled = {name: column * factor for name, column in scaled.items()}
        else:
            scaled = {name: np.rint(column) * (1.0 + noise) for name, column in scaled.items()}
        more = {}
        if spread == "points":
            more["spread"] = one.points
        elif spread == "pips":
            more["spread"] = one.points / 10.0
        elif spread:
            more["spread"] = one.points * one.point
        changed = replace(one, prices=scaled)
        stamps = pl.from_epoch(pl.Series(one.time), "s").dt.replace_time_zone("UTC")
        frame(changed, stamps, "timestamp", **more).write_parquet(folder / f"{one.symbol}.parquet")

    return write


def close_labelled(zone: str | None) -> Writer:
    def write(folder: Path, one: Truth) -> None:
        closes = one.time + one.bar_seconds
        stamps = pl.from_epoch(pl.Series(wall(closes, zone or "UTC")), "s")
        if zone is None:
            stamps = stamps.dt.replace_time_zone("UTC")
        frame(one, stamps).write_parquet(folder / f"{one.symbol}.parquet")

    return write


def pandas_index(folder: Path, one: Truth) -> None:
    """`to_csv` of a frame whose index is its time: the index has no name."""
    stamps = text(one.time, "%Y-%m-%d %H:%M:%S+00:00")
    head = ",open,high,low,close,volume\n"
    (folder / f"{one.symbol}.csv").write_text(
        head + frame(one, stamps).write_csv(include_header=False)
    )


def german(folder: Path, one: Truth) -> None:
    stamps = text(one.time, "%Y-%m-%d %H:%M:%S+00:00")
    names = dict(zip(PRICES, ("Eröffnung", "Hoch", "Tief", "Schluss"), strict=True))
    renamed(frame(one, stamps, "Zeitpunkt"), **names, volume="Menge").write_csv(
        folder / f"{one.symbol}.csv"
    )


def binance(folder: Path, one: Truth, unit: int = 0) -> None:
    """Milliseconds, and microseconds from the middle on, as from 2025; or all in one unit."""
    half = np.arange(len(one.time)) >= len(one.time) // 2
    unit = unit or np.where(half, 10**6, 10**3)
    columns = {"t": one.time * unit, **one.prices, "v": one.volume}
    columns["end"] = (one.time + one.bar_seconds) * unit - 1
    for name in ("quote", "trades", "taker", "taker_quote"):
        columns[name] = one.volume
    pl.DataFrame({**columns, "ignore": 0 * one.points}).write_csv(
        folder / f"{one.symbol}.csv", include_header=False
    )


def binance_months(folder: Path, one: Truth, overlap: float | None = None) -> None:
    """Binance's public dumps: no header, a file a month, milliseconds and from 2025 microseconds.

    Args:
        folder: where to.
        one: whose bars.
        overlap: each month but the first begins with the last day of the month before, closes there
            multiplied by this.
    """
    folder.mkdir(exist_ok=True)
    months = one.time.astype("datetime64[s]").astype("datetime64[M]")
    for month in np.unique(months):
        rows = months == month
        if overlap is not None and rows.argmax():
            rows[rows.argmax() - DAY // one.bar_seconds : rows.argmax()] = True
        part = one.rows(rows)
        if overlap is not None:
            again = np.where(months[rows] == month, 1.0, overlap)
            prices = {**part.prices, "close": part.prices["close"] * again}
            part = replace(part, prices=prices)
        binance(folder, part, 10**6 if month >= np.datetime64("2025-01") else 10**3)
        name = f"{one.symbol}-{'1h' if one.bar_seconds == HOUR else '5m'}-{month}.csv"
        (folder / f"{one.symbol}.csv").rename(folder / name)


def cryptodatadownload(folder: Path, one: Truth) -> None:
    columns = {"unix": one.time * 1000, "date": text(one.time, "%Y-%m-%d %H:%M:%S")}
    columns |= {"symbol": [one.symbol] * len(one.time), **one.prices}
    columns |= {"Volume USDT": one.volume * 7.0, f"Volume {one.symbol[:3]}": one.volume}
    rows = pl.DataFrame(columns).reverse().write_csv()
    path = folder / f"Binance_{one.symbol}_1h.csv"
    path.write_text("https://www.CryptoDataDownload.com\n" + rows)


def finrl(folder: Path, one: Truth) -> None:
    """One table of all tickers."""
    path = folder / "prices.csv"
    stamps = text(one.time, "%Y-%m-%d %H:%M:%S")
    data = frame(one, stamps, "date").with_columns(tic=pl.lit(one.symbol), day=0)
    before = path.read_text() if path.exists() else ""
    path.write_text(before + data.write_csv(include_header=not before))


def investing(folder: Path, one: Truth) -> None:
    """Newest first, American dates, the close called price, volumes such as 1.20K or none."""
    columns = {"Date": text(one.time, "%m/%d/%Y %H:%M"), "Price": one.prices["close"]}
    columns |= {name.title(): one.prices[name] for name in ("open", "high", "low")}
    volume = [""] * len(one.time) if "USDT" not in one.symbol else ["1.20K"] * len(one.time)
    data = pl.DataFrame({**columns, "Vol.": volume, "Change %": ["0.10%"] * len(one.time)})
    data.reverse().write_csv(folder / f"{one.symbol}.csv", quote_style="always")


NAIVE = "%Y-%m-%d %H:%M:%S"
ZONES = (
    "UTC",
    "America/New_York",
    "Europe/London",
    "Europe/Helsinki",
    "America/New_York+7",
    "America/Chicago",
    "Etc/GMT-3",
    "Asia/Tokyo",
    "Asia/Singapore",
    "Asia/Kolkata",
    "Australia/Sydney",
)
BOTH = ("fx", "24/7")
VENDORS: dict[str, Vendor] = {
    "MetaTrader 5, US DST": Vendor(
        metatrader_5("America/New_York+7"), "America/New_York+7", "bid", True
    ),
    "MetaTrader 5, EU DST": Vendor(metatrader_5("Europe/Athens"), "Europe/Athens", "bid", True),
    "MetaTrader 5, no DST": Vendor(metatrader_5("Etc/GMT-3"), "Etc/GMT-3", "bid", True),
    "MetaTrader 4": Vendor(metatrader_4, "America/New_York+7", "bid"),
    "MetaTrader, Python, parquet": Vendor(
        metatrader_python("parquet"), "America/New_York+7", "bid", True
    ),
    "MetaTrader, Python, csv": Vendor(metatrader_python("csv"), "America/New_York+7", "bid", True),
    "MetaTrader's names": Vendor(ticks_and_price_spreads, None, "bid", True),
    "HistData": Vendor(histdata, "Etc/GMT+5", "bid"),
    "Dukascopy": Vendor(dukascopy("Gmt time", "UTC"), None, "bid"),
    "JForex": Vendor(dukascopy("Time (EET)", "Europe/Helsinki"), "Europe/Helsinki", "bid"),
    "Oanda": Vendor(oanda, markets=("fx",)),
    "Yahoo": Vendor(yahoo),
    "yfinance": Vendor(yfinance),
    "Polygon": Vendor(polygon("C:")),
    "Polygon, crypto": Vendor(polygon("X:"), markets=("24/7",)),
    "Tiingo": Vendor(tiingo, markets=BOTH),
    "Alpha Vantage": Vendor(newest_first, "UTC"),
    "Investing": Vendor(investing, "UTC", needs={"time_format": "%m/%d/%Y %H:%M"}, markets=BOTH),
    "TrueFX bars": Vendor(iso("%Y%m%d %H:%M:%S.000", "timestamp"), "UTC"),
    "Stooq": Vendor(stooq, "Europe/Warsaw"),
    "US spreadsheet": Vendor(
        iso("%m/%d/%Y %H:%M", "Date", "America/New_York", **TITLES),
        "America/New_York",
        needs={"time_format": "%m/%d/%Y %H:%M"},
    ),
    "US spreadsheet, 12 hours": Vendor(
        iso("%m/%d/%Y %I:%M:%S %p", "Date", "America/Chicago", **TITLES),
        "America/Chicago",
        needs={"time_format": "%m/%d/%Y %I:%M:%S %p"},
    ),
    "PostgreSQL": Vendor(iso("%Y-%m-%d %H:%M:%S+00", "ts"), markets=BOTH),
    "TradingView": Vendor(iso("%s", "time"), markets=BOTH),
    "pandas index": Vendor(pandas_index, markets=BOTH),
    "German headers": Vendor(german, markets=BOTH),
    "points": Vendor(units(0)),
    "points with noise": Vendor(units(0, 1e-16)),
    "float32 points": Vendor(units(0, 2e-8)),
    "pips": Vendor(units(1e4)),
    "hundredths": Vendor(units(0.01)),
    "spread in points": Vendor(units(1.0, spread="points"), spread=True),
    "spread in pips": Vendor(units(1.0, spread="pips"), spread=True),
    "spread in price units": Vendor(units(1.0, spread="price"), spread=True),
    "close-labelled": Vendor(close_labelled(None)),
    "close-labelled, broker": Vendor(close_labelled("America/New_York+7"), "America/New_York+7"),
    "Binance": Vendor(binance, markets=("24/7",)),
    "CryptoDataDownload": Vendor(cryptodatadownload, markets=("24/7",)),
    "FinRL": Vendor(finrl, "UTC", markets=("24/7",)),
    **{f"naive {zone}": Vendor(iso(NAIVE, "time", zone), zone) for zone in ZONES},
}


def sampled(*axes: object, share: int = 16) -> list[Any]:
    """All combinations, one in `share` of them in `make test`, the others in `make test-all`."""
    every = list(product(*axes))
    step = len(axes[-1])
    return [
        pytest.param(*one, marks=() if (k // step + k % step) % share == 0 else pytest.mark.slow)
        for k, one in enumerate(every)
    ]


def remedies(error: Exception) -> list[dict[str, Any]]:
    """Every piece of YAML that a message tells the user to write, alternatives apart."""
    advice = re.findall(r"Set (.*?) in the `data` section", str(error))
    ways = []
    for way in re.split(r",? or ", advice[0]) if advice else []:
        pairs = re.findall(r"`([^`]+)`", way)
        ways.append({k: v for pair in pairs for k, v in yaml_file.parse(pair, "remedy").items()})
    return ways


def load(section: dict[str, Any]) -> Market:
    """Through YAML, as `train` reads it."""
    return load_market(validate(DataConfig, yaml_file.parse(yaml_file.dump(section), "my.yaml")))
