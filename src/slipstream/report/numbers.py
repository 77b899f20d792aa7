"""Means with their standard errors, written with the digits that the error allows."""

from __future__ import annotations

import math
from typing import NamedTuple

from slipstream.core.percent import NOTHING
from slipstream.report.market.wording import number
from slipstream.report.statistics import Floats
from slipstream.training.record.track import standard_error

_MOST_DIGITS = 6  # after the point


class Measured(NamedTuple):
    """The mean of independent values and its standard error, None where there is one value."""

    mean: float
    error: float | None

    @classmethod
    def of(cls, values: Floats) -> Measured:
        """Of [n] values."""
        return cls(float(values.mean()), standard_error(values))

    @property
    def digits(self) -> int:
        """After the point: the error shows two significant digits, a sure number four."""
        if self.error:
            return _digits(self.error, 2)
        return 1 if self.mean == 0.0 else min(_digits(self.mean, 4), 3)

    def __str__(self) -> str:
        """ "-0.051 ± 0.015"."""
        if math.isnan(self.mean):
            return NOTHING
        mean = number(self.mean, self.digits)
        return mean if self.error is None else f"{mean} ± {number(self.error, self.digits)}"

    def above(self, other: Measured) -> bool:
        """Whether it is more than two standard errors of the difference higher."""
        error = math.hypot(self.error or 0.0, other.error or 0.0)
        return self.mean - other.mean > 2.0 * error


def _digits(value: float, significant: int) -> int:
    """Places after the point that show so many significant digits."""
    return min(_MOST_DIGITS, max(0, significant - 1 - math.floor(math.log10(abs(value)))))
