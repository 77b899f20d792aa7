"""Exchange access through ccxt: clock, candles, and orders of Alpaca's paper account.

Alpaca is the only broker, and only its paper account is used. ccxt supports neither Alpaca orders
by client id nor positions. Both are therefore requested as the server documents them:
`GET /v2/orders?status=all`, paginated with `after`, and `GET /v2/positions`.
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

KEYS = ("APCA_API_KEY_ID", "APCA_API_SECRET_KEY")  # the names that Alpaca uses
ALPACA = "alpaca"
ALPACA_PAPER = "alpaca-paper"
FILLED, REFUSED = "filled", "refused"
_FINAL_STATES = (FILLED, "canceled", "expired", "rejected", "replaced")
_ORDERS_PER_PAGE = 500  # maximum number of orders per request
_DUPLICATE_ID = "client_order_id must be unique"
CANDLES_PER_PAGE = 1_000  # requested candles per page; many exchanges return fewer
_LONGEST_PAUSE = 60.0  # maximum seconds between retries
_TIMEOUT_MS = 10_000
_OVERLOADED = 429

Candle = tuple[int, float, float, float, float, float]
"""Open time in UTC seconds, open, high, low, close, volume."""


def connect(name: str, options: Mapping[str, Any]) -> Any:
    """Return ccxt's object of an exchange. For Alpaca, it is always the paper account."""
    library = import_optional("ccxt", "Access to an exchange", "live")
    if name not in library.exchanges:
        raise ConfigError(
            f"ccxt has no exchange {name!r}; {did_you_mean(name, library.exchanges)} Use "
            "ccxt:EXCHANGE with a name of ccxt in lower case."
        )
    api = getattr(library, name)({"timeout": _TIMEOUT_MS, "enableRateLimit": True, **options})
    if name == ALPACA:
        api.set_sandbox_mode(True)
    return api


class Exchange:
    """Connection to an exchange that retries after network errors.

    Args:
        name: ccxt's name of the exchange.
        notify: called when the exchange stops responding, and when it responds again.

    Attributes:
        api: ccxt's object.
        uncertain_errors: errors after which the state at the exchange is unknown.
        rejection_errors: errors that mean a rejected request.

    Raises:
        ResourceError: ccxt is not installed.
        ConfigError: the exchange is unknown, or required keys are not in the environment.
    """

    def __init__(self, name: str, notify: Callable[[str], None] = lambda sentence: None) -> None:
        library = import_optional("ccxt", "Access to an exchange", "live")
        self.name, self._notify = name, notify
        self.uncertain_errors, self.rejection_errors = library.NetworkError, library.BaseError
        self._authentication_error = library.AuthenticationError
        options = {}
        if name == ALPACA:  # it has no public endpoints, not even a clock
            missing = [key for key in KEYS if not os.environ.get(key)]
            if missing:
                raise ConfigError(
                    "Alpaca's paper account requires its keys in the environment variables "
                    f"{' and '.join(KEYS)}, {' and '.join(missing)} not found. Export them in this "
                    "shell; slipstream does not store them."
                )
            options = {"apiKey": os.environ[KEYS[0]], "secret": os.environ[KEYS[1]]}
        self.api = connect(name, options)
        original_handler = self.api.handle_errors

        def handle_errors(code: int, *rest: Any) -> Any:
            # For some exchanges, ccxt maps overload responses to rejections.
            if code == _OVERLOADED or code >= 500:
                raise library.ExchangeNotAvailable(f"{name} responded with status {code}")
            return original_handler(code, *rest)

        self.api.handle_errors = handle_errors

    def call_with_retry(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of an idempotent request, with retries.

        Raises:
            ConfigError: the exchange rejected the keys.
            DataError: the exchange rejected the request.
        """
        pause = 1.0
        while True:
            try:
                answer = call(*arguments)
            except self.uncertain_errors as error:
                if pause == 1.0:
                    self._notify(f"{self.name} does not respond, retrying: {error}")
                time.sleep(pause)
                pause = min(2.0 * pause, _LONGEST_PAUSE)
                continue
            except self.rejection_errors as error:
                raise self.convert_error(error) from None
            if pause > 1.0:
                self._notify(f"{self.name} responds again.")
            return answer

    def convert_error(self, error: Exception) -> DataError | ConfigError:
        """Return the slipstream error for an error of ccxt."""
        if isinstance(error, self._authentication_error):
            return ConfigError(
                f"{self.name} rejected the keys. Export those of its paper account as "
                f"{' and '.join(KEYS)}."
            )
        return DataError(
            f"{self.name} rejected the request ({type(error).__name__}): {str(error)[:300]}"
        )

    def clock(self) -> float:
        """Return the exchange's time, UTC seconds, or this machine's if it provides none."""
        if not self.api.has.get("fetchTime"):
            return time.time()
        return float(self.call_with_retry(self.api.fetch_time)) / 1e3

    def market(self, symbol: str) -> dict[str, Any]:
        """Return ccxt's market of a symbol: its name at the exchange, steps and limits.

        Raises:
            DataError: the exchange does not trade it.
        """
        self.call_with_retry(self.api.load_markets)
        pair = parse(symbol)
        name = symbol if pair is None else f"{pair.base}/{pair.quote}"
        if name not in self.api.markets:
            raise DataError(
                f"{self.name} does not trade {name}, a symbol of the policy. Use another exchange."
            )
        market: dict[str, Any] = self.api.markets[name]
        return market

    def candles(self, symbol: str, bar_seconds: int, since: int, until: int) -> list[Candle]:
        """Return the candles that open within [since, until], UTC seconds, oldest first.

        Raises:
            DataError: the exchange has no bars of that length, or rejected the request.
        """
        frame, market = timeframe_name(bar_seconds), self.market(symbol)
        timeframes = self.api.timeframes or {}
        if frame not in timeframes:
            raise DataError(
                f"{self.name} has no bars of {frame}, only of "
                f"{', '.join(timeframes) or 'no length'}. Use another exchange."
            )
        candles: dict[int, Candle] = {}
        at = since
        while at <= until:
            begin: int | None = at * 1_000
            more: dict[str, Any] = {}
            if self.name == ALPACA:  # ccxt truncates `since` to a day for Alpaca
                begin, more = None, {"start": self.api.iso8601(begin)}
            page = self.call_with_retry(
                self.api.fetch_ohlcv, market["symbol"], frame, begin, CANDLES_PER_PAGE, more
            )
            rows = [_parse_candle(row) for row in page]
            new = {row[0]: row for row in rows if at <= row[0] <= until}
            if not new:
                break
            candles |= new
            at = max(new) + bar_seconds
        return [candles[moment] for moment in sorted(candles)]


def _parse_candle(row: Sequence[float | None]) -> Candle:
    """Convert ccxt's list, whose times are milliseconds; missing values become 0."""
    time_ms, opened, high, low, close, volume = (float(cell or 0.0) for cell in row[:6])
    return int(time_ms) // 1_000, opened, high, low, close, volume


class Order(NamedTuple):
    """Order as reported by the broker.

    Attributes:
        client_id: id chosen by the client.
        broker_id: id chosen by the broker.
        state: `OPEN`, or the broker's final state.
        filled: coins so far, sales negative.
        average: average fill price, 0 before the first fill.
        submitted: UTC seconds.
    """

    client_id: str
    broker_id: str
    state: str
    filled: float
    average: float
    submitted: float


class LotSize(NamedTuple):
    """Order limits of a symbol: quantity step and minimum in coins, minimum cost of a purchase."""

    step: float
    min_quantity: float
    min_cost: float

    def round_quantity(self, quantity: float, price: float) -> float:
        """Round a quantity towards zero to whole steps; 0 if it is too small to be sent."""
        size = abs(quantity)
        if self.step > 0.0:
            size = floor(size / self.step * (1.0 + 1e-12)) * self.step
        too_cheap = quantity > 0.0 and size * price < self.min_cost
        if size <= 0.0 or size < self.min_quantity or too_cheap:
            return 0.0
        return size if quantity > 0.0 else -size


class AlpacaPaper:
    """Alpaca's paper account, for coins quoted in dollars.

    Args:
        schema: schema of the deployment's bars.
        notify: as for `Exchange`.

    Raises:
        ConfigError: Alpaca does not trade these symbols, or keys are missing.
    """

    def __init__(self, schema: BarSchema, notify: Callable[[str], None]) -> None:
        pairs = {name: parse(name) for name in schema.symbols}
        unsupported = [name for name, pair in pairs.items() if pair is None or pair.quote != "USD"]
        if schema.kind == "fx" or unsupported:
            raise ConfigError(
                f"--broker {ALPACA_PAPER} supports coins quoted in dollars, such as BTCUSD, "
                f"and {(unsupported or schema.symbols)[0]} is not one. Run without "
                "a broker."
            )
        self.exchange = Exchange(ALPACA, notify)
        self._names = {name: f"{pair.base}/USD" for name, pair in pairs.items() if pair}

    def clock(self) -> float:
        """Return the broker's time, UTC seconds."""
        return self.exchange.clock()

    def equity(self) -> float:
        """Return the equity of the whole account, dollars."""
        answer = self.exchange.call_with_retry(self.exchange.api.trader_private_get_v2_account)
        return float(answer["equity"])

    def positions(self) -> dict[str, float]:
        """Return the coins held of the deployment's symbols."""
        answer = self.exchange.call_with_retry(self.exchange.api.trader_private_get_v2_positions)
        held = {
            str(position["symbol"]).replace("/", ""): float(position["qty"]) for position in answer
        }
        return {
            name: held.get(own_name.replace("/", ""), 0.0) for name, own_name in self._names.items()
        }

    def lot_size(self, name: str) -> LotSize:
        """Return the order limits of a symbol."""
        market = self.exchange.market(name)
        amount, limits = market["precision"]["amount"], market["limits"]
        least_cost = limits["cost"]["min"] or 10.0  # dollars per purchase; ccxt may not provide it
        return LotSize(
            float(amount or 0.0), float(limits["amount"]["min"] or 0.0), float(least_cost)
        )

    def orders(self, since: float) -> dict[str, Order]:
        """Return the orders submitted after a time, by client id."""
        api, orders = self.exchange.api, dict[str, Order]()
        while True:
            after = api.iso8601(int(since * 1e3))
            params = {
                "status": "all",
                "direction": "asc",
                "limit": _ORDERS_PER_PAGE,
                "after": after,
            }
            page = self.exchange.call_with_retry(api.trader_private_get_v2_orders, params)
            rows = [_parse_order(answer) for answer in page]
            for row in rows:  # an order can be listed twice while it is being filled
                previous = orders.get(row.client_id)
                if previous is None or previous.state == OPEN:
                    orders[row.client_id] = row
            if len(rows) < _ORDERS_PER_PAGE or rows[-1].submitted <= since:
                return orders
            since = rows[-1].submitted

    def send(self, name: str, quantity: float, client_id: str) -> str:
        """Send a market order.

        Returns:
            Reason of a rejection; empty if the order was accepted or its state is unknown.

        Raises:
            ConfigError: the keys were rejected.
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
            if _DUPLICATE_ID in str(error):  # the broker already has this order
                return ""
            failure = self.exchange.convert_error(error)
            if isinstance(failure, ConfigError):
                raise failure from None
            return str(failure)
        return ""

    def cancel(self, order: Order) -> None:
        """Request the cancellation of an order, which may be too late."""
        try:
            call = self.exchange.api.trader_private_delete_v2_orders_order_id
            call({"order_id": order.broker_id})
        except (self.exchange.uncertain_errors, self.exchange.rejection_errors):
            return


def _parse_order(fields: dict[str, Any]) -> Order:
    state, filled = str(fields["status"]), float(fields["filled_qty"] or 0.0)
    return Order(
        str(fields["client_order_id"]),
        str(fields["id"]),
        state if state in _FINAL_STATES else OPEN,
        filled if fields["side"] == "buy" else -filled,
        float(fields["filled_avg_price"] or 0.0),
        datetime.fromisoformat(str(fields["submitted_at"])[:19] + "+00:00").timestamp(),
    )


def make_broker(name: str, schema: BarSchema, notify: Callable[[str], None]) -> AlpacaPaper:
    """Create the broker that `--broker` names.

    Raises:
        ConfigError: there is no such broker.
    """
    if name != ALPACA_PAPER:
        raise ConfigError(
            f"--broker {name!r} is not a broker. Use {ALPACA_PAPER}: it is the only one, and no "
            "order is ever sent for real money."
        )
    return AlpacaPaper(schema, notify)
