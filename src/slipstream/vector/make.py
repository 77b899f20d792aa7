"""One call from a name to stepping environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from slipstream.core.discover import load_kernel
from slipstream.core.errors import ConfigError
from slipstream.vector.gymnasium_env import GymnasiumVectorEnv
from slipstream.vector.kernel_env import KernelVectorEnv
from slipstream.vector.loop import RESET
from slipstream.vector.threaded import ThreadedVectorEnv
from slipstream.vector.vector_env import VectorEnv, member_indices

GYMNASIUM = "gym:"
_KERNEL_BACKENDS = ("auto", "compiled", "serial")
_FOREIGN_BACKENDS = ("auto", "serial")


def make_vector_env(
    target: str,
    num_envs: int,
    seed: int = 0,
    *,
    backend: str = "auto",
    workers: int | Literal["auto"] = "auto",
    config: Mapping[str, Any] | None = None,
    split: str = "train",
    at_end: int = RESET,
) -> VectorEnv:
    """Copies of any environment behind the same interface.

    Args:
        target: a kernel's name (``"forex"``), the path of a kernel file (``"my_env.py"``), or a
            Gymnasium id (``"gym:Acrobot-v1"``).
        num_envs: copies.
        seed: of the member whose copies they are.
        backend: ``"auto"`` (a kernel is compiled, any other environment is stepped serially),
            ``"compiled"`` or ``"serial"``.
        workers: threads for a compiled kernel; ``"auto"`` measures whether they pay.
        config: what a user would write under `env:`; ``{"kwargs": {...}}`` for a Gymnasium id.
        split: whose Params records the copies use.
        at_end: RESET, RESET_KEEP_ALL or HOLD of `loop.py`.

    Raises:
        ConfigError: unknown target, impossible backend or number, with what would work.
    """
    if num_envs < 1:
        raise ConfigError(f"`num_envs` must be at least 1, it is {num_envs}.")
    seeds, indices = member_indices([seed], num_envs)
    settings = dict(config or {})
    if target.startswith(GYMNASIUM):
        _refuse_backend(target, backend, _FOREIGN_BACKENDS)
        if workers not in ("auto", 1):
            raise ConfigError(
                f"{target} is stepped by one worker: its Python code holds the interpreter lock; "
                "leave `workers` at `auto`."
            )
        unknown = sorted(set(settings) - {"kwargs"})
        if unknown:
            raise ConfigError(f"`{unknown[0]}` is not a key of {target}; it takes `kwargs` only.")
        name = target.removeprefix(GYMNASIUM)
        kwargs = settings.get("kwargs") or {}
        return GymnasiumVectorEnv(name, seeds, indices, kwargs=kwargs, at_end=at_end)
    _refuse_backend(target, backend, _KERNEL_BACKENDS)
    kernel = load_kernel(target)
    loaded = kernel.load(kernel.configure(settings))
    # First episodes of random length are for learning: here every episode is whole.
    more: dict[str, Any] = {"split": split, "at_end": at_end, "stagger": False}
    if backend == "serial":
        if workers not in ("auto", 1):
            raise ConfigError(
                "The serial backend is interpreted, and threads of the interpreter take turns: "
                "use `backend: compiled` with more than one worker."
            )
        return KernelVectorEnv(kernel, loaded, seeds, indices, backend="serial", **more)
    if workers == 1:
        return KernelVectorEnv(kernel, loaded, seeds, indices, **more)
    return ThreadedVectorEnv(kernel, loaded, seeds, indices, workers=workers, **more)


def _refuse_backend(target: str, backend: str, known: tuple[str, ...]) -> None:
    if backend in known:
        return
    reason = {
        "compiled": "only kernels can be compiled",
        "process": "worker processes do not exist yet",
        "cuda": "stepping on a GPU does not exist yet",
    }.get(backend, "there is no such backend")
    raise ConfigError(
        f"`{target}` cannot run on backend `{backend}`: {reason}. It runs on {' or '.join(known)}."
    )
