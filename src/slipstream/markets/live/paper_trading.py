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
from slipstream.core.storage.atomic_io import acquire_lock, is_locked, make_folder, write_hashed
from slipstream.core.storage.logbook import Logbook
from slipstream.core.storage.signals import Interrupted, Interruption
from slipstream.core.storage.status_file import DEPLOYMENT, Status
from slipstream.core.text import printable, stamp
from slipstream.markets.live.bar_store import BarSchema
from slipstream.markets.live.deployment import (
    ACCOUNTS,
    FLAT,
    KILL,
    Deployment,
    read_kill_switch,
    set_kill_switch,
)
from slipstream.markets.live.exchange import ALPACA_PAPER, AlpacaPaper, make_broker
from slipstream.markets.live.feed import CCXT, BarFeed, make_feed, parse_feed
from slipstream.markets.live.journal import Journal
from slipstream.markets.live.order_manager import Limits, OrderManager
from slipstream.markets.live.paper_account import JOURNAL, PaperAccount
from slipstream.markets.live.price_replay import LONGEST_GAP
from slipstream.training.runs.policies import DeployedPolicy, forced_gate_warnings

ACCOUNT, NO_BROKER = "account.json", "none"
GRACE = 5.0  # seconds
_POLL_SECONDS = 1.0
_SWITCH_SECONDS = 10.0  # between two looks at the kill switch
_MAX_POLL_SECONDS = 30.0  # seconds between two questions about an order that stays open
Notify = Callable[[str], None]


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
    notify: Notify = lambda sentence: None,
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
    deployment, handle, total = Deployment.open(name), shlex.quote(printable(str(name))), 0
    refusal = (
        f"Another process leads the account of {handle}: see `slipstream status {handle}`, or stop "
        f"it with `slipstream stop {handle}`."
    )
    log = Logbook(deployment.path, DEPLOYMENT, notify)

    def log_and_notify(sentence: str) -> None:
        notify(sentence)
        log.say(sentence)

    make_folder(deployment.path / ACCOUNTS)
    with (
        acquire_lock(deployment.path / ACCOUNTS, refusal),
        Interruption(deployment.path) as interruption,
        log,
    ):
        while True:  # a version after the other
            version, policy = deployment.current, deployment.policy(trust)
            folder, schema = (
                deployment.account(version),
                BarSchema.from_mapping(policy.metadata["shape"]),
            )
            saved = AccountConfig.load(folder)
            if feed is None and saved is None:
                raise ConfigError(
                    f"{handle} has no account yet: name its feed, as in `slipstream paper {handle} "
                    "--feed replay:DIR`, tail:FILE or ccxt:EXCHANGE."
                )
            known = saved or AccountConfig(None, "", NO_BROKER, Limits())
            feed = known.feed if feed is None else feed  # as before, but for what is said now
            broker = known.broker if broker is None else broker
            limits = known.limits if limits is None else limits
            time_zone = known.time_zone if time_zone is None else time_zone
            config = AccountConfig(start, feed, broker, limits, time_zone)
            order_broker = _open_broker(config.broker, policy, schema, log_and_notify)
            source = make_feed(
                feed, policy, schema, grace, saved is not None, log_and_notify, time_zone
            )
            config = _freeze_config(config, saved, folder, source, handle)
            opened = PaperAccount(
                folder, policy, schema, config.start, longest_gap=longest_gap, notify=log_and_notify
            )
            with closing(opened) as account:
                orders = None
                if order_broker is not None:
                    orders = _make_order_manager(
                        deployment,
                        order_broker,
                        account.journal,
                        schema,
                        config.limits,
                        log_and_notify,
                    )
                leader = _AccountRunner(
                    deployment,
                    version,
                    policy,
                    handle,
                    account,
                    source,
                    orders,
                    interruption,
                    log,
                    log_and_notify,
                )
                ended = leader.run(feed, once)
            total += leader.count
            if ended:
                return total
            start = None
            log_and_notify(
                f"Version {deployment.current} is in force now, and its own account goes on."
            )


class AccountConfig(NamedTuple):
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
    def load(cls, folder: Path) -> AccountConfig | None:
        """Those in an account's folder; None before it has begun."""
        remedy = "Deploy again, which begins a new account."
        saved = read_json(folder / ACCOUNT, CheckpointError, remedy, shape={"feed": str})
        if saved is None:
            return None
        limits = Limits(**saved.get("limits", {}))
        zone = saved.get("time_zone")
        return cls(
            saved["start"],
            saved["feed"],
            saved.get("broker", NO_BROKER),
            limits,
            zone,
        )

    def save(self, folder: Path) -> None:
        """Writes them into an account's folder."""
        make_folder(folder)
        write_hashed(folder / ACCOUNT, {**self._asdict(), "limits": self.limits.model_dump()})


def _freeze_config(
    config: AccountConfig, saved: AccountConfig | None, folder: Path, source: BarFeed, handle: str
) -> AccountConfig:
    """Terms with the first moment decided on, as they are kept with the account.

    Args:
        terms: as they were said now; kept: as they were, None for a new account.
        folder: the account's.
        source: what the feed's word means; handle: how a command calls the deployment.
    """
    if saved is None:
        kind, place = parse_feed(config.feed)
        word = config.feed if kind == CCXT else f"{kind}:{Path(place).expanduser().absolute()}"
        made = config._replace(start=_first_time(source, config.start), feed=word)
    elif config.start in (None, saved.start):
        made = config._replace(start=saved.start, feed=saved.feed)
    else:
        begun = "the first usable bar" if saved.start is None else f"{stamp(saved.start)} UTC"
        raise ConfigError(
            f"The account of {handle} began at {begun} and keeps that start: leave out --from, or "
            "deploy again, which begins a new account."
        )
    if made != saved:
        made.save(folder)
    return made


def _open_broker(
    word: str, policy: DeployedPolicy, schema: BarSchema, log_and_notify: Notify
) -> AlpacaPaper | None:
    """Who takes orders; None for nobody."""
    if word == NO_BROKER:
        return None
    if policy.config.env_name != "portfolio":
        raise ConfigError(
            f"--broker takes the policy of a portfolio, and this one trades "
            f"{policy.config.env_name}, whose positions may be short: lead it without a broker."
        )
    return make_broker(word, schema, log_and_notify)


def _make_order_manager(
    deployment: Deployment,
    order_broker: AlpacaPaper,
    journal: Journal,
    schema: BarSchema,
    limits: Limits,
    log_and_notify: Notify,
) -> OrderManager:
    name = f"{deployment.path.name}/{deployment.current}"
    return OrderManager(name, order_broker, journal, schema.bar_seconds, limits, log_and_notify)


def _first_time(source: BarFeed, start: int | None) -> int | None:
    """The first moment to decide on, frozen before anything is decided."""
    if start is not None or source.is_replay:
        return start
    update = source.poll(-1)
    while not update.groups:  # being written this moment
        time.sleep(source.poll_interval())
        update = source.poll(-1)
    return update.groups[-1].time


@dataclass
class _AccountRunner:
    """Leads one version's account while that version is in force.

    Attributes:
        found, version, policy: the deployment, and what of it is led.
        handle: how a command calls it.
        account, source, orders: what is led, by which bars; what follows it, None for nothing.
        asked, log, tell: whether to stop; where things stand; for people.
        count: decisions so far.
    """

    deployment: Deployment
    version: int
    policy: DeployedPolicy
    handle: str
    account: PaperAccount
    source: BarFeed
    orders: OrderManager | None
    interruption: Interruption
    log: Logbook
    log_and_notify: Notify
    count: int = 0

    def run(self, feed: str, once: bool) -> bool:
        """Takes what the feed tells and lets orders follow, look after look.

        Args:
            feed: its word, for the status.
            once: end when all that has closed is decided on.

        Returns:
            Whether it has ended; else another version is in force.
        """
        account, source = self.account, self.source
        while not self._is_replaced:
            self._check_kill_switch()
            update = source.poll(account.last_decided, account.start)
            count = account.process(update)
            self._publish_status(feed, at_once=not self.count)
            self.count += count
            if count:
                texts = (f"{key} {value:,.2f}" for key, value in account.equity.items())
                self.log_and_notify(f"{stamp(account.last_decided)} UTC  equity {', '.join(texts)}")
            if self.interruption.requested:
                command, how = (
                    f"slipstream paper {self.handle}",
                    "Stopped after a bar. Resume with:",
                )
                raise Interrupted(self.deployment.path, command, how)
            if update.groups and source.is_replay:
                continue
            ends = source.is_replay or once
            self._wait_and_trade(inf if ends else source.poll_interval())
            if ends and not self._should_stop:
                self._publish_status(feed, at_once=True)
                if not account.equity:
                    raise DataError(account.waiting_reason or "The feed told no bar to decide on.")
                return True
        if self.orders is not None:  # they are not to meet those of the other version
            self.orders.cancel_all(flat=False)
        return False

    @property
    def _is_replaced(self) -> bool:
        return self.deployment.current != self.version and not self.source.is_replay

    @property
    def _should_stop(self) -> bool:
        return (
            self.interruption.requested
            or self._is_replaced
            or bool(read_kill_switch(self.deployment.path))
        )

    def _check_kill_switch(self) -> None:
        """Closes orders and stands still where the kill switch was thrown."""
        switch, path = read_kill_switch(self.deployment.path), self.deployment.path / KILL
        if switch is None:
            return
        if self.orders is not None:
            self.orders.cancel_all(switch == FLAT)
        raise ConfigError(
            f"{path} is there: {self.handle} stands still until the file is removed; then go on "
            f"with `slipstream paper {self.handle}`."
        )

    def _wait_and_trade(self, seconds: float) -> None:
        """Lets orders follow the account so long; where that is endless, until all have ended."""
        orders, pause = self.orders, _POLL_SECONDS
        target = None if orders is None else self.account.target
        more = target is not None
        while not self._should_stop:
            more = more and orders is not None and target is not None and orders.run_round(target)
            if seconds == inf and not more:
                return
            pause = min(2.0 * pause, _MAX_POLL_SECONDS) if more else _SWITCH_SECONDS
            time.sleep(min(pause, seconds))
            seconds -= pause
            if seconds <= 0.0:
                return

    def _publish_status(self, feed: str, at_once: bool) -> None:
        account = self.account
        scores = {f"equity {name}": [worth] * 3 for name, worth in account.equity.items()}
        status = Status(
            DEPLOYMENT,
            phase=feed,
            done=account.num_decisions,
            unit="decisions",
            scores=scores,
            notes=forced_gate_warnings(self.policy.metadata),
        )
        self.log.show(status, at_once)


def stop(name: str, flat: bool = False, notify: Notify = lambda sentence: None) -> None:
    """Throws the kill switch of a deployment; a process that leads its account then ends.

    Where none does, open orders are ended here, and with `flat` everything is sold.

    Args:
        name: of the deployment.
        flat: sell what is held.
        say: told what happens.
    """
    deployment = Deployment.open(name)
    set_kill_switch(deployment.path, flat)
    led, path = deployment.path / ACCOUNTS, deployment.account(deployment.current) / JOURNAL
    if is_locked(led):
        notify(
            f"{deployment.path / KILL} is there: the process that leads {name} ends at its next "
            "look."
        )
        return
    if path.is_file():
        refusal = f"A process has just begun to lead {name}: it sees {KILL} at its next look."
        with closing(Journal(path)) as journal, closing(acquire_lock(led, refusal)):
            if journal.executed_bars():
                metadata = checkpoint.read_manifest(deployment.version(deployment.current))
                schema = BarSchema.from_mapping(metadata["shape"])
                order_broker = make_broker(ALPACA_PAPER, schema, notify)
                _make_order_manager(
                    deployment, order_broker, journal, schema, Limits(), notify
                ).cancel_all(flat)
    notify(f"{name} is stopped; it goes on when {deployment.path / KILL} is removed.")
