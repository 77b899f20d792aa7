"""How many copies to run, following what was measured."""

from __future__ import annotations


class FollowThroughput:
    """Climbs by factors as long as that pays, and comes back where it does not.

    ::

        follow = FollowThroughput(4, 64)
        while training:
            steps_per_second = ...  # of some rounds with env.num_envs copies
            env.resize(follow.next(env.num_envs, steps_per_second))

    Learning must not depend on it: for collecting in any order, and for evaluation. A run's own
    `num_envs` stays what its config says.

    Args:
        least, most: bounds of the number of copies.
        factor: between two numbers.
        gain: share by which more copies must be faster to be kept.
    """

    def __init__(self, least: int, most: int, factor: float = 2.0, gain: float = 0.05) -> None:
        if not 1 <= least <= most or factor <= 1.0:
            raise ValueError("the bounds must be 1 <= least <= most, and the factor above 1")
        self.least, self.most, self.factor, self.gain = least, most, factor, gain
        self._rates: dict[int, float] = {}
        self._settled = False

    def next(self, num_envs: int, rate: float) -> int:
        """The number to go on with, after `num_envs` copies made `rate` steps per second."""
        self._rates[num_envs] = rate
        if self._settled:
            return num_envs
        fewer = [n for n in self._rates if n < num_envs]
        if fewer and rate < (1.0 + self.gain) * self._rates[max(fewer)]:
            self._settled = True  # the last step up did not pay
            return max(fewer)
        more = min(self.most, max(num_envs + 1, round(num_envs * self.factor)))
        self._settled = more == num_envs
        return max(self.least, more)
