"""Libraries that an installation may lack, and modules of the working folder."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from slipstream.core.errors import ResourceError

# The extras of pyproject.toml, for people: a registry's `slipstream` need not be this one.
EXTRAS: dict[str, tuple[str, ...]] = {
    "torch": ("torch>=2.10",),
    "sb3": ("stable-baselines3>=2.4",),
    "envpool": ("envpool>=1.0",),
    "pettingzoo": ("pettingzoo>=1.25",),
    "elegantrl": ("torch>=2.10",),
    "rating": ("openskill>=6.1",),
    "onnx": ("onnx>=1.17",),
    "postgresql": ("psycopg[binary]>=3.2",),
    "live": ("ccxt>=4.5,<5",),
    "cmaes": ("cmaes>=0.12",),
    "scipy": ("scipy>=1.13",),
    "wandb": ("wandb>=0.19",),
    "ray": ("ray>=2.52,<2.61",),
}


def pip_install(*words: str) -> str:
    """A shell's line that has pip install `words` where slipstream is, whatever is activated."""
    return shlex.join([sys.executable, "-m", "pip", "install", *words])


def install(extra: str) -> str:
    """A shell's line that installs the packages of an extra."""
    return pip_install(*EXTRAS[extra])


def require(module: str, purpose: str, extra: str) -> Any:
    """A module of an optional library.

    Args:
        module: what is imported.
        purpose: beginning of a sentence, what needs it.
        extra: whose packages have it.

    Raises:
        ResourceError: it is not installed; has the line that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ResourceError(
            f"{purpose} needs {module.partition('.')[0]}, which cannot be loaded here ({error}). "
            f"Install it: {install(extra)}"
        ) from error


def search_working_folder() -> None:
    """From now on modules are found there, too, behind what is installed.

    It stays so: environments that a module registers name their classes by modules that are
    imported when the first of them is made.
    """
    with suppress(OSError):  # the working folder was deleted
        if (folder := os.getcwd()) not in sys.path:
            sys.path.append(folder)
            importlib.invalidate_caches()
