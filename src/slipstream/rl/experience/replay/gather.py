"""Transitions as an update needs them, as plain loops that `compiled.py` compiles."""

from __future__ import annotations

from typing import Any, NamedTuple

from slipstream.rl.experience.replay.ring import ENDING, NONE, REWARD, TERMINATED, TRUNCATED


class Batch(NamedTuple):
    """B transitions of one member; everything is overwritten by `gather`.

    Attributes:
        obs: float32 [B, D], not scaled (images: uint8 [B, *shape]).
        mask: bool [B, choices] of the choices allowed there; [0, 0] where all always are.
        action: float32 [B, K], the policy's own; choices as whole numbers.
        reward: float32 [B], the discounted sum of up to n rewards.
        discount: float32 [B], what the value of `obs_next` counts: gamma^k for k rewards, 0 after a
            termination.
        obs_next, mask_next: like `obs` and `mask`, k steps later, or where the episode was cut.
    """

    obs: Any
    mask: Any
    action: Any
    reward: Any
    discount: Any
    obs_next: Any
    mask_next: Any


def follow(ring: Any, e: int, slot: int, n: int, gamma: float) -> tuple[int, float, float]:
    """The n steps from a transition on.

        reward = r_0 + gamma r_1 + ... + gamma^(k-1) r_(k-1),  discount = gamma^k

    k is n, or less where the episode ends or nothing more is known yet. A termination makes the
    discount 0. Where an episode was cut short, the value of its final observation counts.

    Args:
        ring: the Ring; e: copy; slot: where the transition is.
        n: steps at most; gamma: discount per step.

    Returns:
        The slot of the observation whose value counts, reward and discount.
    """
    slots = ring.rows.shape[1]
    reward = 0.0
    discount = 1.0
    for _ in range(n):
        row = ring.rows[e, slot]
        ending = row[ENDING]
        if ending == NONE:  # the head, or a step that is not real: its observation is the last
            break
        reward += discount * float(row[REWARD])
        discount *= gamma
        slot = slot + 1 if slot + 1 < slots else 0
        if ending == TERMINATED:
            discount = 0.0
            break
        if ending == TRUNCATED:
            break
    return slot, reward, discount


def gather_action(ring: Any, e: int, slot: int, b: int, batch: Any) -> None:
    """Copies the action of the transition in a slot into row b."""
    row = ring.rows[e, slot]
    for j in range(batch.action.shape[1]):
        batch.action[b, j] = row[ring.width + j]


def gather_masks(ring: Any, e: int, slot: int, after: int, b: int, batch: Any) -> None:
    """Copies what was allowed in two slots into row b."""
    for j in range(ring.mask.shape[2]):
        batch.mask[b, j] = ring.mask[e, slot, j]
        batch.mask_next[b, j] = ring.mask[e, after, j]


def gather(ring: Any, store: Any, m: int, index: Any, n: int, gamma: float, batch: Any) -> None:
    """Fills a batch with transitions of member m whose observations lie in the rows.

    Args:
        ring: the Ring; store: nothing.
        m: member; index: int64 [B], as `draw` wrote them.
        n: steps that a transition spans; gamma: discount per step.
        batch: the Batch, written.
    """
    slots = ring.rows.shape[1]
    for b in range(len(index)):
        e = m * ring.copies + index[b] // slots
        slot = index[b] % slots
        after, reward, discount = follow(ring, e, slot, n, gamma)
        batch.reward[b] = reward
        batch.discount[b] = discount
        gather_action(ring, e, slot, b, batch)
        gather_masks(ring, e, slot, after, b, batch)
        here, there = ring.rows[e, slot], ring.rows[e, after]
        for j in range(ring.width):
            batch.obs[b, j] = here[j]
            batch.obs_next[b, j] = there[j]


def locate(ring: Any, m: int, index: Any, n: int, gamma: float, places: Any, batch: Any) -> None:
    """`gather` without observations, for those that are kept elsewhere.

    Args:
        places: int64 [B, 3], written: copy, slot, and slot of the next observation.
    """
    slots = ring.rows.shape[1]
    for b in range(len(index)):
        e = m * ring.copies + index[b] // slots
        slot = index[b] % slots
        after, reward, discount = follow(ring, e, slot, n, gamma)
        places[b, 0] = e
        places[b, 1] = slot
        places[b, 2] = after
        batch.reward[b] = reward
        batch.discount[b] = discount
        gather_action(ring, e, slot, b, batch)
        gather_masks(ring, e, slot, after, b, batch)
