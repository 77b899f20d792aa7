"""One kernel's batch loop as code for an NVIDIA GPU: the same text, other bindings.

The loop's `take`, `lane` and `lanes` become an atomic addition, the thread's number and the number
of threads; everything else is the text that the interpreter runs. What is here is used for proofs
that need no GPU: NVIDIA's compiler takes the kernels (`ptx.py`), and Numba's simulator runs them to
the interpreted loop's states (tests/vector/test_cuda.py).
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from slipstream.core.kernel import Kernel
from slipstream.core.spec import Spec
from slipstream.machine.reached import Reachable
from slipstream.machine.singles import compiled_form, is_single
from slipstream.vector.compile import bindings, loop_text

HELPERS = ("take", "lane", "lanes", "make_data", "clear", "copy_metrics", "begin")
"""Functions of the text that its entries call."""

# Text, because the simulator looks for `cuda` among a function's globals.
_BINDINGS = """
def take(counts, which):
    return cuda.atomic.add(counts, which, 1)


def lane():
    return cuda.grid(1)


def lanes():
    return cuda.gridsize(1)
"""


def device_module(kernel: Kernel, spec: Spec) -> ModuleType:
    """The loop with device functions bound; its entries are plain functions, to be made kernels."""
    cuda: Any = importlib.import_module("numba.cuda")
    kernel = kernel._replace(ahead=None)  # a GPU hides waiting by its other threads

    def device(function: Any) -> Any:
        if is_single(function) and simulated:  # the simulator is the interpreter
            return function
        return cuda.jit(device=True)(compiled_form(function))

    simulated = importlib.import_module("numba").config.ENABLE_CUDASIM
    reached = Reachable(device)
    bound = {name: reached.bind(function) for name, function in bindings(kernel).items()}
    module = ModuleType("slipstream_device")
    vars(module).update(bound, Data=kernel.Data, cuda=cuda)
    text = f"{_BINDINGS}\n\n{loop_text(kernel, spec)}"
    exec(compile(text, "<batch loop>", "exec"), vars(module))
    for name in HELPERS:
        setattr(module, name, device(getattr(module, name)))
    return module
