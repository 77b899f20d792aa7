"""Exchange: one that ccxt speaks to, asked again until it answers; its clock and its candles."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slipstream.core.errors import ConfigError, DataError
from slipstream.core.extras import require
from slipstream.core.text import did_you_mean
from slipstream.markets.data.bars import timeframe_name
from slipstream.markets.data.symbols import parse

KEYS = ("APCA_API_KEY_ID", "APCA_API_SECRET_KEY")  # Alpaca's own names of them
ALPACA = "alpaca"
PAGE = 1_000  # candles that are asked for at once; many exchanges give fewer
_LONGEST_PAUSE = 60.0  # seconds between two questions to an exchange that does not answer
_TIMEOUT_MS = 10_000
_OVERLOADED = 429

Candle = tuple[int, float, float, float, float, float]
"""Open time in UTC seconds, open, high, low, close, volume."""


def connect(name: str, options: Mapping[str, Any]) -> Any:
    """ccxt's object for an exchange. Alpaca's is always its paper account."""
    library = require("ccxt", "What asks an exchange", "live")
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

    def __init__(self, name: str, say: Callable[[str], None] = lambda sentence: None) -> None:
        library = require("ccxt", "What asks an exchange", "live")
        self.name, self._say = name, say
        self.doubt, self.refusals = library.NetworkError, library.BaseError
        self._unknown_keys = library.AuthenticationError
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
        own = self.api.handle_errors

        def heard(code: int, *rest: Any) -> Any:
            # Some exchanges' files make refusals of what a busy server says in JSON.
            if code == _OVERLOADED or code >= 500:
                raise library.ExchangeNotAvailable(f"{name} answers with status {code}")
            return own(code, *rest)

        self.api.handle_errors = heard

    def ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """The answer to a question that may be asked twice.

        Raises:
            ConfigError: the exchange does not know the keys; DataError: it refused.
        """
        pause = 1.0
        while True:
            try:
                answer = call(*arguments)
            except self.doubt as error:
                if pause == 1.0:
                    self._say(f"{self.name} does not answer, and is asked again: {error}")
                time.sleep(pause)
                pause = min(2.0 * pause, _LONGEST_PAUSE)
                continue
            except self.refusals as error:
                raise self.refused(error) from None
            if pause > 1.0:
                self._say(f"{self.name} answers again.")
            return answer

    def refused(self, error: Exception) -> DataError | ConfigError:
        """What to raise for an error of ccxt."""
        if isinstance(error, self._unknown_keys):
            return ConfigError(
                f"{self.name} does not accept the keys: export those of its paper account as "
                f"{' and '.join(KEYS)}."
            )
        return DataError(f"{self.name} refused ({type(error).__name__}): {str(error)[:300]}")

    def clock(self) -> float:
        """The exchange's own, UTC seconds; this machine's where it tells none."""
        if not self.api.has.get("fetchTime"):
            return time.time()
        return float(self.ask(self.api.fetch_time)) / 1e3

    def market(self, symbol: str) -> dict[str, Any]:
        """What ccxt knows of a symbol's market: its name there, steps and limits.

        Raises:
            DataError: the exchange does not trade it.
        """
        self.ask(self.api.load_markets)
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
            page = self.ask(self.api.fetch_ohlcv, market["symbol"], frame, begin, PAGE, more)
            rows = [_candle(row) for row in page]
            new = {row[0]: row for row in rows if at <= row[0] <= until}
            if not new:
                break
            found |= new
            at = max(new) + bar_seconds
        return [found[one] for one in sorted(found)]


def _candle(row: Sequence[float | None]) -> Candle:
    """From ccxt's list, whose times are milliseconds; what an exchange leaves open is 0."""
    time_ms, opened, high, low, close, volume = (float(cell or 0.0) for cell in row[:6])
    return int(time_ms) // 1_000, opened, high, low, close, volume
