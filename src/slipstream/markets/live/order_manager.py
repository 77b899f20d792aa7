"""Order manager: moves a broker's positions to the units that the trading rules target.

Target units come from a trial step of the kernel on a flat bar after the newest one (see
`bar_store.py`), so this module contains no trading rules. Each order is written to disk before it
is sent. Its client id is a hash of (deployment, bar, symbol, number). The number is taken from the
stored orders and increases only after the broker has reported a final state for the previous
order: an order that the broker does not list yet may still arrive. After any interruption, the
state of the stored orders is requested from the broker first. Then only the difference between
target and holdings is sent, within the account's `Limits`.
"""

from __future__ import annotations

import hashlib
import time as clock
from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

from pydantic import Field

from slipstream.core.config import Config, validate
from slipstream.core.errors import ConfigError
from slipstream.core.text import stamp
from slipstream.core.timeline import DAY
from slipstream.markets.live.drift import FeatureDrift
from slipstream.markets.live.exchange import FILLED, REFUSED, AlpacaPaper
from slipstream.markets.live.journal import OPEN, SUPERSEDED, Journal, PlannedOrder
from slipstream.markets.live.paper_account import TargetPosition

NEVER_SENT = "never sent"
_MAX_ATTEMPTS = 3  # orders per bar and symbol
_ROUND_SECONDS = 1.0  # between rounds
_MAX_ROUND_SECONDS = 60.0  # a longer round sends nothing, since the bar may be over
_LOOKBACK_SECONDS = 300.0  # start of the broker's list, earlier for differing clocks
_MIN_EQUITY_SHARE = 0.98  # minimum initial equity of the broker's account, relative to the rules
_ROUNDING = 1e-9  # of equity

Share = Annotated[float, Field(gt=0.0, le=10.0)]


class Limits(Config):
    """Limits of an account that sends orders, options of `slipstream paper start`.

    `max_exposure`, `max_order` and `max_daily_loss` forbid purchases only, because sales reduce
    all three. The other limits forbid every order.

    Attributes:
        max_exposure: maximum value held, as a fraction of the account's equity by the rules.
        max_order: maximum value of a purchase, as a fraction of that equity.
        max_orders_per_day: maximum number of orders per UTC day.
        max_daily_loss: fall of the broker's equity since the day's first bar, as a fraction of it.
        max_data_age: seconds after a bar's end after which no order is sent for it; None: one
            bar length.
        max_clock_skew: seconds between this machine's clock and the broker's.
        max_drift: distance of a feature from its training range, as a fraction of that range. New
            highs of a market are below this limit and only logged.
    """

    max_exposure: Share = 1.0
    max_order: Share = 1.0
    max_orders_per_day: Annotated[int, Field(ge=1, le=100_000)] = 200
    max_daily_loss: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    max_data_age: Annotated[float, Field(gt=0.0)] | None = None
    max_clock_skew: Annotated[float, Field(gt=0.0)] = 30.0
    max_drift: Annotated[float, Field(ge=0.0)] = 0.5

    def age_limit(self, bar_seconds: int) -> float:
        """Return the seconds after a bar's end from which on no order is sent for it."""
        return float(bar_seconds) if self.max_data_age is None else self.max_data_age

    @classmethod
    def from_options(cls, values: Mapping[str, float | None]) -> Limits | None:
        """Return limits from options by field name, or None if no option was given.

        Raises:
            ConfigError: a value is out of range.
        """
        options = {name: value for name, value in values.items() if value is not None}
        return validate(cls, options, "limits") if options else None


class OrderContext(NamedTuple):
    """State that is checked against the limits.

    Attributes:
        rules_equity: equity according to the rules, account currency.
        daily_loss: fall of the broker's equity since the day's first bar, as a fraction of it.
        age: seconds since the bar's end, by the broker's clock.
        skew: seconds between both clocks.
        drift: as in `ReplayPass`, at the bar.
        orders_today: number of orders of the current UTC day.
        prices: closes, by symbol.
        positions: coins, by symbol.
    """

    rules_equity: float
    daily_loss: float
    age: float
    skew: float
    drift: FeatureDrift
    orders_today: int
    prices: Mapping[str, float]
    positions: Mapping[str, float]


def blocking_reason(limits: Limits, bar_seconds: int, now: OrderContext) -> str:
    """Return why no order may be sent now; empty if orders are allowed."""
    if now.skew > limits.max_clock_skew:
        return f"this machine's clock and the broker's are {now.skew:.0f} s apart"
    if now.age > limits.age_limit(bar_seconds):
        return f"the bar ended {now.age:.0f} s ago"
    if now.drift.share > limits.max_drift:
        return str(now.drift)
    return ""


def rejection_reasons(
    limits: Limits, orders: Mapping[str, float], now: OrderContext
) -> dict[str, str]:
    """Return why some orders may not be sent, by symbol.

    Args:
        limits: limits of the account.
        orders: coins, sales negative, by symbol.
        now: current state.
    """
    reason = dict[str, str]()
    if now.orders_today + len(orders) > limits.max_orders_per_day:
        return dict.fromkeys(orders, f"{now.orders_today} orders were sent today")
    after = {name: held + orders.get(name, 0.0) for name, held in now.positions.items()}
    exposure = sum(after[name] * now.prices[name] for name in after) / now.rules_equity
    for name, quantity in orders.items():
        if quantity <= 0.0:
            continue
        share = quantity * now.prices[name] / now.rules_equity
        if now.daily_loss > limits.max_daily_loss:
            reason[name] = f"the broker's equity fell by {100 * now.daily_loss:.1f} % today"
        elif share > limits.max_order + _ROUNDING:
            reason[name] = f"the order is {100 * share:.1f} % of equity"
        elif exposure > limits.max_exposure + _ROUNDING:
            reason[name] = f"{100 * exposure:.1f} % of equity would be held"
    return reason


class OrderManager:
    """Orders of one account.

    Args:
        name: deployment and version, used in order ids.
        broker: broker that receives the orders.
        journal: journal in which orders are stored before they are sent.
        bar_seconds: length of a bar in seconds.
        limits: limits of the account.
        notify: called with messages for the user.
    """

    def __init__(
        self,
        name: str,
        broker: AlpacaPaper,
        journal: Journal,
        bar_seconds: int,
        limits: Limits,
        notify: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._name, self._broker, self._journal = name, broker, journal
        self._bar_seconds, self._limits, self._notify = bar_seconds, limits, notify
        self._round_start = 0.0  # start of the current round

    def run_round(self, target: TargetPosition) -> bool:
        """Run one round: update the state of earlier orders and send missing orders.

        Returns:
            True if another round is needed, since an order is open or was just sent.

        Raises:
            ConfigError: the broker's account is smaller than the initial account of the rules.
        """
        executions = self._journal.executed_bars(target.time)
        if executions and executions[-1].outcome:
            return False
        self._round_start = clock.time()
        now = self._broker.clock()
        if not executions:
            if self._sync_orders(target.time, stop=False):  # open orders would change the equity
                return True
            self._begin_bar(target)
        skew = abs(now - clock.time())
        context = self._make_context(target, now, skew)
        blocked = blocking_reason(self._limits, self._bar_seconds, context)
        if self._sync_orders(target.time, stop=bool(blocked)):
            return True
        if skew > self._limits.max_clock_skew and context.age <= self._limits.age_limit(
            self._bar_seconds
        ):
            # The clock skew may disappear before the next bar.
            self._notice(now, target.time, blocked)
            return True
        context = context._replace(positions=self._broker.positions())
        orders_to_send, unfilled = self._missing_orders(target, context.positions, blocked)
        for name, reason in rejection_reasons(self._limits, orders_to_send, context).items():
            unfilled[name] = (target.units[name], context.positions[name], reason)
            self._notice(now, target.time, f"{name}: {reason}")
            del orders_to_send[name]
        if self._round_expired and not blocked:
            return True
        if orders_to_send:
            self._store_and_send(target.time, orders_to_send)
            return True
        if blocked:
            self._notice(now, target.time, blocked)
        over = context.age > self._bar_seconds  # same outcome as if the next bar arrived first
        self._journal.end_bar(target.time, *((SUPERSEDED, {}) if over else ("traded", unfilled)))
        return False

    @property
    def _round_expired(self) -> bool:
        """True if the round took so long that its bar may be over or the kill switch was set."""
        return clock.time() - self._round_start > _MAX_ROUND_SECONDS

    def cancel_all(self, flat: bool) -> None:
        """Cancel all open orders, and with `flat` sell all positions. Blocks until done."""
        self._notify("Selling all positions." if flat else "Cancelling open orders.")
        while self._sync_orders(0, stop=True) or (flat and self._sell_round()):
            clock.sleep(_ROUND_SECONDS)

    def _sell_round(self) -> bool:
        """Run one round of selling everything; return True if another one is needed."""
        if not self._journal.executed_bars():
            return False
        time = self._journal.executed_bars()[-1].time
        held = {name: quantity for name, quantity in self._broker.positions().items() if quantity}
        numbers = self._order_counts(time)
        unseen = [order for order in self._journal.pending_orders() if order.quantity < 0.0]
        resent = [order for order in unseen if order.symbol in held]
        for order in resent:
            self._send(order)
        if resent:
            return True
        orders_to_send = {
            name: self._broker.lot_size(name).round_quantity(-held[name], 0.0) for name in held
        }
        orders_to_send = {
            name: q
            for name, q in orders_to_send.items()
            if q and numbers.get(name, 0) < 4 * _MAX_ATTEMPTS
        }
        if orders_to_send:
            self._store_and_send(time, orders_to_send)
            return True
        self._journal.end_bar(time, "sold by hand", {name: (0.0, held[name], "") for name in held})
        return False

    def _begin_bar(self, target: TargetPosition) -> None:
        equity = self._broker.equity()
        if not self._journal.executed_bars() and equity < _MIN_EQUITY_SHARE * target.rules_equity:
            raise ConfigError(
                f"The equity of the broker's account is {equity:,.2f}, below the "
                f"{target.rules_equity:,.2f} that "
                "the rules began with, so orders would not be covered. Reset the paper "
                "account with that balance at the broker, or train and deploy with a smaller "
                "`env.initial_equity`."
            )
        self._journal.begin_bar(target.time, target.rules_equity, equity)

    def _make_context(self, target: TargetPosition, now: float, skew: float) -> OrderContext:
        day = target.time // DAY * DAY
        rows = self._journal.executed_bars(day)
        fallen = 1.0 - rows[-1].equity / rows[0].equity if rows[0].equity > 0.0 else 0.0
        return OrderContext(
            rules_equity=target.rules_equity,
            daily_loss=fallen,
            age=now - target.time - self._bar_seconds,
            skew=skew,
            drift=target.drift,
            orders_today=len(self._journal.orders(day)),
            prices=target.prices,
            positions={},
        )

    def _sync_orders(self, time: int, stop: bool) -> bool:
        """Update orders without a final state from the broker; return True if some are open.

        Args:
            time: open of the newest bar: orders of earlier bars are cancelled.
            stop: cancel this bar's orders as well, and do not resend unlisted ones.
        """
        pending = self._journal.pending_orders()
        if not pending:
            return False
        broker_orders = self._broker.orders(
            min(pending_order.time for pending_order in pending) - _LOOKBACK_SECONDS
        )
        changed, waiting = list[PlannedOrder](), False
        for pending_order in pending:
            order, over = broker_orders.get(pending_order.id), stop or pending_order.time < time
            if order is None and pending_order.time < time:
                changed.append(pending_order._replace(state=NEVER_SENT))
            elif order is None:  # it may still arrive: resend, since each id is accepted only once
                waiting |= not stop and (self._round_expired or self._send(pending_order))
            else:
                updated = pending_order._replace(
                    state=order.state, filled=order.filled, average=order.average
                )
                changed += [updated] if updated != pending_order else []
                waiting |= order.state == OPEN
                if order.state == OPEN and over:
                    self._broker.cancel(order)
        if changed:
            self._journal.update_orders(changed)
        return waiting

    def _order_counts(self, time: int) -> dict[str, int]:
        """Return the number of orders of a bar, by symbol."""
        return {order.symbol: order.number + 1 for order in self._journal.orders(time)}

    def _missing_orders(
        self, target: TargetPosition, held: Mapping[str, float], never: str
    ) -> tuple[dict[str, float], dict[str, tuple[float, float, str]]]:
        """Return orders to send now, sales first, and the unfilled remainder with reasons.

        Args:
            target: position after the newest bar.
            held: coins.
            never: reason why no order may be sent; empty if orders are allowed.
        """
        last = {order.symbol: order for order in self._journal.orders(target.time)}
        numbers = self._order_counts(target.time)
        orders, unfilled = dict[str, float](), dict[str, tuple[float, float, str]]()
        for name, units in target.units.items():
            missing = self._broker.lot_size(name).round_quantity(
                units - held[name], target.prices[name]
            )
            reason = never
            if missing == 0.0:
                reason = "below the minimum order" if units != held[name] else ""
            elif name in last and last[name].state == FILLED:
                reason = "an order was filled; the remainder waits for the next bar"
            elif numbers.get(name, 0) >= _MAX_ATTEMPTS:
                reason = f"{_MAX_ATTEMPTS} orders did not fill it"
            elif not reason:
                orders[name] = missing
                continue
            unfilled[name] = (units, held[name], reason)
        sales = {name: quantity for name, quantity in orders.items() if quantity < 0.0}
        return sales or orders, unfilled

    def _store_and_send(self, time: int, orders_to_send: Mapping[str, float]) -> None:
        """Store orders, then send them."""
        planned, numbers = list[PlannedOrder](), self._order_counts(time)
        for name, quantity in orders_to_send.items():
            number = numbers.get(name, 0)
            text = f"{self._name}/{time}/{name}/{number}"
            client = hashlib.sha256(text.encode()).hexdigest()[:32]
            planned.append(PlannedOrder(client, time, name, number, quantity))
        self._journal.add_orders(planned)
        for order in planned:
            self._send(order)

    def _send(self, order: PlannedOrder) -> bool:
        """Send an order; return True if the broker may have accepted it."""
        side = "buy" if order.quantity > 0.0 else "sell"
        self._notify(f"{side} {abs(order.quantity):.9g} {order.symbol}")
        reason = self._broker.send(order.symbol, order.quantity, order.id)
        if reason:
            self._notify(f"{order.symbol}: {reason}")
            self._journal.update_orders([order._replace(state=REFUSED)])
        return not reason

    def _notice(self, now: float, time: int, reason: str) -> None:
        """Store why nothing is sent, and notify once per bar."""
        sentence = f"Not sent after the bar of {stamp(time)} UTC: {reason}."
        if self._journal.add_notice(now, sentence):
            self._notify(sentence)
