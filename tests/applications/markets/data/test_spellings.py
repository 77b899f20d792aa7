"""Spellings: the same bars in many formats load as they are, or are refused with a remedy."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from vendors import HOUR, Truth, load, remedies, sampled, truth

from slipstream.core.errors import DataError
from slipstream.core.timeline import DAY
from slipstream.markets.data.check import check
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import Market
from slipstream.markets.starter_config import describe_folder, propose_section

PRICES = ("open", "high", "low", "close")
SPREAD = 0.00012
EURO = truth("EURUSD", HOUR, "2022-01-03", 21)
COIN = truth("BTCUSDT", HOUR, "2022-01-03", 3)
DAYS = truth("EURUSD", DAY, "2021-06-01", 500)
Row = list[str]


def moment(second: int) -> datetime:
    return datetime.fromtimestamp(int(second), UTC)


def spelt(form: str) -> Callable[[int], str]:
    # `%s` of `strftime` is a time of the machine's own zone.
    return lambda second: moment(second).strftime(form.replace("%s", str(int(second))))


def month(second: int, case: Callable[[str], str]) -> str:
    """Return an English month whatever the locale is."""
    names = "January February March April May June July August September October November December"
    return case(names.split()[moment(second).month - 1])


def number(value: float, digits: int, point: str = ".", group: str = "") -> str:
    text = f"{value:,.{digits}f}"
    return text.replace(",", "\0").replace(".", point).replace("\0", group)


def write(path: Path, head: Row | None, rows: list[Row], separator: str = ",") -> None:
    file = io.StringIO()
    csv.writer(file, delimiter=separator).writerows([*([head] if head else []), *rows])
    path.write_text(file.getvalue())


def rows_of(one: Truth, stamp: Callable[[int], str], digits: int = 5, **marks: str) -> list[Row]:
    return [
        [
            stamp(second),
            *(number(one.prices[name][k], digits, **marks) for name in PRICES),
            number(one.volume[k], 0, **marks),
        ]
        for k, second in enumerate(one.time)
    ]


HEAD = ["time", *PRICES, "volume"]


def loaded(section: dict[str, Any], matches: Callable[[Market], bool], left: int = 3) -> None:
    """Load, and paste remedies if that is refused, until the market matches."""
    try:
        market = load(section)
    except DataError as error:
        ways = [way for way in remedies(error) if "allow_issues" not in way]
        assert ways and left, error
        tried = []
        for way in ways:
            try:
                loaded({**section, **way}, matches, left - 1)
                return
            except AssertionError as wrong:
                tried.append(f"{way}: {wrong}")
        pytest.fail("; ".join(tried))
    assert matches(market), (section, [one.columns() for one in market.bars])


def equal(one: Truth, volume: bool = True, spread: float | None = None) -> Callable[..., bool]:
    def matches(market: Market) -> bool:
        (bars,) = market.bars
        return (
            np.array_equal(bars.time, one.time)
            and all(np.allclose(getattr(bars, n), one.prices[n], rtol=1e-6) for n in PRICES)
            and np.allclose(bars.volume, one.volume if volume else 0.0)
            and (spread is None or np.allclose(bars.spread, spread, atol=1e-9))
        )

    return matches


def section_of(folder: Path, one: Truth, **more: Any) -> dict[str, Any]:
    return {"folder": str(folder), "symbols": [one.symbol], "time_zone": "UTC", **more}


STAMPS: dict[str, Callable[[int], str]] = {
    form: spelt(form)
    for form in (
        *("%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%SZ", "%Y%m%d %H%M%S", "%Y.%m.%d %H:%M", "%Y-%m-%d %H"),
        *("%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M", "%m-%d-%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%m/%d/%Y %H"),
        *("%m/%d/%y %H:%M", "%d/%m/%y %H:%M", "%y-%m-%d %H:%M", "%d.%m.%y %H:%M", "%y/%m/%d %H:%M"),
        *(
            "%Y%m%d%H",
            "%Y%m%d%H%M",
            "%Y%m%d%H%M%S",
            "%Y%m%d%H%M%S000",
            "%Y%m%d%H%M.0",
            "%s",
            "%s000",
        ),
        *(
            "%m/%d/%Y %I:%M %p",
            "%Y-%m-%d %I-%p",
            "%Y-%m-%d %I%p",
            "%m/%d/%Y %H%M",
            "%Y/%m/%d %H:%M",
        ),
        *("%Y%m%dT%H%M%SZ", "%Y%m%dT%H%M", "%y%m%d %H%M", "%a %b %d %H:%M:%S %Y"),
        *("%a %d %b %Y %H:%M:%S GMT", "%d%b%Y:%H:%M:%S"),
        *("%Y-%m-%d %H:%M:%S,000", "%Y-%m-%d:%H:%M", "%Y-%m-%dT%H", "%Y-%m-%dT%HZ"),
    )
}
for case in (str.upper, str.title, str.lower):
    for size in (3, 9):

        def named(second: int, case=case, size=size) -> str:
            return month(second, case)[:size]

        STAMPS |= {
            f"{case.__name__} {size} day first": lambda t, n=named: (
                f"{moment(t):%d}-{n(t)}-{moment(t):%Y %H:%M}"
            ),
            f"{case.__name__} {size} two digits": lambda t, n=named: (
                f"{moment(t):%d} {n(t)} {moment(t):%y %H:%M:%S}"
            ),
            f"{case.__name__} {size} month first": lambda t, n=named: (
                f"{n(t)} {moment(t).day}, {moment(t):%Y %H:%M}"
            ),
            f"{case.__name__} {size} year first": lambda t, n=named: (
                f"{moment(t):%Y}-{n(t)}-{moment(t):%d %H:%M}"
            ),
        }


@pytest.mark.parametrize("name", sampled(STAMPS, share=3))
def test_every_spelling_of_a_stamp(tmp_path, name):
    rows = rows_of(EURO, STAMPS[name])
    write(tmp_path / "EURUSD.csv", HEAD, rows)
    loaded(section_of(tmp_path, EURO), equal(EURO))
    write(tmp_path / "EURUSD.csv", HEAD, rows[::-1])
    loaded(section_of(tmp_path, EURO), equal(EURO))


DATES = ("%m/%d/%y", "%d-%m-%y", "%Y%m%d", "%y.%m.%d", "%m/%d/%Y", "%Y-%m-%d", "%d.%m.%Y")
MONTHS = {
    "JUN": lambda t: f"{moment(t):%d}-{month(t, str.upper)[:3]}-{moment(t):%Y}",
    "Jun, two digits": lambda t: f"{moment(t):%d}-{month(t, str.title)[:3]}-{moment(t):%y}",
    "June": lambda t: f"{month(t, str.title)} {moment(t):%d, %Y}",
}


@pytest.mark.parametrize("name", [*DATES, *MONTHS])
def test_every_spelling_of_a_day(tmp_path, name):
    midnight = Truth("EURUSD", DAYS.time // DAY * DAY, DAYS.prices, DAYS.volume, DAYS.points, DAY)
    write(tmp_path / "EURUSD.csv", HEAD, rows_of(midnight, MONTHS.get(name) or spelt(name)))
    loaded(section_of(tmp_path, midnight), equal(midnight))


@pytest.mark.parametrize("form", ["%d-%b-%Y %H:%M", "%d-%B-%Y %H:%M", "%Y-%m-%d %I-%p", "%Y%m%d%H"])
def test_a_format_that_is_given_holds(tmp_path, form):
    rows = rows_of(EURO, spelt(form))
    write(tmp_path / "EURUSD.csv", HEAD, [[row[0].upper(), *row[1:]] for row in rows])
    loaded(section_of(tmp_path, EURO, time_format=form), equal(EURO))


@pytest.mark.parametrize("kind", [pl.Int64, pl.Float64, pl.String])
@pytest.mark.parametrize("form", ["%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S"])
def test_compact_stamps_of_every_type(tmp_path, form, kind):
    stamps = pl.Series([spelt(form)(t) for t in COIN.time]).cast(pl.Int64).cast(kind)
    frame = pl.DataFrame({"time": stamps, **COIN.prices, "volume": COIN.volume})
    frame.write_parquet(tmp_path / "BTCUSDT.parquet")
    loaded(section_of(tmp_path, COIN), equal(COIN))


CLOCKS: dict[str, tuple[str, Any]] = {
    "%H%M": ("%H%M", str),
    "%H:%M": ("%H:%M", str),
    "%H%M%S": ("%H%M%S", str),
    "%H": ("%H", str),
    "%I:%M %p": ("%I:%M %p", str),
    "hhmm numbers": ("%H%M", int),
    "hhmmss numbers": ("%H%M%S", int),
    "hours": ("%H", int),
    "hhmm floats": ("%H%M", float),
}


@pytest.mark.parametrize(
    ("date", "clock"), sampled(["%m/%d/%Y", "%Y%m%d", "%Y-%m-%d", "%m/%d/%y"], CLOCKS, share=4)
)
def test_a_date_beside_every_spelling_of_a_clock(tmp_path, date, clock):
    form, kind = CLOCKS[clock]
    times = [kind(spelt(form)(t)) for t in EURO.time]
    dates = [spelt(date)(t) for t in EURO.time]
    frame = pl.DataFrame({"Date": dates, "Time": times, **EURO.prices, "volume": EURO.volume})
    frame.write_csv(tmp_path / "EURUSD.csv")
    loaded(section_of(tmp_path, EURO), equal(EURO))
    (tmp_path / "EURUSD.csv").unlink()
    frame.write_parquet(tmp_path / "EURUSD.parquet")
    loaded(section_of(tmp_path, EURO), equal(EURO))


@pytest.mark.parametrize(
    "names", ["Year Month Day Hour Minute", "Year Month Day Time", "year month day hour"]
)
def test_a_stamp_in_several_columns(tmp_path, names):
    forms = {
        "year": "%Y",
        "month": "%m",
        "day": "%d",
        "hour": "%H",
        "minute": "%M",
        "time": "%H:%M",
    }
    cells = [forms[name.lower()] for name in names.split()]
    rows = [
        [*(spelt(form)(t).removeprefix("0") for form in cells), *row[1:]]
        for t, row in zip(EURO.time, rows_of(EURO, str), strict=True)
    ]
    write(tmp_path / "EURUSD.csv", [*names.split(), *HEAD[1:]], rows)
    loaded(section_of(tmp_path, EURO), equal(EURO))


def marks() -> Iterator[Any]:
    points, groups, separators = (".", ","), ("", ",", ".", " ", "'", "\u00a0"), (",", ";", "\t")
    for digits, point, group, separator in product((0, 1, 2), points, groups, separators):
        if point != group:
            place = points.index(point) + groups.index(group) + separators.index(separator)
            marked = () if place % 3 == digits else pytest.mark.slow
            yield pytest.param(digits, point, group, separator, marks=marked)


@pytest.mark.parametrize(("digits", "point", "group", "separator"), marks())
def test_every_mark_of_decimals_and_thousands(tmp_path, digits, point, group, separator):
    """Prices near 40,000 and a volume in thousands; 40.000 alone cannot be told from 40."""
    if digits == 0 and group == ".":
        pytest.skip("40.000 in every cell is a plain number")
    prices = {name: np.round(column, digits) for name, column in COIN.prices.items()}
    one = Truth("BTCUSDT", COIN.time, prices, 1000.0 * COIN.volume + 7, COIN.points, HOUR)
    rows = rows_of(one, spelt("%Y-%m-%dT%H:%M:%SZ"), digits, point=point, group=group)
    write(tmp_path / "BTCUSDT.csv", HEAD, rows, separator)
    loaded(section_of(tmp_path, one), equal(one))


def test_an_ambiguous_comma_is_asked_about(tmp_path):
    """1,234 in every number is 1.234 or 1234: both remedies are printed, and each loads."""
    prices = {name: np.round(column / 20, 0) for name, column in COIN.prices.items()}
    one = Truth("BTCUSDT", COIN.time, prices, np.round(COIN.volume), COIN.points, HOUR)
    rows = rows_of(one, spelt("%Y-%m-%dT%H:%M:%SZ"), 0, point=".", group=",")
    write(tmp_path / "BTCUSDT.csv", HEAD, rows)
    with pytest.raises(DataError, match="may be decimal or stand between thousands") as refusal:
        load(section_of(tmp_path, one))
    assert remedies(refusal.value) == [{"decimal": "."}, {"decimal": ","}]
    assert load(section_of(tmp_path, one, decimal=".")).bars[0].open[0] == 2000.0
    assert load(section_of(tmp_path, one, decimal=",")).bars[0].open[0] == 2.0


def side(name: str, sign: float) -> list[str]:
    return [number(value + 0.5 * sign * SPREAD, 5) for value in EURO.prices[name]]


SIDES: dict[str, Callable[[str, str], str]] = {
    "BidOpen": lambda s, n: s.title() + n.title(),
    "OpenBid": lambda s, n: n.title() + s.title(),
    "openBid": lambda s, n: n + s.title(),
    "bid_open": lambda s, n: f"{s}_{n}",
    "open_bid": lambda s, n: f"{n}_{s}",
    "Open Bid": lambda s, n: f"{n.title()} {s.title()}",
    "BID OPEN": lambda s, n: f"{s} {n}".upper(),
    "bid.o": lambda s, n: f"{s}.{n[0]}",
    "BO": lambda s, n: (s[0] + n[0]).upper(),
    "bidopen": lambda s, n: s + n,
    "Bid (Open)": lambda s, n: f"{s.title()} ({n.title()})",
    "bid_price_open": lambda s, n: f"{s}_price_{n}",
}
ORDERS = {
    "bid first": [(s, n) for s in ("bid", "ask") for n in PRICES],
    "ask first": [(s, n) for s in ("ask", "bid") for n in PRICES],
    "interleaved": [(s, n) for n in PRICES for s in ("bid", "ask")],
    "ask interleaved": [(s, n) for n in PRICES for s in ("ask", "bid")],
}


@pytest.mark.parametrize(("naming", "order", "volume"), sampled(SIDES, ORDERS, (0, 1), share=5))
def test_bid_and_ask_in_one_file(tmp_path, naming, order, volume):
    cells = {(s, n): side(n, sign) for s, sign in (("bid", -1.0), ("ask", 1.0)) for n in PRICES}
    head = ["time", *(SIDES[naming](s, n) for s, n in ORDERS[order])]
    columns = [
        [spelt("%Y-%m-%dT%H:%MZ")(t) for t in EURO.time],
        *(cells[key] for key in ORDERS[order]),
    ]
    if volume:
        head, columns = [*head, "volume"], [*columns, [f"{v:g}" for v in EURO.volume]]
    write(tmp_path / "EURUSD.csv", head, [list(row) for row in zip(*columns, strict=True)])
    matches = equal(EURO, volume=volume, spread=SPREAD)
    loaded(section_of(tmp_path, EURO), matches)
    loaded(section_of(tmp_path, EURO, price_side="bid"), matches)
    data = propose_section(describe_folder(tmp_path).data_section).section
    assert "spread_pips" not in data and "price_side" not in data
    loaded({"time_zone": "UTC", **data}, matches)


@pytest.mark.parametrize("own", ["mid", "bid"])
def test_quotes_beside_prices_are_a_spread(tmp_path, own):
    shift = {"mid": 0.0, "bid": 0.5 * SPREAD}[own]
    quotes = [side("close", sign) for sign in (-1.0, 1.0)]
    rows = [
        [
            spelt("%s")(t),
            *(number(EURO.prices[n][k] - shift, 5) for n in PRICES),
            quotes[0][k],
            quotes[1][k],
        ]
        for k, t in enumerate(EURO.time)
    ]
    write(tmp_path / "EURUSD.csv", ["time", *PRICES, "Bid", "Ask"], rows)
    loaded(section_of(tmp_path, EURO, price_side=own), equal(EURO, volume=False, spread=SPREAD))
    assert bool(check(DataConfig(**section_of(tmp_path, EURO))).issues_of_kind("bid_only")) == (
        own == "bid"
    )


PAIRS = [
    ("eurusd-h1-bid-2022-01-03-2022-01-21", "eurusd-h1-ask-2022-01-03-2022-01-21"),
    ("EURUSD_BID", "EURUSD_ASK"),
    ("BID_EURUSD", "ASK_EURUSD"),
    ("EURUSD_Bid_H1", "EURUSD_Ask_H1"),
    ("EURUSDBid", "EURUSDAsk"),
    ("EURUSD-bid-2022-01-03", "EURUSD-ask-2022-01-04"),
    ("EURUSD_Candlestick_1_Hour_BID_03.01.2022-21.01.2022",) * 2,
]


@pytest.mark.parametrize("pair", PAIRS)
def test_bid_and_ask_in_two_files(tmp_path, pair):
    if pair[0] == pair[1]:
        pair = (pair[0], pair[0].replace("BID", "ASK"))
    for stem, sign, drop in ((pair[0], -1.0, 5), (pair[1], 1.0, 9)):
        columns = [side(name, sign) for name in PRICES]
        rows = [[str(1000 * t), *prices] for t, *prices in zip(EURO.time, *columns, strict=True)]
        write(tmp_path / f"{stem}.csv", HEAD[:5], rows[:drop] + rows[drop + 1 :])
    kept = EURO.rows(~np.isin(np.arange(len(EURO.time)), [5, 9]))
    matches = equal(kept, volume=False, spread=SPREAD)
    for section in (section_of(tmp_path, EURO), {"folder": str(tmp_path)}):
        loaded(section, matches)
    assert load({"folder": str(tmp_path)}).symbols == ("EURUSD",)
    (found,) = check(DataConfig(folder=str(tmp_path))).issues_of_kind("unpaired")
    assert found.count == 2
    loaded(propose_section(describe_folder(tmp_path).data_section).section, matches)


PARTS = [
    ("EURUSD_M1_0-2k", "EURUSD_M1_2-4k"),
    ("EURUSD_train", "EURUSD_test"),
    ("EURUSD_1", "EURUSD_2"),
    ("EURUSD_part1", "EURUSD_part2"),
    ("EURUSD-000", "EURUSD-001"),
    ("EURUSD_H1_training", "EURUSD_H1_validation", "EURUSD_H1_test"),
]


@pytest.mark.parametrize("names", PARTS)
def test_parts_of_a_file_are_one_symbol(tmp_path, names):
    rows, size = rows_of(EURO, spelt("%Y-%m-%dT%H:%M:%SZ")), len(EURO.time) // len(names)
    for k, name in enumerate(names):
        last = len(rows) if k == len(names) - 1 else (k + 1) * size
        part = rows[k * size : last]
        if k:  # a trailing delimiter, and a column without a name
            part = [[*row, "4"] for row in part]
        write(tmp_path / f"{name}.csv", [*HEAD, ""] if k else HEAD, part, "\t")
    loaded(section_of(tmp_path, EURO), equal(EURO))
    assert load({"folder": str(tmp_path), "time_zone": "UTC"}).bars[0].time[0] == EURO.time[0]
    data = propose_section(describe_folder(tmp_path).data_section).section
    loaded({"time_zone": "UTC", **data}, equal(EURO))


def test_lengths_of_bars_in_names_are_no_parts(tmp_path):
    for name in ("EURUSD_15", "EURUSD_60", "GBPUSD_1"):
        (tmp_path / f"{name}.csv").touch()
    assert sorted(check(DataConfig(folder=str(tmp_path))).files) == [
        "EURUSD_15", "EURUSD_60", "GBPUSD_1",
    ]  # fmt: skip


BARE = {
    "most": PRICES,
    "Coinbase": ("low", "high", "open", "close"),
    "Bitfinex": ("open", "close", "high", "low"),
    "Huobi": ("open", "close", "low", "high"),
}


@pytest.mark.parametrize(
    ("order", "more", "stamp"),
    sampled(
        BARE,
        [(), ("volume",), ("volume", "turnover")],
        ("%s", "%s000", "%Y-%m-%d %H:%M:%S", "%d-%b-%Y %H:%M"),
        share=4,
    ),
)
def test_files_without_a_header(tmp_path, order, more, stamp):
    rows = []
    for row in rows_of(COIN, spelt(stamp), 2):
        cells = dict(zip(HEAD, row, strict=True))
        cells["turnover"] = "1"
        rows.append([cells[name] for name in ("time", *BARE[order], *more)])
    for part in (rows, rows[::-1]):
        write(tmp_path / "BTCUSDT.csv", None, part)
        loaded(section_of(tmp_path, COIN), equal(COIN, volume=bool(more)))


def test_prices_in_no_known_order_are_refused(tmp_path):
    rows = [[row[0], row[1], row[3], row[4], row[2]] for row in rows_of(COIN, spelt("%s"), 2)]
    write(tmp_path / "BTCUSDT.csv", None, rows)
    with pytest.raises(DataError, match=r"in no known order.*Add a header line"):
        load(section_of(tmp_path, COIN))


ODD: dict[str, Callable[[list[str], list[Row]], tuple[Row, list[Row]]]] = {
    "row numbers": lambda h, r: (h, [[str(k), *row] for k, row in enumerate(r)]),
    "rows of a filtered frame": lambda h, r: (h, [[str(9 * k + 4), *x] for k, x in enumerate(r)]),
    "a symbol in front": lambda h, r: (h, [["EURUSD", *row] for row in r]),
    "a trailing mark": lambda h, r: (h, [[*row, ""] for row in r]),
    "a cell without a name": lambda h, r: (h, [[*row, "7"] for row in r]),
    "an index of times": lambda h, r: (h[1:], r),
    "a clock without a name": lambda h, r: (["Date", *h[1:]], [[*x[0].split(), *x[1:]] for x in r]),
    "units below the names": lambda h, r: (h, [["(UTC)", *["(USD)"] * 5], *r]),
    "yfinance": lambda h, r: (
        ["Price", *h[1:]], [["Ticker", *["EURUSD=X"] * 5], ["Datetime", *[""] * 5], *r]
    ),
    "tickers above the names": lambda h, r: (
        ["Ticker", *["EURUSD=X"] * 5], [["Price", *h[1:]], ["Datetime", *[""] * 5], *r]
    ),
    "the header again": lambda h, r: (h, [*r[:100], h, *r[100:200], h, *r[200:]]),
    "the header again, early": lambda h, r: (h, [*r[:7], h, *r[7:]]),
    "a word among the first": lambda h, r: (h, [*r[:7], ["pending", *[""] * 5], *r[7:]]),
    "a title above": lambda h, r: (["EURUSD", "", "", "", "", ""], [h, *r]),
    "forextester": lambda h, r: (
        ["<TICKER>", "<DTYYYYMMDD>", "<TIME>", "<OPEN>", "<HIGH>", "<LOW>", "<CLOSE>", "<VOL>"],
        [
            ["EURUSD", x[0][:10].replace("-", ""), x[0][11:].replace(":", ""), *x[1:]]
            for x in r
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "separator", "stamp"), sampled(ODD, ",;\t", ("%Y-%m-%d %H:%M:%S", "%s"), share=3)
)
def test_headers_and_rows_that_do_not_agree(tmp_path, name, stamp, separator):
    if stamp == "%s" and name in ("a clock without a name", "forextester"):
        pytest.skip("has no epochs")
    head, rows = ODD[name](HEAD, rows_of(EURO, spelt(stamp)))
    write(tmp_path / "EURUSD.csv", head, rows, separator)
    loaded(section_of(tmp_path, EURO), equal(EURO))


@pytest.mark.parametrize(
    ("names", "volume"),
    [
        (("VolumeFrom", "VolumeTo"), 0),
        (("Volume USDT", "Volume BTC"), 1),
        (("Volume_(BTC)", "Volume_(Currency)"), 0),
        (("Quote Volume", "Base Volume"), 1),
        (("base_volume", "quote_volume"), 0),
        (("quoteVolume", "volume"), 1),
    ],
)
def test_of_two_volumes_the_base_is_taken(tmp_path, names, volume):
    rows = rows_of(COIN, spelt("%s"), 2)
    other = [str(7 * k) for k in range(len(rows))]
    rows = [
        [*row[:5], *((row[5], x) if volume == 0 else (x, row[5]))]
        for row, x in zip(rows, other, strict=True)
    ]
    write(tmp_path / "BTCUSDT.csv", [*HEAD[:5], *names], rows)
    loaded(section_of(tmp_path, COIN), equal(COIN))


@pytest.mark.parametrize("value", ["-1", "-1.0"])
def test_a_volume_of_minus_one_is_unknown(tmp_path, value):
    write(tmp_path / "EURUSD.csv", HEAD, [[*r[:5], value] for r in rows_of(EURO, spelt("%s"))])
    loaded(section_of(tmp_path, EURO), equal(EURO, volume=False))
    (found,) = check(DataConfig(**section_of(tmp_path, EURO))).issues_of_kind("unknown_volume")
    assert found.count == len(EURO.time) and found.severity == "warning"


COARSE = {
    "days": (COIN, spelt("%Y-%m-%d")),
    "days of minutes": (truth("BTCUSDT", 300, "2022-01-03", 3), spelt("%Y-%m-%d")),
    "hours of minutes": (truth("BTCUSDT", 300, "2022-01-03", 1), spelt("%Y-%m-%d %H")),
    "science": (COIN, lambda t: f"{1000 * t:.5E}"),
    "science of seconds": (COIN, lambda t: f"{t:.5E}"),
    "science of minutes": (truth("BTCUSDT", 300, "2022-01-03", 2), lambda t: f"{1000 * t:.5E}"),
    "compact days": (COIN, spelt("%Y%m%d")),
}


@pytest.mark.parametrize("name", COARSE)
def test_coarse_stamps_are_refused_and_rebuilt_if_asked(tmp_path, name):
    one, stamp = COARSE[name]
    rows = rows_of(one, stamp, 2)
    for part in (rows, rows[::-1]):
        write(tmp_path / "BTCUSDT.csv", HEAD, part)
        with pytest.raises(DataError, match=r"time stamps? between them.*row_spacing"):
            load(section_of(tmp_path, one))
        loaded(section_of(tmp_path, one), equal(one))


def test_coarse_stamps_of_rows_with_holes_have_no_remedy(tmp_path):
    write(tmp_path / "EURUSD.csv", HEAD, rows_of(EURO, spelt("%Y-%m-%d")))
    section = section_of(tmp_path, EURO)
    with pytest.raises(DataError, match="Export the file again with full stamps") as refusal:
        load(section)
    assert not remedies(refusal.value)
    with pytest.raises(DataError, match="`row_spacing: 1h` does not fit"):
        load({**section, "row_spacing": "1h"})


def test_a_few_corrected_bars_are_still_duplicates(tmp_path):
    rows = rows_of(EURO, spelt("%s"))
    wrong = [[*row[:5], "0"] for row in rows[:5]]
    write(tmp_path / "EURUSD.csv", HEAD, [*wrong, *rows])
    loaded(section_of(tmp_path, EURO), equal(EURO))


@pytest.mark.parametrize("stamp", ["%s000", "%Y-%m-%d %H:%M"])
def test_bars_after_today_stop(tmp_path, stamp):
    late = Truth("EURUSD", EURO.time + 30 * 365 * DAY, EURO.prices, EURO.volume, EURO.points, HOUR)
    write(tmp_path / "EURUSD.csv", HEAD, rows_of(late, spelt(stamp)))
    report = check(DataConfig(**section_of(tmp_path, late)))
    (found,) = report.issues_of_kind("future")
    assert found.severity == "error" and "after today" in found.message
    accepting = check(DataConfig(**section_of(tmp_path, late, allow_issues=("future",))))
    assert accepting.issues_of_kind("future")[0].severity == "warning"


@pytest.mark.parametrize("sundays", [False, True])
@pytest.mark.parametrize("roll", ["midnight", "17:00"])
def test_weekends_between_daily_bars_are_no_holes(tmp_path, sundays, roll):
    days = np.arange(1000) * DAY + EURO.time[0] // DAY * DAY
    keep = (days // DAY + 3) % 7 < 5
    if sundays:
        keep |= (days // DAY + 3) % 7 == 6
    days = days[keep]
    one = Truth(
        "EURUSD",
        days if roll == "midnight" else days - 2 * HOUR,
        {name: np.resize(column, len(days)) for name, column in EURO.prices.items()},
        np.resize(EURO.volume, len(days)), np.resize(EURO.points, len(days)), DAY,
    )  # fmt: skip
    write(tmp_path / "EURUSD.csv", HEAD, rows_of(one, spelt("%Y-%m-%dT%H:%MZ")))
    report = check(DataConfig(folder=str(tmp_path)))
    assert report.loadable and not report.issues_of_kind("gap")
    gone = one.rows(np.arange(len(days)) % 50 != 22)
    write(tmp_path / "EURUSD.csv", HEAD, rows_of(gone, spelt("%Y-%m-%dT%H:%MZ")))
    assert check(DataConfig(folder=str(tmp_path))).issues_of_kind("gap")
