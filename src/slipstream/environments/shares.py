"""What each member of a population has of a kernel's records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Shares(NamedTuple):
    """What each of M members has of the records, and how long its episodes are.

    Attributes:
        ranges: int64 [M, 2], first record and number of records.
        limits: int64 [M], time limit, 0 for none.
    """

    ranges: NDArray[np.int64]
    limits: NDArray[np.int64]

    @classmethod
    def of(cls, counts: Sequence[int], limits: Sequence[int]) -> Shares:
        """Records that lie member after member: how many each has, and its time limit."""
        each = np.array(counts, np.int64)
        ranges = np.stack([np.cumsum(each) - each, each], axis=1)
        return cls(ranges, np.array(limits, np.int64))

    def dealt(self, copies: int, longest: int = 0) -> dict[str, NDArray[np.int64]]:
        """Of each of `copies` copies, member after member; `longest` where there is no limit."""
        each = copies // len(self.ranges)
        limits = np.where(self.limits > 0, self.limits, longest)
        return {
            "ranges": np.repeat(self.ranges, each, axis=0),
            "limits": np.repeat(limits, each),
        }
