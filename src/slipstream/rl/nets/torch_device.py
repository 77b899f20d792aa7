"""Where torch calculates: a processor, or a card of this machine."""

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
    """The device ``cpu``, ``cuda`` or ``cuda:N``.

    Nothing is begun on the card here: processes are forked later, and a child could not go on.

    Raises:
        ResourceError: torch is built without CUDA, or there is no such card.
    """
    device = torch.device(name)
    if device.type == "cpu":
        return device
    rocm = torch.version.hip  # AMD's builds answer to the name cuda, too
    if rocm is None and not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        line = pip_install_command("--force-reinstall", "torch", "-i", "https://pypi.org/simple")
        raise ResourceError(
            f"{name} was asked for, and PyTorch {torch.__version__} here is built for processors "
            f"only. Install a build with CUDA: {line} (on Windows see "
            "https://pytorch.org/get-started); or give --device cpu."
        )
    count = torch.cuda.device_count()
    if count == 0:
        variable, tool = "CUDA_VISIBLE_DEVICES", "nvidia-smi"
        if rocm is not None:
            variable, tool = "HIP_VISIBLE_DEVICES", "rocm-smi"
        raise ResourceError(
            f"{name} was asked for, and no card can be used here: there is none, its driver is "
            f"missing, or {variable} hides it{'' if rocm is None else f' (PyTorch for ROCm {rocm})'}. "
            f"`{tool}` shows what the driver sees; or give --device cpu."
        )
    if (device.index or 0) >= count:
        known = "only cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise ResourceError(
            f"{name} was asked for, and this machine has {count} card{'s' * (count > 1)}: {known}. "
            "Name one of them, or give --device cpu."
        )
    return device


def member_batches(members: int, device: torch.device) -> list[slice]:
    """Members that one batched product may hold: on a processor each alone, on a card all.

    A batched product's bits depend on their number, and on a processor a member's must not.
    """
    each = 1 if device.type == "cpu" else members
    return [slice(m, m + each) for m in range(0, members, each)]


def to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """An array on the device: itself on a processor, else copied while the processor goes on.

    torch keeps the pinned copy until the device has read it.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def start_transfer(
    tensors: Sequence[Tensor], device: torch.device
) -> Callable[[], list[NDArray[Any]]]:
    """What gives arrays of the device's tensors: themselves on a processor, else copied.

    A card's copies, into pinned memory, are queued here. The call waits for what was queued before
    them, not for what came after; whatever else asks for a number of a card waits for all.
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
    """Holds torch at one thread in the block, and gives it its own back.

    Threads of torch's own wait for each other by spinning: beside a busy neighbour an update took
    fifty times as long with two. A forked child cannot use those of its parent at all.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
