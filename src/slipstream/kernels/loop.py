"""The batch loop: auto-reset, time limits, final observations, episode statistics for all kernels.

This is a template. `kernels/compiler.py` copies the functions below into a module of their own,
where the names declared next are bound to one kernel's functions: as they are (the `serial`
backend) or compiled by Numba (`compiled`). They are the only code that steps a kernel.
`kernels/compile.specialize` inserts the lines for several players and for masks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Bound by the renderer to one kernel's functions, or to a form of them for one backend.
reset: Any = None
step: Any = None
observe: Any = None
stream: Any = None  # core.random.stream
make_data: Any = None  # tuple of arrays -> the kernel's Data
clear: Any = None  # sets every field of a STATE record to zero
copy_metrics: Any = None  # (s, row): the metrics of EnvSpec into the last places of row
WORDS: Any = None  # of 8 bytes, in a STATE record


def book_dtype(players: int = 1) -> np.dtype[Any]:
    """What the loop knows of each environment besides the kernel's STATE: one record."""
    return np.dtype(
        [
            ("seed", "u8"),  # member's seed
            ("index", "u8"),  # n: index within the member
            ("episode", "u8"),  # number of the next episode to begin
            ("which", "i8"),  # row of the Params table
            ("length", "i8"),  # steps of the running episode
            ("limit", "i8"),  # time limit of the running episode, 0 for none
            ("next_limit", "i8"),  # time limit of the episodes after it
            ("held", "i8"),  # 1: ended and not begun again; steps pass it by
            ("ret", "f8", () if players == 1 else (players,)),  # undiscounted return so far
        ],
        align=True,
    )


# Places in `counts`: what is kept and what ended; e + 1 where copy e gave a number that nobody can
# train on, negative where it was an observation or a mask; the copy that is being stepped.
FINALS, EPISODES, FAULT, AT = 0, 1, 2, 3

# Places in `batch` and in `out`, for loops that take single arrays of them; `advance` has all.
BATCH_STATE, BATCH_COUNTS = 2, 7
OUT_ACTIONS, OUT_OBS, OUT_MASK = 0, 1, 5  # the mask only where the kernel has one

# Columns of `episodes`: step, environment, length, return of each player, metrics.
STEP, ENVIRONMENT, LENGTH, RETURN = 0, 1, 2, 3

# What `advance` does where an episode ends.
RESET = 0  # begin the next one; keep final observations of those cut short
RESET_KEEP_ALL = 1  # the same, and keep every final observation
HOLD = 2  # show the last observation and wait for `start`

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
    """Starts the next episode of one environment on its own random stream."""
    clear(s)
    s.key = stream(b.seed, b.index, b.episode)
    b.episode = b.episode + np.uint64(1)
    b.limit = b.next_limit
    b.length = 0
    b.held = 0
    b.ret = 0.0
    reset(s, p, d)


def advance(lo: int, hi: int, t: int, mode: int, batch: Any, out: Any) -> None:
    """Steps environments lo..hi-1; `t` is the row of the rollout, recorded with what ends here."""
    # One function on purpose: handing these arrays on for each environment costs more than its
    # step.
    arrays, params, state, book, final_obs, final_index, episodes, counts = batch[:8]
    words, final_words = batch[8:10]
    actions, obs, reward, terminated, truncated = out
    d = make_data(arrays)
    for e in range(lo, hi):  # steps
        b = book[e]
        if b.held != 0:
            reward[e] = 0.0
            terminated[e] = False
            truncated[e] = False
            continue
        s = state[e]
        p = params[b.which]
        r, terminal, cut = step(s, actions[e], p, d)
        b.length = b.length + 1
        b.ret = b.ret + r
        if b.limit > 0 and b.length >= b.limit:
            cut = True
        reward[e] = r
        terminated[e] = terminal
        truncated[e] = cut
        if r - r != 0.0:  # NaN or infinite: left as it is, to be named
            if counts[FAULT] == 0:
                counts[FAULT] = e + 1
            continue
        if terminal or cut:
            # Value targets need what was seen before the reset wherever the future goes on.
            if mode == RESET_KEEP_ALL or (mode == RESET and not terminal):
                slot = counts[FINALS]
                counts[FINALS] = slot + 1
                observe(s, p, d, final_obs[slot])
                final_index[slot, 0] = t
                final_index[slot, 1] = e
                if len(final_words) > 0:  # somebody shows these observations again, from records
                    for k in range(WORDS):
                        final_words[slot, k] = words[e, k]
            row = episodes[counts[EPISODES]]
            counts[EPISODES] += 1
            row[STEP] = t
            row[ENVIRONMENT] = e
            row[LENGTH] = b.length
            row[RETURN] = b.ret
            copy_metrics(s, row)
            if mode == HOLD:
                b.held = 1
            else:
                begin(b, s, p, d)
        observe(s, p, d, obs[e])


def start(lo: int, hi: int, batch: Any, obs: Any) -> None:
    """Begins the next episode of environments lo..hi-1, whatever they were doing."""
    arrays, params, state, book = batch[:4]
    d = make_data(arrays)
    for e in range(lo, hi):
        b = book[e]
        s = state[e]
        p = params[b.which]
        begin(b, s, p, d)
        observe(s, p, d, obs[e])


def look(lo: int, hi: int, batch: Any, obs: Any) -> None:
    """Observes environments lo..hi-1 without stepping them (after a restored state)."""
    arrays, params, state, book = batch[:4]
    d = make_data(arrays)
    for e in range(lo, hi):
        s = state[e]
        p = params[book[e].which]
        observe(s, p, d, obs[e])
