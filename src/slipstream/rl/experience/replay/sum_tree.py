"""Sums of priorities, as plain loops that `ring.py` compiles.

A member's tree is one row: its leaves, then the sums of 16 leaves each, then the sums of 16 of
those, until at most 16 are left (two levels at least). Sixteen numbers of float32 are a cache line,
so finding one leaf among a million reads five lines, of which all but the last are often used. A
batch goes through the tree level by level: what its rows read does not depend on each other, and a
processor asks for many lines at once. Sums are added up again from their parts, never changed by a
difference: they do not drift, and they are the same bits when they are rebuilt from the leaves.
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
    """Where each level begins in a row, int64 [L], leaves first; and the length of the row."""
    offsets, place, count = [], 0, leaves
    while True:
        offsets.append(place)
        place += -(-count // BRANCHES) * BRANCHES
        if count <= BRANCHES and len(offsets) > 1:
            return np.array(offsets, np.int64), place
        count = -(-count // BRANCHES)


def update_node(tree: Any, minimum: Any, levels: Any, level: int, node: int) -> None:
    """Adds up a node's parts on the level below it, and finds the least that is not zero.

    Args:
        tree: float32 [nodes], a member's row; levels: int64 [L].
        least: float32 [nodes - leaves' places], the least of the parts of each node that is a sum.
        level, node: which sum.
    """
    first, a = levels[1], levels[level - 1] + BRANCHES * node
    tree[levels[level] + node] = sum_of(tree, a)
    low = least_of(tree, a) if level == 1 else least_of(minimum, a - first)
    minimum[levels[level] - first + node] = low


def update_parents(tree: Any, minimum: Any, levels: Any, leaves: Any) -> None:
    """All sums above leaves that were set, int64 [B]; one that follows its neighbour is cheap."""
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
    """Sets a leaf and all sums above it."""
    tree[leaf] = value
    node = leaf
    for level in range(1, len(levels)):
        node = node >> _BITS
        update_node(tree, minimum, levels, level, node)


def rebuild(tree: Any, minimum: Any, levels: Any) -> None:
    """All sums of a row from its leaves."""
    for level in range(1, len(levels)):
        for node in range((levels[level] - levels[level - 1]) // BRANCHES):
            update_node(tree, minimum, levels, level, node)


def total_priority(tree: Any, levels: Any) -> float:
    """The sum of all leaves."""
    result = 0.0
    for i in range(levels[len(levels) - 1], len(tree)):
        result += float(tree[i])
    return result


def min_priority(minimum: Any, levels: Any) -> float:
    """The least leaf that is not zero."""
    low = _INFINITY
    for i in range(levels[len(levels) - 1] - levels[1], len(minimum)):
        low = min(low, minimum[i])
    return float(low)


def find_leaves(trees: Any, m: int, levels: Any, target: Any, leaves: Any) -> None:
    """The leaves in which targets fall, of leaves laid end to end as intervals of their size.

    Rounding may carry a target beyond the end of a node's parts: the last one of any size is taken.

    Args:
        trees: float32 [M, nodes]; m: whose leaves.
        target: float64 [B], overwritten; leaves: int64 [B], written.
    """
    tree = trees[m]
    leaves[:] = 0
    for level in range(len(levels) - 1, -1, -1):
        for b in range(len(target)):
            first = levels[level] + BRANCHES * leaves[b]
            chosen, begin = place_of(tree, first, np.float32(target[b]))
            # float32 may have taken it up to where the part begins: it is not before that part.
            target[b] = max(target[b] - begin, 0.0)
            leaves[b] = BRANCHES * leaves[b] + chosen
            if level > 0:
                prefetch_element(trees, m, levels[level - 1] + BRANCHES * leaves[b])
