"""Order manager: moves a broker's positions to the units that the trading rules target.

Target units come from a trial step of the kernel on a flat bar after the newest one (see
`bar_store.py`), so this module contains no trading rules. Each order is written to disk before it
is sent. Its client id is a hash of (deployment, bar, symbol, number). The number is taken from the
stored orders and increases only after the broker has reported a final state for the previous
order: an order that the broker does not list yet may still arrive. After any interruption, the
broker is first asked for the state of the stored orders. Then only the difference between target
and holdings is sent, within the account's `Limits`.
"""

from __future__ import annotations

import hashlib
import time as clocks
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, NamedTuple

from pydantic import Field

from slipstream.core.config import Config, validate
from slipstream.core.errors import ConfigError
from slipstream.core.text import stamp
from slipstream.core.timeline import DAY
from slipstream.markets.live.drift import Outside
from slipstream.markets.live.exchange import FILLED, REFUSED, AlpacaPaper
from slipstream.markets.live.journal import OPEN, OVERTAKEN, Intent, Journal
from slipstream.markets.live.paper_account import Wanted

NEVER_SENT = "never sent"
_TRIES = 3  # orders of one bar and symbol
_ROUND_SECONDS = 1.0  # between two rounds
_LONGEST_ROUND = 60.0  # seconds; one in which the broker was silent for longer sends nothing
_EARLIER = 300.0  # seconds, of the broker's list, for clocks that differ
_LEAST_SHARE = 0.98  # of the rules' equity, that the broker's account must hold at the beginning
_DUST = 1e-9  # of equity: rounding

Share = Annotated[float, Field(gt=0.0, le=10.0)]


class Limits(Config):
    """Limits of an account that sends orders; `--limit NAME=VALUE`.

    `exposure`, `order` and `daily_loss` forbid purchases alone: sales make all three smaller. The
    others forbid every order.

    Attributes:
        exposure: most that may be held, as a share of the account's equity by the rules.
        order: largest purchase, as a share of that equity.
        orders_a_day: of a UTC day.
        daily_loss: fall of the broker's equity since the day's first bar, as a share of that.
        stale: seconds after a bar's end from which on nothing is sent for it; None: a bar's length.
        skew: seconds between this machine's clock and the broker's.
        outside: how far a feature may lie outside its range in training, as a share of that range.
            Markets make new highs: those are remarked on; what lies far beyond was never seen.
    """

    exposure: Share = 1.0
    order: Share = 1.0
    orders_a_day: Annotated[int, Field(ge=1, le=100_000)] = 200
    daily_loss: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    stale: Annotated[float, Field(gt=0.0)] | None = None
    skew: Annotated[float, Field(gt=0.0)] = 30.0
    outside: Annotated[float, Field(ge=0.0)] = 0.5

    def oldest(self, bar_seconds: int) -> float:
        """Seconds after a bar's end from which on nothing is sent for it."""
        return float(bar_seconds) if self.stale is None else self.stale

    @classmethod
    def of(cls, words: Sequence[str]) -> Limits:
        """From `NAME=VALUE` words.

        Raises:
            ConfigError: one is no limit, or has no such value.
        """
        values = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or name not in cls.model_fields:
                raise ConfigError(
                    f"--limit {word!r} is no limit: write NAME=VALUE with one of "
                    f"{', '.join(cls.model_fields)}."
                )
            values[name] = value
        return validate(cls, values, "limits")


class Situation(NamedTuple):
    """What limits look at.

    Attributes:
        worth: equity by the rules, account currency.
        fallen: of the broker's equity since the day's first bar, as a share of that.
        age: seconds since the bar's end, by the broker's clock.
        skew: seconds between both clocks.
        outside: as for `Pass`, at the bar.
        sent: orders of the UTC day so far.
        prices: closes, by symbol.
        held: coins, by symbol.
    """

    worth: float
    fallen: float
    age: float
    skew: float
    outside: Outside
    sent: int
    prices: Mapping[str, float]
    held: Mapping[str, float]


def forbidden(limits: Limits, bar_seconds: int, now: Situation) -> str:
    """Why no order at all may be sent now; empty where one may."""
    if now.skew > limits.skew:
        return f"this machine's clock and the broker's are {now.skew:.0f} s apart"
    if now.age > limits.oldest(bar_seconds):
        return f"the bar ended {now.age:.0f} s ago"
    if now.outside.share > limits.outside:
        return str(now.outside)
    return ""


def forbidden_orders(limits: Limits, orders: Mapping[str, float], now: Situation) -> dict[str, str]:
    """Why some orders may not be sent, by symbol.

    Args:
        limits: the account's.
        orders: coins, sales negative, by symbol.
        now: the situation.
    """
    why = dict[str, str]()
    if now.sent + len(orders) > limits.orders_a_day:
        return dict.fromkeys(orders, f"{now.sent} orders were sent today")
    after = {name: held + orders.get(name, 0.0) for name, held in now.held.items()}
    exposure = sum(after[name] * now.prices[name] for name in after) / now.worth
    for name, quantity in orders.items():
        if quantity <= 0.0:
            continue
        share = quantity * now.prices[name] / now.worth
        if now.fallen > limits.daily_loss:
            why[name] = f"the broker's equity fell by {100 * now.fallen:.1f} % today"
        elif share > limits.order + _DUST:
            why[name] = f"the order is {100 * share:.1f} % of equity"
        elif exposure > limits.exposure + _DUST:
            why[name] = f"{100 * exposure:.1f} % of equity would be held"
    return why


class Orders:
    """The orders of one account.

    Args:
        name: of the deployment and its version, for the ids.
        broker: who takes them.
        journal: where they are kept before.
        bar_seconds: length of a bar.
        limits: what keeps an order from being sent.
        say: told what a user should know.
    """

    def __init__(
        self,
        name: str,
        broker: AlpacaPaper,
        journal: Journal,
        bar_seconds: int,
        limits: Limits,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._name, self._broker, self._journal = name, broker, journal
        self._size, self._limits, self._say = bar_seconds, limits, say
        self._round = 0.0  # when the newest one began

    def work(self, wanted: Wanted) -> bool:
        """One round: asks what became of earlier orders, and sends what is missing.

        Returns:
            Whether another round is needed: an order is open, or was just sent.

        Raises:
            ConfigError: the broker's account is smaller than the one that the rules began with.
        """
        begun = self._journal.traded(wanted.time)
        if begun and begun[-1].ended:
            return False
        self._round = clocks.time()
        now = self._broker.clock()
        if not begun:
            if self._ask(wanted.time, stop=False):  # what is open still would move the equity
                return True
            self._begin(wanted)
        skew = abs(now - clocks.time())
        situation = self._situation(wanted, now, skew)
        why = forbidden(self._limits, self._size, situation)
        if self._ask(wanted.time, stop=bool(why)):
            return True
        if skew > self._limits.skew and situation.age <= self._limits.oldest(self._size):
            # It may be over before the next bar.
            self._remark(now, wanted.time, why)
            return True
        situation = situation._replace(held=self._broker.positions())
        chosen, rests = self._missing(wanted, situation.held, why)
        for name, reason in forbidden_orders(self._limits, chosen, situation).items():
            rests[name] = (wanted.units[name], situation.held[name], reason)
            self._remark(now, wanted.time, f"{name}: {reason}")
            del chosen[name]
        if self._late and not why:
            return True
        if chosen:
            self._intend(wanted.time, chosen)
            return True
        if why:
            self._remark(now, wanted.time, why)
        over = situation.age > self._size  # kept as where the next bar comes before this round
        self._journal.end(wanted.time, *((OVERTAKEN, {}) if over else ("traded", rests)))
        return False

    @property
    def _late(self) -> bool:
        """Whether the round took so long that its bar may be over, or the kill switch thrown."""
        return clocks.time() - self._round > _LONGEST_ROUND

    def close(self, flat: bool) -> None:
        """Ends all open orders, and where `flat` says so sells what is held; returns after it."""
        self._say("Selling what is held." if flat else "Asking for the end of open orders.")
        while self._ask(0, stop=True) or (flat and self._sell()):
            clocks.sleep(_ROUND_SECONDS)

    def _sell(self) -> bool:
        """One round of selling everything, whatever is wanted; whether another one is needed."""
        if not self._journal.traded():
            return False
        time = self._journal.traded()[-1].time
        held = {name: quantity for name, quantity in self._broker.positions().items() if quantity}
        numbers = self._numbers(time)
        unseen = [one for one in self._journal.pending() if one.quantity < 0.0]
        again = [one for one in unseen if one.symbol in held]
        for one in again:
            self._send(one)
        if again:
            return True
        chosen = {name: self._broker.lot(name).sendable(-held[name], 0.0) for name in held}
        chosen = {name: q for name, q in chosen.items() if q and numbers.get(name, 0) < 4 * _TRIES}
        if chosen:
            self._intend(time, chosen)
            return True
        self._journal.end(time, "sold by hand", {name: (0.0, held[name], "") for name in held})
        return False

    def _begin(self, wanted: Wanted) -> None:
        equity = self._broker.equity()
        if not self._journal.traded() and equity < _LEAST_SHARE * wanted.worth:
            raise ConfigError(
                f"The broker's account holds {equity:,.2f}, less than the {wanted.worth:,.2f} that "
                "the rules began with, so that orders would not be covered: reset the paper "
                "account with that balance at the broker, or train and deploy with a smaller "
                "`env.initial_equity`."
            )
        self._journal.begin(wanted.time, wanted.worth, equity)

    def _situation(self, wanted: Wanted, now: float, skew: float) -> Situation:
        day = wanted.time // DAY * DAY
        rows = self._journal.traded(day)
        fallen = 1.0 - rows[-1].equity / rows[0].equity if rows[0].equity > 0.0 else 0.0
        return Situation(
            worth=wanted.worth,
            fallen=fallen,
            age=now - wanted.time - self._size,
            skew=skew,
            outside=wanted.outside,
            sent=len(self._journal.intents(day)),
            prices=wanted.prices,
            held={},
        )

    def _ask(self, time: int, stop: bool) -> bool:
        """Asks the broker for all orders whose end is not known; whether some are open still.

        Args:
            time: of the newest bar: orders of earlier ones are to end.
            stop: so are this one's, and what is not shown is not sent again.
        """
        pending = self._journal.pending()
        if not pending:
            return False
        shown = self._broker.orders(min(one.time for one in pending) - _EARLIER)
        changed, waiting = list[Intent](), False
        for one in pending:
            order, over = shown.get(one.id), stop or one.time < time
            if order is None and one.time < time:
                changed.append(one._replace(state=NEVER_SENT))
            elif order is None:  # it may arrive yet: again under its id, of which one is taken
                waiting |= not stop and (self._late or self._send(one))
            else:
                seen = one._replace(state=order.state, filled=order.filled, average=order.average)
                changed += [seen] if seen != one else []
                waiting |= order.state == OPEN
                if order.state == OPEN and over:
                    self._broker.cancel(order)
        if changed:
            self._journal.update(changed)
        return waiting

    def _numbers(self, time: int) -> dict[str, int]:
        """How many orders of the newest bar there are, by symbol."""
        return {one.symbol: one.number + 1 for one in self._journal.intents(time)}

    def _missing(
        self, wanted: Wanted, held: Mapping[str, float], never: str
    ) -> tuple[dict[str, float], dict[str, tuple[float, float, str]]]:
        """What is to be sent now, sales first; what is not, and why.

        Args:
            wanted: after the newest bar.
            held: coins.
            never: why nothing may be sent; empty where something may.
        """
        last = {one.symbol: one for one in self._journal.intents(wanted.time)}
        numbers = self._numbers(wanted.time)
        orders, rests = dict[str, float](), dict[str, tuple[float, float, str]]()
        for name, target in wanted.units.items():
            missing = self._broker.lot(name).sendable(target - held[name], wanted.prices[name])
            why = never
            if missing == 0.0:
                why = "too small to be sent" if target != held[name] else ""
            elif name in last and last[name].state == FILLED:
                why = "an order was filled: the rest waits for the next bar"
            elif numbers.get(name, 0) >= _TRIES:
                why = f"{_TRIES} orders did not bring it"
            elif not why:
                orders[name] = missing
                continue
            rests[name] = (target, held[name], why)
        sales = {name: quantity for name, quantity in orders.items() if quantity < 0.0}
        return sales or orders, rests

    def _intend(self, time: int, chosen: Mapping[str, float]) -> None:
        """Keeps orders, then sends them."""
        made, numbers = list[Intent](), self._numbers(time)
        for name, quantity in chosen.items():
            number = numbers.get(name, 0)
            text = f"{self._name}/{time}/{name}/{number}"
            client = hashlib.sha256(text.encode()).hexdigest()[:32]
            made.append(Intent(client, time, name, number, quantity))
        self._journal.intend(made)
        for one in made:
            self._send(one)

    def _send(self, one: Intent) -> bool:
        """Whether it may have been taken."""
        side = "buy" if one.quantity > 0.0 else "sell"
        self._say(f"{side} {abs(one.quantity):.9g} {one.symbol}")
        why = self._broker.send(one.symbol, one.quantity, one.id)
        if why:
            self._say(f"{one.symbol}: {why}")
            self._journal.update([one._replace(state=REFUSED)])
        return not why

    def _remark(self, now: float, time: int, why: str) -> None:
        """Keeps why something is not sent, and says it once a bar."""
        sentence = f"Not sent after the bar of {stamp(time)} UTC: {why}."
        if self._journal.remark(now, sentence):
            self._say(sentence)
