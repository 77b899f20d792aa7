"""float32 arithmetic in kernels: rounded float64 operations are the float32 ones."""

import ctypes
import math

import numpy as np
import pytest

from slipstream.jit import codegen
from slipstream.jit.float32 import add, cosine, div, mul, root, sine, single, sub


@pytest.fixture(scope="module")
def pairs():
    """float32 numbers of all sizes, as float64."""
    bits = np.random.default_rng(0).integers(0, 2**32, (40_000, 2), dtype=np.uint32)
    values = bits.view(np.float32)
    return values[np.isfinite(values).all(axis=1) & (np.abs(values) > 1e-18).all(axis=1)]


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide"])
def test_rounded_operations_are_those_of_float32(pairs, name):
    a, b = pairs.T
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(a, b)
        wide = getattr(np, name)(a.astype(float), b.astype(float))
        got = wide.astype(np.float32)
    assert expected.dtype == np.float32
    assert np.array_equal(got, expected, equal_nan=True)


def test_single_and_root(pairs):
    for x in np.abs(pairs[:500, 0]).tolist():
        assert single(x) == x
        assert single(math.sqrt(x)) == float(np.sqrt(np.float32(x)))
    assert single(0.1) == float(np.float32(0.1)) != 0.1


def test_compiled_operations_are_the_interpreted_ones():
    text = """
def fill(x, y, out):
    for i in range(x.shape[0]):
        out[i, 0] = add(x[i], y[i]) / 3.0  # in float64 again
        out[i, 1] = sub(x[i], y[i])
        out[i, 2] = mul(x[i], y[i])
        out[i, 3] = div(x[i], y[i])
        out[i, 4] = root(abs(x[i]))
"""
    draw = np.random.default_rng(2)
    x, y = draw.normal(0, 10, (2, 5_000)).astype(np.float32).astype(float)
    out = np.zeros((len(x), 5))
    bound = {"add": add, "sub": sub, "mul": mul, "div": div, "root": root}
    codegen.compile_module("singles", text, {"fill": (x, y, out)}, bound, {})["fill"](x, y, out)
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    expected = [(add(a, b) / 3.0, sub(a, b), mul(a, b), div(a, b), root(abs(a))) for a, b in pairs]
    assert np.array_equal(out, expected)


def test_sine_is_the_c_librarys_and_compiled_equals_interpreted():
    text = """
def fill(x, out):
    for i in range(x.shape[0]):
        out[i, 0] = single(x[i] / 3.0) * single(x[i]) / 7.0  # in float64 again
        out[i, 1] = sine(x[i])
        out[i, 2] = cosine(x[i])
"""
    x = np.random.default_rng(1).uniform(-4.0, 4.0, 20_000).astype(np.float32).astype(float)
    out = np.zeros((len(x), 3))
    bound = {"single": single, "sine": sine, "cosine": cosine}
    codegen.compile_module("single", text, {"fill": (x, out)}, bound, {})["fill"](x, out)
    expected = [(single(v / 3.0) * v / 7.0, sine(v), cosine(v)) for v in x.tolist()]
    assert np.array_equal(out, expected)
    library = ctypes.CDLL(None)
    if hasattr(library, "sinf"):
        library.sinf.argtypes, library.sinf.restype = [ctypes.c_float], ctypes.c_float
        assert [library.sinf(v) for v in x[:2000].tolist()] == [row[1] for row in expected[:2000]]
    # The rounded float64 sine is another function: one last bit in a hundred.
    rounded = np.sin(x).astype(np.float32)
    assert 0 < np.mean(rounded != out[:, 1]) < 0.05
