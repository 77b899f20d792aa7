"""Steps written into rings whose observations lie in the rows, as plain loops."""

from __future__ import annotations

from typing import Any

from slipstream.experience.replay.ring import complete, cut, show


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
