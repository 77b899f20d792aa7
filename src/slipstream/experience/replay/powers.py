"""Powers of positive numbers from arithmetic alone, of which a processor does many at once."""

from __future__ import annotations

import math

from slipstream.vector.sixteen import bits_of, float_of

# log2 m = s (L0 + L1 s^2 + ...) with s = (m - 1) / (m + 1), |s| < 0.172: error below 1e-10.
_L0, _L1, _L2, _L3, _L4 = (2.0 / (math.log(2.0) * k) for k in (1, 3, 5, 7, 9))
# 2^f, |f| <= 1/2, by its Taylor series: error below 1e-10.
_E1, _E2, _E3, _E4, _E5, _E6, _E7, _E8 = (
    math.log(2.0) ** k / math.factorial(k) for k in range(1, 9)
)
_ROOT_HALF = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)
_EXPONENT = 52  # where a number's exponent begins
_WHOLE = 6755399441055744.0  # 1.5 2^52: added and taken away again, it leaves a whole number
_WHOLE_BITS = 0x4338000000000000
_MOST = 1000.0


def power(x: float, y: float) -> float:
    """x^y of a normal x > 0 and y in -1..1, to a relative 1e-9; within 2^-1000 .. 2^1000."""
    exponent = (bits_of(x) - _ROOT_HALF) >> _EXPONENT
    m = float_of(bits_of(x) - (exponent << _EXPONENT))  # from sqrt(1/2) to sqrt(2)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    log = float(exponent) + s * (_L0 + z * (_L1 + z * (_L2 + z * (_L3 + z * _L4))))
    t = y * log
    t = -_MOST if t < -_MOST else t
    t = _MOST if t > _MOST else t
    shifted = t + _WHOLE
    f = t - (shifted - _WHOLE)
    e = _E5 + f * (_E6 + f * (_E7 + f * _E8))
    e = 1.0 + f * (_E1 + f * (_E2 + f * (_E3 + f * (_E4 + f * e))))
    return float_of(bits_of(e) + ((bits_of(shifted) - _WHOLE_BITS) << _EXPONENT))
