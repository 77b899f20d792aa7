"""Copies of a Gymnasium environment behind a `FaceCopies`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from slipstream.adapters.batch import FaceCopies, FaceStep
from slipstream.adapters.errors import Theirs
from slipstream.core.errors import KernelError
from slipstream.core.spec import Spec
from slipstream.vector.foreign import Wrapped, flat_spaces, name_of
from slipstream.vector.forms import action_form
from slipstream.vector.leaves import as_array
from slipstream.vector.native import DISABLED, NEXT_STEP, SAME_STEP, NativeEnv, native_env
from slipstream.vector.process.faults import FaultPolicy
from slipstream.vector.vector_env import Episodes

AT_END = {
    AutoresetMode.NEXT_STEP: NEXT_STEP,
    AutoresetMode.SAME_STEP: SAME_STEP,
    AutoresetMode.DISABLED: DISABLED,
}
"""What `native_env` calls the modes."""
HANG_SECONDS = 300.0  # of one call of a copy; Gymnasium would wait for ever


class ForeignBatch(FaceCopies):
    """E copies of a Gymnasium environment, in worker processes or in this one.

    Args:
        env: the copies, whose `at_end` is the mode's.
        name: of the environment, for messages.
        autoreset: what follows an episode's end.
        seed: copy e begins the stream of seed + e where its first reset has no seed.
    """

    apart = True

    def __init__(self, env: NativeEnv, name: str, autoreset: AutoresetMode, seed: int = 0) -> None:
        observation, action = flat_spaces(name, env.observation_space, env.action_space)
        spec = Spec(
            observation,
            action,
            max_episode_steps=getattr(env.spec, "max_episode_steps", None),
            native_observation=env.observation_space,
            native_action=env.action_space,
        )
        super().__init__(name, spec, action_form(spec), env.num_envs, autoreset)
        self.env = env
        self._first: list[int | None] = [seed + e for e in range(env.num_envs)]
        self._ret, self._length = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)

    def reset(self, seeds: Sequence[int | None], selected: NDArray[np.bool_] | None = None) -> Any:
        self.check_open()
        chosen = np.ones(self.num_envs, np.bool_) if selected is None else selected
        pairs = zip(seeds, self._first, strict=True)
        with Theirs():
            self.env.reset([own if one is None else one for one, own in pairs], None, selected)
        for e in np.flatnonzero(chosen).tolist():
            self._first[e] = None
        self._ret[chosen], self._length[chosen] = 0.0, 0
        self._waiting = self._waiting & ~chosen
        self._begun = self._begun | chosen
        return self.env.observation()

    def step(self, actions: Any, copies: NDArray[np.int64] | None = None) -> FaceStep:
        if copies is not None:
            self.send(actions, copies)
            return self.recv(len(copies), copies)[1]
        self.check_ready()
        natives = self._natives(actions)
        with Theirs():
            self.env.step(natives)
        return self._outcome(np.arange(self.num_envs))

    def infos(self) -> dict[str, Any]:
        return self.env.infos()

    def said(self, copies: NDArray[np.int64]) -> list[dict[str, Any]]:
        infos = self.env.info_list()
        return [infos[copy] for copy in copies.tolist()]

    def send(self, actions: Any, copies: NDArray[np.int64]) -> None:
        chosen = np.zeros(self.num_envs, np.bool_)
        chosen[copies] = True
        self.check_ready(chosen)
        self.env.send(self._natives(actions, copies), copies)

    def _natives(self, actions: Any, copies: NDArray[np.int64] | None = None) -> Any:
        """Checked actions as environments take them; numbers of a Box in its own dtype."""
        rows, leaf = self.rows(actions, copies), self._form.leaf
        if self._form.start is not None:
            return self._form.native(rows)
        return as_array(actions).astype(leaf.dtype).reshape(len(rows), *leaf.shape)

    def recv(
        self, count: int, order: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], FaceStep]:
        """`order`: the same copies as they shall be listed; as they come unless given."""
        self.check_open()
        with Theirs():
            ready = self.env.recv(count)
        if order is not None:
            ready = order
        return ready, self._outcome(ready)

    @property
    def under_way(self) -> NDArray[np.bool_]:
        return self.env.under_way

    def settle(self) -> None:
        while left := int(self.under_way.sum()):
            try:
                self.env.recv(left)
            except KernelError:  # of a copy that is to be begun again
                if int(self.under_way.sum()) == left:
                    raise

    def _outcome(self, copies: NDArray[np.int64]) -> FaceStep:
        """What came of the step of these copies."""
        arrays = self.env.arrays
        reward, valid = arrays["reward"][copies], arrays["valid"][copies]
        terminated, truncated = arrays["terminated"][copies], arrays["truncated"][copies]
        over = terminated | truncated
        self._waiting[copies] = over
        self._ret[copies] += reward
        self._length[copies] += valid
        ended = copies[over]
        lost = arrays["lost"][ended]
        episodes = Episodes(
            np.zeros(len(ended), np.int64),
            ended,
            self._ret[ended],
            self._length[ended],
            {},
            lost if lost.any() else None,
        )
        self._ret[ended], self._length[ended] = 0.0, 0
        return FaceStep(
            self.env.observation_at(copies),
            reward.astype(np.float32),
            terminated,
            truncated,
            ended,
            self.env.last_at(ended),
            episodes,
            None if valid.all() else valid,
        )

    def end(self) -> None:
        self.env.close()


def make_foreign_batch(
    make: str | Wrapped | Callable[..., Any],
    num_envs: int,
    *,
    kwargs: Mapping[str, Any] | None = None,
    autoreset: AutoresetMode,
    backend: str = "process",
    workers: int | None = None,
    seed: int = 0,
    on_fault: str = "raise",
    hang_seconds: float = HANG_SECONDS,
) -> ForeignBatch:
    """Copies of a Gymnasium environment.

    Args:
        make: its id, or makes a copy; called with `kwargs`.
        num_envs: E.
        autoreset: what follows an episode's end.
        backend: process (auto) or serial.
        workers: processes; the machine's cores unless given.
        seed: copy e begins the stream of seed + e.
        on_fault: "raise" what a copy raises, or "restart" it alone: its episode ends truncated.
        hang_seconds: of one call of a copy, after which it is given up.

    Raises:
        ConfigError, ResourceError, KernelError: they cannot be made.
    """
    env = native_env(
        [make] * num_envs,
        backend="process" if backend == "auto" else backend,
        at_end=AT_END[autoreset],
        workers=workers,
        policy=FaultPolicy(on_fault, hang_seconds),  # type: ignore[arg-type]
        kwargs=kwargs,
    )
    try:
        return ForeignBatch(env, name_of(make), autoreset, seed)
    except BaseException:
        env.close()
        raise
