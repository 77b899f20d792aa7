"""Sum tree of priorities, as plain loops that `ring.py` compiles.

A member's tree is one row: its leaves, then sums of 16 leaves each, then sums of 16 of those, until
at most 16 remain (at least two levels). Sixteen float32 numbers are a cache line, so finding one
leaf among a million reads five lines, most of them cached. A batch descends level by level: its
reads are independent, so the CPU can issue many at once. Sums are always recomputed from their
children, never changed by a difference. They do not drift, and rebuilding the tree from its leaves
gives identical bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.jit.alignment import prefetch_element
from slipstream.jit.simd import WIDTH, least_of, place_of, sum_of

BRANCHES = WIDTH
_BITS = BRANCHES.bit_length() - 1
_INFINITY = np.float32(math.inf)


def tree_levels(leaves: int) -> tuple[NDArray[np.int64], int]:
    """Return the offset of each level in a row, int64 [L], leaves first, and the row's length."""
    offsets, place, count = [], 0, leaves
    while True:
        offsets.append(place)
        place += -(-count // BRANCHES) * BRANCHES
        if count <= BRANCHES and len(offsets) > 1:
            return np.array(offsets, np.int64), place
        count = -(-count // BRANCHES)


def update_node(tree: Any, minimum: Any, levels: Any, level: int, node: int) -> None:
    """Recompute a node's sum, and its smallest non-zero leaf, from its children.

    Args:
        tree: float32 [nodes], a member's row.
        minimum: float32 [nodes - padded leaves], smallest non-zero child of each sum.
        levels: int64 [L].
        level, node: Position of the sum.
    """
    first, a = levels[1], levels[level - 1] + BRANCHES * node
    tree[levels[level] + node] = sum_of(tree, a)
    low = least_of(tree, a) if level == 1 else least_of(minimum, a - first)
    minimum[levels[level] - first + node] = low


def update_parents(tree: Any, minimum: Any, levels: Any, leaves: Any) -> None:
    """Recompute all sums above changed leaves, int64 [B]. Equal neighbours are merged."""
    bits = _BITS
    for level in range(1, len(levels)):
        last = -1
        for b in range(len(leaves)):
            node = leaves[b] >> bits
            if node != last:
                update_node(tree, minimum, levels, level, node)
            last = node
        bits += _BITS


def set_leaf(tree: Any, minimum: Any, levels: Any, leaf: int, value: Any) -> None:
    """Set a leaf and recompute all sums above it."""
    tree[leaf] = value
    node = leaf
    for level in range(1, len(levels)):
        node = node >> _BITS
        update_node(tree, minimum, levels, level, node)


def rebuild(tree: Any, minimum: Any, levels: Any) -> None:
    """Recompute all sums of a row from its leaves."""
    for level in range(1, len(levels)):
        for node in range((levels[level] - levels[level - 1]) // BRANCHES):
            update_node(tree, minimum, levels, level, node)


def total_priority(tree: Any, levels: Any) -> float:
    """Return the sum of all leaves."""
    result = 0.0
    for i in range(levels[len(levels) - 1], len(tree)):
        result += float(tree[i])
    return result


def min_priority(minimum: Any, levels: Any) -> float:
    """Return the smallest leaf that is not zero."""
    low = _INFINITY
    for i in range(levels[len(levels) - 1] - levels[1], len(minimum)):
        low = min(low, minimum[i])
    return float(low)


def find_leaves(trees: Any, m: int, levels: Any, target: Any, leaves: Any) -> None:
    """Find the leaves that contain targets, with leaves as consecutive intervals of their size.

    Rounding may move a target past the end of a node's children; the last non-zero child is used.

    Args:
        trees: float32 [M, nodes].
        m: Member.
        levels: int64 [L].
        target: float64 [B], overwritten.
        leaves: int64 [B], written.
    """
    tree = trees[m]
    leaves[:] = 0
    for level in range(len(levels) - 1, -1, -1):
        for b in range(len(target)):
            first = levels[level] + BRANCHES * leaves[b]
            chosen, begin = place_of(tree, first, np.float32(target[b]))
            # Rounding to float32 may exceed the interval's start; clamp at 0.
            target[b] = max(target[b] - begin, 0.0)
            leaves[b] = BRANCHES * leaves[b] + chosen
            if level > 0:
                prefetch_element(trees, m, levels[level - 1] + BRANCHES * leaves[b])
