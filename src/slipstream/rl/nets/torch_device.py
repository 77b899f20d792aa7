"""Devices of torch: the CPU, or a GPU of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipstream.core.errors import ResourceError
from slipstream.core.extras import pip_install_command


def get_device(name: str) -> torch.device:
    """Return the device ``cpu``, ``cuda`` or ``cuda:N``.

    CUDA is not initialized here: processes are forked later, and CUDA does not survive a fork.

    Raises:
        ResourceError: torch is built without CUDA, or the GPU does not exist.
    """
    device = torch.device(name)
    if device.type == "cpu":
        return device
    rocm = torch.version.hip  # AMD builds also use the name cuda
    if rocm is None and not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        line = pip_install_command("--force-reinstall", "torch", "-i", "https://pypi.org/simple")
        raise ResourceError(
            f"{name} is not available: PyTorch {torch.__version__} is a CPU-only build. "
            f"Install a build with CUDA: {line} (on Windows see "
            "https://pytorch.org/get-started); or give --device cpu."
        )
    count = torch.cuda.device_count()
    if count == 0:
        variable, tool = "CUDA_VISIBLE_DEVICES", "nvidia-smi"
        if rocm is not None:
            variable, tool = "HIP_VISIBLE_DEVICES", "rocm-smi"
        raise ResourceError(
            f"{name} is not available: there is no GPU, its driver is missing, or {variable} hides "
            f"it{'' if rocm is None else f' (PyTorch for ROCm {rocm})'}. "
            f"`{tool}` lists the driver's GPUs; or give --device cpu."
        )
    if (device.index or 0) >= count:
        known = "only cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise ResourceError(
            f"{name} is not available: this machine has {count} GPU{'s' * (count > 1)}: {known}. "
            "Select one of them, or give --device cpu."
        )
    return device


def member_batches(members: int, device: torch.device) -> list[slice]:
    """Return slices of members for batched products: one member on the CPU, all on a GPU.

    The bits of a batched product depend on its batch size; on the CPU a member's must not.
    """
    batch = 1 if device.type == "cpu" else members
    return [slice(m, m + batch) for m in range(0, members, batch)]


def to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """Return an array on the device: itself on the CPU, else an asynchronous copy.

    torch keeps the pinned copy until the device has read it.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def start_transfer(
    tensors: Sequence[Tensor], device: torch.device
) -> Callable[[], list[NDArray[Any]]]:
    """Return a function that returns the tensors as arrays: without copies on the CPU.

    On a GPU, copies into pinned memory are queued here. The function waits for work queued before
    them only, while any other access to a GPU value waits for all queued work.
    """
    here = [tensor.detach().to("cpu", non_blocking=True) for tensor in tensors]
    copied: Any = None  # Event has no types
    if device.type == "cuda":
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(torch.cuda.current_stream(device))

    def wait() -> list[NDArray[Any]]:
        if copied is not None:
            copied.synchronize()
        return [tensor.numpy() for tensor in here]

    return wait


@contextmanager
def single_thread() -> Iterator[None]:
    """Limit torch to one thread inside the context.

    torch's threads wait for each other by spinning: beside a busy process an update took fifty
    times as long with two threads. A forked child cannot use its parent's threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
