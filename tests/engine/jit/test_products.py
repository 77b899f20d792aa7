"""The machine's form of a product is, bit for bit, the definition's chain of multiply-adds."""

import numpy as np
import pytest

from slipstream.jit import gemm
from slipstream.jit.gemm import (
    add_product,
    add_transposed_product,
    fused,
    gated_product,
    head_product,
    layer_product,
    transpose,
)
from slipstream.rl.compiled_loops import compile_loops


def multiply_add(a, b, c, out):
    for i in range(len(out)):
        out[i] = fused(a[i], b[i], c[i])


@pytest.fixture(scope="module")
def compiled():
    row, matrix = np.zeros(1, np.float32), np.zeros((1, 1), np.float32)
    apart = np.zeros((2, 2), np.float32)[:, :1]
    return compile_loops(
        "products_test",
        {
            multiply_add: (row, row, row, row),
            add_product: (apart, matrix, matrix),
            add_transposed_product: (apart, matrix, matrix),
            layer_product: (apart, matrix, row, np.float32(0.0), matrix),
            gated_product: (apart, matrix, matrix, matrix),
            head_product: (apart, matrix, row, matrix),
            transpose: (matrix, matrix),
        },
    )


@pytest.mark.parametrize("depth", [1, 9, 100])
@pytest.mark.parametrize(
    ("rows", "columns"),
    [(1, 8), (3, 16), (13, 40), (8, 32), (12, 72), (21, 104)],  # the last is copied in panels
)
def test_products_are_those_of_the_definition(compiled, rows, columns, depth):
    rng = np.random.default_rng(rows + columns + depth)
    apart = rng.standard_normal((max(rows, depth), 150)).astype(np.float32)
    b = rng.standard_normal((depth, columns)).astype(np.float32)
    start = rng.standard_normal((rows, columns)).astype(np.float32)
    for name, a in (
        ("add_product", apart[:rows, 3 : 3 + depth]),
        ("add_transposed_product", apart[:depth, 3 : 3 + rows]),
    ):
        ours, theirs = start.copy(), start.copy()
        compiled[name](a, b, ours)
        getattr(gemm, name)(a, b, theirs)
        assert ours.tobytes() == theirs.tobytes()
        left = a if name == "add_product" else a.T
        exact = start + left.astype(np.float64) @ b.astype(np.float64)
        np.testing.assert_allclose(ours, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "columns", "depth"), [(17, 24, 1040), (3, 8, 512), (2, 16, 600)])
def test_sums_in_pieces_begin_and_end_once(compiled, rows, columns, depth):
    """A sum of many terms rests in c meanwhile, which holds anything before: here NaN."""
    rng = np.random.default_rng(rows)
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    a, b, start, gate = draw(rows, depth), draw(depth, columns), draw(columns), draw(rows, columns)
    gate[0, :3] = np.nan, -np.inf, np.inf
    ends = (start, np.float32(0.1)), (start[:0], np.float32(-np.inf)), (gate,)
    for name, end in zip(("layer_product", "layer_product", "gated_product"), ends, strict=True):
        ours, theirs = (np.full((rows, columns), np.nan, np.float32) for _ in range(2))
        compiled[name](a, b, *end, ours)
        getattr(gemm, name)(a, b, *end, theirs)
        assert ours.tobytes() == theirs.tobytes(), name


@pytest.mark.parametrize("rows", [1, 8, 13, 64])
@pytest.mark.parametrize("depth", [8, 64, 600])
@pytest.mark.parametrize("count", [1, 2])
def test_a_head_is_the_first_columns_of_a_layer(compiled, rows, depth, count):
    rng = np.random.default_rng(rows + depth)
    apart, b, start = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((rows, depth + 3), (depth, 8), (count,))
    )
    ours, theirs, whole = (np.full((rows, 8), np.nan, np.float32) for _ in range(3))
    compiled["head_product"](apart[:, 3:], b, start, ours)
    head_product(apart[:, 3:], b, start, theirs)
    padded = np.concatenate((start, np.zeros(8 - count, np.float32)))
    compiled["layer_product"](apart[:, 3:], b, padded, np.float32(-np.inf), whole)
    assert ours.tobytes() == theirs.tobytes()
    assert ours[:, :count].tobytes() == whole[:, :count].tobytes()
    assert not ours[:, count:].any()


@pytest.mark.parametrize(("rows", "depth"), [(136, 8), (144, 130), (12, 16)])
def test_columns_of_a_transposed_matrix_are_copied(compiled, rows, depth):
    rng = np.random.default_rng(rows)
    a, b = (rng.standard_normal((depth, width)).astype(np.float32) for width in (rows, 128))
    whole, one = (np.zeros((rows, 128), np.float32) for _ in range(2))
    compiled["add_transposed_product"](a, b, whole)
    for i in range(rows):  # a lone row is not copied
        compiled["add_transposed_product"](np.ascontiguousarray(a[:, i : i + 1]), b, one[i : i + 1])
    assert whole.tobytes() == one.tobytes()
    np.testing.assert_allclose(whole, a.T.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


def test_an_elements_bits_do_not_depend_on_the_rows_beside_it(compiled):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((29, 50), (50, 64)))
    together = np.zeros((29, 64), np.float32)
    compiled["add_product"](a, b, together)
    for rows in (1, 2, 5, 17):
        few = np.zeros((rows, 64), np.float32)
        compiled["add_product"](a[7 : 7 + rows], b, few)
        assert few.tobytes() == together[7 : 7 + rows].tobytes()


def test_a_multiply_add_is_rounded_once(compiled):
    a = np.array([1 + 2.0**-12], np.float32)
    c, out = np.array([-1 - 2.0**-11], np.float32), np.zeros(1, np.float32)
    compiled["multiply_add"](a, a, c, out)
    assert out[0] == np.float32(2.0**-24) == fused(a[0], a[0], c[0])
    assert a[0] * a[0] + c[0] == 0  # rounded twice


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (24, 40)])
def test_a_matrix_is_transposed(compiled, rows, columns):
    a = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    ours, theirs = np.zeros((columns, rows), np.float32), np.zeros((columns, rows), np.float32)
    compiled["transpose"](a, ours)
    transpose(a, theirs)
    assert ours.tobytes() == theirs.tobytes() == a.T.tobytes()
