"""Names of bar lengths: ``M15``, ``15m``, ``1h``, ``H1``, ``1d``."""

from __future__ import annotations

import re

from slipstream.core.errors import ConfigError

_SECONDS = {
    "s": 1,
    "sec": 1,
    "m": 60,
    "min": 60,
    "t": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
    "w": 604800,
    "week": 604800,
}


def seconds(timeframe: str) -> int:
    """Seconds in a bar length written as ``15m``, ``15min``, ``M15``, ``1h``, ``H1``, ``1d`` ..."""
    text = timeframe.strip().lower()
    match = re.fullmatch(r"(\d+)\s*([a-z]+)", text) or re.fullmatch(r"([a-z]+)\s*(\d+)", text)
    if match:
        first, second = match.groups()
        count, unit = (first, second) if first.isdigit() else (second, first)
        if unit in _SECONDS and int(count) > 0:
            return int(count) * _SECONDS[unit]
    raise ConfigError(
        f"`timeframe` must be a bar length such as 15m, M15, 1h or 1d, got {timeframe!r}."
    )


def name(bar_seconds: int) -> str:
    """The shortest name of a bar length: 900 -> ``15m``."""
    for unit, size in (("w", 604800), ("d", 86400), ("h", 3600), ("m", 60)):
        if bar_seconds % size == 0:
            return f"{bar_seconds // size}{unit}"
    return f"{bar_seconds}s"
