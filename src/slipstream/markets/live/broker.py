"""Broker: who takes orders. Alpaca's paper account is the only one; what it holds is never real.

ccxt knows no order of Alpaca's by the client's id and no positions, so that both are read as the
server documents them: `GET /v2/orders?status=all` with pages followed by `after`, and `GET
/v2/positions`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from math import floor
from typing import Any, NamedTuple

from slipstream.core.errors import ConfigError
from slipstream.markets.data.symbols import parse
from slipstream.markets.live.exchange import ALPACA, Exchange
from slipstream.markets.live.journal import OPEN
from slipstream.markets.live.store import Shape

ALPACA_PAPER = "alpaca-paper"
FILLED, REFUSED = "filled", "refused"
_ENDED = (FILLED, "canceled", "expired", "rejected", "replaced")
_PAGE = 500  # orders, the most that Alpaca lists at once
_NO_TWIN = "client_order_id must be unique"


class Order(NamedTuple):
    """An order as the broker shows it.

    Attributes:
        id: the client's; own: the broker's.
        state: `OPEN`, or how it ended, in the broker's word.
        filled: coins so far, sales negative.
        average: price of what was filled, 0 before.
        submitted: UTC seconds.
    """

    id: str
    own: str
    state: str
    filled: float
    average: float
    submitted: float


class Lot(NamedTuple):
    """What can be ordered of a symbol: its step and smallest order in coin, smallest purchase."""

    step: float
    least: float
    least_cost: float

    def sendable(self, quantity: float, price: float) -> float:
        """The quantity in whole steps, nearer to zero; 0 where that is too small to be sent."""
        size = abs(quantity)
        if self.step > 0.0:
            size = floor(size / self.step * (1.0 + 1e-12)) * self.step
        too_cheap = quantity > 0.0 and size * price < self.least_cost
        if size <= 0.0 or size < self.least or too_cheap:
            return 0.0
        return size if quantity > 0.0 else -size


class AlpacaPaper:
    """Alpaca's paper account, for coins that are quoted in dollars.

    Args:
        shape: of the deployment's bars.
        say: as for `Exchange`.

    Raises:
        ConfigError: it does not trade these symbols, or there are no keys.
    """

    def __init__(self, shape: Shape, say: Callable[[str], None]) -> None:
        pairs = {name: parse(name) for name in shape.symbols}
        strange = [name for name, pair in pairs.items() if pair is None or pair.quote != "USD"]
        if shape.kind == "fx" or strange:
            raise ConfigError(
                f"--broker {ALPACA_PAPER} takes coins that are quoted in dollars, such as BTCUSD, "
                f"and {(strange or shape.symbols)[0]} is none: lead the account without a broker."
            )
        self.exchange = Exchange(ALPACA, say)
        self._names = {name: f"{pair.base}/USD" for name, pair in pairs.items() if pair}

    def clock(self) -> float:
        """The broker's, UTC seconds."""
        return self.exchange.clock()

    def equity(self) -> float:
        """Of the whole account, dollars."""
        answer = self.exchange.ask(self.exchange.api.trader_private_get_v2_account)
        return float(answer["equity"])

    def positions(self) -> dict[str, float]:
        """Coins held of the deployment's symbols."""
        answer = self.exchange.ask(self.exchange.api.trader_private_get_v2_positions)
        held = {str(one["symbol"]).replace("/", ""): float(one["qty"]) for one in answer}
        return {name: held.get(own.replace("/", ""), 0.0) for name, own in self._names.items()}

    def lot(self, name: str) -> Lot:
        """What can be ordered of a symbol."""
        market = self.exchange.market(name)
        amount, limits = market["precision"]["amount"], market["limits"]
        least_cost = limits["cost"]["min"] or 10.0  # dollars of a purchase; ccxt may not know it
        return Lot(float(amount or 0.0), float(limits["amount"]["min"] or 0.0), float(least_cost))

    def orders(self, since: float) -> dict[str, Order]:
        """Orders that were submitted after a moment, by the client's id."""
        api, found = self.exchange.api, dict[str, Order]()
        while True:
            after = api.iso8601(int(since * 1e3))
            words = {"status": "all", "direction": "asc", "limit": _PAGE, "after": after}
            page = self.exchange.ask(api.trader_private_get_v2_orders, words)
            rows = [_order(one) for one in page]
            for row in rows:  # one that is listed twice was listed while it was being filled
                known = found.get(row.id)
                if known is None or known.state == OPEN:
                    found[row.id] = row
            if len(rows) < _PAGE or rows[-1].submitted <= since:
                return found
            since = rows[-1].submitted

    def send(self, name: str, quantity: float, client: str) -> str:
        """Sends a market order.

        Returns:
            Why it was refused; empty where it was taken, or where nobody knows.

        Raises:
            ConfigError: the keys are not accepted.
        """
        api, side = self.exchange.api, "buy" if quantity > 0.0 else "sell"
        market = self.exchange.market(name)
        words = {"symbol": market["id"], "side": side, "type": "market", "time_in_force": "gtc"}
        words |= {"qty": api.amount_to_precision(market["symbol"], abs(quantity))}
        try:
            api.trader_private_post_v2_orders({**words, "client_order_id": client})
        except self.exchange.doubt:
            return ""
        except self.exchange.refusals as error:
            if _NO_TWIN in str(error):  # it has that one already
                return ""
            told = self.exchange.refused(error)
            if isinstance(told, ConfigError):
                raise told from None
            return str(told)
        return ""

    def cancel(self, order: Order) -> None:
        """Asks for an order's end, which may come too late; what became of it is asked later."""
        try:
            call = self.exchange.api.trader_private_delete_v2_orders_order_id
            call({"order_id": order.own})
        except (self.exchange.doubt, self.exchange.refusals):
            return


def _order(facts: dict[str, Any]) -> Order:
    state, filled = str(facts["status"]), float(facts["filled_qty"] or 0.0)
    return Order(
        str(facts["client_order_id"]),
        str(facts["id"]),
        state if state in _ENDED else OPEN,
        filled if facts["side"] == "buy" else -filled,
        float(facts["filled_avg_price"] or 0.0),
        datetime.fromisoformat(str(facts["submitted_at"])[:19] + "+00:00").timestamp(),
    )


def broker_of(word: str, shape: Shape, say: Callable[[str], None]) -> AlpacaPaper:
    """The broker that `--broker` names.

    Raises:
        ConfigError: there is no such one.
    """
    if word != ALPACA_PAPER:
        raise ConfigError(
            f"--broker {word!r} is no broker: {ALPACA_PAPER} is the only one. No order is ever "
            "sent for real money."
        )
    return AlpacaPaper(shape, say)
