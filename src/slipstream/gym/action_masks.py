"""Action masks of Gymnasium environments, in any of three conventions.

The conventions are the method `action_masks()` (sb3-contrib), the info `action_mask` (Gymnasium's
Taxi), and the key `action_mask` of a Dict observation (PettingZoo, RLlib). Networks do not observe
that key.
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

MASK_METHOD = "action_masks"


class SeparateActionMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Move the key `action_mask` of Dict observations to the method `action_masks()`."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = drop_mask_space(env.observation_space)
        self._mask: Any = None

    def reset(self, **arguments: Any) -> Any:
        obs, info = self.env.reset(**arguments)
        return self._split_mask(obs), info

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        return (self._split_mask(obs), *rest)

    def action_masks(self) -> Any:
        """Return the mask of the newest observation."""
        return self._mask

    def _split_mask(self, obs: Any) -> Any:
        self._mask = obs.get(ACTION_MASK_KEY)
        return {key: part for key, part in obs.items() if key != ACTION_MASK_KEY}


def has_discrete_actions(action_space: Any) -> bool:
    """Return true if the actions of a space can be masked, which Box actions cannot."""
    return isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)


def drop_mask_space(space: spaces.Dict) -> spaces.Dict:
    """Return a Dict space without the action mask."""
    return spaces.Dict({key: part for key, part in space.spaces.items() if key != ACTION_MASK_KEY})


def observation_has_mask(space: Any) -> bool:
    """Return true if an observation space is a Dict with an action mask."""
    return isinstance(space, spaces.Dict) and ACTION_MASK_KEY in space.spaces


def separate_mask(env: Any) -> Any:
    """Wrap an environment in `SeparateActionMask` if its observations contain a mask."""
    if isinstance(env, gymnasium.Env) and observation_has_mask(
        getattr(env, "observation_space", None)
    ):
        return SeparateActionMask(env) if has_discrete_actions(env.action_space) else env
    return env


def get_mask_method(env: Any) -> Callable[[], Any] | None:
    """Return `action_masks` of an environment or of one of its wrappers, or None."""
    with suppress(AttributeError):
        method = getattr(env, "get_wrapper_attr", env.__getattribute__)(MASK_METHOD)
        return method if callable(method) else None
    return None


def probe_mask(env: Any) -> bool | None:
    """Return true if an environment has an action mask; None if its first info cannot be read.

    A forked process calls `reset`, because `reset` may hang or end the process.
    """
    if not has_discrete_actions(env.action_space):
        return False
    if get_mask_method(env) is not None:
        return True
    return call_in_fork(
        lambda: env, lambda e: mask_from_info(e.reset(seed=0)[1]) is not None, close=False
    )


def mask_from_info(info: Any) -> Any:
    """Return the mask in an info, or None."""
    return info.get(ACTION_MASK_KEY) if isinstance(info, Mapping) else None


def get_mask(env: Any, info: Any) -> NDArray[np.bool_] | None:
    """Return the mask of the newest observation from the method or the info, bool [n], or None."""
    method = get_mask_method(env)
    mask = mask_from_info(info) if method is None else method()
    return None if mask is None else _flatten_mask(mask) > 0


def _flatten_mask(mask: Any) -> NDArray[Any]:
    """Flatten a mask, which may be a list of one mask per component."""
    if isinstance(mask, list | tuple) and any(np.ndim(part) for part in mask):
        mask = np.concatenate([np.ravel(part) for part in mask])
    return np.asarray(mask).reshape(-1)


def write_mask(mask: Any, out: NDArray[np.bool_], sizes: Sequence[int]) -> None:
    """Write a mask in any of its formats.

    Args:
        mask: One entry per action. Components are concatenated, or given as a list of arrays.
        out: Destination, bool [n].
        sizes: Number of actions of each component.

    Raises:
        SpaceMismatchError: The mask is missing, has another length, or allows no action.
    """
    if mask is None:
        raise SpaceMismatchError("no action mask")
    array = _flatten_mask(mask)
    if array.size != len(out) or array.dtype.kind not in "biuf":
        raise SpaceMismatchError(
            f"an action mask of {array.size} entries ({array.dtype}) instead of {len(out)}, one "
            "per action"
        )
    out[...] = array > 0
    lo, written = 0, out.tobytes()
    for number, size in enumerate(sizes):
        if written.find(1, lo, lo + size) < 0:
            where = f" in component {number}" if len(sizes) > 1 else ""
            raise SpaceMismatchError(f"an action mask that allows no action{where}")
        lo += size


def replace_masked_actions(
    rows: NDArray[Any], mask: NDArray[np.bool_], sizes: Sequence[int]
) -> NDArray[Any]:
    """Replace masked actions in rows [n, K] by allowed ones; the mask is [n, sum(sizes)]."""
    replaced, lo = rows.copy(), 0
    for k, size in enumerate(sizes):
        for row, allowed in enumerate(mask[:, lo : lo + size]):
            (choices,) = allowed.nonzero()
            replaced[row, k] = choices[rows[row, k] % len(choices)]
        lo += size
    return replaced
