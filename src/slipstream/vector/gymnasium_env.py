"""Any Gymnasium environment, its copies stepped one after another in this process."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.spec import Metric, Spec
from slipstream.vector.foreign import (
    flat_spaces,
    make_gymnasium,
    name_of,
    raised,
    refuse_shared,
    same_spaces,
    short,
    theirs,
)
from slipstream.vector.foreign_copy import PULSES, ForeignCopy, gone_astray, step_each
from slipstream.vector.forms import observation_form
from slipstream.vector.infos import batch_infos, episode_numbers
from slipstream.vector.leaves import MisfitError
from slipstream.vector.loop import HOLD, RESET, RESET_KEEP_ALL
from slipstream.vector.process.layout import AT, BEAT, WORDS
from slipstream.vector.steps import episodes_of, finals_of
from slipstream.vector.vector_env import Episodes, Finals, StepOut, VectorEnv

_NOT_FINITE = "that holds NaN or infinity"
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
        metrics: names of numbers in the info of an episode's last step, see `episode_numbers`.

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
        metrics: Sequence[str] = (),
    ) -> None:
        self._hand: Any = PULSES.pop() if PULSES else [0] * WORDS
        self.env_id, self._source = name_of(env), env
        self.num_envs = len(seeds)
        self.envs: list[Any] = []
        try:
            self._make(kwargs, metrics)
        except BaseException:
            self.close()
            raise
        self._seeds, self._indices = seeds.tolist(), indices.tolist()
        self._episode = [0] * self.num_envs
        self._held = [False] * self.num_envs
        self._copies = [ForeignCopy(one, self.env_id, e, limit) for e, one in enumerate(self.envs)]
        self._at_end = at_end
        self._finals: list[tuple[NDArray[Any], int, int]] = []
        self._episodes: list[tuple[float, ...]] = []
        self._names = [metric.name for metric in self.spec.metrics]
        shape = (self.num_envs, *self.spec.observation_shape)
        self._seen = np.zeros(shape, self.spec.observation_dtype)  # the newest observations
        self._flat = self._seen.reshape(-1)
        self._steps = 0
        longest, width = log_shape(self.spec, at_end)
        # Actions of the newest steps, in turn; they are of all copies that go on.
        self._log = np.zeros((longest, self.num_envs, width), log_dtype(self.spec))
        self._paid = [0.0] * self.num_envs
        leaf = self.observations.leaves[0]
        # Arrays of numbers, which need no more than to be copied into their row.
        self._only = len(self.observations.leaves) == 1 and not leaf.path and leaf.sizes is None
        self._only = self._only and len(leaf.shape) == 1 and leaf.dtype.kind == "f"
        self._form = leaf.shape, leaf.dtype
        if self._only and leaf.dtype == self._seen.dtype:
            for one in self._copies:
                one.show_in(self._seen[one.number])

    def _make(self, kwargs: Mapping[str, Any] | None, metrics: Sequence[str]) -> None:
        """Makes the first copy, looks whether it can be used at all, then the others."""
        first = make_gymnasium(self._source, kwargs)
        self.envs.append(first)
        try:
            native, acted = first.observation_space, first.action_space
            limit = getattr(first.spec, "max_episode_steps", None)
        except BaseException as error:
            if not theirs(error):
                raise
            raise raised(self.env_id, "its spaces", error) from error
        observation, action = flat_spaces(self.env_id, native, acted)
        spec = Spec(
            observation=observation,
            action=action,
            metrics=tuple(map(Metric, metrics)),
            max_episode_steps=limit,
            native_observation=native,
            native_action=acted,
        )
        mean, std = observation_form(spec).scale()
        self.spec = replace(spec, fixed_mean=mean, fixed_std=std)
        for number in range(1, self.num_envs):
            env = make_gymnasium(self._source, kwargs)
            refuse_shared(self.env_id, env, self.envs)
            self.envs.append(env)
            first_ones = (("observation_space", native), ("action_space", acted))
            if wrong := same_spaces(env, self.env_id, number, first_ones):
                raise ConfigError(wrong)

    def _write(self, copy: ForeignCopy, doing: str, observation: Any) -> None:
        try:
            self.observations.write(observation, self._seen[copy.number])
        except MisfitError as error:
            raise copy.misfit(doing, error) from None

    def _store(self, copy: ForeignCopy, seen: Any) -> None:
        """A step's observation that is no vector of the rows' own dtype."""
        shape, dtype = self._form
        if self._only and type(seen) is np.ndarray and seen.dtype == dtype and seen.shape == shape:
            self._seen[copy.number] = seen
        else:
            self._write(copy, "step", seen)

    def _begin(self, e: int) -> None:
        copy, episode = self._copies[e], self._episode[e]
        self._hand[AT] = e
        self._episode[e] = episode + 1
        self._held[e] = False
        first = copy.reset(self._seeds[e], self._indices[e], episode)
        if not copy.show(first):
            self._write(copy, "reset", first)
        elif not _finite(self._seen[e]):
            raise copy.misfit("reset", MisfitError(_NOT_FINITE))

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """`BEAT` is odd while copies are called."""
        self._hand[BEAT] |= 1
        try:
            yield
        finally:
            self._hand[BEAT] += 1

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        self._finals, self._episodes = [], []
        with self._calling():
            for e in range(self.num_envs):
                self._begin(e)
        obs[...] = self._seen

    def begin(
        self,
        copies: NDArray[np.int64],
        episodes: NDArray[np.int64],
        seed: int,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        with self._calling():
            for e, j in zip(copies.tolist(), episodes.tolist(), strict=True):
                self._seeds[e], self._indices[e], self._episode[e] = int(seed) % 2**64, j, 0
                self._begin(e)
                obs[e] = self._seen[e]

    def step_rows(self, actions: NDArray[Any], out: StepOut, t: int = 0) -> None:
        out.valid.fill(True)
        out.terminated.fill(False)
        out.truncated.fill(False)
        if len(self._log):
            self._log[self._steps % len(self._log)] = actions
            self._steps += 1
        stepping: Iterable[tuple[ForeignCopy, Any]]
        stepping = zip(self._copies, self.actions.natives(actions), strict=True)
        if True in self._held:
            stepping = [pair for pair in stepping if not self._held[pair[0].number]]
            self._paid[:] = [0.0] * self.num_envs

        def ended(copy: ForeignCopy, terminated: bool, truncated: bool) -> None:
            out.terminated[copy.number], out.truncated[copy.number] = terminated, truncated
            self._end(copy, t, terminated)

        try:
            with self._calling():
                step_each(stepping, actions, self._paid, self._hand, t, self._store, ended)
        except BaseException as error:
            at = self._hand[AT]
            found = self._copies[at].explained(error, actions[at].tolist(), t)
            if found is error:
                raise
            raise found from error
        if self._only and not _finite(self._flat):
            self._name_bad()
        out.reward[...] = self._paid
        out.obs[...] = self._seen

    def _end(self, copy: ForeignCopy, t: int, terminated: bool) -> None:
        """An episode is over: what it leaves, and the next one."""
        e = copy.number
        if self._only and not _finite(self._seen[e]):
            self._name_bad()
        if self._at_end == RESET_KEEP_ALL or (self._at_end == RESET and not terminated):
            self._finals.append((self._seen[e].copy(), t, e))
        own = episode_numbers(copy.info, self._names) if self._names else ()
        self._episodes.append((t, e, copy.ret, copy.length, *own))
        if self._at_end == HOLD:
            self._held[e] = True
        else:
            self._begin(e)

    def _name_bad(self) -> None:
        """Raises where a copy's observation holds NaN or infinity."""
        for e, one in enumerate(self._copies):
            if not np.isfinite(self._seen[e]).all():
                one.take_back(self._paid[e])
                raise one.misfit("step", MisfitError(_NOT_FINITE))

    def infos(self) -> dict[str, Any]:
        told = [(e, one.info) for e, one in enumerate(self._copies) if one.info]
        return batch_infos(told, self.num_envs)

    def drain_finals(self) -> Finals:
        kept, self._finals = self._finals, []
        return finals_of(self.spec, kept)

    def drain_episodes(self) -> Episodes:
        ended, self._episodes = self._episodes, []
        return episodes_of(self.spec, ended)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Number, length, return and newest observation of each copy's episode, and its actions.

        `actions` is [E, longest, K], zero beyond a copy's length.
        """
        length = np.array([copy.length for copy in self._copies], np.int64)
        log = np.zeros((self.num_envs, *log_shape(self.spec, self._at_end)), log_dtype(self.spec))
        for e, n in enumerate(length.tolist()):
            if n <= len(self._log):
                log[e, :n] = self._log[self._turns(n), e]
        return {
            "episode": np.array(self._episode, np.uint64),
            "length": length,
            "ret": np.array([copy.ret for copy in self._copies]),
            "seen": self._seen.copy(),
            "actions": log,
        }

    def _turns(self, length: int) -> NDArray[np.int64]:
        """Where the newest steps' actions are."""
        return np.arange(self._steps - length, self._steps) % max(1, len(self._log))

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
            self._episode[e] = episode = int(state["episode"][e])
            if not self._replay(e, state):
                self._episode[e] = episode
                self._begin(e)
                self.fresh += 1
        obs[...] = self._seen

    def _replay(self, e: int, state: Mapping[str, NDArray[Any]]) -> bool:
        """Whether copy e stands where the state says once it has taken its actions again."""
        if "actions" not in state or not self._episode[e]:  # older checkpoints have none
            return False
        actions, length = state["actions"], int(state["length"][e])
        if length > actions.shape[1]:
            return False
        self._episode[e] -= 1
        copy, taken = self._copies[e], actions[e, :length].astype(self.spec.action_dtype)
        natives = self.actions.natives(taken)
        try:
            self._begin(e)
            step_each(
                ((copy, native) for native in natives),
                np.zeros((self.num_envs, 1)), self._paid, self._hand, 0, self._store, gone_astray,
            )  # fmt: skip
        except BaseException as error:
            if not theirs(error):
                raise
            return False
        if length <= len(self._log):
            self._log[self._turns(length), e] = taken
        same_return = copy.ret == state["ret"][e]
        return bool(same_return and np.array_equal(self._seen[e], state["seen"][e]))

    def close(self) -> None:
        if not isinstance(self._hand, list):  # words that a parent watches
            PULSES.append(self._hand)
            self._hand = [0] * WORDS
        for env in self.envs:
            try:
                env.close()
            except BaseException as error:  # nothing is lost by it, so the work goes on
                if not theirs(error):
                    raise
                what = f"{type(error).__name__}: {short(error)}"
                print(f"gym:{self.env_id}: `close` raised {what}", file=sys.stderr)


def log_shape(spec: Spec, at_end: int) -> tuple[int, int]:
    """Actions of one copy's episode that are kept, [longest, K]; none in evaluations."""
    longest = min(spec.max_episode_steps or LONGEST_LOG, LONGEST_LOG)
    return (0 if at_end == HOLD else longest), spec.action_width


def log_dtype(spec: Spec) -> np.dtype[Any]:
    """The smallest that holds an action's numbers; rows count from 0."""
    return np.min_scalar_type(max(spec.components)) if spec.components else spec.action_dtype


def _finite(flat: NDArray[Any]) -> bool:
    """Whether all are; one product is a tenth of the time of looking at each, but may overflow."""
    return math.isfinite(flat.dot(flat)) or bool(np.isfinite(flat).all())
