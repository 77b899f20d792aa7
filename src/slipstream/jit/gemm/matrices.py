"""Parts of a row of numbers as matrices in compiled loops: the definition, and its machine form.

Numba's own `reshape` asks a function of its library whether a copy is needed, at every call, and
hides from the optimiser what comes of it: a tenth of a test pass. A part of a contiguous row never
needs one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from slipstream.jit.machine_form import MachineForms, tools


def matrix(numbers: Any, at: int, rows: int, columns: int) -> Any:
    """numbers[at : at + rows * columns] as [rows, columns], not copied.

    Args:
        numbers: one axis, contiguous, and long enough: compiled code does not compare.
    """
    return numbers[at : at + rows * columns].reshape(rows, columns)


def _typed() -> tuple[Callable[..., Any], ...]:
    types = tools().types
    arrays: Any = importlib.import_module("numba.np.arrayobj")

    def matrix(_: Any, numbers: Any, at: Any, rows: Any, columns: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source = context.make_array(signature.args[0])(context, builder, args[0])
            target = context.make_array(signature.return_type)(context, builder)
            stride = builder.mul(args[3], source.itemsize)
            arrays.populate_array(
                target,
                data=builder.gep(source.data, [args[1]]),
                shape=[args[2], args[3]],
                strides=[stride, source.itemsize],
                itemsize=source.itemsize,
                meminfo=None,
            )
            return target._getvalue()

        if not (isinstance(numbers, types.Array) and numbers.ndim == 1 and numbers.layout == "C"):
            return None
        return numbers.copy(ndim=2)(numbers, types.intp, types.intp, types.intp), emit

    return (matrix,)


forms = MachineForms(__name__, _typed)
