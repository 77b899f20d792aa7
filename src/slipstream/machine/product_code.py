"""Matrix products in LLVM's language, for `products.py`: tiles whose sums stay in registers.

The columns of a large matrix that a tile needs are first copied side by side: rows a power of two
apart would push each other out of the nearest memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

KINDS = ("add_product", "add_transposed_product", "layer_product", "gated_product", "transpose")

_SQUARE = 8  # numbers of a side
_LINE = 16  # numbers of a cache line


@cache
def _tools() -> tuple[Any, ...]:
    """Loaded here: commands that compile nothing need not wait for them."""
    names = ("llvmlite.binding", "llvmlite.ir", "numba.core.cgutils")
    return tuple(importlib.import_module(name) for name in names)


def define(module: Any, kind: str, name: str) -> None:
    """Adds the function of one of KINDS to a module."""
    binding, ir, _ = _tools()

    function = ir.Function(module, type_of(kind), name)
    if kind == "transpose":
        _define_transpose(function)
        return
    a, b, c, a_row, b_row, c_row, rows, depth, columns, *rest = function.args
    integer = rows.type
    one = integer(1)
    row, step = (one, a_row) if kind == "add_transposed_product" else (a_row, one)
    builder = ir.IRBuilder(function.append_basic_block())
    ends = _Ends(builder, kind, c, c_row, rest)
    # Registers: 32 of 16 numbers, or 16 of 8. A tile takes half of them.
    wide = binding.get_host_cpu_features().get("avx512f", False)
    lanes = 16 if wide else 8
    # Vectors across, numbers in each, rows.
    tall = ((2, lanes, (8, 4) if wide else (4,)), (1, 8, (8, 4)))
    # A few rows keep as many sums under way by going further across.
    flat = tuple((*strip, (2, 1)) for strip in ((4, lanes), (2, lanes), (1, 8)))
    many = builder.and_(rows, integer(-4))
    panel = _Panel(builder, 2 * lanes, b_row, rows, depth)
    for strips, begin, end in ((tall, integer(0), many), (flat, many, rows)):
        first = integer(0)
        for vectors, lanes, heights in strips:
            width = vectors * lanes
            with _steps(builder, first, columns, integer(width)) as (j, first):
                strip, strip_row = builder.gep(b, [j]), b_row
                if strips is tall and width == panel.width:
                    strip, strip_row = panel.fill(strip)
                top = begin
                for height in heights:
                    with _steps(builder, top, end, integer(height)) as (i, top):
                        if strips is tall and width == panel.width:
                            panel.ask(builder.gep(b, [j]), columns, j, i, height, many)
                        _emit_tile(
                            *(builder, (height, vectors, lanes), depth),
                            *(builder.gep(a, [builder.mul(i, row)]), row, step),
                            *(strip, strip_row, ends, i, j),
                        )
    builder.ret_void()


def type_of(kind: str) -> Any:
    """Of a function: matrices, from row to row of each, sizes, and what the kind takes besides."""
    _, ir, _ = _tools()

    number, integer = ir.FloatType(), ir.IntType(64)
    more = {
        "layer_product": [number.as_pointer(), integer, number],  # start, its length, floor
        "gated_product": [number.as_pointer(), integer],  # gate, from row to row
    }.get(kind, [])
    matrices, sizes = (2, 2) if kind == "transpose" else (3, 3)
    given = [number.as_pointer()] * matrices + [integer] * (matrices + sizes)
    return ir.FunctionType(ir.VoidType(), given + more)


def _define_transpose(function: Any) -> None:
    """By squares that stay in registers."""
    _, ir, _ = _tools()

    a, b, a_row, b_row, rows, columns = function.args
    number, integer = ir.FloatType(), rows.type
    builder = ir.IRBuilder(function.append_basic_block())
    vector, index = ir.VectorType(number, _SQUARE), ir.IntType(32)

    def line(start: Any, i: Any, j: Any, r: int, row: Any) -> Any:
        place = builder.add(builder.mul(builder.add(i, integer(r)), row), j)
        return builder.bitcast(builder.gep(start, [place]), vector.as_pointer())

    def interleave(one: Any, other: Any, first: int) -> Any:
        places = [p for i in range(first, first + _SQUARE // 2) for p in (i, _SQUARE + i)]
        mask = ir.Constant(ir.VectorType(index, _SQUARE), places)
        return builder.shuffle_vector(one, other, mask)

    side, zero = integer(_SQUARE), integer(0)
    with (
        _steps(builder, zero, columns, side) as (j, _),
        _steps(builder, zero, rows, side) as (i, _),
    ):
        lines = [builder.load(line(a, i, j, r, a_row), align=4) for r in range(_SQUARE)]
        half = _SQUARE // 2
        for _ in range(half.bit_length()):  # each turns the bits of (row, column) by one place
            pairs = zip(lines[:half], lines[half:], strict=True)
            lines = [interleave(*pair, first) for pair in pairs for first in (0, half)]
        for r, one in enumerate(lines):
            builder.store(one, line(b, j, i, r, b_row), align=4)
    builder.ret_void()


class _Panel:
    """Some columns of b, copied side by side where b is large and its rows are used often.

    Args:
        width: columns; b_row, rows, depth: of the product.
    """

    _DEPTH = 512  # rows that there is memory for
    _LARGE, _OFTEN = 8192, 16  # numbers of b, rows of a: from which on copying pays

    def __init__(self, builder: Any, width: int, b_row: Any, rows: Any, depth: Any) -> None:
        _, ir, cgutils = _tools()

        self._builder, self.width, self._b_row, self._depth = builder, width, b_row, depth
        self._memory = cgutils.alloca_once(builder, ir.FloatType(), size=self._DEPTH * width)
        self._memory.align = 64
        integer = depth.type
        fits = builder.icmp_signed("<=", depth, integer(self._DEPTH))
        large = builder.icmp_signed(">=", builder.mul(depth, b_row), integer(self._LARGE))
        often = builder.icmp_signed(">=", rows, integer(self._OFTEN))
        self._used = builder.and_(fits, builder.and_(large, often))

    def fill(self, strip: Any) -> tuple[Any, Any]:
        """Where the columns that begin at `strip` are now, and from row to row."""
        _, ir, cgutils = _tools()

        builder, integer = self._builder, self._depth.type
        vector = ir.VectorType(ir.FloatType(), self.width)
        with builder.if_then(self._used), cgutils.for_range(builder, self._depth) as loop:
            source = builder.gep(strip, [builder.mul(loop.index, self._b_row)])
            target = builder.gep(self._memory, [builder.mul(loop.index, integer(self.width))])
            numbers = builder.load(builder.bitcast(source, vector.as_pointer()), align=4)
            builder.store(numbers, builder.bitcast(target, vector.as_pointer()), align=4)
        strip = builder.select(self._used, self._memory, strip)
        return strip, builder.select(self._used, integer(self.width), self._b_row)

    def ask(self, strip: Any, columns: Any, j: Any, i: Any, height: int, rows: Any) -> None:
        """Asks for a part of the columns after those at j, while rows i.. of `rows` are made.

        They lie apart, where no processor foresees what comes next; the parts of all tiles are all.
        """
        _, ir, cgutils = _tools()

        builder, integer = self._builder, self._depth.type
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        more = builder.icmp_signed("<", builder.add(j, integer(self.width)), columns)
        with builder.if_then(builder.and_(self._used, more)):
            edges = [builder.mul(x, self._depth) for x in (i, builder.add(i, integer(height)))]
            first, last = (builder.sdiv(edge, rows) for edge in edges)
            with cgutils.for_range(builder, last, start=first) as loop:
                line = builder.gep(strip, [builder.mul(loop.index, self._b_row)])
                for next_one in range(self.width, 2 * self.width, _LINE):
                    place = builder.bitcast(builder.gep(line, [integer(next_one)]), byte)
                    builder.call(function, [place, flag(0), flag(2), flag(1)])


class _Ends:
    """What a tile's sums begin with, and what becomes of them."""

    def __init__(self, builder: Any, kind: str, c: Any, c_row: Any, rest: Any) -> None:
        self._builder, self._kind, self._c, self._c_row = builder, kind, c, c_row
        self._rest = rest

    def begin(self, i: Any, j: Any, vector: Any) -> Any:
        """Sums of row i from column j on."""
        builder = self._builder
        if self._kind in ("add_product", "add_transposed_product"):
            return self._load(self._c, i, j, self._c_row, vector)
        if self._kind == "gated_product":
            return vector(None)
        start, length, _ = self._rest
        zero = length.type(0)
        some = builder.icmp_signed(">", length, zero)
        # without a start, anything readable: c's own first numbers
        place = builder.select(some, builder.gep(start, [j]), builder.gep(self._c, [j]))
        numbers = builder.load(builder.bitcast(place, vector.as_pointer()), align=4)
        return builder.select(some, numbers, vector(None))

    def end(self, i: Any, j: Any, sums: Any) -> None:
        """Stores them."""
        builder, vector = self._builder, sums.type
        if self._kind == "layer_product":
            floor = _spread(builder, self._rest[2], vector)
            sums = builder.select(builder.fcmp_ordered("<", sums, floor), floor, sums)
        if self._kind == "gated_product":
            gate, row = self._rest
            gate = self._load(gate, i, j, row, vector)
            sums = builder.select(builder.fcmp_ordered(">", gate, vector(None)), sums, vector(None))
        place = builder.gep(self._c, [builder.add(builder.mul(i, self._c_row), j)])
        builder.store(sums, builder.bitcast(place, vector.as_pointer()), align=4)

    def _load(self, start: Any, i: Any, j: Any, row: Any, vector: Any) -> Any:
        builder = self._builder
        place = builder.gep(start, [builder.add(builder.mul(i, row), j)])
        return builder.load(builder.bitcast(place, vector.as_pointer()), align=4)


@contextmanager
def _steps(builder: Any, first: Any, end: Any, width: Any) -> Iterator[tuple[Any, Any]]:
    """A loop over first, first + width, ... while a whole step fits before `end`.

    Yields:
        where the step begins, and where the first step that did not fit would.
    """
    _, _, cgutils = _tools()

    count = builder.sdiv(builder.sub(end, first), width)
    rest = builder.add(first, builder.mul(count, width))
    with cgutils.for_range(builder, count) as loop:
        yield builder.add(first, builder.mul(loop.index, width)), rest


def _emit_tile(
    builder: Any, shape: tuple[int, int, int], depth: Any, a: Any, row: Any, step: Any, b: Any,
    b_row: Any, ends: _Ends, i: Any, j: Any,
) -> None:  # fmt: skip
    """`shape` = (rows, vectors, numbers in each): all of them stay in registers over k."""
    _, ir, cgutils = _tools()

    height, vectors, lanes = shape
    integer, vector = depth.type, ir.VectorType(ir.FloatType(), lanes)
    multiply_add = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{lanes}f32"
    )
    elements = [(r, v) for r in range(height) for v in range(vectors)]
    lines = [builder.add(i, integer(r)) for r in range(height)]
    across = [builder.add(j, integer(v * lanes)) for v in range(vectors)]
    sums = {}
    for r, v in elements:
        sums[r, v] = cgutils.alloca_once(builder, vector)
        builder.store(ends.begin(lines[r], across[v], vector), sums[r, v])
    with cgutils.for_range(builder, depth) as loop:
        line = builder.gep(b, [builder.mul(loop.index, b_row)])
        factors = []
        for v in range(vectors):
            place = builder.gep(line, [integer(v * lanes)])
            factors.append(builder.load(builder.bitcast(place, vector.as_pointer()), align=4))
        column = builder.gep(a, [builder.mul(loop.index, step)])
        for r in range(height):
            one = builder.load(builder.gep(column, [builder.mul(integer(r), row)]))
            spread = _spread(builder, one, vector)
            for v in range(vectors):
                total = builder.call(multiply_add, [spread, factors[v], builder.load(sums[r, v])])
                builder.store(total, sums[r, v])
    for r, v in elements:
        ends.end(lines[r], across[v], builder.load(sums[r, v]))


def _spread(builder: Any, number: Any, vector: Any) -> Any:
    _, ir, _ = _tools()

    nothing, index = ir.Constant(vector, ir.Undefined), ir.IntType(32)
    first = builder.insert_element(nothing, number, index(0))
    zeros = ir.Constant(ir.VectorType(index, vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, nothing, zeros)
