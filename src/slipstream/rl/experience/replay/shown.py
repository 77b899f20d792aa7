"""Transitions of a kernel without their observations, which the kernel shows again when needed.

Stored are the STATE fields that an observation is made of (`rl/experience/observed.py`) and the
number of the sub-environment's Params record. The functions below are a template like
`kernels/loop.py`: the names declared first are bound to one kernel's functions.
"""

from __future__ import annotations

from typing import Any

from slipstream.rl.experience.replay.gather import follow, gather_action
from slipstream.rl.experience.replay.ring import complete, cut

# Bound by the renderer to one kernel's.
observe: Any = None
make_data: Any = None  # tuple of arrays -> the kernel's Data
keep: Any = None  # (s, which, kept): copies what is observed
recall: Any = None  # (kept, s): copies it back
which_of: Any = None  # (kept): the number of its Params record
look: Any = None  # (s, p, d, masks, b): writes what is allowed into row b, where there is a mask

SHAPED = False  # whether rows of a batch are flat where observations are not
SHAPE: tuple[int, ...] = ()  # that of an observation then

FUNCTIONS = (follow, gather_action, complete, cut)


def show_place(store: Any, e: int, slot: int, rows: Any, masks: Any, b: int) -> None:
    """Writes the observation that copy e saw in a slot into row b, and what was allowed there."""
    arrays, params, first, kept, scratch = store[:5]
    d = make_data(arrays)
    s = scratch[0]
    recall(kept[e, slot], s)
    p = params[first[e] + which_of(kept[e, slot])]
    if SHAPED:  # Numba drops the other branch
        observe(s, p, d, rows[b].reshape(SHAPE))
    else:
        observe(s, p, d, rows[b])
    look(s, p, d, masks, b)


def gather(ring: Any, store: Any, m: int, index: Any, n: int, gamma: float, batch: Any) -> None:
    """As `gather.gather`, with observations that are shown again."""
    slots = ring.rows.shape[1]
    for b in range(len(index)):
        e = m * ring.copies + index[b] // slots
        slot = index[b] % slots
        after, reward, discount = follow(ring, e, slot, n, gamma)
        batch.reward[b] = reward
        batch.discount[b] = discount
        gather_action(ring, e, slot, b, batch)
        show_place(store, e, slot, batch.obs, batch.mask, b)
        show_place(store, e, after, batch.obs_next, batch.mask_next, b)


def begin(ring: Any, store: Any, lo: int, hi: int) -> None:
    """Keeps what the heads of copies lo..hi-1 show."""
    first, kept = store[2:4]
    state, book, _ = store[5:8]
    for e in range(lo, hi):
        keep(state[e - lo], book[e - lo].which - first[e], kept[e, ring.head[e]])


def write(
    ring: Any, store: Any, lo: int, hi: int, action: Any, reward: Any, terminated: Any,
    truncated: Any, valid: Any, obs: Any, mask: Any, final_obs: Any, final_of: Any,
) -> None:  # fmt: skip
    """As `ring.write`, of copies lo..hi-1, whose records are all that `store` has at hand."""
    first, kept = store[2:4]
    state, book, final_state = store[5:8]
    for e in range(lo, hi):
        which = book[e - lo].which - first[e]
        real = valid[e] and (terminated[e] or not truncated[e] or final_of[e] >= 0)
        if complete(ring, e, action[e], reward[e], terminated[e], truncated[e], real):
            keep(final_state[final_of[e]], which, kept[e, ring.head[e]])
            cut(ring, e)
        keep(state[e - lo], which, kept[e, ring.head[e]])
