"""Rings of transitions, one for each copy, and steps written into them: plain loops to compile."""

from __future__ import annotations

from typing import Any, NamedTuple

from slipstream.rl.experience.replay.tree import set_leaf

# How a slot's transition ends: the last column of its row.
NONE = 0.0  # no transition: an empty slot, the head, a final observation, or what is not valid
GOES_ON = 1.0
TERMINATED = 2.0  # the future is worth nothing
TRUNCATED = 3.0  # it is worth the value of the final observation, in the next slot

REWARD, ENDING = -2, -1  # columns; before them the observation and the action


class Ring(NamedTuple):
    """The rings of M members, N copies each: copy e = m N + n.

    Attributes:
        rows: float32 [E, S, W]; columns: the observation (`width` of them, none where it is kept
            elsewhere), the action, reward, ending. A transition lies in one or two cache lines.
        mask: bool [E, S, choices] of allowed choices; [0, 0, 0] where all always are, or where they
            are asked for again.
        head: int64 [E], slot of the newest observation; written: int64 [E], slots left behind since
            the beginning.
        span, held, steps: int64 [M], slots of each ring that have been used; transitions that can
            be drawn; environment steps so far.
        tree, least: float32 [M, nodes], priorities, their sums and their least, see `tree.py`;
            [M, 0] where all transitions are drawn alike. levels: int64 [L].
        target: float64, what draws look for in the tree, some at once. Overwritten.
        peak: float64 [M], the greatest priority so far, which new transitions get.
        width: numbers of the observation in a row; copies: N; alpha: exponent of priorities.
    """

    rows: Any
    mask: Any
    head: Any
    written: Any
    span: Any
    held: Any
    steps: Any
    tree: Any
    least: Any
    levels: Any
    target: Any
    peak: Any
    width: int
    copies: int
    alpha: float


def complete(
    ring: Any, e: int, action: Any, reward: Any, terminated: bool, truncated: bool, valid: bool
) -> bool:
    """Ends the transition that began in the head of copy e; the head moves on.

    Args:
        ring: the Ring.
        e: copy.
        action: [K]; reward: one number; terminated, truncated, valid: how the step ended.

    Returns:
        Whether the episode was cut short: then the head must be given the final observation, and
        `cut` must be called before it is given the next one.
    """
    m = e // ring.copies
    row = ring.rows[e, ring.head[e]]
    for j in range(len(action)):
        row[ring.width + j] = action[j]
    row[REWARD] = reward
    ring.steps[m] += 1
    if valid:
        row[ENDING] = TERMINATED if terminated else (TRUNCATED if truncated else GOES_ON)
        ring.held[m] += 1
        if ring.tree.shape[1] > 0:
            place = (e - m * ring.copies) * ring.rows.shape[1] + ring.head[e]
            set_leaf(ring.tree[m], ring.least[m], ring.levels, place, ring.peak[m])
    move_on(ring, e, m)
    return bool(valid and truncated and not terminated)


def cut(ring: Any, e: int) -> None:
    """Leaves the final observation of copy e behind."""
    move_on(ring, e, e // ring.copies)


def move_on(ring: Any, e: int, m: int) -> None:
    """The next slot of copy e, which is member m's, becomes its head and is emptied."""
    slots = ring.rows.shape[1]
    head = ring.head[e] + 1
    if head == slots:
        head = 0
    row = ring.rows[e, head]
    if row[ENDING] != NONE:
        row[ENDING] = NONE
        ring.held[m] -= 1
        if ring.tree.shape[1] > 0:
            place = (e - m * ring.copies) * slots + head
            set_leaf(ring.tree[m], ring.least[m], ring.levels, place, 0.0)
    ring.head[e] = head
    ring.written[e] += 1
    used = min(ring.written[e] + 1, slots)
    if used > ring.span[m]:
        ring.span[m] = used


def show(ring: Any, e: int, obs: Any, mask: Any) -> None:
    """Writes an observation [D], and the choices allowed there, into the head of copy e.

    Args:
        ring: the Ring; e: copy.
        obs: its first `width` numbers are kept.
        mask: bool [choices]; not read where the ring has none.
    """
    row = ring.rows[e, ring.head[e]]
    for j in range(ring.width):
        row[j] = obs[j]
    allowed = ring.mask.shape[2]
    if allowed > 0:
        kept = ring.mask[e, ring.head[e]]
        for j in range(allowed):
            kept[j] = mask[j]


def begin(ring: Any, store: Any, lo: int, hi: int, obs: Any, mask: Any) -> None:
    """Writes observations [E, D], and what is allowed, into the heads of copies lo..hi-1."""
    for e in range(lo, hi):
        show(ring, e, obs[e], mask[e])


def write(
    ring: Any, store: Any, lo: int, hi: int, action: Any, reward: Any, terminated: Any,
    truncated: Any, valid: Any, obs: Any, mask: Any, final_obs: Any, final_of: Any,
) -> None:  # fmt: skip
    """Writes one step of copies lo..hi-1.

    Args:
        ring: the Ring; store: nothing; lo, hi: copies.
        action: [E, K]; reward: float32 [E]; terminated, truncated, valid: bool [E].
        obs: [E, D], the observations to act on next; mask: bool [E, choices], [E, 0] without.
        final_obs: [n, D]; final_of: int64 [E], which of them belongs to a copy; -1 for none.
    """
    for e in range(lo, hi):
        # Without its final observation a cut transition has no next one.
        real = valid[e] and (terminated[e] or not truncated[e] or final_of[e] >= 0)
        if complete(ring, e, action[e], reward[e], terminated[e], truncated[e], real):
            show(ring, e, final_obs[final_of[e]], mask[e])
            for j in range(ring.mask.shape[2]):  # nobody says what is allowed where it was cut
                ring.mask[e, ring.head[e], j] = True
            cut(ring, e)
        show(ring, e, obs[e], mask[e])


def write_choices(
    ring: Any, store: Any, lo: int, hi: int, action: Any, reward: Any, terminated: Any,
    truncated: Any, valid: Any, obs: Any, mask: Any, final_obs: Any, final_of: Any,
) -> None:  # fmt: skip
    """`write` of int64 actions."""
    write(
        ring, store, lo, hi, action, reward, terminated, truncated, valid, obs, mask, final_obs,
        final_of,
    )  # fmt: skip


def write_numbers(
    ring: Any, store: Any, lo: int, hi: int, action: Any, reward: Any, terminated: Any,
    truncated: Any, valid: Any, obs: Any, mask: Any, final_obs: Any, final_of: Any,
) -> None:  # fmt: skip
    """`write` of float32 actions."""
    write(
        ring, store, lo, hi, action, reward, terminated, truncated, valid, obs, mask, final_obs,
        final_of,
    )  # fmt: skip
