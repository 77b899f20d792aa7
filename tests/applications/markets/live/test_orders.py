"""Orders follow the paper account on an exchange that does its worst, killed or not."""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from fake_exchange import LEAST, Clock, Server, Week
from live_markets import GATES, Make, table, write

from slipstream.cli import main
from slipstream.core.errors import ConfigError, DataError, ResourceError
from slipstream.core.extras import import_optional
from slipstream.markets.live import exchange
from slipstream.markets.live.account_comparison import compare
from slipstream.markets.live.account_runner import run_account
from slipstream.markets.live.deployment import Deployment, set_kill_switch
from slipstream.markets.live.deployment_gates import deploy_policy
from slipstream.markets.live.drift import FeatureDrift, FeatureRanges
from slipstream.markets.live.exchange import FILLED, AlpacaPaper, LotSize, Order
from slipstream.markets.live.journal import Journal
from slipstream.markets.live.order_manager import (
    Limits,
    OrderContext,
    OrderManager,
    blocking_reason,
    rejection_reasons,
)
from slipstream.markets.live.paper_account import JOURNAL, TargetPosition

SIZE = 28_800
BEGIN = 1_741_219_200  # 2025-03-06 00:00 UTC; New York's clock changes on the 9th
HISTORY, BARS = 150, 21  # before the week, and in it
FEATURES = ["log_return_1", "close_location"]
NAMES = ("BTCUSD", "ETHUSD", "LTCUSD")
TIMES = BEGIN + SIZE * np.arange(-HISTORY, BARS + 20)
LIMITS = Limits(max_order=0.6, max_orders_per_day=9)
FEED = "ccxt:alpaca"
CONNECT = exchange.connect


def tables() -> dict[str, Any]:
    return {name: table(TIMES, 10.0 ** (4 - k), k, 2e-2) for k, name in enumerate(NAMES)}


LONG, LONG_SIZE = 4_000, 3_600  # hourly bars that a small study is run on
LONG_BEGIN = BEGIN


def long_tables() -> dict[str, Any]:
    times = LONG_BEGIN + LONG_SIZE * np.arange(-LONG, 7 * 24 + 2)
    return {name: table(times, 10.0 ** (4 - k), k, 1e-2) for k, name in enumerate(NAMES)}


def bad_week(seed: int) -> Week:
    bar = BEGIN + SIZE * np.arange(BARS)
    return Week(
        seed=seed,
        outage=(bar[5] + 0.9 * SIZE, bar[5] + 0.9 * SIZE + 3_600.0),
        clocks=((bar[8] - 60.0, bar[8] + 1_500.0, 240.0), (bar[11], bar[11] + 1_500.0, -180.0)),
        revised=(int(bar[14]), bar[16] - 60.0, bar[16] + 900.0),
        late=frozenset(bar[[3, 18]].tolist()),
    )


class Over(BaseException):
    """The week is over."""


@pytest.fixture
def served(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Server]]:
    """A deployment `demo` of a policy over three coins, and a server for it."""
    opened: list[Server] = []
    import_optional("ccxt", "Orders are", "live")  # once, and not in every child
    prices = write(tmp_path / "prices", tables(), slice(0, HISTORY))
    make("portfolio", prices, features=FEATURES, sharpness=5.0)
    for name in exchange.KEYS:
        monkeypatch.setenv(name, "secret-of-this-test")
    # An order that stays open all bar long is asked for 50 times, not 1,000.
    monkeypatch.setattr("slipstream.markets.live.account_runner._MAX_POLL_SECONDS", 600.0)

    def serve(
        week: Week | None = None,
        begin: float = BEGIN + 30.0,
        prices: Mapping[str, Any] | None = None,
        size: int = SIZE,
    ) -> Server:
        server = Server(prices or tables(), size, begin, 100_000.0, week)
        opened.append(server)

        def pointed(name: str, options: Mapping[str, Any]) -> Any:
            api = CONNECT(name, options)
            assert api.urls["api"]["trader"] == "https://paper-api.{hostname}"
            api.urls["api"] = dict.fromkeys(("trader", "market", "broker"), server.url)
            api.enableRateLimit = False
            return api

        monkeypatch.setattr(exchange, "connect", pointed)
        return server

    yield serve
    for server in opened:
        server.close()


def virtual(clock: Clock, until: float) -> None:
    """In a child: time is the exchange's, and ends."""

    def sleep(seconds: float) -> None:
        if clock() >= until:
            raise Over
        clock.sleep(seconds)

    time.sleep, time.time = sleep, clock


def counted(kill_at: int) -> None:
    """In a child: it dies at its N-th operation on a file, the journal or the network."""
    count = 0

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **options: Any) -> Any:
            tick()
            answer = call(*arguments, **options)
            tick()
            return answer

        return made

    def tick() -> None:
        nonlocal count
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    class Table(sqlite3.Connection):
        execute = around(sqlite3.Connection.execute)
        executemany = around(sqlite3.Connection.executemany)

    os.fsync = around(os.fsync)
    os.write = around(os.write)
    for name in ("connect", "sendall", "recv_into"):
        setattr(socket.socket, name, around(getattr(socket.socket, name)))
    connect_table = sqlite3.connect
    sqlite3.connect = lambda path, **options: connect_table(path, factory=Table, **options)


def lead(name: str, server: Server, until: float, kill_at: int = 0) -> int:
    """Leads an account in a child of this process: see `in_child`."""

    def do() -> None:
        if kill_at:
            counted(kill_at)
        run_account(name, FEED, broker="alpaca-paper", limits=LIMITS)

    return in_child(server, until, do)


def in_child(server: Server, until: float, do: Callable[[], object]) -> int:
    """Leads an account in a child of this process, on the server's clock: 0 at the end of the week,
    2 where it stands still, -9 where it was killed."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            virtual(server.clock, until)
            do()
        except Over:
            code = 0
        except DataError:
            code = 2
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def whole_week(name: str, server: Server, kills: Iterator[int], bars: int = BARS) -> int:
    """Leads it to the week's end as a supervisor would; how often it was killed."""
    end, killed = BEGIN + bars * SIZE + 0.9 * SIZE, 0
    for _ in range(3_000):
        code = lead(name, server, end, next(kills, 0))
        assert code in (0, 2, -signal.SIGKILL)
        killed += code < 0
        if code == 0:
            return killed
        if code == 2:  # a revised bar: later it is the old one again
            server.clock.sleep(600.0)
    raise AssertionError("it does not come to an end")


def kept(name: str) -> tuple[Any, ...]:
    """The journal but for the clock of this or that moment."""
    found = Deployment.open(name)
    with closing(Journal(found.account(found.current) / JOURNAL)) as journal:
        rows = [row[:-1] for one in journal.pass_names() for row in journal.decisions(one)]
        return rows, journal.orders(), journal.executed_bars()


def check_week(name: str, server: Server, bars: int = BARS) -> None:
    """No order twice, none beyond the limits, and the position that was wanted."""
    state = server.state()
    decisions, intents, traded = kept(name)
    assert len(decisions) >= bars - 2 and len(traded) >= bars - 4
    assert {one.id for one in intents} >= state["orders"].keys()
    first: dict[tuple[int, str], float] = {}
    for one in intents:
        first.setdefault((one.time, one.symbol), abs(one.quantity))
    for (at, symbol), size in first.items():
        own = [one for one in intents if (one.time, one.symbol) == (at, symbol)]
        assert [one.number for one in own] == list(range(len(own)))
        assert abs(sum(one.filled for one in own)) <= size * (1 + 1e-9)
        came = [state["orders"][one.id] for one in own if one.id in state["orders"]]
        assert sum(float(one["filled_qty"]) for one in came) <= size * (1 + 1e-9)
    bar_of, worth = (
        {one.id: one.time for one in intents},
        {one.time: one.rules_equity for one in traded},
    )
    for client, order in state["orders"].items():
        assert float(order["qty"]) >= LEAST
        if order["side"] == "buy":
            assert order["notional_share"] <= LIMITS.max_order * 1.02
            most = LIMITS.max_exposure * worth[bar_of[client]]
            assert order["held_after"] <= most * 1.0001
    a_day = Counter(time // 86_400 for time in bar_of.values())
    assert max(a_day.values()) <= LIMITS.max_orders_per_day
    for one in traded:
        if one.outcome == "traded":
            for target, held, why in one.unfilled.values():
                assert target == pytest.approx(held, abs=2 * LEAST) or why


@pytest.mark.slow
def test_a_quiet_week_of_orders_follows_the_account(served: Callable[..., Server]) -> None:
    server = served()
    assert whole_week("demo", server, iter(())) == 0
    check_week("demo", server)
    decisions, intents, traded = kept("demo")
    assert len(intents) > 20 and all(one.state == "filled" for one in intents)
    assert [one.outcome for one in traded] == ["traded"] * len(traded)
    (one,) = compare("demo").passes
    assert one.num_compared >= BARS - 2 and one.num_equal == one.num_compared
    state = server.state()
    wanted = decisions[-1][4]
    for name, target in zip(NAMES, wanted, strict=True):
        held = state["positions"][f"{name[:-3]}/USD"]
        assert held == pytest.approx(target, abs=2 * LEAST)
    assert len({order["bar"] for order in state["orders"].values()}) > 10


def killed_week(
    served: Callable[..., Server],
    tmp_path: Path,
    seed: int,
    kills: int,
    within: int,
    bars: int = BARS,
) -> int:
    """Kills it so often, each time within so many operations of its start, of which starting takes
    some 130; how often it was killed.
    """
    server = served(bad_week(seed))
    assert whole_week("demo", server, iter(()), bars) == 0
    check_week("demo", server, bars)
    expected, state = kept("demo"), server.state()
    other = "other/deployments/demo"  # the same name, so that ids are the same
    if not Path(other).exists():
        deploy_policy(tmp_path / "studies" / "first", other, dict.fromkeys(GATES[:5], "a test"))
    server = served(bad_week(seed))
    draw = random.Random(seed)
    points = (draw.randrange(1, within) for _ in range(kills))
    killed = whole_week(other, server, points, bars)
    check_week(other, server, bars)
    assert kept(other) == expected
    again = server.state()
    for one in (state, again):  # positions, ids, sizes, prices and fates, and how all of it ended
        for order in one["orders"].values():
            for own in ("id", "at", "submitted_at", "equity", "notional_share", "held_after"):
                del order[own]  # of when it came
    assert again["orders"] == state["orders"] and again["positions"] == state["positions"]
    kinds = {order["kind"] for order in state["orders"].values()}
    assert len(kinds) > 3
    return killed


def test_two_bad_days_killed_forty_times_end_as_those_that_were_not(
    served: Callable[..., Server], tmp_path: Path
) -> None:
    assert killed_week(served, tmp_path, 2, 40, 300, bars=6) == 40


@pytest.mark.slow
@pytest.mark.timeout(7200)  # ten minutes of one core
def test_bad_weeks_killed_a_thousand_times(served: Callable[..., Server], tmp_path: Path) -> None:
    killed = 0
    for seed in range(2, 60):
        killed += killed_week(served, tmp_path, seed, 60, 500)
        for name in ("demo", "other/deployments/demo"):
            shutil.rmtree(Deployment.open(name).account(1))
        if killed >= 1_000:
            return
    raise AssertionError(f"{killed} kills")


def command(*words: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(one) for one in words])
    return int(str(left.value.code))


def test_the_kill_switch_ends_orders_and_sells(
    served: Callable[..., Server], capsys: pytest.CaptureFixture[str]
) -> None:
    server = served()
    assert lead("demo", server, BEGIN + 8 * SIZE) == 0
    assert any(server.state()["positions"].values())
    assert command("paper", "report", "demo") == 0
    told = " ".join("".join(capsys.readouterr()).split())
    assert "orders filled over 8 bars; 0 bars were superseded" in told
    assert "Slippage against the mid price at which the rules fill: +" in told
    assert command("paper", "stop", "demo", "--flat") == 0
    assert not any(abs(held) > LEAST for held in server.state()["positions"].values())
    assert kept("demo")[2][-1].outcome == "sold by hand"
    assert command("paper", "start", "demo", "--feed", FEED, "--broker", "alpaca-paper") == 2
    assert "demo is stopped by" in " ".join(capsys.readouterr().err.split())


def test_a_running_account_sees_the_switch(
    served: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process: the switch is thrown while it waits for the next bar."""
    server, said = served(), list[str]()

    def sleep(seconds: float) -> None:
        server.clock.sleep(seconds)
        if server.clock() > BEGIN + 3.5 * SIZE:
            set_kill_switch(Deployment.open("demo").path, flat=True)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "time", server.clock)
    with pytest.raises(ConfigError, match=r"is stopped by .*KILL"):
        run_account("demo", FEED, broker="alpaca-paper", notify=said.append)
    assert len(kept("demo")[0]) == 4 and "Selling all positions." in said
    assert not any(abs(held) > LEAST for held in server.state()["positions"].values())


def test_limits_keep_orders_back(
    served: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    off = BEGIN + 9 * SIZE
    server = served(Week(clocks=((off, off + 900.0, 60.0),)))
    monkeypatch.setattr(time, "sleep", server.clock.sleep)
    monkeypatch.setattr(time, "time", server.clock)
    said: list[str] = []
    options = {"broker": "alpaca-paper", "once": True, "notify": said.append}
    run_account("demo", FEED, limits=Limits(max_order=0.01), **options)
    assert any("of equity." in one for one in said) and not server.state()["orders"]
    assert kept("demo")[2][0].outcome == "traded"
    server.clock.set(BEGIN + 2 * SIZE + 60)
    run_account("demo", FEED, limits=Limits(max_data_age=10.0), **options)
    assert any("ago." in one for one in said) and not server.state()["orders"]
    server.clock.set(BEGIN + 3 * SIZE + 60)
    with monkeypatch.context() as narrow:
        narrow.setattr(
            FeatureRanges, "from_metadata", lambda facts: FeatureRanges(np.ones(6), np.ones(6))
        )
        run_account("demo", FEED, limits=Limits(), **options)
    assert any(one.startswith("Not sent") and "outside its training range" in one for one in said)
    assert not server.state()["orders"]
    server.clock.set(BEGIN + 4 * SIZE + 60)
    run_account("demo", FEED, limits=Limits(max_data_age=10.0), **options)
    server.clock.set(BEGIN + 4.5 * SIZE)
    run_account("demo", FEED, **options)  # limits are kept with the account
    assert not server.state()["orders"]
    server.clock.set(BEGIN + 6 * SIZE + 60)
    run_account("demo", FEED, limits=Limits(max_exposure=0.01), **options)
    assert any("of equity would be held" in one for one in said) and not server.state()["orders"]
    server.clock.set(BEGIN + 7 * SIZE + 60)
    run_account("demo", FEED, limits=Limits(max_orders_per_day=1), **options)
    assert any("0 orders were sent today" in one for one in said) and not server.state()["orders"]
    server.clock.set(BEGIN + 8 * SIZE + 60)  # the second bar of a day
    with monkeypatch.context() as poor:
        poor.setattr(AlpacaPaper, "equity", lambda self: 85_000.0)
        run_account("demo", FEED, limits=Limits(), **options)
    assert any("equity fell by 15.0 % today" in one for one in said)
    assert not server.state()["orders"]
    server.clock.set(off + 60.0)
    run_account("demo", FEED, limits=Limits(), **options)
    assert any("clock and the broker's are 60 s apart" in one for one in said)
    assert min(order["at"] for order in server.state()["orders"].values()) >= off + 900.0


SITUATION = OrderContext(
    100.0, 0.0, 5.0, 0.0, FeatureDrift(0.1, "rsi_14"), 0, {"A": 2.0, "B": 1.0}, {"A": 10.0}
)


def test_each_limit() -> None:
    limits = Limits.from_options({"max_order": 0.3, "max_exposure": 0.5, "max_orders_per_day": 2})
    now = SITUATION._replace(positions={"A": 10.0, "B": 0.0})
    assert blocking_reason(limits, 60, now) == ""
    assert "61 s ago" in blocking_reason(limits, 60, now._replace(age=61.0))
    assert "31 s apart" in blocking_reason(limits, 60, now._replace(skew=31.0))
    far = now._replace(drift=FeatureDrift(0.61, "rsi_14"))
    assert "rsi_14 is outside its training range by 61 %" in blocking_reason(limits, 60, far)
    assert rejection_reasons(limits, {"B": 30.0}, now) == {}  # 20 % held, and 30 % more
    assert "31.0 % of equity." in rejection_reasons(limits, {"B": 31.0}, now)["B"] + "."
    assert "would be held" in rejection_reasons(limits, {"A": 5.0, "B": 21.0}, now)["B"]
    assert rejection_reasons(limits, {"A": -10.0}, now._replace(daily_loss=0.5)) == {}  # a sale
    assert (
        "fell by 50.0 %" in rejection_reasons(limits, {"B": 1.0}, now._replace(daily_loss=0.5))["B"]
    )
    assert len(rejection_reasons(limits, {"A": -1.0, "B": 1.0}, now._replace(orders_today=1))) == 2
    for name, value in (("max_order", 0.0), ("max_order", math.nan), ("max_orders_per_day", 0)):
        with pytest.raises(ConfigError, match=name):
            Limits.from_options({name: value})
    assert Limits.from_options({"max_order": None}) is None


def test_whole_steps_are_sent_and_no_dust() -> None:
    lot = LotSize(0.1, 0.2, 10.0)
    assert lot.round_quantity(0.35, 100.0) == pytest.approx(0.3)
    assert lot.round_quantity(-0.35, 1.0) == pytest.approx(-0.3)  # sales may be cheap
    assert lot.round_quantity(0.35, 1.0) == 0.0 and lot.round_quantity(0.15, 100.0) == 0.0


class Slow:
    """A broker that answers no order, and takes what was sent, one of an id, after the second.

    Attributes:
        held: of the only coin; off: seconds of its clock.
        pause: seconds until it lists orders.
    """

    def __init__(self, held: float) -> None:
        self.held, self.off, self.pause = held, 0.0, 0.0
        self.posts: list[tuple[str, float]] = []
        self.shown: dict[str, Order] = {}

    def clock(self) -> float:
        return time.time() + self.off

    def equity(self) -> float:
        return 1_000.0

    def positions(self) -> dict[str, float]:
        return {"BTCUSD": self.held}

    def lot_size(self, name: str) -> LotSize:
        return LotSize(1e-6, 1e-6, 1.0)

    def send(self, name: str, quantity: float, client: str) -> str:
        self.posts.append((client, quantity))
        return ""

    def orders(self, since: float) -> dict[str, Order]:
        time.sleep(self.pause)
        for client, quantity in dict(self.posts).items() if len(self.posts) > 1 else ():
            if client not in self.shown:
                self.shown[client] = Order(client, client, FILLED, quantity, 100.0, time.time())
                self.held += quantity
        return self.shown


@pytest.fixture
def slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Slow, OrderManager, TargetPosition]]:
    """Such a broker ten seconds after a bar's end, whose wanted unit it does not hold."""
    clock, broker = Clock(BEGIN + 3_610.0), Slow(0.0)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    monkeypatch.setattr(time, "time", clock)
    wanted = TargetPosition(BEGIN, {"BTCUSD": 1.0}, {"BTCUSD": 100.0}, 1_000.0, FeatureDrift())
    with closing(Journal(tmp_path / "journal.db")) as journal:
        yield (
            broker,
            OrderManager("demo/1", cast(AlpacaPaper, broker), journal, 3_600, Limits()),
            wanted,
        )


@pytest.mark.parametrize("between", ["the clock is off", "the switch is thrown"])
def test_an_order_that_is_not_shown_is_sent_under_its_own_id_alone(
    slow: tuple[Slow, OrderManager, TargetPosition], between: str
) -> None:
    broker, orders, wanted = slow
    assert orders.run_round(wanted) and len(broker.posts) == 1
    if between == "the clock is off":
        broker.off = 60.0
        assert orders.run_round(wanted)
        broker.off = 0.0
    else:
        orders.cancel_all(flat=False)
    assert len(broker.posts) == 1
    while orders.run_round(wanted):
        time.sleep(1.0)
    assert broker.held == 1.0 and broker.posts == broker.posts[:1] * 2


def test_what_is_sold_by_hand_is_sold_once(slow: tuple[Slow, OrderManager, TargetPosition]) -> None:
    broker, orders, wanted = slow
    broker.held = 1.0
    assert not orders.run_round(wanted)
    orders.cancel_all(flat=True)
    assert broker.held == 0.0 and broker.posts == broker.posts[:1] * 2


def test_nothing_is_sent_after_a_long_silence(
    slow: tuple[Slow, OrderManager, TargetPosition],
) -> None:
    """The time read at the beginning of the round is out of date."""
    broker, orders, wanted = slow
    assert orders.run_round(wanted) and len(broker.posts) == 1
    broker.pause = 3_600.0
    while orders.run_round(wanted):
        time.sleep(1.0)
    assert len(broker.posts) == 1


def test_bars_of_an_exchange_come_by_pages_and_closed(served: Callable[..., Server]) -> None:
    server = served(begin=BEGIN + 5.5 * SIZE)
    asked = exchange.Exchange("alpaca")
    rows = asked.candles("BTCUSD", SIZE, int(TIMES[0]), int(TIMES[HISTORY + 4]))
    assert len(rows) == HISTORY + 5 > 100  # two pages
    frame = tables()["BTCUSD"]
    assert [row[4] for row in rows] == frame["close"].to_list()[: len(rows)]
    assert asked.clock() == pytest.approx(server.clock(), abs=1e-3)
    with pytest.raises(DataError, match="does not trade DOGE/USD"):
        asked.candles("DOGEUSD", SIZE, 0, 1)
    with pytest.raises(DataError, match="has no bars of 7m"):
        asked.candles("BTCUSD", 420, 0, 1)


def test_what_cannot_be_led(
    served: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: Make
) -> None:
    served()
    with pytest.raises(ConfigError, match="no exchange 'alpacca'; did you mean `alpaca`"):
        run_account("demo", "ccxt:alpacca")
    with pytest.raises(ConfigError, match="Use alpaca-paper: it is the only one"):
        run_account("demo", FEED, broker="binance")
    monkeypatch.delenv(exchange.KEYS[1])
    with pytest.raises(ConfigError, match=f"{exchange.KEYS[1]} not found") as told:
        run_account("demo", FEED)
    assert "secret-of-this-test" not in str(told.value)
    monkeypatch.setitem(sys.modules, "ccxt", None)
    with pytest.raises(ResourceError, match="pip install 'ccxt>="):
        run_account("demo", FEED)


def test_keys_are_written_nowhere(served: Callable[..., Server], tmp_path: Path) -> None:
    assert lead("demo", served(), BEGIN + 3 * SIZE) == 0
    for path in Path("deployments").rglob("*"):
        assert not path.is_file() or b"secret-of-this-test" not in path.read_bytes()


def test_a_small_account_is_refused(served: Callable[..., Server], monkeypatch: Any) -> None:
    server = served()
    monkeypatch.setattr(AlpacaPaper, "equity", lambda self: 90_000.0)
    monkeypatch.setattr(time, "time", server.clock)
    with pytest.raises(ConfigError, match=r"is 90,000.00, below the 100,000.00"):
        run_account("demo", FEED, broker="alpaca-paper", once=True)
    assert not server.state()["orders"]


SMALL = [
    *("study.folds.method=kfold", "study.folds.groups=2", "study.confirmation.top=1"),
    *("study.confirmation.seeds=1", "study.confirmation.bootstrap=50", "study.final_seeds=1"),
    *(
        "training.total_timesteps=2048",
        "training.num_envs=4",
        "agent.n_steps=64",
        "agent.batch_size=64",
    ),
]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_ten_commands_of_the_page(
    served: Callable[..., Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As docs/guides/paper-trading.md writes them, from prices to a week on paper, but for a small
    search."""
    page = (Path(__file__).parents[4] / "docs" / "guides" / "paper-trading.md").read_text()
    lines = re.findall(r"^    (slipstream .*?)(?: +#.*)?$", page, re.MULTILINE)[:10]
    prices = write(tmp_path / "crypto", long_tables(), slice(0, LONG))
    more = {
        "tune": ["--n-trials", "2", *(f"--set={one}" for one in SMALL), "--force-deploy"],
        "deploy": [*(f"--force={gate}" for gate in GATES), "--reason", "a test"],
    }
    for folder in ("deployments", "studies"):
        shutil.rmtree(folder)
    for line in lines:
        text, _, target = line.partition(" > ")
        words = [word.replace("~/crypto", str(prices)) for word in text.split()[1:]]
        if "--broker" in words:
            server = served(None, LONG_BEGIN + 30.0, long_tables(), LONG_SIZE)
            ended = in_child(server, LONG_BEGIN + 7 * 86_400, partial(main, words))
            assert ended == 0, line
            continue
        capsys.readouterr()
        assert command(*words, *more.get(words[0], [])) == 0, line
        if target:
            Path(target).write_text(capsys.readouterr().out)
    assert len(lines) == 10 and {line.split()[1] for line in lines} == {
        *("data", "init", "tune", "study", "deploy", "paper", "evaluate", "rollback")
    }
    assert len(kept("demo")[2]) >= 7 * 24 - 3
    assert not any(abs(held) > LEAST for held in server.state()["positions"].values())
