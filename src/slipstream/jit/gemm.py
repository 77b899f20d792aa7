"""Matrix products inside compiled loops: definitions and the library that compiled code calls.

The definitions below run in the interpreter. Compiled code executes the same chains of fused
multiply-adds, written in LLVM IR, for a tile of elements that stays in registers. An element's
chain does not depend on the tile, on other rows or on the CPU, so results are bit-identical.
Measured on one core with AVX-512, 256 x 112 times 112 x 64: 250 GFLOP/s, a BLAS called for the same
product 100.

Inlined and optimised in every module that multiplies, the functions would dominate the first start.
They are a separate library in the cache instead.

The columns of a large matrix that a tile needs are first packed contiguously: rows a power of two
apart would evict each other from the L1 cache. Sums with more terms than fit there are computed in
pieces; between two pieces the partial sums are stored in c without loss.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slipstream.jit.cache import build_lock, cache_folder, discard, is_intact, staged_folder
from slipstream.jit.fast.parallel_compile import PendingModule, is_helper, register_stub
from slipstream.jit.intrinsics import IntrinsicSet, call_symbol, llvm_modules, source_digest

COLUMNS = 8  # products are of matrices whose width is a multiple of this
_FILE = "library.pickle"
KINDS = (
    *("add_product", "add_transposed_product", "layer_product", "gated_product"),
    *("head_product", "transpose"),
)
_DEPTH = 32  # maximum terms of a piece of a sum, per lane of a register
_TURNED = 256  # for transposed a: maximum terms of a piece of a sum, and rows of c
_ENDLESS = 2**62
_SQUARE = 8  # numbers of a side
_LINE = 16  # numbers of a cache line


def fused(a: Any, b: Any, c: Any) -> Any:
    """Return a b + c of float32 numbers, rounded once."""
    return np.float32(float(a) * float(b) + float(c))


def add_product(a: Any, b: Any, c: Any) -> None:
    """Compute c += a b; each element is a chain of fused multiply-adds in the order of b's rows.

    Args:
        a: float32 [R, >= K], rows may be strided; b: [K, C], c: [R, C], C a multiple of COLUMNS.
    """
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            for k in range(b.shape[0]):
                c[i, j] = fused(a[i, k], b[k, j], c[i, j])


def add_transposed_product(a: Any, b: Any, c: Any) -> None:
    """Compute c += a^T b; each element is a chain of fused multiply-adds in the order of the rows.

    Args:
        a: float32 [K, >= R], rows may be strided; b: [K, C], c: [R, C], C a multiple of COLUMNS.
    """
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            for k in range(b.shape[0]):
                c[i, j] = fused(a[k, i], b[k, j], c[i, j])


def layer_product(a: Any, b: Any, start: Any, floor: Any, c: Any) -> None:
    """Compute c = max(floor, start + a b), summed in the order of b's rows; NaN stays NaN.

    Args:
        a, b, c: as for `add_product`, K at least 1.
        start: float32 [>= C], added to every row; or [0] for zeros.
        floor: float32.
    """
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = start[j] if len(start) > 0 else np.float32(0.0)
    add_product(a, b, c)
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = floor if c[i, j] < floor else c[i, j]


def gated_product(a: Any, b: Any, gate: Any, c: Any) -> None:
    """Compute c = a b if gate [R, C] > 0, else 0; otherwise like `layer_product`."""
    layer_product(a, b, gate[0, :0], np.float32(-np.inf), c)
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = c[i, j] if gate[i, j] > 0.0 else np.float32(0.0)


def head_product(a: Any, b: Any, start: Any, c: Any) -> None:
    """Compute c = start + a b, like `layer_product`, for one or two columns; the others become 0.

    Args:
        a, b, c: as for `add_product`, C = COLUMNS and K a multiple of it.
        start: float32 [1 or 2], one per active column.
    """
    n = len(start)
    c[:, :n], c[:, n:] = start, 0.0
    add_product(a, b[:, :n], c[:, :n])


def transpose(a: Any, b: Any) -> None:
    """Compute b = a^T; a: float32 [R, C], b: [C, R], both sizes multiples of COLUMNS."""
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            b[j, i] = a[i, j]


def _typed() -> list[Callable[..., Any]]:
    types = llvm_modules().types
    void, number = types.void, types.float32

    def product(kind: str) -> Callable[..., Any]:
        return lambda _, a, b, c: (void(a, b, c), partial(_emit_product, kind))

    typed: dict[str, Any] = {  # from types to a signature and what emits code
        **{kind: product(kind) for kind in ("add_product", "add_transposed_product")},
        "fused": lambda _, a, b, c: (number(number, number, number), _emit_fused),
        "transpose": lambda _, a, b: (void(a, b), _emit_transpose),
        "layer_product": lambda _, a, b, start, floor, c: (
            void(a, b, start, number, c),
            _emit_layer,
        ),
        "gated_product": lambda _, a, b, gate, c: (void(a, b, gate, c), _emit_gated),
        "head_product": lambda _, a, b, start, c: (void(a, b, start, c), _emit_head),
    }
    for name, form in typed.items():
        form.__name__ = name
    return list(typed.values())


@cache
def digest() -> str:
    """Return the digest of everything that the library's code and calls depend on."""
    numba: Any = importlib.import_module("numba")
    target = _codegen().magic_tuple()
    source = source_digest(__name__)
    return hashlib.sha256(repr((source, numba.__version__, target)).encode()).hexdigest()[:20]


def symbol(kind: str) -> str:
    """Return the symbol under which compiled code finds a function."""
    return f"slipstream_{kind}_{digest()}"


def library() -> PendingModule:
    """Return the library as a module that may be built in parallel with others."""
    return PendingModule(cache_folder() / f"products_{digest()}", 0, (), load_library, own=True)


def load_library(*, waits: bool = True) -> dict[str, Any]:
    """Register the functions with LLVM, built or loaded from the cache.

    A helper of `compile_in_parallel` calls nothing, so stubs are sufficient.

    Args:
        waits: see `BuildFn`; ignored, it always waits.
    """
    if is_helper():
        for kind in KINDS:
            register_stub(symbol(kind))
    else:
        _load_library()
    return {}


@cache
def _load_library() -> None:
    binding: Any = importlib.import_module("llvmlite.binding")
    folder = cache_folder() / f"products_{digest()}"
    lock: Any = importlib.import_module("numba.core.compiler_lock").global_compiler_lock
    with lock:
        if folder.exists() and not is_intact(folder):
            discard(folder)
        with build_lock(folder):
            library = _read(folder) if folder.exists() else _make(folder)
    for kind in KINDS:
        binding.add_symbol(symbol(kind), library.get_pointer_to_function(symbol(kind)))


def _read(folder: Path) -> Any:
    return _codegen().unserialize_library(pickle.loads((folder / _FILE).read_bytes()))


def _make(folder: Path) -> Any:
    ir = llvm_modules().ir
    library = _codegen().create_library(folder.name)
    library.enable_object_caching()
    module = ir.Module(folder.name)
    for kind in KINDS:
        define(module, kind, symbol(kind))
    library.add_ir_module(module)
    library.finalize()
    with staged_folder(folder) as unfinished:
        state = library.serialize_using_object_code()
        (unfinished / _FILE).write_bytes(pickle.dumps(state))
    return library


def _codegen() -> Any:
    registry: Any = importlib.import_module("numba.core.registry")
    return registry.cpu_target.target_context.codegen()


def _emit_fused(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.fma(*args)


def _emit_product(kind: str, context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Emit c += a b, or a^T b."""
    a, b, c = _arrays(context, builder, signature.args, args)
    return _call(context, builder, kind, a, b, c)


def _emit_layer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    kinds = signature.args
    a, b, start, c = _arrays(context, builder, (*kinds[:3], kinds[4]), (*args[:3], args[4]))
    return _call(context, builder, "layer_product", a, b, c, start.data, start.rows, args[3])


def _emit_gated(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    a, b, gate, c = _arrays(context, builder, signature.args, args)
    return _call(context, builder, "gated_product", a, b, c, gate.data, gate.stride)


def _emit_head(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    a, b, start, c = _arrays(context, builder, signature.args, args)
    return _call(context, builder, "head_product", a, b, c, start.data, start.rows)


def _emit_transpose(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    a, b = _arrays(context, builder, signature.args, args)
    given = [a.data, b.data, a.stride, b.stride, a.rows, a.columns]
    return _call_function(context, builder, "transpose", given)


class _Array(NamedTuple):
    """Address, shape, and row stride in numbers of an array."""

    data: Any
    rows: Any
    columns: Any
    stride: Any


def _arrays(context: Any, builder: Any, kinds: Any, values: Any) -> list[_Array]:
    cgutils = llvm_modules().cgutils
    result = []
    for kind, value in zip(kinds, values, strict=True):
        array = context.make_array(kind)(context, builder, value)
        shape = cgutils.unpack_tuple(builder, array.shape)
        stride = cgutils.unpack_tuple(builder, array.strides)[0]
        stride = builder.sdiv(stride, stride.type(4))
        result.append(_Array(array.data, shape[0], shape[-1], stride))
    return result


def _call(context: Any, builder: Any, kind: str, a: Any, b: Any, c: Any, *more: Any) -> Any:
    sizes = [a.stride, b.stride, c.stride, c.rows, b.rows, c.columns]
    return _call_function(context, builder, kind, [a.data, b.data, c.data, *sizes, *more])


def _call_function(context: Any, builder: Any, kind: str, given: list[Any]) -> Any:
    cgutils = llvm_modules().cgutils
    function = cgutils.get_or_insert_function(builder.module, type_of(kind), symbol(kind))
    builder.call(function, given)
    return context.get_dummy_value()


class _Forms(IntrinsicSet):
    """Intrinsics of the products; all except `fused` call the library."""

    @cached_property
    def digest(self) -> str:
        return digest()


forms = _Forms(__name__, _typed)


def define(module: Any, kind: str, name: str) -> None:
    """Add the function of one of KINDS to an LLVM module."""
    ir, binding = llvm_modules().ir, importlib.import_module("llvmlite.binding")

    function = ir.Function(module, type_of(kind), name)
    if kind in ("head_product", "transpose"):
        (_define_head if kind == "head_product" else _define_transpose)(function)
        return
    a, b, c, a_row, b_row, c_row, all_rows, all_depth, columns, *rest = function.args
    integer, transposed = all_rows.type, kind == "add_transposed_product"
    builder = ir.IRBuilder(function.append_basic_block())
    # Registers: 32 with 16 lanes, or 16 with 8. A tile's sums, two to four lines of b and a number
    # of a take most of them. Vectors across, numbers in each, rows.
    wide = binding.get_host_cpu_features().get("avx512f", False)
    across, lanes = (2, 16) if wide else (3, 8)
    tall = ((across, lanes, (8, 4) if wide else (4,)), (2, 8, (4,)), (1, 8, (8, 4)))
    # With few rows, wider tiles keep as many sums in flight.
    flat = tuple((*strip, (2, 1)) for strip in ((4, lanes), (2, lanes), (1, 8)))
    most = (_TURNED, _TURNED) if transposed else (_DEPTH * lanes, _ENDLESS)
    with (
        _pieces(builder, all_depth, most[0]) as (k, depth, last),
        _pieces(builder, all_rows, most[1]) as (above, rows, _),
    ):
        corner = builder.gep(c, [builder.mul(above, c_row)])
        first = builder.icmp_signed("==", k, integer(0))
        ends = _Ends(builder, kind, corner, c_row, rest, first, last)
        panel = _Panel(builder, (most[0], across * lanes), b_row, rows, depth)
        left: _Rows | _Columns = _Rows(builder, builder.gep(a, [k]), a_row)
        if transposed:
            corner = builder.gep(a, [builder.add(builder.mul(k, a_row), above)])
            left = _Columns(builder, corner, a_row, rows, depth, columns)
        below = builder.gep(b, [builder.mul(k, b_row)])
        many = builder.and_(rows, integer(-4))
        for strips, begin, end in ((tall, integer(0), many), (flat, many, rows)):
            first = integer(0)
            for vectors, numbers, heights in strips:
                width = vectors * numbers
                with _steps(builder, first, columns, integer(width)) as (j, first):
                    strip, strip_row = builder.gep(below, [j]), b_row
                    if strips is tall and width == panel.width:
                        strip, strip_row = panel.fill(strip)
                    top = begin
                    for height in heights:
                        with _steps(builder, top, end, integer(height)) as (i, top):
                            if strips is tall and width == panel.width:
                                panel.ask(builder.gep(below, [j]), columns, j, i, height, many)
                                with builder.if_then(panel.used):
                                    ends.ask(i, j, height, width, gates=not wide)
                            start, row, step = left.at(i)
                            _emit_tile(
                                *(builder, (height, vectors, numbers), depth, start, row, step),
                                *(strip, strip_row, ends, i, j),
                            )
    builder.ret_void()


def type_of(kind: str) -> Any:
    """Return the LLVM type: matrices, their row strides, sizes, and extra arguments of the kind."""
    ir = llvm_modules().ir

    number, integer = ir.FloatType(), ir.IntType(64)
    more = {
        "layer_product": [number.as_pointer(), integer, number],  # start, its length, floor
        "gated_product": [number.as_pointer(), integer],  # gate, from row to row
        "head_product": [number.as_pointer(), integer],  # start, its length
    }.get(kind, [])
    matrices, sizes = (2, 2) if kind == "transpose" else (3, 3)
    given = [number.as_pointer()] * matrices + [integer] * (matrices + sizes)
    return ir.FunctionType(ir.VoidType(), given + more)


def _define_transpose(function: Any) -> None:
    """Define the transpose, by squares that stay in registers."""
    ir = llvm_modules().ir

    a, b, a_row, b_row, rows, columns = function.args
    builder, integer = ir.IRBuilder(function.append_basic_block()), rows.type
    side, zero = integer(_SQUARE), integer(0)
    with (
        _steps(builder, zero, columns, side) as (j, _),
        _steps(builder, zero, rows, side) as (i, _),
    ):
        corner = builder.gep(a, [j])
        lines = [builder.mul(builder.add(i, integer(r)), a_row) for r in range(_SQUARE)]
        for r, row_vector in enumerate(
            _turned(builder, [builder.gep(corner, [line]) for line in lines])
        ):
            place = builder.add(builder.mul(builder.add(j, integer(r)), b_row), i)
            _store(builder, row_vector, builder.gep(b, [place]))
    builder.ret_void()


def _define_head(function: Any) -> None:
    """Define products of few columns: rows in the SIMD lanes, by transposed squares of a."""
    ir, _, cgutils = llvm_modules()

    a, b, c, a_row, b_row, c_row, rows, depth, _, start, count = function.args
    builder, integer = ir.IRBuilder(function.append_basic_block()), rows.type
    side, vector = integer(_SQUARE), ir.VectorType(ir.FloatType(), _SQUARE)
    end, last = builder.add(rows, integer(_SQUARE - 1)), builder.sub(rows, integer(1))
    for n in (1, 2):
        same = builder.icmp_signed("==", count, integer(n))
        with builder.if_then(same), _steps(builder, integer(0), end, side) as (i, _):
            lines = [builder.add(i, integer(r)) for r in range(_SQUARE)]
            # missing rows are replaced by the last one
            there = [builder.icmp_signed("<", line, last) for line in lines]
            lines = [builder.select(*pair, last) for pair in zip(there, lines, strict=True)]
            corners = [builder.gep(a, [builder.mul(line, a_row)]) for line in lines]
            sums = [cgutils.alloca_once(builder, vector) for _ in range(n)]
            for j, total in enumerate(sums):
                first = builder.load(builder.gep(start, [integer(j)]))
                builder.store(_spread(builder, first, vector), total)
            with _steps(builder, integer(0), depth, side) as (k, _):
                square = _turned(builder, [builder.gep(corner, [k]) for corner in corners])
                for r, row_vector in enumerate(square):
                    below = builder.gep(b, [builder.mul(builder.add(k, integer(r)), b_row)])
                    for j, total in enumerate(sums):
                        factor = builder.load(builder.gep(below, [integer(j)]))
                        factor = _spread(builder, factor, vector)
                        builder.store(
                            _multiply_add(builder, row_vector, factor, builder.load(total)), total
                        )
            for r, line in enumerate(lines):
                place, whole = ir.IntType(32), vector(None)
                for j, total in enumerate(sums):
                    row_vector = builder.extract_element(builder.load(total), place(r))
                    whole = builder.insert_element(whole, row_vector, place(j))
                _store(builder, whole, builder.gep(c, [builder.mul(line, c_row)]))
    builder.ret_void()


def _turned(builder: Any, lines: Any) -> Any:
    """Return the transpose of the square whose rows start at these addresses."""
    ir = llvm_modules().ir

    vector, index = ir.VectorType(ir.FloatType(), _SQUARE), ir.IntType(32)
    places = [builder.bitcast(line, vector.as_pointer()) for line in lines]
    square = [builder.load(place, align=4) for place in places]

    def mixed(r: int, apart: int, order: Sequence[int]) -> Any:
        mask = ir.Constant(ir.VectorType(index, _SQUARE), order)
        return builder.shuffle_vector(square[r], square[r + apart], mask)

    # Swap halves, then numbers within halves: CPUs have instructions for both.
    halves = (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)
    within = (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)
    square = [mixed(r, 4, half) for half in halves for r in range(4)]
    for _ in range(2):
        square = [mixed(r, 2, half) for r in (0, 1, 4, 5) for half in within]
    return square


class _Rows:
    """Addresses of a tile's factors from rows of a."""

    def __init__(self, builder: Any, a: Any, a_row: Any) -> None:
        self._builder, self._a, self._row = builder, a, a_row

    def at(self, i: Any) -> tuple[Any, Any, Any]:
        """Return the address of row i, the row stride, and the stride within a row."""
        builder, row = self._builder, self._row
        return builder.gep(self._a, [builder.mul(i, row)]), row, row.type(1)


class _Columns:
    """Addresses of a tile's factors from columns of a, packed if they are used often.

    The packed form has blocks of eight columns, row by row, so that a tile reads contiguously.
    Blocks are separated by a gap: at power-of-two distances they would evict each other from the
    cache.
    """

    _OFTEN = 128  # minimum columns of b for packing
    _GAP = 2  # rows of the copy

    def __init__(
        self, builder: Any, a: Any, a_row: Any, rows: Any, depth: Any, columns: Any
    ) -> None:
        ir, _, cgutils = llvm_modules()

        self._builder, self._a, self._row = builder, a, a_row
        self._apart = builder.add(depth, depth.type(self._GAP))
        most = (_TURNED + self._GAP) * _TURNED
        self._memory = cgutils.alloca_once(builder, ir.FloatType(), size=most)
        self._memory.align = 64
        integer, vector = rows.type, ir.VectorType(ir.FloatType(), _SQUARE).as_pointer()
        whole = builder.icmp_signed("==", builder.and_(rows, integer(_SQUARE - 1)), integer(0))
        often = builder.icmp_signed(">=", columns, integer(self._OFTEN))
        self._used = builder.and_(whole, often)
        with builder.if_then(self._used), cgutils.for_range(builder, depth) as loop:
            line = builder.gep(a, [builder.mul(loop.index, a_row)])
            with _steps(builder, integer(0), rows, integer(_SQUARE)) as (i, _):
                numbers = builder.load(builder.bitcast(builder.gep(line, [i]), vector), align=4)
                place = builder.add(
                    builder.mul(loop.index, integer(_SQUARE)), builder.mul(i, self._apart)
                )
                target = builder.gep(self._memory, [place])
                builder.store(numbers, builder.bitcast(target, vector), align=4)

    def at(self, i: Any) -> tuple[Any, Any, Any]:
        """Return the same as `_Rows.at`."""
        builder, integer = self._builder, i.type
        within = builder.and_(i, integer(_SQUARE - 1))
        place = builder.add(builder.mul(builder.sub(i, within), self._apart), within)
        copied, original = builder.gep(self._memory, [place]), builder.gep(self._a, [i])
        step = builder.select(self._used, integer(_SQUARE), self._row)
        return builder.select(self._used, copied, original), integer(1), step


class _Panel:
    """Columns of b, packed contiguously if b is large and its rows are used often.

    Args:
        most: rows and columns packed at a time; b_row, rows, depth: of the product.

    Attributes:
        used: true if columns are packed.
    """

    _LARGE, _OFTEN = 8192, 16  # minimum numbers of b and rows of a for packing

    def __init__(
        self, builder: Any, most: tuple[int, int], b_row: Any, rows: Any, depth: Any
    ) -> None:
        ir, _, cgutils = llvm_modules()

        self._builder, self.width, self._b_row, self._depth = builder, most[1], b_row, depth
        self._memory = cgutils.alloca_once(builder, ir.FloatType(), size=most[0] * most[1])
        self._memory.align = 64
        integer = depth.type
        large = builder.icmp_signed(">=", builder.mul(depth, b_row), integer(self._LARGE))
        often = builder.icmp_signed(">=", rows, integer(self._OFTEN))
        self.used = builder.and_(large, often)

    def fill(self, strip: Any) -> tuple[Any, Any]:
        """Return the address of the columns that begin at `strip`, and their row stride."""
        ir, _, cgutils = llvm_modules()

        builder, integer = self._builder, self._depth.type
        vector = ir.VectorType(ir.FloatType(), self.width)
        with builder.if_then(self.used), cgutils.for_range(builder, self._depth) as loop:
            source = builder.gep(strip, [builder.mul(loop.index, self._b_row)])
            target = builder.gep(self._memory, [builder.mul(loop.index, integer(self.width))])
            numbers = builder.load(builder.bitcast(source, vector.as_pointer()), align=4)
            builder.store(numbers, builder.bitcast(target, vector.as_pointer()), align=4)
        strip = builder.select(self.used, self._memory, strip)
        return strip, builder.select(self.used, integer(self.width), self._b_row)

    def ask(self, strip: Any, columns: Any, j: Any, i: Any, height: int, rows: Any) -> None:
        """Prefetch a part of the columns after those at j, while rows i.. of `rows` are computed.

        They are not contiguous, so hardware prefetchers fail; the parts of all tiles cover them.
        """
        cgutils = llvm_modules().cgutils

        builder, integer = self._builder, self._depth.type
        more = builder.icmp_signed("<", builder.add(j, integer(self.width)), columns)
        with builder.if_then(builder.and_(self.used, more)):
            edges = [builder.mul(x, self._depth) for x in (i, builder.add(i, integer(height)))]
            first, last = (builder.sdiv(edge, rows) for edge in edges)
            with cgutils.for_range(builder, last, start=first) as loop:
                line = builder.gep(strip, [builder.mul(loop.index, self._b_row)])
                _ask(builder, builder.gep(line, [integer(self.width)]), self.width)


class _Ends:
    """Initial values and post-processing of a tile's sums.

    Args:
        kind, c, c_row, rest: of the function.
        first, last: flags of the current piece; partial sums between pieces are unmodified.
    """

    def __init__(
        self, builder: Any, kind: str, c: Any, c_row: Any, rest: Any, first: Any, last: Any
    ) -> None:
        self._builder, self._kind, self._c, self._c_row = builder, kind, c, c_row
        self._rest, self._first, self._last = rest, first, last

    def begin(self, i: Any, j: Any, vector: Any) -> Any:
        """Return the initial sums of row i from column j on."""
        builder = self._builder
        place = builder.gep(self._c, [builder.add(builder.mul(i, self._c_row), j)])
        empty = self._first  # whether sums begin with zeros
        if self._kind == "layer_product":
            start, length, _ = self._rest
            some = builder.icmp_signed(">", length, length.type(0))
            given, empty = builder.and_(empty, some), builder.and_(empty, builder.not_(some))
            place = builder.select(given, builder.gep(start, [j]), place)
        numbers = builder.load(builder.bitcast(place, vector.as_pointer()), align=4)
        if self._kind in ("add_product", "add_transposed_product"):
            return numbers
        return builder.select(empty, vector(None), numbers)

    def ask(self, i: Any, j: Any, height: int, width: int, *, gates: bool) -> None:
        """Prefetch the initial values of the tile right of the one at i and j, or its gate."""
        builder = self._builder
        if gates and self._kind == "gated_product":  # needed at the end of the tile
            gate, row = self._rest
            for r in range(height):
                line = builder.mul(builder.add(i, i.type(r)), row)
                _ask(builder, builder.gep(gate, [builder.add(line, j)]), width)
        if self._kind == "add_transposed_product":  # gradients; other kinds read a block of rows
            for r in range(height):
                line = builder.mul(builder.add(i, i.type(r)), self._c_row)
                place = builder.add(line, builder.add(j, j.type(width)))
                _ask(builder, builder.gep(self._c, [place]), width)

    def end(self, i: Any, j: Any, sums: Any) -> None:
        """Apply floor or gate, and store the sums."""
        builder, vector = self._builder, sums.type
        number = vector.element
        if self._kind == "layer_product":
            least = builder.select(self._last, self._rest[2], number(-math.inf))
            floor = _spread(builder, least, vector)
            sums = builder.select(builder.fcmp_ordered("<", sums, floor), floor, sums)
        if self._kind == "gated_product":
            gate, row = self._rest
            gate = self._load(gate, i, j, row, vector)
            least = builder.select(self._last, number(0.0), number(-math.inf))
            above = builder.fcmp_ordered(">", gate, _spread(builder, least, vector))
            sums = builder.select(above, sums, vector(None))
        _store(builder, sums, builder.gep(self._c, [builder.add(builder.mul(i, self._c_row), j)]))

    def _load(self, start: Any, i: Any, j: Any, row: Any, vector: Any) -> Any:
        builder = self._builder
        place = builder.gep(start, [builder.add(builder.mul(i, row), j)])
        return builder.load(builder.bitcast(place, vector.as_pointer()), align=4)


@contextmanager
def _pieces(builder: Any, total: Any, most: int) -> Iterator[tuple[Any, Any, Any]]:
    """Loop over a total in pieces of at most `most`.

    Yields:
        start and length of a piece, and whether it is the last one.
    """
    cgutils = llvm_modules().cgutils

    size = total.type(most)
    count = builder.sdiv(builder.add(total, total.type(most - 1)), size)
    with cgutils.for_range(builder, count) as loop:
        begin = builder.mul(loop.index, size)
        left = builder.sub(total, begin)
        last = builder.icmp_signed("<=", left, size)
        yield begin, builder.select(last, left, size), last


@contextmanager
def _steps(builder: Any, first: Any, end: Any, width: Any) -> Iterator[tuple[Any, Any]]:
    """Loop over first, first + width, ... while a whole step fits before `end`.

    Yields:
        start of the step, and start of the first step that does not fit.
    """
    cgutils = llvm_modules().cgutils

    count = builder.sdiv(builder.sub(end, first), width)
    rest = builder.add(first, builder.mul(count, width))
    with cgutils.for_range(builder, count) as loop:
        yield builder.add(first, builder.mul(loop.index, width)), rest


def _emit_tile(
    builder: Any, shape: tuple[int, int, int], depth: Any, a: Any, row: Any, step: Any, b: Any,
    b_row: Any, ends: _Ends, i: Any, j: Any,
) -> None:  # fmt: skip
    """Emit a tile of `shape` (rows, vectors, lanes) whose sums stay in registers over k."""
    ir, _, cgutils = llvm_modules()

    height, vectors, lanes = shape
    integer, vector = depth.type, ir.VectorType(ir.FloatType(), lanes)
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
            factor = builder.load(builder.gep(column, [builder.mul(integer(r), row)]))
            spread = _spread(builder, factor, vector)
            for v in range(vectors):
                total = _multiply_add(builder, spread, factors[v], builder.load(sums[r, v]))
                builder.store(total, sums[r, v])
    for r, v in elements:
        ends.end(lines[r], across[v], builder.load(sums[r, v]))


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return call_symbol(builder, f"llvm.fma.v{c.type.count}f32", c.type, a, b, c)


def _store(builder: Any, numbers: Any, place: Any) -> None:
    builder.store(numbers, builder.bitcast(place, numbers.type.as_pointer()), align=4)


def _ask(builder: Any, place: Any, width: int) -> None:
    """Prefetch `width` numbers, which need not exist."""
    ir = llvm_modules().ir

    byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    for number in range(0, width, _LINE):
        line = builder.bitcast(builder.gep(place, [flag(number)]), byte)
        builder.call(function, [line, flag(0), flag(2), flag(1)])


def _spread(builder: Any, number: Any, vector: Any) -> Any:
    ir = llvm_modules().ir

    nothing, index = ir.Constant(vector, ir.Undefined), ir.IntType(32)
    first = builder.insert_element(nothing, number, index(0))
    zeros = ir.Constant(ir.VectorType(index, vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, nothing, zeros)
