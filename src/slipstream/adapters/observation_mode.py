"""Which observation spaces copies of a foreign environment may have, as Gymnasium words it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces

from slipstream.adapters.errors import SpaceError
from slipstream.core.errors import SlipstreamError
from slipstream.vector.foreign import make_gymnasium
from slipstream.vector.native_form import NativeForm


def most_workers(workers: int | None, max_concurrency: Any) -> int | None:
    """The number of workers under `max_concurrency`."""
    if max_concurrency is None:
        return workers
    if isinstance(max_concurrency, bool) or not isinstance(max_concurrency, (int, np.integer)):
        raise ValueError(
            f"`max_concurrency` must be an integer or None, got {type(max_concurrency)}."
        )
    if max_concurrency < 1:
        raise ValueError(f"`max_concurrency` must be a positive or None, got {max_concurrency}.")
    return min(workers or int(max_concurrency), int(max_concurrency))


def spaces(
    observation_mode: Any, makers: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> tuple[Space[Any] | None, Space[Any] | None]:
    """The batched and the single observation space, where they are not those of all copies."""
    if isinstance(observation_mode, tuple) and len(observation_mode) == 2:
        for one in observation_mode:
            if not isinstance(one, Space):
                raise TypeError(
                    "Expected both elements of observation_mode to be Spaces, got "
                    f"{type(observation_mode[0])} and {type(observation_mode[1])}"
                )
        return observation_mode
    if observation_mode == "same":
        return None, None
    if observation_mode != "different":
        raise ValueError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and "
            f"batch observation space, actual got {observation_mode}"
        )
    shown = []
    for make in makers:
        env = make_gymnasium(make, kwargs)
        shown.append(env.observation_space)
        env.close()
    return batch_differing_spaces(shown), shown[0]


def misfit(error: SlipstreamError, observation_mode: Any) -> SlipstreamError:
    """Spaces that differ, in Gymnasium's words; any other error as it is."""
    if "all copies must have the same" not in str(error):
        return error
    way_out = (
        "If this is intentional, use `observation_mode='different'` instead. "
        if observation_mode == "same"
        else ""
    )
    return SpaceError(
        f"the sub-environments observation spaces are not equivalent. {way_out}{error}"
    )


def check_alike(each: Sequence[Space[Any]], single: Space[Any]) -> None:
    """Refuses copies whose observations are not of one shape and dtype."""
    for e, space in enumerate(each):
        if not is_space_dtype_shape_equiv(space, single):
            raise SpaceError(
                f"the sub-environments observation spaces do not share a common shape and dtype: "
                f"copy {e} has {space}, and {single} is expected."
            )


def check_fixed(space: Space[Any]) -> None:
    """Refuses shared memory for spaces without a fixed size, as Gymnasium does.

    Text and OneOf, which Gymnasium lays out there, are pickled here, with the same results.
    """
    parts = _unfixed(space)
    dynamic = (gymnasium.spaces.Graph, gymnasium.spaces.Sequence)
    if any(isinstance(part, dynamic) for part in parts):
        raise TypeError(
            f"As {space} has a dynamic shape so its not possible to make a static shared memory. "
            "For `AsyncVectorEnv`, disable `shared_memory`."
        )
    if any(not type(part).__module__.startswith("gymnasium.") for part in parts):
        raise ValueError(
            f"{space} is a space of your own, which has no layout in shared memory: leave "
            "`shared_memory` out, or disable it."
        )


def _unfixed(space: Space[Any]) -> list[Space[Any]]:
    """The parts of Dicts, Tuples and OneOfs that have no place of fixed size."""
    if isinstance(space, gymnasium.spaces.Dict):
        return [leaf for part in space.spaces.values() for leaf in _unfixed(part)]
    if isinstance(space, gymnasium.spaces.Tuple | gymnasium.spaces.OneOf):
        return [leaf for part in space.spaces for leaf in _unfixed(part)]
    return [] if NativeForm(space).fixed else [space]
