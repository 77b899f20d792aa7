"""Mapping between network outputs and the environment's actions."""

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
    """Maps a network's head to a distribution, and policy actions to environment actions.

    A policy works in its own units: discrete actions 0..n-1, or continuous actions of which [-1, 1]
    covers a bounded component. Those are clipped to [-1, 1] and mapped affinely to the bounds.
    Unbounded components pass unchanged. The rollout stores the policy's own action, from which
    log_prob can be recomputed.

    The head defines the meaning of the network's outputs. Discrete actions: `logits` of a
    categorical distribution, or `q`, the value of each action. Box actions: the mean of a
    `gaussian`, whose standard deviation is a separate weight; `squashed_gaussian`, means and log
    standard deviations [2 K] of a variable whose tanh is the action in [-1, 1]; or `tanh`, the
    action is the tanh of K outputs.

    Args:
        space: Action space of the environment's rows.
        head: Type of head; by default `logits` or `gaussian`.

    Attributes:
        kind: ``discrete``, ``multi_discrete`` or ``box``.
        head: As above.
        sizes: Number of values of each discrete component, or () for a Box.
        width: K, numbers per action.
        head_width: Network outputs per action; also the number of noise values per action.
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
                f"The head {self.head} needs bounded actions, and {space} is unbounded in some "
                "component: give the environment finite bounds, or use the head gaussian."
            )
        numbers = 2 if self.head == "squashed_gaussian" else 1
        self.head_width = sum(self.sizes) if self.sizes else self.width * numbers

    @property
    def continuous(self) -> bool:
        """True for continuous actions (normal noise), False for discrete ones (Gumbel noise)."""
        return self.kind == "box"

    @property
    def squashed(self) -> bool:
        """True if a tanh maps the output to [-1, 1]."""
        return self.head in ("squashed_gaussian", "tanh")

    @property
    def is_stochastic(self) -> bool:
        """True if the head is a distribution; otherwise there is one action per state."""
        return self.head not in ("q", "tanh")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of action rows: float32 for a Box, else int64."""
        return np.dtype(np.float32 if self.continuous else np.int64)

    def to_environment(self, action: NDArray[Any], out: NDArray[Any]) -> None:
        """Map the policy's actions [R, K] to environment actions [R, K], written to `out`."""
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
        """Add exploration to the greedy actions of a head without a distribution, in place.

        Args:
            out: [R, K], from `to_environment`.
            amount: Fraction of uniformly random discrete actions, or standard deviation of normal
                noise in halves of the range of a Box.
            rng: Source of random numbers.
            mask: bool [R, mask_size] of allowed actions.
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
        """Sizes, start, half, middle, low and high for compiled loops."""
        sizes = np.array(self.sizes, np.int64)
        return sizes, self._start, self._half, self._middle, self._low, self._high

    def description(self) -> dict[str, Any]:
        """Return a JSON-serializable form from which the space can be rebuilt."""
        if self.continuous:
            return {"kind": self.kind, "low": _numbers(self._low), "high": _numbers(self._high)}
        return {"kind": self.kind, "sizes": list(self.sizes), "start": self._start.tolist()}

    @staticmethod
    def space(description: Mapping[str, Any]) -> gymnasium.Space[Any]:
        """Return the action space of a `description`."""
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
    """Replace infinities by strings: JSON has none, and float("-inf") reads them back."""
    return [x if np.isfinite(x) else str(x) for x in values.tolist()]
