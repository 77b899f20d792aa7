"""Somebody else's vector environment behind ours: Gymnasium's, an EnvPool pool, an SB3 VecEnv."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.adapters.doors import check_still, door_of
from slipstream.core.errors import ConfigError, KernelError, SlipstreamError
from slipstream.core.random import stream
from slipstream.core.spec import Spec
from slipstream.vector import vector_env
from slipstream.vector.foreign import flat_spaces
from slipstream.vector.forms import observation_form
from slipstream.vector.leaves import MisfitError
from slipstream.vector.loop import HOLD, RESET, RESET_KEEP_ALL
from slipstream.vector.steps import episodes_of, finals_of
from slipstream.vector.vector_env import Episodes, Finals, StepOut

_SEED_MASK = np.uint64(2**31 - 1)


class InwardEnv(vector_env.VectorEnv):
    """Foreign vector environments under slipstream's agents; they cannot be saved.

    Args:
        env: Gymnasium's `VectorEnv`, a synchronous EnvPool pool, or an SB3 `VecEnv`.
        seeds, indices: uint64 [E], as for `ForeignEnv`.
        name: for messages.
        at_end: RESET, RESET_KEEP_ALL or HOLD of `loop.py`.
        limit: steps after which an evaluation's episode is cut.
    """

    backend = "serial"

    def __init__(
        self,
        env: Any,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        *,
        name: str,
        at_end: int = RESET,
        limit: int | None = None,
    ) -> None:
        try:
            check_still(env, name)
            self._door = door_of(env)
        except ConfigError:
            if hasattr(env, "close"):
                env.close()
            raise
        self.num_envs, self._name = self._door.num_envs, name
        if self.num_envs != len(seeds):
            env.close()
            raise ConfigError(
                f"{name} made {self.num_envs} copies where {len(seeds)} were asked for: it must "
                "take the number as its first argument."
            )
        shown, acted = self._door.shown, self._door.acted
        observation, action = flat_spaces(name, shown, acted)
        spec = Spec(observation, action, native_observation=shown, native_action=acted)
        mean, std = observation_form(spec).scale()
        self.spec = replace(spec, fixed_mean=mean, fixed_std=std)
        self._seeds, self._indices = seeds.copy(), indices.copy()
        self._at_end, self._limit, self._resets = at_end, limit, 0
        e = self.num_envs
        self._ret, self._length = np.zeros(e), np.zeros(e, np.int64)
        self._held, self._skipped = np.zeros((2, e), np.bool_)
        self._rows: NDArray[Any] | None = None
        self._finals: list[tuple[NDArray[Any], int, int]] = []
        self._episodes: list[tuple[float, ...]] = []

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        words = self._words(self._seeds, self._indices, self._resets)
        self._resets += 1
        self._finals, self._episodes = [], []
        self._count_from_zero(slice(None))
        self._rows = self._flat(self._asked(self._door.reset, words))
        obs[...] = self._rows

    def begin(
        self,
        copies: NDArray[np.int64],
        episodes: NDArray[np.int64],
        seed: int,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Where a copy cannot be reset alone, its running episode is stepped to its end first."""
        if len(copies) == 0:
            return
        chosen = np.zeros(self.num_envs, np.bool_)
        chosen[copies] = True
        numbers = np.zeros(self.num_envs, np.uint64)
        numbers[copies] = episodes.astype(np.uint64)
        words = self._words(np.full(self.num_envs, seed % 2**64, np.uint64), numbers, 0)
        self._count_from_zero(copies)
        if self._rows is None or chosen.all():
            self._rows = self._flat(self._asked(self._door.reset, words))
        else:
            each = [word if own else None for word, own in zip(words, chosen, strict=True)]
            came = self._asked(self._door.reset_some, chosen, each)
            if came is None:
                self._skipped[copies] = True
            else:
                self._rows = self._flat(came)
        obs[copies] = self._rows[copies]

    def step_rows(self, actions: NDArray[Any], out: StepOut, t: int = 0) -> None:
        came = self._asked(self._door.step, self.actions.native(actions))
        rows = self._rows = self._flat(came.obs)
        over = came.terminated | came.truncated
        real = ~(came.fresh | self._skipped | self._held)
        self._skipped &= ~over  # its successor has begun
        out.obs[...], out.reward[...] = rows, np.where(real, came.reward, 0.0)
        self._ret[real] += np.asarray(came.reward, np.float64)[real]
        self._length[real] += 1
        late = real & (self._length >= self._limit) if self._limit is not None else real & False
        out.terminated[...] = came.terminated & real
        out.truncated[...] = (came.truncated & real) | late
        out.valid[...] = real | self._held
        for e in np.flatnonzero(real & (over | late)).tolist():
            if self._at_end == RESET_KEEP_ALL or (self._at_end == RESET and not came.terminated[e]):
                last = self._flat_one(came.finals[e]) if e in came.finals else rows[e].copy()
                self._finals.append((last, t, e))
            self._episodes.append((t, e, float(self._ret[e]), int(self._length[e])))
            self._ret[e], self._length[e] = 0.0, 0
            self._held[e] = self._at_end == HOLD

    def drain_finals(self) -> Finals:
        kept, self._finals = self._finals, []
        return finals_of(self.spec, kept)

    def drain_episodes(self) -> Episodes:
        ended, self._episodes = self._episodes, []
        return episodes_of(self.spec, ended)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Nothing: a run that is resumed begins fresh episodes."""
        return {}

    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.reset_rows(obs)
        self.fresh = self.num_envs

    def close(self) -> None:
        self._door.env.close()

    def _asked(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """What their code answers; what it raises, in a paragraph."""
        try:
            return call(*arguments)
        except SlipstreamError:
            raise
        except Exception as error:
            raise KernelError(
                f"{self._name} raised {type(error).__name__}: {error!s:.300} in `{call.__name__}`. "
                "Mend the environment, or the function that makes it."
            ) from error

    def _count_from_zero(self, copies: Any) -> None:
        self._ret[copies], self._length[copies] = 0.0, 0
        self._held[copies] = self._skipped[copies] = False

    def _words(self, seeds: Any, indices: Any, episode: int) -> list[int]:
        with np.errstate(over="ignore"):
            streams = stream(seeds, indices, np.full(len(seeds), episode, np.uint64))
        return [int(word & _SEED_MASK) for word in streams]

    def _flat(self, obs: Any) -> NDArray[Any]:
        try:
            rows, _ = self.observations.rows(obs)
        except MisfitError as error:
            raise KernelError(f"{self._name}: its observations are {error}.") from None
        if not np.isfinite(rows).all():
            raise KernelError(f"{self._name}: its observations hold NaN or infinity.")
        return np.array(rows, self.spec.observation_dtype)

    def _flat_one(self, obs: Any) -> NDArray[Any]:
        return np.array(self.observations.rows(obs)[0], self.spec.observation_dtype)
