"""Which settings make a run or a study small enough, each alone, and what they may be at most."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from slipstream.core.errors import ConfigError
from slipstream.training.settings.config import RunConfig

_HALVED = ("widths", "horizon", "iteration", "num_envs")  # other values would seldom fit together


def mends(
    paths: Iterable[str], size: Callable[[str], int], enough: Callable[[str, int], bool]
) -> dict[str, int]:
    """The largest value of each setting that mends it alone; without those that cannot.

    Args:
        paths: of settings that are to be lowered, such as agent.widths.
        size: what a setting is; 0 where there is none.
        enough: whether a setting of at most that value is small enough; then lower ones are, too.

    Returns:
        Halves of what it is, where other sizes must agree with it; else two digits and zeros.
    """
    found = {}
    for path in paths:
        now = size(path)
        if path.rpartition(".")[2] in _HALVED:
            values = [now >> k for k in range(1, now.bit_length())]
            best = [value for value in values if enough(path, value)]
        else:
            tens = range(len(str(now)))
            known = {digits * 10**e for e in tens for digits in range(1, 100)}
            values = sorted((value for value in known if value < now), reverse=True)
            best = values[bisect.bisect_left(values, True, key=partial(enough, path)) :]
        if best:
            found[path] = best[0]
    return found


def size_of(config: RunConfig, path: str) -> int:
    """A setting of a config, the largest layer of several; 0 where there is no such number."""
    section, _, name = path.partition(".")
    value = getattr(getattr(config, section), name, None) or 0
    return max(value) if isinstance(value, tuple) else value


def limited(config: RunConfig, path: str, most: int) -> RunConfig | None:
    """A config with a setting, each layer of several, of at most a number.

    None where the agent's other sizes do not agree with that.
    """
    section, _, name = path.partition(".")
    part = getattr(config, section)
    value = getattr(part, name)
    less = tuple(min(one, most) for one in value) if isinstance(value, tuple) else min(value, most)
    made = replace(config, **{section: part.model_copy(update={name: less})})
    try:
        return made.with_copies(made.num_envs)
    except ConfigError:
        return None


def mended(found: Mapping[str, int]) -> str:
    """What to do about a refusal, in a sentence."""
    if not found:
        return "No setting mends that alone: lower several of them, or take a larger machine."
    listed = ", or ".join(f"{path} to {most:,}" for path, most in found.items())
    return f"Each of these mends it alone: lower {listed}."
