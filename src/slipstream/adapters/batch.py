"""Copies of an environment as the faces step them: any autoreset, native actions, own arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from slipstream.adapters.errors import ActionError, ClosedError, NoActionsError, UnreadyError
from slipstream.core.errors import ConfigError
from slipstream.core.spec import Spec
from slipstream.vector.forms import ActionForm
from slipstream.vector.leaves import MisfitError, words
from slipstream.vector.vector_env import Episodes

_ROUNDING = 1e-5  # relative; how far rounding may carry a number beyond its bound


class FaceStep(NamedTuple):
    """One step of all copies, or of some; the arrays are the caller's.

    Attributes:
        obs: [n, ...] of the copies that were stepped, as the environment shows it.
        reward: float32 [n].
        terminated, truncated: bool [n].
        ended: int64 [k], the copies whose episode ended at this step.
        finals: [k, ...], their last observations.
        episodes: statistics of them, in the order of `ended`.
        valid: bool [n], false where the transition is not real; None where all are.

    Where P > 1 players act, observations and rewards are ``[n, P, ...]``.
    """

    obs: Any
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    ended: NDArray[np.int64]
    finals: Any
    episodes: Episodes
    valid: NDArray[np.bool_] | None


class FaceCopies(ABC):
    """E copies.

    Args:
        name: of the environment, for messages.
        spec: of it.
        actions: between its actions and rows of numbers.
        num_envs: E.
        autoreset: what follows an episode's end.

    Attributes:
        observation_space, action_space: of one copy, its own; the caller's.
        mask: bool [E, n], the choices allowed now; None where all always are.
        apart: `send` and `recv` step copies at their own pace.
    """

    mask: NDArray[np.bool_] | None = None
    apart = False

    def __init__(
        self, name: str, spec: Spec, actions: ActionForm, num_envs: int, autoreset: AutoresetMode
    ) -> None:
        self.name, self.spec, self.num_envs, self.autoreset = name, spec, num_envs, autoreset
        # Clients change them: CleanRL's SAC sets another dtype.
        self.observation_space = deepcopy(spec.native_observation or spec.observation)
        self.action_space = deepcopy(spec.native_action or spec.action)
        self._form = actions
        self._players = () if spec.players == 1 else (spec.players,)
        self._waiting = np.zeros(num_envs, np.bool_)  # ended, and not begun again
        self._begun = np.zeros(num_envs, np.bool_)
        self.closed = False

    @abstractmethod
    def reset(self, seeds: Sequence[int | None], selected: NDArray[np.bool_] | None = None) -> Any:
        """Begins new episodes.

        Args:
            seeds: of each copy: the first episode of its random stream begins; None: the next one
                of the stream that it has.
            selected: bool [E], which copies; all of them unless given.

        Returns:
            Observations of all copies; those that were not selected show what they did before.
        """

    @abstractmethod
    def step(self, actions: Any, copies: NDArray[np.int64] | None = None) -> FaceStep:
        """Steps every copy, or some of them.

        Args:
            actions: one for each copy that is stepped, the batch axis first.
            copies: int64 [n], which are stepped, in the order of the actions and of the outcome.

        Raises:
            ActionError: wrong number, shape or dtype, or beyond the space; nothing was stepped.
            UnreadyError: a copy was never reset, or has ended and waits for a reset.
        """

    def infos(self) -> dict[str, Any]:
        """What copies said besides at the last step, in Gymnasium's form; kernels say nothing."""
        return {}

    def said(self, copies: NDArray[np.int64]) -> list[dict[str, Any]]:
        """The same of some copies, a dict for each; the caller's."""
        return [{} for _ in copies]

    def send(self, actions: Any, copies: NDArray[np.int64]) -> None:
        """Begins a step of some copies, where they are stepped `apart`; raises as `step` does."""
        raise NotImplementedError

    def recv(self, count: int) -> tuple[NDArray[np.int64], FaceStep]:
        """The first so many copies that are ready, and what came of their steps."""
        raise NotImplementedError

    @property
    def under_way(self) -> NDArray[np.bool_]:
        """Copies that were sent an action and not received since, bool [E]."""
        return np.zeros(self.num_envs, np.bool_)

    def settle(self) -> None:  # noqa: B027  (nothing is, unless they step apart)
        """Waits for what is under way, and forgets what comes of it."""

    @abstractmethod
    def end(self) -> None:
        """Closes the copies."""

    def close(self) -> None:
        """Ends the copies; may be called again."""
        if not self.closed:
            self.closed = True
            self.end()

    def __del__(self) -> None:
        """Closes what its owner forgot to close, as ElegantRL does."""
        with suppress(Exception):
            self.close()

    def check_open(self) -> None:
        """Refuses what was closed."""
        if self.closed:
            raise ClosedError(f"{self.name} was closed; make it again to use it.")

    def check_ready(self, chosen: NDArray[np.bool_] | None = None) -> None:
        """Refuses to step what has not begun an episode; `chosen` bool [E] are stepped."""
        self.check_open()
        if not self._begun.all():
            missing = ~self._begun if chosen is None else chosen & ~self._begun
            who = np.flatnonzero(missing).tolist()
            which = "" if len(who) == self.num_envs else f" (copies {few(who)} were not)"
            if who:
                raise UnreadyError(f"{self.name}: call `reset` before the first `step`{which}.")
        if self.autoreset is AutoresetMode.DISABLED and self._waiting.any():
            over = self._waiting if chosen is None else self._waiting & chosen
            if over.any():
                raise UnreadyError(
                    f"{self.name}: the episodes of copies {few(np.flatnonzero(over).tolist())} "
                    "have ended, and with autoreset disabled nobody begins them again: reset with "
                    "options={'reset_mask': terminations | truncations} before the next step."
                )

    def rows(self, actions: Any, copies: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """Actions as rows [n, K], checked."""
        n = self.num_envs if copies is None else len(copies)
        if np.ndim(actions) == 0 and not isinstance(actions, Mapping):
            raise NoActionsError(
                f"{self.name}: `step` takes one action for each of {n} copies, and was given "
                f"{actions!r:.60}."
            )
        try:
            rows = self._form.rows(actions, (n, *self._players), self.spec.action_width)
        except MisfitError as error:
            raise ActionError(f"{self.name}: `step` of {n} copies was given {error}.") from None
        if isinstance(self.spec.action, spaces.Box):
            self._check_bounds(rows, self.spec.action)
        if self.mask is not None:
            self._check_allowed(rows, copies)
        return rows

    def _check_allowed(self, rows: NDArray[Any], copies: NDArray[np.int64] | None) -> None:
        assert self.mask is not None
        at = slice(None) if copies is None else copies
        allowed = np.take_along_axis(self.mask[at], self._form.places(rows), axis=-1)
        allowed[self._waiting[at]] = True  # the action is ignored
        if not allowed.all():
            place = int(np.argwhere(~allowed)[0, 0])
            copy = place if copies is None else int(copies[place])
            raise ActionError(
                f"{self.name}: a choice that is not allowed now, the first in copy {copy}; "
                "choose among those that the action mask allows."
            )

    def _check_bounds(self, rows: NDArray[Any], space: spaces.Box) -> None:
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        slack = _ROUNDING * (1.0 + np.minimum(np.abs(low), np.abs(high)))
        bad = (rows < low - slack) | (rows > high + slack)
        if bad.any():
            place = tuple(int(i) for i in np.argwhere(bad)[0])
            raise ActionError(
                f"{self.name}: `step` was given {rows[place]} at {place}, outside the action "
                f"space ({words(self._form.leaf)} from {low[place[-1]]} to "
                f"{high[place[-1]]}). Clip actions to it: np.clip(actions, space.low, space.high), "
                "or Gymnasium's ClipAction."
            )


def few(numbers: Sequence[int]) -> str:
    """The first few of some numbers."""
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown}, ..." if len(numbers) > 8 else shown


def check_one_player(batch: FaceCopies, stepping: str) -> None:
    """Refuses a game in a face for one player; says which of its own opponents may be given."""
    if batch.spec.players == 1:
        return
    module = getattr(getattr(getattr(batch, "env", None), "kernel", None), "module", None)
    bots = getattr(module, "OPPONENTS", {}).get("opponents")
    batch.close()
    remedy = "it has no players of its own, train it by self-play (docs/self-play.md)"
    if bots:
        remedy = f"give its own players, opponents={bots}"
    raise ConfigError(
        f"{batch.name} has {batch.spec.players} players, and {stepping} one: {remedy}; or use the "
        "PettingZoo face (slipstream.adapters.pettingzoo), in which all of them act."
    )
