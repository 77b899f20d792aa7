"""Scaling of observations inside the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.kernels.spec import Spec
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.experience.scaling import RunningMoments
from slipstream.rl.nets.compiled import loops

LIMIT = 10.0  # normalised columns are clipped to +- this, as by SB3's VecNormalize


class ObservationScale:
    """(x - mean) / std per member and column, clipped to +-10 if the column is normalised.

    Columns that the environment knows beforehand (`Spec.fixed_mean`, not NaN) keep that scale. The
    others use the statistics of the rollouts seen so far. If `running` is false, the network
    receives them unchanged and unclipped. The scale changes only in `learn`: while a rollout is
    collected and in evaluation it is frozen.

    Args:
        specs: one per member.
        running: keep statistics for the columns that are not fixed.

    Attributes:
        mean, inverse_std: float32 [M, D], in use now.
        limit: float32 [M, D], bound of each scaled column; infinity if it is not normalised.
    """

    def __init__(self, specs: Sequence[Spec], running: bool) -> None:
        width = int(np.prod(specs[0].observation_shape))
        nothing = np.full(width, np.nan, np.float32)
        mean = np.stack([nothing if s.fixed_mean is None else s.fixed_mean.ravel() for s in specs])
        std = np.stack([nothing if s.fixed_std is None else s.fixed_std.ravel() for s in specs])
        self._fixed_mean, self._fixed_std = mean.astype(np.float64), std.astype(np.float64)
        self._free = np.isnan(self._fixed_mean) | np.isnan(self._fixed_std)
        self.running = running
        self.moments = RunningMoments(len(specs), width)
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

    def apply(self, obs: NDArray[np.float32], out: NDArray[np.float32], begin: int = 0) -> None:
        """Writes scaled rows, by member: out[m, begin + t N + n] for obs[t, m N + n].

        Args:
            obs: [T, M N, *shape]; out: [M, rows, >= D]; columns beyond D are left alone.
            begin: first row to write.
        """
        flat = obs.reshape(obs.shape[0], obs.shape[1], len(self.mean[0]))  # T may be 0
        loops()["scale_rows"](flat, self.mean, self.inverse_std, self.limit, begin, out)

    def prepare(self) -> None:
        """Compiles what `learn` needs, where that was never done."""
        if self._learns:
            self.moments.prepare()

    @property
    def _learns(self) -> bool:
        return self.running and bool(self._free.any())

    def learn(self, rollout: Rollout) -> None:
        """Takes a rollout's valid observations into the statistics."""
        if self._learns:
            t, e = rollout.valid.shape
            self.moments.merge(rollout.obs[:t].reshape(t, e, -1), rollout.valid)
            self._refresh()

    def hold(self, mean: NDArray[np.float32], inverse_std: NDArray[np.float32]) -> None:
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
