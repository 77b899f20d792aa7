"""Paper trading: a process that runs a deployment's account bar by bar and executes its orders.

The configuration of an account (`account.json`) is stored in its folder, so continuing it requires
only the name of the deployment.
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
from slipstream.markets.live.price_replay import MAX_GAP
from slipstream.training.runs.policies import DeployedPolicy, forced_gate_warnings

ACCOUNT, NO_BROKER = "account.json", "none"
GRACE = 5.0  # seconds
_POLL_SECONDS = 1.0
_SWITCH_SECONDS = 10.0  # between checks of the kill switch
_MAX_POLL_SECONDS = 30.0  # maximum seconds between polls of an open order
Notify = Callable[[str], None]


def run_account(
    name: str | Path,
    feed: str | None = None,
    *,
    start: int | None = None,
    max_gap: int = MAX_GAP,
    grace: float = GRACE,
    once: bool = False,
    broker: str | None = None,
    limits: Limits | None = None,
    time_zone: str | None = None,
    notify: Notify = lambda sentence: None,
    trust: bool = False,
) -> int:
    """Run the paper account of a deployment and return the number of its decisions.

    A replay ends with its bars. A growing file is watched until interrupted. If another version
    becomes current meanwhile, its account is continued. `slipstream status`, `watch`, `log` and
    `stop` accept the deployment's folder like that of a run.

    Args:
        name: name of the deployment, or its folder.
        feed: ``replay:DIR``, ``tail:FILE`` or ``ccxt:EXCHANGE``; the stored feed by default.
        start: first time decided on, UTC seconds, for a new account. By default, a replay starts
            with the first bar at which all features are available, a growing file with its newest
            closed bar.
        max_gap: number of missing bars after which the account stops.
        grace: seconds after a bar's end at which it counts as closed.
        once: end after all closed bars were decided on and traded.
        broker: ``alpaca-paper`` to send orders, ``none`` to send none; the stored broker by
            default, and none for a new account.
        limits: limits for orders; the stored limits by default.
        time_zone: time zone of stamps without one in files of the feed; the stored zone by default,
            and that of the deployment for a new account.
        notify: called with each decision and with messages for the user.
        trust: as for `slipstream evaluate`.

    Raises:
        SlipstreamError: a bar was revised, too many are missing, or bars cannot be read. The
            account stops, and the same call continues it after this was fixed.
        Interrupted: a stop was requested; no state is lost.
    """
    deployment, handle, total = Deployment.open(name), shlex.quote(printable(str(name))), 0
    refusal = (
        f"Another process runs the account of {handle}. See `slipstream status {handle}`, or stop "
        f"it with `slipstream stop {handle}`."
    )
    logbook = Logbook(deployment.path, DEPLOYMENT, notify)

    def log_and_notify(sentence: str) -> None:
        notify(sentence)
        logbook.log(sentence)

    make_folder(deployment.path / ACCOUNTS)
    with (
        acquire_lock(deployment.path / ACCOUNTS, refusal),
        Interruption(deployment.path) as interruption,
        logbook,
    ):
        while True:  # one iteration per version
            version, policy = deployment.current, deployment.policy(trust)
            folder, schema = (
                deployment.account(version),
                BarSchema.from_mapping(policy.metadata["shape"]),
            )
            saved = AccountConfig.load(folder)
            if feed is None and saved is None:
                raise ConfigError(
                    f"{handle} has no account yet. Set its feed, as in `slipstream paper start "
                    f"{handle} --feed replay:DIR`, tail:FILE or ccxt:EXCHANGE."
                )
            stored = saved or AccountConfig(None, "", NO_BROKER, Limits())
            feed = stored.feed if feed is None else feed  # stored values, unless overridden now
            broker = stored.broker if broker is None else broker
            limits = stored.limits if limits is None else limits
            time_zone = stored.time_zone if time_zone is None else time_zone
            config = AccountConfig(start, feed, broker, limits, time_zone)
            order_broker = _open_broker(config.broker, policy, schema, log_and_notify)
            source = make_feed(
                feed, policy, schema, grace, saved is not None, log_and_notify, time_zone
            )
            config = _freeze_config(config, saved, folder, source, handle)
            opened = PaperAccount(
                folder, policy, schema, config.start, max_gap=max_gap, notify=log_and_notify
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
                    logbook,
                    log_and_notify,
                )
                has_ended = leader.run(feed, once)
            total += leader.count
            if has_ended:
                return total
            start = None
            log_and_notify(
                f"Version {deployment.current} is current now, and its account continues."
            )


class AccountConfig(NamedTuple):
    """Configuration of an account.

    Attributes:
        start: first time decided on, UTC seconds; None: the first bar with all features.
        feed: feed specification with an absolute path.
        broker: name of the broker, or `NO_BROKER`.
        limits: limits for orders.
        time_zone: time zone of feed stamps without one; None: that of the deployment.
    """

    start: int | None
    feed: str
    broker: str
    limits: Limits
    time_zone: str | None = None

    @classmethod
    def load(cls, folder: Path) -> AccountConfig | None:
        """Load the configuration from an account's folder; None if the account does not exist."""
        fix = "Deploy again, which starts a new account."
        saved = read_json(folder / ACCOUNT, CheckpointError, fix, shape={"feed": str})
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
        """Write the configuration to an account's folder."""
        make_folder(folder)
        write_hashed(folder / ACCOUNT, {**self._asdict(), "limits": self.limits.model_dump()})


def _freeze_config(
    config: AccountConfig, saved: AccountConfig | None, folder: Path, source: BarFeed, handle: str
) -> AccountConfig:
    """Return the configuration with the first time decided on, as stored with the account.

    Args:
        config: configuration of this call.
        saved: stored configuration, None for a new account.
        folder: folder of the account.
        source: the feed.
        handle: name of the deployment in commands.
    """
    if saved is None:
        kind, path = parse_feed(config.feed)
        feed = config.feed if kind == CCXT else f"{kind}:{Path(path).expanduser().absolute()}"
        frozen = config._replace(start=_first_time(source, config.start), feed=feed)
    elif config.start in (None, saved.start):
        frozen = config._replace(start=saved.start, feed=saved.feed)
    else:
        begin = "the first usable bar" if saved.start is None else f"{stamp(saved.start)} UTC"
        raise ConfigError(
            f"The account of {handle} started at {begin}, which cannot be changed. Remove --from, "
            "or "
            "deploy again, which starts a new account."
        )
    if frozen != saved:
        frozen.save(folder)
    return frozen


def _open_broker(
    name: str, policy: DeployedPolicy, schema: BarSchema, log_and_notify: Notify
) -> AlpacaPaper | None:
    """Open the broker; None if orders are not sent."""
    if name == NO_BROKER:
        return None
    if policy.config.env_name != "portfolio":
        raise ConfigError(
            f"--broker requires the policy of a portfolio, and this one trades "
            f"{policy.config.env_name}, whose positions may be short. Run it without a broker."
        )
    return make_broker(name, schema, log_and_notify)


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
    """Return the first time to decide on, which is stored before any decision."""
    if start is not None or source.is_replay:
        return start
    update = source.poll(-1)
    while not update.groups:  # the file is being written
        time.sleep(source.poll_interval())
        update = source.poll(-1)
    return update.groups[-1].time


@dataclass
class _AccountRunner:
    """Runs the account of one version while that version is current.

    Attributes:
        deployment, version, policy: the deployment and its current version.
        handle: name of the deployment in commands.
        account: the paper account.
        source: the feed.
        orders: order manager, None without a broker.
        interruption, logbook, log_and_notify: stop requests, status and messages.
        count: number of decisions so far.
    """

    deployment: Deployment
    version: int
    policy: DeployedPolicy
    handle: str
    account: PaperAccount
    source: BarFeed
    orders: OrderManager | None
    interruption: Interruption
    logbook: Logbook
    log_and_notify: Notify
    count: int = 0

    def run(self, feed: str, once: bool) -> bool:
        """Poll the feed, decide and execute orders until the account ends.

        Args:
            feed: feed specification, for the status.
            once: end after all closed bars were decided on.

        Returns:
            True if the account has ended; False if another version is current.
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
                    f"slipstream paper start {self.handle}",
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
                    raise DataError(
                        account.waiting_reason or "The feed returned no bar to decide on."
                    )
                return True
        if self.orders is not None:  # keeps them apart from orders of the other version
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
        """Cancel orders and raise if the kill switch is set."""
        switch, path = read_kill_switch(self.deployment.path), self.deployment.path / KILL
        if switch is None:
            return
        if self.orders is not None:
            self.orders.cancel_all(switch == FLAT)
        raise ConfigError(
            f"{self.handle} is stopped by {path}. Remove the file, then continue "
            f"with `slipstream paper start {self.handle}`."
        )

    def _wait_and_trade(self, seconds: float) -> None:
        """Execute orders for a time; if it is infinite, until all orders have a final state."""
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
        scores = {f"equity {name}": [value] * 3 for name, value in account.equity.items()}
        status = Status(
            DEPLOYMENT,
            phase=feed,
            completed=account.num_decisions,
            unit="decisions",
            scores=scores,
            notes=forced_gate_warnings(self.policy.metadata),
        )
        self.logbook.show(status, at_once)


def stop_account(name: str, flat: bool = False, notify: Notify = lambda sentence: None) -> None:
    """Set the kill switch of a deployment, which ends the process that runs its account.

    Without such a process, open orders are cancelled here, and with `flat` everything is sold.

    Args:
        name: name of the deployment.
        flat: sell all positions.
        notify: called with messages for the user.
    """
    deployment = Deployment.open(name)
    set_kill_switch(deployment.path, flat)
    led, path = deployment.path / ACCOUNTS, deployment.account(deployment.current) / JOURNAL
    if is_locked(led):
        notify(
            f"{deployment.path / KILL} is set: the process that runs {name} ends at its next check."
        )
        return
    if path.is_file():
        refusal = f"A process has just started to run {name}. It detects {KILL} at its next check."
        with closing(Journal(path)) as journal, closing(acquire_lock(led, refusal)):
            if journal.executed_bars():
                metadata = checkpoint.read_manifest(deployment.version(deployment.current))
                schema = BarSchema.from_mapping(metadata["shape"])
                order_broker = make_broker(ALPACA_PAPER, schema, notify)
                _make_order_manager(
                    deployment, order_broker, journal, schema, Limits(), notify
                ).cancel_all(flat)
    notify(f"{name} is stopped. It can continue after {deployment.path / KILL} is removed.")
