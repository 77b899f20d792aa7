"""One kernel's batch loop as code for an NVIDIA GPU: the same text, other bindings.

The loop's `take`, `lane` and `lanes` become an atomic addition, the thread's number and the number
of threads; everything else is the text that the interpreter runs. What is here is used for proofs
that need no GPU: NVIDIA's compiler takes the kernels (`compile_ptx`), and Numba's simulator runs
them to the interpreted loop's states (tests/vector/test_cuda.py).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from pydantic import ValidationError

from slipstream.core.discover import list_kernels, load_kernel
from slipstream.core.errors import ConfigError, KernelError
from slipstream.core.extras import install
from slipstream.core.kernel import Kernel, Loaded
from slipstream.core.spec import Spec
from slipstream.machine.reached import Reachable
from slipstream.machine.singles import compiled_form, is_single
from slipstream.market.planted.forex import PlantedForex
from slipstream.vector.kernel.compile import bindings, entry_arguments, loop_text
from slipstream.vector.kernel.copies import KernelVectorEnv
from slipstream.vector.vector_env import member_indices

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


CAPABILITY = (8, 0)
"""Compute capability compiled for: without a GPU nobody can be asked."""

_NO_DEVICE = SimpleNamespace(compute_capability=CAPABILITY)
_OTHER = {"action": "continuous", "orders": "units"}  # settings that choose other code
_PACKAGES = ("numba-cuda", "nvidia-nvvm", "nvidia-cuda-nvrtc")


def missing_packages() -> list[str]:
    """Packages of the extra `cuda-check` that are not installed."""
    installed = {dist.name.lower() for dist in importlib.metadata.distributions()}
    return [name for name in _PACKAGES if name not in installed]


def compile_ptx(kernel: Kernel, loaded: Loaded) -> dict[str, str]:
    """PTX of the loop's entry points for one kernel and the types of its data.

    Raises:
        KernelError: what NVIDIA's compiler refuses.
    """
    numba, cuda = (importlib.import_module(name) for name in ("numba", "numba.cuda"))
    env = KernelVectorEnv(kernel, loaded, *member_indices([0], 2), backend="serial")
    module = device_module(env.kernel, env.spec)
    codes = {}
    for name, arguments in entry_arguments(*env.arguments()).items():
        signature = tuple(numba.typeof(argument) for argument in arguments)
        try:
            # Functions that a kernel calls are compiled for the device at hand; name one instead.
            with patch("numba.cuda.dispatcher.get_current_device", lambda: _NO_DEVICE):
                code, _ = cuda.compile_ptx(getattr(module, name), signature, cc=CAPABILITY)
        except Exception as error:
            text = " ".join(str(error).split())
            raise KernelError(f"Kernel `{kernel.name}` does not compile to PTX: {text}") from error
        codes[name] = str(code)
    return codes


def examples(folder: Path) -> Iterator[tuple[str, Kernel, Loaded]]:
    """Every built-in kernel with data of some sort, by the name to print."""
    for name in list_kernels():
        kernel = load_kernel(name)
        settings: dict[str, Any] = {}
        try:
            kernel.Config()
        except ValidationError:  # it needs prices
            if not any(folder.iterdir()):
                PlantedForex().write(folder, bars=10_000)
            settings = {"data": {"folder": str(folder), "spread_pips": 1.0}}
        try:
            config = kernel.configure(settings)
        except ConfigError as error:
            raise KernelError(f"`{name}` needs a config that is not known here: {error}") from error
        yield name, kernel, kernel.load(config)
        for key, value in _OTHER.items():
            if key in kernel.Config.model_fields:
                config = kernel.configure({**settings, key: value})
                yield f"{name}, {value}", kernel, kernel.load(config)


def main() -> int:
    """Prints what was compiled; 0 when all was, or when the extra is absent."""
    missing = missing_packages()
    if missing:
        print(
            f"check-cuda: not run, because {', '.join(missing)} is missing. Install what is "
            f"needed (about 310 MB; no GPU and no driver): {install('cuda-check')}"
        )
        return 0
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for name, kernel, loaded in examples(Path(folder)):
            began = time.perf_counter()
            try:
                codes = compile_ptx(kernel, loaded)
            except KernelError as error:
                print(f"check-cuda: {error}", file=sys.stderr)
                return 1
            size = sum(len(code) for code in codes.values())
            seconds = time.perf_counter() - began
            print(f"{name}: {size:,} characters of PTX in {seconds:.1f} s")
    major, minor = CAPABILITY
    print(f"check-cuda: every kernel compiles for compute capability {major}.{minor}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
