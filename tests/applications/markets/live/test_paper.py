"""A paper account is what `evaluate` makes of the same bars, whatever happens on the way."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from live_markets import GATES, Make, check_equal, decisions, table, week, write

import slipstream
from slipstream.cli import main
from slipstream.core.errors import CheckpointError, ConfigError, DataError
from slipstream.core.storage.signals import Interrupted, request_stop
from slipstream.core.storage.status_file import read_status, run_lines
from slipstream.markets.data.check import check
from slipstream.markets.data.config import DataConfig
from slipstream.markets.live.account_comparison import compare
from slipstream.markets.live.account_runner import run_account
from slipstream.markets.live.deployment import KILL, Deployment, read_kill_switch, set_kill_switch
from slipstream.markets.live.deployment_gates import deploy_policy
from slipstream.markets.live.journal import Journal
from slipstream.markets.live.paper_account import JOURNAL

FEATURES = ["log_return_1", "rsi_14"]
FOREX: dict[str, Any] = {"features": FEATURES}
COINS = 1_641_081_000 + 300 * np.arange(660)
SUMMER = 1_741_503_600  # 2025-03-09 07:00 UTC: New York's clock changes


def forex_tables(bars: int = 420) -> dict[str, pl.DataFrame]:
    """EURGBP, whose profits GBPUSD converts, lacks 6 bars and ends 20 bars before the others."""
    time_ = week(bars)
    hole = np.ones(bars, np.bool_)
    hole[380:386] = hole[400:] = False
    pairs = {"EURGBP": 0.85, "GBPUSD": 1.25, "USDJPY": 150.0}
    made = {name: table(time_, price, k) for k, (name, price) in enumerate(pairs.items())}
    made["EURGBP"] = made["EURGBP"].filter(pl.Series(hole))
    return made


def coin_tables() -> dict[str, pl.DataFrame]:
    """LTC begins late, lacks 20 bars and returns; ETH is gone 35 bars before the end."""
    made = {
        name: table(COINS, 10.0**k, k, 3e-3)
        for k, name in enumerate(("BTCUSD", "ETHUSD", "LTCUSD"))
    }
    keep = np.ones(len(COINS), np.bool_)
    keep[:30] = keep[600:620] = False
    made["LTCUSD"] = made["LTCUSD"].filter(pl.Series(keep))
    made["ETHUSD"] = made["ETHUSD"][:625]
    return made


@pytest.mark.parametrize("action", ["discrete", pytest.param("continuous", marks=pytest.mark.slow)])
def test_forex_equals_evaluate_bar_by_bar(make: Make, tmp_path: Path, action: str) -> None:
    prices = write(tmp_path / "prices", forex_tables())
    data = {"folder": str(prices), "symbols": ["EURGBP", "USDJPY"]}
    make("forex", data, action=action, **FOREX)
    begin = int(week(420)[375])
    assert run_account("demo", f"replay:{prices}", start=begin) == 45 + 19
    check_equal("demo", 18)
    row = decisions(Deployment.open("demo"))["EURGBP"][0]
    assert row.time == begin and row.equity == 100_000.0


@pytest.mark.parametrize(
    ("universe", "more"),
    [
        ("union", {}),
        pytest.param("common", {}, marks=pytest.mark.slow),
        pytest.param("common", {"orders": "units", "lookback": 3}, marks=pytest.mark.slow),
    ],
)
def test_a_portfolio_equals_evaluate_bar_by_bar(
    make: Make, tmp_path: Path, universe: str, more: dict[str, Any]
) -> None:
    tables = coin_tables()
    if universe == "common":  # to the end; three of them, for which the kernel is compiled anyhow
        tables["ETHUSD"] = table(COINS, 10.0, 1, 3e-3)
    prices = write(tmp_path / "prices", tables)
    columns = [*FEATURES, "obv"] if more else FEATURES  # obv: a sum since the first bar
    make("portfolio", prices, universe=universe, features=columns, **more)
    run_account("demo", f"replay:{prices}", start=int(COINS[592]))
    check_equal("demo", 65)


def test_wanted_units_are_those_that_the_next_fill_brings(make: Make, tmp_path: Path) -> None:
    """If prices are constant until the fill, the trial on a flat bar equals the fill."""
    frame = table(week(420), 1.1, 0)
    opened = frame["close"].shift(1, fill_value=1.1)
    prices = write(tmp_path / "prices", {"EURUSD": frame.with_columns(open=opened)})
    make("forex", prices, **FOREX)
    run_account("demo", f"replay:{prices}", start=int(week(420)[380]))
    (track,) = slipstream.evaluate("demo").episodes
    rows = decisions(Deployment.open("demo"))["EURUSD"]
    held = track.trace["units"]
    moved = [k for k in range(1, len(held) - 1) if held[k] != held[k - 1]]
    assert moved and all(rows[k].target_units == pytest.approx((held[k],), rel=1e-3) for k in moved)


def test_a_replay_without_a_start_begins_where_features_are_there(
    make: Make, tmp_path: Path
) -> None:
    frame = table(week(420), 1.1, 0)
    make("forex", write(tmp_path / "prices", {"EURUSD": frame}), **FOREX)
    few, said = write(tmp_path / "few", {"EURUSD": frame}, slice(0, 200)), list[str]()
    with pytest.raises(DataError, match="to warm up"):
        run_account("demo", f"replay:{few}", notify=said.append)
    assert sum(one.startswith("No decision yet: EURUSD") for one in said) == 1
    write(few, {"EURUSD": frame}, slice(0, 274))
    decided = run_account("demo")
    (one,) = compare("demo").passes
    assert one.num_equal == one.num_compared == decided - 1
    assert 5 < decided < 15 and one.rows[0].time == week(420)[274 - decided]


def test_a_new_start_goes_on_and_a_different_one_is_refused(make: Make, tmp_path: Path) -> None:
    tables = forex_tables()
    prices = write(tmp_path / "prices", tables)
    make("forex", {"folder": str(prices), "symbols": ["USDJPY"]}, **FOREX)
    begin = int(week(420)[350])
    write(prices, {"USDJPY": tables["USDJPY"]}, slice(0, 380))
    run_account("demo", f"replay:{prices}", start=begin)
    first = decisions(Deployment.open("demo"))["USDJPY"]
    write(prices, tables)
    assert run_account("demo", f"replay:{prices}") == 40
    rows = decisions(Deployment.open("demo"))["USDJPY"]
    assert rows[: len(first)] == first and len(rows) == 70
    check_equal("demo", 69)
    with pytest.raises(ConfigError, match="which cannot be changed"):
        run_account("demo", f"replay:{prices}", start=begin + 900)


def test_a_file_that_grows(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As MetaTrader exports: the broker's clock, a bar that is still open, lines that end late."""
    time_ = week(420)
    broker = table(time_ + 7_200, 1.1, 0).with_columns(
        pl.col("time").str.replace("Z", "").str.replace("T", " ").str.replace_all("-", ".")
    )
    prices = tmp_path / "EURUSD.csv"
    broker.write_csv(prices)
    data = {"folder": str(prices), "time_zone": "Etc/GMT-2"}
    make("forex", data, **FOREX)
    now = [float(time_[400]) + 60.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    broker[:401].write_csv(prices)  # the last one has just opened
    feed = f"tail:{prices}"
    assert run_account("demo", feed, once=True) == 1
    assert decisions(Deployment.open("demo"))["EURUSD"][0].time == time_[399]
    now[0] += 900.0
    broker[:402].write_csv(prices)
    assert run_account("demo", feed, once=True) == 1
    assert run_account("demo", feed, once=True) == 0  # nothing new, nothing twice
    now[0] += 3 * 900.0
    broker[:405].write_csv(prices)
    assert run_account("demo", feed, once=True) == 3
    rows = decisions(Deployment.open("demo"))["EURUSD"]
    assert [row.time for row in rows] == time_[399:404].tolist()
    assert rows[1].decided_at - (rows[1].time + 900) == 60.0 and rows[2].target_units == ()
    check_equal("demo", 4)


def test_a_feed_without_zones_is_given_one_for_its_account(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy was trained on stamps that end in Z; the file that grows has none."""
    time_ = week(420)
    zoned = table(time_, 1.1, 0)
    make("forex", write(tmp_path / "trained", {"EURUSD": zoned}), **FOREX)
    naive = table(time_ + 7_200, 1.1, 0).with_columns(pl.col("time").str.replace("Z", ""))
    prices = tmp_path / "EURUSD.csv"
    now = [float(time_[400]) + 60.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    naive[:401].write_csv(prices)
    feed = f"tail:{prices}"
    with pytest.raises(DataError, match="such as `--time-zone UTC`"):
        run_account("demo", feed, once=True)
    with pytest.raises(ConfigError, match="must name a zone"):
        run_account("demo", feed, once=True, time_zone="Mars")
    with pytest.raises(ConfigError, match="applies to files"):
        run_account("demo", "ccxt:kraken", once=True, time_zone="UTC")
    assert run_account("demo", feed, once=True, time_zone="Etc/GMT-2") == 1
    now[0] += 900.0
    naive[:402].write_csv(prices)
    assert run_account("demo", once=True) == 1  # the account keeps it
    rows = decisions(Deployment.open("demo"))["EURUSD"]
    assert [row.time for row in rows] == time_[399:401].tolist()
    (one,) = compare("demo").passes
    assert (one.num_compared, one.num_equal) == (1, 1)  # the last decision waits for its bar


OTHER = {  # what of the rows behind New York's change of clocks, and what is then said
    "zone": "",
    "order": "unreadable time stamps",
    "spread": "its spread is",
}


@pytest.mark.parametrize("what", OTHER)
def test_later_rows_change_no_reading_of_a_file(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Zone, order of day and month, and units are those of the deployment, or it stands still."""
    opens = week(1_440, 1_800)  # six weeks, of which four follow the change
    before = int(np.searchsorted(opens, SUMMER))
    clock = opens + 7_200 + 3_600 * (what == "zone") * (opens >= SUMMER)
    late = np.arange(len(opens)) >= before
    form = np.where(late & (what == "order"), "%m/%d/%Y %H:%M", "%d/%m/%Y %H:%M")
    stamps = [time.strftime(one, time.gmtime(t)) for one, t in zip(form, clock, strict=True)]
    frame = table(opens, 1.1, 0).with_columns(time=pl.Series(stamps))
    if what == "spread":  # in points
        frame = frame.with_columns(spread=pl.col("spread") * pl.Series(np.where(late, 1e5, 1.0)))
    prices = tmp_path / "EURUSD.csv"
    frame[:before].write_csv(prices)
    data = {"folder": str(prices), "time_zone": "Etc/GMT-2"}
    found = make("forex", data, features=["log_return_1", "close_location"])
    monkeypatch.setattr(time, "time", lambda: float(opens[-1]) + 86_400.0)
    run_account("demo", f"tail:{prices}", start=int(opens[before - 5]), once=True, max_gap=2_000)
    kept = decisions(found)["EURUSD"]
    assert [row.time for row in kept] == opens[before - 5 : before].tolist()
    frame.write_csv(prices)
    if what != "order":  # read anew, the whole file would be refused
        section = DataConfig(**data, timeframe="30m")
        assert {one.kind for one in check(section).errors} & {"local_time", "spread_unit"}
    if OTHER[what]:
        with pytest.raises(DataError, match=OTHER[what]):
            run_account("demo", once=True, max_gap=2_000)
        assert decisions(found)["EURUSD"] == kept
        return
    run_account("demo", once=True, max_gap=2_000)
    rows = decisions(found)["EURUSD"]
    assert rows[:5] == kept and [row.time for row in rows[5:]] == (clock - 7_200)[before:].tolist()
    check_equal("demo", len(rows) - 1)


def test_a_bar_that_is_revised_stops_the_account_and_overwrites_nothing(
    make: Make, tmp_path: Path
) -> None:
    tables = {"EURUSD": table(week(420), 1.1, 0)}
    prices = write(tmp_path / "prices", tables)
    found = make("forex", prices, **FOREX)
    write(prices, tables, slice(0, 400))
    run_account("demo", f"replay:{prices}", start=int(week(420)[380]))
    before = decisions(found)
    kept = (found.account(1) / "bars" / "EURUSD.csv").read_bytes()
    other = tables["EURUSD"].with_columns(
        close=pl.when(pl.int_range(pl.len()) == 390).then(pl.col("open")).otherwise(pl.col("close"))
    )
    write(prices, {"EURUSD": other})
    with pytest.raises(DataError, match=r"EURUSD: the bar of 2025-02-27 .* was revised: its close"):
        run_account("demo", f"replay:{prices}")
    assert decisions(found) == before
    assert (found.account(1) / "bars" / "EURUSD.csv").read_bytes() == kept
    write(prices, tables)
    assert run_account("demo", f"replay:{prices}") == 20


def test_a_hole_is_said_and_a_long_one_stops(make: Make, tmp_path: Path, capsys: Any) -> None:
    tables = {"EURUSD": table(week(420), 1.1, 0)}
    prices = write(tmp_path / "prices", tables)
    make("forex", prices, **FOREX)
    keep = np.ones(420, np.bool_)
    keep[385:388] = keep[395:410] = False
    write(prices, {"EURUSD": tables["EURUSD"].filter(pl.Series(keep))})
    said: list[str] = []
    with pytest.raises(DataError, match=r"15 bars missing after .*--max-gap 15"):
        run_account("demo", f"replay:{prices}", start=int(week(420)[380]), notify=said.append)
    assert any("3 bars missing after" in one for one in said)
    assert run_account("demo", f"replay:{prices}", max_gap=15) == 10
    check_equal("demo", 20)


@pytest.mark.slow
def test_kept_bars_that_changed_are_named_at_the_start(make: Make, tmp_path: Path) -> None:
    prices = write(tmp_path / "prices", {"EURUSD": table(week(420), 1.1, 0)})
    found = make("forex", prices, **FOREX)
    run_account("demo", f"replay:{prices}", start=int(week(420)[400]))
    kept = found.account(1) / "bars" / "EURUSD.csv"
    lines = kept.read_text().splitlines(keepends=True)
    lines[405] = lines[405].replace(".", ".1", 1)
    kept.write_text("".join(lines))
    with pytest.raises(CheckpointError, match=r"bars up to it have changed|differs at 2025-"):
        run_account("demo", f"replay:{prices}")


def test_a_kill_switch_ends_it_until_it_is_taken_back(make: Make, tmp_path: Path) -> None:
    prices = write(tmp_path / "prices", {"EURUSD": table(week(420), 1.1, 0)})
    found = make("forex", prices, **FOREX)
    begin = int(week(420)[410])

    def throw(sentence: str) -> None:  # in the middle
        if not read_kill_switch(found.path):
            set_kill_switch(found.path, flat=False)

    with pytest.raises(ConfigError, match=r"demo is stopped by .*KILL"):
        run_account("demo", f"replay:{prices}", start=begin, notify=throw)
    with pytest.raises(ConfigError, match=r"is stopped by .*KILL"):
        run_account("demo")
    assert len(decisions(found)["EURUSD"]) == 1
    (found.path / KILL).unlink()
    assert run_account("demo") == 9
    assert run_lines(found.path)[1].startswith("Its feed has ended; resume with")
    assert run_lines(found.path)[2].startswith("10 decisions")
    check_equal("demo", 9)


def test_what_is_no_feed(make: Make, tmp_path: Path) -> None:
    make("forex", write(tmp_path / "prices", {"EURUSD": table(week(420), 1.1, 0)}), **FOREX)
    for word in ("replay", "ftp:there", "tail:", ""):
        with pytest.raises(ConfigError, match=r"is not a feed. Use replay:DIR"):
            run_account("demo", word)
    other = write(tmp_path / "other", {"GBPUSD": table(week(420), 1.25, 1)})
    with pytest.raises(DataError, match=r"must hold EURUSD in files as those of training were"):
        run_account("demo", f"replay:{other}")


@pytest.mark.slow
def test_killed_at_random_it_ends_as_if_it_never_was(make: Make, tmp_path: Path) -> None:
    prices = write(tmp_path / "prices", forex_tables())
    data = {"folder": str(prices), "symbols": ["EURGBP", "USDJPY"]}
    found = make("forex", data, **FOREX)
    begin = int(week(420)[360])
    run_account("demo", f"replay:{prices}", start=begin)
    whole = decisions(found)
    deploy_policy(tmp_path / "studies" / "first", "killed", dict.fromkeys(GATES, "a test"))
    command = [
        sys.executable,
        "-m",
        "slipstream",
        "paper",
        "start",
        "killed",
        "--feed",
        f"replay:{prices}",
    ]
    at = np.datetime64(begin, "s")
    draw, kills = random.Random(1), 0
    for tries in range(9):
        account = Deployment.open("killed").account(1)
        more = [] if (account / "account.json").is_file() else ["--from", str(at)]
        process = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if tries < 5:
            for _ in range(draw.randrange(8)):  # decisions that it tells
                process.stdout.readline()
            time.sleep(0.05 * draw.random())
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=120)
        kills += process.returncode == -signal.SIGKILL
        if process.returncode == 0:
            break
    assert kills >= 3 and process.returncode == 0
    assert decisions(Deployment.open("killed")) == whole
    for name in ("EURGBP", "USDJPY", "GBPUSD"):
        one, two = (
            Deployment.open(n).account(1) / "bars" / f"{name}.csv" for n in ("demo", "killed")
        )
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.slow
def test_it_is_a_job_that_is_watched_stopped_and_resumed(
    make: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, by the commands that runs have."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    prices = write(tmp_path / "prices", {"EURUSD": table(week(420), 1.1, 0)})
    make("forex", prices, **FOREX)

    def told(*words: str) -> str:
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main(list(words))
        assert not left.value.code
        return capfd.readouterr().out

    said = told(
        "paper", "start", "demo", f"--feed=tail:{prices}", "--max-gap=1000000", "--background"
    )
    assert "slipstream stop" in said
    deadline = time.monotonic() + 60
    while "1 decisions" not in (status := told("status", "demo")):
        assert time.monotonic() < deadline, status
    assert "The gate pbo failed" in status and "was forced: a test" in status
    assert "running" in told("jobs") and "equity EURUSD" in told("log", "demo")
    assert "slipstream resume demo" in told("stop", "demo")
    told("watch", "demo")  # until it has ended
    assert "stopped" in told("jobs", "--all") and "No process works on it" in told("status", "demo")
    rows = decisions(Deployment.open("demo"))
    told("paper", "start", "demo", "--run-once", "--max-gap=1000000")  # the feed that it had
    assert decisions(Deployment.open("demo")) == rows
    assert "No process works on" in told("stop", "demo")
    prices.rename(tmp_path / "elsewhere")
    with pytest.raises(SystemExit) as left:  # a start that fails is said at once
        main(["paper", "start", "demo", "--background"])
    assert left.value.code == 2 and "does not exist" in capfd.readouterr().err
    assert "It failed: " in told("status", "demo")


@pytest.mark.slow
def test_another_version_goes_on_with_an_account_of_its_own(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {"EURUSD": table(week(420), 1.1, 0)}
    prices = write(tmp_path / "prices", tables)
    found = make("forex", prices, **FOREX)
    now = [float(week(420)[400]) + 905.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    write(prices, tables, slice(0, 401))

    def sleep(seconds: float) -> None:  # between two looks of the process that leads it
        if found.current == 1:
            deploy_policy(tmp_path / "studies" / "first", "demo", dict.fromkeys(GATES, "a test"))
        else:
            request_stop(found.path)

    monkeypatch.setattr("slipstream.markets.live.account_runner.time.sleep", sleep)
    said: list[str] = []
    with pytest.raises(Interrupted, match="slipstream paper start demo"):
        run_account("demo", f"tail:{prices}", notify=said.append)
    assert "Version 2 is current now" in " ".join(said)
    for number in (1, 2):
        journal = Journal(found.account(number) / JOURNAL)
        assert [row.time for row in journal.decisions("EURUSD")] == [int(week(420)[400])]
        journal.close()
    status = read_status(found.path)
    assert status is not None and status.state == "stopped" and "pbo failed" in status.notes[2]
