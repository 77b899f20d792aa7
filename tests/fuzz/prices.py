"""Folders of prices that are damaged or are something else."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
from malformed import Case, writes

BARS, START, STEP = 1200, 1_740_960_000, 300  # five minutes from Monday 2025-03-03 UTC
TRAIN = ("train", "portfolio", "--set", "env.data.folder={folder}", "--no-report")


def table(seed: int = 0) -> pl.DataFrame:
    """A sound table of bars."""
    draw = np.random.default_rng(seed)
    close = 100.0 * np.exp(np.cumsum(1e-3 * draw.standard_normal(BARS)))
    opened = np.concatenate([[100.0], close[:-1]])
    stamps = START + STEP * np.arange(BARS)
    return pl.DataFrame(
        {
            "timestamp": pl.from_epoch(pl.Series(stamps), "s").dt.replace_time_zone("UTC"),
            "open": opened,
            "high": np.maximum(opened, close) * 1.0005,
            "low": np.minimum(opened, close) * 0.9995,
            "close": close,
            "volume": 10.0 + draw.random(BARS),
        }
    )


def parquet(frame: pl.DataFrame) -> bytes:
    file = io.BytesIO()
    frame.write_parquet(file)
    return file.getvalue()


def column(name: str, value: object) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda frame: frame.with_columns(pl.lit(value).alias(name))


def price(expression: pl.Expr) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda frame: frame.with_columns(expression)


CLOSE, TIME, ROW = pl.col("close"), pl.col("timestamp"), pl.int_range(pl.len())
PRICES = ("open", "high", "low", "close")
TABLES: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
    "no rows": lambda frame: frame.head(0),
    "one row": lambda frame: frame.head(1),
    "ten rows": lambda frame: frame.head(10),
    "no close": lambda frame: frame.drop("close"),
    "no stamps": lambda frame: frame.drop("timestamp"),
    "only stamps": lambda frame: frame.select("timestamp"),
    "stamps of text": column("timestamp", "soon"),
    "stamps of null": column("timestamp", None),
    "one stamp": column("timestamp", 1_740_960_000),
    "stamps of small numbers": lambda frame: frame.with_columns(ROW.alias("timestamp")),
    "stamps beyond all time": lambda frame: frame.with_columns(
        (ROW + 10**17).cast(pl.Float64).alias("timestamp") * 1e3
    ),
    "naive stamps": price(TIME.dt.replace_time_zone(None)),
    "irregular stamps": lambda frame: frame.with_columns(
        pl.from_epoch(pl.lit(START) + (ROW * ROW * 7) % 10**6, "s").alias("timestamp")
    ),
    "close of text": column("close", "dear"),
    "close of null": column("close", None),
    "close of nan": column("close", float("nan")),
    "close of infinity": column("close", float("inf")),
    "close of zero": column("close", 0.0),
    "negative close": price(-CLOSE),
    "close of lists": price(pl.concat_list(["open", "close"]).alias("close")),
    "prices of flags": lambda frame: frame.with_columns((CLOSE > 0).alias(name) for name in PRICES),
    "high below low": price(pl.struct(high="low", low="high").struct.unnest()),
    "prices of 1e300": lambda frame: frame.with_columns(pl.col(PRICES) * 1e300),
    "prices of 1e-300": lambda frame: frame.with_columns(pl.col(PRICES) * 1e-300),
    "negative volume": price(-pl.col("volume")),
    "volume of infinity": column("volume", float("inf")),
    "close twice": lambda frame: frame.with_columns(CLOSE.alias("Close")),
    "stamps twice": lambda frame: frame.with_columns(TIME.alias("datetime")),
    "a spread of nan": column("spread", float("nan")),
    "a negative spread": column("spread", -1.0),
    "a spread of 1e9": column("spread", 1e9),
}  # fmt: skip


def _folder(change: Callable[[pl.DataFrame], pl.DataFrame]) -> Callable[[Path], None]:
    """Two symbols, whose tables are both damaged: nothing is left that could be traded."""

    def arrange(folder: Path) -> None:
        for seed, symbol in enumerate(("BTC", "ETH")):
            (folder / f"{symbol}.parquet").write_bytes(parquet(change(table(seed))))

    return arrange


def _csv(text: str | bytes) -> Callable[[Path], None]:
    return writes("BTC.csv", text)


def _special(folder: Path) -> None:
    os.mkfifo(folder / "BTC.csv")
    (folder / "ETH.parquet").symlink_to("/dev/zero")
    (folder / "LTC.csv").mkdir()
    (folder / "UNI.csv").symlink_to("UNI.csv")


HEAD = "timestamp,open,high,low,close,volume\n"
FILES: dict[str, Callable[[Path], None]] = {
    "an empty folder": lambda folder: None,
    "only a text file": writes("README.txt", "prices are elsewhere\n"),
    "an empty CSV": _csv(""),
    "a CSV of a head": _csv(HEAD),
    "a CSV of prose": _csv("It was the best of times,\nit was the worst of times.\n"),
    "a CSV of NUL": _csv(b"\x00" * 4096),
    "a CSV of one column": _csv("close\n1\n2\n3\n"),
    "a CSV of ragged rows": _csv(HEAD + "2025-03-03T00:00Z,1,2\n2025-03-03T00:05Z,1,2,3,4,5,6,7\n"),
    "a CSV of open quotes": _csv(HEAD + '"2025-03-03,1,2,3,4,5\n'),
    "a CSV in UTF-16": _csv((HEAD + "2025-03-03T00:00Z,1,2,1,2,5\n").encode("utf-16")),
    "an empty Parquet": writes("BTC.parquet", b""),
    "a Parquet of text": writes("BTC.parquet", "PAR1 or so"),
    "a Parquet cut short": writes("BTC.parquet", parquet(table())[:2000]),
    "a Parquet of damaged middle": writes(
        "BTC.parquet", parquet(table()).replace(b"\x00", b"\x99", 400)
    ),
    "a Feather of text": writes("BTC.feather", b"ARROW1 and so on"),
    "FIFOs and devices": _special,
    "a web page": _csv("<html><body>Too many requests</body></html>\n"),
    "an escape in a name": writes("\x1b[31mBTC\x1b[0m.csv", HEAD),
    "a pickle": writes("BTC.parquet", b"\x80\x04\x95cos\nsystem\n(S'true'\ntR."),
}


def prices() -> Iterator[Case]:
    tables = {name: _folder(change) for name, change in TABLES.items()}
    for name, arrange in {**tables, **FILES}.items():
        yield Case(f"prices: {name}", TRAIN, arrange)
        yield Case(f"init of prices: {name}", ("init", "portfolio", "{folder}"), arrange)
