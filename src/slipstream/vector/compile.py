"""One kernel's batch loop, interpreted or compiled."""

from __future__ import annotations

from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from slipstream.core.kernel import Kernel
from slipstream.core.random import stream
from slipstream.core.spec import Spec
from slipstream.vector import loop, render


class Loop(NamedTuple):
    """The entry points of a batch loop; see `loop.py` for their arguments."""

    advance: Any
    start: Any
    look: Any


def loop_text(kernel: Kernel, spec: Spec) -> str:
    """Source of the batch loop of one kernel: the template and three functions that fit its records."""
    arrays = ", ".join(f"arrays[{i}]" for i in range(len(kernel.Data._fields)))
    lines = ["def make_data(arrays):", f"    return Data({arrays})", "", "", "def clear(s):"]
    for name in kernel.STATE.names or ():
        lines += _clear_field(name, kernel.STATE[name])
    lines += ["", "", "def copy_metrics(s, row):"]
    lines += [f"    row[{4 + i}] = s.{metric.name}" for i, metric in enumerate(spec.metrics)] or [
        "    pass"
    ]
    names = ("FINALS", "EPISODES", "FAULT", "RESET", "RESET_KEEP_ALL", "HOLD")
    constants = [f"{name} = {getattr(loop, name)}" for name in names]
    parts = ["import numpy as np", "\n".join(constants), "\n".join(lines)]
    functions = (loop.begin, loop.advance, loop.start, loop.look)
    return "\n\n\n".join([*parts, render.source_of(functions)]) + "\n"


def _clear_field(name: str, dtype: np.dtype) -> list[str]:
    zero = {"f": "0.0", "b": "False", "u": "np.uint64(0)"}.get(dtype.base.kind, "0")
    if not dtype.shape:
        return [f"    s.{name} = {zero}"]
    lines, index = [], []
    for axis, size in enumerate(dtype.shape):
        lines.append(f"{'    ' * (axis + 1)}for i{axis} in range({size}):")
        index.append(f"i{axis}")
    return [*lines, f"{'    ' * (len(index) + 1)}s.{name}[{', '.join(index)}] = {zero}"]


def bindings(kernel: Kernel) -> dict[str, FunctionType]:
    """The plain functions that the loop's text calls."""
    functions: dict[str, Any] = {
        "reset": kernel.reset,
        "step": kernel.step,
        "observe": kernel.observe,
    }
    return {
        **functions,
        "stream": stream,
        "take": loop.take_slot,
        "lane": loop.lane_zero,
        "lanes": loop.one_lane,
    }


def interpreted_loop(kernel: Kernel, spec: Spec) -> Loop:
    """The loop as plain Python: slow, and what every other backend must equal bit for bit."""
    module = render.interpret(loop_text(kernel, spec), bindings(kernel), {"Data": kernel.Data})
    return Loop(module.advance, module.start, module.look)


def compiled_loop(kernel: Kernel, spec: Spec, batch: tuple[Any, ...], out: tuple[Any, ...]) -> Loop:
    """The loop as machine code for arrays of the types of `batch` and `out`."""
    entries = {
        "advance": (0, 0, 0, 0, batch, out),
        "start": (0, 0, batch, out[1]),
        "look": (0, 0, batch, out[1]),
    }
    compiled = render.compile_module(
        kernel.name, loop_text(kernel, spec), entries, bindings(kernel), {"Data": kernel.Data}
    )
    return Loop(**compiled)
