"""Functions of a float64 from arithmetic alone, of which a processor does several at once.

Errors are below 2e-9: of a logarithm and a sine as such, of a power of two as a share of it.
"""

from __future__ import annotations

import math

from slipstream.jit.sixteen import bits_of, float_of

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
_EXPONENT = 52  # where a number's exponent begins
_WHOLE = 6755399441055744.0  # 1.5 2^52: added and taken away again, it leaves a whole number
_WHOLE_BITS = 0x4338000000000000
_MOST = 1000.0


def log_2(x: float) -> float:
    """The logarithm to base 2 of a normal x > 0."""
    exponent = (bits_of(x) - _ROOT_HALF) >> _EXPONENT
    m = float_of(bits_of(x) - (exponent << _EXPONENT))  # from sqrt(1/2) to sqrt(2)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    return float(exponent) + s * (_L0 + z * (_L1 + z * (_L2 + z * (_L3 + z * _L4))))


def exp_2(t: float) -> float:
    """2^t within 2^-1000 .. 2^1000; NaN stays NaN."""
    t = -_MOST if t < -_MOST else t
    t = _MOST if t > _MOST else t
    shifted = t + _WHOLE
    f = t - (shifted - _WHOLE)
    e = _E5 + f * (_E6 + f * (_E7 + f * _E8))
    e = 1.0 + f * (_E1 + f * (_E2 + f * (_E3 + f * (_E4 + f * e))))
    return float_of(bits_of(e) + ((bits_of(shifted) - _WHOLE_BITS) << _EXPONENT))


def cosine_of_turn(x: float) -> float:
    """cos 2 pi x of an x in 0..1."""
    x = abs(x - 0.5) - 0.25
    z = x * x
    s = _S7 + z * (_S9 + z * (_S11 + z * _S13))
    return x * (_S1 + z * (_S3 + z * (_S5 + z * s)))
