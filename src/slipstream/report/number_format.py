"""Numbers of reports as text, with as many digits as their error allows."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from slipstream.core.text import NOTHING
from slipstream.report.statistics import Floats
from slipstream.training.episode_result import standard_error

_MOST_DIGITS = 6  # digits after the decimal point
_HUGE = 1e12  # larger numbers have three significant digits, such as an oracle's equity


def format_number(value: float | None, digits: int = 1) -> str:
    """Format a number: "0.8"; "n/a" for None; never "-0.0"; "1.7e+30" if it is huge."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "infinite"
    if abs(value) >= _HUGE:
        return f"{value:.3g}"
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if not any(c in text for c in "123456789") else text


def format_percent(value: float | None, digits: int = 0) -> str:
    """Format a fraction in percent without a plus sign: "62 %"."""
    return NOTHING if value is None else f"{format_number(100.0 * value, digits)} %"


def format_range_and_median(values: Collection[float], digits: int = 1) -> str:
    """Return the range and the median of values: "-0.3 to 1.2, median 0.8"."""
    low, middle, high = np.quantile(list(values), (0.0, 0.5, 1.0))
    return f"{format_interval((low, high), digits)}, median {format_number(float(middle), digits)}"


def format_interval(values: Collection[float] | None, digits: int = 1) -> str:
    """Return the lowest and the highest value: "-1.1 to 2.7"; "n/a" where there are none."""
    if not values:
        return NOTHING
    return f"{format_number(min(values), digits)} to {format_number(max(values), digits)}"


def format_band(values: Collection[float], digits: int = 1) -> str:
    """Return the lowest and the highest value, "0.70 to 0.76", or one value if they are equal."""
    low, high = format_number(min(values), digits), format_number(max(values), digits)
    return low if low == high else f"{low} to {high}"


class MeanWithError(NamedTuple):
    """Mean of independent values and its standard error; None for a single value."""

    mean: float
    error: float | None

    @classmethod
    def from_values(cls, values: Floats) -> MeanWithError:
        """Compute mean and standard error of [n] values."""
        return cls(float(values.mean()), standard_error(values))

    @property
    def digits(self) -> int:
        """Return decimal places: two significant digits of the error, four without an error."""
        if self.error:
            return _digits(self.error, 2)
        return 1 if self.mean == 0.0 else min(_digits(self.mean, 4), 3)

    def __str__(self) -> str:
        """Return the mean and its error: "-0.051 ± 0.015"."""
        if math.isnan(self.mean):
            return NOTHING
        mean = format_number(self.mean, self.digits)
        return mean if self.error is None else f"{mean} ± {format_number(self.error, self.digits)}"

    def is_above(self, other: MeanWithError) -> bool:
        """Return True if the mean is more than two standard errors of the difference higher."""
        error = math.hypot(self.error or 0.0, other.error or 0.0)
        return self.mean - other.mean > 2.0 * error


def _digits(value: float, significant: int) -> int:
    """Return the decimal places for this number of significant digits."""
    return min(_MOST_DIGITS, max(0, significant - 1 - math.floor(math.log10(abs(value)))))
