"""Paper: a deployment's account led by a feed, and beside it what `evaluate` makes of its bars."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slipstream.core.errors import CheckpointError, ConfigError, DataError
from slipstream.core.market_pass import PortfolioPass
from slipstream.core.reader import read_json
from slipstream.core.text import printable
from slipstream.environments.kernel_environment import KernelEnvironment
from slipstream.files import checkpoint
from slipstream.files.files import make_folder, plain, write_json, write_sealed
from slipstream.files.interruption import Interrupted, Interruption
from slipstream.files.lock import is_locked, take_lock
from slipstream.files.logbook import Logbook
from slipstream.files.status import DEPLOYMENT, Status
from slipstream.live.account import BARS, JOURNAL, LONGEST_GAP, PaperAccount
from slipstream.live.broker import ALPACA_PAPER, AlpacaPaper, broker_of
from slipstream.live.deployment import ACCOUNTS, Deployment
from slipstream.live.exchange import Exchange
from slipstream.live.feed import CCXT, BarFeed, ExchangeFeed, PriceFeed, kind_of_feed
from slipstream.live.journal import Decision, Journal
from slipstream.live.limits import FLAT, KILL, STOP, Limits, kill, killed
from slipstream.live.orders import Orders
from slipstream.live.store import Shape
from slipstream.market.finding import stamp
from slipstream.runs.policies import DeployedPolicy, forced_sentences

GRACE = 5.0  # seconds
_LOOK_SECONDS = 1.0
_SWITCH_SECONDS = 10.0  # between two looks at the kill switch
_LONGEST_LOOK = 30.0  # seconds between two questions about an order that stays open
NO_BROKER = "none"
_CURVE, _MOVED = 1_000, 200  # points and changes that are kept for the dashboard
ACCOUNT, RERUN = "account.json", "rerun.json"


def paper(
    name: str | Path,
    feed: str | None = None,
    *,
    start: int | None = None,
    longest_gap: int = LONGEST_GAP,
    grace: float = GRACE,
    once: bool = False,
    broker: str | None = None,
    limits: Limits | None = None,
    say: Callable[[str], None] = lambda sentence: None,
    trust: bool = False,
) -> int:
    """Leads the paper account of a deployment; the number of decisions it came to.

    A replay ends with its bars. A file that grows is watched until somebody interrupts; where
    another version comes into force meanwhile, its own account goes on. `slipstream status`,
    `watch`, `log` and `stop` know the deployment's folder as they know a run's.

    Args:
        name: of the deployment, or its folder.
        feed: ``replay:DIR``, ``tail:FILE`` or ``ccxt:EXCHANGE``; the account's own unless given.
        start: first moment decided on, UTC seconds, for a new account. Unless given, a replay
            begins with the first bar at which all features are there, a growing file with its
            newest closed bar.
        longest_gap: missing bars after which the account stands still.
        grace: seconds after a bar's end at which it counts as closed.
        once: end when all that has closed is decided on, and traded.
        broker: ``alpaca-paper``: orders follow the account there; ``none``: nothing is sent. The
            account's own unless given, and none for a new one.
        limits: what keeps an order from being sent; the account's own unless given.
        say: told every decision, and what a user should know.
        trust: as for `slipstream evaluate`.

    Raises:
        SlipstreamError: a bar was revised, too many are missing, or bars cannot be read: the
            account stands still, and goes on where the same call finds that mended.
        Interrupted: somebody asked it to stop; nothing is lost.
    """
    found, total = Deployment.open(name), 0
    handle = printable(str(name))
    refusal = (
        f"Another process leads the account of {handle}: see `slipstream status {handle}`, or stop "
        f"it with `slipstream stop {handle}`."
    )
    log = Logbook(found.path, DEPLOYMENT, say)

    def tell(sentence: str) -> None:
        say(sentence)
        log.say(sentence)

    make_folder(found.path / ACCOUNTS)
    held = take_lock(found.path / ACCOUNTS, refusal)
    with held, Interruption(found.path) as asked, log:
        while True:  # a version after the other
            version, policy, begun = found.current, found.policy(trust), _begun(found)
            kept = begun or {}
            feed = kept.get("feed") if feed is None else feed
            broker = kept.get("broker", NO_BROKER) if broker is None else broker
            limits = Limits(**kept.get("limits", {})) if limits is None else limits
            if feed is None:
                raise ConfigError(
                    f"{handle} has no account yet: name its feed, as in `slipstream paper {handle} "
                    "--feed replay:DIR`, tail:FILE or ccxt:EXCHANGE."
                )
            shape = Shape.of(policy.facts["shape"])
            taker = None if broker == NO_BROKER else _broker(broker, policy, shape, tell)
            source = _feed(feed, policy, shape, grace, begun is not None, tell)
            folder = found.account(version)
            follows = {"broker": broker, "limits": limits.model_dump()}
            first = _frozen(folder, begun, feed, source, start, handle, follows)
            opened = PaperAccount(folder, policy, shape, first, longest_gap=longest_gap, say=tell)
            with closing(opened) as account:
                orders = None
                if taker is not None:
                    orders = _orders(taker, found, account.journal, shape.bar_seconds, limits, tell)

                def over(current: int = version, replays: bool = source.replays) -> bool:
                    other = found.current != current and not replays
                    return asked.requested or other or bool(killed(found.path))

                while found.current == version or source.replays:
                    switch = killed(found.path)
                    if switch:
                        if orders is not None:
                            _close(orders, switch, tell)
                        raise ConfigError(
                            f"{found.path / KILL} is there: {handle} stands still until the file "
                            f"is removed; then go on with `slipstream paper {handle}`."
                        )
                    told = source.look(account.decided, first)
                    count = account.take(told)
                    log.show(_status(account, feed, policy), at_once=not total)
                    total += count
                    if count:
                        texts = (f"{key} {value:,.2f}" for key, value in account.equity.items())
                        tell(f"{_text(account.decided)}  equity {', '.join(texts)}")
                    if asked.requested:
                        how = "Stopped after a bar. Go on with:"
                        raise Interrupted(found.path, f"slipstream paper {handle}", how)
                    if told.moments and source.replays:
                        continue
                    ending = source.replays or once
                    _trade(account, orders, None if ending else source.pause(), over)
                    if ending and not over():
                        log.show(_status(account, feed, policy), at_once=True)
                        if not account.equity:
                            raise DataError(account.waiting or "The feed told no bar to decide on.")
                        return total
                if orders is not None:  # the other version's orders are not to meet these
                    _close(orders, STOP, tell)
            start = None
            tell(f"Version {found.current} is in force now, and its own account goes on.")


def _status(account: PaperAccount, feed: str, policy: DeployedPolicy) -> Status:
    scores = {f"equity {name}": [worth] * 3 for name, worth in account.equity.items()}
    return Status(
        DEPLOYMENT,
        phase=feed,
        done=account.count,
        unit="decisions",
        scores=scores,
        notes=forced_sentences(policy.facts),
    )


def _feed(
    word: str,
    policy: DeployedPolicy,
    shape: Shape,
    grace: float,
    known: bool,
    say: Callable[[str], None],
) -> BarFeed:
    """The feed of a word; of an exchange with as many bars before the first as features need."""
    kind, place = kind_of_feed(word)
    data = policy.facts["feed"]
    if kind != CCXT:
        return PriceFeed(word, data, shape, grace, known=known)
    needs = policy.policy.conditions
    history = int(needs["warm_up_bars"]) + int(needs["lookback"]) + 2
    return ExchangeFeed(Exchange(place, say), data, shape, grace, history)


def _broker(
    word: str, policy: DeployedPolicy, shape: Shape, say: Callable[[str], None]
) -> AlpacaPaper:
    if policy.config.env_name != "portfolio":
        raise ConfigError(
            f"--broker takes the policy of a portfolio, and this one trades "
            f"{policy.config.env_name}, whose positions may be short: lead it without a broker."
        )
    return broker_of(word, shape, say)


def _orders(
    broker: AlpacaPaper,
    found: Deployment,
    journal: Journal,
    bar_seconds: int,
    limits: Limits | None,
    say: Callable[[str], None],
) -> Orders:
    name = f"{found.path.name}/{found.current}"
    return Orders(name, broker, journal, bar_seconds, limits or Limits(), say)


def _trade(
    account: PaperAccount,
    orders: Orders | None,
    seconds: float | None,
    over: Callable[[], bool],
) -> None:
    """Lets orders follow the account until the next bar may be there.

    Args:
        account: says what is wanted.
        orders: None: nothing is sent.
        seconds: until the next look at the feed; None: until all orders have ended.
        over: whether somebody stops it.
    """
    wanted = account.wanted if orders is not None else None
    left, pause, more = seconds, _LOOK_SECONDS, True
    while not over():
        more = more and orders is not None and wanted is not None and orders.work(wanted)
        if left is None and not more:
            return
        pause = min(2.0 * pause, _LONGEST_LOOK) if more else _SWITCH_SECONDS
        step = pause if left is None else min(pause, left)
        time.sleep(max(step, 0.0))
        if left is not None:
            left -= step
            if left <= 0.0:
                return


def _close(orders: Orders, switch: str, say: Callable[[str], None]) -> None:
    """Ends all open orders, and where it says so sells what is held."""
    say("Selling what is held." if switch == FLAT else "Asking for the end of open orders.")
    while orders.flatten() if switch == FLAT else orders.withdraw():
        time.sleep(_LOOK_SECONDS)


def stop(name: str, flat: bool = False, say: Callable[[str], None] = lambda sentence: None) -> None:
    """Throws the kill switch of a deployment; a process that leads its account then ends.

    Where none does, open orders are ended here, and with `flat` everything is sold.

    Args:
        name: of the deployment.
        flat: sell what is held.
        say: told what happens.
    """
    found = Deployment.open(name)
    kill(found.path, flat)
    folder, led = found.account(found.current), found.path / ACCOUNTS
    if is_locked(led):
        say(f"{found.path / KILL} is there: the process that leads {name} ends at its next look.")
        return
    if (folder / JOURNAL).is_file():
        refusal = f"A process has just begun to lead {name}: it sees {KILL} at its next look."
        shape = Shape.of(checkpoint.read_manifest(found.version(found.current))["shape"])
        with closing(Journal(folder / JOURNAL)) as journal, closing(take_lock(led, refusal)):
            if journal.traded():
                switch = FLAT if flat else STOP
                taker = broker_of(ALPACA_PAPER, shape, say)
                orders = _orders(taker, found, journal, shape.bar_seconds, None, say)
                _close(orders, switch, say)
    say(f"{name} is stopped; it goes on when {found.path / KILL} is removed.")


def _frozen(
    folder: Path,
    begun: Mapping[str, Any] | None,
    feed: str,
    source: BarFeed,
    start: int | None,
    handle: str,
    follows: Mapping[str, Any],
) -> int | None:
    """The first moment that an account decides on: the one it keeps, else a new one.

    Args:
        folder: the account's; begun: what it keeps, None for a new one.
        feed, source, start: as for `paper`; handle: how its user calls the deployment.
        follows: broker and limits, which whoever goes on with it finds.
    """
    if begun is None:
        first = _first(source, start)
        make_folder(folder)
        kind, place = kind_of_feed(feed)
        if kind != CCXT:  # whoever goes on with it may be in another folder
            feed = f"{kind}:{Path(place).expanduser().absolute()}"
        write_sealed(folder / ACCOUNT, {"start": first, "feed": feed, **follows})
        return first
    kept: int | None = begun["start"]
    if start is not None and start != kept:
        raise ConfigError(
            f"The account of {handle} began at {_text(kept)} and keeps that start: leave out "
            "--from, or deploy again, which begins a new account."
        )
    own = {key: value for key, value in begun.items() if key in ("start", "feed")}
    if {**own, **follows} != {key: begun.get(key) for key in ("start", "feed", *follows)}:
        write_sealed(folder / ACCOUNT, {**own, **follows})
    return kept


def _begun(found: Deployment) -> dict[str, Any] | None:
    return read_json(
        found.account(found.current) / ACCOUNT,
        CheckpointError,
        "Deploy again, which begins a new account.",
        shape={"feed": str},
    )


def _first(source: BarFeed, start: int | None) -> int | None:
    """The first moment to decide on, frozen before anything is decided."""
    if start is not None or source.replays:
        return start
    told = source.look(-1)
    while not told.moments:  # being written this moment
        time.sleep(source.pause())
        told = source.look(-1)
    return told.moments[-1].time


def _text(second: int | None) -> str:
    return "the first usable bar" if second is None else f"{stamp(second)} UTC"


def kept_bars(found: Deployment) -> tuple[Path, int]:
    """The folder of an account's bars, and the first moment decided on.

    Raises:
        CheckpointError: it has decided on nothing yet.
    """
    folder, first = found.account(found.current), None
    if (folder / JOURNAL).is_file():
        with closing(Journal(folder / JOURNAL)) as journal:
            first = min((journal.rows(name)[0].time for name in journal.names()), default=None)
    if first is None:
        raise CheckpointError(
            f"The account of {found.path.name} has decided on nothing yet: lead it with "
            f"`slipstream paper {found.path.name} --feed replay:DIR`, or tail:FILE."
        )
    return folder / BARS, first


class ComparedPass(NamedTuple):
    """One pass of the account beside `evaluate` on the same bars.

    Attributes:
        name: of the pass.
        rows: the journal's.
        equal: decisions, of those that both have, with equal action and equity; `both` of them.
        first: where they differ first, None where they do not.
        curve: open of a bar and equity at its close, as `evaluate` has them, thinned.
        moved: opens at which what is held changed, units before and after, the newest ones.
        fills, costs: of `evaluate` so far; costs in account currency.
        closed: equity of `evaluate` after it has sold out at the last close, account currency.
    """

    name: str
    rows: list[Decision]
    equal: int
    both: int
    first: int | None
    curve: list[tuple[int, float]]
    moved: list[tuple[int, Any, Any]]
    fills: int
    costs: float
    closed: float


def compared(name: str, trust: bool = False) -> list[ComparedPass]:
    """The journal beside `slipstream evaluate NAME`, which reads the kept files as any others.

    What `evaluate` says is kept in the account's folder, for the dashboard.
    """
    found = Deployment.open(name)
    policy = found.policy(trust)
    folder, start = kept_bars(found)
    environment = policy.environment(folder, None, start)
    assert isinstance(environment, KernelEnvironment)
    opens = environment.loaded.data.time
    made = []
    tracks = policy.evaluate(environment)["window"][0]
    with closing(Journal(found.account(found.current) / JOURNAL)) as journal:
        decided = [journal.rows(track.name) for track in tracks]
    for track, rows in zip(tracks, decided, strict=True):
        theirs = {int(opens[bar - 1]): k for k, bar in enumerate(track.trace["bar"])}
        equity = track.trace["equity"]
        both, equal, first = 0, 0, None
        for row in rows:
            k = theirs.get(row.time)
            if k is None:  # the last one: `evaluate` has no bar behind it
                continue
            both += 1
            same = tuple(track.actions[k].tolist()) == row.action
            same &= k == 0 or float(equity[k - 1]) == row.equity
            equal += same
            first = row.time if first is None and not same else first
        at, stride = opens[track.trace["bar"]], -(-len(equity) // _CURVE)
        curve = [(int(at[k]), float(equity[k])) for k in range(0, len(equity), stride)]
        units = track.trace["units"].tolist() if "units" in track.trace else []
        moved = [(int(at[k]), units[k - 1], units[k]) for k in range(1, len(units))]
        moved = [one for one in moved if one[1] != one[2]][-_MOVED:]
        costs = sum(float(track.trace[name][-1]) for name in track.trace if "cost_" in name)
        made.append(
            ComparedPass(
                track.name,
                rows,
                equal,
                both,
                first,
                curve,
                moved,
                int(track.trace["fills"][-1]),
                costs,
                float(equity[-1]),
            )
        )
    kept = [{**one._asdict(), "rows": len(one.rows)} for one in made]
    write_json(found.account(found.current) / RERUN, plain({"at": time.time(), "passes": kept}))
    return made


class Execution(NamedTuple):
    """What a broker made of an account's orders, beside the fills of the rules.

    Attributes:
        orders, filled: how many were sent, and how many of them were filled at least in part.
        bars: that were traded; missed: of them those that the next one overtook.
        slippage: of what was filled against the mid at which the rules fill, adverse, as a share
            of its value there; None where nothing can be compared yet.
        assumed: the same as the rules assume it, of half the spread and `slippage_bp`.
        tracking_error: standard deviation of the broker's return less the rules', a bar; None
            before the third bar.
    """

    orders: int
    filled: int
    bars: int
    missed: int
    slippage: float | None
    assumed: float | None
    tracking_error: float | None


def executed(name: str, trust: bool = False) -> Execution | None:
    """How the broker did; None where no bar was traded."""
    found = Deployment.open(name)
    folder, start = kept_bars(found)
    with closing(Journal(found.account(found.current) / JOURNAL)) as journal:
        intents, bars = journal.intents(), journal.traded()
    if not bars:
        return None
    environment = found.policy(trust).environment(folder, None, start)
    assert isinstance(environment, KernelEnvironment) and environment.kernel.market_pass
    own = environment.kernel.market_pass(environment.records("window")[0], environment.loaded.data)
    assert isinstance(own, PortfolioPass)
    paid, assumed, value = 0.0, 0.0, 0.0
    for one in intents:
        row = int(np.searchsorted(own.time, one.time, "right"))  # orders fill on the next bar
        if one.filled == 0.0 or row > own.last:
            continue
        column = own.names.index(one.symbol)
        mid = float(own.fill[row, column])
        paid += one.filled * (one.average - mid)
        assumed += abs(one.filled) * (float(own.half_spread[row, column]) + own.slippage * mid)
        value += abs(one.filled) * mid
    theirs, rules = (
        np.array([getattr(one, column) for one in bars]) for column in ("equity", "worth")
    )
    apart = theirs[1:] / theirs[:-1] - rules[1:] / rules[:-1]
    return Execution(
        orders=len(intents),
        filled=sum(one.filled != 0.0 for one in intents),
        bars=len(bars),
        missed=sum(one.ended not in ("traded", "") for one in bars),
        slippage=paid / value if value else None,
        assumed=assumed / value if value else None,
        tracking_error=float(np.std(apart, ddof=1)) if len(apart) > 1 else None,
    )
