"""Sums of priorities, as plain loops that `compiled.py` compiles.

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

from slipstream.core.memory import prefetch

BRANCHES = 16
_NOTHING = np.float32(0.0)
_ENDLESS = np.float32(math.inf)


def tree_levels(leaves: int) -> tuple[NDArray[np.int64], int]:
    """Where each level begins in a row, int64 [L], leaves first; and the length of the row."""
    begins, place, count = [], 0, leaves
    while True:
        begins.append(place)
        place += -(-count // BRANCHES) * BRANCHES
        if count <= BRANCHES and len(begins) > 1:
            return np.array(begins, np.int64), place
        count = -(-count // BRANCHES)


def sum_above(tree: Any, least: Any, levels: Any, level: int, node: int) -> None:
    """Adds up a node's parts on the level below it, and finds the least that is not zero.

    Args:
        tree: float32 [nodes], a member's row; levels: int64 [L].
        least: float32 [nodes - leaves' places], the least of the parts of each node that is a sum.
        level, node: which sum.
    """
    first = levels[1]
    a = levels[level - 1] + BRANCHES * node
    left, right, low = _NOTHING, _NOTHING, _ENDLESS  # two sums side by side wait half as long
    half = BRANCHES // 2
    for i in range(a, a + half):
        left += tree[i]
        right += tree[i + half]
    if level > 1:
        for i in range(a - first, a - first + BRANCHES):
            low = least[i] if least[i] < low else low
    else:
        for i in range(a, a + BRANCHES):
            low = tree[i] if _NOTHING < tree[i] < low else low
    tree[levels[level] + node] = left + right
    least[levels[level] - first + node] = low


def sum_leaves(tree: Any, least: Any, levels: Any, leaves: Any) -> None:
    """All sums above leaves that were set, int64 [B]; one that follows its neighbour is cheap."""
    width = BRANCHES
    for level in range(1, len(levels)):
        last = -1
        for b in range(len(leaves)):
            node = leaves[b] // width
            if node != last:
                sum_above(tree, least, levels, level, node)
            last = node
        width *= BRANCHES


def set_leaf(tree: Any, least: Any, levels: Any, leaf: int, value: Any) -> None:
    """Sets a leaf and all sums above it."""
    tree[leaf] = value
    node = leaf
    for level in range(1, len(levels)):
        node = node // BRANCHES
        sum_above(tree, least, levels, level, node)


def rebuild(tree: Any, least: Any, levels: Any) -> None:
    """All sums of a row from its leaves."""
    for level in range(1, len(levels)):
        for node in range((levels[level] - levels[level - 1]) // BRANCHES):
            sum_above(tree, least, levels, level, node)


def total(tree: Any, levels: Any) -> float:
    """The sum of all leaves."""
    result = 0.0
    for i in range(levels[len(levels) - 1], len(tree)):
        result += float(tree[i])
    return result


def smallest(least: Any, levels: Any) -> float:
    """The least leaf that is not zero."""
    low = _ENDLESS
    for i in range(levels[len(levels) - 1] - levels[1], len(least)):
        low = min(low, least[i])
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
            # First a quarter of the parts, then one of it; without a branch, which nobody could
            # foretell.
            first, sought = levels[level] + BRANCHES * leaves[b], target[b]
            part, begin, before = 0, 0.0, 0.0
            for i in range(0, BRANCHES, 4):
                a = first + i
                low = float(tree[a]) + float(tree[a + 1])
                high = float(tree[a + 2]) + float(tree[a + 3])
                size = low + high
                here = (size > 0.0) & (before <= sought)
                part = i if here else part
                begin = before if here else begin
                before += size
            chosen, before = part, begin
            for i in range(part, part + 4):
                size = float(tree[first + i])
                here = (size > 0.0) & (before <= sought)
                chosen = i if here else chosen
                begin = before if here else begin
                before += size
            target[b] = sought - begin
            leaves[b] = BRANCHES * leaves[b] + chosen
            if level > 0:
                prefetch(trees, m, levels[level - 1] + BRANCHES * leaves[b])
