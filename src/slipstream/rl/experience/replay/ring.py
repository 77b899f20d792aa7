"""A replay's transitions: rings that are written, drawn from and gathered into batches.

Plain loops, compiled once by `loops`. Priorities are in `tree.py`; observations may be stored
elsewhere, see `state_storage.py`.
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

# How a slot's transition ends: the last column of its row.
NONE = 0.0  # no transition: an empty slot, the head, a final observation, or what is not valid
CONTINUING = 1.0
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
        num_used, held, steps: int64 [M], slots of each ring that have been used; transitions that can
            be drawn; environment steps so far.
        tree, least: float32 [M, nodes], priorities, their sums and their least, see `tree.py`;
            [M, 0] where all transitions are drawn alike. levels: int64 [L].
        target: float64, what draws write_mask for in the tree, some at once. Overwritten.
        max_priority: float64 [M], the greatest priority so far, which new transitions get.
        width: numbers of the observation in a row; copies: N; alpha: exponent of priorities.
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
    """Ends the transition that began in the head of copy e; the head moves on.

    Args:
        ring: the Ring.
        e: copy.
        action: [K]; reward: one number; terminated, truncated, valid: how the step ended.

    Returns:
        Whether the episode was cut short: then the head must be given the final observation, and
        `end_truncated` must be called before it is given the next one.
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
    """Leaves the final observation of copy e behind."""
    advance_head(ring, e, e // ring.num_envs)


def advance_head(ring: Any, e: int, m: int) -> None:
    """The next slot of copy e, which is member m's, becomes its head and is emptied."""
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
        store_observation(ring, e, obs[e], mask[e])


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
        if end_transition(ring, e, action[e], reward[e], terminated[e], truncated[e], real):
            store_observation(ring, e, final_obs[final_of[e]], mask[e])
            for j in range(ring.mask.shape[2]):  # nobody says what is allowed where it was cut
                ring.mask[e, ring.head[e], j] = True
            end_truncated(ring, e)
        store_observation(ring, e, obs[e], mask[e])


def write_discrete(
    ring: Any, store: Any, lo: int, hi: int, action: Any, reward: Any, terminated: Any,
    truncated: Any, valid: Any, obs: Any, mask: Any, final_obs: Any, final_of: Any,
) -> None:  # fmt: skip
    """`write` of int64 actions."""
    write(
        ring, store, lo, hi, action, reward, terminated, truncated, valid, obs, mask, final_obs,
        final_of,
    )  # fmt: skip


def write_continuous(
    ring: Any, store: Any, lo: int, hi: int, action: Any, reward: Any, terminated: Any,
    truncated: Any, valid: Any, obs: Any, mask: Any, final_obs: Any, final_of: Any,
) -> None:  # fmt: skip
    """`write` of float32 actions."""
    write(
        ring, store, lo, hi, action, reward, terminated, truncated, valid, obs, mask, final_obs,
        final_of,
    )  # fmt: skip


def power(x: float, y: float) -> float:
    """x^y of a normal x > 0 and y in -1..1, to a relative 1e-9; within 2^-1000 .. 2^1000."""
    return exp_2(y * log_2(x))


PRIORITY_EPS = 1e-6  # added to errors: what was learned well is drawn again some day
MAX_PRIORITY = 1e30  # priority: sums of millions of them are finite float32 numbers

_SHIFT_11 = np.uint64(11)
_TO_UNIT = 1.0 / 9007199254740992.0  # 2^-53


def draw(ring: Any, m: int, key: Any, beta: float, index: Any, weight: Any) -> None:
    """Draws B transitions of member m, with replacement.

    Without priorities each is drawn with probability 1 / R of the R that are held. With them
    transition i is drawn with probability P(i) = p_i / sum p (p is |error|^alpha), one from each of
    B equal parts of the sum, and its weight is

        w_i = (1 / (R P(i)))^beta / max_j w_j = (min_j p_j / p_i)^beta

    so that with beta = 1 the mean of w_i f(i) is that of f over all held, but for a factor that is
    the same for all i.

    Args:
        ring: the Ring; held[m] must be above 0.
        m: member.
        key: np.uint64, the random stream; another one at every call.
        beta: how much of the bias is undone, 0 to 1.
        index: int64 [B], written: n S + slot.
        weight: float32 [B], written; 1 without priorities.
    """
    if ring.tree.shape[1] > 0:
        _draw_by_priority(ring, m, key, beta, index, weight)
        return
    slots, counter = ring.rows.shape[1], 0
    ending = ring.rows.shape[2] - 1
    for b in range(len(index)):  # all are on their way before the first one is looked at
        n, slot = _place(ring, m, key, b)
        rows = ring.rows[m * ring.num_envs + n]
        prefetch_element(rows, slot, 0)
        prefetch_element(rows, slot, ending)
        prefetch_element(rows, slot + 1, ending)  # behind the next observation; need not exist
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
    """Any slot that member m has used, the copy's first."""
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
        prefetch_element(ring.rows[m * ring.num_envs + n], index[b] - n * slots, 0)  # gathered soon
        weight[b] = tree[index[b]]
    for b in range(len(index)):  # apart, so that a processor does several at once
        weight[b] = power(low / float(weight[b]), beta)


def update_priorities(ring: Any, m: int, index: Any, error: Any) -> None:
    """Sets the priorities of transitions to (|error| + 1e-6)^alpha; does nothing without any.

    Args:
        ring: the Ring; m: member.
        index: int64 [B], as drawn; error: float32 [B]. One that is not finite is passed over.
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


def n_step_return(ring: Any, e: int, slot: int, n: int, gamma: float) -> tuple[int, float, float]:
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


def gather_outcome(
    ring: Any, m: int, index: int, n: int, gamma: float, b: int, batch: Any
) -> tuple[int, int, int]:
    """Fill row b of a batch with the action, reward and discount of a transition.

    Args:
        index: n S + slot of the transition among member m's, as `draw` writes it.

    Returns:
        Its copy, its slot, and the slot of the next observation.
    """
    slots = ring.rows.shape[1]
    e, slot = m * ring.num_envs + index // slots, index % slots
    after, batch.reward[b], batch.discount[b] = n_step_return(ring, e, slot, n, gamma)
    row = ring.rows[e, slot]
    for j in range(batch.action.shape[1]):
        batch.action[b, j] = row[ring.width + j]
    return e, slot, after


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
    """`gather` without observations, for those that are kept elsewhere.

    Args:
        places: int64 [B, 3], written: copy, slot, and slot of the next observation.
    """
    for b in range(len(index)):
        e, slot, after = gather_outcome(ring, m, index[b], n, gamma, b, batch)
        gather_masks(ring, e, slot, after, b, batch)
        places[b, 0], places[b, 1], places[b, 2] = e, slot, after


_REFLECTION_OFFSET = np.uint64(1 << 40)  # place in the stream of a draw, behind all that draws use
_ONE = np.uint64(1)


class Reflection(NamedTuple):
    """A `Symmetry` for loops; all empty where nothing is reflected.

    Attributes:
        obs: float32 [D], 1 or -1; action: float32 [K] of a box.
        choice: int64 [n], what each choice becomes.
    """

    obs: NDArray[np.float32]
    action: NDArray[np.float32]
    choice: NDArray[np.int64]


NO_REFLECTION = Reflection(np.zeros(0, np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))


def make_reflection(spec: EnvSpec) -> Reflection:
    """The reflection that a spec declares."""
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
    """Reflects each row of a batch with probability 1/2; a plain loop that is compiled.

    A row's reward and discount are its mirror image's own.

    Args:
        by: Reflection; key: np.uint64, of the draw that made the batch; batch: the Batch, changed.
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


# Examples of types, for whoever compiles loops that take them.
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
    """Examples of the arguments of `write`."""
    flags = (b1(1), b1(1), b1(1))
    return (
        *(RING, store, 0, 1, action, f4(1), *flags, f4(2), b1(2)),
        *(f4(2), i8(1)),
    )


@functools.cache
def loops() -> Loops:
    """Compiled forms of the replay's functions, by their names."""
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
