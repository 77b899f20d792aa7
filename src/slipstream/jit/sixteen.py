"""Sixteen float32 numbers at once, and numbers as bits: definitions, and their machine form.

The definitions are what an interpreter runs. Compiled code gets instructions of the processor that
give the same bits: all sums are taken in the order that is written here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from slipstream.jit.machine_form import MachineForms, tools

WIDTH = 16


def sum_of(row: Any, first: int) -> Any:
    """The sum of row[first : first + 16]: its halves are added until one number is left."""
    part, half = row[first : first + WIDTH].copy(), WIDTH // 2
    while half > 0:
        part, half = part[:half] + part[half:], half // 2
    return part[0]


def least_of(row: Any, first: int) -> Any:
    """The least of them that is above 0; infinity where none is."""
    low = np.float32(math.inf)
    for size in row[first : first + WIDTH]:
        low = size if 0.0 < size < low else low
    return low


def place_of(row: Any, first: int, sought: Any) -> tuple[int, float]:
    """In which of them, laid end to end as intervals of their size, a float32 number falls.

    The last one of any size for a number beyond their end.

    Returns:
        which, 0 to 15, and where its interval begins.
    """
    end, shift = row[first : first + WIDTH].copy(), 1
    while shift < WIDTH:  # sums of so many neighbours become sums of twice as many
        end[shift:] = end[shift:] + end[:-shift]
        shift *= 2
    chosen = 0
    for i in range(1, WIDTH):
        chosen = i if row[first + i] > 0.0 and end[i - 1] <= sought else chosen
    return chosen, float(end[chosen - 1]) if chosen > 0 else 0.0


def bits_of(x: float) -> int:
    """The bits of a float64 number."""
    return int(np.float64(x).view(np.int64))


def float_of(bits: int) -> float:
    """The float64 number of these bits."""
    return float(np.int64(bits).view(np.float64))


# Long: the operations above, one after another.
def _typed() -> tuple[Callable[..., Any], ...]:
    ir, types, cgutils = tools()
    number, index, integer = ir.FloatType(), ir.IntType(32), ir.IntType(64)

    def loaded(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        array = context.make_array(kind)(context, builder, args[0])
        place = cgutils.get_item_pointer(context, builder, kind, array, [args[1]], wraparound=False)
        vector = ir.VectorType(number, WIDTH)
        return builder.load(builder.bitcast(place, vector.as_pointer()), align=4)

    def zeros(width: int) -> Any:
        return ir.VectorType(number, width)(None)

    def shuffled(builder: Any, one: Any, other: Any, places: list[int]) -> Any:
        mask = ir.Constant(ir.VectorType(index, len(places)), places)
        return builder.shuffle_vector(one, other, mask)

    def halved(builder: Any, part: Any, join: Any) -> Any:
        """One number from a vector: its halves are joined until one is left."""
        half = WIDTH // 2
        while half > 0:
            low, high = (
                shuffled(builder, part, part, list(range(at, at + half))) for at in (0, half)
            )
            part, half = join(low, high), half // 2
        return builder.extract_element(part, index(0))

    def sum_of(_: Any, row: Any, first: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return halved(builder, loaded(context, builder, signature, args), builder.fadd)

        return types.float32(row, types.intp), emit

    def least_of(_: Any, row: Any, first: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            size = loaded(context, builder, signature, args)
            endless = ir.Constant(size.type, [number(math.inf)] * WIDTH)
            above = builder.fcmp_ordered(">", size, zeros(WIDTH))

            def smaller(a: Any, b: Any) -> Any:
                return builder.select(builder.fcmp_ordered("<", a, b), a, b)

            return halved(builder, builder.select(above, size, endless), smaller)

        return types.float32(row, types.intp), emit

    def place_of(_: Any, row: Any, first: Any, sought: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            size = end = loaded(context, builder, signature, args)
            nothing, shift = zeros(WIDTH), 1

            def moved(vector: Any, by: int) -> Any:
                return shuffled(builder, nothing, vector, list(range(WIDTH - by, 2 * WIDTH - by)))

            while shift < WIDTH:
                end = builder.fadd(end, moved(end, shift))
                shift *= 2
            begin = moved(end, 1)
            one = builder.insert_element(ir.Constant(begin.type, ir.Undefined), args[2], index(0))
            spread = shuffled(builder, one, one, [0] * WIDTH)
            here = builder.and_(
                builder.fcmp_ordered(">", size, nothing),
                builder.fcmp_ordered("<=", begin, spread),
            )
            mask = builder.zext(builder.bitcast(here, ir.IntType(WIDTH)), index)
            mask = builder.or_(mask, index(1))
            chosen = builder.sub(index(31), builder.ctlz(mask, ir.IntType(1)(1)))
            start = builder.fpext(builder.extract_element(begin, chosen), ir.DoubleType())
            pair = [builder.zext(chosen, integer), start]
            return context.make_tuple(builder, signature.return_type, pair)

        kinds = (row, types.intp, types.float32)
        return types.Tuple([types.int64, types.float64])(*kinds), emit

    def bits_of(_: Any, x: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], integer)

        return types.int64(types.float64), emit

    def float_of(_: Any, bits: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], ir.DoubleType())

        return types.float64(types.int64), emit

    return sum_of, least_of, place_of, bits_of, float_of


forms = MachineForms(__name__, _typed)
