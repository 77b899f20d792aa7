"""Symbols: the currencies of a name and its pip size."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

MarketKind = Literal["fx", "24/7"]

# Currencies, then metals, which are traded in the forex week against them: lowest and highest US
# dollar value of one unit since 1995 (since its redenomination, if later); daily closes, rounded
# outwards. Precise enough to detect prices in points, pips or cents.
_CURRENCIES = """
    USD 1.0 1.0, EUR 0.82 1.61, JPY 0.0061 0.0135, GBP 1.03 2.12, AUD 0.47 1.11, NZD 0.38 0.89,
    CAD 0.61 1.11, CHF 0.54 1.40, SEK 0.088 0.172, NOK 0.084 0.21, DKK 0.11 0.22, PLN 0.19 0.51,
    CZK 0.023 0.071, HUF 0.0022 0.009, RON 0.19 0.46, TRY 0.015 0.90, ZAR 0.05 0.30,
    MXN 0.038 0.20, BRL 0.15 1.0, CNY 0.112 0.17, CNH 0.112 0.17, HKD 0.127 0.13, SGD 0.53 0.85,
    KRW 0.0005 0.0014, INR 0.010 0.033, IDR 0.00005 0.0005, THB 0.017 0.042, MYR 0.20 0.42,
    PHP 0.016 0.042, TWD 0.027 0.042, ILS 0.19 0.36, RUB 0.006 0.045, CLP 0.00095 0.0026,
    COP 0.00018 0.0013, SAR 0.266 0.268, AED 0.272 0.273
"""
_METALS = "XAU 250.0 6000.0, XAG 3.5 150.0, XPT 330.0 3000.0, XPD 110.0 3500.0"


def _dollars(table: str) -> dict[str, tuple[float, float]]:
    """Return the lowest and highest dollar value by code."""
    rows = (row.split() for row in table.split(","))
    return {code: (float(low), float(high)) for code, low, high in rows}


FIAT, METALS = frozenset(_dollars(_CURRENCIES)), frozenset(_dollars(_METALS))
_DOLLARS = _dollars(f"{_CURRENCIES},{_METALS}")
_CRYPTO_QUOTES = ("USDT", "USDC", "BUSD", "FDUSD", "TUSD", "DAI", "BTC", "ETH", "BNB")

# Quotes that may also be a coin's last letter and USD: DOTUSD is not "DO" in TUSD. Their base needs
# at least three letters and must not form one of these coins.
_LIKE_DOLLARS = {"BUSD": ("SHI",), "TUSD": ()}


class Pair(NamedTuple):
    """Base (bought) and quote (paid) currency codes."""

    base: str
    quote: str


def parse(symbol: str) -> Pair | None:
    """Return the currencies of a symbol, or None if the name is ambiguous.

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
        if quote in _LIKE_DOLLARS and (len(base) < 3 or base in _LIKE_DOLLARS[quote]):
            continue
        if base != name and re.fullmatch(r"[A-Z0-9]{2,6}", base) and base not in FIAT:
            return Pair(base, quote)
    return None


def find_pair(text: str) -> str | None:
    """Return the fiat pair inside a file's name: ``FOREX_EURUSD_1H_ASK`` -> ``EURUSD``."""
    name = text.upper()
    for start in range(len(name) - 5):
        inside = start > 0 and name[start - 1].isalpha()
        if inside or name[start + 3 : start + 7] in _CRYPTO_QUOTES:
            continue
        pair = parse(name[start : start + 6])
        if pair is not None and pair.base in FIAT | METALS and pair.quote in FIAT:
            return pair.base + pair.quote
    return None


def extract_pair(symbol: str) -> Pair | None:
    """Return the currencies of a symbol, or of the fiat pair in a longer name: ``EURUSD_H1``."""
    return parse(symbol) or parse(find_pair(symbol) or "")


def market_kind(symbol: str) -> MarketKind:
    """Return ``"fx"`` for two fiat currencies (or a metal in one), else ``"24/7"``."""
    pair = extract_pair(symbol)
    fx = pair is not None and pair.base in FIAT | METALS and pair.quote in FIAT
    return "fx" if fx else "24/7"


def pip_size(symbol: str) -> float:
    """Return the price units of one pip: 0.01 if the quote currency is JPY, else 0.0001."""
    pair = extract_pair(symbol)
    return 0.01 if pair is not None and pair.quote == "JPY" else 0.0001


def point_size(symbol: str) -> float:
    """Return the price units of one point, a tenth of a pip (the unit of MetaTrader's spreads)."""
    return pip_size(symbol) / 10.0


def usual_range(symbol: str) -> tuple[float, float] | None:
    """Return the lowest and highest price of a currency pair since 1995; None for other symbols.

    The pair may be part of a longer name, such as that of a file.
    """
    pair = extract_pair(symbol)
    if pair is None or pair.base not in _DOLLARS or pair.quote not in _DOLLARS:
        return None
    base, quote = _DOLLARS[pair.base], _DOLLARS[pair.quote]
    return base[0] / quote[1], base[1] / quote[0]
