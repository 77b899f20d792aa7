"""Running normalization of observations and rewards per member, with float64 statistics."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.spec import EnvSpec
from slipstream.rl.compiled_loops import Loops, b1, f4, f8
from slipstream.rl.experience.rollout import Rollout

_LARGEST = 10.0  # largest scaled reward, the bound of OpenAI Baselines' VecNormalize
_QUIET = np.errstate(over="ignore", invalid="ignore")  # non-finite gradients reveal a failed member
LIMIT = 10.0  # clipping bound of normalized columns, as in SB3's VecNormalize


def column_moments(rows: Any, valid: Any, count: Any, mean: Any, m2: Any) -> None:
    """Compute mean and sum of squared deviations of each member's valid rows in float64.

    Rows are processed member by member in time order, so results of a member do not depend on the
    other members.

    Args:
        rows: float32 [T, M * N, D].
        valid: bool [T, M * N].
        count: float64 [M], written.
        mean, m2: float64 [M, D], written.
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
    """Compute R_t = gamma R_{t-1} + r_t per environment, reset after the end of an episode.

    Args:
        reward: float32 [T, E].
        ended, valid: bool [T, E].
        gamma: float32 [E].
        carried: float32 [E], R of the previous step; updated to that of the last step.
        out: float32 [T, E], written.
    """
    for t in range(reward.shape[0]):
        for e in range(reward.shape[1]):
            r = reward[t, e] if valid[t, e] else 0.0
            out[t, e] = gamma[e] * carried[e] + r
            carried[e] = 0.0 if ended[t, e] else out[t, e]


class Scale(NamedTuple):
    """Observation scale for compiled loops; see `ObservationNormalizer` and `scale_row`."""

    mean: NDArray[np.float32]
    inverse_std: NDArray[np.float32]
    limit: NDArray[np.float32]


SCALE = Scale(f4(2), f4(2), f4(2))  # an example of its type


def scale_row(scale: Any, m: int, row: Any, out: Any) -> None:
    """Scale an observation [D] of member m into the first D elements of `out`.

    out = clip((row - mean) * inverse_std, -limit, limit)

    Args:
        scale: Scale.
    """
    mean, inverse_std, limit = scale.mean[m], scale.inverse_std[m], scale.limit[m]
    for j in range(len(mean)):
        out[j] = min(max((row[j] - mean[j]) * inverse_std[j], -limit[j]), limit[j])


def scale_rows(scale: Any, obs: Any, first_row: int, out: Any) -> None:
    """Scale observations into rows of their member.

    out[m, first_row + t N + n] receives obs[t, m N + n].

    Args:
        scale: Scale.
        obs: float32 [T, M * N, D].
        first_row: First row to write.
        out: float32 [M, >= first_row + T N, >= D], written.
    """
    members = len(scale.mean)
    num_envs = obs.shape[1] // members
    for t in range(obs.shape[0]):
        for m in range(members):
            for n in range(num_envs):
                scale_row(scale, m, obs[t, m * num_envs + n], out[m, first_row + t * num_envs + n])


@functools.cache
def loops() -> Loops:
    """Compiled functions of this module by name."""
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

        d = mean_b - mean,  n' = n + n_b,  mean' = mean + d n_b / n',
        M2' = M2 + M2_b + d^2 n n_b / n'

    Args:
        members: M.
        width: D, number of columns.

    Attributes:
        count: float64 [M].
        mean: float64 [M, D].
        m2: float64 [M, D], sum of squared deviations.
    """

    def __init__(self, members: int, width: int) -> None:
        self.count = np.zeros(members)
        self.mean = np.zeros((members, width))
        self.m2 = np.zeros((members, width))

    def prepare(self) -> None:
        """Compile the loop that `merge` uses, if necessary."""
        loops()["column_moments"]

    @_QUIET
    def merge(self, rows: NDArray[np.float32], valid: NDArray[np.bool_]) -> None:
        """Add the valid rows of rows [T, M * N, D] to each member's sample; valid: [T, M * N]."""
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
        """Return the three arrays, member axis first."""
        return {"count": self.count.copy(), "mean": self.mean.copy(), "m2": self.m2.copy()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore from `state_dict()`."""
        self.count[:] = state["count"]
        self.mean[:] = state["mean"]
        self.m2[:] = state["m2"]


class ObservationNormalizer:
    """Normalize observations to (x - mean) / std per member and column, clipped to +-10.

    Columns with a fixed scale (`EnvSpec.fixed_mean`, not NaN) keep it. Other columns use running
    statistics of the rollouts so far, or pass unchanged and unclipped if `running` is false. The
    scale changes only in `learn`; it is frozen during a rollout and in evaluation.

    Args:
        specs: One spec per member.
        running: Update statistics of columns without a fixed scale.

    Attributes:
        mean, inverse_std: float32 [M, D], current scale.
        limit: float32 [M, D], clipping bound of each column; infinity if it is not normalized.
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

    @_QUIET
    def _refresh(self) -> None:
        mean = np.where(self._free, self.moments.mean, self._fixed_mean)
        std = np.where(self._free, self.moments.std, self._fixed_std)
        # A constant column carries no information and is not rescaled.
        std = np.where(std < 1e-6, 1.0, std)
        self.mean: NDArray[np.float32] = mean.astype(np.float32)
        self.inverse_std: NDArray[np.float32] = (1.0 / std).astype(np.float32)
        self.limit[:] = np.where(self._free & (not self.running), np.inf, LIMIT)

    @property
    def arrays(self) -> Scale:
        """The current scale for compiled loops."""
        return Scale(self.mean, self.inverse_std, self.limit)

    def apply(self, obs: NDArray[np.float32], out: NDArray[np.float32], first_row: int = 0) -> None:
        """Write scaled rows by member: out[m, first_row + t N + n] for obs[t, m N + n].

        Args:
            obs: [T, M N, *shape].
            out: [M, rows, >= D]; columns beyond D are not written.
            first_row: First row to write.
        """
        flat = obs.reshape(obs.shape[0], obs.shape[1], len(self.mean[0]))  # T may be 0
        loops()["scale_rows"](self.arrays, flat, first_row, out)

    def prepare(self) -> None:
        """Compile the loop that `learn` uses, if necessary."""
        if self._is_updated:
            self.moments.prepare()

    @property
    def _is_updated(self) -> bool:
        return self.running and bool(self._free.any())

    def learn(self, rollout: Rollout) -> None:
        """Update the statistics with a rollout's valid observations."""
        if self._is_updated:
            t, e = rollout.valid.shape
            self.moments.merge(rollout.obs[:t].reshape(t, e, -1), rollout.valid)
            self._refresh()

    def freeze(self, mean: NDArray[np.float32], inverse_std: NDArray[np.float32]) -> None:
        """Use this scale [M, D] from now on and stop updating it. `limit` is unchanged."""
        self.mean[:], self.inverse_std[:], self.running = mean, inverse_std, False

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return statistics and fixed columns, member axis first."""
        fixed = {"fixed_mean": self._fixed_mean.copy(), "fixed_std": self._fixed_std.copy()}
        return {**self.moments.state_dict(), **fixed}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore from `state_dict()`."""
        self._fixed_mean[:] = state["fixed_mean"]
        self._fixed_std[:] = state["fixed_std"]
        self._free = np.isnan(self._fixed_mean) | np.isnan(self._fixed_std)
        self.moments.load_state_dict(state)
        self._refresh()


class RewardScaler:
    """Divide rewards by a running standard deviation of the discounted return.

    Each environment accumulates R_t = gamma R_{t-1} + r_t, reset at the end of an episode. A
    member's scale is the standard deviation of all its R (Engstrom et al. 2020, "Implementation
    matters in deep policy gradients"), or a tenth of the largest absolute reward if that is larger.
    With sparse rewards nearly all R are 0, and the deviation alone would scale the first rewards to
    hundreds. Scaling changes neither sign nor mean. Reported returns are unscaled.

    Args:
        members: M.
        num_envs: N per member.

    Attributes:
        largest: float32 [M], largest absolute reward so far.
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
        """Divisor of rewards, [M]."""
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
        """Update the statistics with a rollout's rewards and return scaled rewards.

        Args:
            reward: float32 [T, E].
            ended: bool [T, E], terminated or truncated.
            valid: bool [T, E].
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
        """Return moments [M, ...], accumulated returns [M, N] and largest rewards [M]."""
        arrays = {"accumulated": self.accumulated.copy(), "largest": self.largest.copy()}
        return {**self.moments.state_dict(), **arrays}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore from `state_dict()`."""
        self.moments.load_state_dict(state)
        self.accumulated[:] = state["accumulated"]
        self.largest = state["largest"].astype(np.float32)
