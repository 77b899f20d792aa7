"""Paper: a process that leads a deployment's account bar by bar, and lets orders follow it.

The terms of an account (`account.json`) are kept beside it: the process that continues it needs
nothing but its name.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import NamedTuple

from slipstream.core.errors import CheckpointError, ConfigError, DataError
from slipstream.core.safe_io import read_json
from slipstream.core.storage import checkpoint
from slipstream.core.storage.atomic_io import is_locked, make_folder, take_lock, write_sealed
from slipstream.core.storage.logbook import Logbook
from slipstream.core.storage.signals import Interrupted, Interruption
from slipstream.core.storage.status_file import DEPLOYMENT, Status
from slipstream.core.text import printable, stamp
from slipstream.markets.live.bar_store import Shape
from slipstream.markets.live.deployment import ACCOUNTS, FLAT, KILL, Deployment, kill, killed
from slipstream.markets.live.exchange import ALPACA_PAPER, AlpacaPaper, broker_of
from slipstream.markets.live.feed import CCXT, BarFeed, feed_of, kind_of_feed
from slipstream.markets.live.journal import Journal
from slipstream.markets.live.order_manager import Limits, Orders
from slipstream.markets.live.paper_account import JOURNAL, PaperAccount
from slipstream.markets.live.price_replay import LONGEST_GAP
from slipstream.training.runs.policies import DeployedPolicy, forced_gate_warnings

ACCOUNT, NO_BROKER = "account.json", "none"
GRACE = 5.0  # seconds
_LOOK_SECONDS = 1.0
_SWITCH_SECONDS = 10.0  # between two looks at the kill switch
_LONGEST_LOOK = 30.0  # seconds between two questions about an order that stays open
Say = Callable[[str], None]


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
    time_zone: str | None = None,
    say: Say = lambda sentence: None,
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
        time_zone: zone of stamps in files of the feed that carry none; the account's own by
            default, and that of the deployment for a new one.
        say: told every decision, and what a user should know.
        trust: as for `slipstream evaluate`.

    Raises:
        SlipstreamError: a bar was revised, too many are missing, or bars cannot be read: the
            account stands still, and goes on where the same call finds that mended.
        Interrupted: somebody asked it to stop; nothing is lost.
    """
    found, handle, total = Deployment.open(name), shlex.quote(printable(str(name))), 0
    refusal = (
        f"Another process leads the account of {handle}: see `slipstream status {handle}`, or stop "
        f"it with `slipstream stop {handle}`."
    )
    log = Logbook(found.path, DEPLOYMENT, say)

    def tell(sentence: str) -> None:
        say(sentence)
        log.say(sentence)

    make_folder(found.path / ACCOUNTS)
    with take_lock(found.path / ACCOUNTS, refusal), Interruption(found.path) as asked, log:
        while True:  # a version after the other
            version, policy = found.current, found.policy(trust)
            folder, shape = found.account(version), Shape.of(policy.metadata["shape"])
            kept = Terms.kept(folder)
            if feed is None and kept is None:
                raise ConfigError(
                    f"{handle} has no account yet: name its feed, as in `slipstream paper {handle} "
                    "--feed replay:DIR`, tail:FILE or ccxt:EXCHANGE."
                )
            known = kept or Terms(None, "", NO_BROKER, Limits())
            feed = known.feed if feed is None else feed  # as before, but for what is said now
            broker = known.broker if broker is None else broker
            limits = known.limits if limits is None else limits
            time_zone = known.time_zone if time_zone is None else time_zone
            terms = Terms(start, feed, broker, limits, time_zone)
            taker = _taker(terms.broker, policy, shape, tell)
            source = feed_of(feed, policy, shape, grace, kept is not None, tell, time_zone)
            terms = _frozen(terms, kept, folder, source, handle)
            opened = PaperAccount(
                folder, policy, shape, terms.start, longest_gap=longest_gap, say=tell
            )
            with closing(opened) as account:
                orders = None
                if taker is not None:
                    orders = _orders(found, taker, account.journal, shape, terms.limits, tell)
                leader = _Leader(
                    found, version, policy, handle, account, source, orders, asked, log, tell
                )
                ended = leader.lead(feed, once)
            total += leader.count
            if ended:
                return total
            start = None
            tell(f"Version {found.current} is in force now, and its own account goes on.")


class Terms(NamedTuple):
    """Those of one account.

    Attributes:
        start: first moment decided on, UTC seconds; None: the first bar with all features.
        feed: its word, whose path is absolute.
        broker: its word, or `NO_BROKER`.
        limits: of what is sent there.
        time_zone: zone of the feed's stamps that carry none; None: that of the deployment.
    """

    start: int | None
    feed: str
    broker: str
    limits: Limits
    time_zone: str | None = None

    @classmethod
    def kept(cls, folder: Path) -> Terms | None:
        """Those in an account's folder; None before it has begun."""
        remedy = "Deploy again, which begins a new account."
        found = read_json(folder / ACCOUNT, CheckpointError, remedy, shape={"feed": str})
        if found is None:
            return None
        limits = Limits(**found.get("limits", {}))
        zone = found.get("time_zone")
        return cls(found["start"], found["feed"], found.get("broker", NO_BROKER), limits, zone)

    def keep(self, folder: Path) -> None:
        """Writes them into an account's folder."""
        make_folder(folder)
        write_sealed(folder / ACCOUNT, {**self._asdict(), "limits": self.limits.model_dump()})


def _frozen(terms: Terms, kept: Terms | None, folder: Path, source: BarFeed, handle: str) -> Terms:
    """Terms with the first moment decided on, as they are kept with the account.

    Args:
        terms: as they were said now; kept: as they were, None for a new account.
        folder: the account's.
        source: what the feed's word means; handle: how a command calls the deployment.
    """
    if kept is None:
        kind, place = kind_of_feed(terms.feed)
        word = terms.feed if kind == CCXT else f"{kind}:{Path(place).expanduser().absolute()}"
        made = terms._replace(start=_first(source, terms.start), feed=word)
    elif terms.start in (None, kept.start):
        made = terms._replace(start=kept.start, feed=kept.feed)
    else:
        begun = "the first usable bar" if kept.start is None else f"{stamp(kept.start)} UTC"
        raise ConfigError(
            f"The account of {handle} began at {begun} and keeps that start: leave out --from, or "
            "deploy again, which begins a new account."
        )
    if made != kept:
        made.keep(folder)
    return made


def _taker(word: str, policy: DeployedPolicy, shape: Shape, tell: Say) -> AlpacaPaper | None:
    """Who takes orders; None for nobody."""
    if word == NO_BROKER:
        return None
    if policy.config.env_name != "portfolio":
        raise ConfigError(
            f"--broker takes the policy of a portfolio, and this one trades "
            f"{policy.config.env_name}, whose positions may be short: lead it without a broker."
        )
    return broker_of(word, shape, tell)


def _orders(
    found: Deployment,
    taker: AlpacaPaper,
    journal: Journal,
    shape: Shape,
    limits: Limits,
    tell: Say,
) -> Orders:
    name = f"{found.path.name}/{found.current}"
    return Orders(name, taker, journal, shape.bar_seconds, limits, tell)


def _first(source: BarFeed, start: int | None) -> int | None:
    """The first moment to decide on, frozen before anything is decided."""
    if start is not None or source.replays:
        return start
    told = source.look(-1)
    while not told.moments:  # being written this moment
        time.sleep(source.pause())
        told = source.look(-1)
    return told.moments[-1].time


@dataclass
class _Leader:
    """Leads one version's account while that version is in force.

    Attributes:
        found, version, policy: the deployment, and what of it is led.
        handle: how a command calls it.
        account, source, orders: what is led, by which bars; what follows it, None for nothing.
        asked, log, tell: whether to stop; where things stand; for people.
        count: decisions so far.
    """

    found: Deployment
    version: int
    policy: DeployedPolicy
    handle: str
    account: PaperAccount
    source: BarFeed
    orders: Orders | None
    asked: Interruption
    log: Logbook
    tell: Say
    count: int = 0

    def lead(self, feed: str, once: bool) -> bool:
        """Takes what the feed tells and lets orders follow, look after look.

        Args:
            feed: its word, for the status.
            once: end when all that has closed is decided on.

        Returns:
            Whether it has ended; else another version is in force.
        """
        account, source = self.account, self.source
        while not self._replaced:
            self._heed_switch()
            told = source.look(account.decided, account.start)
            count = account.take(told)
            self._show(feed, at_once=not self.count)
            self.count += count
            if count:
                texts = (f"{key} {value:,.2f}" for key, value in account.equity.items())
                self.tell(f"{stamp(account.decided)} UTC  equity {', '.join(texts)}")
            if self.asked.requested:
                command, how = f"slipstream paper {self.handle}", "Stopped after a bar. Go on with:"
                raise Interrupted(self.found.path, command, how)
            if told.moments and source.replays:
                continue
            ends = source.replays or once
            self._wait(inf if ends else source.pause())
            if ends and not self._over:
                self._show(feed, at_once=True)
                if not account.equity:
                    raise DataError(account.waiting or "The feed told no bar to decide on.")
                return True
        if self.orders is not None:  # they are not to meet those of the other version
            self.orders.close(flat=False)
        return False

    @property
    def _replaced(self) -> bool:
        return self.found.current != self.version and not self.source.replays

    @property
    def _over(self) -> bool:
        return self.asked.requested or self._replaced or bool(killed(self.found.path))

    def _heed_switch(self) -> None:
        """Closes orders and stands still where the kill switch was thrown."""
        switch, path = killed(self.found.path), self.found.path / KILL
        if switch is None:
            return
        if self.orders is not None:
            self.orders.close(switch == FLAT)
        raise ConfigError(
            f"{path} is there: {self.handle} stands still until the file is removed; then go on "
            f"with `slipstream paper {self.handle}`."
        )

    def _wait(self, seconds: float) -> None:
        """Lets orders follow the account so long; where that is endless, until all have ended."""
        orders, pause = self.orders, _LOOK_SECONDS
        wanted = None if orders is None else self.account.wanted
        more = wanted is not None
        while not self._over:
            more = more and orders is not None and wanted is not None and orders.work(wanted)
            if seconds == inf and not more:
                return
            pause = min(2.0 * pause, _LONGEST_LOOK) if more else _SWITCH_SECONDS
            time.sleep(min(pause, seconds))
            seconds -= pause
            if seconds <= 0.0:
                return

    def _show(self, feed: str, at_once: bool) -> None:
        account = self.account
        scores = {f"equity {name}": [worth] * 3 for name, worth in account.equity.items()}
        status = Status(
            DEPLOYMENT,
            phase=feed,
            done=account.count,
            unit="decisions",
            scores=scores,
            notes=forced_gate_warnings(self.policy.metadata),
        )
        self.log.show(status, at_once)


def stop(name: str, flat: bool = False, say: Say = lambda sentence: None) -> None:
    """Throws the kill switch of a deployment; a process that leads its account then ends.

    Where none does, open orders are ended here, and with `flat` everything is sold.

    Args:
        name: of the deployment.
        flat: sell what is held.
        say: told what happens.
    """
    found = Deployment.open(name)
    kill(found.path, flat)
    led, path = found.path / ACCOUNTS, found.account(found.current) / JOURNAL
    if is_locked(led):
        say(f"{found.path / KILL} is there: the process that leads {name} ends at its next look.")
        return
    if path.is_file():
        refusal = f"A process has just begun to lead {name}: it sees {KILL} at its next look."
        with closing(Journal(path)) as journal, closing(take_lock(led, refusal)):
            if journal.traded():
                facts = checkpoint.read_manifest(found.version(found.current))
                shape = Shape.of(facts["shape"])
                taker = broker_of(ALPACA_PAPER, shape, say)
                _orders(found, taker, journal, shape, Limits(), say).close(flat)
    say(f"{name} is stopped; it goes on when {found.path / KILL} is removed.")
