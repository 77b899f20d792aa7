"""Parts of a row as matrices: compiled and interpreted, the same numbers in the same memory."""

from __future__ import annotations

import numpy as np

from slipstream.jit import codegen
from slipstream.jit.alignment import matrix

_TEXT = """
def double(numbers, at, rows, columns, out):
    part = matrix(numbers, at, rows, columns)
    for i in range(part.shape[0]):
        for j in range(part.shape[1]):
            out[i, j] = part[i, j]
            part[i, j] *= 2
"""


def test_a_part_is_seen_and_written_in_place() -> None:
    for kind in (np.float32, np.float64, np.int64):
        example = (np.zeros(1, kind), 0, 1, 1, np.zeros((1, 1), kind))
        compiled = codegen.compile_module(
            "matrices_test", _TEXT, {"double": example}, {"matrix": matrix}, {}
        )["double"]
        interpreted = codegen.build_interpreted(_TEXT, {"matrix": matrix}, {}).double
        found = []
        for run in (compiled, interpreted):
            rows = np.arange(60, dtype=kind).reshape(3, 20)
            out = np.zeros((2, 5), kind)
            run(rows[1], 3, 2, 5, out)  # a row of a table, not from its beginning
            found.append((rows, out))
        (one, shown), (other, also) = found
        np.testing.assert_array_equal(shown, np.arange(23, 33).reshape(2, 5))
        np.testing.assert_array_equal(shown, also)
        np.testing.assert_array_equal(one, other)
        changed = np.arange(60).reshape(3, 20)
        changed[1, 3:13] *= 2
        np.testing.assert_array_equal(one, changed)
