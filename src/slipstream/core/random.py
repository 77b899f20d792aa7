"""Counter-based random numbers: a draw is a pure function of (key, counter).

A stream is identified by its key, so a trajectory depends only on member seed, index within the
member and episode, never on the number of environments, threads or workers. The mixing function is
the finaliser of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
generators"), applied to the counter and again to counter and key together, so that two streams are
not shifted copies of one another.

These are plain scalar functions; `kernels/` compiles them together with the kernels that draw. All
constants are `np.uint64`: a Python int combined with a uint64 has three different result types
interpreted, compiled and in older NumPy.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, TypeAlias

import numpy as np

Word: TypeAlias = Any
"""np.uint64, or an array of them."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MUL_1 = np.uint64(0xBF58476D1CE4E5B9)
_MUL_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_30 = np.uint64(30)
_SHIFT_27 = np.uint64(27)
_SHIFT_31 = np.uint64(31)
_SHIFT_11 = np.uint64(11)
_ONE = np.uint64(1)
_TO_UNIT = 1.0 / 9007199254740992.0  # 2^-53
_TWO_PI = 2.0 * math.pi


def mix(x: Word) -> Word:
    """SplitMix64's finaliser: a bijection of words; every input bit reaches every output bit."""
    x = (x ^ (x >> _SHIFT_30)) * _MUL_1
    x = (x ^ (x >> _SHIFT_27)) * _MUL_2
    return x ^ (x >> _SHIFT_31)


def word(key: Word, counter: Word) -> Word:
    """Return the 64 random bits at position `counter` of stream `key`."""
    return mix(key ^ mix((counter + _ONE) * _GOLDEN))


def stream(seed: Word, index: Word, episode: Word) -> Word:
    """Return the stream key of (member seed, index within the member, episode)."""
    return word(word(word(_GOLDEN, seed), index), episode)


def uniform(s: Any) -> float:
    """Return the next number of record `s`, uniform in [0, 1) with 53 bits; advance `s.counter`."""
    bits = word(s.key, s.counter)
    s.counter = s.counter + _ONE
    return float(bits >> _SHIFT_11) * _TO_UNIT


def normal(s: Any) -> float:
    """Return the next standard normal number of record `s` (Box, Muller 1958); advance by two."""
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform(s)))  # 1 - u is in (0, 1]: the log is finite
    return radius * math.cos(_TWO_PI * uniform(s))


def integer(s: Any, n: int) -> int:
    """Return the next integer of record `s`, uniform in 0..n-1 (n < 2^53, bias below n 2^-53)."""
    return int(uniform(s) * float(n))


def derive_seed(*parts: int | str) -> int:
    """Derive a seed below 2**63 from its parts alone, such as a study's seed, trial and fold."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
