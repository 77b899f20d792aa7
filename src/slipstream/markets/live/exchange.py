"""Exchange: one that ccxt speaks to: its clock, its candles, and orders of Alpaca's paper account.

Alpaca is the only broker, and what its paper account holds is never real. ccxt knows no order of
Alpaca's by the client's id and no positions, so that both are read as the server documents them:
`GET /v2/orders?status=all` with pages followed by `after`, and `GET /v2/positions`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from math import floor
from typing import Any, NamedTuple

from slipstream.core.errors import ConfigError, DataError
from slipstream.core.extras import import_optional
from slipstream.core.text import did_you_mean
from slipstream.markets.data.bars import timeframe_name
from slipstream.markets.data.symbols import parse
from slipstream.markets.live.bar_store import BarSchema
from slipstream.markets.live.journal import OPEN

KEYS = ("APCA_API_KEY_ID", "APCA_API_SECRET_KEY")  # Alpaca's own names of them
ALPACA = "alpaca"
ALPACA_PAPER = "alpaca-paper"
FILLED, REFUSED = "filled", "refused"
_FINAL_STATES = (FILLED, "canceled", "expired", "rejected", "replaced")
_ORDERS_PER_PAGE = 500  # orders, the most that Alpaca lists at once
_DUPLICATE_ID = "client_order_id must be unique"
CANDLES_PER_PAGE = 1_000  # candles that are asked for at once; many exchanges give fewer
_LONGEST_PAUSE = 60.0  # seconds between two questions to an exchange that does not answer
_TIMEOUT_MS = 10_000
_OVERLOADED = 429

Candle = tuple[int, float, float, float, float, float]
"""Open time in UTC seconds, open, high, low, close, volume."""


def connect(name: str, options: Mapping[str, Any]) -> Any:
    """ccxt's object for an exchange. Alpaca's is always its paper account."""
    library = import_optional("ccxt", "What asks an exchange", "live")
    if name not in library.exchanges:
        raise ConfigError(
            f"ccxt has no exchange {name!r}; {did_you_mean(name, library.exchanges)} Write "
            "ccxt:EXCHANGE, with one of its names in lower case."
        )
    api = getattr(library, name)({"timeout": _TIMEOUT_MS, "enableRateLimit": True, **options})
    if name == ALPACA:
        api.set_sandbox_mode(True)
    return api


class Exchange:
    """What is asked of an exchange. Whatever fails in between is asked again.

    Args:
        name: as ccxt calls it.
        say: told when it begins not to answer, and when it does again.

    Attributes:
        api: ccxt's object; doubt: errors after which nobody knows what the exchange did;
        refusals: errors by which it refused.

    Raises:
        ResourceError: ccxt is not installed.
        ConfigError: no such exchange, or keys that it needs are not among the variables.
    """

    def __init__(self, name: str, notify: Callable[[str], None] = lambda sentence: None) -> None:
        library = import_optional("ccxt", "What asks an exchange", "live")
        self.name, self._notify = name, notify
        self.uncertain_errors, self.rejection_errors = library.NetworkError, library.BaseError
        self._authentication_error = library.AuthenticationError
        options = {}
        if name == ALPACA:  # nothing of it is public, not even its clock
            missing = [one for one in KEYS if not os.environ.get(one)]
            if missing:
                raise ConfigError(
                    f"Alpaca's paper account needs its keys in the variables {' and '.join(KEYS)}; "
                    f"{' and '.join(missing)} cannot be found. Export them in this shell: they are "
                    "written nowhere."
                )
            options = {"apiKey": os.environ[KEYS[0]], "secret": os.environ[KEYS[1]]}
        self.api = connect(name, options)
        original_handler = self.api.handle_errors

        def handle_errors(code: int, *rest: Any) -> Any:
            # Some exchanges' files make refusals of what a busy server says in JSON.
            if code == _OVERLOADED or code >= 500:
                raise library.ExchangeNotAvailable(f"{name} answers with status {code}")
            return original_handler(code, *rest)

        self.api.handle_errors = handle_errors

    def call_with_retry(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """The answer to a question that may be asked twice.

        Raises:
            ConfigError: the exchange does not know the keys; DataError: it refused.
        """
        pause = 1.0
        while True:
            try:
                answer = call(*arguments)
            except self.uncertain_errors as error:
                if pause == 1.0:
                    self._notify(f"{self.name} does not answer, and is asked again: {error}")
                time.sleep(pause)
                pause = min(2.0 * pause, _LONGEST_PAUSE)
                continue
            except self.rejection_errors as error:
                raise self.convert_error(error) from None
            if pause > 1.0:
                self._notify(f"{self.name} answers again.")
            return answer

    def convert_error(self, error: Exception) -> DataError | ConfigError:
        """What to raise for an error of ccxt."""
        if isinstance(error, self._authentication_error):
            return ConfigError(
                f"{self.name} does not accept the keys: export those of its paper account as "
                f"{' and '.join(KEYS)}."
            )
        return DataError(f"{self.name} refused ({type(error).__name__}): {str(error)[:300]}")

    def clock(self) -> float:
        """The exchange's own, UTC seconds; this machine's where it tells none."""
        if not self.api.has.get("fetchTime"):
            return time.time()
        return float(self.call_with_retry(self.api.fetch_time)) / 1e3

    def market(self, symbol: str) -> dict[str, Any]:
        """What ccxt knows of a symbol's market: its name there, steps and limits.

        Raises:
            DataError: the exchange does not trade it.
        """
        self.call_with_retry(self.api.load_markets)
        pair = parse(symbol)
        name = symbol if pair is None else f"{pair.base}/{pair.quote}"
        if name not in self.api.markets:
            raise DataError(
                f"{self.name} does not trade {name}, which the policy needs: name another exchange."
            )
        found: dict[str, Any] = self.api.markets[name]
        return found

    def candles(self, symbol: str, bar_seconds: int, since: int, until: int) -> list[Candle]:
        """Candles that open within [since, until], UTC seconds, oldest first; pages are followed.

        Raises:
            DataError: the exchange has no bars of that length, or refused.
        """
        frame, market = timeframe_name(bar_seconds), self.market(symbol)
        known = self.api.timeframes or {}
        if frame not in known:
            raise DataError(
                f"{self.name} has no bars of {frame}, but of {', '.join(known) or 'no length'}: "
                "name another exchange."
            )
        found: dict[int, Candle] = {}
        at = since
        while at <= until:
            begin: int | None = at * 1_000
            more: dict[str, Any] = {}
            if self.name == ALPACA:  # ccxt's `since` is cut to a day there
                begin, more = None, {"start": self.api.iso8601(begin)}
            page = self.call_with_retry(
                self.api.fetch_ohlcv, market["symbol"], frame, begin, CANDLES_PER_PAGE, more
            )
            rows = [_parse_candle(row) for row in page]
            new = {row[0]: row for row in rows if at <= row[0] <= until}
            if not new:
                break
            found |= new
            at = max(new) + bar_seconds
        return [found[one] for one in sorted(found)]


def _parse_candle(row: Sequence[float | None]) -> Candle:
    """From ccxt's list, whose times are milliseconds; what an exchange leaves open is 0."""
    time_ms, opened, high, low, close, volume = (float(cell or 0.0) for cell in row[:6])
    return int(time_ms) // 1_000, opened, high, low, close, volume


class Order(NamedTuple):
    """An order as the broker shows it.

    Attributes:
        id: the client's; own: the broker's.
        state: `OPEN`, or how it ended, in the broker's word.
        filled: coins so far, sales negative.
        average: price of what was filled, 0 before.
        submitted: UTC seconds.
    """

    client_id: str
    broker_id: str
    state: str
    filled: float
    average: float
    submitted: float


class LotSize(NamedTuple):
    """What can be ordered of a symbol: its step and smallest order in coin, smallest purchase."""

    step: float
    min_quantity: float
    min_cost: float

    def round_quantity(self, quantity: float, price: float) -> float:
        """The quantity in whole steps, nearer to zero; 0 where that is too small to be sent."""
        size = abs(quantity)
        if self.step > 0.0:
            size = floor(size / self.step * (1.0 + 1e-12)) * self.step
        too_cheap = quantity > 0.0 and size * price < self.min_cost
        if size <= 0.0 or size < self.min_quantity or too_cheap:
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

    def __init__(self, schema: BarSchema, notify: Callable[[str], None]) -> None:
        pairs = {name: parse(name) for name in schema.symbols}
        unsupported = [name for name, pair in pairs.items() if pair is None or pair.quote != "USD"]
        if schema.kind == "fx" or unsupported:
            raise ConfigError(
                f"--broker {ALPACA_PAPER} takes coins that are quoted in dollars, such as BTCUSD, "
                f"and {(unsupported or schema.symbols)[0]} is none: lead the account without a "
                "broker."
            )
        self.exchange = Exchange(ALPACA, notify)
        self._names = {name: f"{pair.base}/USD" for name, pair in pairs.items() if pair}

    def clock(self) -> float:
        """The broker's, UTC seconds."""
        return self.exchange.clock()

    def equity(self) -> float:
        """Of the whole account, dollars."""
        answer = self.exchange.call_with_retry(self.exchange.api.trader_private_get_v2_account)
        return float(answer["equity"])

    def positions(self) -> dict[str, float]:
        """Coins held of the deployment's symbols."""
        answer = self.exchange.call_with_retry(self.exchange.api.trader_private_get_v2_positions)
        held = {str(one["symbol"]).replace("/", ""): float(one["qty"]) for one in answer}
        return {
            name: held.get(own_name.replace("/", ""), 0.0) for name, own_name in self._names.items()
        }

    def lot_size(self, name: str) -> LotSize:
        """What can be ordered of a symbol."""
        market = self.exchange.market(name)
        amount, limits = market["precision"]["amount"], market["limits"]
        least_cost = limits["cost"]["min"] or 10.0  # dollars of a purchase; ccxt may not know it
        return LotSize(
            float(amount or 0.0), float(limits["amount"]["min"] or 0.0), float(least_cost)
        )

    def orders(self, since: float) -> dict[str, Order]:
        """Orders that were submitted after a moment, by the client's id."""
        api, found = self.exchange.api, dict[str, Order]()
        while True:
            after = api.iso8601(int(since * 1e3))
            params = {
                "status": "all",
                "direction": "asc",
                "limit": _ORDERS_PER_PAGE,
                "after": after,
            }
            page = self.exchange.call_with_retry(api.trader_private_get_v2_orders, params)
            rows = [_parse_order(one) for one in page]
            for row in rows:  # one that is listed twice was listed while it was being filled
                known = found.get(row.client_id)
                if known is None or known.state == OPEN:
                    found[row.client_id] = row
            if len(rows) < _ORDERS_PER_PAGE or rows[-1].submitted <= since:
                return found
            since = rows[-1].submitted

    def send(self, name: str, quantity: float, client_id: str) -> str:
        """Sends a market order.

        Returns:
            Why it was refused; empty where it was taken, or where nobody knows.

        Raises:
            ConfigError: the keys are not accepted.
        """
        api, side = self.exchange.api, "buy" if quantity > 0.0 else "sell"
        market = self.exchange.market(name)
        params = {"symbol": market["id"], "side": side, "type": "market", "time_in_force": "gtc"}
        params |= {"qty": api.amount_to_precision(market["symbol"], abs(quantity))}
        try:
            api.trader_private_post_v2_orders({**params, "client_order_id": client_id})
        except self.exchange.uncertain_errors:
            return ""
        except self.exchange.rejection_errors as error:
            if _DUPLICATE_ID in str(error):  # it has that one already
                return ""
            failure = self.exchange.convert_error(error)
            if isinstance(failure, ConfigError):
                raise failure from None
            return str(failure)
        return ""

    def cancel(self, order: Order) -> None:
        """Asks for an order's end, which may come too late; what became of it is asked later."""
        try:
            call = self.exchange.api.trader_private_delete_v2_orders_order_id
            call({"order_id": order.broker_id})
        except (self.exchange.uncertain_errors, self.exchange.rejection_errors):
            return


def _parse_order(facts: dict[str, Any]) -> Order:
    state, filled = str(facts["status"]), float(facts["filled_qty"] or 0.0)
    return Order(
        str(facts["client_order_id"]),
        str(facts["id"]),
        state if state in _FINAL_STATES else OPEN,
        filled if facts["side"] == "buy" else -filled,
        float(facts["filled_avg_price"] or 0.0),
        datetime.fromisoformat(str(facts["submitted_at"])[:19] + "+00:00").timestamp(),
    )


def make_broker(name: str, schema: BarSchema, notify: Callable[[str], None]) -> AlpacaPaper:
    """The broker that `--broker` names.

    Raises:
        ConfigError: there is no such one.
    """
    if name != ALPACA_PAPER:
        raise ConfigError(
            f"--broker {name!r} is no broker: {ALPACA_PAPER} is the only one. No order is ever "
            "sent for real money."
        )
    return AlpacaPaper(schema, notify)
