"""Symbols: which currencies a name stands for, and the size of its pip."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

MarketKind = Literal["fx", "24/7"]

_FIAT = """
    USD EUR JPY GBP AUD NZD CAD CHF SEK NOK DKK PLN CZK HUF RON TRY ZAR MXN BRL CNY CNH HKD SGD
    KRW INR IDR THB MYR PHP TWD ILS RUB CLP COP SAR AED
"""
FIAT = frozenset(_FIAT.split())
METALS = frozenset({"XAU", "XAG", "XPT", "XPD"})  # traded in the forex week, against fiat
_CRYPTO_QUOTES = ("USDT", "USDC", "BUSD", "FDUSD", "TUSD", "DAI", "BTC", "ETH", "BNB")

# Rough US dollar value of one unit: enough to tell a price in points from a price.
_DOLLAR_VALUE = {
    "USD": 1.0,
    "EUR": 1.15,
    "GBP": 1.4,
    "AUD": 0.75,
    "NZD": 0.68,
    "CAD": 0.77,
    "CHF": 1.05,
    "JPY": 0.008,
}


class Pair(NamedTuple):
    """What is bought (`base`) and what it is paid in (`quote`), as currency codes."""

    base: str
    quote: str


def parse(symbol: str) -> Pair | None:
    """The currencies of a symbol, or None when the name does not say.

    Understands ``EURUSD``, ``eur_usd``, ``EUR/USD``, ``BTC-USDT``, ``BTCUSDT``; not ``BTC``.
    """
    name = symbol.upper().strip()
    parts = re.split(r"[/_\-.: ]", name)
    if len(parts) == 2 and all(re.fullmatch(r"[A-Z0-9]{2,6}", part) for part in parts):
        base, quote = parts
        known_quote = quote in FIAT or quote in _CRYPTO_QUOTES
        return Pair(base, quote) if known_quote and base != quote else None
    if re.fullmatch(r"[A-Z]{6}", name):
        base, quote = name[:3], name[3:]
        if quote in FIAT and base != quote and (base in FIAT or base in METALS):
            return Pair(base, quote)
    for quote in (*_CRYPTO_QUOTES, *sorted(FIAT)):
        base = name.removesuffix(quote)
        if base != name and re.fullmatch(r"[A-Z0-9]{2,6}", base) and base not in FIAT:
            return Pair(base, quote)
    return None


def find_pair(text: str) -> str | None:
    """The fiat pair hidden in a file's name: ``FOREX_EURUSD_1H_ASK`` -> ``EURUSD``."""
    name = text.upper()
    for start in range(len(name) - 5):
        inside = start > 0 and name[start - 1].isalpha()
        if inside:
            continue
        pair = parse(name[start : start + 6])
        if pair is not None and pair.base in FIAT | METALS and pair.quote in FIAT:
            return pair.base + pair.quote
    return None


def market_kind(symbol: str) -> MarketKind:
    """``"fx"`` for two fiat currencies (or a metal in one), else ``"24/7"``."""
    pair = parse(symbol)
    fx = pair is not None and pair.base in FIAT | METALS and pair.quote in FIAT
    return "fx" if fx else "24/7"


def pip(symbol: str) -> float:
    """Price units of one pip: 0.01 where the quote currency is JPY, else 0.0001."""
    pair = parse(symbol)
    return 0.01 if pair is not None and pair.quote == "JPY" else 0.0001


def point(symbol: str) -> float:
    """Price units of one point, a tenth of a pip (the unit of MetaTrader's spread column)."""
    return pip(symbol) / 10.0


def typical_price(symbol: str) -> float | None:
    """The order of magnitude of a major pair's price; None for everything else."""
    pair = parse(symbol)
    if pair is None or pair.base not in _DOLLAR_VALUE or pair.quote not in _DOLLAR_VALUE:
        return None
    return _DOLLAR_VALUE[pair.base] / _DOLLAR_VALUE[pair.quote]
