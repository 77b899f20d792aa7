"""Matrix products in LLVM's language, for `products.py`: tiles whose sums stay in registers.

The columns of a large matrix that a tile needs are first copied side by side: rows a power of two
apart would push each other out of the nearest memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple


@cache
def forms() -> dict[str, Any]:
    """What compiled code calls for the functions of `products.py`, by their names."""
    from numba import types
    from numba.extending import intrinsic

    decorate: Any = intrinsic

    def products(transposed: bool) -> Callable[..., Any]:
        def product_typed(_: Any, a: Any, b: Any, c: Any) -> Any:
            return types.void(a, b, c), partial(_emit_product, transposed)

        return product_typed

    def layer_typed(_: Any, a: Any, b: Any, start: Any, floor: Any, c: Any) -> Any:
        return types.void(a, b, start, types.float32, c), _emit_layer

    def gated_typed(_: Any, a: Any, b: Any, gate: Any, c: Any) -> Any:
        return types.void(a, b, gate, c), _emit_gated

    def fused_typed(_: Any, a: Any, b: Any, c: Any) -> Any:
        return types.float32(*[types.float32] * 3), _emit_fused

    typed = {
        "fused": fused_typed,
        "add_product": products(False),
        "add_transposed_product": products(True),
        "layer_product": layer_typed,
        "gated_product": gated_typed,
    }
    return {name: decorate(form) for name, form in typed.items()}


@cache
def _tools() -> tuple[Any, ...]:
    """Loaded here: commands that compile nothing need not wait for them."""
    names = ("llvmlite.binding", "llvmlite.ir", "numba.core.cgutils")
    return tuple(importlib.import_module(name) for name in names)


def _emit_fused(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.fma(*args)


def _emit_product(transposed: bool, context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """c += a b, or a^T b; strides are counted in numbers there."""
    a, b, c = _arrays(context, builder, signature.args, args)
    return _call(context, builder, "add_product", a, b, c, transposed)


def _emit_layer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    kinds = signature.args
    a, b, start, c = _arrays(context, builder, (*kinds[:3], kinds[4]), (*args[:3], args[4]))
    return _call(context, builder, "layer_product", a, b, c, False, start.data, start.rows, args[3])


def _emit_gated(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    a, b, gate, c = _arrays(context, builder, signature.args, args)
    return _call(context, builder, "gated_product", a, b, c, False, gate.data, gate.stride)


class _Array(NamedTuple):
    """An array's memory, shape, and the numbers from one row to the next."""

    data: Any
    rows: Any
    columns: Any
    stride: Any


def _arrays(context: Any, builder: Any, kinds: Any, values: Any) -> list[_Array]:
    _, _, cgutils = _tools()

    result = []
    for kind, value in zip(kinds, values, strict=True):
        array = context.make_array(kind)(context, builder, value)
        shape = cgutils.unpack_tuple(builder, array.shape)
        stride = cgutils.unpack_tuple(builder, array.strides)[0]
        stride = builder.sdiv(stride, stride.type(4))
        result.append(_Array(array.data, shape[0], shape[-1], stride))
    return result


def _call(
    context: Any, builder: Any, kind: str, a: Any, b: Any, c: Any, transposed: bool, *more: Any
) -> Any:
    one = a.stride.type(1)
    row, step = (one, a.stride) if transposed else (a.stride, one)
    sizes = [row, step, b.stride, c.stride, c.rows, b.rows, c.columns]
    builder.call(_product_function(builder.module, kind), [a.data, b.data, c.data, *sizes, *more])
    return context.get_dummy_value()


def _product_function(module: Any, kind: str) -> Any:
    """Sums over k of a[i row + k step] b[k, j], in LLVM's language, as one of the definitions."""
    binding, ir, cgutils = _tools()

    number, integer = ir.FloatType(), ir.IntType(64)
    more = {
        "add_product": [],
        "layer_product": [number.as_pointer(), integer, number],  # start, its length, floor
        "gated_product": [number.as_pointer(), integer],  # gate, from row to row
    }[kind]
    given = [number.as_pointer()] * 3 + [integer] * 7 + more
    type_ = ir.FunctionType(ir.VoidType(), given)
    function = cgutils.get_or_insert_function(module, type_, f"slipstream_{kind}")
    if not function.is_declaration:
        return function
    function.linkage = "internal"
    a, b, c, row, step, b_row, c_row, rows, depth, columns, *rest = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    ends = _Ends(builder, kind, c, c_row, rest)
    # Registers: 32 of 16 numbers, or 16 of 8. A tile takes half of them.
    wide = binding.get_host_cpu_features().get("avx512f", False)
    lanes = 16 if wide else 8
    tall = ((2, lanes), (1, 8))  # vectors across, numbers in each
    flat = ((4, lanes), *tall)  # a few rows keep as many sums under way by going further across
    many = builder.and_(rows, integer(-4))
    panel = _Panel(builder, 2 * lanes, b_row, rows, depth)
    parts = ((tall, (8, 4) if wide else (4,), integer(0), many), (flat, (2, 1), many, rows))
    for strips, heights, begin, end in parts:
        first = integer(0)
        for vectors, lanes in strips:
            width = vectors * lanes
            with _steps(builder, first, columns, integer(width)) as (j, first):
                strip, strip_row = builder.gep(b, [j]), b_row
                if strips is tall and width == panel.width:
                    strip, strip_row = panel.fill(strip)
                top = begin
                for height in heights:
                    with _steps(builder, top, end, integer(height)) as (i, top):
                        _emit_tile(
                            *(builder, (height, vectors, lanes), depth),
                            *(builder.gep(a, [builder.mul(i, row)]), row, step),
                            *(strip, strip_row, ends, i, j),
                        )
    builder.ret_void()
    return function


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


class _Ends:
    """What a tile's sums begin with, and what becomes of them."""

    def __init__(self, builder: Any, kind: str, c: Any, c_row: Any, rest: Any) -> None:
        self._builder, self._kind, self._c, self._c_row = builder, kind, c, c_row
        self._rest = rest

    def begin(self, i: Any, j: Any, vector: Any) -> Any:
        """Sums of row i from column j on."""
        builder = self._builder
        if self._kind == "add_product":
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
