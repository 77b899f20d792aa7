"""Batch loop of all kernels: autoreset, time limits, final observations, episode statistics.

This file is a template. `kernels/compiler.py` copies the functions below into a separate module and
binds the names declared first to one kernel's functions: as plain Python (backend `serial`) or
compiled by Numba (backend `compiled`). Kernels are stepped by this loop only.
`kernels.compiler.specialize` inserts the lines for several players and for action masks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Bound by the code generator to one kernel's functions, plain or compiled.
reset: Any = None
step: Any = None
observe: Any = None
stream: Any = None  # core.random.stream
make_data: Any = None  # tuple of arrays -> the kernel's Data
clear: Any = None  # zeroes every field of a STATE record
copy_metrics: Any = None  # (s, row): writes the metrics of EnvSpec into the last columns of row
WORDS: Any = None  # 8-byte words of a STATE record


def episode_state_dtype(players: int = 1) -> np.dtype[Any]:
    """Return the dtype of the loop's own record of an environment, beside the kernel's STATE."""
    return np.dtype(
        [
            ("seed", "u8"),  # member's seed
            ("index", "u8"),  # n: index within the member
            ("episode", "u8"),  # index of the next episode
            ("param_row", "i8"),  # row of the Params table
            ("length", "i8"),  # steps of the current episode
            ("limit", "i8"),  # time limit of the current episode, 0 for none
            ("next_limit", "i8"),  # time limit of later episodes
            ("held", "i8"),  # 1: ended and not reset; steps skip it
            (
                "episode_return",
                "f8",
                () if players == 1 else (players,),
            ),  # undiscounted return so far
        ],
        align=True,
    )


# Entries of `counts`: stored final observations, ended episodes, fault, current environment.
# A fault is e + 1 if environment e returned a non-finite reward, -(e + 1) if its observation is
# non-finite or its mask is empty.
FINALS, EPISODES, FAULT, AT = 0, 1, 2, 3

# Positions in `batch` and in `out`, for loops that need single arrays of them.
BATCH_STATE, BATCH_COUNTS = 2, 7
OUT_ACTIONS, OUT_OBS, OUT_MASK = 0, 1, 5  # the mask exists only if the kernel has one

# Columns of `episodes`: step, environment, length, return of each player, metrics.
STEP, ENVIRONMENT, LENGTH, RETURN = 0, 1, 2, 3

# Autoreset modes: what `advance` does when an episode ends.
RESET = 0  # start the next one; store final observations of truncated episodes
RESET_KEEP_ALL = 1  # the same, but store every final observation
HOLD = 2  # return the last observation and wait for `start`

# Prefetch distance in environments for kernels with `prefetch`. The state record itself is
# prefetched at twice this distance.
AHEAD = 8
RECORD_BYTES = 576

CONSTANTS = (
    *("AHEAD", "RECORD_BYTES"),
    *("FINALS", "EPISODES", "FAULT", "AT"),
    *("STEP", "ENVIRONMENT", "LENGTH", "RETURN"),
    *("RESET", "RESET_KEEP_ALL", "HOLD"),
)


def begin(b: Any, s: Any, p: Any, d: Any) -> None:
    """Start the next episode of one environment on its own random stream."""
    clear(s)
    s.key = stream(b.seed, b.index, b.episode)
    b.episode = b.episode + np.uint64(1)
    b.limit = b.next_limit
    b.length = 0
    b.held = 0
    b.episode_return = 0.0
    reset(s, p, d)


def advance(lo: int, hi: int, t: int, mode: int, batch: Any, out: Any) -> None:
    """Step environments lo..hi-1. `t` is the rollout row recorded with episodes that end here."""
    # One function on purpose: passing these arrays on per environment costs more than a step.
    arrays, params, state, episode_state, final_obs, final_index, episodes, counts = batch[:8]
    words, final_words = batch[8:10]
    actions, obs, reward, terminated, truncated = out
    d = make_data(arrays)
    for e in range(lo, hi):  # steps
        b = episode_state[e]
        if b.held != 0:
            reward[e] = 0.0
            terminated[e] = False
            truncated[e] = False
            continue
        s = state[e]
        p = params[b.param_row]
        r, terminal, cut = step(s, actions[e], p, d)
        b.length = b.length + 1
        b.episode_return = b.episode_return + r
        if b.limit > 0 and b.length >= b.limit:
            cut = True
        reward[e] = r
        terminated[e] = terminal
        truncated[e] = cut
        if r - r != 0.0:  # NaN or infinite: kept for the error message
            if counts[FAULT] == 0:
                counts[FAULT] = e + 1
            continue
        if terminal or cut:
            # Bootstrapping needs the observation before the reset, except after termination.
            if mode == RESET_KEEP_ALL or (mode == RESET and not terminal):
                slot = counts[FINALS]
                counts[FINALS] = slot + 1
                observe(s, p, d, final_obs[slot])
                final_index[slot, 0] = t
                final_index[slot, 1] = e
                if len(final_words) > 0:  # these observations are rendered again from states
                    for k in range(WORDS):
                        final_words[slot, k] = words[e, k]
            row = episodes[counts[EPISODES]]
            counts[EPISODES] += 1
            row[STEP] = t
            row[ENVIRONMENT] = e
            row[LENGTH] = b.length
            row[RETURN] = b.episode_return
            copy_metrics(s, row)
            if mode == HOLD:
                b.held = 1
            else:
                begin(b, s, p, d)
        observe(s, p, d, obs[e])


def start(lo: int, hi: int, batch: Any, obs: Any) -> None:
    """Start the next episode of environments lo..hi-1, whatever their state."""
    arrays, params, state, episode_state = batch[:4]
    d = make_data(arrays)
    for e in range(lo, hi):
        b = episode_state[e]
        s = state[e]
        p = params[b.param_row]
        begin(b, s, p, d)
        observe(s, p, d, obs[e])


def observe_all(lo: int, hi: int, batch: Any, obs: Any) -> None:
    """Observe environments lo..hi-1 without stepping them (after a restored state)."""
    arrays, params, state, episode_state = batch[:4]
    d = make_data(arrays)
    for e in range(lo, hi):
        s = state[e]
        p = params[episode_state[e].param_row]
        observe(s, p, d, obs[e])
