"""Fractions as text, the same in a terminal and on every page."""

from __future__ import annotations

import math

NOTHING = "n/a"
_LARGE = 1e6  # percent, from which on nobody counts the digits


def percent(value: float | None, digits: int = 1) -> str:
    """ "+2.0 %" of a fraction, always signed, never "-0.0"; "+1.7e+21 %" from a million on."""
    if value is None or not math.isfinite(value):
        return NOTHING
    hundred = 100.0 * value
    if abs(hundred) >= _LARGE:
        return f"{hundred:+.{digits}e} %"
    text = f"{hundred:+,.{digits}f}"
    if not any(c in text for c in "123456789"):
        text = text.replace("-", "+")
    return f"{text} %"
