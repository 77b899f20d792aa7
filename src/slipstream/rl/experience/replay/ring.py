"""Ring buffers of transitions: writing, sampling, and gathering batches.

Plain loops, compiled once by `loops`. Priorities are in `sum_tree.py`. Observations may be stored
elsewhere; see `state_storage.py`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.random import word
from slipstream.jit.alignment import prefetch_element
from slipstream.jit.simd import exp_2, log_2
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.compiled_loops import Loops, b1, f4, f8, i8
from slipstream.rl.experience.replay.replay_config import check_symmetry
from slipstream.rl.experience.replay.sum_tree import (
    find_leaves,
    min_priority,
    rebuild,
    set_leaf,
    total_priority,
    update_parents,
)

# Ending of a slot's transition, in the last column of its row.
NONE = 0.0  # no transition: empty slot, head, final observation or invalid step
CONTINUING = 1.0
TERMINATED = 2.0  # the value of the future is 0
TRUNCATED = 3.0  # the future has the value of the final observation, in the next slot

REWARD, ENDING = -2, -1  # columns; before them the observation and the action


class Ring(NamedTuple):
    """Ring buffers of M members with N environments each: environment e = m N + n.

    Attributes:
        rows: float32 [E, S, W]. Columns: observation (`width` columns, 0 if stored elsewhere),
            action, reward, ending. A transition is one or two cache lines.
        mask: bool [E, S, mask_size] of allowed actions; [0, 0, 0] without masks, or if masks are
            rendered again.
        head: int64 [E], slot of the newest observation.
        written: int64 [E], number of completed slots since the beginning.
        num_used, num_valid, steps: int64 [M], used slots per ring, transitions that can be sampled,
            and environment steps so far.
        tree, minimum: float32 [M, nodes], priorities with their sums and minima, see `sum_tree.py`;
            [M, 0] for uniform sampling.
        levels: int64 [L], offsets of the tree's levels.
        target: float64, priorities to find in the tree, a block at a time. Overwritten.
        max_priority: float64 [M], the largest priority so far; new transitions receive it.
        width: Columns of the observation in a row.
        num_envs: N.
        alpha: Priority exponent.
    """

    rows: Any
    mask: Any
    head: Any
    written: Any
    num_used: Any
    num_valid: Any
    steps: Any
    tree: Any
    minimum: Any
    levels: Any
    target: Any
    max_priority: Any
    width: int
    num_envs: int
    alpha: float


def end_transition(
    ring: Any, e: int, action: Any, reward: Any, terminated: bool, truncated: bool, valid: bool
) -> bool:
    """Complete the transition that starts at the head of environment e, and advance the head.

    Args:
        ring: Ring.
        e: Environment.
        action: [K].
        reward: One number.
        terminated, truncated, valid: Flags of the step.

    Returns:
        Whether the episode was truncated. The head must then receive the final observation, and
        `end_truncated` must be called before the next observation.
    """
    m = e // ring.num_envs
    row = ring.rows[e, ring.head[e]]
    for j in range(len(action)):
        row[ring.width + j] = action[j]
    row[REWARD] = reward
    ring.steps[m] += 1
    if valid:
        row[ENDING] = TERMINATED if terminated else (TRUNCATED if truncated else CONTINUING)
        ring.num_valid[m] += 1
        if ring.tree.shape[1] > 0:
            place = (e - m * ring.num_envs) * ring.rows.shape[1] + ring.head[e]
            set_leaf(ring.tree[m], ring.minimum[m], ring.levels, place, ring.max_priority[m])
    advance_head(ring, e, m)
    return bool(valid and truncated and not terminated)


def end_truncated(ring: Any, e: int) -> None:
    """Complete the slot of the final observation of environment e."""
    advance_head(ring, e, e // ring.num_envs)


def advance_head(ring: Any, e: int, m: int) -> None:
    """Make the next slot of environment e, which belongs to member m, the head, and clear it."""
    slots = ring.rows.shape[1]
    head = ring.head[e] + 1
    if head == slots:
        head = 0
    row = ring.rows[e, head]
    if row[ENDING] != NONE:
        row[ENDING] = NONE
        ring.num_valid[m] -= 1
        if ring.tree.shape[1] > 0:
            place = (e - m * ring.num_envs) * slots + head
            set_leaf(ring.tree[m], ring.minimum[m], ring.levels, place, 0.0)
    ring.head[e] = head
    ring.written[e] += 1
    used = min(ring.written[e] + 1, slots)
    if used > ring.num_used[m]:
        ring.num_used[m] = used


def store_observation(ring: Any, e: int, obs: Any, mask: Any) -> None:
    """Write an observation [D] and its mask into the head of environment e.

    Args:
        ring: Ring.
        e: Environment.
        obs: The first `width` elements are stored.
        mask: bool [mask_size]; not read if the ring has no masks.
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
    """Write observations [E, D] and masks into the heads of environments lo..hi-1."""
    for e in range(lo, hi):
        store_observation(ring, e, obs[e], mask[e])


def write(
    ring: Any, store: Any, lo: int, hi: int, action: Any, reward: Any, terminated: Any,
    truncated: Any, valid: Any, obs: Any, mask: Any, final_obs: Any, final_of: Any,
) -> None:  # fmt: skip
    """Write one step of environments lo..hi-1.

    Args:
        ring: Ring.
        store: Unused.
        lo, hi: Range of environments.
        action: [E, K].
        reward: float32 [E].
        terminated, truncated, valid: bool [E].
        obs: [E, D], next observations.
        mask: bool [E, mask_size], [E, 0] without masks.
        final_obs: [n, D].
        final_of: int64 [E], index of an environment's final observation, -1 for none.
    """
    for e in range(lo, hi):
        # A truncated transition without its final observation has no next observation.
        real = valid[e] and (terminated[e] or not truncated[e] or final_of[e] >= 0)
        if end_transition(ring, e, action[e], reward[e], terminated[e], truncated[e], real):
            store_observation(ring, e, final_obs[final_of[e]], mask[e])
            for j in range(ring.mask.shape[2]):  # the mask of a final observation is unknown
                ring.mask[e, ring.head[e], j] = True
            end_truncated(ring, e)
        store_observation(ring, e, obs[e], mask[e])


def write_discrete(
    ring: Any, store: Any, lo: int, hi: int, action: Any, reward: Any, terminated: Any,
    truncated: Any, valid: Any, obs: Any, mask: Any, final_obs: Any, final_of: Any,
) -> None:  # fmt: skip
    """Write int64 actions; see `write`."""
    write(
        ring, store, lo, hi, action, reward, terminated, truncated, valid, obs, mask, final_obs,
        final_of,
    )  # fmt: skip


def write_continuous(
    ring: Any, store: Any, lo: int, hi: int, action: Any, reward: Any, terminated: Any,
    truncated: Any, valid: Any, obs: Any, mask: Any, final_obs: Any, final_of: Any,
) -> None:  # fmt: skip
    """Write float32 actions; see `write`."""
    write(
        ring, store, lo, hi, action, reward, terminated, truncated, valid, obs, mask, final_obs,
        final_of,
    )  # fmt: skip


def power(x: float, y: float) -> float:
    """Return x^y for x > 0 and y in [-1, 1], relative error 1e-9, within 2^+-1000."""
    return exp_2(y * log_2(x))


PRIORITY_EPS = 1e-6  # added to errors, so that every transition can be sampled again
MAX_PRIORITY = 1e30  # keeps sums of millions of priorities finite in float32

_SHIFT_11 = np.uint64(11)
_TO_UNIT = 1.0 / 9007199254740992.0  # 2^-53


def draw(ring: Any, m: int, key: Any, beta: float, index: Any, weight: Any) -> None:
    """Sample B transitions of member m with replacement.

    Without priorities each of the R valid transitions has probability 1 / R. With priorities
    transition i has probability P(i) = p_i / sum p, where p is |error|^alpha. One transition is
    drawn from each of B equal parts of the sum, with weight

        w_i = (1 / (R P(i)))^beta / max_j w_j = (min_j p_j / p_i)^beta

    With beta = 1 the mean of w_i f(i) equals that of f over all valid transitions, up to a factor
    that is the same for all i.

    Args:
        ring: Ring; num_valid[m] must be above 0.
        m: Member.
        key: np.uint64, key of the random stream, different for every call.
        beta: Importance-sampling exponent, 0 to 1.
        index: int64 [B], written: n S + slot.
        weight: float32 [B], written; 1 without priorities.
    """
    if ring.tree.shape[1] > 0:
        _draw_by_priority(ring, m, key, beta, index, weight)
        return
    slots, counter = ring.rows.shape[1], 0
    ending = ring.rows.shape[2] - 1
    for b in range(len(index)):  # prefetch all rows before reading the first
        n, slot = _place(ring, m, key, b)
        rows = ring.rows[m * ring.num_envs + n]
        prefetch_element(rows, slot, 0)
        prefetch_element(rows, slot, ending)
        prefetch_element(rows, slot + 1, ending)  # after the next observation; may not exist
    for b in range(len(index)):
        searching = True
        while searching:
            n, slot = _place(ring, m, key, counter)
            counter += 1
            if ring.rows[m * ring.num_envs + n, slot, ENDING] != NONE:
                index[b] = n * slots + slot
                weight[b] = 1.0
                searching = False


def _place(ring: Any, m: int, key: Any, counter: int) -> tuple[int, int]:
    """Return a random used slot of member m: environment and slot."""
    num_used = ring.num_used[m]
    u = float(word(key, np.uint64(counter)) >> _SHIFT_11) * _TO_UNIT
    place = int(u * float(ring.num_envs * num_used))
    n = place // num_used
    return n, place - n * num_used


def _draw_by_priority(ring: Any, m: int, key: Any, beta: float, index: Any, weight: Any) -> None:
    tree, levels, target = ring.tree[m], ring.levels, ring.target
    part = total_priority(tree, levels) / float(len(index))
    low = min_priority(ring.minimum[m], levels)
    for first in range(0, len(index), len(target)):
        last = min(len(index), first + len(target))
        for b in range(first, last):
            u = float(word(key, np.uint64(b)) >> _SHIFT_11) * _TO_UNIT
            target[b - first] = (float(b) + u) * part
        find_leaves(ring.tree, m, levels, target[: last - first], index[first:last])
    slots = ring.rows.shape[1]
    for b in range(len(index)):
        n = index[b] // slots
        prefetch_element(ring.rows[m * ring.num_envs + n], index[b] - n * slots, 0)  # gathered next
        weight[b] = tree[index[b]]
    for b in range(len(index)):  # a separate loop is vectorized
        weight[b] = power(low / float(weight[b]), beta)


def update_priorities(ring: Any, m: int, index: Any, error: Any) -> None:
    """Set priorities to (|error| + 1e-6)^alpha. Does nothing without priorities.

    Args:
        ring: Ring.
        m: Member.
        index: int64 [B], from `draw`.
        error: float32 [B], TD errors. Entries that are not finite are skipped.
    """
    if ring.tree.shape[1] == 0:
        return
    tree, value, alpha = ring.tree[m], ring.target, ring.alpha
    for first in range(0, len(index), len(value)):
        last = min(len(index), first + len(value))
        for b in range(first, last):
            size = abs(float(error[b])) + PRIORITY_EPS
            value[b - first] = min(power(size, alpha), MAX_PRIORITY)
        for b in range(first, last):
            size = abs(float(error[b]))
            if size - size == 0.0:
                ring.max_priority[m] = max(ring.max_priority[m], value[b - first])
                tree[index[b]] = value[b - first]
    update_parents(tree, ring.minimum[m], ring.levels, index)


class Batch(NamedTuple):
    """B transitions of one member; `gather` overwrites them.

    Attributes:
        obs: float32 [B, D], unscaled (images: uint8 [B, *shape]).
        mask: bool [B, mask_size] of allowed actions; [0, 0] without masks.
        action: float32 [B, K], the policy's actions; discrete actions as whole numbers.
        reward: float32 [B], discounted sum of up to n rewards.
        discount: float32 [B], factor of the value of `obs_next`: gamma^k for k rewards, 0 after a
            termination.
        obs_next, mask_next: Like `obs` and `mask`, k steps later or at the end of the episode.
    """

    obs: Any
    mask: Any
    action: Any
    reward: Any
    discount: Any
    obs_next: Any
    mask_next: Any


def n_step_return(ring: Any, e: int, slot: int, n: int, gamma: float) -> tuple[int, float, float]:
    """Compute the n-step return of a transition.

        reward = r_0 + gamma r_1 + ... + gamma^(k-1) r_(k-1),  discount = gamma^k

    k is n, or less at the end of an episode or of the stored data. A termination makes the discount
    0. After a truncation the value of the final observation counts.

    Args:
        ring: Ring.
        e: Environment.
        slot: Slot of the transition.
        n: Maximum number of steps.
        gamma: Discount factor.

    Returns:
        Slot of the observation to bootstrap from, reward, and discount.
    """
    slots = ring.rows.shape[1]
    reward = 0.0
    discount = 1.0
    for _ in range(n):
        row = ring.rows[e, slot]
        ending = row[ENDING]
        if ending == NONE:  # head or invalid step: the last known observation
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


def gather_outcome(
    ring: Any, m: int, index: int, n: int, gamma: float, b: int, batch: Any
) -> tuple[int, int, int]:
    """Fill row b of a batch with the action, reward and discount of a transition.

    Args:
        index: n S + slot of the transition of member m, from `draw`.

    Returns:
        Environment, slot, and slot of the next observation.
    """
    slots = ring.rows.shape[1]
    e, slot = m * ring.num_envs + index // slots, index % slots
    after, batch.reward[b], batch.discount[b] = n_step_return(ring, e, slot, n, gamma)
    row = ring.rows[e, slot]
    for j in range(batch.action.shape[1]):
        batch.action[b, j] = row[ring.width + j]
    return e, slot, after


def gather_masks(ring: Any, e: int, slot: int, after: int, b: int, batch: Any) -> None:
    """Copy the masks of two slots into row b."""
    for j in range(ring.mask.shape[2]):
        batch.mask[b, j] = ring.mask[e, slot, j]
        batch.mask_next[b, j] = ring.mask[e, after, j]


def gather(ring: Any, store: Any, m: int, index: Any, n: int, gamma: float, batch: Any) -> None:
    """Fill a batch with transitions of member m whose observations are in the rows.

    Args:
        ring: Ring.
        store: Unused.
        m: Member.
        index: int64 [B], from `draw`.
        n: Maximum number of steps of a transition.
        gamma: Discount factor.
        batch: Batch, written.
    """
    for b in range(len(index)):
        e, slot, after = gather_outcome(ring, m, index[b], n, gamma, b, batch)
        gather_masks(ring, e, slot, after, b, batch)
        here, there = ring.rows[e, slot], ring.rows[e, after]
        for j in range(ring.width):
            batch.obs[b, j] = here[j]
            batch.obs_next[b, j] = there[j]


def gather_outcomes(
    ring: Any, m: int, index: Any, n: int, gamma: float, places: Any, batch: Any
) -> None:
    """Fill a batch without observations, which are stored elsewhere; see `gather`.

    Args:
        places: int64 [B, 3], written: environment, slot, and slot of the next observation.
    """
    for b in range(len(index)):
        e, slot, after = gather_outcome(ring, m, index[b], n, gamma, b, batch)
        gather_masks(ring, e, slot, after, b, batch)
        places[b, 0], places[b, 1], places[b, 2] = e, slot, after


_REFLECTION_OFFSET = np.uint64(
    1 << 40
)  # offset in the stream of a draw, after all numbers that draws use
_ONE = np.uint64(1)


class Reflection(NamedTuple):
    """A `Symmetry` for compiled loops; empty arrays disable reflection.

    Attributes:
        obs: float32 [D], 1 or -1.
        action: float32 [K], 1 or -1 for Box actions.
        choice: int64 [n], mirrored discrete actions.
    """

    obs: NDArray[np.float32]
    action: NDArray[np.float32]
    choice: NDArray[np.int64]


NO_REFLECTION = Reflection(np.zeros(0, np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))


def make_reflection(spec: EnvSpec) -> Reflection:
    """Return the reflection that a spec declares."""
    check_symmetry(spec)
    assert spec.symmetry is not None
    obs = np.ones(int(np.prod(spec.observation_shape)), np.float32)
    obs[list(spec.symmetry.observation)] = -1.0
    if spec.nvec:
        return Reflection(
            obs, NO_REFLECTION.action, np.array(spec.symmetry.action_permutation, np.int64)
        )
    action = np.ones(spec.action_dim, np.float32)
    action[list(spec.symmetry.action)] = -1.0
    return Reflection(obs, action, NO_REFLECTION.choice)


def reflect(by: Any, key: Any, batch: Any) -> None:
    """Reflect each row of a batch with probability 1/2.

    A mirrored transition has the same reward and discount.

    Args:
        by: Reflection.
        key: np.uint64, key that sampled the batch.
        batch: Batch, changed in place.
    """
    if len(by.obs) == 0:
        return
    for b in range(len(batch.reward)):
        if word(key, _REFLECTION_OFFSET + np.uint64(b)) & _ONE == 0:
            continue
        for j in range(len(by.obs)):
            batch.obs[b, j] *= by.obs[j]
            batch.obs_next[b, j] *= by.obs[j]
        for j in range(len(by.action)):
            batch.action[b, j] *= by.action[j]
        if len(by.choice) > 0:
            batch.action[b, 0] = np.float32(by.choice[int(batch.action[b, 0])])


# Example arguments for compiling loops.
RING = Ring(
    rows=f4(3),
    mask=b1(3),
    head=i8(1),
    written=i8(1),
    num_used=i8(1),
    num_valid=i8(1),
    steps=i8(1),
    tree=f4(2),
    minimum=f4(2),
    levels=i8(1),
    target=f8(1),
    max_priority=f8(1),
    width=0,
    num_envs=1,
    alpha=0.0,
)
BATCH = Batch(
    obs=f4(2),
    mask=b1(2),
    action=f4(2),
    reward=f4(1),
    discount=f4(1),
    obs_next=f4(2),
    mask_next=b1(2),
)
KEY = np.uint64(0)


def write_examples(action: Any, store: Any = ()) -> tuple[Any, ...]:
    """Return example arguments of `write`."""
    flags = (b1(1), b1(1), b1(1))
    return (
        *(RING, store, 0, 1, action, f4(1), *flags, f4(2), b1(2)),
        *(f4(2), i8(1)),
    )


@functools.cache
def loops() -> Loops:
    """Compiled functions of the replay by name."""
    return Loops(
        "replay",
        {
            begin: (RING, (), 0, 1, f4(2), b1(2)),
            write_discrete: write_examples(i8(2)),
            write_continuous: write_examples(f4(2)),
            draw: (RING, 0, KEY, 0.0, i8(1), f4(1)),
            update_priorities: (RING, 0, i8(1), f4(1)),
            gather: (RING, (), 0, i8(1), 1, 1.0, BATCH),
            reflect: (NO_REFLECTION, KEY, BATCH),
            gather_outcomes: (RING, 0, i8(1), 1, 1.0, i8(2), BATCH),
            rebuild: (f4(1), f4(1), i8(1)),
        },
    )
