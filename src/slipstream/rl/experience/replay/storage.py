"""Where a replay's observations are: in the rings' rows, or beside them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.jit.memory import zeros
from slipstream.kernels.spec import Spec
from slipstream.kernels.vector_env import Finals
from slipstream.rl.experience.replay.compiled import loops
from slipstream.rl.experience.replay.gather import Batch
from slipstream.rl.experience.replay.ring import Ring
from slipstream.rl.experience.rollout import Rollout

_NO_OBS = np.zeros((0, 0), np.float32)


class ReplayLoops(NamedTuple):
    """What compiled loops call to write a replay and to draw from it.

    Attributes:
        gather, write: compiled; see `gather.py` and `ring.py` for their arguments.
        store: the second argument of both, as it is now.
    """

    gather: Any
    write: Any
    store: tuple[Any, ...]


class Storage(ABC):
    """Keeps the observations of E copies; the rest of a transition is the Ring's.

    Attributes:
        width: numbers of an observation that lie in the ring's rows.
        raw: uint8 [E, S, bytes], what is kept beside them; None: nothing.
        masks: whether the ring has to keep what was allowed.
    """

    width: int = 0
    raw: NDArray[np.uint8] | None = None
    masks: bool = True

    @abstractmethod
    def begin(self, ring: Ring, obs: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        """Keeps what the heads show: obs [E, *shape], mask [E, choices], [E, 0] without."""

    @abstractmethod
    def write(
        self,
        ring: Ring,
        rollout: Rollout,
        t: int,
        mask: NDArray[np.bool_],
        finals: Finals,
        final_of: NDArray[np.int64],
    ) -> None:
        """Writes step t of every copy.

        Args:
            ring: the Ring; rollout: what happened; mask: bool [E, choices], [E, 0] without.
            finals: of this step; final_of: int64 [E], which of them is a copy's, -1 for none.
        """

    @abstractmethod
    def gather(
        self, ring: Ring, m: int, index: NDArray[np.int64], n: int, gamma: float, batch: Batch
    ) -> None:
        """Fills a batch; see `gather.py`."""

    @abstractmethod
    def elsewhere(self, ring: Ring, obs: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether the heads show other observations than these, bool [E]."""

    @property
    def loops(self) -> ReplayLoops | None:
        """For compiled loops; None where there is no compiled form."""
        return None


class DenseRows(Storage):
    """float32 observations in the ring's rows."""

    def __init__(self, spec: Spec) -> None:
        self.width = int(np.prod(spec.observation_shape, dtype=np.int64))
        self._loops = loops()
        choices = spec.action_dtype == np.int64
        self._write = self._loops["write_choices" if choices else "write_numbers"]
        self._begin = self._loops["begin"]

    def begin(self, ring: Ring, obs: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        self._begin(ring, (), 0, len(obs), self._flat(obs), mask)

    def write(
        self,
        ring: Ring,
        rollout: Rollout,
        t: int,
        mask: NDArray[np.bool_],
        finals: Finals,
        final_of: NDArray[np.int64],
    ) -> None:
        self._write(
            *(ring, (), 0, len(final_of), rollout.actions[t], rollout.reward[t]),
            *(rollout.terminated[t], rollout.truncated[t], rollout.valid[t]),
            *(self._flat(rollout.obs[t + 1]), mask, self._flat(finals.obs), final_of),
        )

    def gather(
        self, ring: Ring, m: int, index: NDArray[np.int64], n: int, gamma: float, batch: Batch
    ) -> None:
        self._loops["gather"](ring, (), m, index, n, gamma, batch)

    def elsewhere(self, ring: Ring, obs: NDArray[Any]) -> NDArray[np.bool_]:
        kept = ring.rows[np.arange(len(obs)), ring.head, : self.width]
        other = kept.view(np.uint32) != self._flat(obs).view(np.uint32)
        return np.asarray(other.any(1), np.bool_)

    @property
    def loops(self) -> ReplayLoops:
        return ReplayLoops(self._loops["gather"], self._write, ())

    def _flat(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = obs.reshape(len(obs), self.width)
        return rows


class Pixels(Storage):
    """Observations of uint8 as they are, beside the rows; learned from by array operations."""

    def __init__(self, spec: Spec, copies: int, slots: int) -> None:
        self._rows = zeros((copies, slots, *spec.observation_shape), np.uint8)
        self.raw = self._rows.reshape(copies, slots, -1)
        self._slots, self._every = slots, np.arange(copies)
        self._loops = loops()
        choices = spec.action_dtype == np.int64
        self._write = self._loops["write_choices" if choices else "write_numbers"]
        self._nothing = np.zeros((copies, 0), np.float32)

    def begin(self, ring: Ring, obs: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        self._loops["begin"](ring, (), 0, len(obs), self._nothing, mask)
        self._rows[self._every, ring.head] = obs

    def write(
        self,
        ring: Ring,
        rollout: Rollout,
        t: int,
        mask: NDArray[np.bool_],
        finals: Finals,
        final_of: NDArray[np.int64],
    ) -> None:
        none = np.zeros((len(finals.obs), 0), np.float32)
        self._write(
            *(ring, (), 0, len(final_of), rollout.actions[t], rollout.reward[t]),
            *(rollout.terminated[t], rollout.truncated[t], rollout.valid[t]),
            *(self._nothing, mask, none, final_of),
        )
        self._rows[self._every, ring.head] = rollout.obs[t + 1]
        cut = rollout.truncated[t] & ~rollout.terminated[t] & rollout.valid[t] & (final_of >= 0)
        copies = np.flatnonzero(cut)
        self._rows[copies, (ring.head[copies] - 1) % self._slots] = finals.obs[final_of[copies]]

    def gather(
        self, ring: Ring, m: int, index: NDArray[np.int64], n: int, gamma: float, batch: Batch
    ) -> None:
        places = np.zeros((len(index), 3), np.int64)
        columns = batch._replace(obs=_NO_OBS, obs_next=_NO_OBS)
        self._loops["locate"](ring, m, index, n, gamma, places, columns)
        copies, here, after = places.T
        batch.obs[:] = self._rows[copies, here]
        batch.obs_next[:] = self._rows[copies, after]

    def elsewhere(self, ring: Ring, obs: NDArray[Any]) -> NDArray[np.bool_]:
        other = self._rows[self._every, ring.head] != obs
        return np.asarray(other.reshape(len(obs), -1).any(1), np.bool_)
