"""Vectorizable arithmetic: definitions and intrinsics.

The definitions for 16 float32 numbers, and for the bits of numbers, run in the interpreter.
Compiled code uses vector instructions with the same bits: the order of all sums is that of the
definitions. The functions of a float64 consist of arithmetic only. Their errors are below 2e-9,
absolute for logarithm and sine, relative for powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from slipstream.jit.intrinsics import IntrinsicSet, llvm_modules

WIDTH = 16


def sum_of(row: Any, first: int) -> Any:
    """Return the sum of row[first : first + 16] by pairwise halving."""
    part, half = row[first : first + WIDTH].copy(), WIDTH // 2
    while half > 0:
        part, half = part[:half] + part[half:], half // 2
    return part[0]


def least_of(row: Any, first: int) -> Any:
    """Return the smallest positive number of row[first : first + 16], or infinity."""
    low = np.float32(math.inf)
    for size in row[first : first + WIDTH]:
        low = size if 0.0 < size < low else low
    return low


def place_of(row: Any, first: int, sought: Any) -> tuple[int, float]:
    """Return which of 16 consecutive intervals of these sizes contains a float32 number.

    Numbers beyond the end belong to the last interval of positive size.

    Returns:
        index, 0 to 15, and start of the interval.
    """
    end, shift = row[first : first + WIDTH].copy(), 1
    while shift < WIDTH:  # prefix sum by doubling
        end[shift:] = end[shift:] + end[:-shift]
        shift *= 2
    chosen = 0
    for i in range(1, WIDTH):
        chosen = i if row[first + i] > 0.0 and end[i - 1] <= sought else chosen
    return chosen, float(end[chosen - 1]) if chosen > 0 else 0.0


def bits_of(x: float) -> int:
    """Return the bits of a float64 number."""
    return int(np.float64(x).view(np.int64))


def float_of(bits: int) -> float:
    """Return the float64 number with these bits."""
    return float(np.int64(bits).view(np.float64))


# Long: the operations above, one after another.
def _typed() -> tuple[Callable[..., Any], ...]:
    ir, types, cgutils = llvm_modules()
    number, index, integer = ir.FloatType(), ir.IntType(32), ir.IntType(64)

    def loaded(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        array = context.make_array(kind)(context, builder, args[0])
        place = cgutils.get_item_pointer(context, builder, kind, array, [args[1]], wraparound=False)
        vector = ir.VectorType(number, WIDTH)
        return builder.load(builder.bitcast(place, vector.as_pointer()), align=4)

    def zeros(width: int) -> Any:
        return ir.VectorType(number, width)(None)

    def shuffled(builder: Any, first: Any, second: Any, places: list[int]) -> Any:
        mask = ir.Constant(ir.VectorType(index, len(places)), places)
        return builder.shuffle_vector(first, second, mask)

    def halved(builder: Any, part: Any, join: Any) -> Any:
        """Reduce a vector to one number by joining halves."""
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
            seed = builder.insert_element(ir.Constant(begin.type, ir.Undefined), args[2], index(0))
            spread = shuffled(builder, seed, seed, [0] * WIDTH)
            here = builder.and_(
                builder.fcmp_ordered(">", size, nothing), builder.fcmp_ordered("<=", begin, spread)
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


forms = IntrinsicSet(__name__, _typed)


# log2 m = s (L0 + L1 s^2 + ...) with s = (m - 1) / (m + 1), |s| < 0.172.
_L0, _L1, _L2, _L3, _L4 = (2.0 / (math.log(2.0) * k) for k in (1, 3, 5, 7, 9))
# 2^f, |f| <= 1/2, and sin 2 pi x, |x| <= 1/4, by their Taylor series.
_E1, _E2, _E3, _E4, _E5, _E6, _E7, _E8 = (
    math.log(2.0) ** k / math.factorial(k) for k in range(1, 9)
)
_S1, _S3, _S5, _S7, _S9, _S11, _S13 = (
    (-1.0) ** (k // 2) * (2.0 * math.pi) ** k / math.factorial(k) for k in range(1, 14, 2)
)
_ROOT_HALF = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)
_EXPONENT = 52  # position of the exponent bits
_WHOLE = 6755399441055744.0  # 1.5 2^52: adding and subtracting it rounds to an integer
_WHOLE_BITS = 0x4338000000000000
_MOST = 1000.0


def log_2(x: float) -> float:
    """Return the base-2 logarithm of a normal x > 0."""
    exponent = (bits_of(x) - _ROOT_HALF) >> _EXPONENT
    m = float_of(bits_of(x) - (exponent << _EXPONENT))  # from sqrt(1/2) to sqrt(2)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    return float(exponent) + s * (_L0 + z * (_L1 + z * (_L2 + z * (_L3 + z * _L4))))


def exp_2(t: float) -> float:
    """Return 2^t within 2^-1000 .. 2^1000; NaN stays NaN."""
    t = -_MOST if t < -_MOST else t
    t = _MOST if t > _MOST else t
    shifted = t + _WHOLE
    f = t - (shifted - _WHOLE)
    e = _E5 + f * (_E6 + f * (_E7 + f * _E8))
    e = 1.0 + f * (_E1 + f * (_E2 + f * (_E3 + f * (_E4 + f * e))))
    return float_of(bits_of(e) + ((bits_of(shifted) - _WHOLE_BITS) << _EXPONENT))


def cosine_of_turn(x: float) -> float:
    """Return cos 2 pi x for x in 0..1."""
    x = abs(x - 0.5) - 0.25
    z = x * x
    s = _S7 + z * (_S9 + z * (_S11 + z * _S13))
    return x * (_S1 + z * (_S3 + z * (_S5 + z * s)))
