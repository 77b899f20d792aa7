"""Masks of allowed choices that Gymnasium environments offer, by any of three conventions.

They are `action_masks()` (sb3-contrib), the info `action_mask` (Gymnasium's Taxi), and the part
`action_mask` of a Dict (PettingZoo, RLlib), which is then no part of what networks are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.gym.env_factory import call_in_fork
from slipstream.kernels.space_codec import ACTION_MASK_KEY, SpaceMismatchError

METHOD = "action_masks"


class SeparateActionMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Take the part `action_mask` out of an environment's Dict; `action_masks()` returns it."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = drop_mask_space(env.observation_space)
        self._mask: Any = None

    def reset(self, **arguments: Any) -> Any:
        seen, info = self.env.reset(**arguments)
        return self._without(seen), info

    def step(self, action: Any) -> Any:
        seen, *rest = self.env.step(action)
        return (self._without(seen), *rest)

    def action_masks(self) -> Any:
        """Mask of the newest observation."""
        return self._mask

    def _without(self, seen: Any) -> Any:
        self._mask = seen.get(ACTION_MASK_KEY)
        return {key: part for key, part in seen.items() if key != ACTION_MASK_KEY}


def has_discrete_actions(acted: Any) -> bool:
    """Return true if the actions of a space can be masked: Box actions cannot."""
    return isinstance(acted, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)


def drop_mask_space(space: spaces.Dict) -> spaces.Dict:
    """The other parts."""
    return spaces.Dict({key: part for key, part in space.spaces.items() if key != ACTION_MASK_KEY})


def observation_has_mask(space: Any) -> bool:
    """Return true if an observation space has a mask among its parts."""
    return isinstance(space, spaces.Dict) and ACTION_MASK_KEY in space.spaces


def separate_mask(env: Any) -> Any:
    """Wrap an environment in `SeparateActionMask` if its observations contain a mask."""
    if isinstance(env, gymnasium.Env) and observation_has_mask(
        getattr(env, "observation_space", None)
    ):
        return SeparateActionMask(env) if has_discrete_actions(env.action_space) else env
    return env


def get_mask_method(env: Any) -> Callable[[], Any] | None:
    """`action_masks` of an environment or of one of its wrappers."""
    with suppress(AttributeError):
        found = getattr(env, "get_wrapper_attr", env.__getattribute__)(METHOD)
        return found if callable(found) else None
    return None


def probe_mask(env: Any) -> bool | None:
    """Return true if an environment has an action mask; None if its first info cannot be read.

    A forked process calls `reset`, because that may hang or end the process.
    """
    if not has_discrete_actions(env.action_space):
        return False
    if get_mask_method(env) is not None:
        return True
    return call_in_fork(
        lambda: env, lambda e: mask_from_info(e.reset(seed=0)[1]) is not None, closes=False
    )


def mask_from_info(info: Any) -> Any:
    """Mask in an info; None without one."""
    return info.get(ACTION_MASK_KEY) if isinstance(info, Mapping) else None


def mask_of(env: Any, info: Any) -> NDArray[np.bool_] | None:
    """Mask of the newest observation, unless that holds it itself, bool [n]."""
    method = get_mask_method(env)
    mask = mask_from_info(info) if method is None else method()
    return None if mask is None else _flat(mask) > 0


def _flat(mask: Any) -> NDArray[Any]:
    """A mask in one line: that of several components may be a list of theirs."""
    if isinstance(mask, list | tuple) and any(np.ndim(part) for part in mask):
        mask = np.concatenate([np.ravel(part) for part in mask])
    return np.asarray(mask).reshape(-1)


def write_mask(mask: Any, place: NDArray[np.bool_], sizes: Sequence[int]) -> None:
    """Writes a mask in any of its forms.

    Args:
        mask: one entry for each choice; for several components one after another, or a list of
            arrays.
        place: bool [n].
        sizes: choices of each component.

    Raises:
        SpaceMismatchError: it is missing, has another length, or allows nothing.
    """
    if mask is None:
        raise SpaceMismatchError("no action mask")
    array = _flat(mask)
    if array.size != len(place) or array.dtype.kind not in "biuf":
        raise SpaceMismatchError(
            f"an action mask of {array.size} entries ({array.dtype}) instead of {len(place)}, one "
            "for each choice"
        )
    place[...] = array > 0
    lo, written = 0, place.tobytes()
    for number, size in enumerate(sizes):
        if written.find(1, lo, lo + size) < 0:
            where = f" in component {number}" if len(sizes) > 1 else ""
            raise SpaceMismatchError(f"an action mask that allows no choice{where}")
        lo += size


def replace_masked_actions(
    rows: NDArray[Any], mask: NDArray[np.bool_], sizes: Sequence[int]
) -> NDArray[Any]:
    """Rows of choices [n, K] that a mask [n, sum of sizes] allows, near to those given."""
    found, lo = rows.copy(), 0
    for k, size in enumerate(sizes):
        for row, allowed in enumerate(mask[:, lo : lo + size]):
            (choices,) = allowed.nonzero()
            found[row, k] = choices[rows[row, k] % len(choices)]
        lo += size
    return found
