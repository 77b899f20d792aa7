"""Between what the network says and what the environment takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError

Head = Literal["logits", "q", "gaussian", "squashed_gaussian", "tanh"]
_DISCRETE_HEADS: tuple[Head, ...] = ("logits", "q")
_BOX_HEADS: tuple[Head, ...] = ("gaussian", "squashed_gaussian", "tanh")


class ActionMap:
    """How a network's head becomes a distribution, and a sampled action the environment's.

    A policy works in its own units: choices 0..n-1, or for a Box numbers of which [-1, 1] covers a
    bounded component: they are clipped there and mapped affinely to the bounds. Unbounded
    components pass as they are. The rollout keeps the policy's own action, from which log_prob can
    be recomputed.

    What the network's outputs mean is the head. Of choices: `logits` of a categorical
    distribution, or the value of each choice (`q`). Of a box: the mean of a `gaussian`, whose
    deviation is a weight of its own; or of a `squashed_gaussian`, means and after them log
    deviations [2 K], whose tanh is the action in [-1, 1]; or the `tanh` of K numbers is the action.

    Args:
        space: of the environment's rows.
        head: `logits` or `gaussian` unless given.

    Attributes:
        kind: ``discrete``, ``multi_discrete`` or ``box``.
        head: as above.
        sizes: choices of each component (discrete kinds), or () for a Box.
        width: K numbers of one action.
        head_width: numbers the network puts out for it; also the number of noise draws of one
            action.
    """

    def __init__(self, space: gymnasium.Space[Any], head: Head | None = None) -> None:
        self.sizes: tuple[int, ...] = ()
        nothing = np.zeros(0, np.float32)
        self._half = self._middle = self._low = self._high = nothing
        self._start: NDArray[np.int64] = np.zeros(0, np.int64)
        if isinstance(space, gymnasium.spaces.Discrete):
            self.kind, self.sizes = "discrete", (int(space.n),)
            self._start = np.array([space.start], np.int64)
        elif isinstance(space, gymnasium.spaces.MultiDiscrete):
            self.kind, self.sizes = "multi_discrete", tuple(int(n) for n in space.nvec.ravel())
            self._start = np.asarray(space.start, np.int64).ravel()
        elif isinstance(space, gymnasium.spaces.Box):
            self.kind = "box"
            low, high = space.low.ravel().astype(np.float64), space.high.ravel().astype(np.float64)
            bounded = np.isfinite(low) & np.isfinite(high)
            self._low = low.astype(np.float32)
            self._high = high.astype(np.float32)
            with np.errstate(invalid="ignore"):
                half, middle = (high - low) / 2, (high + low) / 2
            self._half = np.where(bounded, half, 1.0).astype(np.float32)
            self._middle = np.where(bounded, middle, 0.0).astype(np.float32)
        else:
            raise ConfigError(
                f"Policies act in Discrete, MultiDiscrete and Box spaces; this environment has "
                f"{space}. Wrap the environment so that its action is one of these."
            )
        self.width = len(self.sizes) if self.sizes else len(self._low)
        possible = _DISCRETE_HEADS if self.sizes else _BOX_HEADS
        self.head: Head = head or possible[0]
        if self.head not in possible:
            raise ConfigError(
                f"A policy's head is one of {', '.join(get_args(Head))}; {self.head!r} does not "
                f"act in a {self.kind} space, which takes {' or '.join(possible)}."
            )
        if self.squashed and not np.isfinite([self._low, self._high]).all():
            raise ConfigError(
                f"The head {self.head} fills the bounds of its actions, and {space} has none in "
                "some component: give the environment finite bounds, or use the head gaussian."
            )
        numbers = 2 if self.head == "squashed_gaussian" else 1
        self.head_width = sum(self.sizes) if self.sizes else self.width * numbers

    @property
    def continuous(self) -> bool:
        """Whether actions are real numbers, with normal noise; else choices, with Gumbel noise."""
        return self.kind == "box"

    @property
    def squashed(self) -> bool:
        """Whether a tanh brings the output into [-1, 1]."""
        return self.head in ("squashed_gaussian", "tanh")

    @property
    def is_stochastic(self) -> bool:
        """Whether the head is a distribution; else there is one action and nothing to draw."""
        return self.head not in ("q", "tanh")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of action rows: float32 for a Box, else int64."""
        return np.dtype(np.float32 if self.continuous else np.int64)

    def to_environment(self, action: NDArray[Any], out: NDArray[Any]) -> None:
        """Writes what the environment receives, [R, K], for the policy's actions [R, K]."""
        if self.continuous:
            np.multiply(action, self._half, out=out)
            out += self._middle
            np.clip(out, self._low, self._high, out=out)
        else:
            np.add(action, self._start, out=out)

    def explore(
        self,
        out: NDArray[Any],
        amount: float,
        rng: np.random.Generator,
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add exploration to the best actions of a head without a distribution, in place.

        Args:
            out: [R, K], as `to_environment` writes them.
            amount: share of uniformly random choices, or standard deviation of normal noise in
                halves of the range of a Box.
            rng: source of the random numbers.
            mask: bool [R, choices] of allowed choices.
        """
        if self.continuous:
            out += amount * self._half * rng.standard_normal(out.shape, np.float32)
            np.clip(out, self._low, self._high, out=out)
            return
        chance = rng.random((len(out), self.head_width))
        chance = chance if mask is None else np.where(mask, chance, -1.0)
        random = chance.argmax(axis=1)[:, None] + self._start
        np.copyto(out, random, where=rng.random((len(out), 1)) < amount)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Sizes and starts of choices, half, middle, low, high of a box, for compiled loops."""
        sizes = np.array(self.sizes, np.int64)
        return sizes, self._start, self._half, self._middle, self._low, self._high

    def description(self) -> dict[str, Any]:
        """JSON-able form, enough to rebuild the space."""
        if self.continuous:
            return {"kind": self.kind, "low": _numbers(self._low), "high": _numbers(self._high)}
        return {"kind": self.kind, "sizes": list(self.sizes), "start": self._start.tolist()}

    @staticmethod
    def space(description: Mapping[str, Any]) -> gymnasium.Space[Any]:
        """The action space of a `description`."""
        kind = description["kind"]
        if kind == "box":
            low = np.array([float(x) for x in description["low"]], np.float32)
            high = np.array([float(x) for x in description["high"]], np.float32)
            return gymnasium.spaces.Box(low, high, dtype=np.float32)
        sizes, start = description["sizes"], description["start"]
        if kind == "discrete":
            return gymnasium.spaces.Discrete(sizes[0], start=start[0])
        return gymnasium.spaces.MultiDiscrete(sizes, start=start)


def _numbers(values: NDArray[np.float32]) -> list[float | str]:
    """Infinities as strings: JSON has none, and float("-inf") reads them back."""
    return [x if np.isfinite(x) else str(x) for x in values.tolist()]
