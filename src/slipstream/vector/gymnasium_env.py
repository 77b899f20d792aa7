"""Any Gymnasium environment, its copies stepped one after another in this process."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import KernelError
from slipstream.core.spec import Spec
from slipstream.vector.foreign import flat_spaces, make_gymnasium, name_of, raised
from slipstream.vector.foreign_copy import ForeignCopy
from slipstream.vector.forms import observation_form
from slipstream.vector.leaves import MisfitError
from slipstream.vector.loop import HOLD, RESET, RESET_KEEP_ALL
from slipstream.vector.native_infos import batch_infos
from slipstream.vector.vector_env import Episodes, Finals, StepOut, VectorEnv, blank

_TRIED = 10  # steps of a copy before anything else is done with it
LONGEST_LOG = 10_000  # steps of an episode that are kept to be taken again


class GymnasiumVectorEnv(VectorEnv):
    """Copies of a foreign environment.

    Every episode is reset with a seed made from (member's seed, index within the member, episode),
    so a trajectory does not depend on its neighbours. Such environments cannot be saved: what is
    kept is the episode's number and its actions, which a resumed copy takes again. It stands where
    it stood if the environment is deterministic; where it does not, it begins a fresh episode.

    Args:
        env: as for `make_gymnasium`.
        seeds: uint64 [E], the seed of each copy's member.
        indices: uint64 [E], each copy's index within its member.
        kwargs: keyword arguments of the environment.
        at_end: RESET, RESET_KEEP_ALL or HOLD of `loop.py`.
        limit: steps after which an episode is cut, besides the environment's own limit.

    Raises:
        ConfigError, ResourceError, KernelError: it cannot be made, or breaks Gymnasium's interface.
    """

    backend = "serial"

    def __init__(
        self,
        env: Any,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        *,
        kwargs: Mapping[str, Any] | None = None,
        at_end: int = RESET,
        limit: int | None = None,
    ) -> None:
        self.env_id, self._source = name_of(env), env
        self.num_envs = len(seeds)
        self.envs: list[Any] = []
        try:
            self._make(kwargs)
        except BaseException:
            self.close()
            raise
        self._seeds, self._indices = seeds.copy(), indices.copy()
        self._episode = np.zeros(self.num_envs, np.uint64)
        self._held = [False] * self.num_envs
        self._copies = [ForeignCopy(one, self.env_id, e, limit) for e, one in enumerate(self.envs)]
        self._at_end = at_end
        self._finals: list[tuple[NDArray[Any], int, int]] = []
        self._episodes: list[tuple[int, int, float, int]] = []
        shape = (self.num_envs, *self.spec.observation_shape)
        self._seen = np.zeros(shape, self.spec.observation_dtype)  # the newest observations
        self._longest = log_shape(self.spec, at_end)[0]
        self._taken: list[list[Any]] = [[] for _ in range(self.num_envs)]  # actions
        leaf = self.observations.leaves[0]
        # Arrays of numbers, which need no more than to be copied into their row.
        self._only = len(self.observations.leaves) == 1 and not leaf.path and leaf.sizes is None
        self._only = self._only and len(leaf.shape) == 1 and leaf.dtype.kind == "f"
        self._form = leaf.shape, leaf.dtype
        self._first = self.actions.single  # what makes a row's one number the action

    def _make(self, kwargs: Mapping[str, Any] | None) -> None:
        """Makes the first copy, looks whether it can be used at all, then the others."""
        first = make_gymnasium(self._source, kwargs)
        self.envs.append(first)
        try:
            native, acted = first.observation_space, first.action_space
            limit = getattr(first.spec, "max_episode_steps", None)
        except (Exception, SystemExit) as error:
            raise raised(self.env_id, "its spaces", error) from error
        observation, action = flat_spaces(self.env_id, native, acted)
        spec = Spec(
            observation=observation,
            action=action,
            max_episode_steps=limit,
            native_observation=native,
            native_action=acted,
        )
        mean, std = observation_form(spec).scale()
        self.spec = replace(spec, fixed_mean=mean, fixed_std=std)
        self.envs += [make_gymnasium(self._source, kwargs) for _ in range(1, self.num_envs)]

    def try_out(self) -> None:
        """Steps the first copies a little, so that what breaks at once is said before all else."""
        out, space = blank(self), copy.deepcopy(self.envs[0].action_space)
        space.seed(0)
        self.reset_rows(out.obs)
        for t in range(_TRIED):
            drawn = [space.sample() for _ in range(self.num_envs)]
            rows = self.actions.rows(np.stack(drawn), (self.num_envs,), self.spec.action_width)
            self.step_rows(rows, out, t)

    def _write(
        self, e: int, doing: str, observation: Any, row: NDArray[Any], paid: float | None = None
    ) -> None:
        try:
            self.observations.write(observation, row)
        except MisfitError as error:
            if paid is not None:
                self._copies[e].take_back(paid)
            raise self._copies[e].misfit(doing, error) from None

    def _begin(self, e: int, obs: NDArray[Any]) -> None:
        episode = self._episode[e]
        self._episode[e] += np.uint64(1)
        self._held[e] = False
        self._taken[e] = []
        first = self._copies[e].reset(self._seeds[e], self._indices[e], episode)
        self._write(e, "reset", first, obs[e])
        self._seen[e] = obs[e]

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        self._finals, self._episodes = [], []
        for e in range(self.num_envs):
            self._begin(e, obs)

    def begin(
        self,
        copies: NDArray[np.int64],
        episodes: NDArray[np.int64],
        seed: int,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        for e, j in zip(copies.tolist(), episodes.tolist(), strict=True):
            self._seeds[e], self._indices[e], self._episode[e] = seed % 2**64, j, 0
            self._begin(e, obs)

    def step_rows(self, actions: NDArray[Any], out: StepOut, t: int = 0) -> None:
        obs, only, shape, dtype = out.obs, self._only, *self._form
        reward, held, taken, first = out.reward, self._held, self._taken, self._first
        out.valid[:] = True
        out.terminated[:] = out.truncated[:] = False
        for e, action in enumerate(self._natives(actions)):
            if held[e]:
                reward[e] = 0.0
                continue
            copy = self._copies[e]
            seen, paid, terminated, truncated = copy.step(action, actions, e, t)
            if only and type(seen) is np.ndarray and seen.dtype == dtype and seen.shape == shape:
                obs[e] = seen
            else:
                self._write(e, "step", seen, obs[e], paid)
            if len(taken[e]) < self._longest:
                taken[e].append(action if first is not None else actions[e].copy())
            reward[e] = paid
            if terminated or truncated:
                out.terminated[e], out.truncated[e] = terminated, truncated
                self._end(e, t, terminated, out)
        if only and not _finite(obs):
            self._name_bad(out)
        self._seen[...] = obs

    def _natives(self, rows: NDArray[Any]) -> list[Any]:
        """Actions as the environment takes them, one for each copy."""
        first = self._first
        if first is None:
            return [self.actions.native(row) for row in rows]
        numbers: list[Any] = rows[:, 0].tolist()
        return [n + first for n in numbers] if first else numbers

    def _end(self, e: int, t: int, terminated: bool, out: StepOut) -> None:
        """An episode is over: what it leaves, and the next one."""
        copy = self._copies[e]
        if not _finite(out.obs[e]):
            self._name_bad(out)
        if self._at_end == RESET_KEEP_ALL or (self._at_end == RESET and not terminated):
            self._finals.append((out.obs[e].copy(), t, e))
        self._episodes.append((t, e, copy.ret, copy.length))
        if self._at_end == HOLD:
            self._held[e] = True
        else:
            self._begin(e, out.obs)

    def _name_bad(self, out: StepOut) -> None:
        """Raises where a copy's observation holds NaN or infinity."""
        for e, one in enumerate(self._copies):
            if not np.isfinite(out.obs[e]).all():
                one.take_back(float(out.reward[e]))
                raise one.misfit("step", MisfitError("that holds NaN or infinity"))

    def infos(self) -> dict[str, Any]:
        told = [(e, one.info) for e, one in enumerate(self._copies) if one.info]
        return batch_infos(told, self.num_envs)

    def drain_finals(self) -> Finals:
        rows, self._finals = self._finals, []
        obs = np.zeros((len(rows), *self.spec.observation_shape), self.spec.observation_dtype)
        for i, row in enumerate(rows):
            obs[i] = row[0]
        return Finals(obs, np.array([row[1:] for row in rows], np.int64).reshape(-1, 2))

    def drain_episodes(self) -> Episodes:
        rows, self._episodes = np.array(self._episodes, np.float64).reshape(-1, 4), []
        places = rows[:, :2].astype(np.int64)
        return Episodes(
            places[:, 0], places[:, 1], rows[:, 2].copy(), rows[:, 3].astype(np.int64), {}
        )

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Number, length, return and newest observation of each copy's episode, and its actions.

        `actions` is [E, longest, K], zero beyond a copy's length.
        """
        length = np.array([copy.length for copy in self._copies], np.int64)
        log = np.zeros((self.num_envs, *log_shape(self.spec, self._at_end)), log_dtype(self.spec))
        for e, taken in enumerate(self._taken):
            if taken and self._first is not None:
                log[e, : len(taken), 0] = np.array(taken) - self._first
            elif taken:
                log[e, : len(taken)] = taken
        return {
            "episode": self._episode.copy(),
            "length": length,
            "ret": np.array([copy.ret for copy in self._copies]),
            "seen": self._seen.copy(),
            "actions": log,
        }

    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Takes the actions of each copy's episode again; `fresh` counts those that went astray."""
        self._finals, self._episodes = [], []
        self.fresh = 0
        for e in range(self.num_envs):
            self._episode[e] = state["episode"][e]
            if not self._replay(e, state, obs):
                self._episode[e] = state["episode"][e]
                self._begin(e, obs)
                self.fresh += 1

    def _replay(self, e: int, state: Mapping[str, NDArray[Any]], obs: NDArray[Any]) -> bool:
        """Whether copy e stands where the state says once it has taken its actions again."""
        actions = state.get("actions")  # older checkpoints have none
        if actions is None or not state["length"][e] <= actions.shape[1] or not self._episode[e]:
            return False
        self._episode[e] -= np.uint64(1)
        try:
            self._begin(e, obs)
            for row in actions[e, : int(state["length"][e])].astype(self.spec.action_dtype):
                native = self.actions.native(row)
                seen, _, *ends = self._copies[e].step(native, row[None], 0, 0)
                self._write(e, "step", seen, obs[e])
                self._taken[e].append(native if self._first is not None else row)
                if any(ends):
                    return False  # the episode went on when it was saved
            self._seen[e] = obs[e]
        except KernelError:
            return False
        same_return = self._copies[e].ret == state["ret"][e]
        return bool(same_return and np.array_equal(obs[e], state["seen"][e]))

    def close(self) -> None:
        for env in self.envs:
            try:
                env.close()
            except (Exception, SystemExit) as error:  # nothing is lost by it, so the work goes on
                print(f"gym:{self.env_id}: `close` raised {error!r:.200}", file=sys.stderr)


def log_shape(spec: Spec, at_end: int) -> tuple[int, int]:
    """Actions of one copy's episode that are kept, [longest, K]; none in evaluations."""
    longest = min(spec.max_episode_steps or LONGEST_LOG, LONGEST_LOG)
    return (0 if at_end == HOLD else longest), spec.action_width


def log_dtype(spec: Spec) -> np.dtype[Any]:
    """The smallest that holds an action's numbers; rows count from 0."""
    return np.min_scalar_type(max(spec.components)) if spec.components else spec.action_dtype


def _finite(numbers: NDArray[Any]) -> bool:
    """Whether all are; one product is a tenth of the time of looking at each, but may overflow."""
    flat = numbers.reshape(-1)
    return math.isfinite(flat.dot(flat)) or bool(np.isfinite(flat).all())
