"""NamedTuples by reference: compiled code reads what the definition reads, and what is new."""

import copy
from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest

from slipstream.jit import codegen
from slipstream.jit.struct_pointer import StructPointer


class Inner(NamedTuple):
    row: Any
    scale: float
    on: bool


class Outer(NamedTuple):
    first: Inner
    count: int
    pair: tuple[Inner, Inner]
    targets: tuple[Any, Any]
    key: Any
    grid: Any
    off: bool


def inner(factor):
    return Inner(np.arange(3.0) * factor, 0.5 * factor, factor > 2)


def outer(factor=1):
    grid = np.arange(6, dtype=np.float32).reshape(2, 3) * factor
    targets = np.full(2, 10 * factor), np.full(2, 20 * factor)
    pair = inner(2), inner(3 * factor)
    return Outer(inner(factor), -7 * factor, pair, targets, np.uint64(2**63 + factor), grid, False)


def weighed(one: Any, i: int) -> float:
    return one.scale * one.row[i] + (100.0 if one.on else 0.0)


def reads(by: Any, out: Any) -> None:
    """Every kind of field, one that is asked for by number, and a whole tuple by value again."""
    by.grid[1, 2] = -1.0
    for c in range(2):
        out[c] = weighed(by.pair[c], 1) + by.targets[c][1]
    out[2] = weighed(by.first, 2) + by.count + by.grid[0, 1]
    out[3] = float(by.key - np.uint64(2**63)) + (0.5 if by.off else 0.25)
    out[4] = linked(by.pair[1])


def linked(one: Any) -> float:
    return one.row[2] + one.scale


def expected(by):
    out = np.zeros(5)
    reads(by, out)
    assert by.grid[1, 2] == -1.0
    return out.tolist()


@pytest.fixture(scope="module")
def functions():
    """By value and by reference; both call `linked`, which another module takes by value."""
    text = "def run(one):\n    return linked(one)\n"
    apart = codegen.compile_module("linked", text, {"run": (inner(1),)}, {"linked": linked}, {})
    text = "def run(by, out):\n    reads(by, out)\n"

    def compiled(name, example):
        entries, bindings = {"run": (example, np.zeros(5))}, {"reads": reads}
        return codegen.compile_module(
            name, text, entries, bindings, {}, noinline={linked: apart["run"]}, struct_pointers=True
        )["run"]

    return compiled("by_value", outer()), compiled("by_reference", StructPointer(outer()))


def test_fields_are_read_as_the_definition_reads_them(functions):
    by_value, by_reference = functions
    for factor in (1, 2):
        found, written = np.zeros(5), outer(factor)
        by_value(written, found)
        assert found.tolist() == expected(outer(factor)) and written.grid[1, 2] == -1.0
        found, written = np.zeros(5), outer(factor)
        by_reference(StructPointer(written), found)
        assert found.tolist() == expected(outer(factor)) and written.grid[1, 2] == -1.0


def test_what_is_new_is_read_and_nothing_of_before(functions):
    packed, found = StructPointer(outer(1)), np.zeros(5)
    assert packed.update(outer(3)) is packed
    functions[1](packed, found)
    assert found.tolist() == expected(outer(3))


def test_another_type_is_no_tuple_of_the_same():
    value = outer()
    for other in (value.grid.astype(np.float64), value.grid.T, value.grid[0]):
        with pytest.raises(AssertionError):
            StructPointer(value).update(value._replace(grid=other))
    for field in ({"off": 256}, {"count": 2.0}, {"count": np.int32(2)}):
        with pytest.raises(AssertionError):
            StructPointer(value).update(value._replace(**field))


def last(by: Any, out: Any) -> None:
    out[0] = by.targets[-1][0] + by.pair[-2].scale


def test_tuples_are_counted_from_their_end_and_copies_have_their_own_memory():
    entries, text = (
        {"run": (StructPointer(outer()), np.zeros(1))},
        "def run(by, out):\n    last(by, out)\n",
    )
    run = codegen.compile_module("last", text, entries, {"last": last}, {}, struct_pointers=True)[
        "run"
    ]
    found = np.zeros(1)
    copied = copy.deepcopy(StructPointer(outer(2)))
    for packed in (StructPointer(outer()), copied):
        run(packed, found)
        assert found[0] == packed.value.targets[-1][0] + packed.value.pair[-2].scale


def swaps(by: Any, out: Any) -> None:
    out[0] = by.a[0]
    out[1] = by.b[0]


@pytest.mark.parametrize("form", [tuple, StructPointer])
def test_two_orders_of_the_same_fields_are_two_types(form):
    """Numba's name of a NamedTuple has no fields: the cache gave one the other's code."""
    text, one, two = "def run(by, out):\n    swaps(by, out)\n", np.ones(1), np.full(1, 2.0)
    for order in ("ab", "ba"):
        kind = namedtuple("Pair", tuple(order))
        by, out = kind(**{"a": one, "b": two}), np.zeros(2)
        by = by if form is tuple else form(by)
        run = codegen.compile_module(
            "swaps",
            text,
            {"run": (by, out)},
            {"swaps": swaps},
            {},
            struct_pointers=form is StructPointer,
        )["run"]
        run(by, out)
        assert out.tolist() == [1.0, 2.0]
