"""Sums of priorities, as plain loops that `compiled.py` compiles.

A member's tree is one row: its leaves, then the sums of 8 leaves each, then the sums of 8 of
those, until at most 8 are left (two levels at least). Eight numbers of float64 are a cache line, so
finding one leaf among a million reads seven lines. Sums are added up again from their parts, never
changed by a difference: they do not drift, and they are the same bits when they are rebuilt from
the leaves.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

BRANCHES = 8


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
        tree: float64 [nodes], a member's row; levels: int64 [L].
        least: float64 [nodes - leaves' places], the least of the parts of each node that is a sum.
        level, node: which sum.
    """
    a = levels[level - 1] + BRANCHES * node
    tree[levels[level] + node] = ((tree[a] + tree[a + 1]) + (tree[a + 2] + tree[a + 3])) + (
        (tree[a + 4] + tree[a + 5]) + (tree[a + 6] + tree[a + 7])
    )
    low = math.inf
    first = levels[1]
    for i in range(a, a + BRANCHES):
        if level > 1:
            low = min(low, least[i - first])
        elif tree[i] > 0.0:
            low = min(low, tree[i])
    least[levels[level] - first + node] = low


def set_leaf(tree: Any, least: Any, levels: Any, leaf: int, value: float) -> None:
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
        result += tree[i]
    return result


def smallest(least: Any, levels: Any) -> float:
    """The least leaf that is not zero."""
    low = math.inf
    for i in range(levels[len(levels) - 1] - levels[1], len(least)):
        low = min(low, least[i])
    return low


def find_leaf(tree: Any, levels: Any, target: float) -> int:
    """The leaf in which `target` falls, of leaves laid end to end as intervals of their size.

    Rounding may carry `target` beyond the end of a node's parts: the last one of any size is taken.
    """
    node = 0
    for level in range(len(levels) - 1, -1, -1):
        first = levels[level] + BRANCHES * node
        chosen = 0
        for i in range(BRANCHES):
            size = tree[first + i]
            if size > 0.0:
                chosen = i
                if target < size:
                    break
                target -= size
        node = BRANCHES * node + chosen
    return node
