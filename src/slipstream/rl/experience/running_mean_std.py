"""Running scales of observations and rewards, one per member, from statistics in float64."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.spec import EnvSpec
from slipstream.rl.compiled_loops import Loops, b1, f4, f8
from slipstream.rl.experience.rollout import Rollout

_LARGEST = 10.0  # a scaled reward, at most: the bound of OpenAI Baselines' VecNormalize, not cut
_QUIET = np.errstate(over="ignore", invalid="ignore")  # a sick member is noticed by its gradient
LIMIT = 10.0  # normalised columns are clipped to +- this, as by SB3's VecNormalize


def column_moments(rows: Any, valid: Any, count: Any, mean: Any, m2: Any) -> None:
    """Mean and sum of squared deviations of each member's valid rows, in float64.

    Member by member and in the order of time, so that a member's bits depend on no other's.

    Args:
        rows: float32 [T, M * N, D]; valid: bool [T, M * N].
        count: float64 [M], mean, m2: float64 [M, D]; written.
    """
    members, width = mean.shape
    num_envs = rows.shape[1] // members
    for m in range(members):
        centre, square = mean[m], m2[m]
        n = 0.0
        for j in range(width):
            centre[j] = 0.0
            square[j] = 0.0
        for t in range(rows.shape[0]):
            for e in range(m * num_envs, (m + 1) * num_envs):
                if valid[t, e]:
                    row = rows[t, e]
                    n += 1.0
                    for j in range(width):
                        centre[j] += float(row[j])
        count[m] = n
        for j in range(width):
            centre[j] = centre[j] / max(n, 1.0)
        for t in range(rows.shape[0]):
            for e in range(m * num_envs, (m + 1) * num_envs):
                if valid[t, e]:
                    row = rows[t, e]
                    for j in range(width):
                        deviation = float(row[j]) - centre[j]
                        square[j] += deviation * deviation


def discounted_returns(
    reward: Any, ended: Any, valid: Any, gamma: Any, carried: Any, out: Any
) -> None:
    """R_t = gamma R_{t-1} + r_t along every environment, begun anew after an episode's end.

    Args:
        reward: float32 [T, E]; ended, valid: bool [T, E]; gamma: float32 [E].
        carried: float32 [E], R of the step before; changed to that of the last step.
        out: float32 [T, E], written.
    """
    for t in range(reward.shape[0]):
        for e in range(reward.shape[1]):
            r = reward[t, e] if valid[t, e] else 0.0
            out[t, e] = gamma[e] * carried[e] + r
            carried[e] = 0.0 if ended[t, e] else out[t, e]


class Scale(NamedTuple):
    """Scale of observations as loops take it; see `ObservationNormalizer` and `scale_row`."""

    mean: NDArray[np.float32]
    inverse_std: NDArray[np.float32]
    limit: NDArray[np.float32]


SCALE = Scale(f4(2), f4(2), f4(2))  # an example of its type


def scale_row(scale: Any, m: int, row: Any, out: Any) -> None:
    """Scale an observation [D] of member m into the first D places of `out`.

    out = clip((row - mean) * inverse_std, +-limit)

    Args:
        scale: Scale.
    """
    mean, inverse_std, limit = scale.mean[m], scale.inverse_std[m], scale.limit[m]
    for j in range(len(mean)):
        out[j] = min(max((row[j] - mean[j]) * inverse_std[j], -limit[j]), limit[j])


def scale_rows(scale: Any, obs: Any, first_row: int, out: Any) -> None:
    """Scale observations into rows of their member: out[m, begin + t N + n] for obs[t, m N + n].

    Args:
        scale: Scale; obs: float32 [T, M * N, D].
        begin: first row; out: float32 [M, >= begin + T N, >= D], written.
    """
    members = len(scale.mean)
    num_envs = obs.shape[1] // members
    for t in range(obs.shape[0]):
        for m in range(members):
            for n in range(num_envs):
                scale_row(scale, m, obs[t, m * num_envs + n], out[m, first_row + t * num_envs + n])


@functools.cache
def loops() -> Loops:
    """Compiled forms of the functions above, by their names."""
    return Loops(
        "experience",
        {
            column_moments: (f4(3), b1(2), f8(1), f8(2), f8(2)),
            discounted_returns: (f4(2), b1(2), b1(2), f4(1), f4(1), f4(2)),
            scale_rows: (SCALE, f4(3), 0, f4(3)),
        },
    )


class RunningMeanStd:
    """Mean and variance of a growing sample, per member and column.

    Batches are merged by Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise
    algorithm for computing sample variances":

        d = mean_b - mean,  n' = n + n_b,  mean' = mean + d n_b / n',  M2' = M2 + M2_b + d^2 n n_b
        / n'

    Args:
        members: M.
        width: D columns.

    Attributes:
        count: float64 [M]; mean, m2: float64 [M, D], m2 the sum of squared deviations.
    """

    def __init__(self, members: int, width: int) -> None:
        self.count = np.zeros(members)
        self.mean = np.zeros((members, width))
        self.m2 = np.zeros((members, width))

    def prepare(self) -> None:
        """Compiles what `merge` needs, where that was never done."""
        loops()["column_moments"]

    @_QUIET
    def merge(self, rows: NDArray[np.float32], valid: NDArray[np.bool_]) -> None:
        """Adds the valid ones of rows [T, M * N, D], valid [T, M * N], to each member's sample."""
        count_b, mean_b, m2_b = (np.zeros(x.shape) for x in (self.count, self.mean, self.m2))
        loops()["column_moments"](rows, valid, count_b, mean_b, m2_b)
        n, n_b = self.count[:, None], count_b[:, None]
        total = np.maximum(n + n_b, 1.0)
        d = mean_b - self.mean
        self.m2 += np.where(n_b > 0, m2_b + d * d * (n * n_b / total), 0.0)
        self.mean += np.where(n_b > 0, d * (n_b / total), 0.0)
        self.count += n_b[:, 0]

    @property
    @_QUIET
    def std(self) -> NDArray[np.float64]:
        """Population standard deviation, float64 [M, D]; 1 before the second sample."""
        n = np.maximum(self.count, 1.0)[:, None]
        return np.where(self.count[:, None] > 1, np.sqrt(self.m2 / n), 1.0)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The three arrays, member axis first."""
        return {"count": self.count.copy(), "mean": self.mean.copy(), "m2": self.m2.copy()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict()`."""
        self.count[:] = state["count"]
        self.mean[:] = state["mean"]
        self.m2[:] = state["m2"]


class ObservationNormalizer:
    """(x - mean) / std per member and column, clipped to +-10 if the column is normalised.

    Columns that the environment knows beforehand (`EnvSpec.fixed_mean`, not NaN) keep that scale.
    The others use the statistics of the rollouts seen so far. If `running` is false, the network
    receives them unchanged and unclipped. The scale changes only in `learn`: while a rollout is
    collected and in evaluation it is frozen.

    Args:
        specs: one per member.
        running: keep statistics for the columns that are not fixed.

    Attributes:
        mean, inverse_std: float32 [M, D], in use now.
        limit: float32 [M, D], bound of each scaled column; infinity if it is not normalised.
    """

    def __init__(self, specs: Sequence[EnvSpec], running: bool) -> None:
        width = int(np.prod(specs[0].observation_shape))
        nothing = np.full(width, np.nan, np.float32)
        mean = np.stack([nothing if s.fixed_mean is None else s.fixed_mean.ravel() for s in specs])
        std = np.stack([nothing if s.fixed_std is None else s.fixed_std.ravel() for s in specs])
        self._fixed_mean, self._fixed_std = mean.astype(np.float64), std.astype(np.float64)
        self._free = np.isnan(self._fixed_mean) | np.isnan(self._fixed_std)
        self.running = running
        self.moments = RunningMeanStd(len(specs), width)
        self.limit: NDArray[np.float32] = np.full(mean.shape, LIMIT, np.float32)
        self._refresh()

    @np.errstate(over="ignore", invalid="ignore")  # a sick member is noticed by its gradient
    def _refresh(self) -> None:
        mean = np.where(self._free, self.moments.mean, self._fixed_mean)
        std = np.where(self._free, self.moments.std, self._fixed_std)
        # A column that never moved carries no information: leave its size alone.
        std = np.where(std < 1e-6, 1.0, std)
        self.mean: NDArray[np.float32] = mean.astype(np.float32)
        self.inverse_std: NDArray[np.float32] = (1.0 / std).astype(np.float32)
        self.limit[:] = np.where(self._free & (not self.running), np.inf, LIMIT)

    @property
    def arrays(self) -> Scale:
        """The scale in use now, for compiled loops."""
        return Scale(self.mean, self.inverse_std, self.limit)

    def apply(self, obs: NDArray[np.float32], out: NDArray[np.float32], first_row: int = 0) -> None:
        """Writes scaled rows, by member: out[m, begin + t N + n] for obs[t, m N + n].

        Args:
            obs: [T, M N, *shape]; out: [M, rows, >= D]; columns beyond D are left alone.
            begin: first row to write.
        """
        flat = obs.reshape(obs.shape[0], obs.shape[1], len(self.mean[0]))  # T may be 0
        loops()["scale_rows"](self.arrays, flat, first_row, out)

    def prepare(self) -> None:
        """Compiles what `learn` needs, where that was never done."""
        if self._is_updated:
            self.moments.prepare()

    @property
    def _is_updated(self) -> bool:
        return self.running and bool(self._free.any())

    def learn(self, rollout: Rollout) -> None:
        """Takes a rollout's valid observations into the statistics."""
        if self._is_updated:
            t, e = rollout.valid.shape
            self.moments.merge(rollout.obs[:t].reshape(t, e, -1), rollout.valid)
            self._refresh()

    def freeze(self, mean: NDArray[np.float32], inverse_std: NDArray[np.float32]) -> None:
        """Scale by these [M, D] from now on, and stop learning; `limit` stays as it is."""
        self.mean[:], self.inverse_std[:], self.running = mean, inverse_std, False

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Statistics and the fixed columns, member axis first."""
        fixed = {"fixed_mean": self._fixed_mean.copy(), "fixed_std": self._fixed_std.copy()}
        return {**self.moments.state_dict(), **fixed}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict()`."""
        self._fixed_mean[:] = state["fixed_mean"]
        self._fixed_std[:] = state["fixed_std"]
        self._free = np.isnan(self._fixed_mean) | np.isnan(self._fixed_std)
        self.moments.load_state_dict(state)
        self._refresh()


class RewardScaler:
    """Divides rewards by a running standard deviation of the discounted return.

    Each environment accumulates R_t = gamma R_{t-1} + r_t, begun anew where an episode ends; a
    member's scale is the deviation of all its R so far (the scheme of Engstrom et al. 2020,
    "Implementation matters in deep policy gradients"), or a tenth of the largest reward so far
    where that is more: where rewards are rare, nearly all R are 0, and their deviation is so small
    that the first rewards would be hundreds, beside which a gradient has nothing else. It changes
    the size of rewards, never their sign or mean. Reported returns are not scaled.

    Args:
        members: M; num_envs: N per member.

    Attributes:
        largest: float32 [M], of the absolute rewards so far.
    """

    def __init__(self, members: int, num_envs: int) -> None:
        self._discounted = loops()["discounted_returns"]
        self.moments = RunningMeanStd(members, 1)
        self.moments.prepare()
        self.accumulated = np.zeros((members, num_envs), np.float32)
        self.largest = np.zeros(members, np.float32)
        self.num_envs = num_envs

    @property
    @_QUIET
    def divisor(self) -> NDArray[np.float64]:
        """What rewards are divided by, [M]."""
        deviation = np.maximum(self.moments.std[:, 0], 1e-8)
        return np.asarray(np.maximum(deviation, self.largest / _LARGEST))

    @_QUIET
    def scale(
        self,
        reward: NDArray[np.float32],
        ended: NDArray[np.bool_],
        valid: NDArray[np.bool_],
        gamma: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Scaled copy of a rollout's rewards, after taking them into account.

        Args:
            reward: float32 [T, E]; ended: bool [T, E], terminated or truncated; valid: bool [T, E].
            gamma: float32 [E].

        Returns:
            float32 [T, E].
        """
        discounted, carried = np.empty_like(reward), self.accumulated.reshape(-1)
        self._discounted(reward, ended, valid, gamma, carried, discounted)
        self.moments.merge(discounted[..., None], valid)
        size = np.where(valid, np.abs(reward), 0.0).reshape(len(reward), len(self.largest), -1)
        self.largest = np.maximum(self.largest, size.max(axis=(0, 2), initial=0.0))
        scale = np.float32(1.0) / self.divisor.astype(np.float32)
        return reward * np.repeat(scale, self.num_envs)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Moments [M, ...], accumulators [M, N] and largest rewards [M]."""
        own = {"accumulated": self.accumulated.copy(), "largest": self.largest.copy()}
        return {**self.moments.state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict()`."""
        self.moments.load_state_dict(state)
        self.accumulated[:] = state["accumulated"]
        self.largest = state["largest"].astype(np.float32)
